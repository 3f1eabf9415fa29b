#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Full send of one large file. The page cache reads it ahead without our readahead."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, main, timed_send


def make(device, mebibytes):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs")
    content = random.Random(1).randbytes(1 << 20)
    with open(top / "file", "wb", buffering=0) as file:
        for _ in range(mebibytes):
            file.write(content)
    guest.snapshot(top, top / "snap")
    guest.umount(top)


WORKLOAD = Workload(
    unit="MiB", small=(64,), full=(4_096,), make=make,
    jobs={"full send of a file": lambda top: timed_send(top / "snap")})

if __name__ == "__main__":
    main(WORKLOAD)
