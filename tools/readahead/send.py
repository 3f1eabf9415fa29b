# SPDX-License-Identifier: GPL-2.0
"""Run btrfs send, and show its progress: bytes sent, rate and time left.

The stream goes to the standard output, unchanged. The progress goes to the standard error, each second at a terminal, and otherwise each
minute. The size is computed first, as by the verb size: until then, nothing is sent.
"""

import contextlib
import os
import subprocess
import sys
import time

import size
from system import Error

add_arguments = size.add_arguments
PIECE = 1 << 20


def progress(sent, total, seconds, is_bound):
    """Return the progress after some seconds as one line. `total` is an upper bound with `is_bound`."""
    rate = sent / seconds if seconds else 0
    if is_bound:
        return f"{size.in_units(sent)} of at most {size.in_units(total)}, {size.in_units(rate)}/s"
    left = f", {(total - sent) / rate / 60:.1f} min left" if rate and sent < total else ""
    return f"{size.in_units(sent)} of {size.in_units(total)} ({100 * sent / total:.0f}%), {size.in_units(rate)}/s{left}"


def say(line, end="\n"):
    """Print a line to the standard error. The send goes on if that is gone."""
    with contextlib.suppress(OSError):
        print(line.ljust(79), end=end, file=sys.stderr, flush=True)


def copy(stream, output, total, is_bound):
    """Copy a stream to the file descriptor `output`, and print the progress."""
    interval, end = (1, "\r") if sys.stderr.isatty() else (60, "\n")
    sent, start = 0, time.monotonic()
    said = start
    while piece := os.read(stream, PIECE):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(output, rest):]
        sent += len(piece)
        if time.monotonic() >= said + interval:
            said = time.monotonic()
            say(progress(sent, total, said - start, is_bound), end)
    say(progress(sent, total, time.monotonic() - start, is_bound))


def run(arguments):
    if sys.stdout.isatty():
        raise Error("the stream would go to a terminal: redirect it")
    where = os.fstat(sys.stdout.fileno())
    if os.path.samestat(where, os.fstat(sys.stderr.fileno())) and not os.path.samestat(where, os.stat(os.devnull)):
        # As with 2>&1, or nohup.
        raise Error("the progress would go into the stream: redirect the standard error to another place")
    say("computing the size")
    total = size.expected(arguments)
    with subprocess.Popen(["btrfs", "-q", "send", *size.options(arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        copy(process.stdout.fileno(), sys.stdout.fileno(), total, arguments.compressed_data)
    if process.returncode:
        raise Error(f"btrfs send failed with status {process.returncode}")
    return 0
