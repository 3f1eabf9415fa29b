# SPDX-License-Identifier: GPL-2.0
"""scripts/env on a host that lacks packages: it installs them as root, and prints the command for an ordinary user."""

import fcntl
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conftest import SRC, WORK, output_of

# Programs that scripts/env runs on a host, except df, apt-get and the programs that apt-get installs.
TOOLS = ("awk", "bash", "cat", "chmod", "cut", "date", "dirname", "find", "flock", "grep", "id", "ls", "mkdir", "mv", "paste", "rm", "sh", "sha256sum", "stat",
         "tail", "tar", "touch", "true")
# A fake apt-get. It logs its arguments, and installs commands that fail.
APT_GET = """#!/usr/bin/bash
echo "$*" >>/host/apt-get.log
[ "$1" = update ] || for command in bwrap mmdebstrap; do echo exit 1 >/host/bin/$command; chmod +x /host/bin/$command; done
"""
# A fake df, so that the free space does not depend on the machine that runs the tests.
DF = """#!/usr/bin/bash
echo Avail
cat /host/megabytes
"""
NOBODY = 65534
INSTALL = "install --yes --no-install-recommends bubblewrap mmdebstrap"


@pytest.fixture
def host():
    """Yield a directory with a fake host for on(). It is /host there, and its bin has all commands of the host."""
    directory = WORK / "host"
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "bin").mkdir(parents=True)
    for tool in TOOLS:
        (directory / "bin" / tool).symlink_to(Path(shutil.which(tool)).resolve())
    for command, script in ("apt-get", APT_GET), ("df", DF):
        (directory / "bin" / command).write_text(script)
        (directory / "bin" / command).chmod(0o755)
    (directory / "megabytes").write_text("20000\n")
    (directory / "subids").touch()
    yield directory
    shutil.rmtree(directory)


def on(host, user, command="true", suite="trixie"):
    """Return the command that runs scripts/env on the fake host as `user`."""
    system = [part for name in ("bin", "lib", "lib64") for part in ("--symlink", f"usr/{name}", f"/{name}")]
    subids = [part for name in ("subuid", "subgid") for part in ("--ro-bind", host / "subids", f"/etc/{name}")]
    return ["bwrap", "--die-with-parent", "--unshare-user", "--uid", str(user), "--gid", str(user), "--clearenv", "--setenv", "PATH", "/host/bin",
            "--setenv", "BUILD", "/host/build", "--setenv", "SUITE", suite, "--ro-bind", "/usr", "/usr", *system, "--ro-bind", "/etc/passwd", "/etc/passwd", *subids,
            "--dev", "/dev", "--proc", "/proc", "--ro-bind", SRC, "/src", "--bind", host, "/host", "/src/scripts/env", command]


def fails(command):
    """Run a command that must fail with status 1 and no output; return the lines of its errors."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and result.stdout == ""
    return result.stderr.splitlines()


def test_root_has_what_is_missing_installed(host):
    said = fails(on(host, 0))
    assert said[0] == "scripts/env: installing bubblewrap mmdebstrap" and said[1].startswith(said[0] + ": ")
    assert said[2].startswith("scripts/env: making the toolchain root") and "mmdebstrap failed" in said[3], said
    asked = (host / "apt-get.log").read_text()
    assert asked.splitlines() == ["update", INSTALL]
    assert len(fails(on(host, 0))) == 2 and (host / "apt-get.log").read_text() == asked
    (host / "megabytes").write_text("19999\n")
    [said] = fails(on(host, 0))
    assert said == "scripts/env: less than 20 GB free in /host/build/cache: free some, or set BUILD= and CACHE= to another disk"


def test_an_ordinary_user_is_told_what_to_type(host):
    apt_get = f"apt-get update && apt-get {INSTALL} uidmap"
    add = "touch /etc/subuid /etc/subgid && usermod --add-subuids 231072-296607 --add-subgids 231072-296607 nobody"
    (host / "subids").write_text("other:165536:65536\n")
    assert fails(on(host, NOBODY)) == [f"scripts/env: run first: su - -c '{apt_get} && {add}'"]
    (host / "subids").write_text("other:165536:65536\nnobody:100000:65536\n")
    assert fails(on(host, NOBODY)) == [f"scripts/env: run first: su - -c '{apt_get}'"]
    (host / "bin/sudo").symlink_to("/usr/bin/true")
    assert fails(on(host, NOBODY)) == [f"scripts/env: run first: sudo sh -c '{apt_get}'"]
    assert not (host / "apt-get.log").exists()


def test_another_package_manager_is_left_alone(host):
    (host / "bin/apt-get").unlink()
    for user in (0, NOBODY):
        [said] = fails(on(host, user))
        assert "lacks bubblewrap mmdebstrap" in said and "TOOLCHAIN=host" in said


@pytest.mark.timeout(60)
def test_a_run_says_that_it_waits_for_another(host):
    (host / "build/cache").mkdir(parents=True)
    with open(host / "build/cache/root.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(on(host, 0), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert "waiting for another run" in process.stderr.readline()
        assert not (host / "apt-get.log").exists()
    assert "installing" in process.communicate()[1]


def test_roots_of_older_packages_are_removed_unless_in_use(host):
    cache = host / "build/cache"
    current = [re.search(r"(root-\w+)\.log", fails(on(host, 0, suite=suite))[-1])[1] for suite in ("trixie", "sid")]
    used, old = "root-ba9876543210", "root-0123456789ab"
    for name in (*current, used, old, "root-of-something-else"):
        (cache / name).mkdir()
        (cache / name / "file").touch()
    before = {*os.listdir(cache)}
    handle = os.open(cache / used, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    said = subprocess.run(on(host, 0, "--clean"), stderr=subprocess.PIPE, text=True, check=True).stderr
    assert f"/{used} is in use\n" in said and f"removing /host/build/cache/{old}\n" in said
    assert {*os.listdir(cache)} == before - {old, *(f"{name}.tmp" for name in current)}
    os.close(handle)
    output_of(*on(host, 0, "--clean"))
    assert used not in os.listdir(cache)


def test_a_root_is_made_anew_after_30_days(host):
    """With an mmdebstrap whose root is empty, and that notes its TMPDIR."""
    fails(on(host, 0))
    cache = host / "build/cache"
    assert cache.stat().st_mode & 0o777 == 0o700
    root = cache / next(cache.glob("root-*.log")).stem
    mark = root / ".btrfs-rust-root"
    (host / "made").mkdir()
    (host / "made/.btrfs-rust-root").touch()
    (host / "bin/bwrap").write_text("#!/usr/bin/bash\nexit 0\n")

    def said(days, *options, works=True, has_waited=False, status=0):
        """Make a root of this age, if any, and return what scripts/env says, and whether the root is a new one."""
        program = "echo $TMPDIR >/host/tmpdir; tar -c -C /host/made ." if works else "exit 1"
        (host / "bin/mmdebstrap").write_text(f"#!/usr/bin/bash\n{program}\n")
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        mark.write_text("old")
        os.utime(mark, (time.time() - days * 86400,) * 2)
        if has_waited:
            os.utime(f"{root}.log", (time.time() - 86400 * 2,) * 2)
        done = subprocess.run(on(host, 0, *options), stderr=subprocess.PIPE, text=True)
        assert done.returncode == status
        lines = done.stderr.splitlines()
        return [re.sub(" [0-9]+ s$| \\(.*|, see .*", "", line.removeprefix("scripts/env: ")) for line in lines], mark.read_text() == ""

    made = ["making the toolchain root", "making the toolchain root:"]
    assert said(29) == ([], False)
    # The last attempt was today.
    assert said(31) == ([], False)
    assert said(31, has_waited=True) == (["the toolchain root is 31 days old", *made], True)
    assert (host / "tmpdir").read_text() == "/host/build/cache\n"
    assert said(1, "--refresh") == (["the toolchain root is 1 days old", *made], True)
    old = ["the toolchain root is 31 days old", made[0], "mmdebstrap failed", "going on with the old one"]
    assert said(31, works=False, has_waited=True) == (old, False)
    assert said(31, "--refresh", works=False, status=1) == (old, False)
    root.mkdir(exist_ok=True)
    assert not [*cache.glob("root.old*")]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"], reason="needs root: makes a Debian with apt")
def test_a_bare_debian():
    """On a minimal Debian 13 plus make, `make shell` makes the toolchain root and starts a shell in it."""
    bare = WORK / "bare"
    shutil.rmtree(bare, ignore_errors=True)
    output_of("mmdebstrap", "--mode=root", "--variant=minbase", "--include=make", "trixie", bare)
    (bare / "src").mkdir()
    as_root = ["bwrap", "--bind", bare, "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys", "--tmpfs", "/run",
               "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf", "--ro-bind", SRC, "/src", "--clearenv", "--setenv", "PATH", os.environ["PATH"],
               "--setenv", "BUILD", "/var/tmp/build", "--unshare-pid", "--die-with-parent", "--cap-add", "ALL"]
    as_user = [*as_root, "--setenv", "BUILD", "/tmp/build", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    try:
        assert subprocess.run([*as_root, "bash", "-c", "command -v mmdebstrap || command -v bwrap"], stdout=subprocess.DEVNULL).returncode == 1
        told = subprocess.run([*as_user, "make", "-C", "/src", "shell"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert told.returncode == 2 and f"run first: su - -c 'apt-get update && apt-get {INSTALL} uidmap" in told.stderr
        shell = subprocess.run([*as_root, "make", "-s", "-C", "/src", "shell"], input="rustc --version; find / -xdev -type f -perm /6000 2>/dev/null || true", text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # No program has the set-user-ID bit.
        assert shell.returncode == 0 and re.fullmatch(r"rustc 1\..*\n", shell.stdout), shell
        steps = ("installing bubblewrap mmdebstrap", "installing bubblewrap mmdebstrap: ", "making the toolchain root", "making the toolchain root: ")
        assert all(line.startswith(f"scripts/env: {step}") for line, step in zip(shell.stderr.splitlines(), steps, strict=True)), shell.stderr
    finally:
        shutil.rmtree(bare)
