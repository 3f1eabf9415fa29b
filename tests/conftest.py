# SPDX-License-Identifier: GPL-2.0
"""Helpers of all tests: paths, and functions that run our scripts."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from common import BUILD, SRC

# Directory for the files of the tests. Each pytest worker has its own.
WORK = BUILD / "tests" / os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    # The results of the last run as JUnit XML. A worker of xdist writes none.
    config.option.xmlpath = config.option.xmlpath or str(BUILD / "junit.xml")
    config.addinivalue_line("markers", "long: only with `make check-debug` or `make matrix`")


def output_of(*command, **kwargs):
    """Run a command and return its output. If it fails, fail the test with the end of its output and errors."""
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, **kwargs) as process:
        try:
            said, complaint = process.communicate()
        except BaseException:
            # On a timeout of the test, let scripts/vm end its guest.
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
    """Build a flavour once in a run of pytest; return the path of the result."""
    return Path(output_of(SRC / "scripts/build", flavour).strip())
