# SPDX-License-Identifier: GPL-2.0
"""Print how many bytes `btrfs send` will send, without reading the data of any file.

A send without data gives the lengths of the data. The result is exact for a full send. With --compressed-data, it is an upper bound. In
an incremental send of protocol 1, it may differ by some commands or clones for files with new holes, which the kernel handles in another
way in a send without data.
"""

import os
import struct
import subprocess

from system import Error

# The head of a stream; of a command: length, number, checksum; of an attribute: number, length.
MAGIC = b"btrfs-stream\0"
STREAM, COMMAND, ATTRIBUTE = struct.Struct("<13sI"), struct.Struct("<IHI"), struct.Struct("<HH")
BTRFS_SEND_C_UPDATE_EXTENT = 22
BTRFS_SEND_A_SIZE, BTRFS_SEND_A_PATH = 4, 15
# Most data of a command, by protocol: max_send_read_size() of the kernel. A buffer of protocol 2 has whole pages.
PAGE = os.sysconf("SC_PAGE_SIZE")
LARGEST_WRITE = {1: 48 << 10, 2: -(-(144 << 10) // PAGE) * PAGE - (16 << 10)}
# Size of a u64 and of a u32 with the head of their attribute.
U64, U32 = ATTRIBUTE.size + 8, ATTRIBUTE.size + 4


def attributes(payload):
    """Return the attributes of a command: {number: content}."""
    found, position = {}, 0
    while position < len(payload):
        number, length = ATTRIBUTE.unpack_from(payload, position)
        position += ATTRIBUTE.size
        found[number] = payload[position:position + length]
        position += length
    return found


def size_of_data(path, length, proto, is_compressed):
    """Return the size of the commands that send `length` bytes of a file whose path has `path` bytes.

    With `is_compressed`, it is an upper bound: the kernel sends an extent compressed only if that is not larger.
    """
    head = COMMAND.size + ATTRIBUTE.size + path + U64 + (ATTRIBUTE.size if proto == 1 else 2)
    size = -(-length // LARGEST_WRITE[proto]) * head + length
    # The attributes of an encoded write: three lengths, compression and encryption.
    return max(size, head + 3 * U64 + 2 * U32 + length) if is_compressed else size


def size_of(stream, is_compressed=False):
    """Return the size of a send stream whose stream without data is the file `stream`. Raise Error if that is damaged."""
    magic, proto = STREAM.unpack(stream.read(STREAM.size).ljust(STREAM.size))
    if magic != MAGIC or proto not in LARGEST_WRITE:
        raise Error("btrfs send did not write a stream of protocol 1 or 2")
    total = STREAM.size
    while head := stream.read(COMMAND.size):
        length, command, _ = COMMAND.unpack(head.ljust(COMMAND.size))
        payload = stream.read(length)
        if len(head) < COMMAND.size or len(payload) < length:
            raise Error("the stream of btrfs send ends early")
        if command == BTRFS_SEND_C_UPDATE_EXTENT:
            found = attributes(payload)
            total += size_of_data(len(found[BTRFS_SEND_A_PATH]), int.from_bytes(found[BTRFS_SEND_A_SIZE], "little"), proto, is_compressed)
        else:
            total += COMMAND.size + length
    return total


def options(arguments):
    """Return the arguments of btrfs send."""
    return [*(["-p", arguments.parent] if arguments.parent else []), *(part for source in arguments.clone for part in ("-c", source)),
            *(["--proto", str(arguments.proto or 2)] if arguments.proto or arguments.compressed_data else []),
            *(["--compressed-data"] if arguments.compressed_data else []), "--", arguments.snapshot]


def expected(arguments):
    """Return the size of the send that the arguments describe. Raise Error if btrfs send fails."""
    with subprocess.Popen(["btrfs", "-q", "send", "--no-data", *options(arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=False) as process:
        try:
            total = size_of(process.stdout, arguments.compressed_data)
        except Error:
            process.stdout.close()
            total = None
        complaint = process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.returncode or total is None:
        raise Error(complaint[-1] if complaint else "btrfs send failed")
    return total


def in_units(size):
    """Return a number of bytes as text."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, "TiB"
    return f"{size:,.1f} {unit}"


def add_arguments(parser):
    parser.add_argument("snapshot", metavar="SUBVOLUME", help="a read-only snapshot")
    parser.add_argument("-p", "--parent", metavar="P", help="send only the changes since this snapshot")
    parser.add_argument("-c", "--clone", action="append", default=[], metavar="C", help="a snapshot that the receiver has; may be repeated")
    parser.add_argument("--proto", type=int, choices=sorted(LARGEST_WRITE), help="protocol of the stream")
    parser.add_argument("--compressed-data", action="store_true", help="send compressed data as it is on the disk; the result is an upper bound")


def run(arguments):
    total = expected(arguments)
    print(f"{total} ({'at most ' if arguments.compressed_data else ''}{in_units(total)})")
    return 0
