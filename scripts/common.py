# SPDX-License-Identifier: GPL-2.0
"""What our scripts share: where things are, and how they end."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", SRC / "build"))
CACHE = Path(os.environ.get("CACHE", BUILD / "cache"))
# Configuration fragments of the kernels that we build.
CONFIGS = SRC / "scripts/configs"
# What a kernel says when it has found itself to be wrong.
SPLAT = re.compile(r"WARNING:|BUG:|kernel BUG|Oops|Call Trace|general protection|possible recursive|rust_kernel: panicked"
                   r"|Kernel panic|BTRFS (critical|error)")


class Error(Exception):
    """A failure that the user can act on; printed as one line."""


@contextlib.contextmanager
def locked(path):
    """Let one process at a time do what follows; say when it has to wait for another."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{Path(sys.argv[0]).name}: waiting for another run, which holds {path}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def timed(step):
    """Say how long a step took, unless it fails."""
    start = time.monotonic()
    yield
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    print(f"{step}: {f'{minutes} min ' if minutes else ''}{seconds} s", file=sys.stderr, flush=True)


def kunit(tree, arch, objects, fragments, *options):
    """The command that runs KUnit suites with the kernel's own runner, in its directory `tree`.

    `fragments` are files of CONFIGS, with which the kernel is built in the directory `objects`.
    """
    configs = [*(CONFIGS / name for name in fragments), SRC / "fs/btrfs/rust/.kunitconfig"]
    return [tree / "tools/testing/kunit/kunit.py", "run", f"--arch={arch}", f"--build_dir={objects}",
            *(f"--kunitconfig={config}" for config in configs), "--make_options=LLVM=1", f"--jobs={os.cpu_count() + 1}", *options]


def kvm_works():
    """Whether scripts/vm --probe-kvm has seen KVM run a guest."""
    verdict = CACHE / "kvm"
    return verdict.exists() and verdict.read_text().strip() == "works"


def make_environment():
    """The environment for kbuild: compilers through Debian's ccache, and no options of the make that has called us."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return ours | {"PATH": f"/usr/lib/ccache:{os.environ['PATH']}"}


def need_space(where, gigabytes):
    """Refuse to start what the disk cannot hold."""
    free = shutil.disk_usage(where).free >> 30
    if free < gigabytes:
        raise Error(f"{free} GB free in {where}, {gigabytes} needed: free some, or set BUILD= to another disk")


def finish(main):
    """Run a script's `main`; a failure is one line and a non-zero exit."""
    try:
        main()
    except (Error, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{Path(sys.argv[0]).name}: interrupted; what was not finished will be made anew")
