"""Time an update of a small language model: our engine and the same model in PyTorch.

    python -m benchmarks.language_step --engine ours --engine torch --engine torch-compile --json

The default is the model of configs/tinyshakespeare.toml: pre-norm, GELU, rotary positions, no dropout, tied embedding,
12 windows of 64 characters. The engines run in turn, each in its own process (turns.py). A turn has 20 consecutive
updates, as in training, because after a pause sleeping threads restart more slowly than spinning ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks import turns

ENGINES = ("ours", "torch", "torch-compile")
UPDATES = 2000  # of a training, for the title


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
        return turns.serve(ours(a) if a.worker == "ours" else peer(a))
    title = f"d_model {a.d_model}, heads {a.heads}, d_ff {a.d_ff}, layers {a.layers}, {a.batch} x {a.length} characters"
    turns.compare("benchmarks.language_step", a, f"{title}, seconds x {UPDATES} = a training", a.batch * a.length)


def ours(a: argparse.Namespace) -> Callable[[], Any]:
    """Return one update of this project."""
    import numpy as np

    import npx
    from models import TransformerConfig
    from train import Adam

    npx.configure_process()
    shape = {"d_model": a.d_model, "n_heads": a.heads, "d_ff": a.d_ff, "n_layers": a.layers, "dropout": 0.0}
    parts = {"architecture": "decoder", "norm": "pre", "activation": "gelu", "positions": "rotary"}
    adam = Adam(model := TransformerConfig(a.vocab, **shape, **parts).build())
    ids = np.random.default_rng(0).integers(4, a.vocab, (a.batch, a.length + 1))

    def step() -> None:
        adam.flat.zero_grad()
        model.loss(ids).backward()
        adam.step(1e-4)

    return step


def peer(a: argparse.Namespace) -> Callable[[], Any]:
    """Return one update of PyTorch: its attention, norms and fused Adam, with merged queries, keys and values."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    size = a.d_model // a.heads
    rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.arange(a.length)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()

    def rotate(x: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            d = a.d_model
            self.first, self.second = nn.LayerNorm(d, 1e-6), nn.LayerNorm(d, 1e-6)
            self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
            self.inner, self.outer = nn.Linear(d, a.d_ff), nn.Linear(a.d_ff, d)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.first(x)).chunk(3, -1)
            q, k, v = (part.view(a.batch, a.length, a.heads, size).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.outer(F.gelu(self.inner(self.second(x)), approximate="tanh"))

    embedding = nn.Parameter(torch.randn(a.vocab, a.d_model) * a.d_model**-0.5)
    body = nn.Sequential(*(Block() for _ in range(a.layers)), nn.LayerNorm(a.d_model, 1e-6))
    optimizer = torch.optim.Adam([embedding, *body.parameters()], 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    ids = torch.randint(4, a.vocab, (a.batch, a.length + 1))

    def loss() -> Any:
        logits = body(F.embedding(ids[:, :-1], embedding) * a.d_model**0.5) @ embedding.T
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    compute = torch.compile(loss) if a.worker == "torch-compile" else loss

    def step() -> None:
        optimizer.zero_grad()
        compute().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
