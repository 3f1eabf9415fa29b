#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The part of the whole-kernel tests that runs in the guest: make, read, receive or churn an image."""

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest

K = 1024
MNT = "/mnt/fs"
FAULTS = Path("/sys/kernel/debug")
# Of a stream: the size of its header; of a command: length without this header, number, checksum; the numbers of utimes, and of
# what else is sent when an inode is finished: xattr (for capabilities), truncate, chmod, chown, fileattr.
STREAM_HEADER_SIZE = 17
COMMAND = struct.Struct("<LHL")
UTIMES = 20
REPEATED = (13, 17, 18, 19, 24)
# What kmemleak reports without being right, by how it shows it.
NO_LEAKS = re.compile("|".join((
    # What was there when the kernel booted, of which it finds much on UML.
    r'comm "(swapper|kthreadd|init|dmsetup)',
    # A struct vmap_area, which begins with two page addresses: on UML it does not see the root of their tree.
    r"\(size 72\):\n.*\n.*\n +(?!(00 ){8})(00 .0 (.. ){3}00 00 00 ){2}",
    # A stack, which begins with STACK_END_MAGIC: two that no task has any more are kept for fork(2), where it does not see them.
    r"\(size 16384\):\n.*\n.*\n +9d 6e ac 57 00 00 00 00 ",
    # Of a memory cgroup: an empty list behind zeroes, and the node of an xarray with one entry and no parent.
    r"\(size 64\):\n.*\n.*\n +(00 ){16}.*\n +(?P<list>(.. ){8})(?P=list)",
    r"\(size 576\):\n.*\n.*\n +00 00 01 00 (00 ){12}")))
MAP_FIXED = 16
FIDEDUPERANGE = 0xC0189436
FILE_DEDUPE_RANGE_DIFFERS = 1
SYS_IOPRIO_SET = 251
# struct file_dedupe_range with one target: source offset, length, number of targets; target, offset, bytes, status.
DEDUPE = struct.Struct("=QQH6xqQQl4x")
# Snapshot and the parent that it is sent against; None is a full send.
SENDS = [("names1", None), ("names2", None), ("names2", "names1"), ("names3", "names2"), ("names3", "names1"),
         ("names1", "names3"), ("data1", None), ("data2", "data1"), ("data3", "data1"), ("data1", "data3"),
         ("small1", None), ("small2", None), ("small2", "small1")]


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


class Names:
    """A subvolume that is changed at random, the same way each time, with what send finds hard to follow.

    Paths are strings that start with `root` and end without a slash.
    """

    def __init__(self, root, seed):
        self.root, self.random = str(root), random.Random(seed)
        self.dirs, self.files, self.made = [], [], 0

    def name(self):
        self.made += 1
        return f"n{self.made}_{'x' * self.random.randrange(40)}"

    def somewhere(self):
        """A path that is not there yet."""
        parent = self.random.choice(self.dirs) if self.dirs and self.random.random() < 0.9 else self.root
        return f"{parent}/{self.name()}"

    def mkdir(self):
        self.dirs.append(self.somewhere())
        os.mkdir(self.dirs[-1])

    def create(self):
        path = self.somewhere()
        kind = self.random.randrange(20)
        if kind == 0:
            os.symlink("/target/" + self.name(), path)
        elif kind == 1:
            os.mkfifo(path)
        else:
            write(path, self.random.randbytes(self.random.choice([0, 10, 900, 1900, 5000, 20000])))
            if kind == 2:
                os.setxattr(path, "user.note", self.random.randbytes(300))
        self.files.append(path)

    def link(self):
        self.files.append(self.somewhere())
        os.link(self.random.choice(self.files[:-1]), self.files[-1], follow_symlinks=False)

    def rename(self, old, new):
        """Rename, unless there is something already, and follow it in the paths that are remembered."""
        if os.path.lexists(new) or f"{new}/".startswith(f"{old}/"):
            return
        os.rename(old, new)
        for paths in (self.dirs, self.files):
            for number, path in enumerate(paths):
                if path == old or path.startswith(f"{old}/"):
                    paths[number] = new + path[len(old):]

    def move(self):
        old, new = self.random.choice(self.dirs if self.random.random() < 0.4 else self.files), self.somewhere()
        if self.random.random() < 0.5:
            # Often under the name that something else has just had.
            new = f"{os.path.dirname(new)}/{os.path.basename(old)}"
        self.rename(old, new)

    def turn_over(self):
        """Make a directory the child of its own child."""
        inner = self.random.choice(self.dirs)
        outer = os.path.dirname(inner)
        if outer != self.root:
            parked = f"{os.path.dirname(outer)}/{self.name()}"
            self.rename(inner, parked)
            self.rename(outer, f"{parked}/{os.path.basename(outer)}")

    def swap(self):
        """Exchange the names of two directories."""
        one, other = self.random.choice(self.dirs), self.random.choice(self.dirs)
        if not f"{one}/".startswith(f"{other}/") and not f"{other}/".startswith(f"{one}/"):
            parked = f"{self.root}/{self.name()}"
            self.rename(one, parked)
            self.rename(other, one)
            self.rename(parked, other)

    def remove(self):
        os.unlink(self.files.pop(self.random.randrange(len(self.files))))

    def remove_tree(self):
        top = self.random.choice(self.dirs)
        shutil.rmtree(top)
        self.dirs = [path for path in self.dirs if not f"{path}/".startswith(f"{top}/")]
        self.files = [path for path in self.files if not path.startswith(f"{top}/")]

    def change(self):
        path = self.random.choice(self.files)
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return
        kind = self.random.randrange(4)
        if kind == 0:
            os.setxattr(path, "user.note", self.random.randbytes(50))
        elif kind == 1:
            os.chmod(path, 0o600)
            os.chown(path, 1000, 1001)
        elif kind == 2:
            os.truncate(path, self.random.randrange(8000))
        else:
            write(path, self.random.randbytes(self.random.randrange(9000)))

    def populate(self, dirs, files):
        for _ in range(dirs):
            self.mkdir()
        for _ in range(files):
            self.create()
        # One inode with names in far more than 64 directories.
        for directory in self.dirs[:150]:
            os.link(self.files[0], f"{directory}/everywhere", follow_symlinks=False)
            self.files.append(f"{directory}/everywhere")

    def disturb(self, count):
        actions = [self.mkdir, self.create, self.create, self.link, self.move, self.move, self.turn_over, self.swap,
                   self.remove, self.remove, self.change, self.change]
        for number in range(count):
            self.random.choice(actions)()
            if number % 200 == 199:
                self.remove_tree()


def make_data(root, chance, snapshots):
    """Files whose extents are of all kinds, with snapshots in between."""
    def pieces(name, count, step, size):
        handle = os.open(root / name, os.O_CREAT | os.O_WRONLY, 0o644)
        for number in range(count):
            os.pwrite(handle, chance.randbytes(size), number * step)
            if number % 8 == 7:
                os.fsync(handle)
        os.close(handle)

    for number in range(4):
        pieces(f"pieces{number}", 600, 64 * K, 16 * K)
        pieces(f"dense{number}", 400, 8 * K, 8 * K)
    os.sync()
    with open(root / "prealloc", "wb") as file:
        guest.fallocate(file, guest.FALLOC_KEEP_SIZE, 0, 8 * K * K)
        for number in range(0, 100, 3):
            os.pwrite(file.fileno(), chance.randbytes(4 * K), number * 64 * K)
            os.fsync(file.fileno())
    (root / "squeezed").touch()
    os.setxattr(root / "squeezed", "btrfs.compression", b"zstd")
    (root / "squeezed").write_bytes(b"compress me " * 300_000)
    (root / "inline").write_bytes(b"tail" * 100)
    guest.snapshot(root, snapshots / "data1")

    for number in range(2):
        with open(root / f"pieces{number}", "rb+") as file:
            for _ in range(150):
                os.pwrite(file.fileno(), chance.randbytes(4 * K), chance.randrange(9000) * 4 * K)
                os.fsync(file.fileno())
            guest.fallocate(file, guest.FALLOC_KEEP_SIZE | guest.FALLOC_PUNCH_HOLE, 5000 * K, 3000 * K)
            # Within one file: several items then refer to one extent.
            for _ in range(100):
                guest.clone_range(file, chance.randrange(100) * 64 * K, 16 * K, file, (700 + chance.randrange(300)) * 64 * K)
    with open(root / "pieces2", "rb") as source:
        for number in range(20):
            with open(root / f"clone{number}", "wb") as target:
                guest.clone_range(source, number * 1024 * K, 2048 * K, target, 0)
    guest.snapshot(root, snapshots / "gone")
    pieces("dense1", 100, 32 * K, 4 * K)
    guest.snapshot(root, snapshots / "data2")
    guest.run("btrfs", "subvolume", "delete", "-c", snapshots / "gone")
    guest.run("btrfs", "subvolume", "sync", snapshots)
    with open(root / "prealloc", "rb+") as file:
        os.pwrite(file.fileno(), chance.randbytes(256 * K), 3000 * K)
    pieces("young", 300, 16 * K, 8 * K)
    os.unlink(root / "clone3")
    guest.snapshot(root, snapshots / "data3")


def make_deep(root, snapshot):
    """A file with so many extents that leaves, and with small nodes their parents, are of both kinds: shared, and not.

    The first half of the file is changed in both subvolumes, so that its tree blocks and old extents are of one only.
    """
    count, step = 16_000, 8 * K
    with open(root / "file", "wb") as file:
        for number in range(count):
            os.pwrite(file.fileno(), b"deep" * K, number * step)
    guest.snapshot(root, snapshot, readonly=False)
    with open(snapshot / "file", "rb+") as file:
        guest.fallocate(file, guest.FALLOC_KEEP_SIZE | guest.FALLOC_PUNCH_HOLE, 0, count // 2 * step)
    with open(root / "file", "rb+") as file:
        for number in range(0, count // 2, 10):
            os.pwrite(file.fileno(), b"DEEP" * K, number * step)


def make_copied(root):
    """A file with many copies, whose extents have so many references that leaves of the extent tree begin amidst them.

    It is written from its end on, so that who maps it goes through the extent tree from leaf to leaf before.
    """
    count, step = 150, 32 * K
    with open(root / "file", "wb+") as file:
        for number in reversed(range(count)):
            os.pwrite(file.fileno(), b"copy" * (step // 4), number * step)
            os.fsync(file.fileno())
        for number in range(50):
            with open(root / f"copy{number}", "wb") as copy:
                guest.clone_range(file, 0, 0, copy, 0)


def make_small(root, snapshots):
    """Many small files that are not inline, some compressed; then some are rewritten, reflinked, cut off, made sparse, deleted."""
    chance, count = random.Random(4), 900
    (root / "packed").mkdir()
    guest.run("btrfs", "property", "set", root / "packed", "compression", "zstd")
    paths = [root / ("packed" if number % 3 == 0 else "") / f"file{number}" for number in range(count)]
    for path in chance.sample(paths, count):
        write(path, chance.randbytes(chance.randrange(600, 12 * K)) * chance.randrange(1, 12))
    os.sync()
    guest.snapshot(root, snapshots[0])
    for path in chance.sample(paths, count // 2):
        kind = chance.randrange(7)
        if kind == 0:
            path.unlink()
            continue
        with open(path, "rb+") as file:
            size = os.fstat(file.fileno()).st_size
            if kind == 1:
                os.ftruncate(file.fileno(), chance.randrange(size))
            elif kind == 2:
                guest.fallocate(file, guest.FALLOC_KEEP_SIZE, size, 64 * K)
            elif kind == 3:
                guest.fallocate(file, guest.FALLOC_KEEP_SIZE | guest.FALLOC_PUNCH_HOLE, 4 * K, 8 * K)
            else:
                os.pwrite(file.fileno(), chance.randbytes(chance.randrange(1, 30 * K)), chance.randrange(size))
            if kind > 3:
                os.fsync(file.fileno())
                for copy in range(kind - 4):
                    with open(f"{path}-{copy}", "wb") as target:
                        guest.clone_range(file, 0, 0, target, 0)
    for number in chance.sample(range(count), count // 2):
        write(root / f"new{number}", chance.randbytes(chance.randrange(2, 20) * K))
    guest.snapshot(root, snapshots[1])


def make(device, nodesize):
    """Make the image that all kernels read."""
    guest.mkfs(device, "-n", nodesize, "-O", "^no-holes" if nodesize == "4096" else "no-holes")
    top = guest.mount(device, MNT, "max_inline=2048,commit=1000")
    for name in ("names", "data", "deep", "copied", "small"):
        guest.run("btrfs", "subvolume", "create", top / name)
    names = Names(top / "names", 1)
    names.populate(300, 3000)
    guest.snapshot(top / "names", top / "names1")
    names.disturb(2500)
    # The last inodes go, and after the next mount their numbers are given to new ones.
    last = [f"{names.root}/last{number}" for number in range(40)]
    for path in last:
        os.mkdir(path)
    guest.snapshot(top / "names", top / "names2")
    for path in last:
        os.rmdir(path)
    guest.umount(MNT)
    guest.mount(device, MNT, "max_inline=2048,commit=1000")
    for _ in range(40):
        names.mkdir()
        names.create()
    names.disturb(1500)
    guest.snapshot(top / "names", top / "names3")
    make_data(top / "data", random.Random(2), top)
    make_deep(top / "deep", top / "deep2")
    make_copied(top / "copied")
    make_small(top / "small", (top / "small1", top / "small2"))
    guest.umount(MNT)


def fiemaps(top):
    """The extents of every regular file below `top`, by path."""
    found = {}
    for where, _, names in sorted(os.walk(top)):
        for name in sorted(names):
            path = os.path.join(where, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                found[os.path.relpath(path, top)] = guest.fiemap(path)
    return found


def cached_pages(path):
    """How much of a file is in the page cache: cachestat(2), which has the same number everywhere."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    with open(path, "rb") as file:
        if guest.libc.syscall(451, file.fileno(), whole, found, 0):
            raise OSError(ctypes.get_errno(), "cachestat")
    return found[0]


def read(device, output):
    """Send and map everything; write what came out to the file `output`, the streams beside it if asked for."""
    keep = os.environ.get("KEEP")
    result = {"sends": {}, "kernel": os.uname().release}
    top = guest.mount(device, MNT, "ro")
    for snap, parent in SENDS:
        guest.drop_caches()
        stream = f"{keep}/{snap}-{parent}" if keep else None
        digest, size, _ = guest.send(top / snap, parent and top / parent, keep=stream)
        result["sends"][f"{snap}-{parent}"] = [digest, size]
        # A second time with everything cached, and with the newest protocol.
        digest, size, _ = guest.send(top / snap, parent and top / parent, ["--proto", "2", "--compressed-data"])
        result["sends"][f"{snap}-{parent}-v2"] = [digest, size]
    # One that may clone from what is not its parent.
    digest, size, _ = guest.send(top / "data3", top / "data1", ["-c", top / "data2"])
    result["sends"]["data3-data1-clone"] = [digest, size]
    result["cached"] = {}
    for snap, parent in (("data1", None), ("data3", "data1"), ("small1", None), ("small2", "small1")):
        guest.drop_caches()
        files = sorted(path for path in (top / snap).rglob("*") if path.is_file() and not path.is_symlink())
        for path in files[::3]:
            path.read_bytes()
        for options in ([], ["--proto", "2", "--compressed-data"]):
            guest.send(top / snap, parent and top / parent, options)
            result["cached"] |= {f"{snap} {options} {path.relative_to(top)}": cached_pages(path) for path in files}
    guest.drop_caches()
    result["fiemap"] = fiemaps(top)
    guest.umount(MNT)
    finish(result, output)


def fiemap_with_breaks(path, *changes):
    """What a single FIEMAP call says of the extents of a file if `changes` are made while it is at work: the first when it has
    looked at 256 extents, each other one some 3,000 later.

    In the memory that it writes to, there is a page of a device for each change, which stands still until the change is made.
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
        # Python's own ioctl lets no other thread run.
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
    """Map files between making and deleting snapshots, writing and reflinking, and while a snapshot is made or deleted."""
    chance = random.Random(3)
    top = guest.mount(device, MNT, "max_inline=2048,commit=1000")
    result = {"fiemap": {"start": fiemaps(top / "data")}}
    # Without the image's own snapshots, what is shared depends on those that follow, and on reflinks.
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
    # Extents of which the middle is another one: after 256 of the pieces comes the second one of an extent.
    with open(top / "deep/pieces", "wb") as file:
        for length, offset in ((12 * K, 0), (4 * K, 4 * K)):
            for number in range(120):
                os.pwrite(file.fileno(), bytes(length), number * 16 * K + offset)
            os.fsync(file.fileno())
    os.sync()
    result["changed in between"] = fiemap_with_breaks(top / "deep/pieces", lambda: guest.snapshot(top / "deep", top / "deep4"))
    guest.umount(MNT)
    finish(result, output)


def describe(top):
    """Content and metadata of every file below `top`; hard links by the path that comes first."""
    tree, first = {}, {}
    for where, dirs, names in os.walk(top):
        dirs.sort()
        for name in sorted(["", *names, *(name for name in dirs if os.path.islink(os.path.join(where, name)))]):
            path = os.path.join(where, name) if name else where
            info, rel = os.lstat(path), os.path.relpath(path, top)
            entry = [stat.filemode(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns,
                     {key: os.getxattr(path, key, follow_symlinks=False).hex()
                      for key in os.listxattr(path, follow_symlinks=False)}]
            if stat.S_ISREG(info.st_mode):
                entry += [info.st_size, info.st_nlink, first.setdefault(info.st_ino, rel)]
                entry.append(hashlib.sha256(Path(path).read_bytes()).hexdigest())
            elif stat.S_ISLNK(info.st_mode):
                entry.append(os.readlink(path))
            tree[rel] = entry
    return tree


def receive(device, second, streams):
    """Receive the streams of both chains into `second` and compare with what was sent."""
    top = guest.mount(device, MNT, "ro")
    guest.mkfs(second)
    copy = guest.mount(second, "/mnt/copy")
    for snap, parent in (("names1", None), ("names2", "names1"), ("names3", "names2"),
                         ("data1", None), ("data2", "data1"), ("data3", "data1"), ("small1", None), ("small2", "small1")):
        guest.run("btrfs", "receive", "-f", f"{streams}/{snap}-{parent}", copy)
        sent, received = describe(top / snap), describe(copy / snap)
        if sent != received:
            differ = [path for path in sent.keys() | received.keys() if sent.get(path) != received.get(path)]
            path = min(differ)
            sys.exit(f"{snap}: {len(differ)} paths differ, first {path}: {sent.get(path)} {received.get(path)}")
        print(f"{snap}: {len(sent)} paths equal")
    guest.umount("/mnt/copy")
    guest.umount(MNT)


def end(device):
    """End sends from a slow disk early, in many ways: what they have begun to read must not be in the way of unmounting."""
    slow = guest.delayed(device, 10)
    small = Path("/mnt/small")
    small.mkdir()
    guest.run("busybox", "mount", "-t", "tmpfs", "-o", "size=1m", "none", small)
    for number in range(4 * len(SENDS)):
        top = guest.mount(slow, MNT, "ro")
        guest.drop_caches()
        snap, parent = SENDS[number % len(SENDS)]
        options = ["--proto", "2", "--compressed-data"] if number % 2 else []
        command = ["btrfs", "-q", "send", *options, *(["-p", top / parent] if parent else []), top / snap]
        how = number // len(SENDS)
        if how < 2:
            with subprocess.Popen([*command, "-f", "/tmp/stream"]) as process:
                time.sleep((number - how * 7) * 0.02)
                process.kill()
        elif how == 2:
            # The receiver is gone.
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                process.stdout.read(number * 5000)
                process.stdout.close()
        else:
            # Its disk is full.
            subprocess.run([*command, "-f", small / "stream"], stderr=subprocess.DEVNULL)
            (small / "stream").unlink()
        guest.umount(MNT)


@contextlib.contextmanager
def failing(file, value):
    """Write `value` to a file in /proc that says which allocations of this task fail, and then that none does."""
    handle = os.open(f"/proc/thread-self/{file}", os.O_RDWR)
    os.pwrite(handle, b"%d" % value, 0)
    try:
        yield
    finally:
        os.pwrite(handle, b"0", 0)
        os.close(handle)


def set_up_faults():
    """What can fail in this kernel, quietly, and allocations only in those tasks that ask for it."""
    kinds = [kind for kind in ("failslab", "fail_page_alloc", "fail_function") if (FAULTS / kind).exists()]
    for kind in kinds:
        for name, value in (("verbose", "0"), ("times", "-1"), ("probability", "0")):
            (FAULTS / kind / name).write_text(value)
        if kind == "fail_function":
            # Of all tasks: a kprobe does not know in which one it is.
            (FAULTS / kind / "task-filter").write_text("N")
            (FAULTS / kind / "inject").write_text("btrfs_search_slot")
            (FAULTS / kind / "btrfs_search_slot/retval").write_text(hex(2**64 - errno.EIO))
        else:
            (FAULTS / kind / "task-filter").write_text("Y")
            (FAULTS / kind / "ignore-gfp-wait").write_text("N")
    return kinds


def count_allocations(job):
    """How many allocations of this task can fail while `job` has the kernel at work, with nothing in memory."""
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
    """What a stream does: a digest of its commands without utimes, and the set of those.

    While it is balanced, files may have extents in other places than in the parent snapshot, and send finishes the same inode
    several times: what it may say twice is taken once. Without memory to note that utimes are due, it sends some early.
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
    """What a single FIEMAP call says of a file; `around` is entered while the kernel is at work."""
    count = 1 << 15
    buffer = bytearray(guest.FIEMAP.size + count * guest.EXTENT.size)
    guest.FIEMAP.pack_into(buffer, 0, 0, 2**64 - 1, 0, 0, count, 0)
    with open(path, "rb") as file, around:
        fcntl.ioctl(file, guest.FS_IOC_FIEMAP, buffer)
    return hashlib.sha256(buffer).hexdigest()


def faults(device, turns):
    """Send and map while allocations, searches or reads fail at random: the result is right, or there is an error."""
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
    def failures(kind, one_in):
        (FAULTS / kind / "interval").write_text(str(one_in))
        (FAULTS / kind / "probability").write_text("100")
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
    wanted = [job() for job in jobs]
    counts = [count_allocations(job) for job in jobs] if "one allocation" in kinds else []
    chance, outcomes = random.Random(6), {}
    for _ in range(int(turns)):
        number, kind = chance.randrange(len(jobs)), chance.choice(kinds)
        guest.drop_caches()
        try:
            around = fault(kind, counts[number] if counts else 0)
            outcome = "the same" if jobs[number](around=around) == wanted[number] else "another"
        except OSError as error:
            outcome = errno.errorcode[error.errno]
        if outcome == "another" and number < sends:
            found, found_utimes = commands()
            jobs[number]()
            right, right_utimes = commands()
            outcome = "other utimes" if found == right and found_utimes >= right_utimes else outcome
        outcomes[f"{kind}: {outcome}"] = outcomes.get(f"{kind}: {outcome}", 0) + 1
    print(json.dumps(outcomes))
    guest.umount(MNT)


def evict(device):
    """Send while what was read ahead is thrown away: the stream is the same, and what the send still needs is read ahead again."""
    top = guest.mount(device, MNT, "ro")
    found = []
    for drops in (False, True):
        guest.drop_caches()
        before, digest = guest.counters(device)["readahead_used"], hashlib.sha256()
        with subprocess.Popen(["btrfs", "-q", "send", top / "names2"], stdout=subprocess.PIPE) as process:
            while piece := process.stdout.read(2048 * K):
                digest.update(piece)
                if drops:
                    guest.drop_caches()
        found.append((digest.hexdigest(), guest.counters(device)["readahead_used"] - before))
    guest.umount(MNT)
    (wanted, used), (stream, used_with_drops) = found
    print(f"blocks read ahead and used: {used}, and {used_with_drops} while memory was freed")
    # What was used is read again, too: names are looked up again and again.
    if stream != wanted or used_with_drops <= used:
        sys.exit("the stream differs" if stream != wanted else "nothing was read ahead again")


def commit(device):
    """Map a file while a commit of its subvolume is being written: what comes after that is read ahead."""
    top = guest.mount(guest.delayed(device, 50, writes=300), MNT)
    guest.drop_caches()
    before = guest.counters(device)["readahead_blocks"]
    expected = fiemap_directly(top / "deep/file")
    undisturbed = guest.counters(device)["readahead_blocks"] - before
    for turn in range(3):
        (top / f"deep/new{turn}").touch()
        # Without the sync(2) of guest.drop_caches().
        Path("/proc/sys/vm/drop_caches").write_text("3")
        before = guest.counters(device)["readahead_blocks"]
        # A process, as ioctl(2) stops all threads of Python.
        commit_and_count = f"btrfs filesystem sync {top} && grep 'readahead_blocks ' /sys/kernel/debug/btrfs_counters"
        with subprocess.Popen(["sh", "-c", commit_and_count], stdout=subprocess.PIPE) as syncing:
            # Its writes come once other tasks may go on.
            while int(guest.run("dmsetup", "status", "delayed").split()[4]) == 0:
                time.sleep(0.01)
            found, after = fiemap_directly(top / "deep/file"), guest.counters(device)["readahead_blocks"]
            committed = int(syncing.stdout.read().split()[-1])
        print(f"blocks read ahead: {committed - before} during the commit, {after - committed} after it; {undisturbed} without a commit")
        if found != expected:
            sys.exit("the extents differ")
        if committed - before > undisturbed // 2:
            sys.exit("the commit was over too soon")
        # Upstream's own readahead is not enough: it reads nothing of the extent tree.
        if after - before < undisturbed * 4 // 5:
            sys.exit("the readahead has stopped")
    guest.umount(MNT)


def without_readahead(device):
    """Send from a filesystem whose readahead is switched off: data is read a page at a time, when it is used."""
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
    """A list that holds, once the block is left, what the kernel said of a trace event."""
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
    """Send files with extents of 16 KiB: what is read ahead of each is one folio."""
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
    # The send itself may have to read the first ones.
    if counts.get(2, 0) << 2 < pages * 9 // 10:
        sys.exit("the folios are small")


@contextlib.contextmanager
def in_cgroup(controller):
    """Have this process in a new cgroup; gives its directory."""
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
    """Send in a cgroup, with a low priority: it is charged for what is read, also by the worker, which reads 15 of the leaves."""
    top = guest.mount(device, MNT, "ro")
    guest.drop_caches()
    # IOPRIO_WHO_PROCESS, this one, and the last level of IOPRIO_CLASS_BE.
    guest.libc.syscall(SYS_IOPRIO_SET, 1, 0, 2 << 13 | 7)
    with in_cgroup("io") as sender:
        before = guest.counters(device)["bytes_read"]
        with traced("block/block_rq_issue") as requests:
            guest.send_directly(top / "names2")
        read = guest.counters(device)["bytes_read"] - before
    guest.umount(MNT)
    charged = int(re.search(r"rbytes=(\d+)", (sender / "io.stat").read_text())[1])
    print(f"{read} bytes read, {charged} of them charged")
    if charged < read:
        sys.exit("somebody else was charged")
    by_kworkers, others = [line for line in requests if "kworker" in line], [line for line in requests if " be,0,7 " not in line]
    print(f"{len(requests)} requests, {len(by_kworkers)} of them by kworkers, {len(others)} with another priority")
    if others or not by_kworkers:
        sys.exit("\n".join(others or requests[:10]))


def dedupe(source, target):
    """Let a file share the extents of another with the same content."""
    length = os.fstat(source.fileno()).st_size
    # The kernel takes a page for different if it is dropped from the cache meanwhile, as send does with what it has read.
    for _ in range(5):
        arguments = bytearray(DEDUPE.pack(0, length, 1, target.fileno(), 0, 0, 0))
        fcntl.ioctl(source, FIDEDUPERANGE, arguments)
        *_, status = DEDUPE.unpack(arguments)
        if status != FILE_DEDUPE_RANGE_DIFFERS:
            break
    if status:
        raise OSError(-status, "dedupe")


def disturb(top, log):
    """Make and delete snapshots, write to them, share and fsync, free memory, balance and sync, until killed."""
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
    """Send and map what does not change while all around it does: the results must be those of before."""
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
        # Where extents are on disk changes, and with that which of them are shown as one, and who else has them for a moment.
        yield [sum(length for _, _, length, _ in guest.fiemap(top / "old" / path.relative_to(top / "files"))) for path in paths[:200]]

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
                sys.exit("who was to disturb gave up")
    finally:
        subprocess.run(["btrfs", "balance", "cancel", top], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
    # The balance may take a moment to end.
    while subprocess.run(["busybox", "umount", MNT], stderr=subprocess.DEVNULL).returncode:
        time.sleep(0.1)
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    reclaimed = int(counters["pgsteal_anon"]) + int(counters["pgsteal_file"])
    balances = int(log.read_text())
    if not rounds or not balances:
        sys.exit("there was no whole balance, or none of the results was looked at again")
    print(f"{rounds} rounds, {balances} balances, {reclaimed} pages reclaimed")


def leaks():
    """What kmemleak has found, if the kernel has it."""
    file = Path("/sys/kernel/debug/kmemleak")
    if not file.exists():
        return ""
    # It looks at nothing younger, and twice at everything.
    time.sleep(6)
    for _ in range(2):
        file.write_text("scan")
    found = file.read_text().split("unreferenced object")[1:]
    return "".join(one for one in found if not NO_LEAKS.search(one))


def locks_are_watched():
    """Whether lockdep, if the kernel has it, has not switched itself off."""
    stats = Path("/proc/lockdep_stats")
    return not stats.exists() or re.search(r"debug_locks:\s+1", stats.read_text())


def finish(result, output):
    """Write the result, with VERIFY's counters where the kernel has them."""
    counters = Path("/sys/kernel/debug/btrfs_rust_verify")
    if counters.exists():
        result["verify"] = {line.split()[0]: dict(zip(line.split()[1::2], map(int, line.split()[2::2])))
                            for line in counters.read_text().splitlines()}
    Path(output).write_text(json.dumps(result))


if __name__ == "__main__":
    started = time.monotonic()
    {"make": make, "read": read, "charge": charge, "churn": churn, "commit": commit, "receive": receive, "end": end,
     "evict": evict, "faults": faults, "stress": stress, "large_folios": large_folios,
     "without_readahead": without_readahead}[sys.argv[1]](*sys.argv[2:])
    if lost := leaks():
        sys.exit(lost)
    if not locks_are_watched():
        sys.exit("lockdep has switched itself off")
    print(f"{sys.argv[1]}: {time.monotonic() - started:.1f} s")
