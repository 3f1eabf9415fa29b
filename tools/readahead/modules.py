# SPDX-License-Identifier: GPL-2.0
"""The btrfs module of a kernel: which one is loaded, which one is on the disk, and which one is in the initramfs.

Two files are the same module if they have the same build ID, and both or none has a signature.
"""

import contextlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from system import Error

BOOT = Path("/boot")
LOADED = Path("/sys/module/btrfs")
MODULES = Path("/usr/lib/modules")
# The ELF note with the build ID, the version in the information of the module, and the end of a signed module.
BUILD_ID = re.compile(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", re.S)
VERSION = re.compile(rb"\0rust=([^\0]+)\0")
SIGNED = b"~Module signature appended~\n"
NAME = re.compile(r"(?:^|/)btrfs\.ko(?:\.xz|\.zst|\.gz)?$")


def find(program):
    """Return the path of a program, or None. The path of an ordinary user lacks the directory of modinfo."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))


def output_of(*command, **options):
    """Return the output of a program as bytes. Raise Error if it is missing or fails."""
    try:
        done = subprocess.run([find(command[0]) or command[0], *map(str, command[1:])], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **({"stdin": subprocess.DEVNULL} | options))
    except OSError as error:
        raise Error(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        raise Error(f"{command[0]}: {complaint[-1] if complaint else f'status {done.returncode}'}")
    return done.stdout


def module(name, content):
    """Describe the module in the bytes `content` of the file `name`. The version is None for btrfs without Rust. Raise Error if it is damaged."""
    if name.endswith(".xz"):
        try:
            content = lzma.decompress(content)
        except lzma.LZMAError as error:
            raise Error(f"{name}: {error}") from None
    elif name.endswith((".zst", ".gz")):
        content = output_of("zstd" if name.endswith(".zst") else "gzip", "-dcq", stdin=None, input=content)
    build_id, version = BUILD_ID.search(content), VERSION.search(content)
    if not build_id:
        raise Error(f"{name} is no module with a build ID")
    return {"path": name, "build_id": build_id[1].hex(), "version": version and version[1].decode(), "is_signed": content.endswith(SIGNED)}


def from_file(path):
    """Describe the module in a file."""
    return module(str(path), Path(path).read_bytes())


def on_disk(release):
    """Describe the module that modprobe loads for a kernel release."""
    if not (MODULES / release).is_dir():
        raise Error(f"there is no kernel {release}")
    name = output_of("modinfo", "-k", release, "-n", "btrfs").decode().strip()
    if not os.path.isabs(name):
        raise Error("built into the kernel")
    return from_file(name)


def in_initramfs(release):
    """Describe the module in the initramfs of a kernel release. Raise Error if this cannot be told; return None if there is none."""
    image = BOOT / f"initrd.img-{release}"
    if not image.exists():
        return None
    if not os.access(image, os.R_OK):
        raise Error(f"{image} cannot be read")
    lister = next(filter(find, ("lsinitramfs", "lsinitrd")), None)
    if not lister:
        raise Error(f"no program can read {image}")
    # lsinitrd prints the columns of ls -l.
    names = [line.split()[-1] for line in output_of(lister, image).decode(errors="replace").splitlines() if NAME.search(line)]
    if not names:
        return None
    # A module in updates/ is loaded in place of that in kernel/.
    name = min(names, key=lambda name: "/updates/" not in name)
    if lister == "lsinitrd":
        return module(name, output_of("lsinitrd", "-f", name, image))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        output_of("unmkinitramfs", image, work)
        # With microcode, the files are below main/.
        return module(name, next(Path(work).glob(f"**/{name}")).read_bytes())


def loaded(release, *files):
    """Describe the btrfs of the running kernel, which is one of `files` or the kernel's own, or return None if btrfs is not loaded.

    The path is None if it is none of these files. The build ID is None, too, if btrfs is built into the kernel.
    """
    if not LOADED.exists():
        return None
    unknown = {"path": None, "build_id": None, "version": None, "is_signed": None}
    with contextlib.suppress(OSError):
        unknown["build_id"] = (LOADED / "notes/.note.gnu.build-id").read_bytes()[-20:].hex()
    for path in (MODULES / release).glob("kernel/fs/btrfs/btrfs.ko*"):
        with contextlib.suppress(Error, OSError):
            files = (*files, from_file(path))
    return next((one for one in files if one and one.get("build_id") == unknown["build_id"] is not None), unknown)


def describe(release, with_initramfs=True):
    """Return the modules of a kernel release: {"release", "loaded", "disk", "initramfs"}.

    "loaded" is None if that kernel is not running, "initramfs" if there is none. What cannot be told is {"unknown": reason}.
    """
    found = {"release": release, "loaded": None}
    for name, look in (("disk", on_disk), ("initramfs", in_initramfs if with_initramfs else lambda _: None)):
        try:
            found[name] = look(release)
        except (Error, OSError) as error:
            found[name] = {"unknown": str(error)}
    if release == os.uname().release:
        found["loaded"] = loaded(release, found["disk"], found["initramfs"])
    return found


def name_of(one):
    """Return how to call a module that describe() returns."""
    if not one:
        return "none"
    if "unknown" in one:
        return one["unknown"]
    if not one["path"]:
        return "none of the files of this kernel" if one["build_id"] else "built into the kernel"
    return (f"rust={one['version']}" if one["version"] else "without Rust") + ("" if one["is_signed"] else ", not signed")


def is_stale(found):
    """Return whether the next boot may load another module than that on the disk. `found` is from describe()."""
    disk, initramfs = found["disk"], found["initramfs"]
    return bool(initramfs) and ("unknown" in initramfs or "unknown" in disk or any(disk[name] != initramfs[name] for name in ("build_id", "is_signed")))


def lines(found):
    """Yield the lines that describe the modules of describe()."""
    release, current, disk = found["release"], found["loaded"], found["disk"]
    yield f"btrfs module of Linux {release}"
    for name in ("loaded", "disk", "initramfs"):
        if name != "loaded" or current:
            yield f"  {name + ':':<11}{name_of(found[name])}"
    if "unknown" in disk:
        return
    if is_stale(found):
        if "unknown" not in found["initramfs"]:
            program = f"update-initramfs -u -k {release}" if find("update-initramfs") else \
                f"dracut --force {BOOT}/initrd.img-{release} {release}"
            yield f"  The next boot loads the module of the initramfs: run `{program}`."
    elif current and current["build_id"] and current["build_id"] != disk.get("build_id"):
        yield "  The next boot loads the module on the disk."
