# SPDX-License-Identifier: GPL-2.0
"""btrfs.ko for a kernel of Debian 13 loads there and gives the results of the kernel's own. A module that does not fit is refused."""

import functools
import json
import re
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD, SRC, WORK, output_of
from test_kernels import READING, image, result
from test_scripts import module, refused

pytestmark = pytest.mark.timeout(1800)


@functools.cache
def headers():
    return Path(output_of(SRC / "scripts/tree", "headers").strip())


@functools.cache
def built(flavour=None):
    """Build the module for the kernel of headers(), or for another flavour of it; return its path and the release of the kernel."""
    release = headers().name.removeprefix("linux-headers-")
    if flavour:
        release = f"{release.split('-')[0]}-{flavour}"
    output_of(SRC / "scripts/module", *([release] if flavour else []))
    return BUILD / "module" / release / "btrfs.ko", release


def stock(which, *command, flavour=None):
    """Run a command in the stock kernel with the module `which`. Return the load message of btrfs and the output of the command.

    `which` is the path of a module, or "stock" for the kernel's own one.
    """
    kernel = output_of(SRC / "scripts/tree", "kernel", built(flavour)[1]).strip()
    return output_of(SRC / "scripts/vm", "--read-only", "--timeout", 1500, "--disk", image(16384), kernel, "--",
                     SRC / "tests/guest_stock.sh", which, *command)


def test_a_stock_kernel_loads_the_module_and_sends_the_same():
    snaps = ("names2", "data1", "small1")
    # On a disk with slow seeks, where data is read in another order.
    sends = ("echo 1 >/sys/block/vda/queue/rotational; mkdir /tmp/fs; mount -o ro /dev/vda /tmp/fs;"
             f"for snap in {' '.join(snaps)}; do btrfs -q send /tmp/fs/$snap | sha256sum; done")
    said = stock(built()[0], "bash", "-c", sends)
    expected = result("um-upstream", "read", 16384)["sends"]
    assert re.match(r"Btrfs loaded, .*, rust=0\.\d+\+g", said)
    assert re.findall(r"^(\w{64})  -$", said, re.M) == [expected[f"{snap}-None"][0] for snap in snaps]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flavour", [None, "rt-amd64"])
def test_a_stock_kernel_sends_and_maps_the_same_as_with_its_own_module(flavour):
    found, (ours, release) = {}, built(flavour)
    for which in (ours, "stock"):
        output = WORK / f"module-{Path(which).name}.json"
        said = stock(which, READING, "read", "/dev/vda", output, flavour=flavour)
        assert ("rust=" in said) == (which != "stock")
        found[which] = json.loads(output.read_text())
        assert found[which]["kernel"] == release and len(found[which]["sends"]) == 31
    # As in test_streams_are_equal.
    assert found[ours].pop("read of parts") <= found["stock"].pop("read of parts") * 1.1
    without_data = [found[which].pop("read without data") for which in (ours, "stock")]
    assert all(size <= stock * 1.02 for size, stock in zip(*without_data, strict=True))
    assert found["stock"] == found[ours]


def test_modinfo_says_whose_it_is():
    assert re.fullmatch(r"0\.\d+\+g[0-9a-f]{12}(\+dirty)?", output_of("modinfo", "-F", "rust", built()[0]).strip())


def test_a_module_is_signed(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.der"
    output_of("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=somebody/", "-outform", "DER",
              "-keyout", key, "-out", certificate)
    file, release = built()
    copy = shutil.copy(file, tmp_path / "btrfs.ko")
    script, objects = module("module"), BUILD / f"linux-{release[:3]}-{release}"
    assert output_of("modinfo", "-F", "signer", copy) == ""
    monkeypatch.setenv("SIGN_KEY", str(key))
    monkeypatch.setenv("SIGN_CERT", str(certificate))
    script.sign(copy, objects, headers())
    assert output_of("modinfo", "-F", "signer", copy).strip() == "somebody"
    # The end of the identifier is in /proc/keys.
    text = output_of("openssl", "x509", "-inform", "DER", "-in", certificate, "-noout", "-text").replace(":", "").lower()
    assert re.fullmatch("[0-9a-f]{40}", script.signing_key()[2]) and script.signing_key()[2] in text
    for name, file, message in (("SIGN_CERT", key, "must be the certificate"), ("SIGN_KEY", certificate, "must be the certificate"),
                                ("SIGN_KEY", tmp_path / "none", "must both be files")):
        with monkeypatch.context() as context, pytest.raises(script.Error, match=message):
            context.setenv(name, str(file))
            script.signing_key()


def test_what_does_not_fit_is_refused(tmp_path):
    script, (file, release) = module("module"), built()
    source = Path(output_of(SRC / "scripts/tree", "prepare").strip())

    def message(call, *arguments):
        with pytest.raises(script.Error) as error:
            call(*arguments)
        return str(error.value)

    # Another release; then a missing symbol, and a symbol of another compiler.
    script.check(file, headers(), source, release)
    assert "is for" in message(script.check, file, headers(), source, "7.3.5+deb13-amd64")
    symbols = (headers() / "Module.symvers").read_text()
    for pattern, said in ((r".*\tsubmit_bio\t.*\n", ": submit_bio"), (r"(_RNv\w*Cs)\w{11}_(\w*)", "its Rust crates are others")):
        (tmp_path / "Module.symvers").write_text(re.sub(pattern, r"\1Cs0123456789a_\2" if "Cs" in pattern else "", symbols))
        assert said in message(script.check_symbols, file, tmp_path)
    # A structure of the kernel that is larger in the module.
    code = tmp_path / "inode.c"
    code.write_text("struct btrfs_fs_info { int a; } a; struct inode { char a[4096]; } b;")
    output_of("gcc", "-g", "-c", "-o", tmp_path / "inode.o", code)
    output_of("pahole", "-J", "--btf_base", headers() / "vmlinux", tmp_path / "inode.o")
    assert "1 structures are not laid out as in the kernel: inode" in message(script.check_types, tmp_path / "inode.o", headers(), source)
    # Kernels without Rust, with versioned symbols, of another compiler, and without sources.
    config = (headers() / ".config").read_text()
    for wrong, said in ((config.replace("CONFIG_RUST=y", "# CONFIG_RUST is not set"), "no Rust support"),
                        (config.replace("# CONFIG_MODVERSIONS is not set", "CONFIG_MODVERSIONS=y"), "versioned symbols"),
                        (config.replace("rustc 1.85.1", "rustc 1.97.1"), "settings differ")):
        (tmp_path / ".config").write_text(wrong)
        objects = BUILD / f"{source.name}-{release}"
        assert said in message(lambda: (script.fits(tmp_path, source, release), script.check_configuration(tmp_path, objects, release)))
    assert "cannot be had" in message(script.fits, headers(), source, release.replace(".4+", ".3+"))


def test_releases_that_are_not_there_are_refused():
    assert "is no kernel of Debian 13" in refused(SRC / "scripts/module", "6.12.1-arch1-1")
    assert "is no kernel of Debian 13" in refused(SRC / "scripts/module", "6.12.9+deb13-amd64")
    said = output_of("sh", "-c", f"{SRC}/scripts/module 7.3.0+deb13-amd64 2>&1 || true")
    assert re.search(r"module: |tree: the archive has no linux-headers-7.3.0\+deb13-amd64 \(any more\), the newest is of", said)


# First program of a Debian guest. It prints the type of the root filesystem and the load message of btrfs, runs the command in its
# arguments, and powers off.
BOOT = """#!/bin/sh
mount -t proc proc /proc
echo "on $(sed -n 's/^[^ ]* [/] //p' /proc/mounts | cut -d ' ' -f 1): $(dmesg | grep -o 'Btrfs loaded.*')"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
[ $# = 0 ] || { mount -t sysfs sysfs /sys; "$@"; echo "ended with $?"; }
busybox poweroff -f
"""


# What fake programs do if they make an initramfs of the kernel "2", and if /boot is full: dracut then removes its image.
MADE = {"update-initramfs": "echo new >{boot}/initrd.img-2.made; mv {boot}/initrd.img-2.made {boot}/initrd.img-2", "dracut": "echo new >$2"}
FAILED = {"update-initramfs": "exit 1", "dracut": "echo half >$2; rm $2; exit 1"}


@pytest.mark.parametrize("program, call", [("update-initramfs", "-u -k 2"), ("dracut", "--force /boot/initrd.img-2.new 2")])
def test_packages_have_the_initramfs_made_anew(tmp_path, program, call):
    """Of three kernels, the first has no initramfs, the second has one, and the third is not installed."""
    for file in ("usr/lib/modules/1/modules.builtin", "usr/lib/modules/2/modules.builtin", "boot/initrd.img-2"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    image, script = tmp_path / "boot/initrd.img-2", re.sub("/(boot|usr)", rf"{tmp_path}/\1", (SRC / "tools/debian/initramfs.sh").read_text())
    for name in ("mv", "rm", "stat"):
        (tmp_path / name).symlink_to(shutil.which(name))
    checked = tmp_path / "checked"
    # Its status is 1: the initramfs is stale.
    (tmp_path / "btrfs-readahead").write_text(f"#!/bin/sh\necho $* >>{checked}\nexit 1\n")
    (tmp_path / "btrfs-readahead").chmod(0o755)

    def ran(job, verb="configure", releases="1 2 3", **environment):
        """Run the script as `verb` for each release. Return its status, the programs that it has run, and its messages."""
        for name, text in (("depmod", ""), (program, job.format(boot=image.parent))):
            (tmp_path / name).write_text(f"#!/bin/sh\necho ${{0##*/}} $*\n{text}\n")
            (tmp_path / name).chmod(0o755)
        image.write_text("old\n")
        done = subprocess.run(["/bin/sh", "-e", "-c", f"for release in {releases}; do\n{script}\ndone", "postinst", verb],
                              env={"PATH": str(tmp_path)} | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stdout.replace(str(tmp_path), "").splitlines(), re.findall(r"img-(\d) was not made anew", done.stderr)

    programs = ["depmod 1", "depmod 2", f"{program} {call}"]
    assert ran(MADE[program]) == (0, programs, ["1"])
    assert image.read_text() == "new\n" and checked.read_text() == "status --kernel 1\nstatus --kernel 2\n"
    # The hooks of a new kernel.
    assert ran(MADE[program], releases="1", DEB_MAINT_PARAMS="configure") == (0, ["depmod 1"], [])
    assert checked.read_text().count("status") == 2
    # /boot is full. The old initramfs stays.
    assert ran(FAILED[program]) == (1, programs, ["1", "2"])
    assert image.read_text() == "old\n" and not Path(f"{image}.new").exists()
    assert ran(FAILED[program], "remove") == (0, programs, ["1", "2"])
    # update_initramfs=no, or /boot is read-only.
    if program == "update-initramfs":
        assert ran("exit 0") == (0, programs, ["1", "2"])


def test_a_package_is_installed_upgraded_removed_and_purged(tmp_path, monkeypatch):
    """With dpkg, in a directory with a kernel "1" that has an initramfs."""
    script, root, bin = module("package"), tmp_path / "root", tmp_path / "bin"
    for file in ("usr/lib/modules/1/modules.builtin", "usr/lib/modules/1/kernel/btrfs.ko", "boot/initrd.img-1", "var/lib/dpkg/status"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    for directory in ("var/lib/dpkg/info", "var/lib/dpkg/updates"):
        (root / directory).mkdir()
    shutil.copytree(SRC / "tools/debian", tmp_path / "templates")
    initramfs = tmp_path / "templates/initramfs.sh"
    initramfs.write_text(re.sub("/(boot|usr)", rf"{root}/\1", initramfs.read_text()))
    # Not the Secure Boot of the host.
    preinst = tmp_path / "templates/modules/preinst"
    preinst.write_text(preinst.read_text().replace("/sys/", f"{root}/sys/"))
    monkeypatch.setattr(script, "TEMPLATES", tmp_path / "templates")
    monkeypatch.setenv("PATH", str(bin), prepend=":")
    bin.mkdir()
    for name in ("depmod", "update-initramfs"):
        (bin / name).write_text(f"#!/bin/sh\necho ${{0##*/}} $* >>{tmp_path}/log\n")
        (bin / name).chmod(0o755)
    installed = root / "usr/lib/modules/1/updates/btrfs.ko"

    def dpkg(*arguments):
        """Run dpkg. Return the content of the installed module, and the commands that its scripts have run."""
        (tmp_path / "log").write_text("")
        output_of("dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends", "--force-not-root", *arguments)
        return installed.read_text() if installed.exists() else None, (tmp_path / "log").read_text().splitlines()

    made, refreshed = [], ["depmod 1", "update-initramfs -u -k 1"]
    for version in ("0.1", "0.2"):
        (tmp_path / "btrfs.ko").write_text(version)
        script.package("modules", WORK / version, {"btrfs.ko": tmp_path / "btrfs.ko"}, release="1", version=version, is_signed="+signed" if version == "0.2" else "", signer="''", key="", revision="1-1")
        made.append(sorted((WORK / version).glob("*.deb")))
    assert [re.search("_(.*)_", path.name)[1] for path in made[1]] == ["0.2+signed", "0.2"]
    assert dpkg("--install", *made[0]) == ("0.1", refreshed)
    tool = root / "usr/bin/btrfs-readahead"
    assert "VERB" in output_of(tool, "--help")
    assert dpkg("--install", *made[1]) == ("0.2", refreshed)
    assert dpkg("--remove", "btrfs-rust-modules-1") == (None, refreshed)
    assert dpkg("--install", made[1][0]) == ("0.2", refreshed)
    assert dpkg("--purge", "btrfs-rust-modules-1", "btrfs-rust-tools") == (None, refreshed)
    assert (root / "usr/lib/modules/1/kernel/btrfs.ko").exists() and not tool.exists() and not (root / "usr/share/btrfs-readahead").exists()


def test_a_module_that_secure_boot_would_refuse_is_not_installed(tmp_path):
    params, keys, enforce, lockdown = (tmp_path / name for name in ("params", "keys", "enforce", "lockdown"))
    template = (SRC / "tools/debian/modules/preinst").read_text()
    for name, path in (("/sys/kernel/boot_params/data", params), ("/proc/keys", keys), ("/sys/module/module/parameters/sig_enforce", enforce),
                       ("/sys/kernel/security/lockdown", lockdown)):
        assert name in template
        template = template.replace(name, str(path))

    def said(key, verb="install", secure_boot=3, enforced="N", locked="[none] integrity confidentiality"):
        params.write_bytes(bytes(0x1ec) + bytes([secure_boot]) + bytes(16))
        enforce.write_text(f"{enforced}\n")
        lockdown.write_text(f"{locked}\n")
        keys.write_text("1b05a1c1 I------     1 perm 1f030000     0     0 asymmetri somebody: 6ccece7e4c: X509.rsa cece7e4c []\n")
        script = string.Template(template).substitute(signer="somebody", key=key)
        done = subprocess.run(["/bin/sh", "-c", script, "preinst", verb], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert (done.returncode == 0) == (done.stdout == "")
        return done.stdout

    # A new key may have the name of an old one.
    for how in ({}, {"secure_boot": 2, "enforced": "Y"}, {"secure_boot": 2, "locked": "none [integrity] confidentiality"}):
        assert "loads only signed modules, and this one is not" in said("", **how)
        assert "does not know the key 'somebody' (cece7e4c)" in said("cece7e4c", **how)
        assert said("6ccece7e4c", **how) == ""
    assert said("", verb="abort-upgrade") == said("", secure_boot=2) == ""
    for file in (params, enforce, lockdown):
        file.unlink()
    script = string.Template(template).substitute(signer="", key="")
    assert "" == output_of("/bin/sh", "-c", script, "preinst", "install")


BOOT_PARAMS = module("module").BOOT_PARAMS


@pytest.fixture
def debian():
    """Yield a directory with a Debian 13 that has a kernel of the archive and initramfs-tools."""
    release, root = built()[1], WORK / "debian"
    shutil.rmtree(root, ignore_errors=True)
    [line] = re.findall(r"^deb .*\b(?:trixie) main", Path("/etc/apt/sources.list").read_text(), re.M)
    output_of("mmdebstrap", "--mode=root", "--variant=minbase", "--aptopt=Acquire::Check-Valid-Until \"false\"",
              f"--include=btrfs-progs,busybox,initramfs-tools,lintian,linux-binary-{release},linux-modules-{release}",
              "trixie", root, line, line.replace("trixie", "trixie-backports"))
    # The package linux-image, which is not installed, would copy the kernel to /boot.
    shutil.copy2(root / f"usr/lib/modules/{release}/vmlinuz", root / f"boot/vmlinuz-{release}")
    (root / "boot.sh").write_text(BOOT)
    (root / "boot.sh").chmod(0o755)
    yield root
    shutil.rmtree(root)


def inside(root, command, *options):
    """Run a shell command in the directory `root` by bwrap, with further `options`; return its output."""
    return output_of("bwrap", "--bind", root, "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys", "--perms", "1777",
                     "--tmpfs", "/tmp", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf", "--ro-bind", BUILD / "module", "/mnt",
                     # Not the Secure Boot of the host.
                     "--tmpfs", "/sys/kernel",
                     "--setenv", "DEBIAN_FRONTEND", "noninteractive", "--cap-add", "ALL", *options, "sh", "-c", command)


def complaints(root, package):
    """Return the errors and warnings of lintian for a package, but for the length of its name, which matters on CDs."""
    return re.findall("^[EW]:(?!.*package-has-long-file-name).*", inside(root, f"lintian {package} || true"), re.M)


def disk_of(root):
    """Make a btrfs disk with the files of `root`; return its path."""
    disk = WORK / "debian.img"
    disk.unlink(missing_ok=True)
    with open(disk, "wb") as file:
        file.truncate(3 << 30)
    output_of("mkfs.btrfs", "-q", "--rootdir", root, disk)
    return disk


def boot_disk(disk, release, *command):
    """Boot a disk with the kernel and the initramfs in its /boot, and run a command in the guest, which may write to the disk.

    Return the type of the root filesystem and the load message of btrfs, or None if there is no root filesystem, and the output.
    """
    files = WORK / "boot"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    # The disk is not mounted, since that needs a loop device.
    output_of("btrfs", "restore", "--path-regex", rf"^/(|boot|boot/(vmlinuz|initrd\.img)-{re.escape(release)})$", disk, files)
    said = output_of("timeout", "900", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "2G", "-smp", "2", "-nographic", "-no-reboot",
                     "-kernel", files / f"boot/vmlinuz-{release}", "-initrd", files / f"boot/initrd.img-{release}",
                     "-drive", f"file={disk},if=virtio,format=raw",
                     "-append", " ".join(["console=ttyS0 panic=-1 root=/dev/vda rw init=/boot.sh --", *command]))
    # Without its root filesystem, a kernel ends with a panic.
    if "as root file system" in said or "on /root failed" in said:
        return None, None, said.replace("\r", "")
    assert (found := re.search(r"^on (\w+): (Btrfs loaded.*?)\r?$", said, re.M)), said[-3000:]
    assert not command or re.search(r"^ended with 0\r?$", said, re.M), said[-3000:]
    return *found.groups(), said.replace("\r", "")


def boot(root, release):
    """Boot a disk with the files of `root`. Return the type of the root filesystem and the load message of btrfs."""
    disk = disk_of(root)
    *found, _ = boot_disk(disk, release)
    disk.unlink()
    return found


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_package_is_in_use_after_the_next_boot_until_it_is_removed(debian):
    """On a machine with the root on btrfs. The initramfs has the module, and mounts the root with it.

    If the kernel refuses the module, the machine does not boot. The kernel of Debian 13 itself does.
    """
    release = built()[1]
    package = f"/mnt/{release}/" + Path(output_of(SRC / "scripts/package", "modules", release).splitlines()[-1]).name
    assert complaints(debian, f"/mnt/{release}/*.deb") == []
    inside(debian, f"update-initramfs -c -k {release}")
    params = WORK / "boot-params"
    params.write_bytes(bytes(0x1ec) + b"\3")
    said = inside(debian, f"apt-get install --yes {package} 2>&1 || true", "--tmpfs", "/sys", "--ro-bind", params, BOOT_PARAMS)
    assert "loads only signed modules" in said and not (debian / f"usr/lib/modules/{release}/updates").exists()
    # In the running guest, which has no network.
    inside(debian, f"mkdir /packages; cp /mnt/{release}/*.deb /packages; apt-get update; apt-get install --yes python3 linux-image-amd64/trixie")
    [other] = (path.name for path in (debian / "usr/lib/modules").iterdir() if path.name.startswith("6.12."))
    (debian / "install.sh").write_text("apt-get install --yes /packages/btrfs-rust-*.deb && btrfs-readahead status\n")
    (debian / "break.sh").write_text(f"""sed -i s/vermagic=7/vermagic=9/ /usr/lib/modules/{release}/updates/btrfs.ko && update-initramfs -u -k {release}
btrfs-readahead status\n""")
    (debian / "remove.sh").write_text("apt-get remove --yes 'btrfs-rust-*'\n")
    disk = disk_of(debian)
    stock = boot_disk(disk, release, "sh", "/install.sh")
    assert stock[0] == "btrfs" and "rust" not in stock[1]
    # From the end of the installation, and from the command.
    version = re.search(r"modules-.*_(0\..*)_amd64", package)[1]
    ours = [f"  disk:      rust={version}, not signed", f"  initramfs: rust={version}, not signed"]
    # The kernel's own module is signed.
    assert [line for line in stock[2].splitlines() if re.match("  (loaded|disk|initramfs):", line)] == ["  loaded:    without Rust", *ours] * 2, stock[2]
    used = boot_disk(disk, release, "sh", "/break.sh")
    assert used[0] == "btrfs" and "rust=0." in used[1] and f"  loaded:    rust={version}" in used[2]
    assert boot_disk(disk, release)[:2] == (None, None)
    # As README says.
    assert "'btrfs-rust-*'" in (SRC / "README.md").read_text()
    assert boot_disk(disk, other, "sh", "/remove.sh")[0] == "btrfs"
    assert boot_disk(disk, release)[:2] == stock[:2]
    disk.unlink()


# Path of a module of DKMS, and commands that make DKMS build it again.
DKMS = "updates/dkms/btrfs.ko"
AGAIN = "dkms remove --all btrfs-rust/{version} >/dev/null; dkms install btrfs-rust/{version} -k {release} 2>&1; echo ended with $?"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_dkms_builds_the_module_for_the_kernels_that_it_can(debian):
    """With the root on btrfs. A kernel of another version keeps its own btrfs. A supported kernel that comes later gets ours."""
    release = built()[1]
    package = "/mnt/dkms/" + Path(output_of(SRC / "scripts/package", "dkms").splitlines()[-1]).name
    version = re.search(r"_(.*)_all", package)[1]
    assert complaints(debian, package) == []
    install = "apt-get install --yes --no-install-recommends"
    # The kernel of Debian 13 itself is Linux 6.12.
    inside(debian, f"apt-get update; {install} linux-image-amd64/trixie linux-headers-amd64/trixie linux-headers-{release}")
    other = next(path.name for path in (debian / "usr/lib/modules").iterdir() if path.name.startswith("6.12."))
    inside(debian, f"update-initramfs -c -k {release}")
    stock, theirs = boot(debian, release), boot(debian, other)
    assert "rust" not in stock[1] + theirs[1]

    def in_use(kernel):
        """Return the path of the btrfs that modprobe loads for a kernel. Check that the kernel's own module is still in its place."""
        assert (debian / f"usr/lib/modules/{kernel}/kernel/fs/btrfs/btrfs.ko.xz").exists()
        return inside(debian, f"modinfo -k {kernel} -n btrfs")

    # The command of README.
    command = re.search(r"^    make dkms-deb\n    (apt install .*)$", (SRC / "README.md").read_text(), re.M)[1]
    command = command.replace("apt install", install).replace("./build/module/", "/mnt/")
    said = inside(debian, f"{command} 2>&1")
    assert DKMS in in_use(release) and DKMS not in in_use(other), said
    assert f"Linux {other} keeps its own btrfs: it is not of the version of linux-source-7.3" in said
    # The kernel is from backports, but the compiler is not.
    assert "unmet dependencies" in inside(debian, f"{install} --simulate -t trixie-backports --reinstall {package} rustc 2>&1 || true")
    assert inside(debian, f"modinfo -k {release} -F rust btrfs").strip() == version
    assert f"rust={version}" in boot(debian, release)[1]
    assert boot(debian, other) == theirs
    later = release.replace("-amd64", "-cloud-amd64")
    said = inside(debian, f"{install} --target-release trixie-backports linux-image-{later} linux-headers-{later}")
    assert DKMS in in_use(later), said
    assert f"rust={version}" in boot(debian, later)[1]

    # A failed build leaves only its logs, which have the reason. A build without linux-source does not start.
    again = AGAIN.format(version=version, release=release)
    inside(debian, "mv /usr/bin/bindgen /usr/bin/bindgen.away")
    said = inside(debian, again)
    work = debian / f"var/lib/dkms/btrfs-rust/{version}/build"
    assert "ended with 77" in said and re.search(r"^module: no Rust toolchain that Linux can use", (work / "make.log").read_text(), re.M)
    assert {path.suffix for path in (work / "build").iterdir()} == {".log"}
    said = inside(debian, "dpkg-reconfigure btrfs-rust-dkms 2>&1")
    # DKMS keeps only the log of the last build.
    assert f"Linux {release} keeps its own btrfs: the build failed: dkms build" in said, said
    assert f"Linux {later} keeps its own btrfs: no Rust toolchain that Linux can use" in said, said
    assert DKMS not in in_use(release) and boot(debian, release) == stock
    inside(debian, "mv /usr/bin/bindgen.away /usr/bin/bindgen; dpkg --remove --force-depends linux-source-7.3")
    assert "ended with 77" in inside(debian, again)
    # When linux-source is installed again, the trigger builds the module.
    inside(debian, f"{install} linux-source-7.3")
    assert DKMS in in_use(release) and DKMS in in_use(later) and DKMS not in in_use(other)

    inside(debian, "apt-get remove --yes btrfs-rust-dkms")
    assert boot(debian, release) == stock


def test_the_dkms_package_says_which_kernels_keep_their_btrfs(tmp_path, monkeypatch):
    """Of four kernels with headers, one has the module, one is of another version, and two builds have failed. DKMS has the log of the last."""
    for release in "1234":
        (tmp_path / f"usr/lib/modules/{release}/build/include").mkdir(parents=True)
    (tmp_path / "usr/lib/modules/1/updates/dkms").mkdir(parents=True)
    (tmp_path / "usr/lib/modules/1/updates/dkms/btrfs.ko.xz").touch()
    log = tmp_path / "var/lib/dkms/btrfs-rust/0.1/build/make.log"
    log.parent.mkdir(parents=True)
    script = string.Template((SRC / "tools/debian/dkms/postinst").read_text()).substitute(version="0.1")
    script = re.sub("/(etc|usr|var)/", rf"{tmp_path}/\1/", script)
    (tmp_path / "dpkg-query").write_text('#!/bin/sh\necho 7.3.4-1\n[ "$5" = linux-headers-3 ] && echo 6.12-1 || echo 7.3.4-1\n')
    (tmp_path / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def said():
        done = subprocess.run(["/bin/sh", "-c", script, "postinst", "configure"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        return re.findall(r"Linux (\d) keeps its own btrfs: (.*)", done.stdout)

    for text, reason in (("module: no bindgen\n", "no bindgen"), ("", f"the build failed: dkms build btrfs-rust/0.1 -k 2, and then {log}, say why")):
        log.write_text(f"DKMS make.log for btrfs-rust/0.1 for kernel 2 (x86_64)\n{text}")
        assert said() == [("2", reason), ("3", "it is not of the version of linux-source-7.3"),
                          ("4", f"the build failed: dkms build btrfs-rust/0.1 -k 4, and then {log}, say why")]
    (tmp_path / "etc/dkms").mkdir(parents=True)
    (tmp_path / "etc/dkms/no-autoinstall").touch()
    assert [reason.split(",")[0] for _, reason in said()] == 3 * ["DKMS builds nothing by itself"]


def test_dkms_skips_what_secure_boot_would_not_load(tmp_path, monkeypatch):
    script, mokutil = module("module"), tmp_path / "mokutil"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("BOOT_PARAMS", "SIG_ENFORCE", "LOCKDOWN", "DKMS_SETTINGS"):
        monkeypatch.setattr(script, name, tmp_path / name)
    mokutil.write_text("#!/bin/sh\necho $2 is not enrolled\n")
    mokutil.chmod(0o755)
    for value in (None, 0, 2):
        if value is not None:
            script.BOOT_PARAMS.write_bytes(bytes(0x1ec) + bytes([value]))
        script.check_key()
    script.BOOT_PARAMS.write_bytes(bytes(0x1ec) + b"\3")
    with pytest.raises(script.Error, match="mokutil --import /var/lib/dkms/mok.pub"):
        script.check_key()
    mokutil.write_text("#!/bin/sh\necho $2 is already enrolled\n")
    script.check_key()
    # Without Secure Boot; and with a key that the settings of DKMS name.
    mokutil.write_text("#!/bin/sh\necho $2 is not enrolled\n")
    for file, refusing, allowing in ((script.SIG_ENFORCE, "Y\n", "N\n"), (script.LOCKDOWN, "none [integrity] x\n", "[none] integrity x\n")):
        script.BOOT_PARAMS.write_bytes(bytes(0x1f0))
        file.write_text(allowing)
        script.check_key()
        file.write_text(refusing)
        (script.DKMS_SETTINGS / "framework.conf.d").mkdir(parents=True, exist_ok=True)
        (script.DKMS_SETTINGS / "framework.conf").write_text("# mok_certificate=/no\nmok_certificate=/one\n")
        (script.DKMS_SETTINGS / "framework.conf.d/a.conf").write_text('mok_certificate="/etc/keys/mok.der"\n')
        with pytest.raises(script.Error, match="only signed modules .* mokutil --import /etc/keys/mok.der"):
            script.check_key()
        file.unlink()


def test_installed_packages_that_are_missing_skip_the_kernel():
    done = subprocess.run([SRC / "scripts/module", "--installed", "7.3.99+deb13-amd64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (77, "module: linux-headers-7.3.99+deb13-amd64 is not installed\n")
