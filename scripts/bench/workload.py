# SPDX-License-Identifier: GPL-2.0
"""Helpers of all workloads: their type, their command line inside the guest, and common parts of images and jobs."""

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest


@dataclass(frozen=True)
class Workload:
    """A benchmark: a function that makes its image, and the jobs that are timed on it."""
    # Unit of the sizes; small sizes for runs of minutes; sizes of the seeds.
    unit: str
    small: tuple
    full: tuple
    # Function that makes the image: make(device, size).
    make: Callable
    # {name: function}. A job takes the mount point. It returns its time in seconds and a result that must be the same in all kernels.
    jobs: dict
    # (job, module parameter of btrfs, values) to measure the effect of one part.
    ablation: tuple = ()
    # Other kernel parameters of an ablation.
    ablated_with: str = ""
    # Modelled devices on which the workload is useful, and whether it compares upstream, C and Rust.
    devices: tuple = ("ram", "ssd", "latency", "spindle")
    is_compared: bool = True


def fill(directory, first, last, size, sync_every=1000):
    """Make files of `size` bytes, file_`first` up to, but not including, file_`last`, in four interleaved ranges as in the seeds."""
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
    """Run a send as a job of a workload; return its time and result.

    With COUNT set, this process sends, so that its waits are counted, and the result includes the number of utimes commands.
    """
    if not os.environ.get("COUNT"):
        digest, size, seconds = guest.send(snap, parent, options)
        return seconds, {"sha256": digest, "stream_bytes": size}
    start = time.monotonic()
    digest = guest.send_directly(snap, guest.subvolume_id(parent) if parent else 0, "--compressed-data" in options, "--no-data" in options)
    seconds = time.monotonic() - start
    commands = guest.run("btrfs", "receive", "--dump", "-f", "/tmp/stream").splitlines()
    return seconds, {"sha256": digest, "stream_bytes": os.path.getsize("/tmp/stream"),
                     "utimes": sum(command.startswith("utimes") for command in commands)}


def timed_fiemap(path):
    """Map a file; return the time of the calls in seconds, and a digest of the extents.

    The extents are not kept: page faults for the memory would take as long as the calls.
    """
    digest, extents, seconds = hashlib.sha256(), 0, 0.0
    batches = guest.fiemap_batches(path)
    while True:
        start = time.monotonic()
        count, buffer = next(batches, (None, None))
        seconds += time.monotonic() - start
        if count is None:
            return seconds, {"sha256": digest.hexdigest(), "extents": extents}
        digest.update(memoryview(buffer)[:guest.FIEMAP.size + count * guest.EXTENT.size])
        extents += count


def main(workload):
    """Parse and run the command line of a workload inside the guest.

    `make` makes the image. `run` prints the samples as JSON: {job: {"cold": ..., "warm": ...}}. A cold sample is the first run after
    mounting, with nothing cached. A warm sample is the median of the following runs. There are at least three, and they take at least
    half a second together.
    """
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make")
    verb.add_argument("device")
    verb.add_argument("size", type=int)
    verb = verbs.add_parser("run")
    verb.add_argument("device")
    verb.add_argument("--delay", type=int, default=0, metavar="MS", help="delay each read")
    verb.add_argument("--job", choices=workload.jobs, help="run only this job")
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
