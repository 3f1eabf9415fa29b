#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Make the image that all kernels read, in a guest, and describe what is in a filesystem."""

import hashlib
import os
import random
import shutil
import stat
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_jobs import K, MNT, run


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


if __name__ == "__main__":
    run(make)
