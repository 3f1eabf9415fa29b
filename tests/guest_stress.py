#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Send and map in a guest while caches are dropped or the filesystem changes: guest_stress.py JOB DEVICE..."""

import contextlib
import fcntl
import hashlib
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_faults import commands, fiemap_directly
from guest_images import write
from guest_broken import mount_blank
from guest_jobs import K, MNT, HeldSend, run
from guest_reading import cached_pages

FIDEDUPERANGE = 0xC0189436
FILE_DEDUPE_RANGE_DIFFERS = 1
# struct file_dedupe_range with one target: source offset, length, number of targets; target, offset, bytes, status.
DEDUPE = struct.Struct("=QQH6xqQQl4x")


def sleeps(process):
    """Return whether all threads of a process sleep, and none of them waits for a disk."""
    states = {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{process.pid}/task").glob("*/stat")}
    return states <= {"S", "Z"}


def evict(device):
    """Send while the caches are dropped. The stream must be the same, and dropped blocks that the send still needs are read ahead again.

    The caches are dropped each time that the receiver has made the send wait.
    """
    top = guest.mount(device, MNT, "ro")
    found = []
    for drops in (False, True):
        guest.drop_caches()
        before, digest = guest.counters(device)["readahead_used"], hashlib.sha256()
        with subprocess.Popen(["btrfs", "-q", "send", top / "names2"], stdout=subprocess.PIPE) as process:
            while piece := process.stdout.read(2048 * K):
                digest.update(piece)
                while drops and process.poll() is None and not sleeps(process):
                    time.sleep(0.01)
                if drops:
                    guest.drop_caches()
        found.append((digest.hexdigest(), guest.counters(device)["readahead_used"] - before))
    guest.umount(MNT)
    (wanted, used), (stream, used_with_drops) = found
    print(f"blocks read ahead and used: {used}, and {used_with_drops} while memory was freed")
    if stream != wanted:
        sys.exit("the stream differs")
    # With drops, more blocks are used from readahead: send looks up the same names many times, and reads their blocks again.
    if not 1.2 * used < used_with_drops < 2 * used:
        sys.exit("nothing was read ahead again, or too much")


def commit(device):
    """Map a file while a commit of its subvolume is written. Readahead must go on after the commit."""
    top = guest.mount(guest.delayed(device, 50, writes=300), MNT)
    guest.drop_caches()
    before = guest.counters(device)["readahead_blocks"]
    expected = fiemap_directly(top / "deep/file")
    undisturbed = guest.counters(device)["readahead_blocks"] - before
    for turn in range(3):
        (top / f"deep/new{turn}").touch()
        # Not guest.drop_caches(): its sync(2) would commit.
        Path("/proc/sys/vm/drop_caches").write_text("3")
        before = guest.counters(device)["readahead_blocks"]
        # Use a process, since ioctl(2) blocks all threads of Python.
        commit_and_count = f"btrfs filesystem sync {top} && grep 'readahead_blocks ' /sys/kernel/debug/btrfs_counters"
        with subprocess.Popen(["sh", "-c", commit_and_count], stdout=subprocess.PIPE) as syncing:
            # Wait for the writes of the commit: they start after it has let other tasks go on.
            while int(guest.run("dmsetup", "status", "delayed").split()[4]) == 0:
                time.sleep(0.01)
            found, after = fiemap_directly(top / "deep/file"), guest.counters(device)["readahead_blocks"]
            committed = int(syncing.stdout.read().split()[-1])
        print(f"blocks read ahead: {committed - before} during the commit, {after - committed} after it; {undisturbed} without a commit")
        if found != expected:
            sys.exit("the extents differ")
        if committed - before > undisturbed // 2:
            sys.exit("the commit was over too soon")
        # Upstream's readahead alone stays below this limit: it does not read the extent tree ahead.
        if after - before < undisturbed * 4 // 5:
            sys.exit("the readahead has stopped")
    guest.umount(MNT)


def pause_workers(is_on):
    """Let the workers of the readahead wait, or go on."""
    Path("/sys/module/btrfs/parameters/reada_pause").write_text("1" if is_on else "0")


def replaced(device, parent):
    """Replace the leaves of a subvolume while the worker of its send has them to read ahead, and let new blocks take their places.

    The subvolume was set read-only when files in it were open for writing. With `parent` "with", the send has a parent, and with "as" the
    subvolume is the parent. The worker must give up what it has.
    """
    count = 5000
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    top = mount_blank(device, options="commit=1000,nossd,nodiscard,max_inline=2048")
    sent, other = top / "sent", top / "other"
    for subvolume in (sent, other):
        guest.run("btrfs", "subvolume", "create", subvolume)
    paths = [sent / f"file{number:04}" for number in range(count)]
    for version in ("old", "new"):
        # A leaf for each file.
        for number, path in enumerate(paths):
            path.write_bytes(f"{version} {number}".encode().ljust(1900))
        if version == "old":
            guest.snapshot(sent, top / "parent")
    guest.umount(MNT)
    top = guest.mount(device, MNT, "commit=1000,nossd,nodiscard,max_inline=2048")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb+", buffering=0)) for path in paths[::2]]
        guest.run("btrfs", "property", "set", sent, "ro", "true")
        guest.drop_caches()
        send = HeldSend(*{"with": ["-p", top / "parent", sent], "as": ["-p", sent, top / "parent"]}.get(parent, [sent]))
        send.take(4096 * K)
        pause_workers(True)
        before = waiting = not_submitted()
        while waiting < before + 512 and send.process.poll() is None:
            send.take(256 * K)
            waiting = not_submitted()
        for file in files:
            os.pwrite(file.fileno(), b"changed", 0)
        os.sync()
        for number in range(count):
            (other / f"new{number}").touch()
            for name in ("user.1", "user.2", "user.3"):
                os.setxattr(other / f"new{number}", name, bytes(1000))
        pause_workers(False)
        time.sleep(2)
        print(f"{waiting - before} KiB given to the worker, {waiting - not_submitted()} KiB read after they were freed")
        print(send.end())
    os.sync()
    with open(top / "last", "wb", buffering=0) as file:
        file.write(bytes(4 * K))
        os.fsync(file.fileno())
    guest.umount(MNT)
    print(guest.run("btrfs", "check", device))


def rewritten(device, end):
    """Write to a file without checksums between its readahead and its send, after a balance has moved it. Kill the send if `end` is "killed"."""
    top = mount_blank(device, options="commit=1000")
    guest.run("btrfs", "subvolume", "create", top / "sent")
    for number in range(40):
        (top / f"sent/first{number}").write_bytes(bytes(8 * K))
    (top / "sent/file").touch()
    guest.run("chattr", "+C", top / "sent/file")
    (top / "sent/file").write_bytes(b"old" * 64 * K)
    with open(top / "sent/file", "rb+", buffering=0) as file:
        guest.run("btrfs", "property", "set", top / "sent", "ro", "true")
        guest.drop_caches()
        send = HeldSend(top / "sent")
        send.take(128 * K)
        print(cached_pages(top / "sent/file"), "pages were read ahead")
        guest.run("btrfs", "balance", "start", "-d", top)
        os.pwrite(file.fileno(), b"new", 180 * K)
        if end == "killed":
            send.process.kill()
            send.process.wait()
        else:
            started = time.monotonic()
            print(f"{send.end()} in {time.monotonic() - started:.1f} s")
            print("the stream has the", "new" if b"new" in send.stream else "old", "data")
    print("the file has the", "new" if b"new" in (top / "sent/file").read_bytes() else "old", "data")
    guest.umount(MNT)


def not_submitted():
    """The tree blocks that readahead has planned and not submitted, in KiB."""
    [file] = Path("/sys/fs/btrfs").glob("*-*/readahead/stats")
    stats = {name: int(number) for name, number in map(str.split, file.read_text().splitlines())}
    return stats["tree_planned_kb"] - stats["tree_submitted_kb"]


def dedupe(source, target):
    """Deduplicate a file against another one with the same content."""
    length = os.fstat(source.fileno()).st_size
    # Retry: the kernel reports a difference if a page is dropped from the cache during the comparison. Send drops its pages.
    for _ in range(5):
        arguments = bytearray(DEDUPE.pack(0, length, 1, target.fileno(), 0, 0, 0))
        fcntl.ioctl(source, FIDEDUPERANGE, arguments)
        *_, status = DEDUPE.unpack(arguments)
        if status != FILE_DEDUPE_RANGE_DIFFERS:
            break
    if status:
        raise OSError(-status, "dedupe")


def disturb(top, log):
    """Until killed, make and delete snapshots, write to them, deduplicate, reflink, fsync, sync, drop caches and balance."""
    number, names = 0, [path.name for path in (top / "old").iterdir() if path.is_file()]
    chance = random.Random(8)
    while True:
        number += 1
        other = top / "other"
        guest.snapshot(top / "files", other, readonly=False)
        write(other / f"new{number}", os.urandom(200 * K))
        (other / f"file{number}").unlink(missing_ok=True)
        for name in chance.sample(names, 20):
            with (open(top / "old" / name, "rb") as source, open(other / f"copy-{name}", "wb") as copy,
                  open(other / f"clone-{name}", "wb") as clone):
                copy.write(source.read())
                copy.flush()
                os.fsync(copy.fileno())
                dedupe(source, copy)
                guest.clone_range(source, 0, 0, clone, 0)
                os.fsync(clone.fileno())
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        guest.run("btrfs", "-q", "balance", "start", "--full-balance", top)
        guest.run("btrfs", "subvolume", "delete", "-c", other)
        Path(log).write_text(f"{number}\n")


def stress(device, seconds):
    """Send, map and walk read-only snapshots while the rest of the filesystem changes. The results must stay the same."""
    chance, count = random.Random(5), 2000
    guest.mkfs(device)
    top = guest.mount(device, MNT)
    guest.run("btrfs", "subvolume", "create", top / "files")
    (top / "files/packed").mkdir()
    guest.run("btrfs", "property", "set", top / "files/packed", "compression", "zstd")
    paths = [top / "files" / ("packed" if number % 3 == 0 else "") / f"file{number}" for number in range(count)]
    for number, path in enumerate(chance.sample(paths, count)):
        write(path, chance.randbytes(chance.randrange(600, 6 * K)) * chance.randrange(1, 4))
        if number % 200 == 0:
            os.sync()
    guest.snapshot(top / "files", top / "old")
    for path in chance.sample(paths, count // 4):
        write(path, chance.randbytes(chance.randrange(3 * K, 20 * K)))
    guest.snapshot(top / "files", top / "new")
    jobs = [(snap, parent, options) for snap, parent in (("old", None), ("new", "old"), ("new", None))
            for options in ([], ["--proto", "2", "--compressed-data"])]

    def results():
        for snap, parent, options in jobs:
            guest.drop_caches()
            guest.send(top / snap, parent and top / parent, options, keep="/tmp/stream")
            yield commands()
        # Compare only the sum of lengths: the balance changes addresses, and so the merging of extents, and their sharedness for a moment.
        yield [sum(length for _, _, length, _ in guest.fiemap(top / "old" / path.relative_to(top / "files"))) for path in paths[:200]]
        for by_inode in (False, True):
            guest.drop_caches()
            yield guest.walk(top / "old", by_inode, reads=True)
            # A walk of the subvolume that the other process creates, changes and deletes.
            guest.walk(top / "other", by_inode, reads=True)

    expected, rounds, log = list(results()), 0, Path("/tmp/disturbed")
    log.write_text("0")
    other = os.fork()
    if not other:
        disturb(top, log)
    end = time.monotonic() + float(seconds)
    try:
        while time.monotonic() < end:
            for number, (found, wanted) in enumerate(zip(results(), expected, strict=True)):
                if found != wanted:
                    sys.exit(f"result {number} of round {rounds} differs")
            rounds += 1
            if os.waitpid(other, os.WNOHANG)[0]:
                sys.exit("the process that changes the filesystem has ended early")
    finally:
        subprocess.run(["btrfs", "balance", "cancel", top], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
    # Retry: the cancelled balance may take a moment to end.
    while subprocess.run(["busybox", "umount", MNT], stderr=subprocess.DEVNULL).returncode:
        time.sleep(0.1)
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    reclaimed = int(counters["pgsteal_anon"]) + int(counters["pgsteal_file"])
    balances = int(log.read_text())
    if not rounds or not balances:
        sys.exit("no balance was complete, or no round of results was compared")
    print(f"{rounds} rounds, {balances} balances, {reclaimed} pages reclaimed")


if __name__ == "__main__":
    run(evict, commit, replaced, rewritten, stress)
