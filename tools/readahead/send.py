# SPDX-License-Identifier: GPL-2.0
"""Run btrfs send, and show its progress: bytes sent, rate and time left.

The stream goes to the standard output, unchanged. The progress goes to the standard error. The size is computed first, as by the verb
size.
"""

import os
import subprocess
import sys
import time

import size
from system import Error

add_arguments = size.add_arguments
PIECE = 1 << 20


def progress(sent, total, seconds):
    """Return the progress after some seconds as one line. `total` may be an upper bound."""
    rate = sent / seconds if seconds else 0
    left = f", {(total - sent) / rate / 60:.1f} min left" if rate and sent < total else ""
    return f"{size.in_units(sent)} of {size.in_units(total)} ({100 * sent / total:.0f}%), {size.in_units(rate)}/s{left}"


def copy(stream, output, total):
    """Copy a stream to the file descriptor `output`, and print the progress each second. Return the number of bytes."""
    sent, start, ended = 0, time.monotonic(), "\r" if sys.stderr.isatty() else "\n"
    said = start
    while piece := os.read(stream, PIECE):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(output, rest):]
        sent += len(piece)
        if time.monotonic() >= said + 1:
            said = time.monotonic()
            print(progress(sent, total, said - start).ljust(79), end=ended, file=sys.stderr, flush=True)
    print(progress(sent, total, time.monotonic() - start).ljust(79), file=sys.stderr)
    return sent


def run(arguments):
    if sys.stdout.isatty():
        raise Error("the stream would go to a terminal: redirect it")
    total = size.expected(arguments)
    with subprocess.Popen(["btrfs", "-q", "send", *size.options(arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        copy(process.stdout.fileno(), sys.stdout.fileno(), total)
    if process.returncode:
        raise Error(f"btrfs send failed with status {process.returncode}")
    return 0
