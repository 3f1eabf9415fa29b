#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Make small filesystems of many shapes in a guest, and count what sends, fiemaps and walks of them read: guest_shapes.py JOB SHAPE DEVICE..."""

import hashlib
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import guest
from guest_jobs import K, MNT, run

TEXT = b"".join(b"line %d of a text that can be compressed\n" % number for number in range(4000))


@dataclass(frozen=True)
class Shape:
    """A filesystem to make: the function that fills it, options of mkfs.btrfs and mount, and the number of its devices."""
    fill: callable
    mkfs: tuple = ()
    mount: str = "noatime"
    devices: int = 1


class Maker:
    """Files below the directory `root`, the same in each run."""

    def __init__(self, root):
        self.root, self.chance = root, random.Random(48)

    def path(self, name):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def data(self, size):
        """Return data that zstd makes about a third of its size."""
        start = self.chance.randrange(len(TEXT) - 1)
        return ((TEXT[start:] + TEXT * (size // len(TEXT) + 1))[:size // 2] + self.chance.randbytes(size))[:size]

    def write(self, name, size):
        self.path(name).write_bytes(self.data(size))

    def files(self):
        """Return all regular files, sorted."""
        return sorted(path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def pieces(self, name, count, size, step, order=True):
        """Write `count` pieces of `size` bytes, one at each `step`, in random order unless `order`."""
        numbers = list(range(count))
        if not order:
            self.chance.shuffle(numbers)
        handle = os.open(self.path(name), os.O_CREAT | os.O_WRONLY, 0o644)
        for done, number in enumerate(numbers):
            os.pwrite(handle, self.data(size), number * step)
            if done % 32 == 31:
                os.fsync(handle)
        os.close(handle)

    def rewrite(self, share=10, size=4 * K):
        """Overwrite a block in one of `share` files, and replace, delete and create some files."""
        files = self.files()
        for path in self.chance.sample(files, len(files) // share + 1):
            with open(path, "rb+") as file:
                os.pwrite(file.fileno(), self.data(size), self.chance.randrange(path.stat().st_size // size + 1) * size)
        for path in self.chance.sample(files, len(files) // (4 * share)):
            path.unlink()
        for number in range(len(files) // (4 * share)):
            self.write(f"new{self.chance.randrange(1 << 30)}-{number}", 8 * K)
        os.sync()


def young(maker, count=300, size=8 * K):
    for number in range(count):
        maker.write(f"d{number % 10}/file{number}", size)


def aged(maker):
    for number in range(300):
        maker.write(f"d{number % 10}/file{number}", maker.chance.choice((900, 3 * K, 12 * K, 40 * K)))
    for _ in range(4):
        os.sync()
        for path in maker.chance.sample(maker.files(), 60):
            path.unlink()
        for number in range(60):
            maker.write(f"d{number % 10}/file{maker.chance.randrange(1 << 30)}", maker.chance.choice((900, 6 * K, 20 * K)))
        maker.rewrite(5)


def fragmented(maker):
    maker.pieces("file", 600, 4 * K, 4 * K, order=False)


def fragmented_large(maker):
    maker.pieces("file", 128, 64 * K, 64 * K, order=False)


def compressed(maker):
    for number in range(24):
        maker.write(f"file{number}", 384 * K)


def sparse(maker):
    maker.pieces("file", 300, 4 * K, 12 * K)


def preallocated(maker):
    with open(maker.path("file"), "wb") as file:
        guest.fallocate(file, 0, 0, 4 << 20)
    maker.pieces("file", 250, 4 * K, 16 * K, order=False)


def log(maker):
    with open(maker.path("file"), "wb") as file, open(maker.path("other"), "wb") as other:
        for _ in range(100):
            for each in (file, other):
                each.write(maker.data(24 * K))
                each.flush()
                os.fdatasync(each.fileno())
    maker.path("other").unlink()


def deduplicated(maker):
    maker.write("pool", 2 << 20)
    with open(maker.path("pool"), "rb") as pool:
        for number in range(60):
            with open(maker.path(f"d{number % 4}/file{number}"), "wb") as file:
                for piece in range(8):
                    guest.clone_range(pool, maker.chance.randrange(64) * 32 * K, 32 * K, file, piece * 32 * K)


def snapshots(maker):
    young(maker, 400, 6 * K)
    for number in range(10):
        maker.rewrite(12)
        guest.snapshot(maker.root, maker.root.parent / f"old{number}")


def hard_links(maker):
    young(maker, 120)
    for number, path in enumerate(maker.files()):
        for copy in range(4):
            name = maker.path(f"links{(number + copy) % 7}/{copy}-{path.name}")
            os.link(path, name)


def xattrs(maker):
    for number in range(150):
        maker.write(f"file{number}", 5 * K)
        os.setxattr(maker.path(f"file{number}"), "user.large", maker.chance.randbytes(2500))


def mail(maker):
    """Messages that were moved from one folder to others, in another order."""
    for number in range(600):
        maker.write(f"new/message{number}", maker.chance.choice((1500, 5 * K)))
    messages = maker.files()
    maker.chance.shuffle(messages)
    for number, path in enumerate(messages):
        path.rename(maker.path(f"folder{number % 5}/{path.name}"))


def deep(maker):
    for number in range(12):
        maker.write("/".join(f"d{number}-{level}" for level in range(24)) + "/file", 12 * K)


def medium(maker):
    for number in range(16):
        maker.write(f"file{number}", maker.chance.randrange(200 * K, 900 * K))


def tiny(maker):
    for number in range(1500):
        maker.write(f"file{number}", 100)


def deleted(maker):
    young(maker, 900, 3 * K)
    for number, path in enumerate(maker.files()):
        if number % 9:
            path.unlink()


def received(maker):
    """What `btrfs receive` makes: new files in the order of a stream."""
    source = maker.root.parent / "source"
    guest.run("btrfs", "subvolume", "create", source)
    aged(Maker(source))
    guest.snapshot(source, maker.root.parent / "sent")
    guest.run("btrfs", "-q", "send", "-f", "/tmp/stream", maker.root.parent / "sent")
    (maker.root.parent / "received").mkdir()
    guest.run("btrfs", "-q", "receive", "-f", "/tmp/stream", maker.root.parent / "received")
    os.unlink("/tmp/stream")
    guest.run("btrfs", "subvolume", "delete", maker.root)
    guest.snapshot(maker.root.parent / "received/sent", maker.root, readonly=False)


COMPRESS = "noatime,compress-force=zstd"
SHAPES = {
    "young": Shape(young), "aged": Shape(aged), "tiny": Shape(tiny), "medium": Shape(medium), "deep": Shape(deep), "deleted": Shape(deleted),
    "fragmented": Shape(fragmented), "fragmented-64k": Shape(fragmented_large), "sparse": Shape(sparse), "preallocated": Shape(preallocated),
    "log": Shape(log), "compressed": Shape(compressed, mount=COMPRESS), "compressed-aged": Shape(aged, mount=COMPRESS),
    "compressed-fragmented": Shape(fragmented_large, mount=COMPRESS), "nocow": Shape(fragmented, mount="noatime,nodatacow"),
    "deduplicated": Shape(deduplicated), "snapshots": Shape(snapshots), "snapshots-compressed": Shape(snapshots, mount=COMPRESS),
    "hard-links": Shape(hard_links), "xattrs": Shape(xattrs), "mail": Shape(mail), "received": Shape(received),
    "node-4k": Shape(aged, ("-n", "4096")), "node-64k": Shape(aged, ("-n", "65536")), "dup": Shape(aged, ("-d", "dup")),
    "raid1": Shape(aged, ("-d", "raid1", "-m", "raid1"), devices=2),
}


def mount(devices, options):
    """Mount a filesystem of several devices."""
    return guest.mount(devices[0], MNT, ",".join((options, *(f"device={device}" for device in devices[1:]))))


def make(shape, device):
    """Format a device and make a filesystem of a shape, with two snapshots."""
    shape = SHAPES[shape]
    devices = [guest.delayed(device, 0, 0, part, shape.devices) for part in range(shape.devices)]
    guest.mkfs(devices[0], *shape.mkfs, *devices[1:])
    top = mount(devices, f"{shape.mount},commit=1000")
    guest.run("btrfs", "subvolume", "create", top / "files")
    maker = Maker(top / "files")
    shape.fill(maker)
    guest.snapshot(top / "files", top / "before")
    maker.rewrite()
    guest.snapshot(top / "files", top / "after")
    guest.umount(MNT)


def digest_of(found):
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def map_files(top, batch):
    """Return a digest of the extents of all files."""
    return digest_of([guest.EXTENT.unpack_from(buffer, guest.FIEMAP.size + number * guest.EXTENT.size)
                      for path in Maker(top).files() for count, buffer in guest.fiemap_batches(path, batch) for number in range(count)])


JOBS = {
    "send": lambda top: guest.send_directly(top / "after"),
    "send -p": lambda top: guest.send_directly(top / "after", guest.subvolume_id(top / "before")),
    "send --compressed-data": lambda top: guest.send_directly(top / "after", encoded=True),
    "send --no-data": lambda top: guest.send_directly(top / "after", no_data=True),
    "fiemap 32": lambda top: map_files(top / "after", 32),
    "fiemap 292": lambda top: map_files(top / "after", 292),
    "walk": lambda top: digest_of(guest.walk(top / "after")),
    "read": lambda top: digest_of(guest.walk(top / "after", reads=True)),
}


def count(shape, device, output):
    """Run all jobs, each with nothing cached and 10 ms a read. Write digests, waits and reads to the file `output`."""
    Path("/proc/sys/kernel/sched_schedstats").write_text("1")
    shape, found = SHAPES[shape], {}
    slow = [guest.delayed(device, 10, None, part, shape.devices) for part in range(shape.devices)]
    for name, job in JOBS.items():
        top = mount(slow, "ro,noatime")
        before = guest.counters(device)
        digest = job(top)
        after = guest.counters(device)
        guest.umount(MNT)
        found[name] = {"digest": digest} | {key: after[key] - before[key] for key in ("waits", "wait_ms", "requests", "bytes_read")}
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    run(make, count)
