# SPDX-License-Identifier: GPL-2.0
"""Print the settings and counters of the readahead of btrfs, and which btrfs module is loaded, on the disk and in the initramfs."""

import json
import os
import time

import modules
from system import KINDS, Error, counters, filesystem, filesystems, mountpoint, settings


def per_cent(part, whole):
    """Return a share as text."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def amounts(counts, kind):
    """Return the amounts of a kind in MiB: read, used, wasted, waited for."""
    return [counts[f"{kind}_{name}_kb"] / 1024 for name in ("submitted", "used", "wasted", "waited")]


def shares(counts, kind):
    """Return what became of the readahead of a kind, in words."""
    read, used, wasted, waited = amounts(counts, kind)
    return f"{read:,.1f} MiB read, {per_cent(used, read)} used, {per_cent(wasted, read)} wasted, {per_cent(waited, used)} of the used waited for"


def lines(top):
    """Yield the lines that describe a filesystem."""
    counts, values = counters(top), settings(top)
    yield f"filesystem {top.name} {mountpoint(top)}".rstrip()
    yield "  settings:    " + ", ".join(f"{name} {value}" for name, value in values.items())
    for kind, name in KINDS.items():
        yield f"  {name + ':':<13}{shares(counts, kind)}"
    hits, misses = counts["share_cache_hits"], counts["share_cache_misses"]
    yield f"  {'fiemap:':<13}{hits + misses:,} lookups of shared blocks, {per_cent(hits, hits + misses)} in the cache"


def metrics(tops):
    """Yield the lines of the text format of Prometheus."""
    found = {top: (counters(top), settings(top)) for top in tops}
    for name in next(iter(found.values()), ({},))[0]:
        metric, factor = (name[:-3] + "_bytes", 1024) if name.endswith("_kb") else (name, 1)
        yield f"# TYPE btrfs_readahead_{metric}_total counter"
        for top, (counts, _) in found.items():
            yield f'btrfs_readahead_{metric}_total{{uuid="{top.name}"}} {counts[name] * factor}'
    for name in next(iter(found.values()), ({}, {}))[1]:
        yield f"# TYPE btrfs_readahead_{name} gauge"
        for top, (_, values) in found.items():
            yield f'btrfs_readahead_{name}{{uuid="{top.name}"}} {values[name]}'


def watch(tops, seconds):
    """Print what was read ahead in each interval, one line for each kind and filesystem with readahead, until all are unmounted."""
    before = {top: counters(top) for top in tops}
    while before:
        time.sleep(seconds)
        for top, old in [*before.items()]:
            try:
                before[top] = counters(top)
            except OSError:
                # It was unmounted.
                del before[top]
                continue
            # A filesystem that was mounted again counts from 0.
            is_new = any(number < old[name] for name, number in before[top].items())
            grown = {name: number - (0 if is_new else old[name]) for name, number in before[top].items()}
            for kind, name in KINDS.items():
                if any(found := amounts(grown, kind)):
                    print(f"{time.strftime('%H:%M:%S')} {top.name} {name + ':':<12} {found[0]:8.1f} MiB read, {found[1]:8.1f} used, {found[2]:6.1f} wasted, "
                          f"{found[3]:6.1f} waited for", flush=True)


def add_arguments(parser):
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only the filesystems of these paths")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--prometheus", action="store_true", help="print the filesystems in the text format of Prometheus")
    form.add_argument("--watch", type=float, metavar="SECONDS", help="print what was read ahead in each interval")
    form.add_argument("--kernel", metavar="RELEASE", help="print only the modules of this kernel")


def run(arguments):
    if arguments.kernel and not (modules.MODULES / arguments.kernel).is_dir():
        raise Error(f"there is no kernel {arguments.kernel}")
    if arguments.watch is not None and not arguments.watch > 0:
        raise Error("--watch needs a number above 0")
    tops = [] if arguments.kernel else sorted({*map(filesystem, arguments.paths)}) or filesystems()
    for top in tops:
        if not (top / "readahead/stats").exists():
            raise Error(f"the loaded btrfs has no readahead settings for {top.name}: see `btrfs-readahead status`")
    if arguments.prometheus:
        for line in metrics(tops):
            print(line)
        return 0
    if arguments.watch:
        if not tops:
            raise Error("no mounted btrfs has readahead settings: see `btrfs-readahead status`")
        watch(tops, arguments.watch)
        return 0
    found = modules.describe(arguments.kernel or os.uname().release)
    if arguments.json:
        print(json.dumps({"module": found, "filesystems": [{"uuid": top.name, "mountpoint": mountpoint(top), "settings": settings(top),
                                                             "counters": counters(top)} for top in tops]}, indent=1))
    else:
        print(*modules.lines(found), *(line for top in tops for line in lines(top)), sep="\n")
    return int(modules.is_stale(found))
