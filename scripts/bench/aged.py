#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A filesystem after months of use: one of many snapshots, compressed files and clones, and a file that was written in pieces.

`tree` has files of 300 bytes to 400 KiB, compressed, every eighth a clone. Between its snapshots, one file in 30 is written anew. The
files of `pieces` and `holes` have an extent of 4 KiB for each file of `tree`, written in random order, 64 at a time, as a database or a
virtual machine writes them; in `holes` there is a hole after each extent.
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, main, timed_fiemap, timed_send

SNAPSHOTS, PIECE = 25, 4096


def write(path, chance):
    """Write a file of 300 bytes to 400 KiB, the logarithm of which is evenly distributed; half of it can be compressed."""
    size = round(300 * (400 * 1024 / 300) ** chance.random())
    path.write_bytes(chance.randbytes(size // 2) + bytes(size - size // 2))


def make_tree(tree, files, chance):
    """Make the files of `tree`. Return those that are no clones."""
    written = []
    for number in range(files):
        path = tree / f"d{number % 40}" / f"file{number}"
        path.parent.mkdir(exist_ok=True)
        if number % 8 == 7:
            with open(chance.choice(written), "rb") as source, open(path, "wb") as target:
                guest.clone_range(source, 0, 0, target, 0)
            continue
        write(path, chance)
        written.append(path)
    return written


def make_pieces(path, count, step, chance):
    """Write `count` pieces, one in each `step` bytes, in random order."""
    with open(path, "wb") as file:
        for done, number in enumerate(chance.sample(range(count), count)):
            os.pwrite(file.fileno(), chance.randbytes(PIECE), number * step)
            if done % 64 == 63:
                os.fdatasync(file.fileno())


def make(device, files):
    guest.mkfs(device)
    top, chance = guest.mount(device, "/mnt/fs"), random.Random(1)
    for name in ("tree", "pieces", "holes"):
        guest.run("btrfs", "subvolume", "create", top / name)
    guest.run("btrfs", "property", "set", top / "tree", "compression", "zstd")
    written = make_tree(top / "tree", files, chance)
    for number in range(SNAPSHOTS):
        guest.snapshot(top / "tree", top / f"tree{number}")
        for path in chance.sample(written, len(written) // 30):
            write(path, chance)
        os.sync()
    for name, step in (("pieces", PIECE), ("holes", 2 * PIECE)):
        make_pieces(top / name / "file", files, step, chance)
        guest.snapshot(top / name, top / f"{name}1")
    guest.umount(top)


# The snapshot that is sent, and the one before it.
SNAP, PARENT = f"tree{SNAPSHOTS // 2}", f"tree{SNAPSHOTS // 2 - 1}"
WORKLOAD = Workload(
    unit="files", small=(1_000,), full=(15_000,), make=make,
    jobs={"full send of a snapshot of 25": lambda top: timed_send(top / SNAP),
          "full send of a snapshot of 25, compressed": lambda top: timed_send(top / SNAP, options=("--proto", "2", "--compressed-data")),
          "full send of a snapshot of 25, no data": lambda top: timed_send(top / SNAP, options=("--no-data",)),
          "incremental send of a snapshot of 25": lambda top: timed_send(top / SNAP, top / PARENT),
          "full send of a file in pieces": lambda top: timed_send(top / "pieces1"),
          "full send of a file in pieces with holes": lambda top: timed_send(top / "holes1"),
          "fiemap of a file in pieces": lambda top: timed_fiemap(top / "pieces1/file")})

if __name__ == "__main__":
    main(WORKLOAD)
