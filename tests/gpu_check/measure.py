"""What is fast and what is not: memory, calls, products, whole steps and each of their kernels.

Every function yields dictionaries as it finds figures, so that what was measured is kept where time runs out. `rate` is
bytes or operations a second; times are milliseconds unless a name says otherwise.
"""

import os
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

Found = Iterator[dict[str, Any]]


def machine(sizes: Sizes) -> Found:
    """What is computed on."""
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
    """Of the device, for one of `repeats` calls back to back."""
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
    """Of the host, for one call of several that the device's queue has room for; the least of five tries."""
    tries = []
    for _ in range(5):
        npx.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            function()
        tries.append((time.perf_counter() - started) / calls * 1e6)
    npx.synchronize()
    return min(tries)


def memory_and_calls(sizes: Sizes) -> Found:
    """How fast memory and the largest product are, what one call costs the host, and what CuPy's own kernels take."""
    yield from ceilings(sizes)
    yield from calls(sizes)
    yield from cupys_own(sizes)


def moved(name: str, nbytes: int, function: Callable[[], Any], sizes: Sizes) -> dict[str, Any]:
    """Milliseconds of a function that moves so many bytes, and the rate."""
    ms = milliseconds(function, sizes.repeats)
    return {name: {"ms": ms, "bytes": nbytes, "rate": nbytes / ms * 1e3}}


def multiplied(name: str, left: Any, right: Any, out: Any, sizes: Sizes) -> dict[str, Any]:
    """The same of a product, by its operations."""
    ms, flops = milliseconds(lambda: blas.matmul(left, right, out), sizes.repeats), 2.0 * out.size * left.shape[1]
    return {name: {"ms": ms, "flops": flops, "rate": flops / ms * 1e3}}


def ceilings(sizes: Sizes) -> Found:
    """What nothing is faster than."""
    source, target = (npx.ones(sizes.copied // 4) for _ in range(2))
    yield moved("copy", 2 * source.nbytes, lambda: npx.copyto(target, source), sizes)
    yield multiplied("largest product", *(noise(sizes.square, sizes.square) for _ in range(3)), sizes)


def calls(sizes: Sizes) -> Found:
    """Of small things: microseconds until the host has asked for one, and until the device has done one."""
    x, total, m = npx.ones(32), npx.empty(1), noise(16, 16)
    function, args = launch._function("sums.cu", "total", (("T", x.dtype),), 0), (x, total, np.int32(32))
    asked: dict[str, Callable[[], Any]] = {
        "raw launch": lambda: function((1, 1, 1), (32, 1, 1), args, shared_mem=0),
        "launch": lambda: launch.launch("sums.cu", "total", 1, 32, args, T=x.dtype),
        "product": lambda: blas.matmul(m, m),
        "ufunc": lambda: x + x,
        "ufunc in place": lambda: x.__iadd__(x),
        "empty": lambda: npx.empty(32),
    }
    for name, call in asked.items():
        yield {name: {"host_us": host_microseconds(call), "device_us": 1e3 * milliseconds(call, 10 * sizes.repeats)}}


def cupys_own(sizes: Sizes) -> Found:
    """CuPy's kernels in a base step, at their sizes there."""
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
        yield moved(name, nbytes, function, sizes)


def product_sizes(a: Namespace) -> list[tuple[int, int, int]]:
    """(m, n, k) of the different products of a step: forward, gradient of the input, gradient of the weight."""
    tokens, room = a.batch * a.length, -(-a.vocab // cross_entropy.CUDA_ROWS) * cross_entropy.CUDA_ROWS
    chunk = min(tokens, max(1, cross_entropy.CUDA_CHUNK // room // cross_entropy.CUDA_ROWS) * cross_entropy.CUDA_ROWS)
    found = []
    for rows, columns in train_step.weights(a):
        m = chunk if columns == a.vocab else tokens
        found += [(m, columns, rows), (m, rows, columns), (rows, columns, m)]
        if columns == a.vocab:  # the table is the transpose of what it projects with
            found[-1] = (columns, rows, m)
    return list(dict.fromkeys(found))


def products(sizes: Sizes) -> Found:
    """The products of a base step, each with the rows or the columns of its factors contiguous."""
    for m, n, k in product_sizes(sizes.shapes["base, 25k + 25k"]):
        for kinds in ("NN", "NT", "TN"):
            left = noise(k, m).T if kinds[0] == "T" else noise(m, k)
            right = noise(n, k).T if kinds[1] == "T" else noise(k, n)
            yield multiplied(f"{m:,} x {n:,} x {k:,} {kinds}", left, right, npx.empty((m, n), left.dtype), sizes)


def products_by_cublaslt(sizes: Sizes) -> Found:
    """The same by the fastest of the algorithms that cuBLASLt recommends; `first_ms`: by the one that is taken.

    `choice`: which is the fastest, of so many `choices`.
    """
    import cupy

    os.environ["NPX_CUBLASLT"] = "1"
    blas.use_own_handle(cupy)
    own = blas._own_handle
    assert own is not None
    for m, n, k in product_sizes(sizes.shapes["base, 25k + 25k"]):
        for kinds in ("NN", "NT", "TN"):
            left = noise(k, m).T if kinds[0] == "T" else noise(m, k)
            right = noise(n, k).T if kinds[1] == "T" else noise(k, n)
            name, out, tried, choices = f"{m:,} x {n:,} x {k:,} {kinds}", npx.empty((m, n), left.dtype), [], 1
            while len(tried) < choices:
                own.algorithm = len(tried)
                tried.append(multiplied(name, left, right, out, sizes)[name])
                choices = len([*own.plans.values()][-1].algorithms)
            best = min(range(choices), key=lambda i: tried[i]["ms"])
            yield {name: tried[best] | {"first_ms": tried[0]["ms"], "choice": best, "choices": choices}}


def steps(engine: str, sizes: Sizes) -> Found:
    """Steps of an engine back to back, and, of ours, every kernel."""
    for name, shape in sizes.shapes.items():
        where = sizes.torch_device if engine.startswith("torch") else shape.device
        a = Namespace(**vars(shape) | {"worker": engine, "device": where})
        step, wait, more = train_step.OURS.get(engine, train_step.peer)(a)
        yield {name: back_to_back(step, wait, 2 * a.batch * a.length, sizes.steps) | more()}
        if engine == "ours":
            yield {f"{name}, by kernel": taken_apart(step, wait, sizes)}
        del step, wait, more
        free(engine)


def free(engine: str) -> None:
    """Give the memory of the last steps back."""
    npx.free_memory()
    if engine.startswith("torch"):
        import torch

        torch.cuda.empty_cache()


def back_to_back(step: Callable[[], Any], wait: Callable[[], Any], tokens: int, n: int) -> dict[str, Any]:
    """Milliseconds of a step among `n` without a pause, and what of them the host needs to ask for one."""
    for _ in range(3):
        step()
    wait()
    asking = []
    for _ in range(5):
        started = time.perf_counter()
        step()
        asking.append(time.perf_counter() - started)
        wait()
    started = time.perf_counter()
    for _ in range(n):
        step()
    wait()
    seconds = (time.perf_counter() - started) / n
    return {"ms": seconds * 1e3, "host_ms": min(asking) * 1e3, "tokens_per_second": tokens / seconds, "steps": n}


def taken_apart(step: Callable[[], Any], wait: Callable[[], Any], sizes: Sizes) -> dict[str, Any]:
    """Calls, bytes, operations and milliseconds of each kernel and product in one step.

    "between": CuPy's own kernels, and the gaps.
    """
    import cupy

    with launches.recorded() as calls:
        step()
    wait()
    timed, spans = [], 0.0
    for _ in range(sizes.rounds):
        for first in range(0, len(calls), sizes.window):
            with launches.recorded(range(first, first + sizes.window)) as again:
                step()
            wait()
            own = [call for call in again if call.events]
            spans += cupy.cuda.get_elapsed_time(own[0].events[0], own[-1].events[1])
            timed += own
    lines = launches.by_kernel(timed)
    once = sizes.rounds
    table = {
        line.name: {"calls": line.calls // once, "ms": line.ms / once}
        | ({"flops": line.flops / once} if line.flops else {})
        | {"bytes": line.bytes // once}
        for line in lines
    }
    own_ms = sum(line["ms"] for line in table.values())
    return {"table": table, "device_ms": spans / once, "between_ms": spans / once - own_ms}
