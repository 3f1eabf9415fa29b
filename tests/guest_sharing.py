#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Compare the sharedness that fiemap reports with the content of all subvolume trees: guest_sharing.py JOB DEVICE...

The oracle: an extent is shared if the trees have more than one reference to it. A reference is a subvolume, an inode, and the offset in
the file where the extent would begin. So the pieces of an extent that was overwritten in part are one reference. `btrfs inspect-internal
dump-tree` shows a leaf that several subvolumes share once for each of them.
"""

import collections
import os
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_jobs import K, MNT, run
from guest_stress import dedupe

TREE = re.compile(r"(?:fs|file) tree key \((\w+) ROOT_ITEM \d+\)")
ITEM = re.compile(r"\titem \d+ key \((\w+) (\w+) (\d+)\)")
EXTENT = re.compile(r"\t\t(?:extent|prealloc) data disk byte (\d+) nr \d+")
PIECE = re.compile(r"\t\t(?:extent|prealloc) data offset (\d+) nr \d+")
BACKREF = re.compile(r"\t\t.*\b(?:extent|shared) data backref ")
FS_TREE = 5


def trees(device):
    """Read all trees of a filesystem that is not mounted.

    Return the file extents of all subvolumes that are no holes, as (subvolume, inode, offset in the file, address, offset in the extent),
    and the number of backref items of each extent.
    """
    extents, backrefs, root, bytenr = [], collections.Counter(), None, 0
    for line in guest.run("btrfs", "inspect-internal", "dump-tree", device).splitlines():
        if not line.startswith("\t"):
            if " tree key (" in line:
                found = TREE.match(line)
                root = found and (FS_TREE if found[1] == "FS_TREE" else int(found[1]))
        elif found := ITEM.match(line):
            objectid, kind, offset = found.groups()
        elif root is None:
            if BACKREF.match(line):
                backrefs[int(objectid)] += 1
        elif kind == "EXTENT_DATA":
            if found := EXTENT.match(line):
                bytenr = int(found[1])
            elif bytenr and (found := PIECE.match(line)):
                extents.append((root, int(objectid), int(offset), bytenr, int(found[1])))
    return extents, backrefs


def reported(top):
    """Return the fiemap of each file below `top`, as {(subvolume, inode): extents}."""
    extents, subvolumes = {}, {}
    for directory, _, names in os.walk(top):
        device = os.stat(directory).st_dev
        if device not in subvolumes:
            subvolumes[device] = guest.subvolume_id(directory)
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path):
                extents[subvolumes[device], os.stat(path).st_ino] = guest.fiemap(path)
    return extents


def differences(device, maps):
    """Compare `maps`, the result of reported(), with the trees. Return the number of shared extents and of others, and the differences."""
    extents, backrefs = trees(device)
    references, counts, wrong = collections.defaultdict(set), [0, 0], []
    for root, inode, offset, bytenr, begin in extents:
        references[bytenr].add((root, inode, offset - begin))
    for root, inode, offset, bytenr, _ in extents:
        is_shared = len(references[bytenr]) > 1
        flags = [flags for logical, _, length, flags in maps[root, inode] if logical <= offset < logical + length]
        counts[is_shared] += 1
        is_reported = [bool(flag & guest.FIEMAP_EXTENT_SHARED) for flag in flags]
        # The kernel does not look into leaves if the extent has several backref items: its pieces may be in as many leaves.
        if is_reported != [is_shared] and (is_reported != [True] or backrefs[bytenr] < 2):
            wrong.append(f"subvolume {root} inode {inode} offset {offset}: extent {bytenr} has {len(references[bytenr])} references and "
                         f"{backrefs[bytenr]} backref items; flags {flags}")
    return counts[True], counts[False], wrong


def report(when, shared, others, wrong):
    print(f"{when}: {shared} extents shared, {others} not shared", flush=True)
    if wrong:
        sys.exit("\n".join([f"{when}: {len(wrong)} wrong", *wrong[:20]]))


def check(device):
    """Check all files of a filesystem."""
    top = guest.mount(device, MNT, "ro")
    maps = reported(top)
    guest.umount(MNT)
    report("read-only", *differences(device, maps))


class Changes:
    """Random changes of subvolumes and of the references to their extents."""

    def __init__(self, top, seed):
        self.top, self.chance, self.made = Path(top), random.Random(seed), 0
        self.subvolumes = []
        self.create()

    def name(self):
        self.made += 1
        return f"n{self.made}"

    def file(self, mode="rb+"):
        """Open a random file of a random subvolume."""
        return open(self.chance.choice(list(self.chance.choice(self.subvolumes).iterdir())), mode)

    def new(self):
        return open(self.chance.choice(self.subvolumes) / self.name(), "wb+")

    def range_of(self, file):
        """Return offset and length of a random range of whole blocks, or None for a file of less than a block."""
        blocks = os.fstat(file.fileno()).st_size // (4 * K)
        if blocks:
            first = self.chance.randrange(blocks)
            return first * 4 * K, self.chance.randint(1, blocks - first) * 4 * K
        return None

    def create(self):
        self.subvolumes.append(self.top / self.name())
        guest.run("btrfs", "subvolume", "create", self.subvolumes[-1])
        for _ in range(20):
            self.write()

    def write(self):
        with self.new() as file:
            file.write(self.chance.randbytes(4 * K) * self.chance.randint(1, 40))

    def overwrite(self):
        with self.file() as file:
            if part := self.range_of(file):
                os.pwrite(file.fileno(), self.chance.randbytes(4 * K), part[0])

    def clone(self):
        with self.file() as source, self.new() as target:
            guest.clone_range(source, 0, 0, target, 0)

    def clone_part(self):
        with self.file() as source, self.file() as target:
            if source.name != target.name and (part := self.range_of(source)):
                guest.clone_range(source, *part, target, 4 * K * self.chance.randrange(60))

    def clone_within(self):
        with self.file() as file:
            if part := self.range_of(file):
                guest.clone_range(file, *part, file, sum(part) + 4 * K * self.chance.randrange(3))

    def dedupe(self):
        with self.file() as source, self.new() as target:
            target.write(source.read())
            target.flush()
            os.fsync(target.fileno())
            if os.fstat(source.fileno()).st_size:
                dedupe(source, target)

    def punch(self):
        with self.file() as file:
            if part := self.range_of(file):
                guest.fallocate(file, guest.FALLOC_PUNCH_HOLE | guest.FALLOC_KEEP_SIZE, part[0], 4 * K)

    def allocate(self):
        with self.file() as file:
            guest.fallocate(file, 0, 4 * K * self.chance.randrange(60), 64 * K)

    def unlink(self):
        files = list(self.chance.choice(self.subvolumes).iterdir())
        if len(files) > 10:
            self.chance.choice(files).unlink()

    def snapshot(self):
        if len(self.subvolumes) < 6:
            self.subvolumes.append(self.top / self.name())
            guest.snapshot(self.chance.choice(self.subvolumes[:-1]), self.subvolumes[-1], readonly=False)

    def drop(self):
        if len(self.subvolumes) > 1:
            guest.run("btrfs", "subvolume", "delete", "-c",
                      self.subvolumes.pop(self.chance.randrange(len(self.subvolumes))))
            guest.run("btrfs", "subvolume", "sync", self.top)

    def balance(self):
        guest.run("btrfs", "-q", "balance", "start", self.chance.choice(("-d", "-m", "--full-balance")), self.top)

    def change(self):
        changes = {self.write: 10, self.overwrite: 20, self.clone: 10, self.clone_part: 10, self.clone_within: 5, self.dedupe: 5,
                   self.punch: 5, self.allocate: 5, self.unlink: 10, self.snapshot: 4, self.drop: 2, self.balance: 1}
        self.chance.choices(list(changes), list(changes.values()))[0]()


def churn(device, nodesize, first, last):
    """Make random changes, and check all files after each round: with a running transaction, and with nothing in memory."""
    for seed in range(int(first), int(last)):
        guest.mkfs(device, "-n", nodesize)
        change(device, seed)


def change(device, seed):
    # Half of the filesystems have compressed extents.
    options = "defaults" if seed % 2 else "compress-force=zstd"
    changes = Changes(guest.mount(device, MNT, options), f"sharing {seed}")
    for number in range(6):
        for _ in range(60):
            changes.change()
        # The first time writes all data, without a commit.
        reported(changes.top)
        maps = reported(changes.top)
        guest.umount(MNT)
        report(f"seed {seed}, round {number}", *differences(device, maps))
        check(device)
        guest.mount(device, MNT, options)
    guest.umount(MNT)


if __name__ == "__main__":
    run(check, churn)
