"""Softmax in four versions, and the speedup of each step: the tables of docs/softmax-versions.md.

    python -m benchmarks.ladder [--rows 8192] [--columns 512] [--runs 60]

All versions run alternately, in one thread and in float32. The minimum processor time of each is printed, because
other load affects it least. The first version, in plain Python, computes only the first 4 rows. With NPX_TUNE=0, the
process returns freed memory to the system.
"""

import argparse
import math
import os
import time
from collections.abc import Callable

import numpy as np

import npx
from autograd import Tensor, neural, no_grad
from npx.kernels.softmax import softmax_in_place


def one_by_one(x: np.ndarray) -> np.ndarray:
    """Compute the formula value by value."""
    rows = []
    for row in x.tolist():
        peak = max(row)
        e = [math.exp(number - peak) for number in row]
        total = sum(e)
        rows.append([number / total for number in e])
    return np.array(rows, x.dtype)


def small_operations(x: np.ndarray) -> np.ndarray:
    """Compute max, subtract, exp, sum and divide as separate operations on Tensors."""
    with no_grad():
        return neural.COMPOSITIONS["softmax"](Tensor(x)).data


def in_place(x: np.ndarray) -> np.ndarray:
    """Compute in place in one copy."""
    y = x.copy()
    softmax_in_place(y)
    return y


def blocked(x: np.ndarray) -> np.ndarray:
    """Compute in place, one block of rows after another: the kernel."""
    return npx.softmax(x)[0]


LADDER: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "value by value": one_by_one,
    "small operations": small_operations,
    "in place": in_place,
    "in place, in blocks of rows": blocked,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 8192, "columns": 512, "runs": 60}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    os.environ["NPX_THREADS"] = "1"
    npx.configure_process()
    x = np.random.default_rng(0).normal(size=(a.rows, a.columns)).astype(np.float32)
    best_seconds = dict.fromkeys(LADDER, float("inf"))  # seconds per value
    for _ in range(a.runs):
        for name, run in LADDER.items():
            rows = x[:4] if run is one_by_one else x
            start = time.process_time()
            run(rows)
            best_seconds[name] = min(best_seconds[name], (time.process_time() - start) / rows.size)
    first = before = next(iter(best_seconds.values()))
    print(f"softmax of ({a.rows}, {a.columns}) float32, {x.nbytes / 2**20:.1f} MiB, minimum of {a.runs} runs")
    for name, seconds in best_seconds.items():
        print(
            f"{name:28} {1e9 * seconds:6.2f} ns per value  {before / seconds:6.2f} x  {first / seconds:6.1f} x in all"
        )
        before = seconds


if __name__ == "__main__":
    main()
