#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Other architectures, compilers and kernels: KUnit passes, and sends and fiemaps give the results of upstream's kernel on UML.

`make matrix` runs these tests in two toolchain roots. Then it runs this file as a program, which prints the table.
"""

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import BUILD, SRC, build, output_of

SUITE = os.environ.get("SUITE", "trixie")
MATRIX = BUILD / "matrix"
IMAGE, EXPECTED = MATRIX / "image", MATRIX / "expected.json"


@dataclass(frozen=True)
class Kernel:
    """A kernel of the matrix: its architecture and configuration, and the suite of Debian with its compilers."""
    # Architecture in kunit.py, and first part of the name in scripts/vm.
    arch: str
    fragments: tuple
    suite: str = "trixie"
    # Version of Linux; "" is the version of KDIR, or the newest.
    version: str = ""
    compiler: str = "clang"
    # Flavour of scripts/build with the C kernel to compare with, if not the one on UML.
    reference: str = ""


KERNELS = {
    "um-7.2-gcc": Kernel("um", ("um.config",), version="7.2", compiler="gcc"),
    "x86_64-gcc": Kernel("x86_64", ("x86_64.config",), compiler="gcc"),
    "arm64-64k": Kernel("arm64", ("qemu.config", "arm64.config"), reference="arm64-64k-c"),
    "um-newest": Kernel("um", ("um.config",), suite="sid"),
    "s390-newest": Kernel("s390", ("qemu.config", "s390.config"), suite="sid"),
}
HERE = [pytest.param(name, marks=pytest.mark.long) for name, kernel in KERNELS.items() if kernel.suite == SUITE]


def note(name, **what):
    """Save columns of the table for a kernel."""
    file = MATRIX / f"{name}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | what))


def configured(name):
    """Return the columns of the table that come from the configuration of a kernel."""
    objects = MATRIX / name
    config = dict(re.findall(r'^CONFIG_(\w+)="?(.*?)"?$', (objects / ".config").read_text(), re.M))
    return {"kernel": (objects / "include/config/kernel.release").read_text().strip(), "arch": KERNELS[name].arch,
            "pages": f"{1 << int(config['PAGE_SHIFT']) >> 10} KiB", "byte order": "big" if "CPU_BIG_ENDIAN" in config else "little",
            "compiler": re.sub(r" \(.*?\)|Debian ", "", config["CC_VERSION_TEXT"]).replace(" version", ""),
            "rustc": config["RUSTC_VERSION_TEXT"].split()[1]}


@functools.cache
def expected():
    """Return the results of upstream's kernel on UML for the image.

    The root of Debian 13 makes the image and the results. The other root uses them, too.
    """
    if SUITE == "trixie":
        import test_kernels
        found = test_kernels.result("um-upstream", "read", 16384)
        output_of("cp", "--sparse=always", "--reflink=auto", test_kernels.image(16384), IMAGE)
        EXPECTED.write_text(json.dumps(found))
    return json.loads(EXPECTED.read_text())


def read(flavour):
    """Send and map the image in a kernel; return the results and the time in seconds."""
    output = MATRIX / f"{Path(flavour).name}-read.json"
    output.unlink(missing_ok=True)
    device = "/dev/ubdb" if Path(flavour).name.startswith("um-") else "/dev/vda"
    said = output_of(SRC / "scripts/vm", "--read-only", "--disk", IMAGE, "--append", "kunit.enable=0", "--timeout", 3000, flavour, "--",
                     SRC / "tests/guest_reading.py", "read", device, output)
    return json.loads(output.read_text()), re.search(r"^read: ([\d.]+) s", said, re.M)[1]


def prepared(name):
    """Return the patched tree of a kernel. Skip the test if the version is no longer in the archive."""
    version = KERNELS[name].version
    result = subprocess.run([SRC / "scripts/tree", "prepare", *filter(None, [version])], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if version and "Unable to locate package" in result.stderr:
        note(name, KUnit="not in the archive", identity="not in the archive")
        pytest.skip(f"the archive has no Linux {version} any more")
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip())


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", HERE)
def test_kunit(name):
    from test_kunit import run, written
    kernel = KERNELS[name]
    MATRIX.mkdir(exist_ok=True)
    (MATRIX / f"{name}.json").unlink(missing_ok=True)
    note(name, KUnit="failed")
    tree = prepared(name)
    options = ["--make_options=LLVM="] if kernel.compiler == "gcc" else []
    said, passed = run(tree, kernel.arch, f"matrix/{name}", kernel.fragments, *options)
    building, running = re.search(r"([\d.]+)s building, ([\d.]+)s running", said).groups()
    note(name, **configured(name), **{"build, s": building})
    assert passed == written()
    note(name, KUnit=f"{sum(map(len, passed.values()))} passed", **{"run, s": running})


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", HERE)
def test_identity(name):
    """The kernel of test_kunit() sends the same streams and maps the same extents."""
    prepared(name)
    note(name, identity="failed")
    want = expected()
    found, seconds = read(f"matrix/{name}")
    assert found["kernel"] == (MATRIX / name / "include/config/kernel.release").read_text().strip()
    assert found["fiemap"] == want["fiemap"]
    if KERNELS[name].reference:
        # Upstream's commands of protocol 2 are longer with larger pages, since it reads more data at a time.
        build(KERNELS[name].reference)
        reference, _ = read(KERNELS[name].reference)
        assert {name: sent for name, sent in reference["sends"].items() if "v2" not in name}.items() <= want["sends"].items()
        assert reference["fiemap"] == want["fiemap"]
        want = reference
    assert found["sends"] == want["sends"] and len(want["sends"]) == 31
    extents = sum(map(len, want["fiemap"].values()))
    note(name, identity=f"{len(want['sends'])} sends, {extents} extents", **{"read, s": seconds})


def main():
    """Print the table and delete its files. Exit with status 1 if a kernel failed or was not tested."""
    from rich.console import Console
    from rich.table import Table
    columns = ("kernel", "arch", "pages", "byte order", "compiler", "rustc", "build, s", "KUnit", "run, s", "identity", "read, s")
    table, passed = Table("", *columns), True
    for name in KERNELS:
        file = MATRIX / f"{name}.json"
        known = {"KUnit": "not run", "identity": "not run"} | (json.loads(file.read_text()) if file.exists() else {})
        file.unlink(missing_ok=True)
        passed &= not {known["KUnit"], known["identity"]} & {"not run", "failed"}
        table.add_row(name, *(str(known.get(column, "")) for column in columns))
    Console(width=180).print(table)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
