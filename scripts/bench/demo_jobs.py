#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The part of scripts/bench/demo inside the guest, whose kernel is Debian's.

`make` makes the filesystem, with the kernel's own btrfs. `run` runs the jobs with the kernel's own btrfs and with another module in turns, and
prints their samples as JSON.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import guest
import small_files
import walk

TOP = Path("/mnt/fs")
FILES, FILES_OF_USR = 2500, 5000
# Extents of 4 KiB of the disk image, which are in random order, as a database or a virtual machine writes them.
PIECES = 8192
# Kernel's own btrfs, ours, ours, kernel's own: this order cancels a linear drift of the times.
TURNS = ("stock", "ours", "ours", "stock")
DELAY = 10


def make(device, share):
    files, files_of_usr, pieces = (round(number * share) for number in (FILES, FILES_OF_USR, PIECES))
    guest.run("modprobe", "btrfs")
    guest.mkfs(device)
    top, chance = guest.mount(device, TOP), random.Random(1)
    for name in ("files", "usr", "vm"):
        guest.run("btrfs", "subvolume", "create", top / name)
    guest.run("btrfs", "property", "set", top / "usr", "compression", "zstd")
    small_files.write(top / "files", chance.sample(range(files), files), chance, 1)
    walk.copy_usr(top / "usr", files_of_usr)
    with open(top / "vm/disk.img", "wb") as file:
        file.truncate(pieces * 4096)
        for count, number in enumerate(chance.sample(range(pieces), pieces)):
            os.pwrite(file.fileno(), chance.randbytes(4096), number * 4096)
            if count % 64 == 63:
                os.fdatasync(file.fileno())
    for name in ("files", "usr", "vm"):
        guest.snapshot(top / name, top / f"{name}1")
    changed = chance.sample(range(files), files // 4) + list(range(files, files + files // 4))
    small_files.write(top / "files", chance.sample(changed, len(changed)), chance, 1)
    guest.snapshot(top / "files", top / "files2")
    guest.umount(top)


def send(snap, *options):
    """Return a job that sends a snapshot; its result is the digest and the size of the stream."""
    return lambda: guest.send(TOP / snap, options=[str(TOP / option) if option == "files1" else option for option in options])[:2]


def program(*command):
    """Return a job that runs a program in the filesystem; its result is the digest of its output."""
    return lambda: guest.run_in(TOP, *command)


# Jobs by name, on the modelled disk and on a disk with DELAY milliseconds a read.
SEND, TAR = "btrfs send, files of 8 KiB", "tar, tree like /usr"
JOBS = {SEND: send("files1"),
        "btrfs send -p, half of the files": send("files2", "-p", "files1"),
        "btrfs send --compressed-data, tree": send("usr1", "--proto", "2", "--compressed-data"),
        "btrfs send, disk image in pieces": send("vm1"),
        "filefrag, disk image in pieces": program("filefrag", "-v", "vm1/disk.img"),
        "find, tree like /usr": program("find", "usr1", "-printf", "%p %s %n\n"),
        TAR: program("tar", "-cf", "-", "usr1"),
        "tar, files of 8 KiB": program("tar", "-cf", "-", "files1")}


def load(which):
    """Load the kernel's own btrfs ("stock"), or the module of a path."""
    if which == "stock":
        guest.run("modprobe", "btrfs")
    else:
        guest.run("modprobe", "--all", "libblake2b", "raid6_pq", "xor")
        guest.run("insmod", which)


def run(module, device, model, progress):
    guest.run("modprobe", "dm-delay")
    guest.set_rotational(device, 0)
    slow = guest.delayed(device, DELAY)
    plan = [("spindle", model, model, job) for job in JOBS] + [("latency", slow, device, job) for job in (SEND, TAR)]
    samples = []
    for number, turn in enumerate(TURNS):
        load("stock" if turn == "stock" else module)
        for kind, where, disk, name in plan:
            Path(progress).write_text(f"{len(samples)} {len(TURNS) * len(plan)} {turn}: {name}")
            guest.mount(where, TOP, "ro")
            guest.drop_caches()
            before, start = guest.counters(disk), time.monotonic()
            result = JOBS[name]()
            seconds, after = time.monotonic() - start, guest.counters(disk)
            guest.umount(TOP)
            samples.append({"job": name, "device": kind, "round": number // 2, "module": turn, "seconds": seconds,
                            "result": hashlib.sha256(repr(result).encode()).hexdigest(), "requests": after["requests"] - before["requests"]})
        guest.run("rmmod", "btrfs")
    print(json.dumps(samples))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make")
    verb.add_argument("device")
    verb.add_argument("share", type=float, help="share of the files, at most 1")
    verb = verbs.add_parser("run")
    verb.add_argument("module", help="path of the other module")
    verb.add_argument("device")
    verb.add_argument("model", help="the same filesystem on the modelled disk")
    verb.add_argument("progress", help="file that gets the name of each job when it begins")
    arguments = vars(parser.parse_args())
    {"make": make, "run": run}[arguments.pop("verb")](**arguments)


if __name__ == "__main__":
    main()
