# SPDX-License-Identifier: GPL-2.0
"""What the guest scripts of the tests share: how a job is run, and what is checked when it has ended."""

import re
import sys
import time
from pathlib import Path

K = 1024
MNT = "/mnt/fs"
# What kmemleak reports without being right, by how it shows it.
NO_LEAKS = re.compile("|".join((
    # What was there when the kernel booted, of which it finds much on UML.
    r'comm "(swapper|kthreadd|init|dmsetup)',
    # A struct vmap_area, which begins with two page addresses: on UML it does not see the root of their tree.
    r"\(size 72\):\n.*\n.*\n +(?!(00 ){8})(00 .0 (.. ){3}00 00 00 ){2}",
    # A stack, which begins with STACK_END_MAGIC: two that no task has any more are kept for fork(2), where it does not see them.
    r"\(size 16384\):\n.*\n.*\n +9d 6e ac 57 00 00 00 00 ",
    # Of a memory cgroup: an empty list behind zeroes, and the node of an xarray with one entry and no parent.
    r"\(size 64\):\n.*\n.*\n +(00 ){16}.*\n +(?P<list>(.. ){8})(?P=list)",
    r"\(size 576\):\n.*\n.*\n +00 00 01 00 (00 ){12}")))


def leaks():
    """What kmemleak has found, if the kernel has it."""
    file = Path("/sys/kernel/debug/kmemleak")
    if not file.exists():
        return ""
    # It looks at nothing younger, and twice at everything.
    time.sleep(6)
    for _ in range(2):
        file.write_text("scan")
    found = file.read_text().split("unreferenced object")[1:]
    return "".join(one for one in found if not NO_LEAKS.search(one))


def locks_are_watched():
    """Whether lockdep, if the kernel has it, has not switched itself off."""
    stats = Path("/proc/lockdep_stats")
    return not stats.exists() or re.search(r"debug_locks:\s+1", stats.read_text())


def run(*jobs):
    """Run the job that the command line names, with its other arguments; say how long that took, and fail if the kernel is not well."""
    started, (name, *arguments) = time.monotonic(), sys.argv[1:]
    {job.__name__: job for job in jobs}[name](*arguments)
    if lost := leaks():
        sys.exit(lost)
    if not locks_are_watched():
        sys.exit("lockdep has switched itself off")
    print(f"{name}: {time.monotonic() - started:.1f} s")
