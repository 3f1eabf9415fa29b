# SPDX-License-Identifier: GPL-2.0
"""Four kernels give the same results on the same image: upstream, with the patches in C alone, Rust, and VERIFY."""

import functools
import itertools
import json
import os
import shutil

import pytest

from conftest import SRC, WORK, build, output_of

IMAGES = SRC / "tests/guest_images.py"
READING = SRC / "tests/guest_reading.py"
FAULTS = SRC / "tests/guest_faults.py"
BROKEN = SRC / "tests/guest_broken.py"
UPSTREAM = SRC / "tests/guest_upstream.py"
LIMITS = SRC / "tests/guest_limits.py"
FIEMAP_EXTENT_SHARED = 0x2000
OURS = ("um-c", "um-rust", "um-verify")
NODESIZES = (4096, 16384, 65536)


def vm(flavour, *command, disks, mem="2G", options=()):
    """Run a command in a kernel, usually a job of a guest script; return its output."""
    build(flavour)
    options = [*options, *(part for disk in disks for part in ("--disk", disk))]
    return output_of(SRC / "scripts/vm", "--mem", mem, *options, flavour, "--", *command)


def blank(name, size=4 << 30):
    """Create an empty disk image; return its path."""
    WORK.mkdir(parents=True, exist_ok=True)
    image = WORK / name
    image.unlink(missing_ok=True)
    with open(image, "wb") as file:
        file.truncate(size)
    return image


@functools.cache
def image(nodesize):
    """Make the image that all kernels read, with upstream's kernel; return its path."""
    disk = blank(f"image-{nodesize}")
    vm("um-upstream", IMAGES, "make", "/dev/ubdb", nodesize, disks=[disk])
    return disk


@functools.cache
def result(flavour, job, nodesize):
    """Run a job of guest_reading.py in a kernel on a copy of the image; return its result."""
    disk, output = WORK / f"copy-{flavour}", WORK / f"{flavour}-{job}-{nodesize}.json"
    output_of("cp", "--sparse=always", "--reflink=auto", image(nodesize), disk)
    environment = []
    if (flavour, job) == ("um-upstream", "read"):
        shutil.rmtree(streams(nodesize), ignore_errors=True)
        streams(nodesize).mkdir()
        environment = ["env", f"KEEP={streams(nodesize)}"]
    vm(flavour, *environment, READING, job, "/dev/ubdb", output, disks=[disk])
    disk.unlink()
    return json.loads(output.read_text())


def streams(nodesize):
    """Return the directory with the streams of upstream's kernel."""
    return WORK / f"streams-{nodesize}"


@pytest.mark.parametrize("flavour", OURS)
@pytest.mark.parametrize("nodesize", NODESIZES)
def test_streams_are_equal(nodesize, flavour):
    expected = result("um-upstream", "read", nodesize)["sends"]
    assert len(expected) == 27 and all(size > 1000 for _, size in expected.values())
    assert result(flavour, "read", nodesize)["sends"] == expected


@pytest.mark.parametrize("flavour", OURS)
@pytest.mark.parametrize("nodesize", NODESIZES)
def test_sends_leave_the_same_in_the_page_cache(nodesize, flavour):
    expected = result("um-upstream", "read", nodesize)["cached"]
    # Files that were read before the send stay in the cache, and other files do not.
    assert 100 < sum(pages > 0 for pages in expected.values()) < len(expected) / 2
    assert result(flavour, "read", nodesize)["cached"] == expected


@pytest.mark.parametrize("flavour", OURS)
@pytest.mark.parametrize("nodesize", NODESIZES)
def test_fiemaps_are_equal(nodesize, flavour):
    expected = result("um-upstream", "read", nodesize)["fiemap"]
    flags = [extent[3] for extents in expected.values() for extent in extents]
    # The image has shared, not shared, compressed, inline and unwritten extents.
    assert len(flags) > 20_000 and len(set(flags)) > 8
    # The first half of this file has new and old extents of this subvolume only, the second half has extents below shared nodes.
    shared = [bool(flags & FIEMAP_EXTENT_SHARED) for _, _, _, flags in expected["deep/file"]]
    assert shared == [False] * 8000 + [True] * 8000
    copied = expected["copied/file"]
    assert len(copied) == 150 and all(flags & FIEMAP_EXTENT_SHARED for *_, flags in copied)
    assert result(flavour, "read", nodesize)["fiemap"] == expected


@pytest.mark.parametrize("flavour", OURS)
@pytest.mark.parametrize("nodesize", NODESIZES)
def test_fiemaps_are_equal_while_snapshots_come_and_go(nodesize, flavour):
    expected, found = result("um-upstream", "churn", nodesize), result(flavour, "churn", nodesize)
    assert len({json.dumps(extents) for extents in expected["fiemap"].values()}) > 10
    assert found["fiemap"] == expected["fiemap"]
    # In one call: extents are not shared, then shared with a new snapshot, then not shared after all snapshots are deleted.
    shared = [bool(flags & FIEMAP_EXTENT_SHARED) for *_, flags in expected["changed"]]
    assert [is_shared for is_shared, _ in itertools.groupby(shared)] == [False, True, False]
    assert found["changed"] == expected["changed"]
    # The snapshot is made after 256 extents. Upstream reports extent 258 as before the snapshot: do not compare with upstream.
    shared = [bool(flags & FIEMAP_EXTENT_SHARED) for *_, flags in found["changed in between"]]
    assert shared == [False] * 256 + [True] * 104


@pytest.mark.parametrize("nodesize", NODESIZES)
def test_receiving_gives_what_was_sent(nodesize):
    result("um-upstream", "read", nodesize)
    disks = [image(nodesize), blank("received")]
    said = vm("um-rust", READING, "receive", "/dev/ubdb", "/dev/ubdc", streams(nodesize), disks=disks)
    assert said.count("paths equal") == 8
    os.unlink(disks[1])


def test_streams_are_equal_in_a_small_guest():
    output = WORK / "small.json"
    vm("um-rust", READING, "read", "/dev/ubdb", output, disks=[image(16384)], mem="256M")
    assert json.loads(output.read_text())["sends"] == result("um-upstream", "read", 16384)["sends"]


@pytest.mark.parametrize("flavour", ["um-upstream", "um-rust"])
def test_no_readahead_is_no_readahead_of_data(flavour):
    assert "pages of data" in vm(flavour, READING, "without_readahead", "/dev/ubdb", disks=[image(16384)])


def test_readahead_can_be_switched():
    found = json.loads(vm("um-rust", LIMITS, "switches", "/dev/ubdb", disks=[image(16384)]))
    print(found)
    defaults = {"tree_enable": "1", "data_enable": "1", "window_kb": "0"}
    assert found["accepted"] == []
    assert all(found[when] == defaults for when in ("defaults", "after bad values", "mounted before"))
    assert found["mounted later"] == {"tree_enable": "0", "data_enable": "0", "window_kb": "512"}
    assert len(found["sends"]) == 10
    for send in found["sends"]:
        settings, counted = send["settings"], send["counted"]
        name = "small1-None-v2" if send["options"] else "small1-None"
        assert send["sha256"] == result("um-upstream", "read", 16384)["sends"][name][0], settings
        # Send uses most of the data of the small files from readahead. Credit, and at first the window, limit the plan.
        for kind, least in (("tree", 400), ("data", 10_000)):
            planned, submitted, used, wasted = (counted[f"{kind}_{what}_kb"] for what in ("planned", "submitted", "used", "wasted"))
            assert used + wasted <= submitted <= planned
            assert planned == 0 if settings.get(f"{kind}_enable") == "0" else used > least, settings
        assert counted["share_cache_hits"] == counted["share_cache_misses"] == 0
        if "ahead" in send:
            # Readahead of a stalled send. The last range may exceed the bound.
            data, tree = send["ahead"]["data"], send["ahead"]["tree"]
            if "window_kb" in settings:
                assert 0 < data < 256 + 128 and tree <= 256
            else:
                assert settings.get("data_enable") == "0" and data == 0 or data > 1024


def test_readahead_is_counted():
    found = json.loads(vm("um-rust", LIMITS, "count", "/dev/ubdb", disks=[image(16384)]))
    print(found)
    slow, fiemap, killed = (found[what] for what in ("slow", "fiemap", "killed"))
    for kind in ("tree", "data"):
        assert all(counted[f"{kind}_used_kb"] + counted[f"{kind}_wasted_kb"] <= counted[f"{kind}_submitted_kb"] for counted in found.values())
        assert 0 < slow[f"{kind}_waited_kb"] <= slow[f"{kind}_used_kb"]
        assert slow[f"{kind}_wasted_kb"] == 0 or kind == "data" and slow["data_wasted_kb"] < slow["data_used_kb"] / 50
    # A killed send wastes all of its readahead.
    assert killed["data_wasted_kb"] > 1024 and killed["tree_wasted_kb"] > 0
    assert all(killed[f"{kind}_submitted_kb"] == killed[f"{kind}_used_kb"] + killed[f"{kind}_wasted_kb"] for kind in ("tree", "data"))
    assert fiemap["tree_used_kb"] > 1000 and fiemap["data_planned_kb"] == 0
    assert fiemap["share_cache_hits"] > 16_000 and fiemap["share_cache_misses"] > 0


def test_a_send_can_end_at_any_moment():
    said = vm("um-rust", FAULTS, "end", "/dev/ubdb", disks=[image(16384)])
    assert said.startswith("end: ")


def test_verify_compared_much_and_saw_no_difference():
    counts = {}
    for job in ("read", "churn"):
        for nodesize in NODESIZES:
            for what, numbers in result("um-verify", job, nodesize)["verify"].items():
                for kind, number in numbers.items():
                    counts[what, kind] = counts.get((what, kind), 0) + number
    print(counts)
    for (what, kind), number in counts.items():
        if kind == "compared":
            assert number > 1000, what
        elif (what, kind) == ("reada_search", "skipped"):
            # A block may be read into memory between the calls of C and Rust.
            assert number < counts[what, "compared"] / 10_000, what
        else:
            assert number == 0, (what, kind)
    assert sum(number for (_, kind), number in counts.items() if kind == "compared") > 300_000


@functools.cache
def image_to_break():
    """Make the filesystem that guest_broken.py breaks, with upstream's kernel; return its path."""
    disk = blank("image-broken", 160 << 20)
    vm("um-upstream", BROKEN, "make", "/dev/ubdb", disks=[disk])
    return disk


def broken(flavour, numbers):
    """Run all jobs on broken images in a kernel; return {number of the image: (damage, results, warnings of the kernel)}."""
    disk, output = WORK / "copy-broken", WORK / f"{flavour}-broken.json"
    output_of("cp", "--sparse=always", "--reflink=auto", image_to_break(), disk)
    output.unlink(missing_ok=True)
    # Expect warnings: the output file lists them for each image.
    vm(flavour, BROKEN, "run", "/dev/ubdb", numbers.start, numbers.stop, output, disks=[disk],
       options=["--timeout", 3000, "--expect", "BTRFS (critical|error)|WARNING:|Call Trace"])
    disk.unlink()
    lines = map(json.loads, output.read_text().splitlines())
    return {number: (what, results, splats) for number, what, _, results, splats in lines}


def are_alike(what, found, expected):
    """Return whether the results of a kernel for a broken image match those of upstream's kernel.

    A bad pointer gives EIO or EUCLEAN, depending on the blocks in memory. Readahead does not check the owner of a block. Upstream's
    kernel does not notice a wrong generation in a pointer if the block is in memory, and notices a leaf without items only if the leaf
    is in memory (Documentation/upstream/unverified-wait.md). Reads of a compressed extent with an impossible length depend on the
    addresses and the old content of pages.
    """
    errors = {"EIO", "EUCLEAN"} | ({"as before"} if what.startswith("owner") else set())

    def is_alike(left, right):
        return (left == right or {left, right} <= errors
                or what == "generation of a pointer" and (left, right) == ("EIO", "as before")
                or what == "leaf without items" and left == "EUCLEAN")

    return (what == "impossible compressed extent"
            or len(found) == len(expected) and all(map(is_alike, found, expected)))


def compare_broken(numbers, *flavours):
    """Check that the results of kernels for broken images match those of upstream's kernel."""
    expected = broken("um-upstream", numbers)
    assert list(expected) == list(numbers)
    # Most images give errors, most of them only in some of the jobs.
    assert len({tuple(results) for _, results, _ in expected.values()}) > len(numbers) / 20
    for flavour in flavours:
        found = broken(flavour, numbers)
        assert found.keys() == expected.keys()
        for number, (what, results, splats) in found.items():
            if are_alike(what, results, expected[number][1]) and set(splats) <= set(expected[number][2]):
                continue
            # Run upstream's kernel again: its result may depend on concurrent reads (Documentation/upstream/unverified-wait.md).
            again = [broken("um-upstream", range(number, number + 1))[number] for _ in range(8)]
            if not any(are_alike(what, results, other) and set(splats) <= set(said) for _, other, said in again):
                pytest.fail(f"{flavour}, image {number}: {found[number]}\nC: {[expected[number], *again]}", pytrace=False)


def test_broken_images_give_the_same():
    compare_broken(range(150), "um-rust", "um-verify")


@pytest.mark.parametrize("flavour", ["um-upstream", "um-rust"])
def test_extents_of_what_is_no_file_are_left_alone(flavour):
    disk = blank("fifo", 160 << 20)
    said = vm(flavour, BROKEN, "fifo", "/dev/ubdb", disks=[disk], options=["--expect", "BTRFS critical"])
    assert said == "looked up: EUCLEAN\nsent: snapshot\n"
    disk.unlink()


@pytest.mark.parametrize("flavour", ["um-upstream", "um-rust"])
def test_damaged_data_is_counted_as_often(flavour):
    disk = blank("damaged", 300 << 20)
    said = vm(flavour, BROKEN, "data", "/dev/ubdb", disks=[disk], options=["--expect", "BTRFS (critical|error)"])
    # Upstream reads into the page cache, and reads once more before it gives up. Errors in unused readahead are not counted.
    assert said.splitlines() == ["plain: EIO, 2 counted", "compressed: EIO, 2 counted", "compressed, as it is: EIO, 1 counted",
                                 "twice, as it is: EIO, 1 counted"]
    disk.unlink()


@pytest.mark.parametrize("flavour", ["um-c", "um-rust"])
@pytest.mark.parametrize("defect, expected", [("unverified_wait", "while it is read: EUCLEAN"),
                                              ("unverified_generation", "once it is in memory: EIO"),
                                              ("leaf_without_items", "at first: EUCLEAN"),
                                              ("stale_copy", "once the older one is in memory: 1 items"),
                                              ("utimes_of_another", "At snapshot new")])
def test_defects_of_upstream_are_mended(defect, expected, flavour):
    disk = blank("upstream", 160 << 20)
    assert expected in vm(flavour, UPSTREAM, defect, "/dev/ubdb", disks=[disk],
                          options=["--expect", "BTRFS (critical|error)"])
    disk.unlink()


@pytest.mark.parametrize("flavour, expected", [("um-upstream", "8000 extents shared"), ("um-c", "4928 extents not shared"),
                                               ("um-rust", "4928 extents not shared")])
def test_fiemap_notices_the_second_of_two_drops(flavour, expected):
    disk = blank("upstream", 320 << 20)
    assert expected in vm(flavour, UPSTREAM, "stale_shared", "/dev/ubdb", disks=[disk])
    disk.unlink()


@pytest.mark.parametrize("flavour, expected", [("um-upstream", "other data"), ("um-rust", "as before")])
def test_a_send_reads_again_what_a_balance_has_moved(flavour, expected):
    disk = blank("upstream", 320 << 20)
    assert f"sent: {expected}" in vm(flavour, UPSTREAM, "moved_while_read", "/dev/ubdb", disks=[disk])
    disk.unlink()
