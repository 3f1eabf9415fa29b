#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Effect of a full send, or of find, on another reader of the same disk: the time is the mean latency of its random reads meanwhile."""

import json
import signal
import subprocess
import time
from pathlib import Path

from full_send import make
from walk import timed
from workload import Workload, main, timed_send


def beside_reader(job):
    """Return a job that runs `job` beside a reader of blocks of 16 KiB. Its time is that of a read."""
    return lambda top: read_latency(top, job)


def read_latency(top, job):
    device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(top))
    fio = ["fio", "--name=reader", "--readonly", f"--filename={device}", "--size=16g", "--direct=1", "--rw=randread", "--bs=16k",
           "--ioengine=psync", "--time_based", "--runtime=3600", "--ramp_time=1", "--output-format=json"]
    with subprocess.Popen(fio, stdout=subprocess.PIPE, text=True) as reader:
        # Start the job after the ramp time of fio, whose reads do not count.
        time.sleep(1.5)
        try:
            _, result = job(top)
        finally:
            reader.send_signal(signal.SIGINT)
        said = reader.communicate()[0]
    return json.loads(said[said.index("{"):])["jobs"][0]["read"]["clat_ns"]["mean"] / 1e9, result


WORKLOAD = Workload(
    unit="files", small=(8_000,), full=(200_000,), make=make,
    jobs={"read latency beside a full send": beside_reader(lambda top: timed_send(top / "snap1")),
          "read latency beside find": beside_reader(timed("find", "snap1", "-printf", "%p %s %n\n"))},
    # Only on the spindle: there the reader waits for seeks of the other job.
    devices=("spindle",))

if __name__ == "__main__":
    main(WORKLOAD)
