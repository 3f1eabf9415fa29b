# SPDX-License-Identifier: GPL-2.0
"""Measure the speedup of btrfs send and fiemap by readahead on your own disk.

It sends a read-only snapshot to /dev/null and maps the extents of its largest files. It does so with the readahead on and off
in turns, and drops the caches before each job. It changes nothing on any disk. It needs root, btrfs-progs, and a btrfs
with the switches in /sys/fs/btrfs/UUID/readahead. It restores these switches at its end. It prints the speedup, and writes all
samples to a JSON file that you can share. If it is interrupted, it keeps the rounds that are complete.
"""

import argparse
import contextlib
import fcntl
import heapq
import json
import os
import platform
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import modules
from system import Error, ask_kernel, attribute, counters, filesystem

BTRFS_IOC_SUBVOL_GETFLAGS = 0x80089419
BTRFS_SUBVOL_RDONLY = 2
FS_IOC_FIEMAP = 0xC020660B
SUBVOLUME_INODE = 256
# struct fiemap; struct fiemap_extent without physical: logical, length, flags.
FIEMAP = struct.Struct("=QQLLLL")
EXTENT = struct.Struct("=Q8xQ16xL12x")
FIEMAP_EXTENT_LAST = 1
EXTENTS = 512
SWITCHES = ("tree_enable", "data_enable")
# Readahead on, off, off, on: this order cancels a linear drift of the times.
TURNS = (True, False, False, True)
# Number of files to map, their minimum size in bytes, and number of files of that size after which the search ends.
FILES, LARGE, LOOKED_AT = 5, 1 << 20, 200_000


def check_snapshot(path):
    """Raise Error if `path` is not a read-only subvolume, since btrfs send refuses it."""
    flags = ask_kernel(path, BTRFS_IOC_SUBVOL_GETFLAGS, 8)
    if os.stat(path).st_ino != SUBVOLUME_INODE:
        raise Error(f"{path} is not the top directory of a subvolume")
    if not int.from_bytes(flags, sys.byteorder) & BTRFS_SUBVOL_RDONLY:
        raise Error(f"{path} can be written to: make a snapshot with `btrfs subvolume snapshot -r` and give that")


def disks(top):
    """Return the sysfs attributes of the disks of a filesystem, one dictionary a disk."""
    found = []
    for device in sorted((top / "devices").iterdir()):
        # The queue of a partition is that of its disk.
        disk = device.resolve()
        disk = disk if (disk / "queue").exists() else disk.parent
        found.append({"name": disk.name, "rotational": attribute(disk / "queue/rotational") == "1",
                      "model": attribute(disk / "device/model"), "scheduler": attribute(disk / "queue/scheduler"),
                      "size": int(attribute(device / "size") or 0) * 512})
    return found


def version():
    """Return the version of the loaded btrfs: "no" without Rust, "other" if its file is not there, or "yes" if it is built into the kernel."""
    current = modules.describe(platform.release(), with_initramfs=False)["loaded"]
    if current["path"]:
        return current["version"] or "no"
    return "other" if current["build_id"] else "yes"


def other_sends():
    """Return the number of processes that run `btrfs send`."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            found += os.path.basename(program) == b"btrfs" and b"send" in arguments
    return found


def pressure():
    """Return the share of the last 10 seconds in which a task waited for a disk, in per cent, or None if the kernel does not count it."""
    fields = attribute(Path("/proc/pressure/io")).split()
    return float(fields[1].removeprefix("avg10=")) if fields else None


@contextlib.contextmanager
def switches_kept(top):
    """Restore the readahead switches at the end of the block, also after an exception or a signal."""
    before = {name: attribute(top / "readahead" / name) for name in SWITCHES}
    # Handle these signals like SIGINT, so that the block below is left by an exception. nohup ignores SIGHUP.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        # A second Ctrl-C must not end this, nor lose the samples.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for name, value in before.items():
            (top / "readahead" / name).write_text(value)


def largest_files(snapshot):
    """Return the paths of the largest files of a snapshot. The search ends after LOOKED_AT large files."""
    sizes = []
    for where, _, names in os.walk(snapshot):
        for name in names:
            with contextlib.suppress(OSError):
                size = os.lstat(os.path.join(where, name)).st_blocks * 512
                if size >= LARGE:
                    sizes.append((size, os.path.join(where, name)))
        if len(sizes) > LOOKED_AT:
            break
    return [path for _, path in heapq.nlargest(FILES, sizes)]


def send(snapshot, parent):
    """Send a snapshot to /dev/null."""
    command = ["btrfs", "-q", "send", *(["-p", parent] if parent else []), snapshot]
    with open("/dev/null", "wb") as nowhere:
        result = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        raise Error(f"btrfs send: {result.stderr.strip().splitlines()[-1] if result.stderr.strip() else result.returncode}")


def count_extents(path):
    """Return the number of extents that FIEMAP reports for a file."""
    total, start = 0, 0
    buffer = bytearray(FIEMAP.size + EXTENTS * EXTENT.size)
    with open(path, "rb") as file:
        while True:
            FIEMAP.pack_into(buffer, 0, start, 2**64 - 1 - start, 0, 0, EXTENTS, 0)
            fcntl.ioctl(file, FS_IOC_FIEMAP, buffer)
            count = FIEMAP.unpack_from(buffer)[3]
            total += count
            if not count:
                return total
            logical, length, flags = EXTENT.unpack_from(buffer, FIEMAP.size + (count - 1) * EXTENT.size)
            if flags & FIEMAP_EXTENT_LAST:
                return total
            start = logical + length


def measure(top, jobs, rounds, samples):
    """Run all jobs with the readahead on and off in turns. Add one sample to `samples` for each run."""
    runs = [(number * 2 + turn // 2, enabled, job) for number in range(rounds) for turn, enabled in enumerate(TURNS) for job in jobs]
    # The last time of each job, for the estimate. Without readahead it takes at least as long as with it.
    times = {}
    for step, (number, enabled, job) in enumerate(runs, 1):
        for name in SWITCHES:
            (top / "readahead" / name).write_text(str(int(enabled)))
        others = other_sends()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        before, start = counters(top), time.monotonic()
        result = jobs[job]()
        seconds = time.monotonic() - start
        counts = {name: count - before[name] for name, count in counters(top).items()}
        samples.append({"job": job, "round": number, "readahead": enabled, "seconds": round(seconds, 6), "result": result,
                        "other_sends": max(others, other_sends()), "counters": counts})
        times[job, enabled] = seconds
        left = sum(times.get((job, enabled), times.get((job, True), seconds)) for _, enabled, job in runs[step:])
        with contextlib.suppress(OSError):
            print(f"{step}/{len(runs)} {job}, readahead {'on' if enabled else 'off'}: {seconds:.2f} s; "
                  f"{'at least' if len(times) < 2 * len(jobs) else 'about'} {left / 60:.0f} min left", file=sys.stderr, flush=True)


def complete(samples):
    """Return the samples of rounds that have all jobs with the readahead on and off."""
    jobs = {sample["job"] for sample in samples}
    count = {}
    for sample in samples:
        count[sample["round"]] = count.get(sample["round"], 0) + 1
    return [sample for sample in samples if count[sample["round"]] == 2 * len(jobs)]


def ratios(samples, job):
    """Return the ratio of the times of a job, readahead off / on, for each round."""
    times = {(sample["round"], sample["readahead"]): sample["seconds"] for sample in samples if sample["job"] == job}
    return [times[number, False] / times[number, True] for number in sorted({number for number, _ in times})]


def report(document):
    """Yield the lines of the report on the terminal."""
    kind = ", ".join(f"{disk['name']} ({'rotational' if disk['rotational'] else 'not rotational'}{disk['model'] and ', ' + disk['model']})"
                     for disk in document["disks"])
    yield f"Linux {document['kernel']}, btrfs with rust={document['module']}, disks: {kind}"
    yield f"{'job':<44} {'off':>9} {'on':>9}  off / on [least, greatest]"
    for job in dict.fromkeys(sample["job"] for sample in document["samples"]):
        off, on = (statistics.median(sample["seconds"] for sample in document["samples"]
                                     if sample["job"] == job and sample["readahead"] == enabled) for enabled in (False, True))
        found = ratios(document["samples"], job)
        yield f"{job:<44} {off:>7.2f} s {on:>7.2f} s  {statistics.median(found):.2f} [{min(found):.2f}, {max(found):.2f}], {len(found)} rounds"
    used, wasted = (sum(sample["counters"][f"{kind}_{what}_kb"] for sample in document["samples"] for kind in ("tree", "data"))
                    for what in ("used", "wasted"))
    yield f"read ahead and used: {used >> 10} MiB, and not used: {wasted >> 10} MiB"
    if disturbed := sum(sample["other_sends"] > 0 for sample in document["samples"]):
        yield f"{disturbed} of {len(document['samples'])} runs were beside other sends: their times and counters tell little"


def confirm(snapshot):
    """Ask for permission to drop the caches of the whole machine. Raise Error without it."""
    if not sys.stdin.isatty():
        raise Error("this drops the caches of the whole machine: say --yes, or run it at a terminal")
    answer = input(f"This sends {snapshot} several times and drops all caches of the machine each time. It switches the readahead of the whole\n"
                   "filesystem off and on. That slows other programs down. A backup that runs meanwhile distorts the result.\nGo on? [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise Error("nothing was done")


def warnings(share):
    """Yield what on this machine distorts the result. `share` is that of pressure()."""
    if count := other_sends():
        yield f"{count} other sends are running: their readahead is switched, too"
    if share and share > 5:
        yield f"tasks have waited for a disk in {share:.0f}% of the last 10 seconds: something else is using it"


@contextlib.contextmanager
def reserved(output):
    """Create the file for the samples, so that a bad path fails before the measurement. Remove it if it is empty after the block."""
    try:
        open(output, "x").close()
    except FileExistsError:
        raise Error(f"{output} exists: name another file with --output") from None
    except OSError as error:
        raise Error(f"{output}: {error.strerror}") from None
    try:
        yield
    finally:
        if not output.stat().st_size:
            output.unlink()


def keep(document, output):
    """Write the rounds that are complete to the file `output`, or to the terminal if that fails. Print their report."""
    document["samples"] = complete(document["samples"])
    if not document["samples"]:
        return
    text, failure = json.dumps(document, indent=1) + "\n", None
    try:
        output.write_text(text)
    except OSError as error:
        failure = error
        os.truncate(output, 0)
    # The terminal may be gone.
    with contextlib.suppress(OSError):
        print("\n".join(report(document)))
        print(text if failure else f"all figures: {output}", flush=True)
    if failure:
        raise Error(f"{output}: {failure.strerror}: all figures are above")


def add_arguments(parser):
    parser.add_argument("snapshot", metavar="SUBVOLUME", help="a read-only snapshot")
    parser.add_argument("--parent", metavar="P", help="send only the changes since this snapshot")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds of four runs of each job (default 2)")
    parser.add_argument("--output", type=Path, default=Path("btrfs-readahead.json"), metavar="FILE", help="default: btrfs-readahead.json")
    parser.add_argument("--yes", action="store_true", help="do not ask before dropping caches")


def run(arguments):
    if arguments.rounds < 1:
        raise Error("--rounds must be at least 1")
    if os.geteuid():
        raise Error("this needs root: it drops caches and switches the readahead")
    for snapshot in filter(None, (arguments.snapshot, arguments.parent)):
        check_snapshot(snapshot)
    top = filesystem(arguments.snapshot)
    if not (top / "readahead/stats").exists():
        raise Error("the loaded btrfs has no readahead switches: see `btrfs-readahead status`")
    share = pressure()
    for warning in warnings(share):
        print(f"btrfs-readahead: {warning}", file=sys.stderr)
    if not arguments.yes:
        confirm(arguments.snapshot)
    files = largest_files(arguments.snapshot)
    jobs = {"incremental send" if arguments.parent else "full send": lambda: send(arguments.snapshot, arguments.parent)}
    if files:
        jobs["fiemap of large files"] = lambda: sum(map(count_extents, files))
    document = {"format": 2, "date": time.strftime("%Y-%m-%d"), "kernel": platform.release(), "machine": platform.machine(),
                "processors": os.cpu_count(), "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "module": version(), "read_ahead_kb": int(attribute(top / "bdi/read_ahead_kb")),
                "window_kb": int(attribute(top / "readahead/window_kb")), "disks": disks(top), "io_pressure": share, "samples": []}
    with reserved(arguments.output):
        try:
            with switches_kept(top):
                measure(top, jobs, arguments.rounds, document["samples"])
        except KeyboardInterrupt:
            raise Error("interrupted; the switches are as before") from None
        finally:
            # Also after an interrupt or a failed send.
            keep(document, arguments.output)
    samples = document["samples"]
    if any(len({sample["result"] for sample in samples if sample["job"] == job}) > 1 for job in jobs):
        raise Error("the numbers of extents differ: was the snapshot replaced?")
    return 0
