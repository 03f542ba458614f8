"""Seconds a training step takes: our engine, PyTorch, and the floor, the step's matrix products alone.

    python -m benchmarks.train_step --engine ours --engine torch --engine floor --layers 6 --vocab 37000 --json

The same shapes, dropout 0.1, label smoothing 0.1, Adam and number of threads for all; the engines take their steps in
turn, each in its own process (turns.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks import turns

ENGINES = ("ours", "torch", "torch-bf16", "torch-compile", "floor")


def arguments() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--precision", help="ours: float32, tf32, bf16, fp16 (default: float32, with --device cuda bf16)")
    base = {"d-model": 512, "heads": 8, "d-ff": 2048, "layers": 6, "vocab": 37000, "batch": 64, "length": 30}
    for name, default in base.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--profile", action="store_true", help="where our time goes, by operation, forward and backward")
    turns.add_options(p, ENGINES, steps=7, warmup=2)
    return p.parse_args()


def main() -> None:
    a = arguments()
    if a.worker:
        return turns.serve({"ours": ours, "floor": floor}.get(a.worker, peer)(a))
    if a.profile:
        return profile(a)
    title = (
        f"d_model {a.d_model}, heads {a.heads}, d_ff {a.d_ff}, layers {a.layers}, vocabulary {a.vocab}, "
        f"{a.batch} x {a.length} tokens a side, {a.device}"
    )
    turns.compare("benchmarks.train_step", a, title, tokens=2 * a.batch * a.length)


def our_step(a: argparse.Namespace) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], None]]:
    """forward, backward (of what forward returned) and update, as three functions."""
    import numpy as np

    import npx
    from models import Transformer, TransformerConfig, flatten
    from train import Adam

    npx.use_device(a.device)
    precision = npx.use_precision(a.precision or ("bf16" if a.device == "cuda" else "float32"))
    config = TransformerConfig(a.vocab, a.d_model, a.d_ff, a.heads, a.layers)
    model, random = Transformer(config, dtype=precision.weights), np.random.default_rng(0)
    flat, adam = flatten(model, precision.numbers), Adam(model)
    src = random.integers(4, a.vocab, (a.batch, a.length))
    tgt = random.integers(4, a.vocab, (a.batch, a.length + 1))

    def forward() -> Any:
        flat.zero_grad()
        with npx.keyed(1, 1):
            return model.loss(src, tgt)

    return forward, lambda: forward().backward(), lambda: adam.step(1e-4)


def ours(a: argparse.Namespace) -> Callable[[], None]:
    """One step of this project."""
    import npx

    _, both, update = our_step(a)

    def step() -> None:
        both()
        update()
        npx.synchronize()

    return step


def peer(a: argparse.Namespace) -> Callable[[], None]:
    """One step of PyTorch: its own fused layers, fused Adam, tied embedding, the same loss."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(a.vocab, a.d_model, device=a.device)
    body = torch.nn.Transformer(a.d_model, a.heads, a.layers, a.layers, a.d_ff, 0.1, batch_first=True, device=a.device)
    parameters = [*embedding.parameters(), *body.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    src = torch.randint(4, a.vocab, (a.batch, a.length), device=a.device)
    tgt = torch.randint(4, a.vocab, (a.batch, a.length + 1), device=a.device)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(a.length, device=a.device)
    half = a.worker == "torch-bf16" or a.device == "cuda"

    def loss() -> Any:
        with torch.autocast(a.device, torch.bfloat16, enabled=half):
            x, y = (F.dropout(embedding(ids) * a.d_model**0.5, 0.1) for ids in (src, tgt[:, :-1]))
            hidden = body(x, y, tgt_mask=causal, tgt_is_causal=True)
            logits = hidden @ embedding.weight.T
        return F.cross_entropy(logits.float().view(-1, a.vocab), tgt[:, 1:].reshape(-1), label_smoothing=0.1)

    compute = torch.compile(loss) if a.worker == "torch-compile" else loss

    def step() -> None:
        optimizer.zero_grad()
        compute().backward()
        optimizer.step()
        if a.device == "cuda":
            torch.cuda.synchronize()

    return step


def floor(a: argparse.Namespace) -> Callable[[], None]:
    """The matrix products of one step, forward and backward, and nothing else, by NumPy with BLAS's own threads."""
    import numpy as np

    random, n, d = np.random.default_rng(0), a.batch * a.length, a.d_model
    weights = [(d, 3 * d), (d, d), (d, a.d_ff), (a.d_ff, d)] * 2 + [(d, d), (d, 2 * d), (d, d)]
    products: list[tuple[Any, Any]] = []
    for rows, columns in [*weights * a.layers, (d, a.vocab)]:
        x, w, g = (random.random(shape, np.float32) for shape in ((n, rows), (rows, columns), (n, columns)))
        products += [(x, w), (g, w.T), (x.T, g)]
    q, p = (random.random((a.batch, a.heads, a.length, size), np.float32) for size in (d // a.heads, a.length))
    products += [(q, q.swapaxes(2, 3)), (p, q)] * 3 * 3 * a.layers  # three attentions, forward and twice backward

    def step() -> None:
        for left, right in products:
            np.matmul(left, right)

    return step


def time_kernels() -> dict[str, list[float]]:
    """From now on every call of a kernel leaves its seconds in the dictionary returned, under the kernel's name."""
    import npx

    spent: dict[str, list[float]] = {}
    for kernel in npx.KERNELS.values():
        plain = kernel.version_for

        def timed(x: Any, plain: Any = plain, name: str = kernel.name) -> Any:
            version = plain(x)

            def run(*args: Any, **kwargs: Any) -> Any:
                started = time.perf_counter()
                try:
                    return version(*args, **kwargs)
                finally:
                    npx.synchronize()
                    spent.setdefault(name, []).append(time.perf_counter() - started)

            return run

        kernel.version_for = timed  # type: ignore[method-assign]
    return spent


def profile(a: argparse.Namespace) -> None:
    """Prints the seconds of each kernel in one step, and of everything between kernels."""
    forward, _, update = our_step(a)
    spent = time_kernels()
    for _ in range(a.warmup + 1):
        spent.clear()
        times = [time.perf_counter()]
        loss = forward()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        update()
        times.append(time.perf_counter())
    parts = [after - before for before, after in zip(times, times[1:], strict=False)]
    total = sum(parts)
    print(f"forward {parts[0]:.3f} s, backward {parts[1]:.3f} s, update {parts[2]:.3f} s, together {total:.3f} s")
    for name, calls in sorted(spent.items(), key=lambda item: -sum(item[1])):
        print(f"{name:32} {sum(calls):7.3f} s  {100 * sum(calls) / total:5.1f} %  {len(calls):4} calls")
    rest = total - sum(map(sum, spent.values()))
    print(f"{'between kernels':32} {rest:7.3f} s  {100 * rest / total:5.1f} %")


if __name__ == "__main__":
    main()
