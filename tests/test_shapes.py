#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""On filesystems of many shapes, Rust waits no longer and reads no more than upstream's kernel, and gives the same results.

`make sweep` runs these tests. Then it runs this file as a program, which prints the table.
"""

import json
import sys

import pytest

from conftest import BUILD, SRC, build, output_of
from guest_shapes import JOBS, SHAPES

SCRIPT = SRC / "tests/guest_shapes.py"
COUNTED = BUILD / "shapes"
KERNELS = ("um-upstream", "um-c", "um-rust")
# The shapes of which each needs another rule, for `make check`.
CHECKED = ("aged", "compressed-fragmented", "deduplicated", "fragmented", "preallocated", "snapshots", "tiny")


def vm(flavour, disk, *command, options=()):
    """Run a job of guest_shapes.py in a kernel."""
    build(flavour)
    output_of(SRC / "scripts/vm", *options, "--disk", disk, flavour, "--", SCRIPT, *command)


@pytest.mark.parametrize("shape", [shape if shape in CHECKED else pytest.param(shape, marks=pytest.mark.long) for shape in SHAPES])
def test_no_shape_waits_longer_or_reads_more(shape):
    COUNTED.mkdir(exist_ok=True)
    disk = COUNTED / f"{shape}.image"
    with open(disk, "wb") as file:
        file.truncate(SHAPES[shape].devices * 512 << 20)
    vm("um-upstream", disk, "make", shape, "/dev/ubdb")
    found = {}
    for flavour in KERNELS:
        output = COUNTED / f"{shape}.{flavour}.json"
        vm(flavour, disk, "count", shape, "/dev/ubdb", output, options=["--read-only"])
        found[flavour] = json.loads(output.read_text())
    disk.unlink()
    worse = []
    for job in JOBS:
        upstream, rust = found["um-upstream"][job], found["um-rust"][job]
        assert upstream["digest"] == rust["digest"] == found["um-c"][job]["digest"], job
        # Each read takes 10 ms. Many reads at once may be several short waits, so do not count waits.
        if rust["wait_ms"] > upstream["wait_ms"] * 1.02 + 40 or rust["bytes_read"] > upstream["bytes_read"] * 1.1:
            worse.append(f"{job}: {upstream} {rust}")
    assert not worse, "\n".join(worse)
    if shape.startswith("snapshots"):
        # To find clones, a send reads no leaves of other snapshots.
        assert found["um-rust"]["send --no-data"]["bytes_read"] < found["um-upstream"]["send --no-data"]["bytes_read"] / 3


def table():
    """Print what the tests have counted."""
    from rich.console import Console
    from rich.table import Table
    for key, title in (("wait_ms", "Waits for the disk, ms"), ("bytes_read", "KiB read")):
        shown = Table(title=f"{title}: upstream, C, Rust")
        for name in ("", *JOBS):
            shown.add_column(name, justify="right" if name else "left")
        for shape in SHAPES:
            files = [COUNTED / f"{shape}.{flavour}.json" for flavour in KERNELS]
            if not all(file.exists() for file in files):
                sys.exit(f"{shape} was not counted")
            found = [json.loads(file.read_text()) for file in files]
            unit = 1 if key == "wait_ms" else 1024
            shown.add_row(shape, *("  ".join(str(each[job][key] // unit) for each in found) for job in JOBS))
        Console(width=180).print(shown)


if __name__ == "__main__":
    table()
