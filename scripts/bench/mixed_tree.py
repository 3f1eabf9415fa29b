#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Full send of a part of the /usr of a distribution: files of all sizes, copied in random order."""

import os
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, main, timed_send

# Maximum file size in bytes: larger files would dominate the time.
MAX_SIZE = 50 << 20


def make(device, files):
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs")
    paths = sorted(Path(directory, name) for directory, _, names in os.walk("/usr") for name in names)
    paths = [path for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_SIZE]
    for number, path in enumerate(random.Random(1).sample(paths, min(files, len(paths)))):
        target = top / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if number % 500 == 499:
            os.sync()
    guest.snapshot(top, top / "snap")
    guest.umount(top)


WORKLOAD = Workload(
    unit="files", small=(500,), full=(50_000,), make=make,
    jobs={"full send of /usr": lambda top: timed_send(top / "snap")})

if __name__ == "__main__":
    main(WORKLOAD)
