# SPDX-License-Identifier: GPL-2.0
"""Formal rules: formatting, lints, licences, place of unsafe code, length of functions, patches that apply."""

import json
import os
import re
import runpy
import sys

import pytest

from conftest import BUILD, SRC, output_of

RUST = SRC / "fs/btrfs/rust"


def test_patches_apply_to_every_supported_tree():
    said = output_of(SRC / "scripts/tree", "check")
    supported = runpy.run_path(str(SRC / "scripts/tree"))["SUPPORTED"]
    assert re.findall(r"^tree: Linux (\S+): .* patches apply$", said, re.M) == list(supported)


def mailed():
    """Return the patches of the last `make series`, without the cover letters."""
    return [patch for patch in sorted((BUILD / "series").glob("*/*.patch")) if not patch.name.startswith("0000")]


def test_series_is_what_git_am_takes(tree, tmp_path):
    """`git am` of the series gives the same files as scripts/tree prepare."""
    paths = ("fs/btrfs", "include/trace/events/btrfs.h")
    output_of(SRC / "scripts/tree", "series")
    upstream = output_of(SRC / "scripts/tree", "fetch").strip()
    output_of("cp", "-r", "--parents", *paths, tmp_path, cwd=upstream)
    git = ["git", "-C", tmp_path, "-c", "user.name=t", "-c", "user.email=t@localhost"]
    output_of(*git, "init", "-q")
    output_of(*git, "add", "-A")
    output_of(*git, "commit", "-q", "-m", "upstream")
    output_of(*git, "am", "-q", *mailed())
    for path in paths:
        output_of("diff", "-r", tmp_path / path, tree / path)


def test_mutants_apply(tree):
    """Each mutant of `make mutants` names its test, and fits the patched tree or the project."""
    mutants = sorted((SRC / "tests/mutants").glob("*.patch"))
    assert len(mutants) >= 180
    killers = [re.match(r"Killed-by: (tests/test_\w+\.py\S*( .*)?)", mutant.read_text())[1] for mutant in mutants]
    # Fails if one of the tests does not exist.
    output_of(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *killers, cwd=SRC)
    for mutant in mutants:
        where = SRC if re.search("^--- a/(scripts|tools)/", mutant.read_text(), re.M) else tree
        output_of("git", "apply", "--check", mutant, cwd=where, env={**os.environ, "GIT_CEILING_DIRECTORIES": f"{BUILD}:{SRC.parent}"})


def test_rustfmt(tree):
    output_of("rustfmt", "--check", "--edition", "2021", "--config-path", tree / ".rustfmt.toml", *RUST.rglob("*.rs"),
              *(SRC / "tools/testing").rglob("*.rs"))


def checkpatch(tree, *args):
    # Ignored: patches have no Signed-off-by; the entry in MAINTAINERS is left to the submitter; btrfs_leaf_reada_compare() uses no
    # argument without CONFIG_BTRFS_RUST; the tree has no history with the commits of Fixes:.
    return output_of("perl", tree / "scripts/checkpatch.pl", "--strict", "--no-signoff",
                     "--ignore", "FILE_PATH_CHANGES,MACRO_ARG_UNUSED,UNKNOWN_COMMIT_ID", "--show-types", "--quiet", *args, cwd=tree)


def test_checkpatch_of_the_series(tree):
    output_of(SRC / "scripts/tree", "series")
    assert len(mailed()) > 20
    assert checkpatch(tree, *mailed()) == ""


@pytest.mark.parametrize("file", sorted(str(file.relative_to(RUST)) for file in RUST.rglob("*.[ch]")))
def test_checkpatch_of_c(tree, file):
    assert checkpatch(tree, "--file", RUST / file) == ""


def test_only_ffi_has_unsafe_code():
    found = {file.relative_to(RUST).parts[0] for file in RUST.rglob("*.rs") if "unsafe" in file.read_text()}
    assert found == {"ffi.rs", "ffi"}


def test_the_prototype_of_every_export_is_checked():
    exported = {name for file in (RUST / "ffi").glob("*.rs")
                for name in re.findall(r"#\[no_mangle\]\n[^{]*?fn (\w+)", file.read_text())}
    checked = {name for part in re.findall(r"check_prototypes!\s*[({](.*?)\n?[)}]", (RUST / "ffi.rs").read_text(), re.S)
               for name in re.findall(r"btrfs_rust_\w+", part)}
    assert len(exported) > 30 and exported == checked


def test_the_ABI_of_sysfs_is_described(tree):
    """Settings, counters and module parameters of the readahead are in Documentation/ABI, and nothing else is."""
    code = (RUST / "reada_stats.c").read_text()
    text = (SRC / "Documentation/ABI/testing/sysfs-fs-btrfs-readahead").read_text()
    files = re.findall(r"= __ATTR(?:_RO)?\((\w+)", code)
    assert re.findall(r"/sys/fs/btrfs/<uuid>/readahead/(\w+)", text) == files and len(files) == 4
    assert re.findall(r"/parameters/(\w+)", text) == re.findall(r"module_param_named\((\w+)", code)
    stats = re.findall(r'\[BTRFS_READA_\w+\] = "(\w+)"', code)
    assert sorted(re.findall(r"\b((?:tree|data)_\w+_kb)\b", text)) == sorted(f"{kind}_{stat}_kb" for kind in ("tree", "data") for stat in stats)
    assert set(re.findall(r'"(share_cache_\w+) %llu', code)) == set(re.findall(r"\b(share_cache_\w+)\b", text))
    assert output_of(sys.executable, tree / "tools/docs/get_abi.py", "--dir", SRC / "Documentation/ABI", "validate") == ""


def test_every_file_names_its_licence():
    for name in output_of("git", "-c", "safe.directory=*", "ls-files", cwd=SRC).split():
        if (SRC / name).exists() and not re.search(r"COPYING|\.gitignore|Cargo\.lock|\.kunitconfig|\.patch|\.md$|cover\.txt|fstests/.*\.out$|^results/|/ABI/", name):
            assert "SPDX-License-Identifier: GPL-2.0" in (SRC / name).read_text()[:200], name


def test_links_in_documents_lead_somewhere():
    for name in output_of("git", "-c", "safe.directory=*", "ls-files", "*.md", cwd=SRC).split():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", (SRC / name).read_text()):
            assert ((SRC / name).parent / target).exists(), (name, target)


def test_the_index_of_results_has_all_of_them():
    index = re.findall(r"^\| \[([\w-]+)\]", (SRC / "results/README.md").read_text(), re.M)
    assert sorted(index) == sorted(path.name for path in (SRC / "results").iterdir() if path.is_dir())


def test_nothing_is_both_in_the_overlay_and_patched(tree):
    patched = {path for patch in (SRC / "patches").rglob("*.patch") for path in re.findall(r"\+\+\+ b/(\S+)", patch.read_text())}
    assert patched and not [path for path in patched if (SRC / path).exists()]
    # struct btrfs_path, in ctree.h, must not grow: all that is new there is a mode of readahead.
    header = [line for patch in (SRC / "patches").rglob("*.patch") for part in patch.read_text().split("diff --git ")
              if part.startswith("a/fs/btrfs/ctree.h ") for line in part.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert header and not [line for line in header if ";" in line]
    ours = (SRC / "fs/btrfs/Kconfig").read_text().split("\n", 2)[2]
    assert (tree / "fs/btrfs/Kconfig").read_text().endswith("say N.\n\n" + ours)


def test_patches_have_few_conditionals():
    text = "".join(patch.read_text() for patch in (SRC / "patches").rglob("*.patch"))
    assert len(re.findall(r"^\+#\s*(?:if|ifdef|ifndef|elif|else|endif)\b", text, re.M)) <= 40


def test_functions_are_short():
    functions = {".rs": r"^( *)(?:[\w() ]+ )?(?:extern .C. )?fn \w+[^;]*?\{$.*?^\1\}$", ".c": r"^()[\w *]+\([^;{]*?\)\n\{$.*?^\}$"}
    for file in (path for path in RUST.rglob("*") if path.is_file()):
        text = file.read_text()
        for found in re.finditer(functions.get(file.suffix, "$^"), text, re.M | re.S):
            assert found[0].count("\n") < 42, found[0].splitlines()[0]


def test_the_figures_of_README_are_those_of_its_samples(monkeypatch):
    monkeypatch.syspath_prepend(SRC / "scripts/bench")
    script = runpy.run_path(str(SRC / "scripts/bench/demo"))
    devices = sys.modules["report"].DEVICES
    rows = script["rows"](json.loads((SRC / "results/demo/samples.json").read_text()))
    expected = {(row["job"], devices[row["device"]]): [*(f"{row['times'][module]:.1f} s" for module in ("stock", "ours")), f"{row['ratio'][0]:.1f}"]
                for row in rows}
    text = (SRC / "README.md").read_text()
    found = {(job, disk): [stock, ours, ratio] for job, disk, stock, ours, ratio in re.findall(r"^\| (.+) \| (.+) \| (.+ s) \| (.+ s) \| ([\d.]+) \|$", text, re.M)}
    assert 5 < len(found) <= 10 and all(row["same"] for row in rows)
    assert found == {key: expected[key] for key in found}


def test_the_figures_of_results_are_those_of_their_samples(monkeypatch):
    """Each table of results.md has columns and rows of the report that its section names."""
    monkeypatch.syspath_prepend(SRC / "scripts/bench")
    import report
    compared = {}
    for section in re.split("^## ", (SRC / "Documentation/results.md").read_text(), flags=re.M)[1:]:
        folder = re.search(r"\]\(\.\./results/([\w-]+)/report\.md\)", section)
        header, _, *rows = [[cell.strip() for cell in line.split("|")] for line in re.findall(r"^\|(.*)\|$", section, re.M)] or [None, None]
        if not rows:
            continue
        names, found = report.comparison(report.load(SRC / "results" / folder[1] / "samples.json"))
        columns = [names.index(name) for name in header]
        assert "NO" not in {row[-1] for row in found} and rows == [row for row in ([row[n] for n in columns] for row in found) if row in rows]
        compared[folder[1]] = len(rows)
    assert sorted(compared) == ["latency", "ram", "spindle", "ssd"] and min(compared.values()) > 12, compared


def test_the_price_in_README_is_right():
    """Patches, lines that they change, and lines of new files; lines within 5%."""
    def lines(files):
        return sum(file.read_text().count("\n") for file in files)

    output_of(SRC / "scripts/tree", "series")
    text = (SRC / "README.md").read_text()
    for name, patches, added, removed in re.findall(r"^\| \[(\d-\w+)\]\(.*?\) \| (\d+) \| (\d+), (\d+)", text, re.M):
        files = [*(SRC / "patches" / name).glob("*.patch")]
        changed = [line for file in files if "@" not in file.name for line in file.read_text().splitlines()]
        for sign, number in (("+", added), ("-", removed)):
            found = sum(line.startswith(sign) and not line.startswith(sign * 3) for line in changed)
            assert int(number) == pytest.approx(found, rel=0.05), (name, sign, found)
        assert int(patches) == sum(patch.parent.name == name for patch in mailed())
    rust = {*RUST.rglob("*.rs")}
    tests = {file for file in rust if file.name == "tests.rs"}
    [[c, code, kunit]] = re.findall(r", and ([\d,]+) in new files \| .*: ([\d,]+) lines of Rust and ([\d,]+) of KUnit tests", text)
    for number, files in ((c, RUST.rglob("*.[ch]")), (code, rust - tests), (kunit, tests)):
        assert int(number.replace(",", "")) == pytest.approx(lines(files), rel=0.05), number
