"""Time a training step: our engine, PyTorch, JAX, and a lower bound ("floor"), the matmuls of the step alone.

    python -m benchmarks.train_step --engine ours --engine torch --engine floor --layers 6 --vocab 37000 --json

All engines train the same model with label smoothing 0.1, Adam and the same number of threads. The model (twin.py) is
the paper's base model, with dropout 0.1 on sub-layer outputs and on the sum of embedding and positions, no biases in
attention and a tied embedding. They run in turn, each in its own process (turns.py). No sentence is padded: PyTorch
gets no mask, and our engine reads the lengths. `ours-recompute` uses gradient checkpointing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import turns, twin

OURS = ("ours", "ours-graph", "ours-lt", "ours-graph-lt", "ours-recompute")
TORCH = ("torch", "torch-bf16", "torch-compile", "torch-graph")
ENGINES = (*OURS, *TORCH, "jax", "floor")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--precision", help="ours: float32, tf32, bf16, fp16 (default: float32, with --device cuda bf16)")
    base = {"d-model": 512, "heads": 8, "d-ff": 2048, "layers": 6, "vocab": 37000, "batch": 64, "length": 30}
    for name, default in base.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument(
        "--profile", action="store_true", help="print the time of our engine by operation, forward and backward"
    )
    turns.add_options(p, ENGINES, steps=7, warmup=2)
    return p.parse_args()


def main() -> None:
    a = arguments()
    if a.worker:
        return turns.serve(*STEPS[a.worker](a))
    if a.profile:
        return profile(a)
    title = (
        f"d_model {a.d_model}, heads {a.heads}, d_ff {a.d_ff}, layers {a.layers}, vocabulary {a.vocab}, "
        f"{a.batch} x {a.length} tokens a side, {a.device}"
    )
    turns.compare("benchmarks.train_step", a, title, 2 * a.batch * a.length, flops(a))


def weights(a: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the shapes of all weight matrices, merged as in our model."""
    d = a.d_model
    layer = [(d, 3 * d), (d, d), (d, a.d_ff), (a.d_ff, d)]
    return (layer * 2 + [(d, d), (d, 2 * d), (d, d)]) * a.layers + [(d, a.vocab)]


def flops(a: argparse.Namespace) -> float:
    """Return the floating-point operations of the matmuls of a step; backward takes twice as many as forward."""
    attention = 3 * a.layers * 2 * a.batch * a.length**2 * a.d_model  # q k^T and p v
    return 6 * (a.batch * a.length * sum(rows * columns for rows, columns in weights(a)) + attention)


def our_step(
    a: argparse.Namespace, engine: str = "ours"
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], None]]:
    """Return three functions: forward, forward with backward, and update.

    An engine with "graph" in its name runs the second as a CUDA graph; one with "lt" uses cuBLASLt for matmuls.
    """
    import numpy as np

    import npx
    from models import FlatParameters, Transformer, TransformerConfig
    from train import Adam
    from train.learn.cuda_graphs import GraphedLoss
    from train.run.keys import TrainSection

    os.environ["NPX_CUBLASLT"] = str(int("lt" in engine))
    npx.configure_process()
    npx.use_device(a.device)
    precision = npx.use_precision(a.precision or ("bf16" if a.device == "cuda" else "float32"))
    config = TransformerConfig(a.vocab, a.d_model, a.d_ff, a.heads, a.layers)
    model = Transformer(config, dtype=precision.weight_dtype)
    random = np.random.default_rng(0)
    model.enable_gradient_checkpointing(engine == "ours-recompute")
    flat = FlatParameters(model, precision.compute_dtype)
    adam = Adam(flat)
    src = random.integers(4, a.vocab, (a.batch, a.length))
    tgt = random.integers(4, a.vocab, (a.batch, a.length + 1))

    def forward() -> Any:
        flat.zero_grad()
        with npx.keyed(1, 1):
            return model.loss(src, tgt)

    def graph_step() -> Any:
        flat.zero_grad()
        with npx.keyed(1, 1):
            return graphs.loss((src, tgt), a.batch * a.length, 1.0)

    def fail(message: str) -> None:
        raise RuntimeError(message)

    if "graph" in engine:
        graphs = GraphedLoss(model, TrainSection(seed=1), fail)
        return forward, graph_step, lambda: adam.step(1e-4)
    return forward, lambda: forward().backward(), lambda: adam.step(1e-4)


def ours(a: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Return a step of this project, a function that waits for the device, and one that returns more figures."""
    import npx

    _, forward_backward, update = our_step(a, a.worker)

    def step() -> None:
        forward_backward()
        update()

    if a.device == "cpu":
        return step, lambda: None, dict
    from benchmarks.launches import recorded

    def extra_figures() -> dict[str, Any]:
        use = npx.memory_use()
        with recorded() as calls:  # without CuPy's own kernels
            step()
        return {"gpu_mib": use.held // 2**20 if use else 0, "launches": len(calls)}

    return step, npx.synchronize, extra_figures


def torch_step(a: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Return the same as `ours`, for PyTorch, with its own attention, norms and losses, and fused Adam."""
    import torch
    import torch.nn.functional as F

    from benchmarks.torch_engine import Functions, new_weights, training_step
    from models import TransformerConfig

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    config = TransformerConfig(a.vocab, a.d_model, a.d_ff, a.heads, a.layers)
    functions = Functions()
    weights = new_weights(config, a.device)
    src = torch.randint(4, a.vocab, (a.batch, a.length), device=a.device)
    tgt = torch.randint(4, a.vocab, (a.batch, a.length + 1), device=a.device)
    half = a.worker == "torch-bf16" or a.device == "cuda"

    def loss() -> Any:
        with torch.autocast(a.device, torch.bfloat16, enabled=half):
            logits = twin.encoder_decoder(functions, weights, config, src, tgt[:, :-1], 0.1, padded=False)
        return F.cross_entropy(logits.float().view(-1, a.vocab), tgt[:, 1:].reshape(-1), label_smoothing=0.1)

    step = training_step(loss, weights, a.worker)
    if a.device == "cpu":
        return step, lambda: None, dict
    return step, torch.cuda.synchronize, lambda: {"gpu_mib": torch.cuda.max_memory_reserved() // 2**20}


def jax_step(a: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Return the same as `ours`, for JAX: forward, backward and Adam compiled together, on as many cores as threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])  # XLA takes as many threads as cores
    import numpy as np

    from benchmarks.jax_engine import cross_entropy, new_weights, training_step
    from models import TransformerConfig

    config = TransformerConfig(a.vocab, a.d_model, a.d_ff, a.heads, a.layers)
    random = np.random.default_rng(0)
    src = random.integers(4, a.vocab, (a.batch, a.length))
    tgt = random.integers(4, a.vocab, (a.batch, a.length + 1))

    def loss(functions: Any, weights: dict[str, Any]) -> Any:
        logits = twin.encoder_decoder(functions, weights, config, src, tgt[:, :-1], 0.1, padded=False)
        return cross_entropy(logits.reshape(-1, a.vocab), tgt[:, 1:].reshape(-1), label_smoothing=0.1)

    return training_step(loss, new_weights(config)), lambda: None, dict


def floor(a: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], Any], Callable[[], dict[str, Any]]]:
    """Return the same as `ours`, for only the matmuls of a step, forward and backward.

    On a CPU, NumPy computes them with the threads of BLAS; on a GPU, cuBLAS in bf16, without the matmuls of attention.
    """
    import numpy as np

    random = np.random.default_rng(0)
    n = a.batch * a.length
    random_array: Callable[..., Any] = lambda *shape: random.random(shape, np.float32)  # noqa: E731
    multiply: Callable[[Any, Any], Any] = np.matmul
    wait: Callable[[], Any] = lambda: None  # noqa: E731
    if a.device == "cuda":
        import npx
        from benchmarks.launches import noise
        from npx.cuda import blas

        npx.use_device(a.device)
        random_array, multiply, wait = noise, blas.matmul, npx.synchronize
    operands: list[tuple[Any, Any]] = []
    for rows, columns in weights(a):
        x, w, g = (random_array(*shape) for shape in ((n, rows), (rows, columns), (n, columns)))
        operands += [(x, w), (g, w.T), (x.T, g)]
    if a.device == "cpu":
        q, p = (random_array(a.batch, a.heads, a.length, size) for size in (a.d_model // a.heads, a.length))
        operands += [(q, q.swapaxes(2, 3)), (p, q)] * 3 * 3 * a.layers  # 3 attentions; forward once, backward twice

    def step() -> None:
        for left, right in operands:
            multiply(left, right)

    return step, wait, dict


STEPS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(OURS, ours),
    **dict.fromkeys(TORCH, torch_step),
    "jax": jax_step,
    "floor": floor,
}


@contextmanager
def timed_kernels() -> Iterator[dict[str, list[float]]]:
    """Record the seconds of every kernel call in the block; yield {kernel name: seconds of each call}."""
    import npx

    seconds: dict[str, list[float]] = {}

    def timed(name: str, version: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return version(*args, **kwargs)
            finally:
                npx.synchronize()
                seconds.setdefault(name, []).append(time.perf_counter() - started)

        return run

    parts = [part for kernel in npx.KERNELS.values() for part in (kernel, kernel.grad) if part]
    before = [part.versions for part in parts]
    for part in parts:
        part.versions = {key: timed(part.name, version) for key, version in part.versions.items()}
    try:
        yield seconds
    finally:
        for part, versions in zip(parts, before, strict=True):
            part.versions = versions


def profile(a: argparse.Namespace) -> None:
    """Print the seconds of each kernel in one step, and the time between kernels."""
    forward, _, update = our_step(a)
    with timed_kernels() as seconds:
        for _ in range(a.warmup + 1):
            seconds.clear()
            times = [time.perf_counter()]
            loss = forward()
            times.append(time.perf_counter())
            loss.backward()
            times.append(time.perf_counter())
            update()
            times.append(time.perf_counter())
    parts = [after - before for before, after in zip(times, times[1:], strict=False)]
    total = sum(parts)
    print(f"forward {parts[0]:.3f} s, backward {parts[1]:.3f} s, update {parts[2]:.3f} s, total {total:.3f} s")
    for name, calls in sorted(seconds.items(), key=lambda item: -sum(item[1])):
        print(f"{name:32} {sum(calls):7.3f} s  {100 * sum(calls) / total:6.1f}%  {len(calls):4} calls")
    rest = total - sum(map(sum, seconds.values()))
    print(f"{'between kernels':32} {rest:7.3f} s  {100 * rest / total:6.1f}%")


if __name__ == "__main__":
    main()
