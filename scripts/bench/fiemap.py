#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Seed 003: fiemap of files with many compressed extents, 512 extents a call as filefrag -v does.

Each MiB has 8 extents. The calls ask for extents, not only for their number as filefrag without -v does: then today's kernels do not
check sharedness. For an extent younger than the last snapshot, they check only its references, not the path to the root. So there are
four more files: one older than a deleted snapshot, one with a reflinked copy, one in a snapshot, and one that is deduplicated against
itself down to 64 extents.
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, main, timed_fiemap


def make(device, mebibytes):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs", "compress=lzo")
    # One subvolume for each file, so that the files do not share tree blocks.
    for name in ("young", "old", "copied", "shared", "repeated"):
        guest.run("btrfs", "subvolume", "create", top / name)
        with open(top / name / "file", "wb", buffering=0) as file:
            for _ in range(mebibytes):
                file.write(b"\xab" * (1 << 20))
    with open(top / "copied/file", "rb") as source, open(top / "copied/copy", "wb") as target:
        guest.clone_range(source, 0, 0, target, 0)
    chance, size = random.Random(1), 128 << 10
    with open(top / "repeated/file", "rb+") as file:
        file.truncate(64 * size)
        for number in range(64, mebibytes * 8):
            guest.clone_range(file, chance.randrange(64) * size, size, file, number * size)
    guest.snapshot(top / "shared", top / "snap")
    guest.snapshot(top / "old", top / "gone")
    guest.run("btrfs", "subvolume", "delete", "-c", top / "gone")
    guest.run("btrfs", "subvolume", "sync", top)
    guest.umount(top)


WORKLOAD = Workload(
    unit="MiB", small=(512, 2048), full=(40_960,), make=make,
    jobs={"fiemap": lambda top: timed_fiemap(top / "young/file"),
          "fiemap, older than the last snapshot": lambda top: timed_fiemap(top / "old/file"),
          "fiemap, reflinked copy": lambda top: timed_fiemap(top / "copied/copy"),
          "fiemap, in a snapshot": lambda top: timed_fiemap(top / "shared/file"),
          "fiemap, deduplicated": lambda top: timed_fiemap(top / "repeated/file")},
    ablation=(("fiemap, older than the last snapshot", "rust_share_cache", ("off", "on")),))

if __name__ == "__main__":
    main(WORKLOAD)
