#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Seed 003: fiemap of a file of many compressed extents, asked for as filefrag -v does, 512 at a time.

The size is in MiB, of 8 extents each. Asked for their number only, today's kernels do not look at sharedness. And
they know without looking that extents younger than the last snapshot are not shared, so one is made and deleted
after the file.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest


def make(device, mebibytes):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs", "compress=lzo")
    with open(top / "foobar", "wb", buffering=0) as file:
        for _ in range(mebibytes):
            file.write(b"\xab" * (1 << 20))
    guest.snapshot(top, top / "snap")
    guest.run("btrfs", "subvolume", "delete", "-c", top / "snap")
    guest.run("btrfs", "subvolume", "sync", top)
    guest.umount(top)


def run(top, name):
    start = time.monotonic()
    count = sum(count for count, _ in guest.fiemap_batches(top / name))
    seconds = time.monotonic() - start
    extents = guest.fiemap(top / name)
    return seconds, [hashlib.sha256(json.dumps(extents).encode()).hexdigest(), count]


if __name__ == "__main__":
    guest.workload(make, run, {"fiemap": "foobar"})
