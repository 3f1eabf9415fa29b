# SPDX-License-Identifier: GPL-2.0
"""Object code with and without the option, the build after each patch, and btrfs as a module."""

import os
import re
import runpy

import pytest

from conftest import BUILD, SRC, build, output_of
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


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_patch_builds(tmp_path):
    """btrfs builds without warnings after each patch of the three series. The last patch adds the option for Rust."""
    output_of(SRC / "scripts/tree", "series")
    upstream, tree, out = output_of(SRC / "scripts/tree", "fetch").strip(), BUILD / "series-tree", BUILD / "series-objects"
    output_of("rsync", "-a", "--delete", f"{upstream}/", f"{tree}/")
    out.mkdir(exist_ok=True)
    script = runpy.run_path(str(SRC / "scripts/build"))
    flavours = script["FLAVOURS"]
    patches = mailed()
    for patch in patches:
        output_of("git", "apply", "--whitespace=nowarn", patch, cwd=tree, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(BUILD)})
        flavour = flavours["um-rust" if patch == patches[-1] else "um-c"]
        script["configure"](tree, flavour, out)
        assert script["make"](tree, flavour, out, "fs/btrfs/"), patch
        assert "warning:" not in (out / "make.log").read_text(), patch
    assert (out / "fs/btrfs/rust/btrfs_rust.o").exists()


def test_the_replaced_c_is_not_built():
    # With Rust, these are short inline functions, which the compiler does not emit.
    replaced = re.compile(r" [tT] (btrfs_select_search|btrfs_share_cache_lookup|btrfs_send_utimes_add|btrfs_lru_cache_store)$", re.M)
    assert len(replaced.findall(output_of("nm", build("um-c")))) == 4
    assert replaced.findall(output_of("nm", build("um-rust"))) == []


@pytest.mark.timeout(1800)
def test_module_loads_and_sends():
    """On x86_64: load btrfs as a module, run its KUnit suites, send, unload, and do so again."""
    build("x86_64-module")
    said = output_of(SRC / "scripts/vm", "x86_64-module", "--", SRC / "tests/guest_module.sh", BUILD / "x86_64-module/modules")
    assert re.search(r"sent \d{4,} bytes", said)
    suites = sorted(suite for file in (SRC / "fs/btrfs/rust").rglob("*.rs") for suite in re.findall(r"kunit_tests\((\w+)\)", file.read_text()))
    assert re.findall(r"^suites passed: (.*)$", said, re.M) == 2 * [" ".join(suites)]
