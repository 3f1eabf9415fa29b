#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a send does to another who reads from the same disk: the time is the mean latency of 16 KiB random reads beside it."""

import json
import signal
import subprocess
import time
from pathlib import Path

from full_send import make
from workload import Workload, main, timed_send


def send_beside_reader(top):
    device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(top))
    fio = ["fio", "--name=reader", "--readonly", f"--filename={device}", "--size=16g", "--direct=1", "--rw=randread", "--bs=16k",
           "--ioengine=psync", "--time_based", "--runtime=3600", "--ramp_time=1", "--output-format=json"]
    with subprocess.Popen(fio, stdout=subprocess.PIPE, text=True) as reader:
        # Only what it reads after its ramp time counts.
        time.sleep(1.5)
        try:
            _, result = timed_send(top / "snap1")
        finally:
            reader.send_signal(signal.SIGINT)
        said = reader.communicate()[0]
    return json.loads(said[said.index("{"):])["jobs"][0]["read"]["clat_ns"]["mean"] / 1e9, result


WORKLOAD = Workload(
    unit="files", small=(8_000,), full=(200_000,), make=make,
    jobs={"read latency beside a full send": send_beside_reader},
    # A reader is kept waiting by seeks.
    devices=("spindle",))

if __name__ == "__main__":
    main(WORKLOAD)
