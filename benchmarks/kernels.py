"""Milliseconds of every kernel and its gradient: the reference, the fast version, how many times faster that is.

    python -m benchmarks.kernels                  all of them, at the sizes of a training step of the base model
    python -m benchmarks.kernels --kernel adam softmax --tokens 4096 --json

Reference and fast version take turns on equal arrays, those of the cases of the tests (tests/cases/kernels.py); medians
of several.
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
    """The command line."""
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
    """Seconds of one call after another, and of its gradient; `key`: of the version, None the reference."""
    call = KERNEL_CASES[kernel.name](draw)
    while True:
        found = {}
        found[kernel.name], result = seconds(lambda: kernel.run(key, *call.inputs, **call.options))
        if kernel.grad:
            y, saved = result
            g = npx.random.normal(npx.Key(1, 2, 3), y.shape, y.dtype)
            found[kernel.grad.name], _ = seconds(lambda: saved.gradient(g, **call.gradient))  # noqa: B023
        yield found


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """Of one call, to its end on a GPU too; and its result."""
    npx.synchronize()
    started = time.perf_counter()
    result = function()
    npx.synchronize()
    return time.perf_counter() - started, result


def main() -> None:
    a = arguments()
    npx.configure_process()
    npx.use_device(a.device)
    engine, rows = "numpy" if a.device == "cpu" else "cupy", []
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
            for each, found in zip(turns, times, strict=True):
                for part, once in next(each).items():
                    if turn:  # the first call warms up
                        found.setdefault(part, []).append(once)
        for part in times[0]:
            reference, fast = (statistics.median(found[part]) for found in times)
            rows.append({"kernel": part, "reference_seconds": reference, "seconds": fast, "times": reference / fast})
            print(f"{part:28} {reference * 1e3:>9.2f} ms {fast * 1e3:>9.2f} ms {reference / fast:>7.1f}x", flush=True)
    if a.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
