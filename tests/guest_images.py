#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Make the image that all kernels read, in a guest, and describe the content of a filesystem."""

import hashlib
import os
import random
import shutil
import stat
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_jobs import K, MNT, run


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


class Names:
    """A subvolume with random but reproducible changes, which are difficult cases for an incremental send.

    Paths are strings that start with `root` and end without a slash.
    """

    def __init__(self, root, seed):
        self.root, self.random = str(root), random.Random(seed)
        self.dirs, self.files, self.made = [], [], 0

    def name(self):
        self.made += 1
        return f"n{self.made}_{'x' * self.random.randrange(40)}"

    def somewhere(self):
        """Return a new path in a random directory."""
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
        """Rename a path, unless the new one exists or is below the old one, and update the recorded paths."""
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
            # Half of the moves keep the name.
            new = f"{os.path.dirname(new)}/{os.path.basename(old)}"
        self.rename(old, new)

    def turn_over(self):
        """Move a directory into its own child: exchange parent and child."""
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
        # One inode has names in 150 directories, far more than 64.
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
    """Make files with all kinds of extents, and snapshots in between."""
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
    # Version 2 and effective, CAP_SETGID permitted: send reads it back after a change of the owner.
    os.setxattr(root / "inline", "security.capability", struct.pack("<5I", 0x02000001, 1 << 6, 0, 0, 0))
    guest.snapshot(root, snapshots / "data1")

    for number in range(2):
        with open(root / f"pieces{number}", "rb+") as file:
            for _ in range(150):
                os.pwrite(file.fileno(), chance.randbytes(4 * K), chance.randrange(9000) * 4 * K)
                os.fsync(file.fileno())
            guest.fallocate(file, guest.FALLOC_KEEP_SIZE | guest.FALLOC_PUNCH_HOLE, 5000 * K, 3000 * K)
            # Reflink within one file, so that several items refer to one extent.
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
    guest.enable_verity(root / "young")
    os.unlink(root / "clone3")
    guest.snapshot(root, snapshots / "data3")


def make_deep(root, snapshot):
    """Make a file with so many extents that it has shared and unshared leaves, and with a small node size also such nodes.

    The first half of the file is changed in both subvolumes, so that its tree blocks and old extents belong to one of them only.
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
    """Make a file with many copies. Its extents have so many references that some leaves of the extent tree begin between them.

    The file is written from its end to its start, so that a fiemap walks backwards through the leaves of the extent tree.
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
    """Make many small files without inline data, some compressed. Then rewrite, reflink, truncate, punch or delete some of them."""
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
        if number % 5 == 0:
            guest.enable_verity(root / f"new{number}")
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
    # Delete the last inodes. After the next mount, new inodes get their numbers.
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


# mkfs options of a filesystem on two disks, or with quotas.
LAYOUTS = {"raid0": ("-d", "raid0", "-m", "raid0"), "raid1": ("-d", "raid1", "-m", "raid1"), "quota": ("-O", "quota"), "squota": ("-O", "squota")}


def make_layout(device, second, layout):
    """Make an image with one of LAYOUTS."""
    disks = [device, second] if "raid" in layout else [device]
    guest.mkfs(disks[-1], *LAYOUTS[layout], *disks[:-1])
    guest.run("btrfs", "device", "scan", *disks)
    top = guest.mount(device, MNT, "max_inline=2048,commit=1000")
    guest.run("btrfs", "subvolume", "create", top / "small")
    make_small(top / "small", (top / "small1", top / "small2"))
    guest.umount(MNT)


def describe(top):
    """Return content and metadata of every file below `top`: {path: list}. Hard links are described by their first path."""
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
    run(make, make_layout)
