# SPDX-License-Identifier: GPL-2.0
"""Helpers of all scripts: paths, locks, error messages and the environment of kbuild."""

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", SRC / "build"))
CACHE = Path(os.environ.get("CACHE", BUILD / "cache"))
# File with the version of the Debian package from which a directory of $CACHE was unpacked.
REVISION = ".debian-version"
# Directory of the configuration fragments of our kernels.
CONFIGS = SRC / "scripts/configs"
# File that marks our toolchain root, which bubblewrap mounts read-only.
ROOT_MARK = Path("/.btrfs-rust-root")
# Where a kernel tree and its object directory are mounted during a build in our toolchain root.
MOUNTED_TREE, MOUNTED_OBJECTS = Path("/run/kbuild/tree"), Path("/run/kbuild/objects")
# Kernel messages that report a bug or a damaged filesystem.
SPLAT = re.compile(r"WARNING:|BUG:|kernel BUG|Oops|Call Trace|general protection|possible recursive|rust_kernel: panicked"
                   r"|Kernel panic|BTRFS (critical|error)|blocked for more than|soft lockup|detected stall")


# Modelled disks: arguments of nbdkit.
MODELS = {"ssd": ("--threads", "64", "--filter", "delay", "file", "rdelay=100us"),
          "spindle": ("--threads", "32", "python", SRC / "scripts/bench/spindle.py")}


class Error(Exception):
    """A failure that the user can act on. It is printed as one line."""


@contextlib.contextmanager
def locked(path):
    """Hold the lock file `path` for the block. Print a message if another process holds it."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{Path(sys.argv[0]).name}: waiting for another run, which holds {path}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def timed(step):
    """Print the time that the block took, unless it raises an exception."""
    start = time.monotonic()
    yield
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    print(f"{step}: {f'{minutes} min ' if minutes else ''}{seconds} s", file=sys.stderr, flush=True)


def modelled_disk(model, image):
    """Return the nbdkit command, without the address, that serves `image` read-only with the speed of a disk of MODELS."""
    return ["nbdkit", "--readonly", *MODELS[model], f"file={image}"]


def checksum(path):
    """Return the SHA-256 of a sparse file without its holes."""
    digest, size = hashlib.sha256(), 64 << 10
    zeroes = bytes(size)
    with open(path, "rb") as file:
        end, position = os.fstat(file.fileno()).st_size, 0
        while position < end:
            try:
                data = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError:
                # The rest of the file is a hole.
                break
            hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
            position = data // size * size
            while position < hole:
                block = os.pread(file.fileno(), size, position)
                # Skip zeroes: the checksum must not depend on the split of the file into data and holes.
                if block != zeroes[:len(block)]:
                    digest.update(b"%d" % position)
                    digest.update(block)
                position += size
    return digest.hexdigest()


def kvm_works():
    """Return whether scripts/vm --probe-kvm could boot a guest with KVM."""
    verdict = CACHE / "kvm"
    return verdict.exists() and verdict.read_text().strip() == "works"


def mounted(*pairs):
    """Return a command prefix that binds directories at other paths for the command alone: (source, target), .... Create the targets."""
    for _, target in pairs:
        target.mkdir(parents=True, exist_ok=True)
    binds = "".join(f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(target))} && " for source, target in pairs)
    # An ordinary user outside of our root needs a user namespace.
    for options in ([], ["--map-root-user"]):
        prefix = ["unshare", "--mount", *options, "sh", "-c", f'{binds}exec "$0" "$@"']
        if not subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
            return prefix
    raise Error("this system does not allow mounts in a namespace")


@dataclass(frozen=True)
class Place:
    """A kernel tree and an object directory, and where they are for commands that begin with `prefix`, which run in the tree."""
    tree: Path
    out: Path
    seen_tree: Path
    seen_out: Path
    prefix: tuple

    def real(self, line):
        """Return a line of the output of such a command with the real paths."""
        return line.replace(str(self.seen_tree), str(self.tree)).replace(str(self.seen_out), str(self.out))


def place_of(tree, out):
    """Return the Place of a kernel tree and an object directory.

    In our toolchain root, all trees and all object directories are mounted at the same paths. So ccache finds the objects of another tree.
    """
    if not ROOT_MARK.exists():
        return Place(tree, out, tree, out, ("env", "-C", tree))
    prefix = mounted((tree, MOUNTED_TREE), (out, MOUNTED_OBJECTS))
    return Place(tree, out, MOUNTED_TREE, MOUNTED_OBJECTS, (*prefix, "env", "-C", MOUNTED_TREE))


def kunit(tree, arch, objects, fragments, *options):
    """Return the kunit.py command that runs KUnit suites.

    kunit.py builds the kernel `tree` in the directory `objects`, with the `fragments` of CONFIGS.
    """
    place = place_of(tree, objects)
    configs = [*(CONFIGS / name for name in fragments), SRC / "fs/btrfs/rust/.kunitconfig"]
    return [*place.prefix, place.seen_tree / "tools/testing/kunit/kunit.py", "run", f"--arch={arch}", f"--build_dir={place.seen_out}",
            *(f"--kunitconfig={config}" for config in configs), "--make_options=LLVM=1", f"--jobs={os.cpu_count() + 1}", *options]


def make_environment():
    """Return the environment of kbuild: compilers are Debian's ccache wrappers, and options of an outer make are removed."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return ours | {"PATH": f"/usr/lib/ccache:{os.environ['PATH']}"}


def need_space(where, gigabytes):
    """Raise Error if the filesystem of `where` has less free space than `gigabytes`."""
    free = shutil.disk_usage(where).free >> 30
    if free < gigabytes:
        raise Error(f"{free} GB free in {where}, {gigabytes} needed: free some, or set BUILD= to another disk")


def finish(main):
    """Run the function `main` of a script. Report a failure as one line and exit with a non-zero status."""
    try:
        main()
    except (Error, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{Path(sys.argv[0]).name}: interrupted; the next run makes unfinished files anew")
