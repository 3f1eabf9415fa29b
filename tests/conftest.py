# SPDX-License-Identifier: GPL-2.0
"""What the tests share: where things are, and a way to run our own scripts."""

import os
import subprocess
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", SRC / "build"))


def output_of(*command, **kwargs):
    """The output of a command; fails the test with all that it said if it fails."""
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, **kwargs)
    if result.returncode:
        pytest.fail(f"{' '.join(map(str, command))}\n{result.stdout[-8000:]}{result.stderr[-8000:]}", pytrace=False)
    return result.stdout


@pytest.fixture(scope="session")
def tree():
    """The patched kernel tree."""
    return Path(output_of(SRC / "scripts/tree", "prepare").strip())


@pytest.fixture(scope="session")
def build():
    """A function that builds a flavour and returns the path of the result."""
    return lambda flavour: Path(output_of(SRC / "scripts/build", flavour).strip())
