# SPDX-License-Identifier: GPL-2.0
"""The KUnit suites pass, all of them, run by the kernel's own kunit.py; and clippy has nothing to say."""

import json
import re

import pytest

from common import SPLAT, kunit, locked, make_environment
from conftest import BUILD, SRC, output_of

RUST = SRC / "fs/btrfs/rust"
# With which configuration fragments and options, and in which object directory. UML's is built with clippy in place
# of rustc, which makes the same code; x86_64's is that of its other kernel, since it takes long to build.
ARCHITECTURES = {"um": ("um.config", ["--make_options=CLIPPY=1"], "{}-kunit"), "x86_64": ("x86_64.config", [], "{}-x86_64")}


def written():
    """The tests in the source, as {suite: names}."""
    suites = {}
    for file in RUST.rglob("*.rs"):
        text = file.read_text()
        for suite in re.findall(r"kunit_tests\((\w+)\)\]", text):
            suites[suite] = set(re.findall(r"#\[test\]\s+fn (\w+)", text))
    return suites


def run(tree, arch, objects, fragments, *options):
    """What kunit.py says, and the tests that have passed, as {suite: names}."""
    objects = BUILD / objects.format(tree.name)
    objects.mkdir(exist_ok=True)
    results = objects / "kunit.json"
    # As scripts/build, which has the same directory for its kernels, holds it.
    with locked(objects / "lock"):
        results.unlink(missing_ok=True)
        # Clippy speaks only when it compiles.
        (objects / "fs/btrfs/rust/btrfs_rust.o").unlink(missing_ok=True)
        said = output_of(*kunit(tree, arch, objects, fragments, *options, "--timeout=600", f"--json={results}", "btrfs_*"),
                         cwd=tree, env=make_environment())
        # Of tests that pass, kunit.py does not show what the kernel said.
        assert [line for line in (objects / "test.log").read_text(errors="replace").splitlines() if SPLAT.search(line)] == []
    return said, {suite["name"]: {test["name"] for test in suite["test_cases"] if test["status"] == "PASS"}
                  for suite in json.loads(results.read_text())["sub_groups"]}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_kunit_tests_pass(tree, arch):
    fragment, options, objects = ARCHITECTURES[arch]
    said, passed = run(tree, arch, objects, [fragment], *options)
    # How rustc and clippy name the place of whatever they have to say.
    assert re.findall(r"--> .*fs/btrfs/rust/.*", said) == []
    assert set(written()) == {"btrfs_reada", "btrfs_data_reada", "btrfs_leaf_reada", "btrfs_share_cache", "btrfs_send_utimes",
                              "btrfs_lru", "btrfs_window", "btrfs_tree", "btrfs_credit"}
    assert passed == written()
