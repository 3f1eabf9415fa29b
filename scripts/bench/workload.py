# SPDX-License-Identifier: GPL-2.0
"""What the workloads of this directory share: their type, their command line inside the guest, and parts of their images and jobs."""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest


@dataclass(frozen=True)
class Workload:
    """A benchmark: the recipe of its image, and the jobs that are timed on it."""
    # What a size counts, and the sizes: small ones for minutes of work, and those of the seeds.
    unit: str
    small: tuple
    full: tuple
    # Makes the image: device, size.
    make: Callable
    # By name; each gets the mounted filesystem and returns its time in seconds and what all kernels must agree on.
    jobs: dict
    # Job, module parameter of btrfs and its values, to show what a part is worth.
    ablation: tuple = ()
    # What else the kernel is booted with then.
    ablated_with: str = ""
    # The kinds of modelled devices that it says something about, and whether C and Rust are compared.
    devices: tuple = ("ram", "latency", "spindle")
    is_compared: bool = True


def fill(directory, first, last, size, sync_every=1000):
    """Make the files file_`first` to file_`last` - 1 of `size` bytes in four interleaved ranges, as the seeds do."""
    content = b"\xab" * size
    quarter = (last - first + 3) // 4
    made = 0
    for offset in range(quarter):
        for number in range(first + offset, last, quarter):
            handle = os.open(f"{directory}/file_{number}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(handle, content)
            os.close(handle)
            made += 1
            if made % sync_every == 0:
                os.sync()


def timed_send(snap, parent=None, options=()):
    """A send as a job of a workload."""
    stream = "/tmp/stream" if os.environ.get("COUNT") else None
    digest, size, seconds = guest.send(snap, parent, options, keep=stream)
    result = {"sha256": digest, "stream_bytes": size}
    if stream:
        commands = guest.run("btrfs", "receive", "--dump", "-f", stream).splitlines()
        result["utimes"] = sum(command.startswith("utimes") for command in commands)
        os.unlink(stream)
    return seconds, result


def main(workload):
    """The command line of a workload inside the guest. `run` prints the samples as JSON: {job: {"cold": ..., "warm": ...}}.

    A cold sample is the first after mounting, with nothing cached. The warm one is the median of those that follow: three,
    or more that together take half a second.
    """
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make")
    verb.add_argument("device")
    verb.add_argument("size", type=int)
    verb = verbs.add_parser("run")
    verb.add_argument("device")
    verb.add_argument("--delay", type=int, default=0, metavar="MS", help="delay each read")
    verb.add_argument("--job", choices=workload.jobs, help="only this one")
    verb.add_argument("--cold", action="store_true", help="no warm samples")
    arguments = parser.parse_args()
    if arguments.verb == "make":
        workload.make(arguments.device, arguments.size)
        return
    disk = arguments.device
    device = guest.delayed(disk, arguments.delay) if arguments.delay else disk
    samples = {}
    for name in [arguments.job] if arguments.job else workload.jobs:
        top = guest.mount(device, "/mnt/fs", "ro")
        guest.drop_caches()
        before = guest.counters(disk)
        seconds, result = workload.jobs[name](top)
        counts = {what: number if what.endswith("_max") else number - before[what] for what, number in guest.counters(disk).items()}
        samples[name] = {"cold": {"seconds": seconds, "result": result, "counts": counts}}
        if not arguments.cold:
            times = []
            while len(times) < 3 or sum(times) < 0.5:
                seconds, other = workload.jobs[name](top)
                if other != result:
                    raise RuntimeError(f"{name} gave different results")
                times.append(seconds)
            samples[name]["warm"] = {"seconds": statistics.median(times), "result": result}
        guest.umount(top)
    print(json.dumps(samples))
