# SPDX-License-Identifier: GPL-2.0
"""The KUnit suites pass, all of them, run by the kernel's own kunit.py."""

import json
import os
import re

import pytest

from conftest import BUILD, SRC, output_of

RUST = SRC / "fs/btrfs/rust"
ARCHITECTURES = {"um": ["um.config"], "x86_64": ["x86_64.config"]}


def written():
    """The tests in the source, as {suite: names}."""
    suites = {}
    for file in RUST.glob("*.rs"):
        text = file.read_text()
        for suite in re.findall(r"#\[kunit_tests\((\w+)\)\]", text):
            suites[suite] = set(re.findall(r"#\[test\]\s+fn (\w+)", text))
    return suites


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_kunit_tests_pass(tree, arch):
    results = BUILD / f"kunit-{arch}.json"
    configs = [f"--kunitconfig={SRC}/tools/testing/kunit/{config}" for config in ARCHITECTURES[arch]]
    output_of(tree / "tools/testing/kunit/kunit.py", "run", f"--arch={arch}", f"--build_dir={BUILD}/kunit-{arch}",
              *configs, f"--kunitconfig={RUST}/.kunitconfig", "--make_options", "LLVM=1", "--jobs", os.cpu_count() + 1,
              "--timeout", "600", f"--json={results}", "btrfs_*",
              cwd=tree, env={**os.environ, "PATH": f"/usr/lib/ccache:{os.environ['PATH']}"})
    run = {suite["name"]: {test["name"] for test in suite["test_cases"] if test["status"] == "PASS"}
           for suite in json.loads(results.read_text())["sub_groups"]}
    assert set(written()) == {"btrfs_reada", "btrfs_share_cache", "btrfs_send_utimes", "btrfs_lru"}
    assert run == written()
