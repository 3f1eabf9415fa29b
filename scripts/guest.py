# SPDX-License-Identifier: GPL-2.0
"""Helpers of the scripts that run inside a guest: btrfs filesystems, sends and fiemaps. They avoid forks, which take 20 ms in a guest."""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import stat
import struct
import subprocess
import time
from pathlib import Path

BTRFS_IOC_SEND = 0x40489426
BTRFS_IOC_INO_LOOKUP = 0xD0009412
BTRFS_SEND_FLAG_NO_FILE_DATA = 1
BTRFS_SEND_FLAG_VERSION = 8
BTRFS_SEND_FLAG_COMPRESSED = 16
FS_IOC_FIEMAP = 0xC020660B
FICLONERANGE = 0x4020940D
FS_IOC_ENABLE_VERITY = 0x40806685
FIEMAP_FLAG_SYNC = 1
FIEMAP_EXTENT_LAST = 1
FIEMAP_EXTENT_SHARED = 0x2000
FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2

# struct btrfs_ioctl_send_args: stream, number and address of clone sources, parent, flags, version.
SEND_ARGS = struct.Struct("=qQQQQL28x")
# struct btrfs_ioctl_ino_lookup_args: tree, inode.
LOOKUP_ARGS = struct.Struct("=QQ4080x")
# struct fiemap: start, length, flags, mapped extents, room for extents.
FIEMAP = struct.Struct("=QQLLLL")
# struct fiemap_extent: logical, physical, length, flags.
EXTENT = struct.Struct("=QQQ16xL12x")
# struct fsverity_enable_arg: version, hash algorithm, block size.
VERITY_ARGS = struct.Struct("=LLL116x")

# Names of the counters of waits in /proc/PID/sched, and ours.
WAITS = {"iowait_count": "waits", "iowait_sum": "wait_ms"}
# The waits of the programs of run_in().
waits_of_programs = dict.fromkeys(WAITS.values(), 0)

libc = ctypes.CDLL(None, use_errno=True)


def run(*command):
    """Run a program and return its output. Raise RuntimeError with the output if it fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stdout.strip()}")
    return result.stdout


def waits(process="self"):
    """Return the waits of a process for a disk, and their time in milliseconds, or nothing if the kernel does not count them."""
    fields = (map(str.strip, line.partition(":")[::2]) for line in Path(f"/proc/{process}/sched").read_text().splitlines())
    return {WAITS[name]: round(float(value)) for name, value in fields if name in WAITS}


def run_in(directory, *command):
    """Run a program in a directory and return the digest of its output. counters() then includes its waits, but not those of its children."""
    with subprocess.Popen(["env", "-C", directory, *command], stdout=subprocess.PIPE) as program:
        digest = hashlib.file_digest(program.stdout, "sha256").hexdigest()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        for name, number in waits(program.pid).items():
            waits_of_programs[name] += number
    if program.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed")
    return digest


def mkfs(device, *options):
    run("mkfs.btrfs", "-q", "-f", *options, device)


def mount(device, where, options="defaults"):
    """Mount a filesystem with busybox: the mount of util-linux does not work on UML."""
    Path(where).mkdir(exist_ok=True)
    run("busybox", "mount", "-t", "btrfs", "-o", options, device, where)
    return Path(where)


def umount(where):
    run("busybox", "umount", where)


def snapshot(source, target, readonly=True):
    run("btrfs", "subvolume", "snapshot", *(["-r"] if readonly else []), source, target)


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def walk(top, by_inode=False, reads=False):
    """List and stat all below `top`, by depth, in the order of each listing or of the inode numbers. Return (path, stat fields, ...).

    With `reads`, read each regular file right after its stat, as tar does, and return the SHA-256 of its data, too. What is deleted
    meanwhile is left out.
    """
    found, directories = [], [top]
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                entries = [(entry.name, entry.inode()) for entry in entries]
        except FileNotFoundError:
            continue
        for name, inode in sorted(entries, key=lambda entry: entry[1]) if by_inode else entries:
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            found.append((os.path.relpath(path, top), inode, status.st_ino, status.st_mode, status.st_nlink, status.st_uid, status.st_gid,
                          status.st_rdev, status.st_size, status.st_blocks, status.st_mtime_ns, status.st_ctime_ns))
            if reads and stat.S_ISREG(status.st_mode):
                try:
                    found[-1] += (hashlib.sha256(Path(path).read_bytes()).hexdigest(),)
                except FileNotFoundError:
                    found.pop()
            if stat.S_ISDIR(status.st_mode):
                directories.append(path)
    return found


def send(snap, parent=None, options=(), keep=None):
    """Send a snapshot. Return the SHA-256 of the stream, its size in bytes and the time in seconds.

    The stream stays in the file `keep`, if given, or is deleted.
    """
    stream = keep or "/tmp/stream"
    start = time.monotonic()
    run("btrfs", "-q", "send", *options, "-f", stream, *(["-p", parent] if parent else []), snap)
    seconds = time.monotonic() - start
    with open(stream, "rb") as file:
        digest, size = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
    if not keep:
        os.unlink(stream)
    return digest, size, seconds


def subvolume_id(path):
    """Return the number of the subvolume of a directory."""
    handle = os.open(path, os.O_RDONLY)
    arguments = bytearray(LOOKUP_ARGS.pack(0, 256))
    fcntl.ioctl(handle, BTRFS_IOC_INO_LOOKUP, arguments)
    os.close(handle)
    return LOOKUP_ARGS.unpack(arguments)[0]


def send_directly(snap, parent=0, encoded=False, no_data=False, around=contextlib.nullcontext()):
    """Send a snapshot from this process and return the SHA-256 of the stream.

    `parent` is the number of the parent subvolume, or 0 for a full send. `encoded` asks for compressed data by protocol 2,
    `no_data` for a stream without file data. The context manager `around` is entered for the ioctl.
    """
    sources = (ctypes.c_uint64 * 1)(parent)
    flags, version = (BTRFS_SEND_FLAG_VERSION | BTRFS_SEND_FLAG_COMPRESSED, 2) if encoded else (0, 0)
    flags |= BTRFS_SEND_FLAG_NO_FILE_DATA if no_data else 0
    directory = os.open(snap, os.O_RDONLY)
    try:
        with open("/tmp/stream", "wb+") as stream:
            arguments = SEND_ARGS.pack(stream.fileno(), int(parent > 0), ctypes.addressof(sources), parent, flags, version)
            with around:
                fcntl.ioctl(directory, BTRFS_IOC_SEND, arguments)
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    finally:
        os.close(directory)


def fiemap_batches(path, batch=512):
    """Map all extents of a file with FIEMAP calls of at most `batch` extents. Yield the number of extents and the buffer of each call."""
    start = 0
    buffer = bytearray(FIEMAP.size + batch * EXTENT.size)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        while True:
            FIEMAP.pack_into(buffer, 0, start, 2**64 - 1 - start, FIEMAP_FLAG_SYNC, 0, batch, 0)
            fcntl.ioctl(handle, FS_IOC_FIEMAP, buffer)
            count = FIEMAP.unpack_from(buffer)[3]
            yield count, buffer
            if not count:
                return
            last = EXTENT.unpack_from(buffer, FIEMAP.size + (count - 1) * EXTENT.size)
            if last[3] & FIEMAP_EXTENT_LAST:
                return
            start = last[0] + last[2]
    finally:
        os.close(handle)


def fiemap(path):
    """Return all extents of a file as (logical, physical, length, flags)."""
    return [EXTENT.unpack_from(buffer, FIEMAP.size + number * EXTENT.size)
            for count, buffer in fiemap_batches(path) for number in range(count)]


def fiemap_call(file, start, length, most):
    """Call FIEMAP once on an open file, for at most `most` extents, or 0 to count them. Return the number of extents and the extents."""
    buffer = bytearray(FIEMAP.size + most * EXTENT.size)
    FIEMAP.pack_into(buffer, 0, start, length, 0, 0, most, 0)
    fcntl.ioctl(file, FS_IOC_FIEMAP, buffer)
    count = FIEMAP.unpack_from(buffer)[3]
    return count, [EXTENT.unpack_from(buffer, FIEMAP.size + number * EXTENT.size) for number in range(min(count, most))]


def clone_range(source, source_offset, length, target, target_offset):
    """Reflink a range of an open file. Length 0 means up to the end of the file."""
    fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source.fileno(), source_offset, length, target_offset))


def enable_verity(path):
    """Enable fs-verity with SHA-256 of blocks of 4 KiB: the file becomes read-only, and its hashes become items of its inode."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, FS_IOC_ENABLE_VERITY, VERITY_ARGS.pack(1, 1, 4096))
    finally:
        os.close(handle)


def fallocate(file, mode, offset, length):
    """Call fallocate(2) with a mode, which os.posix_fallocate() does not take."""
    if libc.fallocate(file.fileno(), mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


def delayed(device, milliseconds, writes=None, part=0, parts=1):
    """Create a device-mapper target on `device` that delays each read by `milliseconds`; return its path.

    `writes` is the delay of writes in milliseconds. Without it the target is read-only. The target is the part number `part`, from 0 on,
    of `parts` parts of the device, which have the same size.
    """
    size, name = int(sysfs(device, "size")) // parts, f"delayed{part or ''}"
    readonly, write_delay = (["--readonly"], "") if writes is None else ([], f" {device} {part * size} {writes}")
    run("dmsetup", "create", name, "--noudevsync", *readonly, "--table",
        f"0 {size} delay {device} {part * size} {milliseconds}{write_delay}")
    run("dmsetup", "mknodes")
    return f"/dev/mapper/{name}"


def slow_down(device, milliseconds):
    """Change the delay of each read from the writable target of delayed()."""
    table = f"0 {int(sysfs(device, 'size'))} delay {device} 0 {milliseconds} {device} 0 0"
    for arguments in (("suspend", "--nolockfs", "delayed"), ("load", "delayed", "--table", table), ("resume", "delayed")):
        run("dmsetup", *arguments, "--noudevsync")


def sysfs(device, name):
    """Return the content of a sysfs attribute of a block device."""
    return Path(f"/sys/class/block/{Path(device).name}/{name}").read_text()


def set_rotational(device, rotational):
    """Set whether a block device reports slow seeks to a filesystem that is mounted later: 0 or 1."""
    Path(f"/sys/class/block/{Path(device).name}/queue/rotational").write_text(str(rotational))


def counters(device):
    """Return the counters that explain the time of a job.

    They are the requests and bytes read of a disk. If the kernel has them, they include the waits of this process and of the programs of
    run_in() for a disk, their time in milliseconds, the counters of btrfs_counters, and those of the only mounted btrfs in sysfs.
    """
    fields = sysfs(device, "stat").split()
    numbers = {"requests": int(fields[0]), "bytes_read": int(fields[2]) * 512}
    numbers |= {name: number + waits_of_programs[name] for name, number in waits().items()}
    for file in (Path("/sys/kernel/debug/btrfs_counters"), *Path("/sys/fs/btrfs").glob("*-*/readahead/stats")):
        if file.exists():
            numbers |= {name: int(number) for name, number in map(str.split, file.read_text().splitlines())}
    return numbers
