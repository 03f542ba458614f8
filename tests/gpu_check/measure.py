"""Measurements of speed: memory, kernel launches, matmuls, training steps and each of their kernels.

Every function yields its results one by one as dictionaries, so no result is lost if time runs out. `rate` is in bytes
or operations per second; times are in milliseconds unless their name says otherwise.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

import npx
from benchmarks import launches, train_step
from benchmarks.launches import noise
from npx.cuda import blas, launch
from npx.kernels import cross_entropy
from tests.gpu_check.sizes import Sizes

Results = Iterator[dict[str, Any]]


def machine(sizes: Sizes) -> Results:
    """Yield the hardware and the versions."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    yield {
        "gpu": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory_gib": round(properties["totalGlobalMem"] / 2**30, 1),
        "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "torch": version("torch") if find_spec("torch") else "not installed",
    }


def milliseconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the device milliseconds per call of `repeats` consecutive calls."""
    import cupy

    for _ in range(3):
        function()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(repeats):
        function()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(start, end) / repeats


def host_microseconds(function: Callable[[], Any], calls: int = 200) -> float:
    """Return the host microseconds per call: the minimum of five runs, whose calls fit into the device queue."""
    runs = []
    for _ in range(5):
        npx.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            function()
        runs.append((time.perf_counter() - started) / calls * 1e6)
    npx.synchronize()
    return min(runs)


def memory_and_calls(sizes: Sizes) -> Results:
    """Measure memory bandwidth, the largest matmul, the host cost of one call, and CuPy's own kernels."""
    yield from ceilings(sizes)
    yield from calls(sizes)
    yield from cupy_kernels(sizes)


def timed_copy(name: str, nbytes: int, function: Callable[[], Any], sizes: Sizes) -> dict[str, Any]:
    """Measure a function that moves `nbytes` bytes."""
    ms = milliseconds(function, sizes.repeats)
    return {name: {"ms": ms, "bytes": nbytes, "rate": nbytes / ms * 1e3}}


def timed_matmul(name: str, left: Any, right: Any, out: Any, sizes: Sizes) -> dict[str, Any]:
    """Measure a matmul."""
    ms, flops = milliseconds(lambda: blas.matmul(left, right, out), sizes.repeats), 2.0 * out.size * left.shape[1]
    return {name: {"ms": ms, "flops": flops, "rate": flops / ms * 1e3}}


def ceilings(sizes: Sizes) -> Results:
    """Measure the peak rates of memory and matmuls."""
    source, target = (npx.ones(sizes.copied // 4) for _ in range(2))
    yield timed_copy("copy", 2 * source.nbytes, lambda: npx.copyto(target, source), sizes)
    yield timed_matmul("largest matmul", *(noise(sizes.square, sizes.square) for _ in range(3)), sizes)


def calls(sizes: Sizes) -> Results:
    """Measure small operations: host microseconds to enqueue one, device microseconds to run one."""
    x, total, m = npx.ones(32), npx.empty(1), noise(16, 16)
    function, args = launch._function("sums.cu", "total", (("T", x.dtype),), 0), (x, total, np.int32(32))
    operations: dict[str, Callable[[], Any]] = {
        "raw launch": lambda: function((1, 1, 1), (32, 1, 1), args, shared_mem=0),
        "launch": lambda: launch.launch("sums.cu", "total", 1, 32, args, T=x.dtype),
        "matmul": lambda: blas.matmul(m, m),
        "ufunc": lambda: x + x,
        "ufunc in place": lambda: x.__iadd__(x),
        "empty": lambda: npx.empty(32),
    }
    for name, call in operations.items():
        yield {name: {"host_us": host_microseconds(call), "device_us": 1e3 * milliseconds(call, 10 * sizes.repeats)}}


def cupy_kernels(sizes: Sizes) -> Results:
    """Measure CuPy's own kernels with the sizes of a base step."""
    base = sizes.shapes["base, 25k + 25k"]
    tokens, d, v = base.batch * base.length, base.d_model, base.vocab
    rows, other, g, grad = noise(tokens, d), noise(tokens, d), noise(v, d), npx.zeros((v, d))
    one, ids = npx.ones(()), npx.asarray(np.random.default_rng(0).integers(0, v, tokens))
    for name, nbytes, function in (
        ("add: residual", 3 * rows.nbytes, lambda: rows + other),
        ("add: residual, in place", 3 * rows.nbytes, lambda: rows.__iadd__(other)),
        ("add: the table's gradient", 2 * grad.nbytes + g.nbytes, lambda: grad.__iadd__(g)),
        ("multiply: the table's gradient", 2 * g.nbytes, lambda: g.__imul__(one)),
        ("zeros: the table's gradient", g.nbytes, lambda: npx.zeros(g.shape, g.dtype)),
        ("argsort: ids", 2 * ids.nbytes, lambda: npx.argsort(ids, kind="stable")),
    ):
        yield timed_copy(name, nbytes, function, sizes)


def matmul_sizes(a: Namespace) -> list[tuple[int, int, int]]:
    """Return (m, n, k) of the distinct matmuls of a step: forward, input gradient, weight gradient."""
    tokens, columns_padded = (
        a.batch * a.length,
        -(-a.vocab // cross_entropy.CUDA_MULTIPLE) * cross_entropy.CUDA_MULTIPLE,
    )
    chunk = min(
        tokens,
        max(1, cross_entropy.CUDA_CHUNK // columns_padded // cross_entropy.CUDA_MULTIPLE) * cross_entropy.CUDA_MULTIPLE,
    )
    sizes = []
    for rows, columns in train_step.weights(a):
        m = chunk if columns == a.vocab else tokens
        sizes += [(m, columns, rows), (m, rows, columns), (rows, columns, m)]
        if columns == a.vocab:  # the table is the transpose of the projection matrix
            sizes[-1] = (columns, rows, m)
    return list(dict.fromkeys(sizes))


def matmuls(sizes: Sizes) -> Results:
    """Measure the matmuls of a base step in each memory layout of the factors."""
    for m, n, k in matmul_sizes(sizes.shapes["base, 25k + 25k"]):
        for layout in ("NN", "NT", "TN"):
            left = noise(k, m).T if layout[0] == "T" else noise(m, k)
            right = noise(n, k).T if layout[1] == "T" else noise(k, n)
            yield timed_matmul(f"{m:,} x {n:,} x {k:,} {layout}", left, right, npx.empty((m, n), left.dtype), sizes)


def steps(engine: str, sizes: Sizes) -> Results:
    """Measure consecutive training steps of an engine and, for our engine, every kernel."""
    for name, shape in sizes.shapes.items():
        device = sizes.torch_device if engine.startswith("torch") else shape.device
        a = Namespace(**vars(shape) | {"worker": engine, "device": device})
        step, wait, more = train_step.STEPS[engine](a)
        yield {name: back_to_back(step, wait, 2 * a.batch * a.length, sizes.steps) | more()}
        if engine == "ours":
            yield {f"{name}, by kernel": profiled(step, wait, sizes)}
        del step, wait, more
        free(engine)


def free(engine: str) -> None:
    """Free the memory of the last steps."""
    npx.free_memory()
    if engine.startswith("torch"):
        import torch

        torch._dynamo.reset()  # CUDA graphs keep their memory until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def back_to_back(step: Callable[[], Any], wait: Callable[[], Any], tokens: int, n: int) -> dict[str, Any]:
    """Return the milliseconds per step of `n` consecutive steps, and those that the host needs to enqueue one."""
    for _ in range(3):
        step()
    wait()
    host = []
    for _ in range(5):
        started = time.perf_counter()
        step()
        host.append(time.perf_counter() - started)
        wait()
    started = time.perf_counter()
    for _ in range(n):
        step()
    wait()
    seconds = (time.perf_counter() - started) / n
    return {"ms": seconds * 1e3, "host_ms": min(host) * 1e3, "tokens_per_second": tokens / seconds, "steps": n}


def profiled(step: Callable[[], Any], wait: Callable[[], Any], sizes: Sizes) -> dict[str, Any]:
    """Return calls, bytes, operations and milliseconds of each kernel and matmul in one step.

    `between_ms` is the time of CuPy's own kernels and of gaps.
    """
    import cupy

    with launches.recorded() as calls:
        step()
    wait()
    timed, spans = [], 0.0
    for _ in range(sizes.rounds):
        for first in range(0, len(calls), sizes.window):
            with launches.recorded(range(first, first + sizes.window)) as window:
                step()
            wait()
            events = [call.events for call in window if call.events]
            assert events
            spans += cupy.cuda.get_elapsed_time(events[0][0], events[-1][1])
            timed += [call for call in window if call.events]
    lines = launches.by_kernel(timed)
    rounds = sizes.rounds
    table = {
        line.name: {"calls": line.calls // rounds, "ms": line.ms / rounds}
        | ({"flops": line.flops / rounds} if line.flops else {})
        | {"bytes": line.bytes // rounds}
        for line in lines
    }
    kernel_ms = sum(line["ms"] for line in table.values())
    return {"table": table, "device_ms": spans / rounds, "between_ms": spans / rounds - kernel_ms}
