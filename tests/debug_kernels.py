# SPDX-License-Identifier: GPL-2.0
"""`make check-debug`: the same jobs in kernels that look for errors in memory and locking, and with faults injected.

Any warning, KASAN or lockdep report fails a test, and so does what kmemleak finds.
"""

import json

import pytest

import test_kunit
from conftest import build, output_of, SRC
from test_kernels import GUEST, WORK, blank, compare_broken, image, result

pytestmark = pytest.mark.timeout(3600)


def debug_vm(flavour, *command, disk, expect=None, mem="3G"):
    """Run a part of guest_images.py in a debug kernel."""
    build(flavour)
    options = [f"--expect={expect}"] if expect else []
    device = "/dev/ubdb" if flavour.startswith("um-") else "/dev/vda"
    arguments = [device if part == "DEVICE" else part for part in command]
    return output_of(SRC / "scripts/vm", "--mem", mem, "--timeout", 3000, "--disk", disk, *options, flavour, "--", *arguments)


@pytest.fixture
def copy():
    """A copy of the image that all kernels read."""
    disk = WORK / "copy-debug"
    output_of("cp", "--sparse=always", "--reflink=auto", image(16384), disk)
    yield disk
    disk.unlink()


@pytest.mark.parametrize("flavour", ["um-debug", "um-debug-verify"])
def test_streams_and_maps_are_equal_under_kasan(copy, flavour):
    output = WORK / "debug-read.json"
    debug_vm(flavour, GUEST, "read", "DEVICE", output, disk=copy)
    assert json.loads(output.read_text())["sends"] == result("um-c", "read", 16384)["sends"]
    assert json.loads(output.read_text())["fiemap"] == result("um-c", "read", 16384)["fiemap"]


@pytest.mark.parametrize("flavour", ["um-debug", "um-debug-verify"])
def test_maps_are_equal_under_kasan_while_snapshots_come_and_go(copy, flavour):
    output = WORK / "debug-churn.json"
    debug_vm(flavour, GUEST, "churn", "DEVICE", output, disk=copy)
    assert json.loads(output.read_text())["fiemap"] == result("um-c", "churn", 16384)["fiemap"]


def test_sends_that_end_early_leave_nothing_under_kasan(copy):
    assert debug_vm("um-debug", GUEST, "end", "DEVICE", disk=copy).startswith("end: ")


def test_failing_allocations_and_reads_give_an_error_or_the_same_stream(copy):
    # Upstream says so when an inode cannot be read for want of memory, and UML when a page fault fails; vmalloc() shows where.
    said = debug_vm("um-debug", GUEST, "faults", "DEVICE", "400", disk=copy, expect=r"-ENOMEM|-12\b|BTRFS (error|critical)|Call Trace")
    print(said)
    outcomes = json.loads(said.splitlines()[0])
    # A command that is lost without an error is a defect of upstream (Documentation/upstream/README.md).
    assert outcomes.keys() <= {f"{kind}: {outcome}" for kind in ("failslab", "fail_page_alloc") for outcome in ("the same", "another", "EIO", "ENOMEM")
                               } | {"disk: the same", "disk: EIO"}
    assert min(outcomes["disk: the same"], outcomes["disk: EIO"], outcomes["failslab: ENOMEM"]) > 10


@pytest.mark.parametrize("flavour, seconds", [("um-rust", 60), ("um-debug", 60), ("x86_64-debug", 120)])
def test_results_stay_the_same_during_balances_and_snapshots(flavour, seconds):
    disk = blank("stress")
    said = debug_vm(flavour, GUEST, "stress", "DEVICE", str(seconds), disk=disk)
    print(said)
    disk.unlink()


@pytest.mark.parametrize("flavour, numbers", [("um-rust", range(150, 4000)), ("um-verify", range(4000, 5000))])
def test_broken_images_give_the_same(flavour, numbers):
    # Not with CONFIG_BTRFS_DEBUG, whose assertions take what is on disk to be right.
    compare_broken(numbers, flavour)


def test_all_kunit_tests_pass_under_kasan(tree):
    said, passed = test_kunit.run(tree, "um", "{}-um-debug", ["um.config", "debug_kernel.config"])
    assert passed == test_kunit.written()
    assert "BUG:" not in said and "WARNING:" not in said
