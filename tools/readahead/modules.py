# SPDX-License-Identifier: GPL-2.0
"""The btrfs module of a kernel: which one is loaded, which one is on the disk, and which one is in the initramfs.

Two files are the same module if they have the same build ID.
"""

import contextlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

BOOT = Path("/boot")
LOADED = Path("/sys/module/btrfs")
MODULES = Path("/usr/lib/modules")
# The ELF note with the build ID, and the version in the information of the module.
BUILD_ID = re.compile(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", re.S)
VERSION = re.compile(rb"\0rust=([^\0]+)\0")
NAME = re.compile(r"(?:^|/)btrfs\.ko(?:\.xz|\.zst|\.gz)?$")


def output_of(*command):
    """Return the output of a command as bytes, or None if it is missing or fails."""
    with contextlib.suppress(OSError):
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if not done.returncode:
            return done.stdout
    return None


def module(name, content):
    """Describe the module in the bytes `content` of the file `name`: its build ID and version. The version is None for btrfs without Rust."""
    if name.endswith(".xz"):
        content = lzma.decompress(content)
    elif name.endswith((".zst", ".gz")):
        content = subprocess.run(["zstd" if name.endswith(".zst") else "gzip", "-dcq"], input=content, stdout=subprocess.PIPE, check=True).stdout
    build_id, version = BUILD_ID.search(content), VERSION.search(content)
    return {"path": name, "build_id": build_id and build_id[1].hex(), "version": version and version[1].decode()}


def from_file(path):
    """Describe the module in a file."""
    return module(str(path), Path(path).read_bytes())


def on_disk(release):
    """Describe the module that modprobe loads for a kernel release, or return None if there is none."""
    name = (output_of("modinfo", "-k", release, "-n", "btrfs") or b"").decode().strip()
    return from_file(name) if os.path.isabs(name) else None


def in_initramfs(release):
    """Describe the module in the initramfs of a kernel release.

    Return None if there is no initramfs, if it has no btrfs, or if no program of initramfs-tools or dracut can read it.
    """
    image = BOOT / f"initrd.img-{release}"
    if not image.exists():
        return None
    list_program = next(filter(shutil.which, ("lsinitramfs", "lsinitrd")), None)
    listed = output_of(list_program, image) if list_program else None
    # lsinitrd prints the columns of ls -l.
    names = [line.split()[-1] for line in (listed or b"").decode(errors="replace").splitlines() if NAME.search(line)]
    if not names:
        return None
    # A module in updates/ is loaded in place of that in kernel/.
    name = sorted(names, key=lambda name: "/updates/" not in name)[0]
    if list_program == "lsinitrd":
        content = output_of("lsinitrd", "-f", name, image)
    else:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
            output_of("unmkinitramfs", image, work)
            # With microcode, the files are below main/.
            found = next(Path(work).glob(f"**/{name}"), None)
            content = found and found.read_bytes()
    return module(name, content) if content else None


def loaded(release, *files):
    """Describe the btrfs of the running kernel, which is one of `files` or the kernel's own, or return None if btrfs is not loaded.

    The path is None if it is none of these files. The build ID is None, too, if btrfs is built into the kernel.
    """
    if not LOADED.exists():
        return None
    unknown = {"path": None, "build_id": None, "version": None}
    with contextlib.suppress(OSError):
        unknown["build_id"] = (LOADED / "notes/.note.gnu.build-id").read_bytes()[-20:].hex()
    files = (*files, *map(from_file, (MODULES / release).glob("kernel/fs/btrfs/btrfs.ko*")))
    return next((one for one in files if one and one["build_id"] == unknown["build_id"]), unknown)


def describe(release):
    """Return the modules of a kernel release: {"release", "loaded", "disk", "initramfs"}. "loaded" is None if that kernel is not running."""
    disk, initramfs = on_disk(release), in_initramfs(release)
    current = loaded(release, disk, initramfs) if release == os.uname().release else None
    return {"release": release, "loaded": current, "disk": disk, "initramfs": initramfs}


def name_of(one):
    """Return how to call a module that describe() returns."""
    if not one:
        return "none found"
    if not one["path"]:
        return "none of the files of this kernel" if one["build_id"] else "built into the kernel"
    return f"rust={one['version']}" if one["version"] else "without Rust"


def is_stale(found):
    """Return whether the next boot loads another module than that on the disk. `found` is from describe()."""
    disk, initramfs = found["disk"], found["initramfs"]
    return bool(disk and initramfs and disk["build_id"] != initramfs["build_id"])


def lines(found):
    """Yield the lines that describe the modules of describe()."""
    release, current, disk = found["release"], found["loaded"], found["disk"]
    yield f"btrfs module of Linux {release}"
    for name in ("loaded", "disk", "initramfs"):
        if name != "loaded" or current:
            yield f"  {name + ':':<11}{name_of(found[name])}"
    if is_stale(found):
        program = f"update-initramfs -u -k {release}" if shutil.which("update-initramfs") else f"dracut --force {BOOT}/initrd.img-{release} {release}"
        yield f"  The next boot loads the module of the initramfs: run `{program}`."
    elif current and current["build_id"] and disk and current["build_id"] != disk["build_id"]:
        yield "  The next boot loads the module on the disk."
