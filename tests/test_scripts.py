# SPDX-License-Identifier: GPL-2.0
"""Bad input gives a one-line message and a non-zero exit status, and a warning of the kernel fails a run."""

import email.utils
import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import types

import pytest

import common
from conftest import BUILD, SRC, build, output_of


def refused(*command, **environment):
    """Run a command that must fail with a message of one line; return the message."""
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, env={**os.environ, **environment})
    assert result.returncode != 0 and result.stdout == ""
    assert result.stderr.strip().count("\n") == 0, result.stderr
    return result.stderr


def module(name):
    """Load a script as a module."""
    script = types.ModuleType(name)
    exec((SRC / "scripts" / name).read_text(), script.__dict__)
    return script


@pytest.fixture
def upstream(tmp_path):
    """Return the part of a kernel tree that our files and patches need."""
    source = output_of(SRC / "scripts/tree", "fetch").strip()
    output_of("cp", "-r", "--parents", "Makefile", "Kbuild", "fs/btrfs", "include/trace/events/btrfs.h", tmp_path, cwd=source)
    return tmp_path


def test_help_needs_nothing_but_python():
    """--help works with the standard library alone, and without other programs."""
    scripts = [file for part in ("scripts", "tools") for file in (SRC / part).rglob("*") if file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env python3\n")]
    assert {"build", "btrfs-readahead", "run", "compare", "report.py", "fiemap.py"} < {file.name for file in scripts}
    for script in scripts:
        said = subprocess.run([sys.executable, "-S", script, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"PATH": "/none"})
        assert said.returncode == 0 and said.stdout.startswith("usage: "), said
    assert output_of(SRC / "scripts/env", "--help").startswith("Run a command")


def test_a_tree_is_patched_once(upstream):
    output_of(SRC / "scripts/tree", "apply", env={**os.environ, "KDIR": str(upstream)})
    assert "already patched" in refused(SRC / "scripts/tree", "apply", KDIR=str(upstream))


def test_a_guest_does_not_get_the_root_of_the_host(monkeypatch, tmp_path):
    vm = module("vm")
    vm.ROOT_MARK = tmp_path / "mark"
    for user, message in ((0, "as root"), (1000, "is not built")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(common.Error, match=message):
            vm.run("no-kernel", ["true"])


def test_sources_and_headers_are_of_the_same_revision(tmp_path, monkeypatch, capsys):
    """A fake archive gets a new kernel of the same release, and then of another."""
    tree, archive, release = module("tree"), {}, "7.3.4+deb13-amd64"
    tree.CACHE = tmp_path / "cache"
    tree.CACHE.mkdir()
    monkeypatch.delenv("KDIR", raising=False)

    def apt(suite, verb, *packages, tool="apt-get"):
        """As apt() of scripts/tree. The packages of the archive have one file."""
        directory = tree.CACHE / "apt" / suite
        directory.mkdir(parents=True, exist_ok=True)
        if archive is None:
            raise common.Error("no network")
        for package, _, wanted in (name.partition("=") for name in packages if verb == "download"):
            revision, content = archive.get(package, (None, ""))
            if not revision or wanted not in ("", revision):
                raise common.Error(f"E: Version '{wanted}' for '{package}' was not found")
            (tmp_path / "deb/DEBIAN").mkdir(parents=True)
            (tmp_path / "deb/usr/src").mkdir(parents=True)
            (tmp_path / "deb/DEBIAN/control").write_text(f"Package: {package}\nVersion: {revision}\nArchitecture: all\nMaintainer: a\nDescription: a\n")
            (tmp_path / "tree").mkdir()
            (tmp_path / "tree/Makefile").write_text(content)
            output_of("tar", "-cf", tmp_path / "deb/usr/src/linux.tar.xz", "-C", tmp_path, "tree")
            output_of("dpkg-deb", "--root-owner-group", "--build", tmp_path / "deb", directory / f"{package}_{revision}_all.deb")
            for part in ("deb", "tree"):
                shutil.rmtree(tmp_path / part)
        if verb == "depends":
            return "Depends: linux-headers-7.3.5+deb13-amd64"
        return "".join(f"{package} | {archive[package][0]} | of a mirror\n" for package in packages if package in archive)

    tree.apt = apt
    monkeypatch.setattr(tree.__dict__["shutil"], "disk_usage", lambda _: types.SimpleNamespace(free=1 << 40))

    def fetched(revision=None):
        """Return the revisions of the headers and the source, and the Makefile of the source."""
        headers = tree.unpacked("headers", release)
        source = tree.fetch("7.3", revision or tree.revision_of(headers))
        return tree.revision_of(headers), tree.revision_of(source), (source / "Makefile").read_text()

    for revision in ("7.3.4-1", "7.3.4-2"):
        archive |= {f"linux-headers-{release}": (revision, ""), "linux-source-7.3": (revision, f"of {revision}")}
        assert fetched() == (revision, revision, f"of {revision}")
    before = capsys.readouterr().err
    assert before.count("fetching") == 6 and fetched()[0] == "7.3.4-2" and capsys.readouterr().err == ""
    archive, kept = None, archive
    assert fetched()[0] == "7.3.4-2"
    archive = kept
    # The next point release has another name. The old headers are still here, and the old source.
    archive = {"linux-source-7.3": ("7.3.5-1", "of 7.3.5-1")}
    assert fetched()[1] == "7.3.4-2"
    with pytest.raises(common.Error, match=r"no linux-source-7.3 of version 7.3.3-1 \(any more\)"):
        fetched("7.3.3-1")
    shutil.rmtree(tree.CACHE / f"x86_64-headers-{release}")
    with pytest.raises(common.Error, match=r"no linux-headers-7.3.4\S+ \(any more\), the newest is of 7.3.5\+deb13-amd64"):
        fetched()
    # Its headers get the new source.
    assert tree.revision_of(tree.fetch("7.3", "7.3.5-1")) == "7.3.5-1"


def test_an_archive_that_is_no_more_updated_is_reported():
    tree, now = module("tree"), time.time()
    for seconds, days in ((3600, None), (-86400 * 3, 3)):
        assert tree.expired(f"Suite: sid\nValid-Until: {email.utils.formatdate(now + seconds, usegmt=True)}\nMD5Sum:\n") == days
    assert tree.expired("Suite: stable\nMD5Sum:\n") is None


def test_an_unsupported_version_is_refused(upstream):
    (upstream / "Makefile").write_text("VERSION = 6\nPATCHLEVEL = 1\n")
    assert "6.1 is not supported" in refused(SRC / "scripts/tree", "apply", KDIR=str(upstream))
    assert "6.1 is not supported" in refused(SRC / "scripts/tree", "prepare", "6.1")


def test_a_tree_whose_code_differs_is_refused_and_left_alone(upstream):
    file = upstream / "fs/btrfs/send.c"
    file.write_text(file.read_text().replace("cache_dir_utimes", "keep_dir_utimes"))
    before = file.read_text()
    assert "does not apply" in refused(SRC / "scripts/tree", "apply", KDIR=str(upstream))
    assert file.read_text() == before and not (upstream / "fs/btrfs/rust").exists()


def test_what_was_not_finished_is_made_anew():
    """An interrupted copy of the tree is not used as the tree."""
    tree = module("tree")
    target = BUILD / "run-unfinished"
    shutil.rmtree(target, ignore_errors=True)
    for finished in (False, True):
        try:
            with tree.finished(target) as part:
                (part / "file").touch()
                if not finished:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        assert target.exists() == finished
    shutil.rmtree(target)


def test_a_version_that_the_archive_has_no_more_is_left_out(monkeypatch):
    monkeypatch.delenv("KDIR", raising=False)
    tree = module("tree")

    def fetch(version):
        if version != "7.2":
            raise tree.Error(reason)
        return version

    tree.fetch = fetch
    reason = "failed: E: Unable to locate package"
    assert tree.pristine() == tree.pristine(everything=True) == ["7.2"]
    reason = "failed: E: no network"
    assert tree.pristine(everything=True) == ["7.2"]
    with pytest.raises(tree.Error, match="no network"):
        tree.pristine()


def test_only_a_directory_of_ours_is_cleaned(tmp_path):
    theirs, ours = tmp_path / "linux-next", tmp_path / "build"
    theirs.mkdir()
    assert "was not empty" in refused(SRC / "scripts/build", "--clean", BUILD=str(tmp_path))
    assert theirs.exists()
    (ours / "linux-7.3").mkdir(parents=True)
    (ours / ".btrfs-rust").touch()
    with open(ours / "linux-7.3/lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "a build is running" in refused(SRC / "scripts/build", "--clean", BUILD=str(ours))
    output_of(SRC / "scripts/build", "--clean", env={**os.environ, "BUILD": str(ours)})
    assert [path.name for path in ours.iterdir()] == [".btrfs-rust"]


def test_an_image_in_use_is_refused(tmp_path):
    image = tmp_path / "image"
    image.touch()
    build("um-c")
    with open(image) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "in use" in refused(SRC / "scripts/vm", "--disk", image, "um-c", "--", "true")
    assert "does not exist" in refused(SRC / "scripts/vm", "--disk", tmp_path / "none", "um-c", "--", "true")


def test_a_kernel_or_flavour_that_is_not_there_is_refused():
    assert "not built" in refused(SRC / "scripts/vm", "um-none", "--", "true")
    assert "no flavour" in refused(SRC / "scripts/build", "um-none")


def test_a_kernel_is_configured_once_and_what_it_does_not_take_is_refused(tree, tmp_path):
    script = module("build")
    written = []
    for _ in range(2):
        script.configure(common.place_of(tree, tmp_path), script.FLAVOURS["um-c"])
        written.append((tmp_path / ".config").stat().st_mtime_ns)
    assert written[0] == written[1]
    more = tmp_path / "more.config"
    more.write_text("CONFIG_BTRFS_RUST=y\nCONFIG_EXT4_FS=n\nCONFIG_NONE_SUCH=y\nCONFIG_PROC_FS=n\n")
    with pytest.raises(script.Error, match="does not take CONFIG_NONE_SUCH, CONFIG_PROC_FS, see"):
        script.configure(common.place_of(tree, tmp_path), script.Flavour("um", ("um.config", more)))
    assert not (tmp_path / "configured").exists()


def test_a_step_says_how_long_it_took(monkeypatch, capsys):
    times = iter([0, 41.2, 100, 290])
    monkeypatch.setattr(common, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    for step in ("image", "um-c"):
        with common.timed(step):
            pass
    assert capsys.readouterr().err == "image: 41 s\num-c: 3 min 10 s\n"
    monkeypatch.undo()
    with pytest.raises(OSError), common.timed("fails"):
        raise OSError
    assert capsys.readouterr().err == ""


def test_a_build_says_what_it_does_and_how_long_it_took():
    build("um-c")
    (BUILD / "um-c/inputs").unlink()
    first, second = (subprocess.run([SRC / "scripts/build", "um-c"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
                     for _ in range(2))
    assert re.search(r"build: um-c\nbuild: um-c: (\d+ min )?\d+ s\n$", first.stderr), first.stderr
    # Nothing has changed since.
    assert second.stderr == "" and second.stdout == first.stdout == f"{BUILD}/um-c/linux\n"


def test_a_result_is_built_again_if_its_inputs_change(tmp_path, monkeypatch):
    script = module("build")
    files = ("fs/btrfs/rust/a.rs", "fs/btrfs/rust/a.c", "fs/btrfs/rust/a.h", "fs/btrfs/rust/Makefile", "fs/btrfs/a.c", common.REVISION)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    (tmp_path / ".btrfs-rust").write_text("\n".join(files[:-1]))
    flavours = [script.FLAVOURS[name] for name in ("um-c", "um-rust")]
    before = [script.inputs(tmp_path, flavour) for flavour in flavours]
    assert None not in before and before[0] != before[1]
    for name in files:
        (tmp_path / name).write_text("new")
        changed = [script.inputs(tmp_path, flavour) != old for flavour, old in zip(flavours, before)]
        # A kernel without CONFIG_BTRFS_RUST does not build these files.
        assert changed == [name not in files[:2], True], name
        (tmp_path / name).write_text("old")
    flavour = script.Flavour("um", (), result="fs/btrfs/a.c")
    (tmp_path / ".config").touch()
    kept = script.keep(common.Place(tmp_path, tmp_path, tmp_path, tmp_path, ()), flavour, tmp_path / "kept", before[0])
    assert [script.built(flavour, tmp_path / "kept", digest) for digest in (before[0], before[1], None)] == [kept, None, None]
    with monkeypatch.context() as patch:
        patch.setenv("KDIR", str(tmp_path))
        assert script.inputs(tmp_path, flavours[0]) is None
    (tmp_path / common.REVISION).unlink()
    assert script.inputs(tmp_path, flavours[0]) is None


def test_what_waits_for_another_run_says_so(tmp_path, capsys):
    with open(tmp_path / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(0.2, held.close).start()
        with common.locked(tmp_path / "lock"):
            assert f"waiting for another run, which holds {tmp_path}/lock\n" in capsys.readouterr().err
    with common.locked(tmp_path / "lock"):
        assert capsys.readouterr().err == ""


def test_a_modelled_disk_is_served_to_qemu(tmp_path):
    image = tmp_path / "image"
    image.write_bytes(b"here" + bytes((1 << 20) - 4))
    build("x86_64-module")
    assert output_of(SRC / "scripts/vm", "--model", "spindle", image, "x86_64-module", "--", "head", "-c", "4", "/dev/vda") == "here"


@pytest.mark.parametrize("flavour", ["um-c", "x86_64-module"])
def test_a_kernel_warning_fails_the_run(flavour):
    build(flavour)
    said = subprocess.run([SRC / "scripts/vm", flavour, "--", "bash", "-c", "echo '<4>WARNING: as a test' >/dev/kmsg"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    assert said.returncode != 0 and "the kernel said 'WARNING:'" in said.stderr


# The `check` of a fake xfstests. The kernel dies in btrfs/002, and btrfs/003 fails only in the Rust kernel.
CHECK = """#!/bin/bash
for test in "${@:2}"; do
    echo -n "$test  "
    case $test in
    btrfs/001) echo " 1s" ;;
    btrfs/002) busybox poweroff -f ;;
    btrfs/003) [[ $RESULT_BASE = */um-upstream ]] && echo " 2s" || echo "- output mismatch (see $RESULT_BASE/btrfs/003.out.bad)" ;;
    btrfs/004) echo "<4>WARNING: as a test" >/dev/kmsg; echo "_check_dmesg: something found in dmesg (see 004.dmesg)" ;;
    *) echo "[not run] not here" ;;
    esac
done
echo "Ran: $*"
"""


@pytest.fixture
def xfstests():
    """Yield a function that runs scripts/xfstests on a fake installed xfstests, with a separate $BUILD."""
    directory = BUILD / "run-xfstests"
    # Remove the files of a run that was killed.
    shutil.rmtree(directory, ignore_errors=True)
    for name, text in {"check": CHECK, "ltp/fsstress": "", "tests/btrfs/group.list": "# Made\n\n001 quick send\n002 send\n003 send\n004 send\n",
                       "tests/generic/group.list": "001 fiemap\n"}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    (directory / "check").chmod(0o755)
    for flavour in ("um-upstream", "um-rust"):
        (directory / flavour).symlink_to(build(flavour).parent)
    yield lambda *arguments: subprocess.run([SRC / "scripts/xfstests", "--size", "1", directory, *arguments],
                                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                            text=True, env={**os.environ, "BUILD": str(directory)})
    shutil.rmtree(directory)


def test_an_xfstests_that_is_none_is_refused(tmp_path, xfstests):
    assert "xfstests-dev.git" in refused(SRC / "scripts/xfstests")
    assert "not an installed xfstests: get https" in refused(SRC / "scripts/xfstests", tmp_path)
    for arguments, message in ((["send", "fiemep", "btrfs/005"], "no group or test btrfs/005, fiemep"),
                               (["--kernels", "um-none", "um-upstream"], "um-none is not built"), (["btrfs/005"], "no group or test btrfs/005"),
                               (["--size", "1000000"], "needed")):
        said = xfstests(*arguments)
        assert said.returncode == 1 and said.stdout == "" and message in said.stderr and said.stderr.count("\n") == 1, said


def test_xfstests_shows_what_differs(xfstests):
    said = xfstests()
    assert said.returncode == 1 and re.findall(r"btrfs/\d+", said.stdout) == ["btrfs/003"], said
    verdicts = {"btrfs/001": ("passed", "passed"), "btrfs/002": ("failed: the kernel stopped early",) * 2,
                "btrfs/003": ("passed", "failed: output mismatch"), "btrfs/004": ("failed: _check_dmesg: something found in dmesg",) * 2,
                "generic/001": ("not run: not here",) * 2}
    assert (BUILD / "run-xfstests/xfstests/verdicts").read_text().splitlines() == ["\t".join([test, *verdicts[test]]) for test in verdicts]
    assert xfstests("btrfs/001", "generic/001").returncode == 0
    assert "no test passed" in xfstests("fiemap").stderr
