# SPDX-License-Identifier: GPL-2.0
"""scripts/measure on a mounted filesystem: its output, its samples, its refusals, and the switches after its end."""

import json
import re

import pytest

from conftest import SRC, WORK
from test_kernels import image, vm

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
    said = vm("um-rust", "bash", "-c", COMMANDS.format(measure=SRC / "scripts/measure", output=output), disks=[image(16384)])
    print(said)
    refusals = re.findall(r"^measure: (.*)", said, re.M)
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
