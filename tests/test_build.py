# SPDX-License-Identifier: GPL-2.0
"""What the configuration options make of the object code, and btrfs as a module."""

import re

import pytest

from conftest import BUILD, SRC, build, output_of


def code(objects):
    """The disassembly of each object file; they are built with all line numbers 0."""
    found = {}
    for file in sorted(objects.glob("*.o")):
        text = output_of("llvm-objdump", "-dr", "--no-show-raw-insn", "--no-leading-addr", file)
        found[file.name] = text.split("\n", 3)[-1]
    return found


@pytest.mark.timeout(1800)
def test_without_the_option_the_object_code_is_upstreams():
    upstream, patched = code(build("objects-upstream")), code(build("objects-patched"))
    assert upstream.keys() == patched.keys() and len(upstream) > 50
    assert [name for name in upstream if upstream[name] != patched[name]] == []


def test_the_replaced_c_is_not_built():
    replaced = re.compile(r" [tT] (reada_for_search|lookup_backref_shared_cache|store_backref_shared_cache"
                          r"|cache_dir_utimes|trim_dir_utimes_cache)$", re.M)
    # The compiler inlines some of them, but not all.
    assert len(replaced.findall(output_of("nm", build("um-c")))) >= 2
    assert replaced.findall(output_of("nm", build("um-rust"))) == []


@pytest.mark.timeout(1800)
def test_module_loads_and_sends():
    """btrfs as a module, on x86_64: load it, run its KUnit suites, send, unload, load again."""
    build("x86_64-module")
    said = output_of(SRC / "scripts/vm", "x86_64-module", "--", SRC / "tests/guest_module.sh", BUILD / "x86_64-module/modules")
    assert re.search(r"sent \d{4,} bytes", said)
    assert said.count("suites passed: btrfs_credit btrfs_data_reada btrfs_leaf_reada btrfs_lru btrfs_reada btrfs_send_utimes btrfs_share_cache") == 2
