"""Time forward and backward of an LSTM layer: ours and PyTorch's.

    python -m benchmarks.lstm_step --engine ours --engine torch --json

The input is random, and all sentences have the full length. The engines run in turn, each in its own process
(turns.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks import turns

ENGINES = ("ours", "torch")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"d-model": 512, "batch": 64, "length": 25}.items():
        p.add_argument(f"--{name}", type=int, default=default)
    turns.add_options(p, ENGINES, steps=15, warmup=2, row=5)
    return p.parse_args()


def main() -> None:
    a = arguments()
    if a.worker:
        return turns.serve(STEPS[a.worker](a))
    flops = 6.0 * a.batch * a.length * 8 * a.d_model**2
    title = f"LSTM, width {a.d_model}, {a.batch} x {a.length} positions"
    turns.compare("benchmarks.lstm_step", a, title, a.batch * a.length, flops)


def ours(a: argparse.Namespace) -> Callable[[], Any]:
    """Return forward and backward of this project's LSTM."""
    import npx
    from autograd import Tensor
    from models import LSTM

    npx.configure_process()
    with npx.keyed(0, 0):
        layer = LSTM(a.d_model, a.d_model)
    x, g = (npx.random.normal(npx.Key(0, i, 0), (a.batch, a.length, a.d_model)) for i in (1, 2))

    def step() -> None:
        for p in layer.parameters():
            p.grad = None
        layer(Tensor(x, requires_grad=True)).backward(g)

    return step


def torch_step(a: argparse.Namespace) -> Callable[[], Any]:
    """Return forward and backward of torch.nn.LSTM."""
    import torch

    torch.set_num_threads(a.threads)
    layer = torch.nn.LSTM(a.d_model, a.d_model, batch_first=True)
    x, g = torch.randn(2, a.batch, a.length, a.d_model)

    def step() -> None:
        layer.zero_grad()
        layer(x.clone().requires_grad_())[0].backward(g)

    return step


STEPS = {"ours": ours, "torch": torch_step}


if __name__ == "__main__":
    main()
