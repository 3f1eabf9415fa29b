#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Write the statistics, tables and plots of a run of scripts/bench/run into the directory of its samples: report.py SAMPLES.json."""

import argparse
import contextlib
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import page
from common import Error, finish

# Minimum number of rounds for a 95% interval of the median: of five rounds, all lie on one side of the median in 6% of all cases.
ENOUGH = 6
# Minimum number of sizes for a plot of time against size.
ENOUGH_SIZES = 4

KERNELS = ("upstream", "C", "Rust")
# A kernel that is measured twice in each round has this at the end of its second name.
AGAIN = " again"
REQUESTS = f"requests {', '.join(KERNELS)}"
# Columns that the terminal has no room for.
REPORT_ONLY = ("rounds", REQUESTS, "MB read")
# Effect of the fixes and speedups in C, of Rust beyond them, and of both; noise.
RATIOS = (("upstream", "C"), ("C", "Rust"), ("upstream", "Rust"), ("upstream", "upstream"))

DEVICES = {"ram": "no disk, in memory", "ssd": "SSD, 0.25 ms a read", "latency": "10 ms a read", "spindle": "7200 rpm, modelled"}

# Change and claim of each seed: number, job, module parameter, its values before and after, figure of the seed, remark.
SEEDS = (
    ("000", "full send", "rust_reada", "none", "forward", "-10.2%, -14.2%", ""),
    ("001", "full send", "rust_reada", "forward", "always", "-5.7%", ""),
    ("003", "fiemap, older than the last snapshot", "rust_share_cache", "off", "on", "2.2x cold, 3x warm",
     "the seed's file was younger than all snapshots, and today's kernels do not check the path of such files; ours is older than one"),
    ("004", "incremental send", "rust_utimes_cache", "off", "on", "9.5x, 12.9x, 5.5x",
     "the seed measured its whole patch set, we measure the cache alone"),
)


def seconds(series, job, state, kernel):
    """Return the times of a kernel in seconds, in the order of the rounds."""
    return [sample["jobs"][job][state]["seconds"] for sample in sorted(series["samples"], key=lambda sample: sample["round"])
            if sample["kernel"] == kernel and state in sample["jobs"][job]]


def pooled(series, job, state, kernel):
    """As seconds(). For a kernel that is measured twice in each round, return the mean of the two times of each round."""
    first, again = (seconds(series, job, state, name) for name in (kernel, kernel + AGAIN))
    return [(a + b) / 2 for a, b in zip(first, again)] if again else first


def noise(series, job, state, kernel):
    """Return ratio() of two boots of the same kernel, which is measured twice in each round."""
    return ratio(*(seconds(series, job, state, name) for name in (kernel, kernel + AGAIN)))


def ratio(first, second):
    """Return the median of the ratios first / second of all rounds, and its bootstrap 95% interval: (median, low, high).

    With fewer than ENOUGH rounds, low and high are the least and the greatest ratio: no interval of the ratios has 95% confidence then.
    """
    ratios = [a / b for a, b in zip(first, second)]
    if len(ratios) < ENOUGH:
        return statistics.median(ratios), min(ratios), max(ratios)
    # Imported late: --help must work on hosts without these packages.
    import numpy
    import scipy.stats
    interval = scipy.stats.bootstrap((ratios,), numpy.median, method="percentile", rng=1).confidence_interval
    return statistics.median(ratios), float(interval.low), float(interval.high)


def jobs_of(series):
    """Return the jobs of a series and the states of their samples, cold or warm: [(job, state)]."""
    samples = series["samples"]
    return [(job, state) for job in samples[0]["jobs"] for state in ("cold", "warm") if state in samples[0]["jobs"][job]]


def identical(series, job, kernels=None):
    """Return whether all samples of a job, cold and warm, have the same result. `kernels` limits the comparison to some kernels."""
    return len({json.dumps(what["result"], sort_keys=True) for sample in series["samples"]
                if kernels is None or sample["kernel"] in kernels for what in sample["jobs"][job].values()}) == 1


def count(series, job, kernel, name):
    """Return the median of a counter over the cold samples of a kernel."""
    return statistics.median(sample["jobs"][job]["cold"]["counts"].get(name, 0) for sample in series["samples"]
                             if sample["kernel"] == kernel)


def complete(document, kind):
    """Yield the series of a kind that have at least one complete round, without incomplete rounds."""
    for series in document["series"]:
        rounds = min(sum(sample["kernel"] == kernel for sample in series["samples"]) for kernel in series["kernels"])
        if series["kind"] == kind and rounds:
            yield series | {"samples": [sample for sample in series["samples"] if sample["round"] < rounds]}


def with_interval(numbers):
    """Format a ratio and its interval for the tables."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*numbers)


def in_seconds(number):
    """Format a time in seconds for the tables: with one more digit below 0.1 s."""
    return f"{number:.{3 if number >= 0.1 else 4}f} s"


def comparison(document):
    """Return the main table: header and rows."""
    header = ["job", "size", "device", "cache", "rounds", *KERNELS, *(f"{first} / {second}" for first, second in RATIOS),
              REQUESTS, "MB read", "same result"]
    rows = []
    for series in complete(document, "comparison"):
        for job, state in jobs_of(series):
            times = {kernel: pooled(series, job, state, kernel) for kernel in KERNELS}
            same = identical(series, job)
            requests, megabytes = "", ""
            if state == "cold":
                requests = ", ".join(f"{count(series, job, kernel, 'requests'):,.0f}" for kernel in KERNELS)
                megabytes = f"{count(series, job, 'Rust', 'bytes_read') / 1e6:.1f}"
            rows.append([job, f"{series['size']:,} {series['unit']}", series["device"], state, str(len(times["C"])),
                         *(in_seconds(statistics.median(times[kernel])) for kernel in KERNELS),
                         *(with_interval(ratio(times[first], times[second]) if first != second else noise(series, job, state, first))
                           if same else "WRONG" for first, second in RATIOS),
                         requests, megabytes, "yes" if same else "NO"])
    return header, rows


def counts(document):
    """Return the table of counts, which depend little on the machine: header and rows."""
    header = ["job", "size", "kernel", "requests", "bytes read", "waits for the disk", "ms of them", "blocks read ahead", "of them used",
              "most unused at a time", "extent tree searches", "utimes commands", "stream", "same result"]
    rows = []
    for series in complete(document, "counts"):
        for job in series["samples"][0]["jobs"]:
            same = identical(series, job)
            for kernel in series["kernels"]:
                result = next(sample["jobs"][job]["cold"]["result"] for sample in series["samples"] if sample["kernel"] == kernel)
                rows.append([job, f"{series['size']:,} {series['unit']}", kernel,
                             *(f"{count(series, job, kernel, name):,.0f}" for name in
                               ("requests", "bytes_read", "waits", "wait_ms", "readahead_blocks", "readahead_used",
                                "readahead_unused_max", "extent_tree_searches")),
                             f"{result['utimes']:,}" if "utimes" in result else "",
                             f"{result['stream_bytes']:,} bytes" if "stream_bytes" in result else "", "yes" if same else "NO"])
    return header, rows


def seeds(document):
    """Return the table of the changes of the seeds, measured on today's kernel: header and rows."""
    header = ["seed", "change", "seed's figure", "device", "size", "cache", "rounds", "before", "after", "change of time", "before / after",
              "noise", "remark"]
    rows = []
    for seed, job, parameter, before, after, figure, remark in SEEDS:
        kernels = [f"{parameter}={value}" for value in (before, after)]
        for series in complete(document, "ablation"):
            if job not in series["samples"][0]["jobs"] or not set(kernels) <= set(series["kernels"]):
                continue
            for _, state in jobs_of(series):
                first, second = (pooled(series, job, state, kernel) for kernel in kernels)
                numbers = ratio(first, second)
                # The stream without the utimes cache differs from the stream with it: compare only samples with the same setting.
                same = (all(identical(series, job, [kernel, kernel + AGAIN]) for kernel in kernels) if parameter == "rust_utimes_cache"
                        else identical(series, job))
                rows.append([seed, f"{parameter}: {before} to {after}", figure, series["device"],
                             f"{series['size']:,} {series['unit']}", state, str(len(first)), in_seconds(statistics.median(first)),
                             in_seconds(statistics.median(second)), f"{100 / numbers[0] - 100:+.1f}%" if same else "",
                             with_interval(numbers) if same else "WRONG",
                             with_interval(noise(series, job, state, series["kernels"][0])), remark])
    return header, rows


def windows(series):
    """Return the bound of the readahead window in MiB for each kernel of a series: [(window, kernel)]."""
    found = [kernel.partition("readahead_window_kb=")[2] for kernel in series["kernels"]]
    return [(int(window) / 2**10, kernel) for window, kernel in zip(found, series["kernels"]) if window.isdecimal()]


def sweep(document):
    """Return the table of time and memory for each readahead window: header and rows."""
    header = ["job", "size", "device", "window", "time", "blocks read ahead", "most unused at a time", "requests"]
    rows = []
    for series in complete(document, "ablation"):
        for window, kernel in windows(series):
            for job in series["samples"][0]["jobs"]:
                rows.append([job, f"{series['size']:,} {series['unit']}", series["device"], f"{window:g} MiB",
                             in_seconds(statistics.median(pooled(series, job, "cold", kernel))) if identical(series, job) else "WRONG",
                             *(f"{count(series, job, kernel, name):,.0f}" for name in
                               ("readahead_blocks", "readahead_unused_max", "requests"))])
    return header, rows


def markdown(header, rows):
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


@contextlib.contextmanager
def plot(path, figsize, rows=1, columns=1, **options):
    """Yield the axes of a figure, and write the figure to the SVG file `path` at the end of the block."""
    # Imported late: --help must work on hosts without matplotlib.
    import matplotlib
    from matplotlib.figure import Figure
    figure = Figure(figsize, layout="constrained")
    yield figure.subplots(rows, columns, squeeze=False, **options)
    # Text as text, and no random names, so that the same samples give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        # The fonts of a viewer may be wider than those here: leave a margin for the labels.
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.4)


def show_ratios(axes):
    """Give a plot of ratios its log axis."""
    from matplotlib.ticker import NullFormatter
    axes.axvline(1, lw=0.8, color="k")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = (1, 2, 5, 10, 20, 50, 100, 200) if high > 6 else (0.5, 0.7, 1, 1.4, 2, 3, 4, 5)
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.invert_yaxis()
    axes.grid(axis="x", lw=0.3)


def plot_rounds(document, path):
    """Plot the ratios of all rounds as dots, with medians and intervals: upstream / Rust, upstream / C and upstream / upstream."""
    devices = {}
    for series in complete(document, "comparison"):
        devices.setdefault(series["device"], []).extend((series, job, state) for job, state in jobs_of(series) if identical(series, job))
    devices = {device: entries for device, entries in devices.items() if entries}
    heights = [2 + len(entries) for entries in devices.values()]
    with plot(path, (9, 0.42 * sum(heights)), rows=len(devices), height_ratios=heights) as panels:
        for axes, (device, entries) in zip(panels[:, 0], devices.items()):
            for row, (series, job, state) in enumerate(entries):
                for kernel, shift, colour in ((KERNELS[0], 0.25, "0.6"), ("C", 0, "C1"), ("Rust", -0.25, "C0")):
                    times = [seconds(series, job, state, name) for name in (kernel, kernel + AGAIN)]
                    upstream, other = times if kernel == KERNELS[0] else (pooled(series, job, state, KERNELS[0]), times[0])
                    median, low, high = ratio(upstream, other)
                    axes.plot([a / b for a, b in zip(upstream, other)], [row + shift] * len(other), "o", ms=4, alpha=0.6, mec="none",
                              color=colour)
                    axes.plot([low, high], [row + shift] * 2, "-", lw=1.5, color=colour)
                    axes.plot([median], [row + shift], "|", ms=10, mew=2, color=colour)
            axes.set_title(DEVICES.get(device, device))
            axes.set_yticks(range(len(entries)), [f"{job}, {series['size']:,} {series['unit']}, {state}" for series, job, state in entries])
            axes.margins(y=0.5 / len(entries))
            show_ratios(axes)
        panels[0, 0].figure.supxlabel("upstream / Rust (blue), upstream / C (orange) and upstream / upstream (grey), by round")


def plot_overview(document, path):
    """Plot the speedup of each job with nothing cached, at its largest size, with one panel for each device.

    A dot is upstream / Rust, a ring is upstream / C, and a grey line is upstream / upstream.
    """
    largest = {}
    for series in sorted(complete(document, "comparison"), key=lambda series: series["size"]):
        for job, state in jobs_of(series):
            if state == "cold" and identical(series, job):
                upstream, *others = (pooled(series, job, state, kernel) for kernel in KERNELS)
                largest[job, series["device"]] = [noise(series, job, state, KERNELS[0]), *(ratio(upstream, other) for other in others)]
    jobs = [*dict.fromkeys(job for series in complete(document, "comparison") for job, _ in jobs_of(series)
                           if (job, series["device"]) in largest)]
    devices = [*dict.fromkeys(device for _, device in largest)]
    with plot(path, (3 + 2.6 * len(devices), 1.2 + 0.3 * len(jobs)), columns=len(devices), sharey=True, sharex=True) as panels:
        for axes, device in zip(panels[0], devices):
            rows = [row for row, job in enumerate(jobs) if (job, device) in largest]
            for number, (name, marker, style, colour) in enumerate((("upstream again", "|", "full", "0.6"), ("C", "o", "none", "C1"),
                                                                    ("Rust", "o", "full", "C0"))):
                medians, lows, highs = zip(*(largest[jobs[row], device][number] for row in rows))
                errors = [[middle - low for middle, low in zip(medians, lows)], [high - middle for middle, high in zip(medians, highs)]]
                axes.errorbar(medians, rows, xerr=errors, fmt=marker, ms=6, fillstyle=style, color=colour, label=name)
            axes.set_title(DEVICES.get(device, device))
            axes.set_yticks(range(len(jobs)), jobs)
        show_ratios(panels[0, 0])
        for axes in panels[0, 1:]:
            axes.axvline(1, lw=0.8, color="k")
            axes.grid(axis="x", lw=0.3)
        panels[0, 0].figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
        panels[0, 0].figure.supxlabel("time of upstream's kernel / time of the kernel")


def plot_sweep(document, path):
    """Plot time and memory against the readahead window."""
    with plot(path, (7, 6), rows=2, sharex=True) as panels:
        above, below = panels[:, 0]
        for series in complete(document, "ablation"):
            points = windows(series)
            for job in series["samples"][0]["jobs"] if points else ():
                times = [seconds(series, job, "cold", kernel) for _, kernel in points]
                sizes = [window for window, _ in points]
                medians = [statistics.median(each) for each in times]
                [line] = above.plot(sizes, medians, "-", label=f"{series['device']}, {series['size']:,} {series['unit']}")
                for size, each in zip(sizes, times):
                    above.plot([size] * len(each), each, "o", ms=3, color=line.get_color(), alpha=0.6)
                # A node is 16 KiB, the default of mkfs.btrfs.
                memory = [count(series, job, kernel, "readahead_unused_max") / 64 for _, kernel in points]
                below.plot(sizes, memory, "o-", ms=3, color=line.get_color())
        above.set_xscale("log", base=2)
        above.set_yscale("log")
        above.set_ylabel("cold full send, s")
        above.legend()
        below.set_yscale("log", base=2)
        below.set_ylabel("most read ahead and unused, MiB")
        below.set_xlabel("readahead window, MiB")


def plot_sizes(document, path):
    """Plot time with nothing cached against size, for jobs with enough sizes. Return whether there are any."""
    lines = {}
    for series in complete(document, "comparison"):
        for job, state in jobs_of(series):
            for kernel in KERNELS if state == "cold" else ():
                lines.setdefault((job, series["unit"], series["device"]), {}).setdefault(kernel, []).append(
                    (series["size"], statistics.median(pooled(series, job, state, kernel))))
    lines = {key: kernels for key, kernels in lines.items() if len(kernels["C"]) >= ENOUGH_SIZES}
    if not lines:
        return False
    panels = [*dict.fromkeys((device, unit) for _, unit, device in lines)]
    with plot(path, (9 * len(panels), 5), columns=len(panels)) as all_axes:
        for (device, unit), axes in zip(panels, all_axes[0]):
            for number, ((job, *_), kernels) in enumerate(item for item in lines.items() if item[0][1:] == (unit, device)):
                for kernel, style in zip(KERNELS, (":", "--", "-")):
                    axes.plot(*zip(*sorted(kernels[kernel])), style, ms=3, color=f"C{number % 10}", marker="os"[number // 10 % 2],
                              label=job if kernel == "Rust" else None)
            axes.set_title(DEVICES.get(device, device))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("MiB of 8 extents each" if unit == "MiB" else unit)
            axes.set_ylabel("seconds (solid: Rust, dashed: C, dotted: upstream)")
            axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return True


METHOD = ("Each round boots each kernel once, and upstream's kernel twice. Its time in a round is the mean of the two. Times are medians over "
          "the rounds. Ratios are medians of the ratios of the rounds, with their bootstrap 95% interval, or with fewer than "
          f"{ENOUGH} rounds the least and the greatest. C is upstream's kernel with the fixes and speedups that need no Rust. "
          "upstream / upstream is noise. Cold is the first run of a job after mounting, with nothing cached. Warm is the median of the "
          "runs that follow it.")


def tables(document):
    """Yield the tables with results: title, header and rows."""
    for title, table in (("Upstream, C and Rust", comparison), ("Counts", counts), ("The seeds' changes on this kernel", seeds),
                         ("Readahead window", sweep)):
        header, rows = table(document)
        if rows:
            yield title, header, rows


def details(document):
    """Yield the tables without comparisons of kernels: title, header and rows."""
    if document.get("micro"):
        title = "Single operations, best of 9 rounds of 100,000, C and Rust in one boot (KUnit suite btrfs_bench)"
        yield title, ["", "C", "Rust"], document["micro"]
    models = {f"The modelled disk {name}, measured with fio": figures for name, figures in document.get("models", {}).items()}
    for title, values in (models | {"Where": document["environment"]}).items():
        yield title, ["", ""], [[str(key), str(value)] for key, value in values.items()]


def plots(document, output):
    """Write the plots. Yield the title and file name of each."""
    if any(identical(series, job) for series in complete(document, "comparison") for job, _ in jobs_of(series)):
        plot_overview(document, output / "overview.svg")
        yield "Ratios with nothing cached", "overview.svg"
        plot_rounds(document, output / "rounds.svg")
        yield "Ratios by round", "rounds.svg"
        if plot_sizes(document, output / "sizes.svg"):
            yield "Time against size", "sizes.svg"
    if any(windows(series) for series in complete(document, "ablation")):
        plot_sweep(document, output / "sweep.svg")
        yield "Time and memory against the readahead window", "sweep.svg"


def write(document, output):
    """Write report.md, report.html and the plots, and print the tables. Return whether a result differed."""
    # Imported late: --help must work on hosts without rich.
    from rich.console import Console
    from rich.table import Table
    title, console = f"Benchmark of {document['date']}", Console(width=200)
    warning = ["**Partial: the run ended early.**\n"] if document["partial"] else []
    results, pictures, others = [*tables(document)], [*plots(document, output)], [*details(document)]
    for name, header, rows in results:
        columns = [number for number, column in enumerate(header) if column not in REPORT_ONLY]
        shown = Table(*(header[number] for number in columns), title=name)
        for row in rows:
            shown.add_row(*(row[number] for number in columns))
        console.print(shown)
    text = [f"# {title}\n", *warning, f"{METHOD}\n",
            *(f"## {name}\n\n{markdown(header, rows)}" for name, header, rows in results),
            *(f"![{name}]({file})\n" for name, file in pictures),
            *(f"## {name}\n\n{markdown(header, rows)}" for name, header, rows in others)]
    (output / "report.md").write_text("\n".join(text))
    paragraphs = [*(["Partial: the run ended early."] if warning else []), METHOD]
    svgs = [(name, (output / file).read_text()) for name, file in pictures]
    (output / "report.html").write_text(page.page(title, paragraphs, [*results, *others], svgs))
    return any(cell in ("WRONG", "NO") for _, _, rows in results for row in rows for cell in row)


def load(path):
    """Load the samples that scripts/bench/run has written."""
    try:
        document = json.loads(path.read_text())
        for key in ("date", "partial", "environment", "series"):
            document[key]
    except (ValueError, KeyError, TypeError) as error:
        raise Error(f"{path} is not what scripts/bench/run writes: {error!r}") from None
    return document


def fail_if(wrong, output):
    """Raise Error if a result differed."""
    if wrong:
        raise Error(f"the kernels do not do the same, see {output}/report.md")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    path = parser.parse_args().samples
    fail_if(write(load(path), path.parent), path.parent)


if __name__ == "__main__":
    finish(main)
