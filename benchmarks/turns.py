"""Compare engines that run their steps alternately, each in its own process.

Other load on the machine then affects all engines equally. Medians and ratios to the first engine are printed.
Benchmarks pass their command line to `compare` and, in the process of each engine, their step to `serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PAUSE = 0.4  # seconds before each step, because the threads of BLAS and OpenMP keep spinning after a step


def add_options(
    parser: argparse.ArgumentParser, engines: tuple[str, ...], steps: int, warmup: int, row: int = 1
) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--engine", action="append", choices=engines, help="may be repeated")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=steps, help="measured steps per engine")
    parser.add_argument("--warmup", type=int, default=warmup)
    parser.add_argument("--row", type=int, default=row, help="consecutive steps per turn, which are averaged")
    parser.add_argument("--json", action="store_true", help="print a JSON object last (a list for several engines)")
    parser.add_argument("--worker", choices=engines, help=argparse.SUPPRESS)


def compare(module: str, a: argparse.Namespace, title: str, tokens: int, flops: float = 0.0) -> None:
    """Run the steps of all engines in `a` alternately and print a table.

    Args:
        tokens: source and target tokens per step.
        flops: floating-point operations of the matmuls of a step.
    """
    engines = a.engine or ["ours"]
    if "torch-bf16" in engines and getattr(a, "device", "cpu") == "cpu" and not has_bf16():
        print("torch-bf16 skipped: this processor has no bf16 instructions, and a step would take a minute")
        engines.remove("torch-bf16")
    workers = {engine: _start(module, engine, a.threads) for engine in engines}
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    host_times: dict[str, list[float]] = {engine: [] for engine in engines}
    for turn in range(a.warmup + a.steps):
        for engine, process in workers.items():
            time.sleep(PAUSE)
            answer = _ask(process, engine, f"step {a.row}")
            if turn >= a.warmup:
                times[engine].append(answer["seconds"])
                host_times[engine].append(answer["host_seconds"])
    rows = []
    for engine, process in workers.items():
        with process:  # waits for the process to end
            end = _ask(process, engine, "end")
        median = statistics.median(times[engine])
        rows.append(
            {
                "engine": engine,
                "seconds": round(median, 4),
                "tokens_per_second": round(tokens / median, 1),
                "host_seconds": round(statistics.median(host_times[engine]), 4),
                "gflops": round(flops / median / 1e9, 1),
                "fastest": round(min(times[engine]), 4),
                "slowest": round(max(times[engine]), 4),
                **end,
            }
        )
    print(f"{title}, {a.threads} threads; median of {a.steps} {f'times {a.row} ' * (a.row > 1)}steps in turn")
    for row in rows:
        ratio = row["seconds"] / rows[0]["seconds"]
        print(
            f"{row['engine']:16} {row['seconds']:8.3f} s  ({row['fastest']:.3f} to {row['slowest']:.3f})  "
            f"{row['tokens_per_second']:>10,.0f} tokens/s  {row['peak_rss_mib']:>6} MiB  {ratio:5.2f} x  {row['blas']}"
            + (f"  {row['gflops']:,.0f} GFLOP/s" if flops else "")
            + "".join(f"  {name} {row[name]}" for name in ("gpu_mib", "launches") if name in row)
            + (f"  host {row['host_seconds']:.4f} s" if "gpu_mib" in row else "")
        )
    if a.json:
        print(json.dumps(rows if len(rows) > 1 else rows[0]))


def serve(
    step: Callable[[], Any], wait: Callable[[], Any] = lambda: None, extra_figures: Callable[[], dict[str, Any]] = dict
) -> None:
    """Run n steps of one engine for each input line "step n"; at "end", report peak memory and `extra_figures`.

    Args:
        wait: waits for the device; the time before it is reported as host time.
    """
    for line in sys.stdin:
        if line.strip() == "end":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(json.dumps({"peak_rss_mib": peak, "blas": blas()} | extra_figures()), flush=True)
            return
        row = int(line.split()[1])
        started = time.perf_counter()
        for _ in range(row):
            step()
        launched = time.perf_counter()
        wait()
        ended = time.perf_counter()
        print(json.dumps({"seconds": (ended - started) / row, "host_seconds": (launched - started) / row}), flush=True)


def has_bf16() -> bool:
    """Return whether the processor has bfloat16 instructions according to /proc/cpuinfo; True if that is unreadable."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line.split() for line in file if line.lower().startswith(("flags", "features"))), None)
    except OSError:
        flags = None
    return flags is None or bool({"avx512_bf16", "amx_bf16", "bf16"} & {*flags})


def blas() -> str:
    """Return the name of the BLAS library and kernel in use."""
    import threadpoolctl

    libraries = [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]
    return ", ".join(f"{x['internal_api']} {x.get('architecture', '')}".strip() for x in libraries) or "own kernels"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a measured process, with this many threads and OpenBLAS's own choice of kernels.

    OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE, which a shared machine may set for every process, would slow the process
    down.
    """
    chosen = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NPX_THREADS"), str(threads))
    return {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")} | chosen


def _start(module: str, engine: str, threads: int) -> subprocess.Popen[str]:
    """Start the process of an engine, which runs steps when it receives a line."""
    command = [sys.executable, "-m", module, *sys.argv[1:], "--worker", engine]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=environment(threads), text=True, **pipes)


def _ask(process: subprocess.Popen[str], engine: str, command: str) -> dict[str, Any]:
    """Send a command and return the answer."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(command + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())
    except (OSError, ValueError):
        sys.exit(f"benchmark: expected engine {engine} to answer; it ended; try --engine {engine} alone")
