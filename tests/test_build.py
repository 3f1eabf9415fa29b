# SPDX-License-Identifier: GPL-2.0
"""Object code with and without the option, the kernel after each patch, and btrfs as a module."""

import json
import os
import re
import runpy
import subprocess

import pytest

from common import place_of
from conftest import BUILD, SRC, WORK, build, output_of
from test_kernels import EXPECTED, MENDED, READING, UPSTREAM, blank, copied, image
from test_style import mailed


def code(objects):
    """Return the code and the data of each object file. The objects are built with __LINE__ 0."""
    found = {}
    for file in sorted(objects.glob("*.o")):
        code = output_of("llvm-objdump", "-dr", "--no-show-raw-insn", "--no-leading-addr", file)
        names = re.findall(r"^ +\d+ (\.(?:ro)?data\S*) ", output_of("llvm-objdump", "-h", file), re.M)
        data = output_of("llvm-objdump", "-s", *(f"--section={name}" for name in names), file) if names else ""
        found[file.name] = [text.split("\n", 3)[-1] for text in (code, data)]
    return found


@pytest.mark.timeout(1800)
def test_without_the_option_the_object_code_is_that_of_the_patches_in_c():
    c, patched = code(build("objects-c")), code(build("objects-patched"))
    assert c.keys() == patched.keys() and len(c) > 50
    assert sum(bool(data) for _, data in c.values()) > 30
    assert [name for name in c if c[name] != patched[name]] == []


def mended(kernel, number, expect):
    """Run the reproducers of fix `number` in a kernel; return which of them say what they say with the fix.

    A kernel without the fix may stop, or say what `expect` does not match.
    """
    disk, found = blank("step", 320 << 20), {}
    for defect, (fix, expected) in MENDED.items():
        if fix == number:
            job, *arguments = defect.split()
            command = [SRC / "scripts/vm", "--expect", expect, "--disk", disk, kernel, "--", UPSTREAM, job, "/dev/ubdb", *arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            # Not a reproducer that fails for another reason.
            assert done.returncode == 0 or re.search("the kernel (said|stopped early)", done.stderr), done.stderr[-4000:]
            found[defect] = done.returncode == 0 and expected in done.stdout
    return found


def read_by(kernel):
    """Return the sends and fiemaps of the image in a kernel."""
    disk, output = copied(image(16384), "copy-step"), WORK / "step.json"
    output_of(SRC / "scripts/vm", "--disk", disk, kernel, "--", READING, "read", "/dev/ubdb", output)
    found = json.loads(output.read_text())
    return found["sends"], found["fiemap"]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_each_patch_builds_and_does_its_part():
    """After each patch of the three series, the kernel builds without warnings in btrfs, and gives upstream's streams and extents.

    Each fix mends the defects that its reproducers show, and no patch before it does. The last patch adds the option for Rust.
    """
    output_of(SRC / "scripts/tree", "series")
    upstream, tree, kernel = output_of(SRC / "scripts/tree", "fetch").strip(), WORK / "series-tree", WORK / "um-series"
    # By content, and without times: objects of an earlier run, with other patches, may be newer than the files of upstream.
    output_of("rsync", "-rlpc", "--delete", f"{upstream}/", f"{tree}/")
    kernel.mkdir(exist_ok=True)
    place = place_of(tree, kernel)
    script = runpy.run_path(str(SRC / "scripts/build"))
    flavours = script["FLAVOURS"]
    patches = mailed()
    build("um-upstream")
    expected, before = read_by("um-upstream"), mended("um-upstream", 1, ".")
    assert all(mended("um-upstream", 0, EXPECTED).values())
    for patch in patches:
        output_of("git", "apply", "--whitespace=nowarn", patch, cwd=tree, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(BUILD)})
        flavour = flavours["um-rust" if patch == patches[-1] else "um-c"]
        script["configure"](place, flavour)
        assert script["make"](place, flavour), patch
        assert not re.search(r"/fs/btrfs/\S+:\d+:\d+: warning:|^warning: ", (kernel / "make.log").read_text(), re.M), patch
        if patch.parent.name == "1-fixes":
            number = int(patch.name[:4])
            after = mended(kernel, number, EXPECTED)
            print(patch.name, before, after)
            assert not any(before.values()) and all(after.values()), patch
            before = mended(kernel, number + 1, ".")
        assert read_by(kernel) == expected, patch
    assert (kernel / "fs/btrfs/rust/btrfs_rust.o").exists()


def test_the_replaced_c_is_not_built():
    # With Rust, these are short inline functions, which the compiler does not emit.
    replaced = re.compile(r" [tT] (btrfs_select_search|btrfs_share_cache_lookup|btrfs_send_utimes_add|btrfs_lru_cache_store)$", re.M)
    assert len(replaced.findall(output_of("nm", build("um-c")))) == 4
    assert replaced.findall(output_of("nm", build("um-rust"))) == []


def test_no_function_takes_much_stack():
    """As scripts/checkstack.pl of the kernel, which counts a frame twice: when it is taken and when it is given back."""
    frames = {}
    name = None
    for line in output_of("objdump", "-d", "--no-show-raw-insn", build("um-rust")).splitlines():
        if found := re.match(r"\w+ <(\w*btrfs_rust\w*)>:", line):
            name = found[1]
        elif line.endswith(":"):
            name = None
        elif name and (found := re.search(r"\ssub +\$0x(\w+),%rsp$", line)):
            frames[name] = max(int(found[1], 16), frames.get(name, 0))
    assert len(frames) > 20 and max(frames.values()) <= 1024, sorted(frames.items(), key=lambda frame: frame[1])[-20:]


@pytest.mark.timeout(1800)
def test_module_loads_and_sends():
    """On x86_64: load btrfs as a module, run its KUnit suites, send, unload, and do so again."""
    build("x86_64-module")
    said = output_of(SRC / "scripts/vm", "x86_64-module", "--", SRC / "tests/guest_module.sh", BUILD / "x86_64-module/modules")
    assert re.search(r"sent \d{4,} bytes", said)
    suites = sorted(suite for file in (SRC / "fs/btrfs/rust").rglob("*.rs") for suite in re.findall(r"kunit_tests\((\w+)\)", file.read_text()))
    assert re.findall(r"^suites passed: (.*)$", said, re.M) == 2 * [" ".join(suites)]
