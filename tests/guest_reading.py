#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Send, map and receive the content of an image in a guest, so that tests can compare kernels: guest_reading.py JOB DEVICE..."""

import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import json
import mmap
import os
import random
import re
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_images import describe, write
from guest_jobs import K, MNT, run

MAP_FIXED = 16
SYS_IOPRIO_SET = 251
# Snapshot and parent of each send. Parent None is a full send.
SENDS = [("names1", None), ("names2", None), ("names2", "names1"), ("names3", "names2"), ("names3", "names1"),
         ("names1", "names3"), ("data1", None), ("data2", "data1"), ("data3", "data1"), ("data1", "data3"),
         ("small1", None), ("small2", None), ("small2", "small1")]
VERIFY = Path("/sys/kernel/debug/btrfs_rust_verify")


def fiemaps(top):
    """Return the extents of every regular file below `top` as {path: extents}."""
    found = {}
    for where, _, names in sorted(os.walk(top)):
        for name in sorted(names):
            path = os.path.join(where, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                found[os.path.relpath(path, top)] = guest.fiemap(path)
    return found


def cached_pages(path):
    """Return the number of pages of a file in the page cache, from cachestat(2), system call 451 on all architectures."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    with open(path, "rb") as file:
        if guest.libc.syscall(451, file.fileno(), whole, found, 0):
            raise OSError(ctypes.get_errno(), "cachestat")
    return found[0]


def verified():
    """Return the counters of CONFIG_BTRFS_RUST_VERIFY as {name: {kind: number}}."""
    return {line.split()[0]: dict(zip(line.split()[1::2], map(int, line.split()[2::2]))) for line in VERIFY.read_text().splitlines()}


def finish(result, output):
    """Write the result to a file, with the counters of CONFIG_BTRFS_RUST_VERIFY if the kernel has them."""
    if VERIFY.exists():
        result["verify"] = verified()
    Path(output).write_text(json.dumps(result))


def read(device, output, rotational=None):
    """Send and map everything, and write the results to the file `output`. Keep the streams in the directory KEEP, if it is set."""
    keep = os.environ.get("KEEP")
    if rotational:
        guest.set_rotational(device, rotational)
    result = {"sends": {}, "kernel": os.uname().release}
    top = guest.mount(device, MNT, "ro")
    for snap, parent in SENDS:
        guest.drop_caches()
        stream = keep and f"{keep}/{snap}-{parent}"
        digest, size, _ = guest.send(top / snap, parent and top / parent, keep=stream)
        result["sends"][f"{snap}-{parent}"] = [digest, size]
        # Send again with everything cached, with protocol 2 and compressed data.
        digest, size, _ = guest.send(top / snap, parent and top / parent, ["--proto", "2", "--compressed-data"],
                                     keep=stream and f"{stream}-v2")
        result["sends"][f"{snap}-{parent}-v2"] = [digest, size]
    # A send that may clone from a snapshot other than its parent.
    digest, size, _ = guest.send(top / "data3", top / "data1", ["-c", top / "data2"])
    result["sends"]["data3-data1-clone"] = [digest, size]
    # Sends with more clone sources, and without data.
    digest, size, _ = guest.send(top / "data3", top / "data2", ["-c", top / "data1", "-c", top / "small1"])
    result["sends"]["data3-data2-clones"] = [digest, size]
    for snap, parent in (("data1", None), ("data3", "data1"), ("small2", "small1")):
        guest.drop_caches()
        before = guest.counters(device)["bytes_read"]
        digest, size, _ = guest.send(top / snap, parent and top / parent, ["--no-data"])
        result["sends"][f"{snap}-{parent}-no-data"] = [digest, size]
        result.setdefault("read without data", []).append(guest.counters(device)["bytes_read"] - before)
    # A send of parts of files.
    guest.drop_caches()
    before = guest.counters(device)["bytes_read"]
    guest.send(top / "data3", top / "data1")
    result["read of parts"] = guest.counters(device)["bytes_read"] - before
    result["cached"] = {}
    for snap, parent in (("data1", None), ("data3", "data1"), ("small1", None), ("small2", "small1")):
        guest.drop_caches()
        files = sorted(path for path in (top / snap).rglob("*") if path.is_file() and not path.is_symlink())
        for path in files[::3]:
            # Random reads read no other files ahead.
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                file.readall()
        for options in ([], ["--proto", "2", "--compressed-data"]):
            guest.send(top / snap, parent and top / parent, options)
            result["cached"] |= {f"{snap} {options} {path.relative_to(top)}": cached_pages(path) for path in files}
    result["walks"] = []
    for by_inode, reads in ((False, False), (True, False), (False, True), (True, True)):
        guest.drop_caches()
        result["walks"].append(hashlib.sha256(json.dumps(guest.walk(top, by_inode, reads)).encode()).hexdigest())
    guest.drop_caches()
    result["fiemap"] = fiemaps(top)
    result["ranges"] = {path: fiemap_ranges(top / path, 1) for path in ("deep/file", "copied/file", "data/pieces1", "data1/pieces1")}
    if VERIFY.exists():
        result["plans"] = plans(top, [*((*send, []) for send in SENDS), ("data3", "data1", ["-c", top / "data2"])])
    guest.umount(MNT)
    finish(result, output)


def plans(top, sends):
    """Send with the readahead of whole walks. Return for each send what it has planned, used and missed, as in btrfs_rust_verify.

    `sends` are (snapshot, parent or None, options).
    """
    next(Path("/sys/fs/btrfs").glob("*-*/readahead/tree_enable")).write_text("1")
    found = {}
    for snap, parent, options in sends:
        guest.drop_caches()
        before = verified()
        guest.send(top / snap, parent and top / parent, options)
        after = verified()
        found[f"{snap}-{parent}{'-clone' if options else ''}"] = {name: {kind: after[name][kind] - number for kind, number in numbers.items()}
                                     for name, numbers in before.items() if "planned" in numbers}
    return found


def fiemap_ranges(path, seed):
    """Map random ranges of a file, with the caches dropped, and few extents in a call or only their number. Return the results."""
    chance, found = random.Random(seed), []
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        for most in (0, 1, 2, 8, 31, 32, 33, 100, 600) * 2:
            guest.drop_caches()
            start = chance.randrange(size)
            count, extents = guest.fiemap_call(file, start, chance.choice((1, 64 * K, size - start)), most)
            found.append([most, count, *extents])
    return found


def fiemap_with_breaks(path, *changes):
    """Map a file with a single FIEMAP call, make `changes` during the call, and return the extents.

    The first change comes after 256 extents, and each other change some 3,000 extents later. The buffer of the call has one page of a
    suspended device for each change. The call waits there until the change is made and the device is resumed.
    """
    page = mmap.PAGESIZE
    buffer = mmap.mmap(-1, 256 * page, mmap.MAP_PRIVATE)
    count = (len(buffer) - guest.FIEMAP.size) // guest.EXTENT.size
    guest.FIEMAP.pack_into(buffer, 0, 0, 2**64 - 1, 0, 0, count, 0)
    memory = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    pages = [2 + 40 * number for number in range(len(changes))]
    guest.libc.mmap.restype = ctypes.c_void_p
    for number in pages:
        name = f"still{number}"
        guest.run("dmsetup", "create", name, "--noudevsync", "--table", "0 8 zero")
        guest.run("dmsetup", "mknodes")
        with open(f"/dev/mapper/{name}", "rb") as device:
            address = ctypes.c_void_p(ctypes.addressof(memory) + number * page)
            mapped = guest.libc.mmap(address, page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED, device.fileno(), 0)
            assert mapped == address.value
        guest.run("dmsetup", "suspend", "--noudevsync", name)

    def call():
        # Not fcntl.ioctl(), which blocks all other threads of Python.
        with open(path, "rb") as file:
            if guest.libc.ioctl(file.fileno(), ctypes.c_ulong(guest.FS_IOC_FIEMAP), memory):
                raise OSError(ctypes.get_errno(), "FS_IOC_FIEMAP")

    def extent(number):
        return guest.EXTENT.unpack_from(buffer, guest.FIEMAP.size + number * guest.EXTENT.size)

    with ThreadPoolExecutor() as pool:
        called, waiting = pool.submit(call), list(pages)
        try:
            for change in changes:
                last_before = (waiting[0] * page - guest.FIEMAP.size) // guest.EXTENT.size - 1
                while not (called.done() or extent(last_before)[2]):
                    time.sleep(0.01)
                change()
                guest.run("dmsetup", "resume", "--noudevsync", f"still{waiting.pop(0)}")
        finally:
            for number in waiting:
                guest.run("dmsetup", "resume", "--noudevsync", f"still{number}")
        called.result()
    found = [extent(number) for number in range(guest.FIEMAP.unpack_from(buffer)[3])]
    del memory
    buffer.close()
    for number in pages:
        guest.run("dmsetup", "remove", "--noudevsync", f"still{number}")
    return found


def churn(device, output):
    """Map files while the filesystem changes: between new and deleted snapshots, writes and reflinks, and during such changes."""
    chance = random.Random(3)
    top = guest.mount(device, MNT, "max_inline=2048,commit=1000")
    result = {"fiemap": {"start": fiemaps(top / "data")}}
    # Delete the snapshots of the image, so that only the following snapshots and reflinks share extents.
    guest.run("btrfs", "subvolume", "delete", "-c", *top.glob("data?"))
    guest.run("btrfs", "subvolume", "sync", top)
    for turn in range(6):
        guest.snapshot(top / "data", top / f"turn{turn}")
        result["fiemap"][f"snapshot {turn}"] = fiemaps(top / "data")
        with open(top / f"data/pieces{turn % 4}", "rb+") as file:
            for _ in range(30):
                os.pwrite(file.fileno(), chance.randbytes(4 * K), chance.randrange(9000) * 4 * K)
            os.fsync(file.fileno())
            guest.clone_range(file, 0, 16 * K, file, (1100 + turn) * 64 * K)
        result["fiemap"][f"write {turn}"] = fiemaps(top / "data")
        if turn % 2:
            guest.run("btrfs", "subvolume", "delete", "-c", top / f"turn{turn - 1}")
            result["fiemap"][f"delete {turn}"] = fiemaps(top / "data")
            guest.run("btrfs", "subvolume", "sync", top)
            result["fiemap"][f"cleaned {turn}"] = fiemaps(top / "data")

    def clean():
        guest.run("btrfs", "subvolume", "delete", "-c", top / "deep2", top / "deep3")
        guest.run("btrfs", "subvolume", "sync", top)

    def make():
        guest.snapshot(top / "deep", top / "deep3")

    result["changed"] = fiemap_with_breaks(top / "deep/file", make, clean)
    # Overwrite the middle of each extent, which splits it. The change comes after 256 pieces, before the second piece of an extent.
    with open(top / "deep/pieces", "wb") as file:
        for length, offset in ((12 * K, 0), (4 * K, 4 * K)):
            for number in range(120):
                os.pwrite(file.fileno(), bytes(length), number * 16 * K + offset)
            os.fsync(file.fileno())
    os.sync()
    result["changed in between"] = fiemap_with_breaks(top / "deep/pieces", lambda: guest.snapshot(top / "deep", top / "deep4"))
    result["copy deleted"] = copies(top)
    result["fiemap"] |= {"split": {"split/file": guest.fiemap(split(top))}}
    result["fiemap"] |= {"counted": {"counted/file": guest.fiemap(counted(top))}}
    # In the running transaction: a reflinked copy, and a subvolume.
    with open(top / "deep/file", "rb") as source, open(top / "deep/copy", "wb") as target:
        guest.clone_range(source, 0, 8 << 20, target, 0)
    guest.run("btrfs", "subvolume", "create", top / "fresh")
    write(top / "fresh/file", chance.randbytes(1 << 20))
    result["fiemap"] |= {"uncommitted copy": {path: guest.fiemap(top / path) for path in ("deep/file", "deep/copy", "fresh/file")}}
    guest.umount(MNT)
    finish(result, output)


def copies(top):
    """Map files and delete their reflinked copies meanwhile, in the running transaction and with a commit. Return the extents."""
    guest.run("btrfs", "subvolume", "create", top / "loose")
    found = {}
    # Several times: with mutants, a single file did not always show wrong extents.
    for number, kind in itertools.product(range(3), ("running", "committed")):
        name = f"{kind}{number}"
        with open(top / "loose" / name, "wb+") as file, open(top / f"loose/{name}-copy", "wb") as copy:
            for piece in range(1000):
                os.pwrite(file.fileno(), bytes(4 * K), piece * 8 * K)
            os.fsync(file.fileno())
            guest.clone_range(file, 0, 0, copy, 0)
        guest.run("btrfs", "filesystem", "sync", top)

        def delete():
            (top / f"loose/{name}-copy").unlink()
            if kind == "committed":
                guest.run("btrfs", "filesystem", "sync", top)

        found[name] = fiemap_with_breaks(top / "loose" / name, delete)
    return found


def counted(top):
    """Make a file with an extent in two parts, the second of which is in a leaf shared with a snapshot; return its path.

    The extent is shared. Its only reference is that of the file, with a count of two.
    """
    guest.run("btrfs", "subvolume", "create", top / "counted")
    path, size = top / "counted/file", 2 << 20
    middle = range(3 * size + 4 * K, 4 * size - 4 * K, 4 * K)
    with open(path, "wb") as file:
        # Extents one after the other on the disk. Their items are neighbours, except at the end of a leaf, or at a block group. Pieces
        # then replace the fourth extent, except its first and its last 4 KiB.
        for number in range(6):
            os.pwrite(file.fileno(), bytes(size), number * size)
            os.fsync(file.fileno())
        for offsets in (middle[::2], middle[1::2]):
            for offset in offsets:
                os.pwrite(file.fileno(), bytes(4 * K), offset)
            os.fsync(file.fileno())
        guest.snapshot(top / "counted", top / "counted1", readonly=False)
        # The file gets a first leaf of its own. The snapshot drops the first four extents from its first leaf.
        os.pwrite(file.fileno(), bytes(4 * K), middle[1])
        os.fsync(file.fileno())
    guest.run("btrfs", "filesystem", "sync", top)
    guest.run("fallocate", "--punch-hole", "--length", str(3 * size + 4 * K), top / "counted1/file")
    guest.run("btrfs", "filesystem", "sync", top)
    return path


def split(top):
    """Make a file whose extents alternate with extents in two parts, and whose leaves are partly shared with a snapshot; return its path."""
    guest.run("btrfs", "subvolume", "create", top / "split")
    path = top / "split/file"
    with open(path, "wb+") as file:
        def write_parts(numbers):
            for number in numbers:
                os.pwrite(file.fileno(), bytes(4 * K), number * 32 * K + 4 * K)
            os.fsync(file.fileno())

        for number in range(2000):
            os.pwrite(file.fileno(), bytes(16 * K), number * 32 * K)
        os.fsync(file.fileno())
        write_parts(range(1, 2000, 2))
        guest.snapshot(top / "split", top / "split1")
        # The file gets some leaves of its own. Some of these end with the first part of an extent, whose second part is in a shared leaf.
        write_parts(random.Random(4).sample(range(1, 2000, 2), 8))
    guest.run("btrfs", "filesystem", "sync", top)
    return path


def gap(device):
    """Send a snapshot that lacks many successive files of its parent. Print the plans."""
    guest.mkfs(device)
    top = guest.mount(device, MNT, "max_inline=2048,commit=1000")
    guest.run("btrfs", "subvolume", "create", top / "files")
    paths = [top / f"files/file{number}" for number in range(3000)]
    for path in paths:
        write(path, bytes(1900))
    guest.snapshot(top / "files", top / "old")
    for path in paths[500:2500]:
        path.unlink()
    guest.snapshot(top / "files", top / "new")
    guest.umount(MNT)
    guest.mount(device, MNT, "ro")
    print(json.dumps(plans(top, [("new", "old", [])])))
    guest.umount(MNT)


def together(device, output):
    """Send several snapshots at once, and one snapshot several times at once. Write the digests of the streams to the file `output`."""
    def digest(snap):
        with subprocess.Popen(["btrfs", "-q", "send", top / snap], stdout=subprocess.PIPE) as process:
            return snap, hashlib.file_digest(process.stdout, "sha256").hexdigest()

    top, found = guest.mount(device, MNT, "ro"), []
    for snaps in (("names2", "small1"), ("data1", "data1"), ("names1", "names2", "data1", "small1", "small2", "names1", "data1", "small1"),
                  ("small2",) * 8):
        guest.drop_caches()
        with ThreadPoolExecutor(len(snaps)) as pool:
            found += pool.map(digest, snaps)
    guest.umount(MNT)
    finish({"digests": found}, output)


def two(device, second, output):
    """Send from two filesystems, one after the other and at once. Write the digests and the counters of both to the file `output`."""
    disks = {disk: guest.mount(disk, Path(f"{MNT}-{number}"), "ro") for number, disk in enumerate((device, second))}

    def numbers(file):
        return {name: int(number) for name, number in map(str.split, file.read_text().splitlines())}

    def send_all(disk):
        """Send some snapshots with nothing in memory; return the digests and the growth of the counters."""
        [top] = Path("/sys/fs/btrfs").glob(f"*-*/devices/{Path(disk).name}")
        stats = top.parents[1] / "readahead/stats"
        digests, before = {}, numbers(stats)
        for snap in ("names2", "small1", "data1"):
            with subprocess.Popen(["btrfs", "-q", "send", disks[disk] / snap], stdout=subprocess.PIPE) as process:
                digests[snap] = hashlib.file_digest(process.stdout, "sha256").hexdigest()
        now = numbers(stats)
        return digests, {kind: now[kind] - before[kind] for kind in ("tree_used_kb", "data_used_kb")}

    found = {}
    for how, tasks in (("alone", 1), ("counted", 2)):
        guest.drop_caches()
        with ThreadPoolExecutor(tasks) as pool:
            results = [*pool.map(send_all, disks)]
        found |= {"sent": [digests for digests, _ in results], how: [counts for _, counts in results]}
    for top in disks.values():
        guest.umount(top)
    finish(found, output)


def read_layout(device, second, output):
    """Send and map an image of guest_images.make_layout(), with both disks and with the first alone, as far as it can be mounted."""
    result = {}
    for disks in ((device, second), (device,)):
        guest.run("btrfs", "device", "scan", "--forget")
        try:
            guest.run("btrfs", "device", "scan", *disks)
            top = guest.mount(device, MNT, "ro,degraded")
        except RuntimeError:
            continue
        for snap, parent in (("small1", None), ("small2", None), ("small2", "small1")):
            for options in ([], ["--proto", "2", "--compressed-data"]):
                guest.drop_caches()
                digest, size, _ = guest.send(top / snap, parent and top / parent, options)
                result[f"{snap}-{parent} {options} {len(disks)}"] = [digest, size]
        guest.drop_caches()
        result[f"fiemap {len(disks)}"] = fiemaps(top)
        guest.umount(MNT)
    finish(result, output)


def receive(device, second, streams, version=""):
    """Receive the streams of all chains of snapshots into `second`, and compare the result with the snapshots."""
    top = guest.mount(device, MNT, "ro")
    guest.mkfs(second)
    copy = guest.mount(second, "/mnt/copy")
    for snap, parent in (("names1", None), ("names2", "names1"), ("names3", "names2"),
                         ("data1", None), ("data2", "data1"), ("data3", "data1"), ("small1", None), ("small2", "small1")):
        guest.run("btrfs", "receive", "-f", f"{streams}/{snap}-{parent}{version}", copy)
        sent, received = describe(top / snap), describe(copy / snap)
        if sent != received:
            differ = [path for path in sent.keys() | received.keys() if sent.get(path) != received.get(path)]
            path = min(differ)
            sys.exit(f"{snap}: {len(differ)} paths differ, first {path}: {sent.get(path)} {received.get(path)}")
        print(f"{snap}: {len(sent)} paths equal")
    guest.umount("/mnt/copy")
    guest.umount(MNT)


def without_readahead(device):
    """Send from a filesystem with read_ahead_kb 0. Data must be read one page at a time."""
    top = guest.mount(device, MNT, "ro")
    next(Path("/sys/fs/btrfs").glob("*/bdi/read_ahead_kb")).write_text("0")
    guest.drop_caches()
    before = guest.counters(device)
    digest, _, _ = guest.send(top / "data1")
    after = guest.counters(device)
    pages = sum(path.stat().st_blocks * 512 // mmap.PAGESIZE for path in (top / "data1").glob("[pd]*[0-9]"))
    guest.umount(MNT)
    requests, size = after["requests"] - before["requests"], after["bytes_read"] - before["bytes_read"]
    print(f"{pages} pages of data, {requests} requests, {size} bytes read, {digest}")
    if requests < pages:
        sys.exit("pages were read ahead")


@contextlib.contextmanager
def traced(event):
    """Yield a list. After the block it has the lines of a trace event."""
    tracing, said = Path("/sys/kernel/tracing"), []
    if not (tracing / "events").exists():
        guest.run("busybox", "mount", "-t", "tracefs", "none", tracing)
    (tracing / "trace").write_text("")
    (tracing / "events" / event / "enable").write_text("1")
    try:
        yield said
    finally:
        (tracing / "events" / event / "enable").write_text("0")
        said += (line for line in (tracing / "trace").read_text().splitlines() if not line.startswith("#"))


def large_folios(device):
    """Send files with extents of 16 KiB. Readahead must use one folio for each extent."""
    top = guest.mount(device, MNT, "ro")
    guest.drop_caches()
    files = {f"{path.stat().st_ino:x}": path for path in (top / "data1").glob("pieces*")}
    pages = sum(path.stat().st_blocks * 512 // mmap.PAGESIZE for path in files.values())
    with traced("filemap/mm_filemap_add_to_page_cache") as added:
        guest.send_directly(top / "data1")
    guest.umount(MNT)
    folios = [re.search(r" ino (\w+) .* order=(\d+)", line).groups() for line in added]
    orders = [int(order) for ino, order in folios if ino in files]
    counts = {order: orders.count(order) for order in sorted(set(orders))}
    print(f"{pages} pages of data in folios of order: number {counts}")
    # Allow 10% of other folios: the send itself may read the first extents.
    if counts.get(2, 0) << 2 < pages * 9 // 10:
        sys.exit("the folios are small")


@contextlib.contextmanager
def in_cgroup(controller):
    """Move this process to a new cgroup with `controller` for the block; yield the directory of the cgroup."""
    group = Path("/sys/fs/cgroup")
    group.mkdir(exist_ok=True)
    guest.run("busybox", "mount", "-t", "cgroup2", "none", group)
    (group / "cgroup.subtree_control").write_text(f"+{controller}")
    sender = group / "sender"
    sender.mkdir()
    (sender / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield sender
    finally:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def charge(device):
    """Send in a cgroup with a low I/O priority. All reads must have this priority and be charged to the cgroup.

    That includes the 15 leaves that a kworker reads.
    """
    top = guest.mount(device, MNT, "ro")
    guest.drop_caches()
    # IOPRIO_WHO_PROCESS, this process, and the lowest level of IOPRIO_CLASS_BE.
    guest.libc.syscall(SYS_IOPRIO_SET, 1, 0, 2 << 13 | 7)
    with in_cgroup("io") as sender:
        before = guest.counters(device)["bytes_read"]
        with traced("block/block_rq_issue") as requests:
            guest.send_directly(top / "names2")
        read = guest.counters(device)["bytes_read"] - before
    guest.umount(MNT)
    charged = int(re.search(r"rbytes=(\d+)", (sender / "io.stat").read_text())[1])
    print(f"{read} bytes read, {charged} of them charged")
    if charged != read:
        sys.exit("some reads were charged to another cgroup, or others to this one")
    by_kworkers, others = [line for line in requests if "kworker" in line], [line for line in requests if " be,0,7 " not in line]
    print(f"{len(requests)} requests, {len(by_kworkers)} of them by kworkers, {len(others)} with another priority")
    if others or not by_kworkers:
        sys.exit("\n".join(others or requests[:10]))
    # Nothing holds the cgroup after the send.
    sender.rmdir()
    for _ in range(50):
        if "nr_dying_descendants 0" in (sender.parent / "cgroup.stat").read_text():
            return
        time.sleep(0.1)
    sys.exit("the cgroup of the sender is still in use")


if __name__ == "__main__":
    run(read, churn, gap, together, two, read_layout, receive, without_readahead, large_folios, charge)
