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
{measure} /mnt/fs/names2 --yes --rounds 1000 --output {output}/never.json &
sleep 2; kill $!; wait $!; echo "status $?"
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
                                "interrupted; the switches are as before"), refusals, strict=True):
        assert expected in found
    assert "not refused" not in said and "status 0" not in said
    assert "left: 1 0" in said and said.endswith("full.json\nincremental.json\n")
    schema = json.loads((SRC / "results/measured/schema.json").read_text())
    sample_schema = schema["properties"]["samples"]["items"]
    for name, jobs, rounds in (("full", 2, 2), ("incremental", 1, 1)):
        document = json.loads((output / f"{name}.json").read_text())
        assert set(document) == set(schema["required"]) == set(schema["properties"])
        assert set(document["disks"][0]) == set(schema["properties"]["disks"]["items"]["required"])
        assert document["disks"][0]["name"] == "ubdb"
        samples = document["samples"]
        assert len(samples) == 4 * jobs * rounds
        assert all(set(sample) == set(sample_schema["required"]) == set(sample_schema["properties"]) for sample in samples)
        # The order is on, off, off, on. Only a send with readahead counts blocks.
        sends = [sample for sample in samples if "send" in sample["job"]]
        assert [sample["readahead"] for sample in sends] == [True, False, False, True] * rounds
        for sample in sends:
            assert (sample["counters"]["tree_submitted_kb"] > 0) == sample["readahead"]
        assert len(re.findall(r"\[[\d.]+, [\d.]+\], " + str(2 * rounds) + " rounds", said)) >= jobs
