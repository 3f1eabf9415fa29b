# SPDX-License-Identifier: GPL-2.0
"""All KUnit suites pass on the host and under the kunit.py of the kernel, and clippy has no warnings."""

import json
import re

import pytest

from common import SPLAT, kunit, locked, make_environment
from conftest import BUILD, SRC, output_of

RUST = SRC / "fs/btrfs/rust"
# {architecture: (configuration fragment, options, object directory)}. On UML, clippy compiles in place of rustc, with the same code. The
# x86_64 kernel takes long to build: share the object directory of scripts/build.
ARCHITECTURES = {"um": ("um.config", ["--make_options=CLIPPY=1"], "{}-kunit"), "x86_64": ("x86_64.config", [], "{}-x86_64")}


def written():
    """Return the tests in the source as {suite: names}."""
    suites = {}
    for file in RUST.rglob("*.rs"):
        text = file.read_text()
        for suite in re.findall(r"kunit_tests\((\w+)\)\]", text):
            suites[suite] = set(re.findall(r"#\[test\]\s+fn (\w+)", text))
    return suites


def run(tree, arch, objects, fragments, *options):
    """Run all suites of btrfs. Return the output of kunit.py, and the tests that passed as {suite: names}."""
    objects = BUILD / objects.format(tree.name)
    objects.mkdir(exist_ok=True)
    results = objects / "kunit.json"
    # Take the lock of scripts/build, which may use the same object directory.
    with locked(objects / "lock"):
        results.unlink(missing_ok=True)
        # Force a compilation: clippy prints its warnings only then.
        (objects / "fs/btrfs/rust/btrfs_rust.o").unlink(missing_ok=True)
        said = output_of(*kunit(tree, arch, objects, fragments, *options, "--timeout=600", f"--json={results}", "btrfs_*"),
                         env=make_environment())
        # Check the log of the kernel: kunit.py does not show the messages of tests that pass.
        assert [line for line in (objects / "test.log").read_text(errors="replace").splitlines() if SPLAT.search(line)] == []
    return said, {suite["name"]: {test["name"] for test in suite["test_cases"] if test["status"] == "PASS"}
                  for suite in json.loads(results.read_text())["sub_groups"]}


def test_all_tests_pass_on_the_host():
    said = output_of("make", "-C", SRC, "unit")
    assert sorted(re.findall(r"^test .*::(\w+) \.\.\. ok$", said, re.M)) == sorted(name for names in written().values() for name in names)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_kunit_tests_pass(tree, arch):
    fragment, options, objects = ARCHITECTURES[arch]
    said, passed = run(tree, arch, objects, [fragment], *options)
    # A line with "-->" is the location of a warning of rustc or clippy.
    assert re.findall(r"--> .*fs/btrfs/rust/.*", said) == []
    assert set(written()) == {"btrfs_reada", "btrfs_data_reada", "btrfs_leaf_reada", "btrfs_share_cache", "btrfs_send_utimes",
                              "btrfs_lru", "btrfs_window", "btrfs_tree", "btrfs_credit", "btrfs_sort"}
    assert passed == written()
