# SPDX-License-Identifier: GPL-2.0
"""btrfs-readahead: what it says of modules and filesystems; its measurement, with the refusals, and the switches after its end."""

import io
import json
import lzma
import os
import re
import runpy
import sys

import pytest

from conftest import SRC, WORK
from test_kernels import blank, image, vm

TOOL = SRC / "tools/readahead/btrfs-readahead"
COMMANDS = """
mkdir /mnt/fs && busybox mount -t btrfs -o ro /dev/ubdb /mnt/fs && cd /sys/fs/btrfs/*-*/readahead
refused() {{ "$@" </dev/null >/tmp/said 2>&1 && echo "not refused: $*"; [ $(wc -l </tmp/said) = 1 ] || cat /tmp/said; cat /tmp/said; }}
refused {measure} /mnt/fs/deep --yes
refused {measure} $(find /mnt/fs/names1/* -maxdepth 0 -type d | head -n 1) --yes
refused {measure} /tmp --yes
refused {measure} /mnt/fs/nothing --yes
refused {measure} /mnt/fs/data1
refused setpriv --reuid=65534 --clear-groups {measure} /mnt/fs/data1 --yes
echo 0 >data_enable
{measure} /mnt/fs/names2 --parent /mnt/fs/names1 --yes --rounds 1 --output {output}/incremental.json
{measure} /mnt/fs/data1 --yes --rounds 2 --output {output}/full.json
refused {measure} /mnt/fs/data1 --yes --output {output}/full.json
refused {measure} /mnt/fs/data1 --yes --output /sys/full.json
(trap '' HUP; exec {measure} /mnt/fs/names2 --yes --rounds 1000 --output {output}/part.json 2>/tmp/progress) &
until grep -q ^3/ /tmp/progress; do sleep 0.1; done; kill -HUP $!
until grep -q ^6/ /tmp/progress; do sleep 0.1; done; kill $!; wait $!; echo "status $?"
tail -n 1 /tmp/progress
{measure} /mnt/fs/data1 --yes --rounds 1000 --output {output}/never.json 2>/tmp/never &
until grep -q ^1/ /tmp/never; do sleep 0.05; done; kill -HUP $!; wait $!; echo "status $?"
tail -n 1 /tmp/never
mkdir /tmp/full && busybox mount -t tmpfs -o size=4k none /tmp/full && head -c 4096 /dev/zero >/tmp/full/zeros
btrfs -q send /mnt/fs/data1 | (read -r -n 1 _; {measure} /mnt/fs/names2 --yes --rounds 1 --output /tmp/full/full.json >/tmp/all 2>/tmp/said; echo "status $?")
cat /tmp/said; sed '/^{{/,$d' /tmp/all
sed -n '/^{{/,$p' /tmp/all >{output}/full-disk.json
ls /tmp/full
echo "left: $(cat tree_enable data_enable | xargs)"
ls {output}
"""


@pytest.mark.timeout(600)
def test_measure():
    output = WORK / "measure"
    output.mkdir(parents=True, exist_ok=True)
    for file in output.iterdir():
        file.unlink()
    said = vm("um-rust", "bash", "-c", COMMANDS.format(measure=f"{TOOL} measure", output=output), disks=[image(16384)])
    print(said)
    refusals = re.findall(r"^btrfs-readahead: (.*)", said, re.M)
    for expected, found in zip(("can be written to", "is not a subvolume", "is not a subvolume", "No such file", "say --yes", "needs root", "exists",
                                "/sys/full.json: Permission denied", "interrupted; the switches are as before", "interrupted; the switches are as before",
                                "1 other sends are running",
                                "/tmp/full/full.json: No space left on device: all figures are above"), refusals, strict=True):
        assert expected in found
    assert "not refused" not in said and said.count("status ") == 3 and "status 0" not in said
    assert "\nzeros\nleft: " in said and "4 of 4 runs were beside other sends" in said and re.search(r"^4/4 full send.* about 0 min left", said, re.M)
    assert "left: 1 0" in said and said.endswith("full-disk.json\nfull.json\nincremental.json\npart.json\n")
    schema = json.loads((SRC / "results/measured/schema.json").read_text())
    sample_schema = schema["properties"]["samples"]["items"]
    for name, jobs, rounds in (("full", 2, 2), ("incremental", 1, 1), ("full-disk", 1, 1), ("part", 1, None)):
        document = json.loads((output / f"{name}.json").read_text())
        assert set(document) == set(schema["required"]) == set(schema["properties"])
        assert set(document["disks"][0]) == set(schema["properties"]["disks"]["items"]["required"])
        assert document["disks"][0]["name"] == "ubdb" and document["module"] == "yes"
        samples = document["samples"]
        assert {sample["other_sends"] for sample in samples} == {int(name == "full-disk")}
        if name == "part":
            # Rounds of two that were complete at the interrupt.
            assert len(samples) in (6, 8)
            continue
        assert len(samples) == 4 * jobs * rounds
        assert all(set(sample) == set(sample_schema["required"]) == set(sample_schema["properties"]) for sample in samples)
        # The order is on, off, off, on. Only a send with readahead counts blocks.
        sends = [sample for sample in samples if "send" in sample["job"]]
        assert [sample["readahead"] for sample in sends] == [True, False, False, True] * rounds
        for sample in sends:
            assert (sample["counters"]["tree_submitted_kb"] > 0) == sample["readahead"]
        assert len(re.findall(r"\[[\d.]+, [\d.]+\], " + str(2 * rounds) + " rounds", said)) >= jobs


def btrfs(number, version=None):
    """Return what stands for a module with the build ID `number` and the version `version`."""
    return b"ELF \4\0\0\0\x14\0\0\0\3\0\0\0GNU\0" + bytes([number]) * 20 + (f"\0rust={version}\0".encode() if version else b"") + b" end"


@pytest.mark.parametrize("program", ["lsinitramfs", "lsinitrd"])
def test_status_compares_modules(tmp_path, monkeypatch, capsys, program):
    """With fake programs: a module on the disk, one in the initramfs, and one that is loaded."""
    monkeypatch.syspath_prepend(SRC / "tools/readahead")
    monkeypatch.setenv("PATH", str(tmp_path))
    release = os.uname().release
    script = runpy.run_path(str(TOOL))
    modules = sys.modules["modules"]
    for name in ("BOOT", "MODULES", "LOADED"):
        monkeypatch.setattr(modules, name, tmp_path / name.lower())
    disk, inside, note = tmp_path / "btrfs.ko.xz", tmp_path / "in.ko", tmp_path / "loaded/notes/.note.gnu.build-id"
    own = tmp_path / f"modules/{release}/kernel/fs/btrfs/btrfs.ko"
    for path in (note, own, tmp_path / f"boot/initrd.img-{release}"):
        path.parent.mkdir(parents=True)
        path.touch()
    path = f"usr/lib/modules/{release}/updates/btrfs.ko"
    fakes = {"modinfo": f"[ $2 = {release} ] && echo {disk}", "update-initramfs": "",
             "lsinitramfs": f"echo kernel/fs/btrfs/btrfs.ko; echo {path}", "unmkinitramfs": f"/bin/mkdir -p $2/main/{path} && /bin/rmdir $2/main/{path} && /bin/cp {inside} $2/main/{path}",
             "lsinitrd": f"[ $1 = -f ] && [ $2 = {path} ] && exec /bin/cat {inside}\nfor name in kernel/fs/btrfs/btrfs.ko {path}; do\n"
                         "echo \"-rw-r--r-- 1 root root 9 Nov 27 10:00 $name\"; done"}
    for name, text in fakes.items():
        if name not in {"lsinitramfs", "lsinitrd"} - {program}:
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)

    def said(on_disk, in_initramfs, loaded, *arguments):
        """Return the exit status and the lines of `status`."""
        disk.write_bytes(lzma.compress(on_disk))
        inside.write_bytes(in_initramfs)
        note.write_bytes(loaded)
        monkeypatch.setattr(sys, "argv", ["btrfs-readahead", "status", *arguments])
        status = script["main"]()
        return status, [line.strip().removesuffix(", not signed") for line in capsys.readouterr().out.splitlines()[1:4]]

    ours, other, stock = btrfs(1, "0.2"), btrfs(2, "0.1"), btrfs(3)
    signed = "~Module signature appended~\n".encode()
    own.write_bytes(stock)
    assert said(ours, ours, ours[4:40]) == (0, ["loaded:    rust=0.2", "disk:      rust=0.2", "initramfs: rust=0.2"])
    assert said(ours, ours, stock[4:40]) == (0, ["loaded:    without Rust", "disk:      rust=0.2", "initramfs: rust=0.2"])
    assert said(ours, other, other[4:40]) == (1, ["loaded:    rust=0.1", "disk:      rust=0.2", "initramfs: rust=0.1"])
    assert said(ours, stock, btrfs(4)[4:40]) == (1, ["loaded:    none of the files of this kernel", "disk:      rust=0.2", "initramfs: without Rust"])
    # A build has the same build ID with and without a signature, and Secure Boot refuses one of them.
    assert said(ours + signed, ours, stock[4:40])[0] == 1 and said(ours + signed, ours + signed, stock[4:40])[0] == 0
    # What cannot be told is no good news.
    assert said(ours, b"", ours[4:40]) == (1, ["loaded:    rust=0.2", "disk:      rust=0.2", f"initramfs: {path} is no module with a build ID"])
    (tmp_path / ("unmkinitramfs" if program == "lsinitramfs" else program)).write_text("#!/bin/sh\necho no space >&2\nexit 1\n")
    assert said(ours, ours, ours[4:40])[::2] == (1,) and "no space" in said(ours, ours, ours[4:40])[1][2]
    (tmp_path / program).write_text("#!/bin/sh\necho usr/lib/modules/ext4.ko\n")
    assert said(ours, ours, ours[4:40]) == (0, ["loaded:    rust=0.2", "disk:      rust=0.2", "initramfs: none"])
    with pytest.raises(modules.Error, match="no kernel 9"):
        said(ours, ours, ours[4:40], "--kernel", "9")


def test_what_no_size_can_be_told_of_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(SRC / "tools/readahead")
    import size
    head = size.STREAM.pack(size.MAGIC, 1)
    assert size.size_of(io.BytesIO(head + size.COMMAND.pack(3, 2, 0) + b"abc")) == len(head) + size.COMMAND.size + 3
    for stream in (b"", b"btrfs", size.STREAM.pack(size.MAGIC, 9), head + b"abc", head + size.COMMAND.pack(4, 2, 0) + b"abc"):
        with pytest.raises(size.Error):
            size.size_of(io.BytesIO(stream))
    # Of a part of a compressed extent, the kernel sends as much as is on the disk: fs/btrfs/send.c, send_encoded_extent().
    assert size.size_of_data(path=1, length=65536, proto=2, is_compressed=True) == 10 + 4 + 1 + 12 + 3 * 12 + 2 * 8 + 2 + 65536
    assert [size.in_units(number) for number in (0, 1023, 1536, 5 << 40, 2 << 50)] == ["0.0 bytes", "1,023.0 bytes", "1.5 KiB", "5.0 TiB", "2,048.0 TiB"]


# Sizes of sends of the test images, and of sends with a hole and with data that is compressed: as told, and as sent.
SIZES = """
mkdir /mnt/fs && busybox mount -t btrfs -o ro /dev/ubdb /mnt/fs && cd /mnt/fs
told() {{ echo "$* $({tool} size "$@" | cut -d ' ' -f 1) $(btrfs -q send "$@" | wc -c)"; }}
for first in *1/; do
	btrfs property get -ts $first ro | grep -q true || continue
	told $first; told --proto 2 $first; told --proto 2 --compressed-data $first
done
for pair in "names1 names2" "small1 small2" "data1 data2"; do
	set -- $pair
	[ ! -d $2 ] || {{ told -p $1 $2; told -c $1 --proto 2 $2; }}
done
cd /; busybox umount /mnt/fs
mkfs.btrfs -q /dev/ubdc && busybox mount -t btrfs -o compress-force=zstd /dev/ubdc /mnt/fs && cd /mnt/fs
python3 -c 'import os; [open(f"{{n}}", "wb").write(os.urandom(n) if n % 2 else b"x" * n) for n in (1, 2, 100, 2047, 4095, 5000, 49152, 131073, 300000, 1000001)]'
btrfs -q subvolume snapshot -r . first
truncate -s 5000000 1; fallocate -p -o 4096 -l 20000 300000; cp --reflink=always 1000001 clone
btrfs -q subvolume snapshot -r . second
for snap in first second; do told $snap; told --proto 2 $snap; told --compressed-data $snap; done
told -p first second; told --proto 2 -p first second; told --compressed-data -p first second
echo "same: $({tool} send second 2>/tmp/progress | sha256sum) $(btrfs -q send second | sha256sum)"; tail -n 1 /tmp/progress
{tool} send second 2>&1 | cat
{tool} send nothing >/tmp/out 2>/tmp/said; echo "status $?: $(cat /tmp/said)"; {tool} size . 2>&1 || true
"""


def test_the_size_of_a_send_is_told():
    said = vm("um-rust", "bash", "-c", SIZES.format(tool=TOOL), disks=[image(16384), blank("size.img", 300 << 20)])
    print(said)
    sends = re.findall(r"^(.+) (\d+) (\d+)$", said, re.M)
    assert len(sends) > 20
    for options, told, sent in sends:
        if "--compressed-data" in options:
            assert int(told) >= int(sent), options
        else:
            assert told == sent, options
    assert re.search(r"^same: (\w{64})  - \1  -$", said, re.M) and re.search(r"\(100%\), .*/s *$", said, re.M)
    assert "btrfs-readahead: the progress would go into the stream" in said
    assert re.search(r"^status 1: computing the size *\nbtrfs-readahead: ERROR: .*nothing", said, re.M) and said.splitlines()[-1].startswith("btrfs-readahead: ERROR: ")


LOOK = """
mkdir /mnt/fs && busybox mount -t btrfs -o ro /dev/ubdb /mnt/fs
{tool} status; {tool} status /mnt/fs/data1 /mnt/fs | tail -n 5
# It prints nothing before the first read of the counters.
{tool} status --watch 0.1 >/tmp/watched 2>&1 &
sleep 3; btrfs -q send /mnt/fs/data1 >/dev/null; sleep 1; kill $!; wait $!; cat /tmp/watched
echo 5 >/sys/fs/btrfs/*-*/readahead/window_kb
{tool} status --json >{output}/status.json; {tool} status --prometheus
cat /sys/fs/btrfs/*-*/readahead/stats
{tool} status /tmp 2>&1; {tool} status --watch 0 2>&1 || true
"""


def test_status_of_filesystems():
    WORK.mkdir(parents=True, exist_ok=True)
    said = vm("um-rust", "bash", "-c", LOOK.format(tool=TOOL, output=WORK), disks=[image(16384)])
    print(said)
    document = json.loads((WORK / "status.json").read_text())
    assert document["module"]["loaded"]["build_id"] is None and "  loaded:    built into the kernel\n" in said
    [filesystem] = document["filesystems"]
    assert filesystem["mountpoint"] == "/mnt/fs" and filesystem["settings"]["window_kb"] == 5 and filesystem["settings"]["tree_enable"] == 1
    # Two reports of the filesystem, of five lines each.
    assert len(re.findall(rf"^filesystem {filesystem['uuid']} /mnt/fs\n  settings:    data_enable 1, .*\n  tree blocks:.*\n  file data:.*\n  fiemap:", said, re.M)) == 2
    counts = dict(re.findall(r"^(\w+) (\d+)$", said, re.M))
    assert {name: int(count) for name, count in counts.items()} == filesystem["counters"] and int(counts["data_submitted_kb"]) > 0
    for name, count in counts.items():
        metric, value = (f"{name[:-3]}_bytes", int(count) * 1024) if name.endswith("_kb") else (name, count)
        assert f'btrfs_readahead_{metric}_total{{uuid="{filesystem["uuid"]}"}} {value}\n' in said
    # The intervals of --watch sum up to the counters.
    watched = sum(map(float, re.findall(r"file data: +([\d.]+) MiB read", "\n".join(re.findall(r"^\d\d:\d\d:\d\d .*", said, re.M)))))
    assert watched == pytest.approx(int(counts["data_submitted_kb"]) / 1024, rel=0.05, abs=0.5)
    assert said.endswith("btrfs-readahead: /tmp is not a subvolume of btrfs\nbtrfs-readahead: --watch needs a number above 0\n")
