# SPDX-License-Identifier: GPL-2.0
"""What the kernel says about btrfs: filesystems, their readahead in sysfs, and subvolumes."""

import fcntl
import os
import re
import uuid
from pathlib import Path

SYSFS = Path("/sys/fs/btrfs")
BTRFS_IOC_FS_INFO = 0x8400941F
KINDS = {"tree": "tree blocks", "data": "file data"}


class Error(Exception):
    """A failure that the user can act on. It is printed as one line."""


def ask_kernel(path, request, size):
    """Return the `size` bytes that a btrfs ioctl on `path` fills in. Raise Error with the path if it fails."""
    buffer = bytearray(size)
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    try:
        fcntl.ioctl(handle, request, buffer)
    except OSError:
        raise Error(f"{path} is not a subvolume of btrfs") from None
    finally:
        os.close(handle)
    return bytes(buffer)


def filesystem(path):
    """Return the sysfs directory of the filesystem at `path`."""
    return SYSFS / str(uuid.UUID(bytes=ask_kernel(path, BTRFS_IOC_FS_INFO, 1024)[16:32]))


def filesystems():
    """Return the sysfs directories of all filesystems whose readahead can be set."""
    return sorted(stats.parent.parent for stats in SYSFS.glob("*/readahead/stats"))


def attribute(file):
    """Return the content of a sysfs file, or "" if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def counters(top):
    """Return the readahead counters of a filesystem: {name: number}."""
    return {name: int(number) for name, number in map(str.split, (top / "readahead/stats").read_text().splitlines())}


def settings(top):
    """Return the readahead settings of a filesystem: {name: number}."""
    return {file.name: int(file.read_text()) for file in sorted((top / "readahead").iterdir()) if file.name != "stats"}


def mountpoint(top):
    """Return where a filesystem is mounted, or "" if this is not known."""
    devices = {path.name for path in (top / "devices").iterdir()}
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n"):
        left, right = line.split(" - ", 1)
        kind, source = right.split(" ")[:2]
        if kind == "btrfs" and os.path.basename(os.path.realpath(source)) in devices:
            # A space is \040 there.
            return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), left.split(" ")[4])
    return ""
