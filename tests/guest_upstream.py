#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reproducers of the defects in upstream's code that Documentation/upstream describes: guest_upstream.py DEFECT DEVICE [ARGUMENT].

DEVICE is formatted.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import mmap
import os
import re
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import guest_broken
from guest_broken import (BLOCKPTR, DISK_NUM_BYTES, EXTENT_DATA, EXTENT_TREE, GENERATION, HEADER, HEADER_SIZE, METADATA_ITEM, MNT, Image,
                          attempt, field, items, mount_blank, with_checksum)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
import guest_faults
import guest_reading
from guest_jobs import HeldSend

K = 1024
BTRFS_IOC_TREE_SEARCH = 0xD0009411
# struct btrfs_ioctl_search_key: tree; least and greatest objectid, offset, transid; least and greatest type; number of items.
SEARCH_KEY = struct.Struct("=QQQQQQQLLL36x")
FS_TREE = 5
# Type of an inline backref, which follows struct btrfs_extent_item.
SHARED_BLOCK_REF, INLINE_REF = 182, 24
# The root, extent, chunk, device, checksum and free space trees.
TREES_OF_A_COMMIT = (1, 2, 3, 4, 7, 10)
SYNC_FILE_RANGE_WRITE = 2
MADV_PAGEOUT = 21


def zero_disk_num_bytes(device):
    """Read a file with a compressed extent whose length on disk is 0."""
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    path = top / "files/file"
    path.touch()
    guest.run("btrfs", "property", "set", path, "compression", "zstd")
    with open(path, "rb+") as file:
        for number in range(16):
            os.pwrite(file.fileno(), bytes([number]) * 8 * K, number * 8 * K)
            os.fsync(file.fileno())
    guest.umount(MNT)
    image = Image(device)
    where, block = image.find(lambda block: not field(block, "level")
                              and any(entry[1] == EXTENT_DATA for _, entry in items(block)))
    extents = [entry for _, entry in items(block) if entry[1] == EXTENT_DATA]
    struct.pack_into("<Q", block, HEADER_SIZE + extents[len(extents) // 2][3] + DISK_NUM_BYTES, 0)
    image.write(where, with_checksum(bytes(block)))
    guest.mount(device, MNT, "ro")
    print("read:", attempt(lambda: f"{len(path.read_bytes())} bytes"))


def data_of_a_directory(device):
    """Send a subvolume in which a leaf has the items of a regular file with the inode number of a directory."""
    top, _ = guest_broken.make_impostor(device)
    guest.send_directly(top / "new")
    print("sent")


def tree_search(subvolume, objectid):
    """Search for the items of an inode; return "N items" or the name of the error. The search stops after one item."""
    handle = os.open(subvolume, os.O_RDONLY)
    everything = 2**64 - 1
    key = SEARCH_KEY.pack(0, objectid, objectid, 0, everything, 0, everything, 0, 255, 1)
    try:
        arguments = bytearray(key.ljust(4 * K, b"\0"))
        fcntl.ioctl(handle, BTRFS_IOC_TREE_SEARCH, arguments)
        return f"{SEARCH_KEY.unpack_from(arguments)[-1]} items"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(handle)


def unverified_wait(device):
    """Search a leaf through a wrong pointer while another task reads the leaf through the right pointer."""
    top = mount_blank(device)
    for number in range(300):
        (top / f"file{number}").touch()
    guest.umount(MNT)
    image = Image(device)
    where, block = image.root(FS_TREE)
    inodes = [(place, entry) for place, entry in items(block) if entry[0] > 300]
    (wrong, (wrong_inode, *_)), (_, (right_inode, _, _, bytenr, generation)) = inodes[0], inodes[len(inodes) // 2]
    struct.pack_into("<QQ", block, wrong + BLOCKPTR, bytenr, generation)
    image.write(where, with_checksum(bytes(block)))
    device = guest.delayed(device, 500)
    for what, pause in (("by itself", None), ("while it is read", 0.25), ("once it is in memory", 2)):
        guest.mount(device, MNT, "ro")
        # Read the nodes above the leaf.
        tree_search(MNT, 256)
        if pause:
            other = os.fork()
            if not other:
                tree_search(MNT, right_inode + 1)
                os._exit(0)
            time.sleep(pause)
        print(f"{what}: {tree_search(MNT, wrong_inode + 1)}", flush=True)
        if pause:
            os.waitpid(other, 0)
        guest.umount(MNT)


def make_snapshot(device, metadata="single"):
    """Make a filesystem with a subvolume `files` and its snapshot `old`. Return its Image, and address and content of the root of `old`."""
    top = mount_blank(device, metadata)
    guest.run("btrfs", "subvolume", "create", top / "files")
    for number in range(300):
        (top / f"files/file{number}").touch()
    guest.snapshot(top / "files", top / "old")
    owner = guest.subvolume_id(top / "old")
    guest.umount(MNT)
    image = Image(device)
    return image, *image.root(owner)


def leaf_without_items(device):
    """Search twice in a leaf with nritems 0."""
    image, _, root = make_snapshot(device)
    pointers = items(root)
    _, pointer = pointers[len(pointers) // 2]
    where, leaf = image.child(pointer)
    struct.pack_into("<L", leaf, HEADER["nritems"][0], 0)
    image.write(where, with_checksum(bytes(leaf)))
    guest.mount(device, MNT, "ro")
    for what in ("at first", "once it is in memory"):
        print(f"{what}: {tree_search(f'{MNT}/old', pointer[0] + 1)}")
    guest.umount(MNT)


def unverified_generation(device):
    """Search a leaf of a snapshot through a pointer with a wrong generation, also after the leaf was read through another pointer."""
    top = Path(MNT)
    image, where, block = make_snapshot(device)
    pointers = items(block)
    place, (inode, *_, generation) = pointers[len(pointers) // 2]
    struct.pack_into("<Q", block, place + GENERATION, generation + 2048)
    image.write(where, with_checksum(bytes(block)))
    for what, subvolumes in (("by itself", ["old"]), ("once it is in memory", ["files", "old"])):
        guest.mount(device, MNT, "ro")
        print(f"{what}: {[tree_search(top / name, inode) for name in subvolumes][-1]}")
        guest.umount(MNT)


def stale_copy(device):
    """Search a leaf whose first of two copies is outdated, also after the outdated copy was read through another pointer.

    Print what is found, and how many copies are right then.
    """
    top = Path(MNT)
    image, _, old = make_snapshot(device, "dup")
    pointers = items(old)
    place, (inode, _, _, bytenr, generation) = pointers[len(pointers) // 2]
    _, leaf = image.child(pointers[len(pointers) // 2][1])
    right, last_inode = bytes(leaf), items(leaf)[-1][1][0]
    # Make the subvolume outdated, too: write the older generation into its pointer, in both copies of its root.
    _, root = image.find(lambda block: field(block, "level") == 1 and field(block, "owner") != field(old, "owner")
                         and any(entry[3] == bytenr for _, entry in items(block)))
    for where in image.copies(root):
        struct.pack_into("<Q", root, place + GENERATION, generation - 1)
        image.write(where, with_checksum(bytes(root)))
    where, _ = image.copies(leaf)
    struct.pack_into("<L", leaf, HEADER["nritems"][0], field(leaf, "nritems") // 2)
    struct.pack_into("<Q", leaf, HEADER["generation"][0], generation - 1)
    for what, subvolumes in (("by itself", ["old"]), ("once the older one is in memory", ["files", "old"])):
        image.write(where, with_checksum(bytes(leaf)))
        guest.mount(device, MNT)
        searches = [(top / name, {"files": inode, "old": last_inode}[name]) for name in subvolumes]
        found = [tree_search(*search) for search in searches][-1]
        guest.umount(MNT)
        # The kernel has written the copies past the page cache of the device.
        guest.drop_caches()
        print(f"{what}: {found}, {len(image.copies(right))} right copies")


def utimes_of_another(device):
    """Send a directory that leaves a parent whose inode number is reused. Its move must wait for the rename of its new parent."""
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    # The order of the inode numbers is that of the names. The number of `last` will be reused.
    for name in ("moved", "parent", "last"):
        (top / "files" / name).mkdir()
    (top / "files/moved").rename(top / "files/last/moved")
    guest.snapshot(top / "files", top / "old")
    (top / "files/last/moved").rename(top / "files/parent/moved")
    (top / "files/parent").rename(top / "files/renamed")
    (top / "files/last").rmdir()
    guest.umount(MNT)
    guest.mount(device, MNT)
    (top / "files/new").mkdir()
    guest.snapshot(top / "files", top / "new")
    (top / "received").mkdir()
    received = 0
    for snap, parent in ((top / "old", None), (top / "new", top / "old")):
        guest.send(snap, parent, keep="/tmp/stream")
        done = subprocess.run(["btrfs", "receive", "-f", "/tmp/stream", top / "received"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout)
        received += not done.returncode
    print(f"streams received: {received}")


def utimes_of_the_root(device):
    """Send the difference of two independent subvolumes. A directory leaves the root, whose generation differs. Its move is delayed."""
    top = mount_blank(device, options="commit=1000")
    for name in ("left", "right"):
        guest.run("btrfs", "subvolume", "create", top / name)
        os.sync()
    for subvolume in (top / "left", top / "right"):
        for name in ("moved", "parent"):
            (subvolume / name).mkdir()
    (top / "right/parent").rename(top / "right/renamed")
    (top / "right/moved").rename(top / "right/renamed/moved")
    # More than the cache of directory utimes holds.
    for number in range(100):
        (top / f"right/renamed/new{number}").mkdir()
    for name in ("left", "right"):
        guest.run("btrfs", "property", "set", top / name, "ro", "true")
    guest.send(top / "right", top / "left", keep="/tmp/stream")
    commands = guest.run("btrfs", "receive", "--dump", "-f", "/tmp/stream").splitlines()
    print("moved:", sum(line.startswith("rename") and "moved" in line for line in commands))
    print("utimes of the root:", sum(line.split()[:2] == ["utimes", "./right/"] for line in commands))


def lost_mkfile(device):
    """Send a file once for each of its allocations, and let that one fail. This needs a kernel with fault injection."""
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    (top / "files/file").touch()
    guest.run("btrfs", "property", "set", top / "files", "ro", "true")
    guest_faults.set_up_faults()

    def commands():
        return set(guest.run("btrfs", "receive", "--dump", "-f", "/tmp/stream").splitlines())

    send = functools.partial(guest.send_directly, top / "files")
    whole, outcomes = send(), {}
    whole_commands = commands()
    for number in range(guest_faults.count_allocations(send)):
        outcome = attempt(functools.partial(send, around=guest_faults.failing("fail-nth", number + 1)))
        if outcome == whole:
            outcome = "the same"
        elif outcome not in errno.errorcode.values():
            lost = whole_commands - commands()
            outcome = f"without {', '.join(lost)}" if lost else "other utimes"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    for outcome, count in outcomes.items():
        print(f"{count} {outcome}")


def stale_shared(device):
    """Map a file while the two snapshots that share it are dropped, one after the other in one transaction."""
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    with open(top / "files/file", "wb") as file:
        for number in range(8000):
            os.pwrite(file.fileno(), bytes(4 * K), number * 8 * K)
    snapshots = top / "one", top / "two"
    for snapshot in snapshots:
        guest.snapshot(top / "files", snapshot)
    guest.umount(MNT)
    guest.mount(device, MNT, "commit=300")

    def drop(snapshot):
        guest.run("btrfs", "subvolume", "delete", snapshot)
        # Wake the cleaner without a commit: it also runs when an inode is put that was deleted during writeback.
        while guest.run("btrfs", "subvolume", "list", "-d", top):
            with open(top / "other", "wb") as file:
                file.write(bytes(1 << 20))
                file.flush()
                guest.libc.sync_file_range(file.fileno(), ctypes.c_long(0), ctypes.c_long(0), SYNC_FILE_RANGE_WRITE)
            os.unlink(top / "other")

    extents = guest_reading.fiemap_with_breaks(top / "files/file", *(functools.partial(drop, snapshot) for snapshot in snapshots))
    for is_shared, group in itertools.groupby(bool(flags & guest.FIEMAP_EXTENT_SHARED) for *_, flags in extents):
        print(f"{len(list(group))} extents {'shared' if is_shared else 'not shared'}")


def clones_in_a_leaf(device, how):
    """Map files and their clones, and activate a swap file with a clone, in leaves with full backrefs.

    `how` is "drop": the files are in a snapshot, and its origin is deleted; "rewrite": files and clones in the origin are removed; or
    "balance": there is no snapshot, and a balance moves the leaves.
    """
    top = mount_blank(device)
    files = top / "files"
    guest.run("btrfs", "subvolume", "create", files)
    for number in range(100):
        with open(files / f"file{number}", "wb+") as file, open(files / f"copy{number}", "wb") as copy:
            file.write(bytes([number]) * 8 * K)
            file.flush()
            guest.clone_range(file, 0, 0, copy, 0)
    # Two references of one file, and two pieces of one reference.
    with open(files / "twice", "wb+") as file:
        file.write(bytes(8 * K))
        file.flush()
        guest.clone_range(file, 0, 0, file, 8 * K)
    (files / "inline").touch()
    with open(files / "pieces", "wb+") as file:
        file.write(bytes(24 * K))
        os.fsync(file.fileno())
        os.pwrite(file.fileno(), bytes(8 * K), 8 * K)
    # Inline data with the address of that extent, where another item has it, in the same leaf.
    (files / "inline").write_bytes(struct.pack("<Q", guest.fiemap(files / "pieces")[0][1]))
    for name in ("swap", "swap-copy"):
        (files / name).touch()
        guest.run("chattr", "+C", files / name)
    (files / "swap").write_bytes(bytes(1 << 20))
    guest.run("mkswap", files / "swap")
    with open(files / "swap", "rb") as file, open(files / "swap-copy", "rb+") as copy:
        guest.clone_range(file, 0, 0, copy, 0)
    if how == "balance":
        guest.run("btrfs", "-q", "balance", "start", "--full-balance", top)
        kept = files
    else:
        kept = top / "kept"
        guest.snapshot(files, kept, readonly=False)
        if how == "drop":
            guest.run("btrfs", "subvolume", "delete", "-c", files)
        else:
            for path in files.iterdir():
                path.unlink()
    guest.run("btrfs", "subvolume", "sync", top)
    os.sync()
    for name in ("file", "copy", "twice", "pieces"):
        extents = [extent for path in kept.glob(f"{name}*") for extent in guest.fiemap(path)]
        print(f"{name}: {sum(bool(flags & guest.FIEMAP_EXTENT_SHARED) for *_, flags in extents)} of {len(extents)} shared")
    before = (kept / "swap-copy").read_bytes()
    if guest.libc.swapon(str(kept / "swap").encode(), 0):
        print("swapon:", errno.errorcode[ctypes.get_errno()])
    else:
        memory = mmap.mmap(-1, 512 * K)
        memory.write(b"memory of a process ".ljust(4 * K) * 128)
        memory.madvise(MADV_PAGEOUT)
        guest.drop_caches()
        after = (kept / "swap-copy").read_bytes()
        print(f"swapon: done; {after.count(b'memory of a process')} pages of memory in the clone, before {before.count(b'memory')}")


def many_levels(device):
    """Map a file whose leaf has another leaf as its parent, that a third one, and so on: more of them than a tree has levels."""
    top = mount_blank(device)
    for number in range(300):
        (top / f"file{number}").touch()
    (top / "mapped").write_bytes(bytes(8 * K))
    # The kernel looks for parents if a snapshot was made after the extent.
    guest.snapshot(top, top / "gone")
    guest.run("btrfs", "subvolume", "delete", "-c", top / "gone")
    guest.run("btrfs", "subvolume", "sync", top)
    guest.umount(MNT)
    image = Image(device)
    leaves = [block for block in image.blocks.values() if field(block, "owner") == FS_TREE and not field(block, "level")]
    leaves.sort(key=lambda leaf: not any(entry[1] == EXTENT_DATA for _, entry in items(leaf)))
    chain = [field(leaf, "bytenr") for leaf in leaves[:12]]
    parents = dict(zip(chain, chain[1:]))
    for where, block in image.blocks.items():
        if field(block, "owner") != EXTENT_TREE or field(block, "level"):
            continue
        changed = bytearray(block)
        for _, (bytenr, kind, _, start, _) in items(block):
            if kind == METADATA_ITEM and bytenr in parents:
                struct.pack_into("<BQ", changed, HEADER_SIZE + start + INLINE_REF, SHARED_BLOCK_REF, parents[bytenr])
        image.write(where, with_checksum(bytes(changed)))
    guest.mount(device, MNT, "ro")
    print("mapped:", attempt(guest.fiemap, top / "mapped"))
    print("warnings:", guest.run("dmesg").count("WARNING:"))
    guest.umount(MNT)


def long_path(device):
    """Send directories that are nested so deep that their paths are longer than PATH_MAX."""
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    os.chdir(top / "files")
    for _ in range(20):
        os.mkdir("x" * 250)
        os.chdir("x" * 250)
    os.chdir("/")
    guest.snapshot(top / "files", top / "sent")
    print("sent:", attempt(guest.send_directly, top / "sent"))
    print("warnings:", guest.run("dmesg").count("WARNING:"))


def start_child(is_odd, job):
    """Run `job` in a process with an odd or even pid, and return the pid. The parity of the pid selects the mirror of its reads."""
    while True:
        child = os.fork()
        if not child:
            if os.getpid() % 2 == is_odd:
                job()
            os._exit(0)
        if child % 2 == is_odd:
            return child
        os.waitpid(child, 0)


def set_delay(device, start, sectors, milliseconds, verb="reload"):
    """Delay the reads of the target `slow`, which has the sectors of `device` from `start`. Complete those that wait for the old delay."""
    guest.run("dmsetup", verb, "slow", "--noudevsync", "--table",
              f"0 {sectors} delay {device} {start} {milliseconds} {device} {start} 0")
    # Suspending the target completes the delayed reads.
    guest.run("dmsetup", "suspend", "--noudevsync", "--nolockfs", "slow")
    guest.run("dmsetup", "resume", "--noudevsync", "slow")


def moved_while_read(device):
    """Read a file without checksums and send a snapshot, both from a slow mirror, while a balance moves them and the space is reused."""
    half = int(guest.sysfs(device, "size")) // 2
    delay_reads = functools.partial(set_delay, device, half, half)
    guest.run("dmsetup", "create", "fast", "--noudevsync", "--table", f"0 {half} linear {device} 0")
    delay_reads(0, "create")
    guest.run("dmsetup", "mknodes")
    guest.run("mkfs.btrfs", "-q", "-f", "-n", "4096", "-m", "raid1", "-d", "raid1", "/dev/mapper/fast", "/dev/mapper/slow")
    top = guest.mount("/dev/mapper/fast", MNT, "device=/dev/mapper/slow")
    guest.run("btrfs", "subvolume", "create", top / "files")
    for number in range(100):
        (top / f"files/file{number}").touch()
        if number % 20 == 0:
            guest.run("chattr", "+C", top / f"files/file{number}")
            (top / f"files/file{number}").write_bytes(bytes([number]) * 16 * K)
    for name in ("sent", "read"):
        guest.snapshot(top / "files", top / name)
    whole = guest.send_directly(top / "sent")

    def seconds(is_odd):
        with open(top / "files/file0", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.monotonic()
            os.waitpid(start_child(is_odd, file.read), 0)
            return time.monotonic() - start

    def read():
        print("read:", "as before" if (top / "read/file0").read_bytes() == bytes(16 * K) else "other data", flush=True)

    def send():
        print("sent:", "as before" if guest.send_directly(top / "sent") == whole else "other data", flush=True)

    os.sync()
    delay_reads(500)
    is_odd = seconds(True) > 0.4
    delay_reads(600_000)
    readers = [start_child(is_odd, job) for job in (read, send)]
    # Wait until the reads of both readers are queued, before the balance starts.
    while int(guest.run("dmsetup", "status", "slow").split()[3]) < len(readers):
        time.sleep(0.1)
    os.waitpid(start_child(not is_odd, lambda: os.execlp("btrfs", "btrfs", "-q", "balance", "start", "-d", top)), 0)
    with contextlib.suppress(OSError), open(top / "other", "wb", buffering=0) as file:
        while True:
            file.write(b"\xff" * (1 << 20))
    os.sync()
    delay_reads(0)
    for reader in readers:
        os.waitpid(reader, 0)


def read_tree(path, tree):
    """Read all blocks of a tree."""
    handle = os.open(path, os.O_RDONLY)
    everything, first, count = 2**64 - 1, (0, 0, 0), 1
    while count:
        # The search compares keys, with the parts of the least one in this order.
        key = SEARCH_KEY.pack(tree, first[0], everything, first[1], everything, 0, everything, first[2], 255, 4096)
        arguments = bytearray(key.ljust(4 * K, b"\0"))
        fcntl.ioctl(handle, BTRFS_IOC_TREE_SEARCH, arguments)
        count, place = SEARCH_KEY.unpack_from(arguments)[-1], SEARCH_KEY.size
        for _ in range(count):
            _, objectid, offset, kind, length = struct.unpack_from("=QQQLL", arguments, place)
            place += 32 + length
        if count:
            number = (objectid << 72 | kind << 64 | offset) + 1
            first = number >> 72, number & everything, number >> 64 & 255
    os.close(handle)


def replace_leaves(path):
    """Make a file, and replace all of its leaves in the running transaction, so that only the commit root has the first ones."""
    with open(path, "wb", buffering=0) as file:
        for number in range(4000):
            os.pwrite(file.fileno(), bytes([number % 251]) * 4 * K, number * 8 * K)
    os.sync()
    # A leaf has some 50 extents. Direct I/O writes them without a commit, from an aligned buffer.
    file, block = os.open(path, os.O_WRONLY | os.O_DIRECT), mmap.mmap(-1, 4 * K)
    for number in range(0, 4000, 20):
        os.pwrite(file, block, number * 8 * K)
    os.close(file)


def reused_while_read(device):
    """Let the readahead of a fiemap be late: the leaves that it reads are freed, and new leaves take their place."""
    delay_reads = functools.partial(set_delay, device, 0, int(guest.sysfs(device, "size")))
    delay_reads(0, "create")
    guest.run("dmsetup", "mknodes")
    # Without ssd and discard, freed blocks are used sooner.
    top = mount_blank("/dev/mapper/slow", options="commit=1000,nossd,nodiscard")
    replace_leaves(top / "file")
    # Forget the first leaves. Keep what the commit will read.
    Path("/proc/sys/vm/drop_caches").write_text("1")
    for tree in TREES_OF_A_COMMIT:
        read_tree(top, tree)
    delay_reads(600_000)
    with open(top / "file", "rb") as file:
        guest.fiemap_call(file, 0, 2**63, 0)
    reads = int(guest.run("dmsetup", "status", "slow").split()[3])
    os.sync()
    progress = mmap.mmap(-1, 4 * K)
    child = os.fork()
    if not child:
        for number in range(60_000):
            (top / f"new{number}").touch()
            progress[:8] = number.to_bytes(8)
        os._exit(0)
    last, ended = None, 0
    while not ended and progress[:8] != last:
        last = progress[:8]
        time.sleep(3)
        ended, _ = os.waitpid(child, os.WNOHANG)
    print(f"{reads} reads delayed, new files {'are made meanwhile' if ended else 'wait for them'}", flush=True)
    delay_reads(0)
    if not ended:
        os.waitpid(child, 0)
    guest.umount(MNT)
    print(guest.run("btrfs", "check", "/dev/mapper/slow"))


def damaged_pointers(device, job):
    """Send a snapshot with damaged pointers that lead to new blocks of the running transaction, or look its files up.

    The send reads ahead through pointers that it does not reach.
    """
    top = Path(MNT)
    image, where, block = make_snapshot(device)
    # New blocks come after those in use. Keep the pointers that are used to open the subvolume: those to its root directory, and the last.
    pointers = items(block)
    last = max(pointer[3] for _, pointer in pointers)
    damaged = [place for place, pointer in pointers[:-1] if pointer[0] > 257]
    for number, place in enumerate(damaged):
        struct.pack_into("<Q", block, place + BLOCKPTR, last + (number + 64) * guest_broken.NODESIZE)
    image.write(where, with_checksum(bytes(block)))
    guest.mount(device, MNT, "commit=1000,nossd,nodiscard")
    for number in range(8000):
        (top / f"files/new{number}").touch()
    if job == "send":
        print("sent:", attempt(guest.send_directly, top / "old"))
        print("blocks refused:", guest.run("dmesg").count("parent transid verify failed"))
    else:
        print("errors:", {str(attempt(os.path.getsize, top / f"old/file{number}")) for number in range(300)} - {"0"})
    os.sync()

    def write():
        with open(top / "other", "wb", buffering=0) as file:
            file.write(bytes(4 * K))
            os.fsync(file.fileno())
        return "written"

    print("then:", attempt(write))
    guest.umount(MNT)


def written_while_sent(device):
    """Write to open files while their subvolume is sent, which was set read-only. Look whether the data is there after another mount."""
    options = "commit=1000"
    top = mount_blank(device, options=options)
    guest.run("btrfs", "subvolume", "create", top / "sent")
    paths = [top / f"sent/file{number:03}" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(4 << 20 if number == 0 else 256 * K))
    guest.umount(MNT)
    guest.mount(device, MNT, options)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb+", buffering=0)) for path in paths]
        guest.run("btrfs", "property", "set", top / "sent", "ro", "true")
        send = HeldSend(top / "sent")
        send.take(1 << 20)
        for file in files:
            os.pwrite(file.fileno(), b"new", os.fstat(file.fileno()).st_size - 4 * K)
        print(send.end())
    guest.umount(MNT)
    guest.mount(device, MNT)
    lost = [number for number, path in enumerate(paths) if not path.read_bytes()[-4 * K:].startswith(b"new")]
    print("writes lost in files:", lost or "none")
    guest.umount(MNT)


# Of the files of changed_while_sent(), each so many are of the kind that the name says.
LARGE, UNLINKED, OPEN = 10, 9, 2
PIECES = 12


def content_of(number, version):
    """The content of a file of changed_while_sent(): one inline extent, or some extents with holes between them, or in their new version one."""
    text = f"{version} {number} ".encode().ljust(20)
    if number % LARGE:
        return text * 90
    piece = text.ljust(4 * K, b"x")
    return (piece + (piece if version == "new" else bytes(4 * K))) * PIECES


def is_old_or_new(number, content):
    """Whether each block of a file has its old or its new content."""
    old, new = content_of(number, "old"), content_of(number, "new")
    return len(content) == len(old) and all(content[start:start + 4 * K] in (old[start:start + 4 * K], new[start:start + 4 * K])
                                            for start in range(0, len(old), 4 * K))


def change_files(files, other):
    """Write to all files but those without a name. Close these: their items are deleted. Commit, and let new blocks take the places."""
    for number, file in files:
        if number % UNLINKED == 0:
            file.close()
        else:
            os.pwrite(file.fileno(), content_of(number, "new"), 0)
    os.sync()
    other.mkdir()
    for number in range(500):
        (other / f"{number}").touch()
        for name in ("user.1", "user.2", "user.3"):
            os.setxattr(other / f"{number}", name, bytes(1000))
    guest.drop_caches()


def changed_while_sent(device, parent):
    """Change open files while their subvolume is sent, which was set read-only, and commit. Receive the stream.

    With `parent` "with", the send has a parent. Right: each file has its old or its new content.
    """
    count = 2700
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    top = mount_blank(device, options="commit=1000,nossd,nodiscard,max_inline=2048")
    sent, old = top / "sent", top / "parent"
    (top / "received").mkdir()
    guest.run("btrfs", "subvolume", "create", sent)
    paths = [sent / f"file{number:04}" for number in range(count)]
    for path in paths:
        path.write_bytes(b"first")
    guest.snapshot(sent, old)
    guest.send(old, keep="/tmp/stream")
    guest.run("btrfs", "receive", "-f", "/tmp/stream", top / "received")
    for number, path in enumerate(paths):
        content = content_of(number, "old")
        with open(path, "rb+", buffering=0) as file:
            for start in range(0, len(content), 8 * K):
                os.pwrite(file.fileno(), content[start:start + 4 * K], start)
            os.ftruncate(file.fileno(), len(content))
    numbers = range(0, count, OPEN)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(paths[number], "rb+", buffering=0)) for number in numbers]
        for number in range(0, count, UNLINKED):
            paths[number].unlink()
        guest.run("btrfs", "property", "set", sent, "ro", "true")
        send = HeldSend(*(["-p", old] if parent == "with" else []), sent)
        # Change files that were sent, that will be sent, and that which is being sent.
        for turn in range(8):
            send.take(512 * K)
            current = int(re.findall(rb"file(\d{4})", send.stream)[-1])
            chosen = [(number, file) for number, file in zip(numbers, files) if number // OPEN % 8 == turn or abs(number - current) < 2]
            change_files(chosen, top / f"other{turn}")
        print(result := send.end())
    if result != "sent":
        return
    Path("/tmp/stream").write_bytes(send.stream)
    guest.run("btrfs", "receive", "-f", "/tmp/stream", top / "received")
    found = {path.name: path.read_bytes() for path in (top / "received/sent").iterdir()}
    writes = [line for line in guest.run("btrfs", "receive", "--dump", "-f", "/tmp/stream").splitlines() if line.startswith("write")]
    wrong = [number for number, path in enumerate(paths) if number % UNLINKED and not is_old_or_new(number, found.pop(path.name, b"-"))]
    print(f"wrong files: {wrong or 'none'}, others: {sorted(found) or 'none'}, repeated writes: {len(writes) - len(set(writes))}")
    guest.umount(MNT)


def level_of(device, subvolume):
    """Return the level of the root node of a subvolume, as of the last commit."""
    roots = guest.run("btrfs", "inspect-internal", "dump-tree", "-r", device)
    return re.search(rf"\({guest.subvolume_id(subvolume)} ROOT_ITEM \d+\) \d+ level (\d)", roots)[1]


def grown_while_sent(device):
    """Let the tree of a subvolume grow by a level while it is sent with a parent, and commit. Receive the stream.

    Its files were open when it was set read-only. Right: each has its old or its new content, and the send stood still in the first one.
    """
    count, new = 300, b"new".ljust(1900)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    top = mount_blank(device, options="commit=1000,max_inline=2048")
    sent, old, received = top / "sent", top / "parent", top / "received"
    received.mkdir()
    guest.run("btrfs", "subvolume", "create", sent)
    paths = [sent / f"file{number:03}" for number in range(count)]
    for path in paths:
        path.touch()
    guest.snapshot(sent, old)
    guest.send(old, keep="/tmp/stream")
    guest.run("btrfs", "receive", "-f", "/tmp/stream", received)
    for path in paths[1:]:
        path.write_bytes(b"old")
    paths[0].write_bytes(bytes(1 << 20))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb+", buffering=0)) for path in paths[1:]]
        guest.run("btrfs", "property", "set", sent, "ro", "true")
        os.sync()
        before = level_of(device, sent)
        send = HeldSend("-p", old, sent)
        send.take(256 * K)
        for file in files:
            os.pwrite(file.fileno(), new, 0)
        os.sync()
        print(f"level {before}, then {level_of(device, sent)}: {(result := send.end())}")
    if result != "sent":
        return
    Path("/tmp/stream").write_bytes(send.stream)
    guest.run("btrfs", "receive", "-f", "/tmp/stream", received)
    wrong = {content for path in paths[1:] if (content := (received / "sent" / path.name).read_bytes()) not in (b"old", new)}
    print("wrong content:", wrong or "none")
    guest.umount(MNT)


def moved_while_cloning(device):
    """Balance the metadata in the middle of a send of files and their clones, with many snapshots. Compare the stream with one without."""
    top = mount_blank(device)
    files, old = top / "files", 12
    guest.run("btrfs", "subvolume", "create", files)
    paths = [files / f"file{number:03}" for number in range(300)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(2, "little") * 4 * K)
    os.sync()
    for path in paths:
        with open(path, "rb") as file, open(f"{path}-copy", "wb") as copy:
            guest.clone_range(file, 0, 0, copy, 0)
    # Each snapshot has leaves of its own.
    for number in range(old):
        guest.snapshot(files, top / f"old{number}")
        for path in files.iterdir():
            path.chmod(0o600 + number)
    guest.snapshot(files, top / "sent")
    _, whole, _ = guest.send(top / "sent", keep="/tmp/stream")
    guest.drop_caches()
    send = HeldSend(top / "sent")
    send.take(whole // 2)
    guest.run("btrfs", "-q", "balance", "start", "-m", top)
    said = send.end()
    print(f"{whole // K} KiB, {said}, {'the same' if send.stream == Path('/tmp/stream').read_bytes() else f'{len(send.stream) // K} KiB'}")
    guest.umount(MNT)


def read_with_gaps(device):
    """Send a file with a hole after each extent of one block, with 10 ms a read. Print how long the send waits for the disk."""
    count = 1024
    Path("/proc/sys/kernel/sched_schedstats").write_text("1")
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    with open(top / "files/file", "wb", buffering=0) as file:
        for number in range(count):
            os.pwrite(file.fileno(), bytes([number % 255 + 1]) * 4 * K, number * 8 * K)
    guest.snapshot(top / "files", top / "sent")
    guest.umount(MNT)
    guest.mount(guest.delayed(device, 10), MNT, "ro")
    before = guest.counters(device)
    guest.send_directly(top / "sent")
    after = guest.counters(device)
    print(f"{count} extents, {after['waits'] - before['waits']} waits, {after['wait_ms'] - before['wait_ms']} ms of waits")
    guest.umount(MNT)


if __name__ == "__main__":
    {"zero_disk_num_bytes": zero_disk_num_bytes, "data_of_a_directory": data_of_a_directory, "unverified_wait": unverified_wait,
     "unverified_generation": unverified_generation, "leaf_without_items": leaf_without_items, "stale_copy": stale_copy,
     "utimes_of_another": utimes_of_another, "utimes_of_the_root": utimes_of_the_root, "lost_mkfile": lost_mkfile,
     "stale_shared": stale_shared, "clones_in_a_leaf": clones_in_a_leaf, "many_levels": many_levels, "long_path": long_path,
     "moved_while_read": moved_while_read, "reused_while_read": reused_while_read, "damaged_pointers": damaged_pointers,
     "written_while_sent": written_while_sent, "changed_while_sent": changed_while_sent, "grown_while_sent": grown_while_sent,
     "read_with_gaps": read_with_gaps, "moved_while_cloning": moved_while_cloning}[sys.argv[1]](*sys.argv[2:])
