# SPDX-License-Identifier: GPL-2.0
"""What runs inside a guest: btrfs filesystems, sends and fiemaps. A fork costs 20 ms there, so this avoids them."""

import ctypes
import fcntl
import hashlib
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

FS_IOC_FIEMAP = 0xC020660B
FICLONERANGE = 0x4020940D
FIEMAP_FLAG_SYNC = 1
FIEMAP_EXTENT_LAST = 1
FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2

# struct fiemap: start, length, flags, mapped extents, room for extents.
FIEMAP = struct.Struct("=QQLLLL")
# struct fiemap_extent: logical, physical, length, flags.
EXTENT = struct.Struct("=QQQ16xL12x")

libc = ctypes.CDLL(None, use_errno=True)


def run(*command):
    """Run a program; its output is shown only if it fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stdout.strip()}")
    return result.stdout


def mkfs(device, *options):
    run("mkfs.btrfs", "-q", "-f", *options, device)


def mount(device, where, options="defaults"):
    """Mount a filesystem; util-linux' mount does not work on UML."""
    Path(where).mkdir(exist_ok=True)
    run("busybox", "mount", "-t", "btrfs", "-o", options, device, where)
    return Path(where)


def umount(where):
    run("busybox", "umount", where)


def snapshot(source, target, readonly=True):
    run("btrfs", "subvolume", "snapshot", *(["-r"] if readonly else []), source, target)


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def send(snap, parent=None, options=(), keep=None):
    """Send a snapshot. Returns the stream's SHA-256, its size in bytes and the time in seconds.

    The stream is written to the file `keep`, if there is one.
    """
    digest, size = hashlib.sha256(), 0
    start = time.monotonic()
    command = ["btrfs", "-q", "send", *options, *(["-p", parent] if parent else []), snap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process, \
            open(keep or os.devnull, "wb") as copy:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        while block := process.stdout.read(1 << 20):
            digest.update(block)
            size += len(block)
            copy.write(block)
    if process.returncode:
        raise RuntimeError(f"btrfs send of {snap} failed")
    return digest.hexdigest(), size, time.monotonic() - start


def fiemap_batches(path, batch=512):
    """FIEMAP calls for all extents of a file, `batch` at a time; yields how many came and the buffer they are in."""
    start = 0
    buffer = bytearray(FIEMAP.size + batch * EXTENT.size)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        while True:
            FIEMAP.pack_into(buffer, 0, start, 2**64 - 1 - start, FIEMAP_FLAG_SYNC, 0, batch, 0)
            fcntl.ioctl(handle, FS_IOC_FIEMAP, buffer)
            count = FIEMAP.unpack_from(buffer)[3]
            yield count, buffer
            if not count:
                return
            last = EXTENT.unpack_from(buffer, FIEMAP.size + (count - 1) * EXTENT.size)
            if last[3] & FIEMAP_EXTENT_LAST:
                return
            start = last[0] + last[2]
    finally:
        os.close(handle)


def fiemap(path):
    """All extents of a file: (logical, physical, length, flags)."""
    return [EXTENT.unpack_from(buffer, FIEMAP.size + number * EXTENT.size)
            for count, buffer in fiemap_batches(path) for number in range(count)]


def clone_range(source, source_offset, length, target, target_offset):
    """Reflink a range of an open file; a length of 0 is up to the end."""
    fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source.fileno(), source_offset, length, target_offset))


def fallocate(file, mode, offset, length):
    """fallocate(2), which Python's os lacks the modes of."""
    if libc.fallocate(file.fileno(), mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


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


def workload(make, run, jobs):
    """The command line of a workload: `make DEVICE SIZE` or `run DEVICE`, which prints a sample of each job as JSON.

    A job is run with nothing cached, and then three times with everything, of which the median counts. `run` gets the
    mounted filesystem and a job's value and returns the time in seconds and what must be the same in every kernel.
    """
    verb, device, *size = sys.argv[1:]
    if verb == "make":
        make(device, int(size[0]))
        return
    samples = {}
    for name, job in jobs.items():
        top = mount(device, "/mnt/fs", "ro")
        drop_caches()
        for state, times in (("cold", 1), ("warm", 3)):
            seconds, results = zip(*(run(top, job) for _ in range(times)))
            samples[f"{name}, {state}"] = {"seconds": statistics.median(seconds), "result": results[0]}
            if any(result != results[0] for result in results):
                raise RuntimeError(f"{name} gave different results")
        umount(top)
    print(json.dumps(samples))
