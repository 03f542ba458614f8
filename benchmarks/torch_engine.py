"""PyTorch for the benchmarks: the functions of benchmarks/twin.py, weights, and a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from models import TransformerConfig

COMPILE_MODES = {"torch-compile": "default", "torch-graph": "reduce-overhead"}


class Functions:
    """PyTorch's own attention, norms and activations."""

    linear = staticmethod(lambda x, weight, bias: F.linear(x, weight.T, bias))
    layer_norm = staticmethod(lambda x, gamma, beta, eps: F.layer_norm(x, x.shape[-1:], gamma, beta, eps))
    dropout = staticmethod(F.dropout)
    embedding = staticmethod(F.embedding)
    relu = staticmethod(F.relu)
    gelu = staticmethod(lambda x: F.gelu(x, approximate="tanh"))
    stack = staticmethod(lambda arrays: torch.stack(arrays, -1))

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}

    def constant(self, name: str, make: Callable[[], np.ndarray], like: Any) -> Any:
        """Return a constant that is created once, like a registered buffer."""
        if name not in self.constants:
            self.constants[name] = torch.tensor(make(), device=like.device, dtype=like.dtype)
        return self.constants[name]

    def attention(self, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
        """Return `scaled_dot_product_attention` in the layout (B, T, H, d)."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2)


def new_weights(config: TransformerConfig, device: str) -> dict[str, Any]:
    """Return random weights for timing, as leaves that require gradients."""
    shapes = {name: p.shape for name, p in config.build_abstract().named_parameters()}
    return {
        name: torch.randn(shape, device=device).mul_(0.02).add_(name.endswith("gamma")).requires_grad_()
        for name, shape in shapes.items()
    }


def training_step(loss: Callable[[], Any], weights: dict[str, Any], engine: str) -> Callable[[], None]:
    """Return a function that runs forward, backward and the fused Adam of PyTorch once.

    Args:
        engine: with "torch-compile" the loss runs through torch.compile, with "torch-graph" also as CUDA graphs.
    """
    optimizer = torch.optim.Adam(weights.values(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    compute = loss
    if engine in COMPILE_MODES:
        with torch.no_grad():
            loss()  # the first call creates the constants
        torch._dynamo.reset()  # otherwise sizes that have changed since the last model become symbolic
        compute = torch.compile(loss, dynamic=False, mode=COMPILE_MODES[engine])

    def step() -> None:
        optimizer.zero_grad()
        compute().backward()
        optimizer.step()

    return step
