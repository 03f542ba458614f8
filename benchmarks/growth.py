"""Measure how the cost of a training step grows with sentence length, batch size, vocabulary and layers.

    python -m benchmarks.growth --picture docs/growth.png

One of the four varies at a time, while the others stay at `START`. Each setting is measured in its own process. The
table shows the seconds of a step, the seconds spent in attention, the microseconds per token (source + target), peak
memory, and the slope from the previous setting in a log-log plot: 1 is linear, 2 is quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time

from benchmarks.train_step import our_step, timed_kernels
from benchmarks.turns import environment

START = {"batch": 8, "length": 64, "vocab": 8000, "layers": 3, "d_model": 256, "heads": 4, "d_ff": 1024}
RANGES = {
    "length": (16, 32, 64, 128, 256, 512),
    "batch": (2, 4, 8, 16, 32, 64),
    "vocab": (8000, 16000, 32000, 64000),
    "layers": (1, 2, 3, 6, 12),
}
UNITS = {"length": "tokens a sentence", "batch": "sentences", "vocab": "subwords", "layers": "layers a side"}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--picture", help="write the plot here (PNG)")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--setting", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.setting:
        print(json.dumps(measure(json.loads(a.setting), a.threads, a.steps)))
        return
    rows = {name: [run(a, START | {name: value}) for value in values] for name, values in RANGES.items()}
    for name, values in RANGES.items():
        print(f"\n| {name} | seconds | attention | microseconds per token | peak memory | slope |")
        print("|---|---|---|---|---|---|")
        previous = None
        for value, row in zip(values, rows[name], strict=True):
            seconds = row["seconds"]
            slope = ""
            if previous is not None:
                previous_value, previous_seconds = previous
                slope = f"{math.log(seconds / previous_seconds) / math.log(value / previous_value):.2f}"
            previous = value, seconds
            each = 1e6 * seconds / row["tokens"]  # microseconds per token
            print(f"| {value:,} | {seconds:.4f} | {row['attention']:.4f} | {each:.1f} | {row['mib']} MiB | {slope} |")
    if a.picture:
        draw(rows, a.picture)


def run(a: argparse.Namespace, setting: dict[str, int]) -> dict[str, float]:
    """Run `measure` in a new process."""
    command = [sys.executable, "-m", "benchmarks.growth", "--setting", json.dumps(setting)]
    command += ["--steps", str(a.steps), "--threads", str(a.threads)]
    result = subprocess.run(command, env=environment(a.threads), capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"growth: expected a step of {setting}; got\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def measure(setting: dict[str, int], threads: int, steps: int) -> dict[str, float]:
    """Return the median seconds of a step and of its attention kernels, tokens per step, and peak memory (MiB)."""
    _, forward_backward, update = our_step(argparse.Namespace(**setting, device="cpu", precision=None, threads=threads))
    seconds, attention = [], []
    with timed_kernels() as kernels:
        for turn in range(1 + steps):
            kernels.clear()
            started = time.perf_counter()
            forward_backward()
            update()
            if turn:
                seconds.append(time.perf_counter() - started)
                attention.append(sum(sum(calls) for name, calls in kernels.items() if name.startswith("attention")))
    return {
        "seconds": statistics.median(seconds),
        "attention": statistics.median(attention),
        "tokens": 2 * setting["batch"] * setting["length"],
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def draw(rows: dict[str, list[dict[str, float]]], path: str) -> None:
    """Plot each range with log-log axes: the step, its attention, and a line of slope 1 through the last point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(RANGES), figsize=(14, 3.6), layout="constrained")
    for axis, (name, values) in zip(axes, RANGES.items(), strict=True):
        seconds = [row["seconds"] for row in rows[name]]
        axis.plot(values, seconds, "o-", label="step")
        if name == "length":
            axis.plot(values, [row["attention"] for row in rows[name]], "s-", label="attention")
        axis.plot(values, [seconds[-1] * v / values[-1] for v in values], ":", color="grey", label="linear")
        axis.set(xscale="log", yscale="log", xlabel=UNITS[name], ylabel="seconds per step", title=name)
        axis.set_xticks(values, [f"{v:,}" for v in values], minor=False)
        axis.minorticks_off()
        axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
