# SPDX-License-Identifier: GPL-2.0
"""What the tests share: where things are, and a way to run our own scripts."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from common import BUILD, SRC

# Where tests leave what they make; others may run in another process.
WORK = BUILD / "tests" / os.environ.get("PYTEST_XDIST_WORKER", "")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: only with `make check-debug` or `make matrix`")


def output_of(*command, **kwargs):
    """The output of a command; fails the test with all that it said if it fails."""
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, **kwargs) as process:
        try:
            said, complaint = process.communicate()
        except BaseException:
            # A test that takes too long: scripts/vm ends its guest first.
            process.terminate()
            raise
    if process.returncode:
        pytest.fail(f"{' '.join(map(str, command))}\n{said[-8000:]}{complaint[-8000:]}", pytrace=False)
    return said


@pytest.fixture(scope="session")
def tree():
    """The patched kernel tree."""
    return Path(output_of(SRC / "scripts/tree", "prepare").strip())


@functools.cache
def build(flavour):
    """Build a flavour, unless this run has; return the path of the result."""
    return Path(output_of(SRC / "scripts/build", flavour).strip())
