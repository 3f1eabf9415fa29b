#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Sends of many files of 8 KiB without inline data, as in a nightly backup.

All files are written in one order, and again in a random order, so that their order on disk is neither. The incremental send has as
many new files as rewritten ones.
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, main, timed_send

SIZE = 8 << 10


def write(directory, numbers, chance, pieces):
    """Write files of SIZE bytes. Each repeats one random piece `pieces` times."""
    for count, number in enumerate(numbers):
        handle = os.open(f"{directory}/file_{number}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(handle, chance.randbytes(SIZE // pieces) * pieces)
        os.close(handle)
        if count % 1000 == 999:
            os.sync()


def make(device, files):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs")
    for name, pieces in (("plain", 1), ("compressed", 8)):
        chance = random.Random(1)
        guest.run("btrfs", "subvolume", "create", top / name)
        if pieces > 1:
            guest.run("btrfs", "property", "set", top / name, "compression", "zstd")
        write(top / name, range(files), chance, pieces)
        write(top / name, chance.sample(range(files), files), chance, pieces)
        guest.snapshot(top / name, top / f"{name}1")
    numbers = chance.sample(range(files), files // 2) + list(range(files, files + files // 2))
    write(top / "plain", chance.sample(numbers, len(numbers)), chance, 1)
    guest.snapshot(top / "plain", top / "plain2")
    guest.umount(top)


WORKLOAD = Workload(
    unit="files", small=(400,), full=(10_000,), make=make,
    jobs={"full send of small files": lambda top: timed_send(top / "plain1"),
          "full send of small files, compressed": lambda top: timed_send(top / "compressed1", options=("--proto", "2", "--compressed-data")),
          "incremental send of small files": lambda top: timed_send(top / "plain2", top / "plain1")})

if __name__ == "__main__":
    main(WORKLOAD)
