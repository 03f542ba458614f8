"""Benchmark every kernel and its gradient: milliseconds of the reference and the fast version, and the speedup.

    python -m benchmarks.kernels                  all kernels, at the sizes of a training step of the base model
    python -m benchmarks.kernels --kernel adam softmax --tokens 4096 --json

Reference and fast version run alternately on equal inputs, from the test cases (tests/cases/kernels.py); the medians of
several runs are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import npx
from tests.cases.kernels import KERNEL_CASES, Large


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kernel", nargs="+", choices=sorted(npx.KERNELS), metavar="NAME", help="default: all")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    base = {"tokens": 1920, "length": 30, "d-model": 512, "heads": 8, "d-ff": 2048, "vocab": 37000}
    for name, default in base.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--json", action="store_true", help="the last line is a JSON list")
    return p.parse_args()


def timed(kernel: npx.Kernel, key: tuple[str, str] | None, draw: Large) -> Iterator[dict[str, float]]:
    """Yield the seconds of a call and its gradient repeatedly; `key` selects the version, None the reference."""
    call = KERNEL_CASES[kernel.name](draw)
    while True:
        times = {}
        times[kernel.name], result = seconds(lambda: kernel.run(key, *call.inputs, **call.options))
        if kernel.grad:
            y, saved = result
            g = npx.random.normal(npx.Key(1, 2, 3), y.shape, y.dtype)
            times[kernel.grad.name], _ = seconds(lambda: saved.backward(g, **call.gradient_options))  # noqa: B023
        yield times


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of one call, including the GPU's work, and its result."""
    npx.synchronize()
    started = time.perf_counter()
    result = function()
    npx.synchronize()
    return time.perf_counter() - started, result


def main() -> None:
    a = arguments()
    npx.configure_process()
    npx.use_device(a.device)
    engine = "numpy" if a.device == "cpu" else "cupy"
    rows = []
    sizes = {"tokens": a.tokens, "length": a.length, "d_model": a.d_model, "heads": a.heads}
    print(f"{'kernel':28} {'reference':>12} {'fast':>12} {'times':>8}")
    for name in a.kernel or sorted(npx.KERNELS):
        kernel = npx.KERNELS[name]
        turns = [
            timed(kernel, key, Large(**sizes, d_ff=a.d_ff, vocab=a.vocab, parameters=8_000_000))
            for key in (None, (engine, "float32"))
        ]
        times: list[dict[str, list[float]]] = [{}, {}]
        for turn in range(1 + a.repeats):
            for runs, measured in zip(turns, times, strict=True):
                for part, duration in next(runs).items():
                    if turn:  # the first call is a warmup
                        measured.setdefault(part, []).append(duration)
        for part in times[0]:
            reference, fast = (statistics.median(measured[part]) for measured in times)
            rows.append({"kernel": part, "reference_seconds": reference, "seconds": fast, "times": reference / fast})
            print(f"{part:28} {reference * 1e3:>9.2f} ms {fast * 1e3:>9.2f} ms {reference / fast:>7.1f}x", flush=True)
    if a.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
