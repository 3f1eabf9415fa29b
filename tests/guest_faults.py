#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Send, map and walk in a guest while allocations, searches or reads fail, and end sends early: guest_faults.py JOB DEVICE..."""

import collections
import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_jobs import K, MNT, run
from guest_reading import SENDS

FAULTS = Path("/sys/kernel/debug")
# Size of the header of a stream; header of a command: length without this header, number, checksum; number of the command utimes; numbers
# of the other commands at the end of an inode: xattr (for capabilities), truncate, chmod, chown, fileattr.
STREAM_HEADER_SIZE = 17
COMMAND = struct.Struct("<LHL")
UTIMES = 20
REPEATED = (13, 17, 18, 19, 24)
KILLS = 3
SEARCHES = 150


@contextlib.contextmanager
def failing(file, value):
    """Let allocations of this task fail during the block: write `value` to a fault injection file in /proc, and 0 at the end."""
    handle = os.open(f"/proc/thread-self/{file}", os.O_RDWR)
    os.pwrite(handle, b"%d" % value, 0)
    try:
        yield
    finally:
        os.pwrite(handle, b"0", 0)
        os.close(handle)


def set_up_faults():
    """Configure fault injection and return the kinds of faults in this kernel. Faults print no messages.

    Allocations fail only in tasks that ask for it.
    """
    kinds = [kind for kind in ("failslab", "fail_page_alloc", "fail_function") if (FAULTS / kind).exists()]
    for kind in kinds:
        for name, value in (("verbose", "0"), ("times", "-1"), ("probability", "0")):
            (FAULTS / kind / name).write_text(value)
        if kind == "fail_function":
            # Searches fail in all tasks: a kprobe does not know its task.
            (FAULTS / kind / "task-filter").write_text("N")
            (FAULTS / kind / "inject").write_text("btrfs_search_slot")
            (FAULTS / kind / "btrfs_search_slot/retval").write_text(hex(2**64 - errno.EIO))
        else:
            (FAULTS / kind / "task-filter").write_text("Y")
            (FAULTS / kind / "ignore-gfp-wait").write_text("N")
    return kinds


def count_allocations(job):
    """Return the number of allocations of this task that can fail during the system call of `job`, with dropped caches."""
    left = []
    guest.drop_caches()

    @contextlib.contextmanager
    def counting():
        with failing("fail-nth", 10**9):
            yield
            left.append(int(Path("/proc/thread-self/fail-nth").read_text()))

    job(around=counting())
    return 10**9 - left[0]


def commands(stream="/tmp/stream"):
    """Return a digest of the commands of a stream without utimes, and the set of its utimes commands.

    During a balance, a file may have other extent addresses than in the parent snapshot. Send then finishes the same inode several times:
    the digest has repeated commands once. If send has no memory to remember pending utimes, it sends some early.
    """
    content = Path(stream).read_bytes()
    digest, repeated, utimes, start = hashlib.sha256(), set(), set(), STREAM_HEADER_SIZE
    while start < len(content):
        length, number, _ = COMMAND.unpack_from(content, start)
        command = content[start:start + COMMAND.size + length]
        start += len(command)
        if number == UTIMES:
            utimes.add(command)
        elif command not in repeated:
            digest.update(command)
            if number in REPEATED:
                repeated.add(command)
    return digest.hexdigest(), utimes


def fiemap_directly(path, around=contextlib.nullcontext()):
    """Return a digest of the extents of a file in a single FIEMAP call. The context manager `around` is entered for the call."""
    count = 1 << 15
    buffer = bytearray(guest.FIEMAP.size + count * guest.EXTENT.size)
    guest.FIEMAP.pack_into(buffer, 0, 0, 2**64 - 1, 0, 0, count, 0)
    with open(path, "rb") as file, around:
        fcntl.ioctl(file, guest.FS_IOC_FIEMAP, buffer)
    return hashlib.sha256(buffer).hexdigest()


def walk_directly(top, around=contextlib.nullcontext()):
    """Return a digest of what stat(2) says of all files below `top`, and of their data. `around` is entered for the walk."""
    try:
        with around:
            found = guest.walk(top, reads=True)
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "no memory for Python") from error
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def faults(device, turns):
    """Send, map and walk while allocations, searches or reads fail at random. Print the number of outcomes of each kind."""
    size = int(guest.sysfs(device, "size"))

    def table(target):
        guest.run("dmsetup", "reload", "faulty", "--readonly", "--table", f"0 {size} {target}")
        guest.run("dmsetup", "resume", "--noudevsync", "faulty")

    @contextlib.contextmanager
    def bad_reads(one_in):
        table(f"flakey {device} 0 0 1 2 random_read_corrupt {10**9 // one_in}")
        try:
            yield
        finally:
            table(f"linear {device} 0")

    @contextlib.contextmanager
    def failures(kind, interval, space=0, times=-1):
        for name, value in (("interval", interval), ("space", space), ("times", times), ("probability", 100)):
            (FAULTS / kind / name).write_text(str(value))
        try:
            with failing("make-it-fail", 1):
                yield
        finally:
            (FAULTS / kind / "probability").write_text("0")

    def fault(kind, allocations):
        if kind == "one allocation":
            return failing("fail-nth", chance.randrange(allocations) + 1)
        if kind == "disk":
            return bad_reads(chance.choice((10, 100, 1000, 10_000)))
        return failures(kind, chance.choice((10, 100, 1000, 10_000) if kind == "fail_function" else (100, 1000, 10_000, 100_000)))

    def outcome(number, around):
        guest.drop_caches()
        try:
            if jobs[number](around=around) == wanted[number]:
                return "the same"
        except OSError as error:
            return errno.errorcode[error.errno]
        if number < sends:
            found, found_utimes = commands()
            jobs[number]()
            right, right_utimes = commands()
            if found == right and found_utimes >= right_utimes:
                return "other utimes"
        return "another"

    guest.run("dmsetup", "create", "faulty", "--noudevsync", "--readonly", "--table", f"0 {size} linear {device} 0")
    guest.run("dmsetup", "mknodes")
    kinds = ["disk", *set_up_faults()]
    if "failslab" in kinds:
        kinds.append("one allocation")
    top = guest.mount("/dev/mapper/faulty", MNT, "ro")
    jobs = [functools.partial(guest.send_directly, top / snap, guest.subvolume_id(top / parent) if parent else 0, encoded)
            for snap, parent in SENDS if snap.startswith("small") for encoded in (False, True)]
    sends = len(jobs)
    jobs += [functools.partial(fiemap_directly, top / name) for name in ("data1/pieces0", "copied/file", "deep/file")]
    jobs += [functools.partial(walk_directly, top / name) for name in ("small1", "data1")]
    wanted = [job() for job in jobs]
    counts = [count_allocations(job) for job in jobs] if "one allocation" in kinds else []
    chance, outcomes = random.Random(6), collections.Counter()
    for _ in range(int(turns)):
        number, kind = chance.randrange(len(jobs)), chance.choice(kinds)
        outcomes[f"{kind}: {outcome(number, fault(kind, counts[number] if counts else 0))}"] += 1
    if "fail_function" in kinds:
        # Each of these searches fails once: those of some files, and of each command for them.
        for search in range(1, SEARCHES + 1):
            outcomes[f"search: {outcome(0, failures('fail_function', 1, search, 1))}"] += 1
    print(json.dumps(outcomes))
    guest.umount(MNT)


def end(device):
    """End sends from a slow disk early, in several ways. The streams must be cut, and not differ otherwise. Pending reads must not prevent
    the unmount.
    """
    slow = guest.delayed(device, 10)
    small, cut = Path("/mnt/small"), 0
    small.mkdir()
    guest.run("busybox", "mount", "-t", "tmpfs", "-o", "size=1m", "none", small)
    for number in range(4 * len(SENDS)):
        top = guest.mount(slow, MNT, "ro")
        guest.drop_caches()
        snap, parent = SENDS[number % len(SENDS)]
        options = ["--proto", "2", "--compressed-data"] if number % 2 else []
        command = ["btrfs", "-q", "send", *options, *(["-p", top / parent] if parent else []), top / snap]
        how = number // len(SENDS)
        stream = Path("/tmp/stream") if how < 2 else small / "stream"
        if how < 2:
            with subprocess.Popen([*command, "-f", stream]) as process:
                time.sleep((number - how * 7) * 0.02)
                process.kill()
        elif how == 2:
            # The receiver closes its pipe.
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                stream.write_bytes(process.stdout.read(number * 5000))
                process.stdout.close()
        else:
            # The filesystem of the stream is full.
            subprocess.run([*command, "-f", stream], stderr=subprocess.DEVNULL)
        guest.umount(MNT)
        top = guest.mount(slow, MNT, "ro")
        guest.send(top / snap, parent and top / parent, options, keep="/tmp/whole")
        guest.umount(MNT)
        found, whole = stream.read_bytes() if stream.exists() else b"", Path("/tmp/whole").read_bytes()
        if not whole.startswith(found):
            sys.exit(f"{snap} from {parent}: the stream differs before its end")
        cut += 0 < len(found) < len(whole)
        stream.unlink(missing_ok=True)
    print(f"{cut} of {4 * len(SENDS)} streams were cut")


def waiting_workers():
    """Return the number of workers of unbound workqueues that wait for a disk."""
    tasks = [path.read_text().rpartition(")") for path in Path("/proc").glob("[0-9]*/stat")]
    return sum("events_unbound" in name and state.split()[0] == "D" for name, _, state in tasks)


def sleeps(process):
    """Return whether a process waits, but not for a disk."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def is_stalled(process):
    """Return whether, within half a second, a worker waits for a disk while a process waits for something else."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        if waiting_workers() and sleeps(process):
            return True
        time.sleep(0.02)
    return False


def kill(device):
    """Kill sends that wait for their receiver, while a worker waits for room in the queue of a disk."""
    # A loop device has a queue, unlike the target that delays its reads. Each leaf is one request.
    loop = guest.run("losetup", "--find", "--show", "--read-only", guest.delayed(device, 30)).strip()
    for name, limit in (("nr_requests", 4), ("max_sectors_kb", 4)):
        Path(f"/sys/block/{Path(loop).name}/queue/{name}").write_text(str(limit))
    killed = 0
    for _ in range(KILLS):
        top = guest.mount(loop, MNT, "ro")
        guest.drop_caches()
        with subprocess.Popen(["btrfs", "-q", "send", top / "names1"], stdout=subprocess.PIPE) as process:
            # The receiver stands still after each part. Then the send waits for it, and the worker for the disk.
            while not (is_caught := is_stalled(process)) and process.stdout.read(64 * K):
                pass
            process.kill()
        killed += is_caught
        guest.umount(MNT)
    print(f"{killed} of {KILLS} sends were killed while a worker waited")


if __name__ == "__main__":
    run(faults, end, kill)
