# SPDX-License-Identifier: GPL-2.0
"""Helpers of the guest scripts of the tests: hold a send; run a job, and check for leaks and a disabled lockdep at its end."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

K = 1024
MNT = "/mnt/fs"
# False positives of kmemleak, as patterns of their reports.
NO_LEAKS = re.compile("|".join((
    # Objects from boot. There are many on UML.
    r'comm "(swapper|kthreadd|init|dmsetup)',
    # A struct vmap_area, which begins with two page addresses: on UML, kmemleak does not scan the root of their tree.
    r"\(size 72\):\n.*\n.*\n +(?!(00 ){8})(00 .0 (.. ){3}00 00 00 ){2}",
    # A stack, which begins with STACK_END_MAGIC: the kernel caches two stacks of ended tasks for fork(2), where kmemleak does not look.
    r"\(size 16384\):\n.*\n.*\n +9d 6e ac 57 00 00 00 00 ",
    # Parts of a memory cgroup: an empty list after zeroes, an empty list, which has its own address, after two numbers, and the node of
    # an xarray with one entry and no parent.
    r"\(size 64\):\n.*\n.*\n +(00 ){16}.*\n +(?P<same>(.. ){8})(?P=same)",
    r"0x(?P<d>..)(?P<c>..)(?P<b>..).. \(size 64\):\n.*\n.*\n +(.. ){16}.*\n +(?P<list>.. (?P=b) (?P=c) (?P=d) (00 ){4})(?P=list)",
    r"\(size 576\):\n.*\n.*\n +00 .. 01 00 (00 ){12}",
    # The table of a rhashtable from boot that has shrunk to 4 buckets: the size, a random number, and an empty list.
    r'\(size 96\):\n.*"kworker.*\n.*\n +04 00 00 00 (00 ){4}(.. ){4}(00 ){4}.*\n +(?P<walkers>(.. ){8})(?P=walkers)')))


class HeldSend:
    """A send that stands still while nobody takes its stream."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(["btrfs", "-q", "send", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.stream = bytearray()

    def take(self, size=1 << 40):
        """Take up to `size` bytes of the stream, and wait until the send stands still again."""
        until = len(self.stream) + size
        while len(self.stream) < until and (part := os.read(self.process.stdout.fileno(), min(64 * K, until - len(self.stream)))):
            self.stream += part
        time.sleep(0.2)

    def end(self):
        """Take the rest of the stream. Return "sent" or the last line of the errors."""
        self.take()
        errors = self.process.stderr.read().decode().strip().splitlines()
        return errors[-1] if self.process.wait() else "sent"


def leaks():
    """Return the reports of kmemleak without known false positives, or "" if the kernel has no kmemleak."""
    file = Path("/sys/kernel/debug/kmemleak")
    if not file.exists():
        return ""
    # kmemleak ignores objects younger than some seconds, and reports an object after the second scan.
    time.sleep(6)
    for _ in range(2):
        file.write_text("scan")
    found = file.read_text().split("unreferenced object")[1:]
    return "".join(one for one in found if not NO_LEAKS.search(one))


def locks_are_watched():
    """Return whether lockdep is still on, or the kernel has no lockdep."""
    stats = Path("/proc/lockdep_stats")
    return not stats.exists() or re.search(r"debug_locks:\s+1", stats.read_text())


def run(*jobs):
    """Run the job that the command line names, with the other arguments, and print its time. Exit with an error after a leak, or if lockdep
    has switched itself off.
    """
    started, (name, *arguments) = time.monotonic(), sys.argv[1:]
    {job.__name__: job for job in jobs}[name](*arguments)
    if lost := leaks():
        sys.exit(lost)
    if not locks_are_watched():
        sys.exit("lockdep has switched itself off")
    print(f"{name}: {time.monotonic() - started:.1f} s")
