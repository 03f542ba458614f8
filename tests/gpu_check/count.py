"""Count the kernel launches and matmuls of a training step without a GPU: they are recorded, not computed."""

import time
from argparse import Namespace
from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks import train_step
from benchmarks.launches import by_kernel, recorded
from tests.fakes import strict_cuda, strict_graphs
from tests.fakes.strict_cupy import device
from tests.gpu_check.page import CEILINGS
from tests.gpu_check.sizes import GPU


def counted(shape: Namespace = GPU.shapes["base, 25k + 25k"], engine: str = "ours", steps: int = 0) -> dict[str, Any]:
    """Return calls, bytes and operations of our kernels, of matmuls and of CuPy's own kernels in one step.

    `host_ms` in the result is the CPU time that Python needs for one step without CUDA, the minimum over `steps` steps;
    it is meaningful for small shapes only.

    Args:
        engine: "ours", or "ours-graph", which counts the calls outside the graph.
    """
    with pytest.MonkeyPatch.context() as patch, device(cuda=True) as cupy, np.errstate(all="ignore"):
        patch.setattr(strict_cuda.Function, "__call__", lambda *args, **named: None)
        patch.setattr(strict_cuda.Cublas, "multiply", lambda *args: None)
        patch.setattr(strict_graphs.Graph, "launch", lambda graph: None)
        step, _, _ = train_step.ours(Namespace(**vars(shape) | {"worker": engine}))
        step()
        step()
        cupy.kernels.clear()
        cupy.allocations = 0
        with recorded() as calls:
            step()
        launches, nbytes = Counter(name for name, _ in cupy.kernels), Counter[str]()
        for name, size in cupy.kernels:
            nbytes[name] += size
        empty, seconds = cupy.allocations, []
        for _ in range(steps):
            started = time.process_time()
            step()
            seconds.append(time.process_time() - started)
        return {
            "lines": by_kernel(calls),
            "kernels": sum(not call.is_matmul for call in calls),
            "matmuls": sum(call.is_matmul for call in calls),
            "cupy": {name: (launches[name], nbytes[name]) for name in sorted(launches, key=lambda name: -nbytes[name])},
            "empty": empty,
            "host_ms": min(seconds, default=0.0) * 1e3,
        }


def page_rows(counts: dict[str, Any]) -> str:
    """Return the rows for docs/gpu.md: name, calls, MB, GFLOP and a lower bound on the time in milliseconds."""
    rates, rows = (CEILINGS["copy"], CEILINGS["largest matmul"]), []
    for line in counts["lines"]:
        work = f"{line.bytes / 1e6:,.0f} | {line.flops / 1e9:,.0f}"
        rows.append(f"| {line.name} | {line.calls} | {work} | {line.floor_ms(*rates):.2f} |")
    for name, (calls, nbytes) in counts["cupy"].items():
        rows.append(f"| CuPy: {name} | {calls} | {nbytes / 1e6:,.0f} | 0 | {nbytes / rates[0] * 1e3:.2f} |")
    rows.append(f"{counts['kernels']} kernels, {counts['matmuls']} matmuls, {counts['empty']} calls to `empty`")
    return "\n".join(rows)
