#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Seeds 000 and 001: full and incremental send of many small files with inline data."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, fill, main, timed_send


def make(device, files):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs", "max_inline=2048")
    fill(top, 1, files + 1, 2000)
    guest.snapshot(top, top / "snap1")
    fill(top, files + 1, files + files // 4 + 1, 2000)
    for number in range(1, files + 1, 50):
        handle = os.open(f"{top}/file_{number}", os.O_WRONLY)
        os.pwrite(handle, b"\xcd" * 20, 0)
        os.close(handle)
    guest.snapshot(top, top / "snap2")
    guest.umount(top)


WORKLOAD = Workload(
    unit="files", small=(2_000, 8_000), full=(200_000, 500_000), make=make,
    jobs={"full send": lambda top: timed_send(top / "snap1"),
          "incremental send of new files": lambda top: timed_send(top / "snap2", top / "snap1")},
    ablation=(("full send", "rust_reada", ("none", "forward", "always")),),
    ablated_with="btrfs.readahead_tree_enable=0 btrfs.readahead_data_enable=0")

if __name__ == "__main__":
    main(WORKLOAD)
