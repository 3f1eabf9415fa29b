#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Seed 004: incremental send after many files were created in one directory, and many others moved to it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, fill, main, timed_send


def make(device, files):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs")
    half = files // 2
    # As in the seed, the directories have one file name in common.
    for directory, first in (("A", 1), ("B", half)):
        (top / directory).mkdir()
        fill(top / directory, first, first + half, 0, sync_every=files)
        if directory == "A":
            guest.snapshot(top, top / "snap1")
    for name in sorted(os.listdir(top / "A")):
        os.rename(top / "A" / name, top / "B" / name)
    guest.snapshot(top, top / "snap2")
    guest.umount(top)


WORKLOAD = Workload(
    unit="files", small=(2_000, 8_000), full=(20_000, 40_000, 60_000), make=make,
    jobs={"incremental send": lambda top: timed_send(top / "snap2", top / "snap1")},
    ablation=(("incremental send", "rust_utimes_cache", ("off", "on")),))

if __name__ == "__main__":
    main(WORKLOAD)
