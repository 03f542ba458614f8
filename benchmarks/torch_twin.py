"""Our encoder-decoder written with PyTorch functions, with the same formulas, parameters and parameter names.

The parity tests check it against our model (tests/test_parity_torch.py) and the benchmarks time it, so both compare the
same model. As in ours, queries, keys and values come from one matmul. Dropout applies to sub-layer outputs and to the
sum of embedding and positions, as in the paper, not to attention weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from models import TransformerConfig

Weights = Mapping[str, Any]  # name -> torch tensor


def positions(w: Weights, side: str, c: TransformerConfig, length: int) -> Any:
    """Return the positional encoding (length, D): learned, or sines and cosines of pos 10000^(-i/n), D even."""
    table = w["embedding.weight"]
    if c.positions == "learned":
        return w[f"{side}_positions.weight"][:length]
    halves = c.positions == "sinusoidal_halves"
    n = c.d_model / 2 - ((c.position_rates or ("tensor2tensor" if halves else "paper")) == "tensor2tensor")
    rates = torch.pow(10000.0, -torch.arange(c.d_model // 2, dtype=torch.float64) / n)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    waves = [torch.sin(angles), torch.cos(angles)]
    table_rows = torch.cat(waves, dim=1) if halves else torch.stack(waves, dim=2).flatten(1)
    return table_rows.to(table.device, table.dtype)


def twin(
    w: Weights,
    c: TransformerConfig,
    src_ids: Any,
    tgt_ids: Any,
    rate: float = 0.0,
    padded: bool = True,
    positions: Callable[..., Any] = positions,
) -> Any:
    """Return logits (B, T, V) of source ids (B, S) and decoder input ids (B, T), with dropout `rate`.

    padded: whether `src_ids` has padding. Without it no mask is passed, which PyTorch's fastest attention requires.
    positions: function that returns the positional encoding; the benchmarks pass a precomputed table.
    """

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, w[name + ".weight"].T, w.get(name + ".bias"))

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, x.shape[-1:], w[name + ".gamma"], w[name + ".beta"], c.layer_norm_eps)

    def attention(x: Any, memory: Any, name: str, **options: Any) -> Any:
        keys, values = c.n_heads * c.key_size, c.n_heads * c.value_size
        if memory is None:
            q, k, v = linear(x, name + ".query_key_value").split([keys, keys, values], dim=-1)
        else:
            q, (k, v) = linear(x, name + ".query"), linear(memory, name + ".key_value").split([keys, values], dim=-1)
        q, k, v = (a.unflatten(-1, (c.n_heads, -1)).transpose(1, 2) for a in (q, k, v))  # (B, H, T, d)
        y = F.scaled_dot_product_attention(q, k, v, **options)
        return linear(y.transpose(1, 2).flatten(2), name + ".output")

    def feed_forward(x: Any, name: str) -> Any:
        return linear(F.relu(linear(x, name + ".inner")), name + ".outer")

    def residual(x: Any, f: Callable[[Any], Any], name: str) -> Any:
        name += "_residual.norm"
        if c.norm == "post":
            return norm(x + F.dropout(f(x), rate), name)
        return x + F.dropout(f(norm(x, name)), rate)

    def embed(ids: Any, side: str) -> Any:
        x = F.embedding(ids, w["embedding.weight"]) * c.d_model**0.5
        if side == "source" and c.target_space:
            x = x + w["target_space.weight"]
        if side == "target" and c.decoder_start == "zeros":
            x = x * (ids != c.bos_id)[..., None]
        return F.dropout(x + positions(w, side, c, ids.shape[1]), rate)

    src_mask = {"attn_mask": (src_ids != c.pad_id)[:, None, None, :]} if padded else {}
    x = embed(src_ids, "source")
    for i in range(c.n_layers):
        e = f"encoder.{i}."
        x = residual(x, lambda y, e=e: attention(y, None, e + "attention", **src_mask), e + "attention")
        x = residual(x, lambda y, e=e: feed_forward(y, e + "feed_forward"), e + "feed_forward")
    memory = x if c.norm == "post" else norm(x, "encoder_norm")

    x = embed(tgt_ids, "target")
    for i in range(c.n_layers):
        d = f"decoder.{i}."
        x = residual(x, lambda y, d=d: attention(y, None, d + "attention", is_causal=True), d + "attention")
        cross = d + "cross_attention"
        x = residual(x, lambda y, n=cross: attention(y, memory, n, **src_mask), cross)
        x = residual(x, lambda y, d=d: feed_forward(y, d + "feed_forward"), d + "feed_forward")
    x = x if c.norm == "post" else norm(x, "decoder_norm")
    return F.linear(x, w["embedding.weight"])


def new_weights(c: TransformerConfig, device: str) -> dict[str, Any]:
    """Return random weights for timing, as leaves that require gradients."""
    shapes = {name: p.shape for name, p in c.outline().named_parameters()}
    return {
        name: torch.randn(shape, device=device).mul_(0.02).add_(name.endswith("gamma")).requires_grad_()
        for name, shape in shapes.items()
    }
