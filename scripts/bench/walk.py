#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Walks of directories as by find, du, rsync and backup programs: list the entries and stat each of them."""

import hashlib
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
from workload import Workload, fill, main

# Directories of the second tree.
BOXES = 200
TREES = ("flat", "boxes", "usr")


def copy_usr(target, files):
    """Make the directories and files of /usr, by directory, up to `files` files. Files of more than 4 KiB get their first 4 KiB."""
    made = 0
    for where, directories, names in os.walk("/usr"):
        directories.sort()
        directory = target / os.path.relpath(where, "/usr")
        directory.mkdir(exist_ok=True)
        for name in sorted(names):
            path = Path(where, name)
            if path.is_symlink():
                (directory / name).symlink_to(path.readlink())
            elif path.is_file():
                with open(path, "rb") as file:
                    (directory / name).write_bytes(file.read(4096))
            made += 1
            if made % 1000 == 0:
                os.sync()
            if made == files:
                return


def make(device, files):
    """Make three trees.

    `flat` is a directory with all files. `boxes` are directories whose files were made in turns, as mail is delivered. `usr` is a copy
    of a part of /usr.
    """
    guest.mkfs(device)
    top = guest.mount(device, "/mnt/fs", "max_inline=2048")
    for tree in TREES:
        guest.run("btrfs", "subvolume", "create", top / tree)
    fill(top / "flat", 0, files, 2000)
    boxes = [top / f"boxes/{number}" for number in range(max(1, min(BOXES, files // 50)))]
    for box in boxes:
        box.mkdir()
    chance = random.Random(1)
    for number in range(files):
        (chance.choice(boxes) / f"mail_{number}").write_bytes(b"\xab" * 2000)
        if number % 1000 == 999:
            os.sync()
    copy_usr(top / "usr", files // 2)
    for tree in TREES:
        guest.snapshot(top / tree, top / f"{tree}_snap")
    guest.umount(top)


def timed(*command):
    """Run a program on a tree as a job of a workload; the result is the digest of its output."""
    def job(top):
        start = time.monotonic()
        digest = guest.run_in(top, *command)
        return time.monotonic() - start, digest
    return job


def scan(tree):
    """Return a job that stats each entry of a directory right after its name was read."""
    def job(top):
        digest, start = hashlib.sha256(), time.monotonic()
        with os.scandir(top / tree) as entries:
            for entry in entries:
                digest.update(f"{entry.name} {entry.stat(follow_symlinks=False).st_size}\n".encode())
        return time.monotonic() - start, digest.hexdigest()
    return job


def scan_with_threads(tree, threads):
    """Return a job whose threads stat the entries of a directory, each the next one, after all names were read."""
    def job(top):
        start = time.monotonic()
        names = os.listdir(top / tree)
        with ThreadPoolExecutor(threads) as pool:
            sizes = pool.map(lambda name: os.lstat(top / tree / name).st_size, names)
            found = "".join(f"{name} {size}\n" for name, size in zip(names, sizes))
        return time.monotonic() - start, hashlib.sha256(found.encode()).hexdigest()
    return job


def rsync(tree):
    """Return a job that compares a tree with an empty target, as rsync -an does, and lists what it would copy."""
    return timed("rsync", "-ain", f"{tree}/", "/tmp/none/")


WORKLOAD = Workload(
    unit="files", small=(8_000,), full=(100_000,), make=make,
    jobs={"find": timed("find", "flat_snap", "-printf", "%p %s %n\n"),
          "du": timed("du", "-s", "--apparent-size", "flat_snap"),
          "ls -l": timed("ls", "-lU", "flat_snap"),
          "scandir and stat": scan("flat_snap"),
          "scandir and stat, 8 threads": scan_with_threads("flat_snap", 8),
          "rsync -an": rsync("flat_snap"),
          "rsync -an of many directories": rsync("boxes_snap"),
          "rsync -an of a copy of /usr": rsync("usr_snap"),
          "find in many directories": timed("find", "boxes_snap", "-printf", "%p %s %n\n"),
          "find in a copy of /usr": timed("find", "usr_snap", "-printf", "%p %s %n\n"),
          "tar of a copy of /usr": timed("tar", "-cf", "-", "usr_snap"),
          "names only": timed("ls", "-f", "flat_snap")})

if __name__ == "__main__":
    main(WORKLOAD)
