"""Milliseconds of every kernel: its reference, its fast version, and how many times faster that is.

    python -m benchmarks.kernels                  all of them, at the sizes of a training step of the base model
    python -m benchmarks.kernels --kernel adam softmax --tokens 4096 --json

Reference and fast version take turns on equal arrays; medians of several.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import npx


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


def calls(a: argparse.Namespace) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """For each kernel a function that makes the arguments of one call."""
    import numpy as np

    random, d = np.random.default_rng(0), a.d_model
    batch, key = max(1, a.tokens // a.length), npx.Key(1, 2, 3)
    n = batch * a.length

    def x(*shape: int) -> Any:
        return npx.from_host(random.standard_normal(shape, np.float32))

    def ids(rows: int) -> Any:
        return npx.from_host(random.integers(1, rows, n))

    def heads() -> Any:
        return x(batch, a.length, a.heads, d // a.heads)

    def forward(kernel: Any, *args: Any, take: slice) -> tuple[Any, ...]:
        return kernel(*args)[take]  # what the forward version keeps for its gradient

    def attention_grad() -> tuple[Any, ...]:
        q, k, v = heads(), heads(), heads()
        return (heads(), q, k, v, *forward(npx.attention, q, k, v, npx.Scores(), 0.1, key, take=slice(1, 3)), 0.1)

    def norm_grad() -> tuple[Any, ...]:
        return (x(n, d), x(d), *forward(npx.layer_norm, x(n, d), x(d), x(d), take=slice(1, 3)))

    def residual_grad() -> tuple[Any, ...]:
        kept = forward(npx.dropout_residual_norm, x(n, d), x(n, d), x(d), x(d), 0.1, key, take=slice(1, 4))
        return (x(n, d), x(d), *kept, 0.1)

    parameters = 8_000_000
    return {
        "adam": lambda: (x(parameters), x(parameters), x(parameters), abs(x(parameters)), 3, 1e-4),
        "attention": lambda: (heads(), heads(), heads(), npx.Scores(), 0.1, key),
        "attention_grad": attention_grad,
        "cross_entropy": lambda: (x(n, a.vocab), ids(a.vocab), 0.1),
        "dropout": lambda: (x(n, d), 0.1, key),
        "dropout_grad": lambda: (x(n, d), 0.1, npx.dropout(x(n, d), 0.1, key)[1]),
        "dropout_residual_norm": lambda: (x(n, d), x(n, d), x(d), x(d), 0.1, key),
        "dropout_residual_norm_grad": residual_grad,
        "embedding": lambda: (x(a.vocab, d), ids(a.vocab)),
        "embedding_grad": lambda: (x(n, d), ids(a.vocab), a.vocab),
        "layer_norm": lambda: (x(n, d), x(d), x(d)),
        "layer_norm_grad": norm_grad,
        "linear": lambda: (x(n, d), x(d, a.d_ff), x(a.d_ff), True),
        "linear_cross_entropy": lambda: (x(n, d) * d**-0.5, x(a.vocab, d), ids(a.vocab), 0.1),
        "linear_grad": lambda: (x(n, a.d_ff), x(n, d), x(d, a.d_ff), x(n, a.d_ff)),
        "softmax": lambda: (x(batch, a.heads, a.length, a.length),),
        "softmax_grad": lambda: (x(batch, a.heads, a.length, a.length),) * 2,
        "top_k": lambda: (x(128, a.vocab), 4, (0, 1)),
    }


def seconds(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """One call, to its end on a GPU too."""
    started = time.perf_counter()
    function(*args)
    npx.synchronize()
    return time.perf_counter() - started


def main() -> None:
    a = arguments()
    npx.use_device(a.device)
    makers, rows = calls(a), []
    print(f"{'kernel':28} {'reference':>12} {'fast':>12} {'times':>8}")
    for name in a.kernel or sorted(makers):
        kernel, args = npx.KERNELS[name], makers[name]()
        version = kernel.version_for(args[0])
        with npx.kernel_mode("reference"):  # what a version for a GPU keeps for its gradient is no array
            by_reference = calls(a)[name]()
        times: dict[Any, list[float]] = {kernel.reference: [], version: []}
        for turn in range(1 + a.repeats):
            for function, found in times.items():
                once = seconds(function, by_reference if function is kernel.reference else args)
                if turn:  # the first call warms up
                    found.append(once)
        reference, fast = (statistics.median(times[f]) for f in (kernel.reference, version))
        rows.append({"kernel": name, "reference_seconds": reference, "seconds": fast, "times": reference / fast})
        print(f"{name:28} {reference * 1e3:>9.2f} ms {fast * 1e3:>9.2f} ms {reference / fast:>7.1f}x", flush=True)
    if a.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
