#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Seed 004: incremental send after many files were made in and moved to one directory. The size is in files."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest


def make(device, files):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs")
    half = files // 2
    for directory, first in (("A", 1), ("B", half)):
        (top / directory).mkdir()
        guest.fill(top / directory, first, first + half, 0, sync_every=files)
        if directory == "A":
            guest.snapshot(top, top / "snap1")
    for name in sorted(os.listdir(top / "A")):
        os.rename(top / "A" / name, top / "B" / name)
    guest.snapshot(top, top / "snap2")
    guest.umount(top)


def run(top, snaps):
    digest, size, seconds = guest.send(top / snaps[1], top / snaps[0])
    return seconds, [digest, size]


if __name__ == "__main__":
    guest.workload(make, run, {"incremental send": ("snap1", "snap2")})
