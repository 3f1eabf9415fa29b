#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Break the metadata of a filesystem in one place at a time, with correct checksums, and run sends and fiemaps on it.

guest_broken.py make DEVICE makes the filesystem. guest_broken.py run DEVICE FIRST LAST OUTPUT runs the jobs on the broken images FIRST to
LAST - 1, and appends a line of JSON for each. A number always gives the same image. DEVICE is restored after each image.
The jobs fifo, impostor, generation and data make images of their own: guest_broken.py JOB DEVICE.
"""

import ctypes
import errno
import hashlib
import json
import os
import random
import re
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest

K = 1024
MNT = "/mnt/fs"
NODESIZE = 4096
MS_RDONLY = 1
INODE_ITEM, EXTENT_DATA, EXTENT_ITEM, METADATA_ITEM, ROOT_ITEM = 1, 108, 168, 169, 132
# Offset of the mode in struct btrfs_inode_item.
MODE = 52
# Offsets of compression, type, disk_bytenr and disk_num_bytes in struct btrfs_file_extent_item.
COMPRESSION, TYPE, DISK_BYTENR, DISK_NUM_BYTES = 16, 20, 21, 29
INLINE, REGULAR = 0, 1
ROOT_TREE, EXTENT_TREE, CHUNK_TREE = 1, 2, 3
# Fields of struct btrfs_header: {name: (offset, format)}.
HEADER = {"bytenr": (48, "Q"), "flags": (56, "Q"), "generation": (80, "Q"), "owner": (88, "Q"), "nritems": (96, "L"), "level": (100, "B")}
HEADER_SIZE = 101
KEY_PTR = struct.Struct("<QBQQQ")
# Offsets of blockptr and generation in struct btrfs_key_ptr, and of the field offset in struct btrfs_item, both after the key.
BLOCKPTR = ITEM_OFFSET = 17
GENERATION = BLOCKPTR + 8
ITEM = struct.Struct("<QBQLL")
SPLAT = re.compile(r"WARNING:|BUG:|kernel BUG|Oops|rust_kernel: panicked")


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = crc32c_table()


def with_checksum(block):
    value = 0xFFFFFFFF
    for byte in block[32:]:
        value = value >> 8 ^ CRC32C[(value ^ byte) & 255]
    return struct.pack("<L", value ^ 0xFFFFFFFF) + bytes(28) + block[32:]


def field(block, name):
    offset, form = HEADER[name]
    return struct.unpack_from("<" + form, block, offset)[0]


def items(block):
    """Return the key pointers of a node or the items of a leaf: [(offset in the block, fields)]."""
    form = KEY_PTR if field(block, "level") else ITEM
    end = min(HEADER_SIZE + field(block, "nritems") * form.size, NODESIZE - form.size + 1)
    return [(where, form.unpack_from(block, where)) for where in range(HEADER_SIZE, end, form.size)]


def mount_blank(device, metadata="single", options="defaults"):
    """Make and mount a filesystem with small nodes and the metadata profile `metadata`. Return the mount point.

    By default there is one copy of the metadata, so that the kernel cannot repair a block.
    """
    guest.mkfs(device, "-n", str(NODESIZE), "-m", metadata, "-d", "single")
    return guest.mount(device, MNT, options)


def make(device):
    """Make a filesystem with two snapshots. It is small, so that a job takes little time, but its trees have several levels.

    Each step is committed, so that the trees of the subvolumes are the same in each run, except for addresses, UUIDs and times. Print a
    digest of them. The extent tree has other leaves each time, since its keys are addresses.
    """
    chance = random.Random(7)
    top = mount_blank(device, options="max_inline=2048,commit=1000")
    root = top / "files"
    guest.run("btrfs", "subvolume", "create", root)
    for number in range(300):
        (root / f"file{number}").write_bytes(chance.randbytes(chance.choice((0, 50, 1500, 9 * K))))
        os.sync()
    for number in range(30):
        (root / f"dir{number}").mkdir()
        os.link(root / "file1", root / f"dir{number}/link")
        os.setxattr(root / f"dir{number}", "user.note", chance.randbytes(100))
    for name in ("pieces", "packed"):
        with open(root / name, "wb") as file:
            if name == "packed":
                guest.run("btrfs", "property", "set", root / name, "compression", "zstd")
            for number in range(200):
                os.pwrite(file.fileno(), bytes([number]) * 8 * K, number * 12 * K)
                os.sync()
    with open(root / "pieces", "rb") as source, open(root / "copy", "wb") as target:
        guest.clone_range(source, 0, 0, target, 0)
    guest.snapshot(root, top / "old")
    for number in range(0, 300, 4):
        (root / f"file{number}").rename(root / f"dir{number % 30}/moved{number}")
    for number in range(1, 300, 5):
        (root / f"file{number}").write_bytes(chance.randbytes(3 * K))
        os.sync()
    guest.snapshot(root, top / "new")
    guest.umount(MNT)
    print(Image(device).digest())


class Image:
    """A filesystem on a device, with the content and the physical addresses of its tree blocks."""

    def __init__(self, device):
        self.handle = os.open(device, os.O_RDWR)
        content = os.pread(self.handle, os.lseek(self.handle, 0, os.SEEK_END), 0)
        superblock = content[64 * K:68 * K]
        fsid = superblock[32:48]
        found = {}
        for physical in range(68 * K, len(content), NODESIZE):
            if content[physical + 32:physical + 48] == fsid:
                block = content[physical:physical + NODESIZE]
                found[field(block, "bytenr"), field(block, "generation")] = physical, block
        self.blocks = {}
        # Generation, root tree, chunk tree. The generation of the chunk tree is at offset 164.
        generation, root, chunk = struct.unpack_from("<QQQ", superblock, 72)
        self.follow(found, root, generation)
        self.follow(found, chunk, struct.unpack_from("<Q", superblock, 164)[0])

    def follow(self, found, bytenr, generation):
        """Record a block and all blocks below it. The items of the root tree lead to other trees."""
        physical, block = found[bytenr, generation]
        if physical in self.blocks:
            return
        self.blocks[physical] = block
        for where, fields in items(block):
            if field(block, "level"):
                self.follow(found, *fields[3:])
            elif fields[1] == ROOT_ITEM:
                data = HEADER_SIZE + fields[3]
                self.follow(found, struct.unpack_from("<Q", block, data + 176)[0], struct.unpack_from("<Q", block, data + 160)[0])

    def digest(self):
        """Return a digest of the trees of subvolumes: the level and the keys of each block."""
        shape = [(field(block, "owner"), field(block, "level"), [fields[:3] for _, fields in items(block)])
                 for block in self.blocks.values() if is_subvolume(field(block, "owner"))]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]

    def owned_by(self, is_owner):
        """Return the physical addresses of blocks, in the order of the trees."""
        return [physical for physical, block in self.blocks.items() if is_owner(field(block, "owner"))]

    def find(self, is_wanted):
        """Return the physical address and a mutable copy of the first block for which `is_wanted` is true."""
        return next((physical, bytearray(block)) for physical, block in self.blocks.items() if is_wanted(block))

    def copies(self, block):
        """Return the physical addresses of all copies of a block."""
        size = os.lseek(self.handle, 0, os.SEEK_END)
        return [where for where in range(0, size, NODESIZE) if os.pread(self.handle, NODESIZE, where) == block]

    def root(self, subvolume):
        """Return the address and a copy, as find(), of the root of a subvolume whose tree has two levels."""
        return self.find(lambda block: field(block, "owner") == subvolume and field(block, "level") == 1)

    def child(self, pointer):
        """Return the address and a copy, as find(), of the block to which a pointer of items() leads."""
        return self.find(lambda block: (field(block, "bytenr"), field(block, "generation")) == pointer[3:])

    def write(self, physical, block):
        os.pwrite(self.handle, block, physical)
        os.fsync(self.handle)


def is_subvolume(owner):
    return 256 <= owner < 1 << 32


def near(chance, value, bits):
    """Return a changed value: one bit flipped, a small difference, no bits, all bits, a single bit, or random bits."""
    limit = (1 << bits) - 1
    other = chance.choice((value ^ 1 << chance.randrange(bits), value + chance.choice((-1, 1)), value + chance.choice((-4096, 4096)),
                           0, limit, 1 << chance.randrange(bits), chance.randrange(limit)))
    return other & limit


def change(chance, block, offset, form):
    """Change one number of a block."""
    value = struct.unpack_from("<" + form, block, offset)[0]
    struct.pack_into("<" + form, block, offset, near(chance, value, 8 * struct.calcsize("<" + form)))


def is_impossible(block):
    """Return whether a leaf has an extent with an impossible length on disk: 0, or more than 128 KiB if it is compressed."""
    for _, (_, kind, _, start, size) in items(block):
        data = HEADER_SIZE + start
        if kind != EXTENT_DATA or size < DISK_NUM_BYTES + 8 or data + size > NODESIZE or block[data + TYPE] == INLINE:
            continue
        bytenr, length = struct.unpack_from("<QQ", block, data + DISK_BYTENR)
        if bytenr and (not length or block[data + COMPRESSION] and length > 128 * K):
            return True
    return False


def has_wrong_generation(block, before):
    """Return whether a pointer of a node has the same block address as before, but another generation."""
    return field(block, "level") > 0 < field(before, "level") and any(
        fields[3] == known[3] and fields[4] != known[4] for (_, fields), (_, known) in zip(items(block), items(before)))


def broken(image, number):
    """Return a broken block: description of the damage, physical address, and content."""
    chance = random.Random(f"broken {number}")
    of_files = image.owned_by(is_subvolume)
    of_extents = image.owned_by(lambda owner: owner == EXTENT_TREE)
    others = image.owned_by(lambda owner: owner not in (EXTENT_TREE, CHUNK_TREE) and not is_subvolume(owner))
    nodes = [physical for physical in of_files + of_extents if field(image.blocks[physical], "level")]
    physical = chance.choice(chance.choices((of_files, of_extents, nodes, others, image.owned_by(lambda owner: owner == CHUNK_TREE)),
                                            (50, 25, 20, 4, 1))[0])
    block = bytearray(image.blocks[physical])
    entries = items(block)
    what = chance.choices(("header", "bytes", "swap", "key", "item"), (15, 10, 5, 20, 50))[0]
    where, fields = chance.choice(entries) if entries else (HEADER_SIZE, None)
    if what == "header":
        name = chance.choice(list(HEADER))
        what = f"{name} in the header"
        change(chance, block, *HEADER[name])
    elif what == "bytes" or not entries:
        for _ in range(chance.randrange(1, 9)):
            block[chance.randrange(32, NODESIZE)] ^= 1 << chance.randrange(8)
    elif what == "swap":
        size = KEY_PTR.size if field(block, "level") else ITEM.size
        other, _ = chance.choice(entries)
        block[where:where + size], block[other:other + size] = block[other:other + size], block[where:where + size]
    elif what == "key":
        change(chance, block, *chance.choice(((where, "Q"), (where + 8, "B"), (where + 9, "Q"))))
    elif field(block, "level"):
        if chance.random() < 0.5:
            change(chance, block, where + BLOCKPTR + 8 * chance.randrange(2), "Q")
        else:
            # Let it point to another intact block, possibly to this one or to one above.
            target = image.blocks[chance.choice(list(image.blocks))]
            struct.pack_into("<QQ", block, where + BLOCKPTR, field(target, "bytenr"), field(target, "generation"))
    else:
        wanted = [entry for entry in entries if entry[1][1] in (EXTENT_DATA, EXTENT_ITEM, METADATA_ITEM)]
        where, fields = chance.choice(wanted or entries)
        _, _, _, start, size = fields
        if chance.random() < 0.2 or not size:
            change(chance, block, where + ITEM_OFFSET + 4 * chance.randrange(2), "L")
        elif size < 8 or chance.random() < 0.4:
            change(chance, block, HEADER_SIZE + start + chance.randrange(size), "B")
        else:
            change(chance, block, HEADER_SIZE + start + chance.choice((0, 8, 16, 21, 29, 37, 45, 24, 25, 33)) % (size - 7), "Q")
    if not field(block, "level") and is_impossible(block):
        what = "extent of impossible length"
    if not field(block, "level") and not field(block, "nritems"):
        what = "leaf without items"
    if has_wrong_generation(block, image.blocks[physical]):
        what = "generation of a pointer"
    return what, physical, with_checksum(bytes(block))


def attempt(job, *arguments):
    """Run a job; return its result or the name of its error."""
    try:
        return job(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def mount(device):
    if guest.libc.mount(device.encode(), MNT.encode(), b"btrfs", MS_RDONLY, None):
        raise OSError(ctypes.get_errno(), "mount")


def fiemap(path):
    return hashlib.sha256(json.dumps(guest.fiemap(f"{MNT}/{path}")).encode()).hexdigest()


def outcome(device, parent):
    """Mount the filesystem and run all jobs; return their results, or only the error of the mount."""
    said = attempt(mount, device)
    if said:
        return [said]
    old, new = f"{MNT}/old", f"{MNT}/new"
    results = [attempt(guest.send_directly, old), attempt(guest.send_directly, new, parent), attempt(guest.send_directly, new, 0, True),
               *(attempt(fiemap, f"{snap}/{name}") for snap in ("old", "files") for name in ("pieces", "copy", "packed"))]
    if guest.libc.umount2(MNT.encode(), 0):
        raise OSError(ctypes.get_errno(), "umount")
    return results


def run(device, first, last, output):
    """For each image, break a block, run the jobs and restore the block. Write the results and the kernel's warnings to `output`."""
    Path(MNT).mkdir(exist_ok=True)
    image = Image(device)
    top = guest.mount(device, MNT, "ro")
    parent = guest.subvolume_id(top / "old")
    guest.umount(MNT)
    kmsg = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(kmsg, 0, os.SEEK_END)
    with open(output, "a", buffering=1) as file:
        whole = outcome(device, parent)
        for number in range(int(first), int(last)):
            what, physical, block = broken(image, number)
            image.write(physical, block)
            results = outcome(device, parent)
            image.write(physical, image.blocks[physical])
            results = ["as before" if result == known else result for result, known in zip(results, whole)]
            splats = set()
            while True:
                try:
                    splats.update(SPLAT.findall(os.read(kmsg, 8 * K).decode(errors="replace")))
                except BlockingIOError:
                    break
                except BrokenPipeError:
                    continue
            file.write(json.dumps([number, what, physical, results, sorted(splats)]) + "\n")


def fifo(device):
    """Send the changes of a file between two snapshots. Its inode item, in a leaf that the snapshots share, has the type of a FIFO."""
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    with open(top / "files/file", "wb") as file:
        for number in range(200):
            os.pwrite(file.fileno(), bytes([number]) * 8 * K, number * 12 * K)
            os.fsync(file.fileno())
        guest.snapshot(top / "files", top / "old")
        os.pwrite(file.fileno(), bytes(8 * K), 150 * 12 * K)
    guest.snapshot(top / "files", top / "new")
    owners = [guest.subvolume_id(top / name) for name in ("old", "new")]
    guest.umount(MNT)
    image = Image(device)
    # The first pointer in the root of each snapshot leads to the leaf with the inode item.
    (_, old), (where, new) = map(image.root, owners)
    start, end = HEADER_SIZE + BLOCKPTR, HEADER_SIZE + KEY_PTR.size
    new[start:end] = old[start:end]
    image.write(where, with_checksum(bytes(new)))
    where, leaf = image.child(items(old)[0][1])
    data = next(HEADER_SIZE + start for _, (_, kind, _, start, size) in items(leaf)[::-1] if kind == INODE_ITEM)
    struct.pack_into("<L", leaf, data + MODE, stat.S_IFIFO | 0o644)
    image.write(where, with_checksum(bytes(leaf)))
    guest.mount(device, MNT, "ro")
    # The directory item still has the type of a file.
    print(f"looked up: {attempt(os.stat, top / 'new/file')}")
    guest.send_directly(top / "new", owners[0])
    print("sent:", *(line.split()[0] for line in guest.run("btrfs", "receive", "--dump", "-f", "/tmp/stream").splitlines()))
    guest.umount(MNT)


def make_impostor(device):
    """Make and mount a subvolume `new` in which a leaf has the items of a regular file with the inode number of a directory.

    The directory is in a later leaf. Return the mount point and the number of files before the one in the wrong place.
    """
    top = mount_blank(device)
    guest.run("btrfs", "subvolume", "create", top / "files")
    for number in range(200):
        (top / f"files/file{number}").write_bytes(bytes([number]) * 8 * K)
    # The size of a directory is the sum of the lengths of its names, twice.
    (top / "files/dir" / ("n" * 200)).mkdir(parents=True)
    first, directory = (os.stat(top / "files" / name).st_ino for name in ("file0", "dir"))
    guest.snapshot(top / "files", top / "new")
    owner = guest.subvolume_id(top / "new")
    guest.umount(MNT)
    image = Image(device)
    leaves = [image.child(pointer) for _, pointer in items(image.root(owner)[1])]
    # The leaf has the 40th file. Change the inode number of its last file that has its data there, and of what follows.
    where, leaf = next((where, leaf) for where, leaf in leaves if (first + 40, EXTENT_DATA) in [fields[:2] for _, fields in items(leaf)])
    last = max(inode for _, (inode, kind, *_) in items(leaf) if kind == EXTENT_DATA)
    for start, (inode, *_) in items(leaf):
        if inode >= last:
            struct.pack_into("<Q", leaf, start, directory + inode - last)
    image.write(where, with_checksum(bytes(leaf)))
    guest.mount(device, MNT, "ro")
    return top, last - first


def impostor(device):
    """Stall a send before the file of make_impostor(). A send that gets there panics, with upstream's kernel, too."""
    top, before = make_impostor(device)
    with subprocess.Popen(["btrfs", "-q", "send", top / "new"], stdout=subprocess.PIPE) as process:
        # Read less than a half of the stream: with a full pipe, a slow send may stall before it has planned enough.
        for _ in range(before // 2):
            if (planned := guest.counters(device)["data_planned_kb"]) > before * 8:
                break
            process.stdout.read(8 * K)
            time.sleep(0.1)
        # Let the send read what it has planned.
        time.sleep(0.5)
        print(f"{planned} KiB planned, {before * 8} KiB before the one in the wrong place")
        process.kill()
    guest.umount(MNT)


def generation(device):
    """Send a snapshot with a wrong generation in the pointer to the first leaf that has extents. The leaf is in memory."""
    top = mount_blank(device, options="max_inline=2048")
    guest.run("btrfs", "subvolume", "create", top / "files")
    for number in range(160):
        (top / f"files/file{number}").write_bytes(bytes([number]) * (1500 if number < 60 else 8 * K))
    owners = []
    for name in ("old", "new"):
        guest.snapshot(top / "files", top / name)
        owners.append(guest.subvolume_id(top / name))
    guest.umount(MNT)
    image = Image(device)
    where, root = image.root(owners[1])
    for start, pointer in items(root):
        leaf = image.child(pointer)[1]
        if any(kind == EXTENT_DATA and leaf[HEADER_SIZE + data + TYPE] == REGULAR for _, (_, kind, _, data, _) in items(leaf)):
            struct.pack_into("<Q", root, start + GENERATION, pointer[4] - 1)
            break
    image.write(where, with_checksum(bytes(root)))
    guest.mount(device, MNT, "ro")
    # The readahead of leaves would notice the wrong generation.
    for file in Path("/sys/fs/btrfs").glob("*-*/readahead/tree_enable"):
        file.write_text("0")
    for name in ("old", "new"):
        before = guest.counters(device).get("data_planned_kb", 0)
        outcome = attempt(guest.send_directly, top / name)
        print(f"{name}: {'sent' if len(outcome) > 10 else outcome}, {guest.counters(device).get('data_planned_kb', 0) - before} KiB planned")
    guest.umount(MNT)


def data(device):
    """Send files of which one or two have damaged data on disk, and print the number of errors in the device statistics."""
    top = mount_blank(device)
    damaged = {"plain": [20], "compressed": [20], "twice": [20, 30]}
    for name in damaged:
        guest.run("btrfs", "subvolume", "create", top / name)
        if name != "plain":
            guest.run("btrfs", "property", "set", top / name, "compression", "zstd")
        for number in range(40):
            (top / name / f"file{number}").write_bytes(random.Random(number).randbytes(K) * 16)
    os.sync()
    places = [guest.fiemap(top / name / f"file{number}")[0][1] for name, numbers in damaged.items() for number in numbers]
    for name in damaged:
        guest.run("btrfs", "property", "set", top / name, "ro", "true")
    content, (where, *_) = (top / "plain/file20").read_bytes(), places
    guest.umount(MNT)
    handle = os.open(device, os.O_RDWR)
    # Check that logical and physical addresses are the same in the first data chunk: the writes below need that.
    if os.pread(handle, len(content), where) != content:
        raise RuntimeError("the first data chunk is not at its logical address")
    for where in places:
        os.pwrite(handle, bytes(K), where)
    os.close(handle)
    for name, encoded in (("plain", False), ("compressed", False), ("compressed", True), ("twice", True)):
        guest.mount(device, MNT)
        outcome = attempt(guest.send_directly, top / name, 0, encoded)
        counted = re.search(r"corruption_errs +([0-9]+)", guest.run("btrfs", "device", "stats", "-z", MNT))[1]
        print(f"{name}{', as it is' if encoded else ''}: {outcome}, {counted} counted")
        guest.umount(MNT)


if __name__ == "__main__":
    {"make": make, "run": run, "fifo": fifo, "impostor": impostor, "generation": generation, "data": data}[sys.argv[1]](*sys.argv[2:])
