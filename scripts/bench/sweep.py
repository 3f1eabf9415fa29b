#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""After seed 002: a full send with readahead windows of several sizes, and the memory of each."""

from full_send import make
from workload import Workload, main, timed_send

WORKLOAD = Workload(
    unit="files", small=(8_000,), full=(200_000,), make=make,
    jobs={"full send": lambda top: timed_send(top / "snap1")},
    ablation=(("full send", "readahead_window_kb", tuple(128 << power for power in (0, 2, 4, 6, 9))),),
    devices=("latency", "spindle"), is_compared=False)

if __name__ == "__main__":
    main(WORKLOAD)
