#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Measure the readahead of sends in a guest: with read_ahead_kb, many at once, in a cgroup, and with the settings and counters in sysfs.

Each job prints a line of JSON.
"""

import collections
import contextlib
import errno
import hashlib
import itertools
import json
import mmap
import os
import random
import re
import struct
import subprocess
import sys
import threading
import time
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_jobs import K, MNT, leaks
from guest_reading import cached_pages, in_cgroup, traced

PAGE = 4096
# Bytes that a receiver reads before it stalls: enough for the window to grow to its limit.
BEFORE_STALL = 4 << 20
SENDS = 20
# The readahead is as large as its window when a batch was just planned: it is measured at several positions.
STEPS = 16
STEP = 16 << 10


def set_read_ahead(kib):
    """Set read_ahead_kb of the only mounted btrfs."""
    [file] = Path("/sys/fs/btrfs").glob("*-*/bdi/read_ahead_kb")
    file.write_text(str(kib))


@contextlib.contextmanager
def stalled(*snaps, options=()):
    """Send each snapshot to a receiver that reads BEFORE_STALL bytes and then stalls for the block. Kill the sends at the end.

    Yield the streams.
    """
    sends = [subprocess.Popen(["btrfs", "-q", "send", *options, snap], stdout=subprocess.PIPE) for snap in snaps]
    try:
        for send in sends:
            send.stdout.read(BEFORE_STALL)
        time.sleep(1)
        yield [send.stdout for send in sends]
    finally:
        for send in sends:
            send.kill()
            send.stdout.close()
            send.wait()


def data_ahead(*snaps):
    """Return the file data of snapshots in the page cache, in bytes. Send drops data after use, so this is its readahead."""
    return PAGE * sum(cached_pages(path) for snap in snaps for path in snap.rglob("*") if path.is_file())


def windows(device):
    """Send with several settings of read_ahead_kb, and measure the readahead of a stalled send."""
    found = []
    for rotational in (0, 1):
        # Start with small windows: the counter of unused blocks is a maximum since the boot.
        for kib in (0, 128, 4096):
            guest.set_rotational(device, rotational)
            top = guest.mount(device, MNT, "ro")
            set_read_ahead(kib)
            guest.drop_caches()
            before = guest.counters(device)["readahead_blocks"]
            digest, *_ = guest.send(top / "names2")
            counters = guest.counters(device)
            guest.drop_caches()
            with stalled(top / "small1") as [stream]:
                ahead = []
                for _ in range(STEPS):
                    ahead.append(data_ahead(top / "small1"))
                    stream.read(STEP)
                    time.sleep(0.1)
            guest.umount(MNT)
            found.append({"rotational": rotational, "kib": kib, "sha256": digest, "blocks": counters["readahead_blocks"] - before,
                          "unused": counters["readahead_unused_max"], "data": ahead})
    print(json.dumps(found))


def order(device):
    """Record the sectors that sends read from a disk with and without seeks, in the order of submission."""
    found = []
    for rotational in (0, 1):
        guest.set_rotational(device, rotational)
        top = guest.mount(device, MNT, "ro")
        for snap in ("names2", "small2"):
            guest.drop_caches()
            with traced("block/block_bio_queue") as said:
                digest = guest.send_directly(top / snap)
            sectors = [int(re.search(r" R\w* (\d+) \+", line)[1]) for line in said if re.search(r" R\w* \d+ \+", line)]
            found.append({"rotational": rotational, "snap": snap, "sha256": digest, "reads": len(sectors),
                          "backwards": sum(after < before for before, after in itertools.pairwise(sectors))})
        guest.umount(MNT)
    print(json.dumps(found))


def crowd(device):
    """Measure the readahead of one stalled send, of many stalled sends of one filesystem together, and of one after these."""
    guest.set_rotational(device, 1)
    top = guest.mount(device, MNT)
    snaps = [top / f"crowd{number}" for number in range(SENDS)]
    for snap in snaps:
        guest.snapshot(top / "small1", snap)
    guest.drop_caches()
    with stalled(snaps[0]):
        one = data_ahead(snaps[0])
    guest.drop_caches()
    with stalled(*snaps):
        all_of_them = data_ahead(*snaps)
    guest.drop_caches()
    again = 0
    with stalled(snaps[0]) as [stream]:
        # On a busy machine, leaves that are not yet read keep batches short, and the window grows later.
        for _ in range(STEPS):
            again = max(again, data_ahead(snaps[0]))
            stream.read(16 * STEP)
            time.sleep(0.1)
    guest.umount(MNT)
    print(json.dumps({"one": one, "all": all_of_them, "again": again}))


def commits(device):
    """Measure how long commits and snapshots take while the receivers of sends stand still."""
    top = guest.mount(device, MNT, "commit=1000")
    guest.drop_caches()
    found = {}
    with stalled(top / "names2", top / "small1"), stalled(top / "data1", options=["--proto", "2", "--compressed-data"]):
        for what, change in (("commit", lambda: guest.run("btrfs", "filesystem", "sync", top)),
                             ("snapshot", lambda: guest.snapshot(top / "names", top / "names4")), ("sync", os.sync)):
            (top / f"names/{what}").touch()
            start = time.monotonic()
            change()
            found[what] = time.monotonic() - start
    guest.umount(MNT)
    print(json.dumps(found))


def relocation(device):
    """Balance all data and metadata while the receiver of a send stands still. Record the streams with and without a balance."""
    top = guest.mount(device, MNT, "commit=1000")
    found = []
    for options in ([], ["--proto", "2", "--compressed-data"]):
        digest, *_ = guest.send(top / "small1", options=options)
        guest.drop_caches()
        before = ahead()
        with subprocess.Popen(["btrfs", "-q", "send", *options, top / "small1"], stdout=subprocess.PIPE) as send:
            stream = hashlib.sha256(send.stdout.read(BEFORE_STALL))
            time.sleep(1)
            held = {kind: kib - before[kind] for kind, kib in ahead().items()}
            said = guest.run("btrfs", "balance", "start", "--full-balance", top)
            after = stats()
            for part in iter(lambda: send.stdout.read(1 << 20), b""):
                stream.update(part)
        later = {name: number - after[name] for name, number in stats().items()}
        found.append({"options": options, "sha256": [digest, stream.hexdigest()], "status": send.returncode, "ahead": held, "later": later,
                      "balance": said})
    guest.umount(MNT)
    print(json.dumps(found))


def cgroup(device, setting, limit):
    """Measure the readahead of a stalled send in a cgroup with `limit` bytes as `setting`, which may be "parent": memory.max of its parent."""
    guest.set_rotational(device, 1)
    top = guest.mount(device, MNT, "ro")
    guest.drop_caches()
    with in_cgroup("memory") as sender:
        if setting == "parent":
            # A cgroup with processes has no children with controllers.
            (sender.parent / "cgroup.procs").write_text(str(os.getpid()))
            (sender / "cgroup.subtree_control").write_text("+memory")
            (sender / "child").mkdir()
            (sender / "child/cgroup.procs").write_text(str(os.getpid()))
        (sender / ("memory.max" if setting == "parent" else setting)).write_text(limit)
        with stalled(top / "small1"):
            ahead = data_ahead(top / "small1")
    for group in (sender / "child", sender):
        if group.exists():
            group.rmdir()
    guest.umount(MNT)
    print(json.dumps({"data": ahead}))


DEFAULTS = {"tree_enable": "1", "data_enable": "1", "window_kb": "0"}
PARAMETERS = Path("/sys/module/btrfs/parameters")


def sysfs():
    """Return the sysfs directory with the readahead settings and counters of the only mounted btrfs."""
    [directory] = Path("/sys/fs/btrfs").glob("*-*/readahead")
    return directory


def settings():
    return {name: (sysfs() / name).read_text().strip() for name in DEFAULTS}


def change(values):
    for name, value in values.items():
        (sysfs() / name).write_text(value)


def stats():
    return {name: int(number) for name, number in map(str.split, (sysfs() / "stats").read_text().splitlines())}


def ahead():
    """Return the current readahead that is neither used nor dropped, in KiB: {"tree": ..., "data": ...}."""
    now = stats()
    return {kind: now[f"{kind}_submitted_kb"] - now[f"{kind}_used_kb"] - now[f"{kind}_wasted_kb"] for kind in ("tree", "data")}


@contextlib.contextmanager
def counted():
    """Yield a dictionary. After the block it has the growth of each counter during the block."""
    before, grown = stats(), {}
    yield grown
    grown |= {name: number - before[name] for name, number in stats().items()}


def refused(file, value):
    """Return whether the kernel refuses `value` for a setting. Write it if not."""
    try:
        file.write_text(value)
    except OSError as error:
        return error.errno in (errno.EINVAL, errno.ERANGE)
    return False


def switches(device):
    """Send with several settings, write invalid values, and mount with other defaults."""
    top = guest.mount(device, MNT, "ro")
    found = {"defaults": settings(), "sends": []}
    for values in ({}, {"tree_enable": "0"}, {"data_enable": "0"}, {"tree_enable": "0", "data_enable": "0"}, {"window_kb": "256"}):
        change(DEFAULTS | values)
        for options in ([], ["--proto", "2", "--compressed-data"]):
            guest.drop_caches()
            with counted() as sent:
                digest, *_ = guest.send(top / "small1", options=options)
            found["sends"].append({"settings": values, "options": options, "sha256": digest, "counted": sent})
        guest.drop_caches()
        before = ahead()
        with stalled(top / "small1"):
            found["sends"][-1]["ahead"] = {kind: kib - before[kind] for kind, kib in ahead().items()}
        found["sends"][-1]["left"] = data_ahead(top / "small1")
    change(DEFAULTS)
    bad = {"tree_enable": ("2", "-1", "x", "1 1"), "data_enable": ("2", "-1", "x", "4294967297"), "window_kb": ("-1", "x", "4294967296")}
    found["accepted"] = [[name, value] for name in bad for value in bad[name] if not refused(sysfs() / name, value)]
    found["accepted"] += [name for name in DEFAULTS if not refused(PARAMETERS / f"readahead_{name}", "x")]
    found["after bad values"] = settings()
    for name, value in (("tree_enable", "0"), ("data_enable", "off"), ("window_kb", "512")):
        (PARAMETERS / f"readahead_{name}").write_text(value)
    found["mounted before"] = settings()
    guest.umount(MNT)
    guest.mount(device, MNT, "ro")
    found["mounted later"] = settings()
    guest.umount(MNT)
    print(json.dumps(found))


def evicted(snap):
    """Return the file data that a stalled send has read ahead, in bytes, and again after its readahead was evicted."""
    found = []
    guest.drop_caches()
    with subprocess.Popen(["btrfs", "-q", "send", snap], stdout=subprocess.PIPE) as send:
        for size in (BEFORE_STALL, 5 << 20):
            send.stdout.read(size)
            time.sleep(1)
            found.append(data_ahead(snap))
            guest.drop_caches()
        send.kill()
    return found


def count(device):
    """Read the counters of a send from a slow disk, of a fiemap, and of a send that is killed after the caches are dropped."""
    top = guest.mount(guest.delayed(device, 20), MNT, "ro")
    guest.drop_caches()
    found = {}
    with counted() as found["slow"]:
        guest.send(top / "small1")
    guest.drop_caches()
    with counted() as found["fiemap"]:
        guest.fiemap(top / "deep/file")
    guest.drop_caches()
    with counted() as found["killed"]:
        with stalled(top / "small1"):
            guest.drop_caches()
        guest.drop_caches()
    data = evicted(top / "small1")
    guest.umount(MNT)
    print(json.dumps({"counted": found, "ahead": data}))


def calls(device):
    """Count the readahead of single fiemap calls for extents in the middle of a file. The last call has a small window."""
    found = []
    for most, window in ((31, "0"), (32, "0"), (75, "0"), (75, "64")):
        top = guest.mount(device, MNT, "ro")
        change({"window_kb": window})
        with open(top / "copied/file", "rb") as file, counted() as grown:
            size = os.fstat(file.fileno()).st_size
            count, _ = guest.fiemap_call(file, size // 2, size, most)
        found.append((count, grown["tree_planned_kb"]))
        guest.umount(MNT)
    print(json.dumps(found))


def scattered(device):
    """Count the readahead of a fiemap whose extents are in random order in the extent tree, without a limit and with 32 leaves;
    of one whose extents are in the order of the file, without a limit and with 16 leaves; and of the first on a rotational disk with
    read_ahead_kb for four leaves; and of calls that find the leaves of the file in memory.
    """
    guest.mkfs(device, "--nodesize", "4096")
    top, chance = guest.mount(device, MNT), random.Random(1)
    for name, order in (("random", chance.sample(range(1400), 1400)), ("ordered", range(1400))):
        with open(top / name, "wb", buffering=0) as file:
            for done, number in enumerate(order):
                os.pwrite(file.fileno(), bytes([number % 255 + 1]) * 4 * K, number * 8 * K)
                if done % 32 == 31:
                    os.sync()
    guest.umount(MNT)
    found = []
    for name, window, kib in (("random", "0", None), ("random", "128", None), ("ordered", "0", None), ("ordered", "64", None),
                              ("random", "0", 16)):
        guest.set_rotational(device, int(kib is not None))
        top = guest.mount(device, MNT, "ro")
        change({"window_kb": window})
        if kib is not None:
            set_read_ahead(kib)
        with open(top / name, "rb") as file, counted() as grown:
            count, _ = guest.fiemap_call(file, 0, 12 << 20, 2000)
        found.append((count, grown["tree_planned_kb"], grown["tree_wasted_kb"]))
        guest.umount(MNT)
    # The leaves of the file are in memory, as after a call that only counts extents.
    for window, ranges in (("0", [(0, 31), (0, 2000), (0, 2000)]), ("4", [(0, 2000)]), ("0", [(0, 31), (31, 31), (62, 31), (20, 60)])):
        top = guest.mount(device, MNT, "ro")
        change({"window_kb": window})
        with open(top / "ordered", "rb") as file:
            guest.fiemap_call(file, 0, 12 << 20, 0)
            for start, most in ranges:
                with counted() as grown:
                    count, _ = guest.fiemap_call(file, start * 8 * K, 12 << 20, most)
                found.append((count, grown["tree_planned_kb"], grown["tree_wasted_kb"]))
        guest.umount(MNT)
    print(json.dumps(found))


def corners(device):
    """Count sends of compressed extents of several blocks, of the tails of such extents, of clones of parts of one extent, of files with
    fs-verity, and of inline data that look like a file extent.
    """
    guest.mkfs(device)
    top, chance = guest.mount(device, MNT), random.Random(1)
    for name in ("whole", "sources", "tails", "parts", "verity", "inline"):
        guest.run("btrfs", "subvolume", "create", top / name)
    for name in ("whole", "sources"):
        guest.run("btrfs", "property", "set", top / name, "compression", "zstd")
    for number in range(60):
        # An extent of 4 blocks on disk; an extent of one, for a file whose last 904 bytes are in a block of their own.
        (top / f"whole/file{number}").write_bytes(chance.randbytes(12 * K) * 8)
        (top / f"sources/file{number}").write_bytes(chance.randbytes(K) * 8 + bytes(904))
        (top / f"verity/file{number}").write_bytes(bytes(64 * K))
        guest.enable_verity(top / f"verity/file{number}")
    (top / "parts/whole").write_bytes(chance.randbytes(4 * K * K))
    os.sync()
    for number in range(60):
        with open(top / f"sources/file{number}", "rb") as source, open(top / f"tails/file{number}", "wb") as target:
            guest.clone_range(source, 8 * K, 0, target, 0)
        with open(top / "parts/whole", "rb") as source, open(top / f"parts/part{number}", "wb") as target:
            guest.clone_range(source, (number + 1) * 64 * K, 64 * K, target, 0)
    # Address and length on disk, offset in the extent, and length in the file.
    extent = struct.pack("<4Q", guest.fiemap(top / "parts/whole")[0][1], 64 * K, 0, 64 * K)
    for number in range(60):
        (top / f"inline/file{number}").write_bytes(extent)
    for name in ("whole", "tails", "parts", "verity", "inline"):
        guest.run("btrfs", "property", "set", top / name, "ro", "true")
    guest.umount(MNT)
    guest.mount(device, MNT, "ro")
    found = {}
    for name, window in (("whole", "0"), ("tails", "0"), ("parts", "128"), ("verity", "0"), ("inline", "0")):
        change({"window_kb": window})
        guest.drop_caches()
        with counted() as found[name]:
            guest.send(top / name, options=[] if name in ("parts", "verity", "inline") else ["--proto", "2", "--compressed-data"])
    guest.umount(MNT)
    print(json.dumps(found))


def lookups(disk):
    """Look up files of directories in several orders. Print how many KiB more each order reads from the disk than the reverse one, and how
    many KiB lookups of missing files read. Print how long these wait with 10 ms a read: the lookups of a whole directory, a listing, and
    lookups of entries in many leaves, also with read_ahead_kb 0.
    """
    Path("/proc/sys/kernel/sched_schedstats").write_text("1")
    guest.mkfs(disk)
    top = guest.mount(disk, MNT, "max_inline=2048")
    for directory in ("flat", "even", "odd", "large"):
        (top / directory).mkdir()
    # A leaf has about seven of these files. All leaves are in one node.
    for number in range(2000):
        (top / f"flat/{number:04}").write_bytes(bytes(2000))
    for number in range(600):
        (top / ("even", "odd")[number % 2] / f"{number:04}").write_bytes(bytes(2000))
    # Between two of these files are ten leaves with the extents of another.
    for number in range(40):
        (top / f"large/{number:04}").write_bytes(bytes(2000))
        if number == 20:
            with open(top / "large/extents", "wb", buffering=0) as file:
                for extent in range(2000):
                    os.pwrite(file.fileno(), bytes(4 * K), extent * 8 * K)
    guest.umount(MNT)

    def look_up(device, names, listed=(), kib=None):
        """List directories and stat files. Return the KiB read, and the milliseconds of waits. Unmounting waits for readahead."""
        top = guest.mount(device, MNT, "ro")
        if kib is not None:
            set_read_ahead(kib)
        before = guest.counters(disk)
        for name in listed:
            os.listdir(top / name)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(top / name)
        guest.umount(MNT)
        after = guest.counters(disk)
        return (after["bytes_read"] - before["bytes_read"]) // K, after["wait_ms"] - before["wait_ms"]

    def flat(*numbers):
        return [f"flat/{number:04}" for number in numbers]

    orders = {"near": flat(*range(1000, 1320, 20)), "edge": flat(0, 512, 1024), "far": flat(0, 513, 1026),
              "anew": flat(*range(1600, 1700, 20), *range(1000, 1100, 20)),
              "turns": [f"{name}/{number + rest:04}" for number in range(100, 400, 60) for rest, name in enumerate(("even", "odd"))],
              "large": [f"large/{number:04}" for number in range(15, 40)]}
    # After these lookups, the leaves with entries are in memory.
    missing = [f"{name}/{number}" for name in ("flat", "even", "odd", "large") for number in range(5000, 5050)]
    found = {order: look_up(disk, missing + names)[0] - look_up(disk, missing + names[::-1])[0] for order, names in orders.items()}
    slow = guest.delayed(disk, 10)
    found["ms"] = look_up(slow, flat(*range(2000)))[1]

    # The leaves of each directory are not in order on the disk.
    guest.run("dmsetup", "remove", "--noudevsync", "delayed")
    guest.mkfs(disk)
    top = guest.mount(disk, MNT)
    for directory in ("long", "longer"):
        (top / directory).mkdir()
    for number in range(1500):
        for directory in ("long", "longer"):
            (top / directory / f"{number:060}").touch()
        if number % 50 == 0:
            os.sync()
    guest.umount(MNT)

    def long(*numbers):
        return [f"long/{number:060}" for number in numbers]

    # The second file, and up to eight missing ones. Their entries would be at random places.
    found["missing"] = [look_up(disk, long(0, 1, 5000 + n, *range(5000, 5000 + n)))[0] for n in range(8)]
    slow = guest.delayed(disk, 10)
    print(json.dumps(found | {"listing_ms": look_up(slow, [], ["long"])[1], "entries_ms": look_up(slow, long(*range(60)))[1],
                              "off_ms": look_up(slow, long(*range(60)), kib=0)[1]}))


def make_small_files(disk):
    """Make directories with files of 8 KiB: many, two whose files are made in turns, some in the order of their making, and files of all
    kinds.
    """
    guest.mkfs(disk)
    top = guest.mount(disk, MNT, "max_inline=2048")
    for directory in ("flat", "even", "odd", "older"):
        (top / directory).mkdir()
    for number in range(1100):
        (top / f"flat/{number:04}").write_bytes(bytes(8 * K))
    for number in range(200):
        (top / ("even", "odd")[number % 2] / f"{number:04}").write_bytes(bytes(8 * K))
    for directory, names in (("a", "012"), ("b", "01"), ("older", "0")):
        (top / directory).mkdir(exist_ok=True)
        for name in names:
            (top / directory / name).write_bytes(bytes(8 * K))
    kinds = top / "kinds"
    kinds.mkdir()
    for name, size in (("0", 8), ("1", 8), ("inline", 1), ("large", 132), ("nodatasum", 0), ("verity", 8)):
        (kinds / name).write_bytes(bytes(size * K))
    guest.run("chattr", "+C", kinds / "nodatasum")
    (kinds / "nodatasum").write_bytes(bytes(8 * K))
    guest.enable_verity(kinds / "verity")
    with open(kinds / "hole", "wb") as file:
        file.truncate(8 * K)
    with open(kinds / "preallocated", "wb") as file:
        guest.fallocate(file, 0, 0, 8 * K)
    (kinds / "symlink").symlink_to("0")
    (kinds / "directory").mkdir()
    (kinds / "linked").write_bytes(bytes(8 * K))
    os.link(kinds / "linked", top / "older/link")
    (kinds / "limit").write_bytes(bytes(128 * K))
    # No file comes after these.
    (top / "last").mkdir()
    for number in range(40):
        (top / f"last/{number:02}").write_bytes(bytes(8 * K))
    guest.umount(MNT)


def small_files(disk):
    """Read files in several orders. Print how many other ones are in the page cache then, in each directory, and the names of some. Print
    how long reads of a whole directory wait with 10 ms a read.
    """
    Path("/proc/sys/kernel/sched_schedstats").write_text("1")
    make_small_files(disk)

    def read(names, flags=0, advice=os.POSIX_FADV_NORMAL, offset=0, length=8 * K, kib=None, unwaited=(), evicted=(), earlier=40):
        """Read files, `earlier` other ones first. After a read of a key of `evicted`, evict its value. Return the names of others in the page
        cache.
        """
        top = guest.mount(disk, MNT, "ro")
        for number in range(earlier):
            (top / f"last/{number:02}").read_bytes()
        for name in names:
            os.lstat(top / name)
        # The leaves that these lookups read ahead arrive meanwhile.
        time.sleep(0.2)
        if kib is not None:
            set_read_ahead(kib)
        for name in names:
            file = os.open(top / name, os.O_RDONLY | flags)
            os.posix_fadvise(file, 0, 0, advice)
            # And so do files.
            time.sleep(1 if name in unwaited else 0)
            with contextlib.suppress(BlockingIOError):
                os.preadv(file, [mmap.mmap(-1, length)], offset, os.RWF_NOWAIT if name in unwaited else 0)
            os.close(file)
            if name in evicted:
                time.sleep(0.2)
                with open(top / evicted[name], "rb") as ahead:
                    os.posix_fadvise(ahead.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = [name for path in sorted(top.glob("*/*")) if path.is_file() and not path.is_symlink() and path.parent.name != "last"
                 and (name := str(path.relative_to(top))) not in names and cached_pages(path)]
        guest.umount(MNT)
        return found

    def flat(*numbers):
        return [f"flat/{number:04}" for number in numbers]

    orders = {"one": flat(0), "two": flat(0, 1), "thirteen": flat(*range(13)), "edge": flat(0, 512), "far": flat(0, 513, 1026),
              "backwards": flat(*range(9, -1, -1)), "second": flat(*range(0, 1100, 2)), "fourth": flat(*range(0, 1100, 4)),
              "turns": ["even/0000", "even/0002"]}
    found = {order: read(names) for order, names in orders.items()}
    found |= {"direct": read(flat(0, 1), os.O_DIRECT), "random": read(flat(0, 1), advice=os.POSIX_FADV_RANDOM),
              "middle": read(flat(0, 1), offset=4 * K), "off": read(flat(0, 1), kib=0), "limit": read(flat(0, 1), kib=64),
              "first": read(flat(*range(12)), earlier=0), "debt": read(flat(0, 1, 600, 601, 602, 603), kib=4, earlier=0),
              "evicted": read(flat(0, 1, 2, 2, 3), evicted={"flat/0001": "flat/0002"}, earlier=0),
              "beginnings": read(flat(*range(100)), length=4 * K), "without waiting": read(flat(0, 1, 10), unwaited=flat(10))}
    names = {"newer": read([f"a/{name}" for name in "01"]), "kinds": read([f"kinds/{name}" for name in "01"])}
    top = guest.mount(guest.delayed(disk, 10), MNT, "ro")
    before = guest.counters(disk)["wait_ms"]
    for name in flat(*range(1100)):
        (top / name).read_bytes()
    milliseconds = guest.counters(disk)["wait_ms"] - before
    guest.umount(MNT)
    print(json.dumps({"ahead": {order: collections.Counter(name.split("/")[0] for name in ahead) for order, ahead in found.items()},
                      "names": names, "ms": milliseconds}))


def make_walked(device):
    """Make a filesystem with two subvolumes: many inodes in one directory, and a tree of small directories."""
    guest.mkfs(device, "--nodesize", "4096")
    top = guest.mount(device, MNT, "max_inline=2048")
    for name in ("inodes", "small"):
        guest.run("btrfs", "subvolume", "create", top / name)
    for number in range(15_000):
        (top / f"inodes/{number:05}").write_bytes(bytes(K))
    for number in range(40):
        (top / f"small/{number}").mkdir()
        for name in range(20):
            (top / f"small/{number}/{name}").touch()
    for name in ("inodes", "small"):
        guest.run("btrfs", "property", "set", top / name, "ro", "true")
    guest.umount(MNT)


def waits(device):
    """Measure the longest listing and lookup with all leaves in memory, while commits wait for a send from a slow disk."""
    make_walked(device)
    mapped = guest.delayed(device, 0, 0)
    top = guest.mount(mapped, MNT, "noatime,commit=1000")
    guest.drop_caches()
    change({"tree_enable": "0", "data_enable": "0"})
    guest.walk(top / "small")
    # Commits find their blocks in memory, too.
    (top / "changed").touch()
    os.sync()
    guest.slow_down(device, 500)
    ends, longest, commits = threading.Event(), 0, []

    def commit():
        while not ends.is_set():
            start = time.monotonic()
            (top / "changed").touch()
            os.sync()
            commits.append(time.monotonic() - start)

    committer = threading.Thread(target=commit)
    with subprocess.Popen(["btrfs", "-q", "send", "-f", "/dev/null", top / "inodes"]) as send:
        committer.start()
        end = time.monotonic() + 15
        while time.monotonic() < end:
            # Inodes and directory entries, not blocks.
            Path("/proc/sys/vm/drop_caches").write_text("2")
            for where in (top / "small").iterdir():
                for look in (lambda where=where: os.listdir(where), *(lambda path=where / str(name): os.lstat(path) for name in range(20))):
                    start = time.monotonic()
                    look()
                    longest = max(longest, time.monotonic() - start)
        ends.set()
        committer.join()
        send.kill()
    guest.umount(MNT)
    print(json.dumps({"longest": longest, "commits": len(commits), "waits": sum(seconds > 0.3 for seconds in commits)}))


def committed(device):
    """Measure the longest commit, without its own reads, while a process maps parts of a file on a slow disk, the last one first."""
    Path("/proc/sys/kernel/sched_schedstats").write_text("1")
    top = guest.mount(guest.delayed(device, 0, 0), MNT, "noatime,commit=1000")
    guest.drop_caches()
    for _ in range(2):
        (top / "names/changed").touch()
        os.sync()
    times, part = [], (top / "deep/file").stat().st_size // 8

    def map_parts():
        for number in reversed(range(8)):
            # Count the extents, but do not look up which ones are shared: a commit would wait for that.
            guest.fiemap_call(file, number * part, part, 0)

    with open(top / "deep/file", "rb") as file, counted() as grown:
        guest.slow_down(device, 500)
        mapper = threading.Thread(target=map_parts)
        mapper.start()
        while mapper.is_alive():
            start, before = time.monotonic(), guest.waits()["wait_ms"]
            (top / "names/changed").touch()
            os.sync()
            times.append(time.monotonic() - start - (guest.waits()["wait_ms"] - before) / 1000)
    guest.umount(MNT)
    print(json.dumps({"commits": len(times), "longest": max(times), "planned": grown["tree_planned_kb"]}))


def many(device):
    """Send and receive more than twice as many files as the readahead holds inodes of. Print the counters, and the number of wrong files."""
    guest.mkfs(device)
    top = guest.mount(device, MNT)
    guest.run("btrfs", "subvolume", "create", top / "files")
    contents = {f"{number:04}": number.to_bytes(2, "little") * 4 * K for number in range(2 * 2048 + 100)}
    contents["without data"] = b""
    for name, content in contents.items():
        (top / "files" / name).write_bytes(content)
    guest.snapshot(top / "files", top / "sent")
    guest.umount(MNT)
    top = guest.mount(device, MNT)
    with counted() as found:
        guest.send(top / "sent", keep="/tmp/stream")
    (top / "received").mkdir()
    guest.run("btrfs", "receive", "-f", "/tmp/stream", top / "received")
    wrong = sum((top / "received/sent" / name).read_bytes() != content for name, content in contents.items())
    guest.umount(MNT)
    print(json.dumps(found | {"wrong": wrong}))


def trace(device):
    """Record tracepoints and counters of a send from a slow disk that is killed."""
    events = ("plan", "submit", "wait", "waste")
    top = guest.mount(guest.delayed(device, 20), MNT, "ro")
    guest.drop_caches()
    with counted() as grown, contextlib.ExitStack() as stack:
        for event in events:
            said = stack.enter_context(traced(f"btrfs/btrfs_readahead_{event}"))
        with stalled(top / "small1"):
            guest.drop_caches()
        guest.drop_caches()
    sent = [guest.subvolume_id(top / name) for name in ("small1", "small2")]
    with traced("btrfs/btrfs_readahead_submit") as compared:
        guest.send_directly(top / "small2", sent[0])
    roots = {int(re.search(r"root=(\d+)", line)[1]) for line in compared if " ino=0 " in line}
    guest.umount(MNT)
    traces = {event: [re.search(r": (.*): root=(\d+)\S* ino=(\d+) .*?len=(\d+)", line).groups() for line in said
                      if f" btrfs_readahead_{event}: " in line] for event in events}
    sums = {f"{kind}_{event}": sum(int(length) for *_, ino, length in traces[event] if (ino != "0") == (kind == "data")) >> 10
            for event in events for kind in ("tree", "data")}
    first = {event: lines[0] for event, lines in traces.items() if lines}
    print(json.dumps({"traced": sums, "counted": grown, "sent": sent, "roots": sorted(roots), "first": first}))


def pages(device):
    """Read ahead in all ways many times. Print how many KiB are free before and after that; the caches are dropped each time."""
    def free():
        guest.drop_caches()
        # This empties the lists of free pages of each processor, too.
        Path("/proc/sys/vm/compact_memory").write_text("1")
        return int(re.search(r"MemFree: *([0-9]+)", Path("/proc/meminfo").read_text())[1])

    found = []
    for _ in range(9):
        top = guest.mount(device, MNT, "ro")
        for _ in range(5):
            guest.drop_caches()
            guest.send_directly(top / "small2", guest.subvolume_id(top / "small1"))
            guest.send_directly(top / "small1", encoded=True)
        guest.fiemap(top / "deep/file")
        guest.walk(top / "small2", reads=True)
        with stalled(top / "small1"):
            pass
        guest.umount(MNT)
        found.append(free())
    print(json.dumps(found))


def work(device):
    """Count the calls of functions by sends and fiemaps of what is in memory, with the function profiler, for each inode or extent."""
    kinds = {"searches": ("btrfs_search_slot", "btrfs_search_old_slot"), "clones": ("btrfs_clone_extent_buffer",),
             "lookups": ("find_extent_buffer", "alloc_extent_buffer"),
             "allocations": ("kmem_cache_alloc*_noprof", "*kmalloc*_noprof", "krealloc*_noprof")}
    tracing = Path("/sys/kernel/tracing")
    if not (tracing / "events").exists():
        guest.run("busybox", "mount", "-t", "tracefs", "none", tracing)
    (tracing / "set_ftrace_filter").write_text("\n".join(itertools.chain(*kinds.values())))
    top = guest.mount(device, MNT, "ro")
    old = guest.subvolume_id(top / "names1")
    names, files = (sum(1 for _ in (top / name).rglob("*")) for name in ("names2", "small2"))
    jobs = {"send without data": (lambda: guest.send_directly(top / "names2", no_data=True), names),
            "incremental send": (lambda: guest.send_directly(top / "names2", old), names),
            "send of files": (lambda: guest.send_directly(top / "small2"), files),
            "fiemap": (lambda: guest.fiemap(top / "deep/file"), len(guest.fiemap(top / "deep/file")))}
    found = {}
    for name, (job, items) in jobs.items():
        job()
        (tracing / "function_profile_enabled").write_text("1")
        job()
        (tracing / "function_profile_enabled").write_text("0")
        hits = [line.split()[:2] for file in (tracing / "trace_stat").glob("function*") for line in file.read_text().splitlines()[2:]]
        found[name] = {kind: sum(int(count) for function, count in hits if any(fnmatch(function, one) for one in of_kind)) / items
                       for kind, of_kind in kinds.items()}
    guest.umount(MNT)
    print(json.dumps(found))


if __name__ == "__main__":
    {"windows": windows, "order": order, "crowd": crowd, "commits": commits, "relocation": relocation, "cgroup": cgroup,
     "switches": switches, "count": count, "calls": calls, "scattered": scattered, "corners": corners, "lookups": lookups,
     "small_files": small_files, "waits": waits, "committed": committed, "many": many, "trace": trace, "pages": pages,
     "work": work}[sys.argv[1]](*sys.argv[2:])
    if lost := leaks():
        sys.exit(lost)
