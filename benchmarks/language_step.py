"""Time an update of a small language model: our engine, the same model in PyTorch and JAX, and the matmuls alone.

    python -m benchmarks.language_step --engine ours --engine torch --engine torch-compile --json

The default is the model of configs/tinyshakespeare.toml: pre-norm, GELU, rotary positions, no dropout, tied embedding,
12 windows of 64 characters. The engines run in turn, each in its own process (turns.py). A turn consists of 20
consecutive updates, as in training, because sleeping threads restart more slowly after a pause than spinning ones.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from benchmarks import turns, twin

ENGINES = ("ours", "torch", "torch-bf16", "torch-compile", "jax", "floor")
UPDATES = 2000  # number of updates of a training run, for the title


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = {"d-model": 128, "heads": 4, "d-ff": 512, "layers": 4, "vocab": 69, "batch": 12, "length": 64}
    for name, default in shape.items():
        p.add_argument(f"--{name}", type=int, default=default)
    turns.add_options(p, ENGINES, steps=15, warmup=2, row=20)
    return p.parse_args()


def main() -> None:
    a = arguments()
    if a.worker:
        return turns.serve(STEPS[a.worker](a))
    title = f"d_model {a.d_model}, heads {a.heads}, d_ff {a.d_ff}, layers {a.layers}, {a.batch} x {a.length} characters"
    turns.compare("benchmarks.language_step", a, f"{title}, seconds x {UPDATES} = a training run", a.batch * a.length)


def config(a: argparse.Namespace) -> Any:
    """Return the configuration of the model."""
    from models import TransformerConfig

    shape = {"d_model": a.d_model, "n_heads": a.heads, "d_ff": a.d_ff, "n_layers": a.layers, "dropout": 0.0}
    parts = {"architecture": "decoder", "norm_placement": "pre", "activation": "gelu", "positions": "rotary"}
    return TransformerConfig(a.vocab, **shape, **parts)


def ours(a: argparse.Namespace) -> Callable[[], Any]:
    """Return one update of this project."""
    import numpy as np

    import npx
    from train import Adam

    npx.configure_process()
    adam = Adam(model := config(a).build())
    ids = np.random.default_rng(0).integers(4, a.vocab, (a.batch, a.length + 1))

    def step() -> None:
        adam.flat.zero_grad()
        model.loss(ids).backward()
        adam.step(1e-4)

    return step


def torch_step(a: argparse.Namespace) -> Callable[[], Any]:
    """Return one update of PyTorch: its attention, norms and fused Adam, with merged queries, keys and values."""
    import torch
    import torch.nn.functional as F

    from benchmarks.torch_engine import Functions, new_weights, training_step

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    c = config(a)
    functions = Functions()
    weights = new_weights(c, "cpu")
    ids = torch.randint(4, a.vocab, (a.batch, a.length + 1))

    def loss() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=a.worker == "torch-bf16"):
            logits = twin.decoder(functions, weights, c, ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    return training_step(loss, weights, a.worker)


def jax_step(a: argparse.Namespace) -> Callable[[], Any]:
    """Return one update of JAX: forward, backward and Adam in one compiled function, on as many cores as threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])  # XLA takes as many threads as cores
    import numpy as np

    from benchmarks.jax_engine import cross_entropy, new_weights, training_step

    c = config(a)
    ids = np.random.default_rng(0).integers(4, a.vocab, (a.batch, a.length + 1))

    def loss(functions: Any, weights: dict[str, Any]) -> Any:
        logits = twin.decoder(functions, weights, c, ids[:, :-1])
        return cross_entropy(logits.reshape(-1, a.vocab), ids[:, 1:].reshape(-1))

    return training_step(loss, new_weights(c))


def floor(a: argparse.Namespace) -> Callable[[], Any]:
    """Return only the matmuls of an update, forward and backward, computed by NumPy."""
    import numpy as np

    random = np.random.default_rng(0)
    n = a.batch * a.length
    d = a.d_model
    layer = [(d, 3 * d), (d, d), (d, a.d_ff), (a.d_ff, d)]
    operands: list[tuple[Any, Any]] = []
    for rows, columns in [*layer * a.layers, (d, a.vocab)]:
        x, w, g = (random.random(shape, np.float32) for shape in ((n, rows), (rows, columns), (n, columns)))
        operands += [(x, w), (g, w.T), (x.T, g)]
    q, p = (random.random((a.batch, a.heads, a.length, size), np.float32) for size in (d // a.heads, a.length))
    operands += [(q, q.swapaxes(2, 3)), (p, q)] * 3 * a.layers

    def step() -> None:
        for left, right in operands:
            np.matmul(left, right)

    return step


STEPS = {
    "ours": ours,
    **dict.fromkeys(("torch", "torch-bf16", "torch-compile"), torch_step),
    "jax": jax_step,
    "floor": floor,
}


if __name__ == "__main__":
    main()
