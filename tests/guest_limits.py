#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""How much sends read ahead, in a guest: with read_ahead_kb, many at once, and in a cgroup.

Each job prints a line of JSON.
"""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_images import MNT, cached_pages, in_cgroup, leaks

PAGE = 4096
# A receiver that has read so much has let the window grow as far as it may.
BEFORE_STALL = 4 << 20
SENDS = 20


def set_rotational(device, rotational):
    Path(f"/sys/class/block/{Path(device).name}/queue/rotational").write_text(str(int(rotational)))


def set_read_ahead(kib):
    """Set the readahead of the only btrfs that is mounted."""
    [file] = Path("/sys/fs/btrfs").glob("*-*/bdi/read_ahead_kb")
    file.write_text(str(kib))


@contextlib.contextmanager
def stalled(*snaps, options=()):
    """Send each snapshot to a receiver that reads for a while, and then stands still."""
    sends = [subprocess.Popen(["btrfs", "-q", "send", *options, snap], stdout=subprocess.PIPE) for snap in snaps]
    try:
        for send in sends:
            send.stdout.read(BEFORE_STALL)
        time.sleep(1)
        yield
    finally:
        for send in sends:
            send.kill()
            send.stdout.close()
            send.wait()


def data_ahead(*snaps):
    """The file data of snapshots in the page cache, in bytes. Send drops what it has used."""
    return PAGE * sum(cached_pages(path) for snap in snaps for path in snap.rglob("*") if path.is_file())


def windows(device):
    """Send with settings of read_ahead_kb, and look at what is ahead of a send that stands still."""
    found = []
    for rotational in (0, 1):
        # The counter of unused blocks is the most since the boot: small windows first.
        for kib in (0, 128, 4096):
            set_rotational(device, rotational)
            top = guest.mount(device, MNT, "ro")
            set_read_ahead(kib)
            guest.drop_caches()
            before = guest.counters(device)["readahead_blocks"]
            digest, *_ = guest.send(top / "names2")
            counters = guest.counters(device)
            guest.drop_caches()
            with stalled(top / "small1"):
                ahead = data_ahead(top / "small1")
            guest.umount(MNT)
            found.append({"rotational": rotational, "kib": kib, "sha256": digest, "blocks": counters["readahead_blocks"] - before,
                          "unused": counters["readahead_unused_max"], "data": ahead})
    print(json.dumps(found))


def crowd(device):
    """Many sends of one filesystem that stand still."""
    set_rotational(device, 1)
    top = guest.mount(device, MNT)
    snaps = [top / f"crowd{number}" for number in range(SENDS)]
    for snap in snaps:
        guest.snapshot(top / "small1", snap)
    guest.drop_caches()
    with stalled(snaps[0]):
        one = data_ahead(snaps[0])
    guest.drop_caches()
    with stalled(*snaps):
        all_of_them = data_ahead(*snaps)
    guest.umount(MNT)
    print(json.dumps({"one": one, "all": all_of_them}))


def cgroup(device, limit):
    """A send that stands still, of a task that may use `limit` bytes of memory."""
    set_rotational(device, 1)
    top = guest.mount(device, MNT, "ro")
    guest.drop_caches()
    with in_cgroup("memory") as sender:
        (sender / "memory.max").write_text(limit)
        with stalled(top / "small1"):
            ahead = data_ahead(top / "small1")
    guest.umount(MNT)
    print(json.dumps({"data": ahead}))


if __name__ == "__main__":
    {"windows": windows, "crowd": crowd, "cgroup": cgroup}[sys.argv[1]](*sys.argv[2:])
    if lost := leaks():
        sys.exit(lost)
