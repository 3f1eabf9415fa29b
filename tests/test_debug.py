# SPDX-License-Identifier: GPL-2.0
"""The same jobs in kernels with KASAN, kmemleak and lockdep, and with injected faults. `make check-debug` runs all of them.

A warning, or a report of KASAN, lockdep or kmemleak, fails a test.
"""

import json
import re

import pytest

import test_kunit
from conftest import SRC, WORK, build, output_of
from test_kernels import FAULTS, LIMITS, READING, UPSTREAM, blank, compare_broken, copied, image, result

STRESS = SRC / "tests/guest_stress.py"
KIB, MIB = 1 << 10, 1 << 20
# Maximum data in the page cache of the file that a stalled send is reading. It does not count as readahead.
AT_HAND = 128 * KIB

pytestmark = pytest.mark.timeout(5400)
long = pytest.mark.long


def debug_vm(flavour, *command, disk, expect=None, mem="3G", timeout=5000):
    """Run a command in a kernel, usually a job of a guest script. The argument DEVICE is replaced by the path of the disk."""
    build(flavour)
    options = [f"--expect={expect}"] if expect else []
    device = "/dev/ubdb" if flavour.startswith("um-") else "/dev/vda"
    arguments = [device if part == "DEVICE" else part for part in command]
    return output_of(SRC / "scripts/vm", "--mem", mem, "--timeout", timeout, "--disk", disk, *options, flavour, "--", *arguments)


@pytest.fixture
def copy():
    """Yield a copy of the image that all kernels read."""
    disk = copied(image(16384), "copy-debug")
    yield disk
    disk.unlink()


@pytest.mark.parametrize("flavour", ["um-debug", pytest.param("um-debug-verify", marks=long)])
def test_streams_and_maps_are_equal_under_kasan(copy, flavour):
    output = WORK / "debug-read.json"
    debug_vm(flavour, READING, "read", "DEVICE", output, disk=copy)
    assert json.loads(output.read_text())["sends"] == result("um-upstream", "read", 16384)["sends"]
    assert json.loads(output.read_text())["fiemap"] == result("um-upstream", "read", 16384)["fiemap"]


@long
@pytest.mark.parametrize("flavour", ["um-debug", "um-debug-verify"])
def test_maps_are_equal_under_kasan_while_snapshots_come_and_go(copy, flavour):
    output = WORK / "debug-churn.json"
    debug_vm(flavour, READING, "churn", "DEVICE", output, disk=copy)
    found, expected = json.loads(output.read_text()), result("um-upstream", "churn", 16384)
    assert (found["fiemap"], found["changed"]) == (expected["fiemap"], expected["changed"])


@long
@pytest.mark.parametrize("flavour", ["um-debug", "x86_64-debug"])
def test_sends_that_end_early_leave_nothing(copy, flavour):
    assert "streams were cut" in debug_vm(flavour, FAULTS, "end", "DEVICE", disk=copy)


@long
def test_a_killed_send_waits_for_its_worker():
    disk = copied(image(4096), "copy-kill")
    # A worker that outlives its send may hang the kernel.
    assert "3 of 3 sends" in debug_vm("um-debug", FAULTS, "kill", "DEVICE", disk=disk, timeout=300)
    disk.unlink()


def test_what_is_evicted_is_read_ahead_again(copy):
    assert debug_vm("um-debug", STRESS, "evict", "DEVICE", disk=copy).startswith("blocks read ahead")


def test_a_commit_does_not_end_the_readahead(copy):
    assert debug_vm("um-debug", STRESS, "commit", "DEVICE", disk=copy).count("during the commit") == 3


@pytest.mark.parametrize("parent", ["with", "as", "without"])
def test_a_worker_gives_up_leaves_that_a_commit_has_freed(parent):
    disk = blank("replaced", 640 << 20)
    said = debug_vm("um-rust-debug", STRESS, "replaced", "DEVICE", parent, disk=disk)
    given, read = re.match(r"(\d+) KiB given to the worker, (-?\d+) KiB read after they were freed\nsent\n", said).groups()
    assert int(given) > 500 and int(read) == 0 and "no error found" in said
    disk.unlink()


@pytest.mark.parametrize("end", ["sent", "killed"])
def test_what_is_written_after_a_balance_is_not_lost(end):
    disk = blank("rewritten", 640 << 20)
    said = debug_vm("um-rust-debug", STRESS, "rewritten", "DEVICE", end, disk=disk)
    print(said)
    # Pages were read ahead, so that the balance may have made them wrong. A send that waits until none is dirty takes 30 seconds and more.
    assert int(said.split()[0]) > 0 and "the file has the new data" in said
    if end == "sent":
        assert float(re.search(r"sent in ([\d.]+) s", said)[1]) < 15 and "the stream has the new data" in said
    disk.unlink()


def test_the_sender_is_charged_for_what_is_read_ahead(copy):
    assert "with another priority" in debug_vm("um-debug", READING, "charge", "DEVICE", disk=copy)


def test_sends_read_ahead_what_read_ahead_kb_says(copy):
    found = json.loads(debug_vm("um-debug", LIMITS, "windows", "DEVICE", disk=copy))
    print(found)
    assert {sample["sha256"] for sample in found} == {result("um-upstream", "read", 16384)["sends"]["names2-None"][0]}
    samples = {(sample["rotational"], sample["kib"]): sample for sample in found}
    for rotational in (0, 1):
        assert samples[rotational, 0]["blocks"] == 0 and max(samples[rotational, 0]["data"]) < AT_HAND
        # The limit is 1/100 of the memory: 30 MiB of 3 GiB.
        for kib, window in ((128, 8 * MIB if rotational else 128 * KIB), (4096, 30 * MIB if rotational else 4 * MIB)):
            # Planning stops at the first range that does not fit.
            assert 0.9 * min(window, 7 * MIB) < max(samples[rotational, kib]["data"]) < window + AT_HAND
            assert samples[rotational, kib]["blocks"] > 150
    # At most two batches of half the window, and the same number of leaves of the extent tree and the checksum tree.
    assert samples[0, 128]["unused"] <= 2 * 128 // 16 + 1 and samples[0, 4096]["unused"] > 100


def test_a_rotational_disk_is_read_in_order(copy):
    found = json.loads(debug_vm("um-debug", LIMITS, "order", "DEVICE", disk=copy))
    print(found)
    samples = {(sample["snap"], sample["rotational"]): sample for sample in found}
    for snap in ("names2", "small2"):
        anywhere, in_order = samples[snap, 0], samples[snap, 1]
        assert anywhere["sha256"] == in_order["sha256"] == result("um-upstream", "read", 16384)["sends"][f"{snap}-None"][0]
        assert in_order["reads"] > 500 and in_order["backwards"] < anywhere["backwards"] * 0.8, snap


def test_sends_of_a_filesystem_share_a_limit(copy):
    found = json.loads(debug_vm("um-debug", LIMITS, "crowd", "DEVICE", disk=copy))
    print(found)
    assert found["one"] > 7 * MIB
    assert found["all"] < 31 * MIB + 20 * AT_HAND
    # Sends that have ended take no share.
    assert found["again"] > found["one"] * 0.9


@pytest.mark.parametrize("setting", ["memory.max", "memory.high", "parent"])
def test_a_cgroup_limits_the_sender(copy, setting):
    found = json.loads(debug_vm("um-debug", LIMITS, "cgroup", "DEVICE", setting, str(32 * MIB), disk=copy))
    print(found)
    assert found["data"] < 32 * MIB / 100 + AT_HAND


def test_tracepoints_say_what_is_counted(copy):
    found = json.loads(debug_vm("um-debug", LIMITS, "trace", "DEVICE", disk=copy))
    print(found)
    traced, counted = found["traced"], found["counted"]
    for kind in ("tree", "data"):
        for event, name in (("submit", "submitted"), ("wait", "waited"), ("waste", "wasted")):
            assert traced[f"{kind}_{event}"] == counted[f"{kind}_{name}_kb"] > 0, (kind, event)
        # Leaves of the extent tree and the checksum tree are counted, but are in no batch, and so have no plan event.
        assert 0 < traced[f"{kind}_plan"] <= counted[f"{kind}_planned_kb"]
    # A comparison reads ahead in both snapshots, and in the extent tree and the checksum tree.
    assert {2, 7, *found["sent"]} <= {*found["roots"]}


# Calls for each inode or extent of what is in memory, by the function profiler. Measured on 2026-11-27 with Linux 7.3.4.
WORK_OF = {"send without data": {"searches": 10.5, "clones": 0.45, "lookups": 11.5, "allocations": 22.8},
           "incremental send": {"searches": 22.7, "clones": 2.79, "lookups": 23.7, "allocations": 36.1},
           "send of files": {"searches": 16.6, "clones": 0.42, "lookups": 17.1, "allocations": 48.4},
           "fiemap": {"searches": 0.21, "clones": 0.01, "lookups": 0.23, "allocations": 0.61}}


@long
def test_the_work_for_each_item_is_as_measured(copy):
    found = json.loads(debug_vm("x86_64-debug", LIMITS, "work", "DEVICE", disk=copy))
    print(json.dumps(found, indent=1))
    assert found.keys() == WORK_OF.keys()
    for job, kinds in found.items():
        for kind, count in kinds.items():
            # Not less either: the compiler may have inlined a function.
            assert count == pytest.approx(WORK_OF[job][kind], rel=0.05, abs=0.02), (job, kind)


@long
def test_data_is_read_ahead_in_large_folios(copy):
    # Not on UML, which has no large folios.
    assert "pages of data" in debug_vm("x86_64-debug", READING, "large_folios", "DEVICE", disk=copy)


@pytest.mark.parametrize("flavour, turns, fault, error", [
    ("um-debug", 90, "one allocation", "ENOMEM"),
    pytest.param("um-debug", 2000, "one allocation", "ENOMEM", marks=long),
    pytest.param("x86_64-debug", 60, "fail_function", "EIO", marks=long)])
def test_faults_give_an_error_or_the_same(copy, flavour, turns, fault, error):
    # Expected messages: upstream fails to read an inode for lack of memory, UML fails in a page fault, vmalloc() prints a call trace.
    said = debug_vm(flavour, FAULTS, "faults", "DEVICE", str(turns), disk=copy, expect=r"-ENOMEM|-12\b|BTRFS (error|critical)|Call Trace")
    print(said)
    counts = {tuple(outcome.split(": ")): count for outcome, count in json.loads(said.splitlines()[0]).items()}
    assert all(outcome in ("the same", "EIO") or kind != "disk" and outcome in ("ENOMEM", "other utimes")
               for kind, outcome in counts), counts
    for kind in ("disk", fault):
        assert min(counts.get((kind, outcome), 0) for outcome in ("the same", error if kind == fault else "EIO")) > turns / 50, counts
    assert fault != "fail_function" or counts.get(("search", "EIO"), 0) > 100, counts


@long
def test_no_failing_allocation_loses_a_command():
    disk = blank("upstream", 160 << 20)
    said = debug_vm("um-debug", UPSTREAM, "lost_mkfile", "DEVICE", disk=disk, expect="BTRFS error")
    disk.unlink()
    assert "ENOMEM" in said and "the same" in said and "without" not in said, said


@long
@pytest.mark.parametrize("flavour, seconds, mem", [("um-rust", 60, "144M"), ("um-debug", 60, "3G"), ("x86_64-debug", 120, "3G")])
def test_results_stay_the_same_during_balances_and_snapshots(flavour, seconds, mem):
    disk = blank("stress")
    said = debug_vm(flavour, STRESS, "stress", "DEVICE", str(seconds), disk=disk, mem=mem)
    print(said)
    # 144M is so little memory that the kernel reclaims pages all the time.
    assert mem != "144M" or int(re.search(r"(\d+) pages reclaimed", said)[1]) > 10_000
    disk.unlink()


@long
@pytest.mark.parametrize("flavour, numbers", [("um-rust", range(150, 4000)), ("um-verify", range(4000, 5000))])
def test_broken_images_give_the_same(flavour, numbers):
    # Without CONFIG_BTRFS_DEBUG: its assertions fail on broken metadata.
    compare_broken(numbers, flavour)


@long
def test_all_kunit_tests_pass_under_kasan(tree):
    # Not in the object directory of um-debug: a change of CONFIG_KUNIT would rebuild most of that kernel, twice.
    _, passed = test_kunit.run(tree, "um", "{}-um-debug-kunit", ["um.config", "debug_kernel.config"])
    assert passed == test_kunit.written()
