"""Our models, written with the functions of PyTorch or JAX, with the same formulas, parameters and parameter names.

The parity tests check them against ours (tests/test_parity_torch.py) and the benchmarks time them, so all compare the
same models. As in ours, queries, keys and values come from one matmul. Dropout applies to sub-layer outputs and to the
sum of embedding and positions, as in the paper, not to attention weights. Each framework provides its `Functions`
(benchmarks/torch_engine.py, benchmarks/jax_engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from models import TransformerConfig

Weights = Mapping[str, Any]  # maps a name to an array of the framework


class Functions(Protocol):
    """The functions that the models need from a framework."""

    def constant(self, name: str, make: Callable[[], np.ndarray], like: Any) -> Any:
        """Return the array that `make` creates, once for each name, with the dtype and device of `like`."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """Return x (..., n) @ weight (n, m) + bias (m,); bias may be None."""

    def layer_norm(self, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
        """Return the layer norm over the last axis."""

    def attention(self, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
        """Return the attention of q (B, T, H, d) to k, v (B, S, H, d); mask (B, S) is False where keys are padding."""

    def dropout(self, x: Any, rate: float) -> Any:
        """Apply inverted dropout."""

    def embedding(self, ids: Any, table: Any) -> Any:
        """Return the rows `ids` of a table (V, D)."""

    def relu(self, x: Any) -> Any:
        """Return max(x, 0)."""

    def gelu(self, x: Any) -> Any:
        """Return GELU in its tanh form."""

    def stack(self, arrays: list[Any]) -> Any:
        """Stack arrays on a new last axis."""


def sinusoids(config: TransformerConfig, length: int) -> np.ndarray:
    """Return sines and cosines of pos * 10000^(-i/n) (length, D), in float64, for an even D."""
    halves = config.positions == "sinusoidal_halves"
    rates = config.position_rates or ("tensor2tensor" if halves else "paper")
    n = config.d_model / 2 - (rates == "tensor2tensor")
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(config.d_model // 2) / n)
    waves = [np.sin(angles), np.cos(angles)]
    if halves:
        return np.concatenate(waves, axis=1)
    return np.stack(waves, axis=2).reshape(length, -1)


def encoder_decoder(
    f: Functions,
    w: Weights,
    config: TransformerConfig,
    src_ids: Any,
    tgt_ids: Any,
    rate: float = 0.0,
    padded: bool = True,
) -> Any:
    """Return logits (B, T, V) of source ids (B, S) and decoder input ids (B, T), with dropout `rate`.

    Args:
        padded: whether `src_ids` has padding. Without it no mask is passed, which PyTorch's fastest attention requires.
    """
    mask = src_ids != config.pad_id if padded else None

    def residual(x: Any, sublayer: Callable[[Any], Any], name: str) -> Any:
        gamma, beta = (w[f"{name}_residual.norm.{part}"] for part in ("gamma", "beta"))
        if config.norm_placement == "post":
            return f.layer_norm(x + f.dropout(sublayer(x), rate), gamma, beta, config.layer_norm_eps)
        return x + f.dropout(sublayer(f.layer_norm(x, gamma, beta, config.layer_norm_eps)), rate)

    def embed(ids: Any, side: str) -> Any:
        table = w["embedding.weight"]
        length = ids.shape[1]
        x = f.embedding(ids, table) * config.d_model**0.5
        if side == "source" and config.target_space:
            x = x + w["target_space.weight"]
        if side == "target" and config.decoder_start == "zeros":
            x = x * (ids != config.bos_id)[..., None]
        if config.positions == "learned":
            return f.dropout(x + w[f"{side}_positions.weight"][:length], rate)
        return f.dropout(x + f.constant(f"positions {length}", lambda: sinusoids(config, length), table), rate)

    def final_norm(x: Any, name: str) -> Any:
        if config.norm_placement == "post":
            return x
        return f.layer_norm(x, w[f"{name}.gamma"], w[f"{name}.beta"], config.layer_norm_eps)

    x = embed(src_ids, "source")
    for i in range(config.n_layers):
        name = f"encoder.{i}.attention"
        x = residual(x, lambda y, n=name: self_attention(f, w, config, n, y, mask=mask), name)
        name = f"encoder.{i}.feed_forward"
        x = residual(x, lambda y, n=name: feed_forward(f, w, n, y, f.relu), name)
    memory = final_norm(x, "encoder_norm")

    x = embed(tgt_ids, "target")
    for i in range(config.n_layers):
        name = f"decoder.{i}.attention"
        x = residual(x, lambda y, n=name: self_attention(f, w, config, n, y, causal=True), name)
        name = f"decoder.{i}.cross_attention"
        x = residual(x, lambda y, n=name: cross_attention(f, w, config, n, y, memory, mask), name)
        name = f"decoder.{i}.feed_forward"
        x = residual(x, lambda y, n=name: feed_forward(f, w, n, y, f.relu), name)
    return final_norm(x, "decoder_norm") @ w["embedding.weight"].T


def decoder(f: Functions, w: Weights, config: TransformerConfig, ids: Any) -> Any:
    """Return logits (B, T, V) of a language model's input ids (B, T): pre-norm, GELU, rotary positions, no dropout."""
    length = ids.shape[1]

    def angles() -> np.ndarray:  # (T, 1, d/2)
        return np.arange(length)[:, None, None] * 10000.0 ** (-np.arange(0, config.key_size, 2) / config.key_size)

    cos = f.constant(f"cos {length}", lambda: np.cos(angles()), w["embedding.weight"])
    sin = f.constant(f"sin {length}", lambda: np.sin(angles()), w["embedding.weight"])

    def rotate(x: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        return f.stack([even * cos - odd * sin, even * sin + odd * cos]).reshape(x.shape)

    def norm(x: Any, name: str) -> Any:
        return f.layer_norm(x, w[f"{name}.gamma"], w[f"{name}.beta"], config.layer_norm_eps)

    x = f.embedding(ids, w["embedding.weight"]) * config.d_model**0.5
    for i in range(config.n_layers):
        name = f"layers.{i}.attention"
        x = x + self_attention(f, w, config, name, norm(x, f"{name}_residual.norm"), causal=True, rotate=rotate)
        name = f"layers.{i}.feed_forward"
        x = x + feed_forward(f, w, name, norm(x, f"{name}_residual.norm"), f.gelu)
    return norm(x, "norm") @ w["embedding.weight"].T


def self_attention(
    f: Functions,
    w: Weights,
    config: TransformerConfig,
    name: str,
    x: Any,
    rotate: Callable[[Any], Any] = lambda x: x,
    **options: Any,
) -> Any:
    """Return self-attention of x (B, T, D).

    Args:
        rotate: applied to queries and keys.
        options: mask or causal.
    """
    merged = project(f, w, f"{name}.query_key_value", x)
    q, k, v = heads(config, merged, config.key_size, config.key_size, config.value_size)
    return project(f, w, f"{name}.output", f.attention(rotate(q), rotate(k), v, **options).reshape(*x.shape[:2], -1))


def cross_attention(
    f: Functions, w: Weights, config: TransformerConfig, name: str, x: Any, memory: Any, mask: Any
) -> Any:
    """Return attention of x (B, T, D) to the memory (B, S, D)."""
    (q,) = heads(config, project(f, w, f"{name}.query", x), config.key_size)
    k, v = heads(config, project(f, w, f"{name}.key_value", memory), config.key_size, config.value_size)
    return project(f, w, f"{name}.output", f.attention(q, k, v, mask=mask).reshape(*x.shape[:2], -1))


def feed_forward(f: Functions, w: Weights, name: str, x: Any, activation: Callable[[Any], Any]) -> Any:
    """Return the feed-forward network of x (..., D)."""
    return project(f, w, f"{name}.outer", activation(project(f, w, f"{name}.inner", x)))


def project(f: Functions, w: Weights, name: str, x: Any) -> Any:
    """Return the linear layer `name` of x."""
    return f.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def heads(config: TransformerConfig, merged: Any, *sizes: int) -> list[Any]:
    """Split merged projections (B, T, H * sum(sizes)) into arrays (B, T, H, size)."""
    parts, start = [], 0
    for size in sizes:
        stop = start + config.n_heads * size
        parts.append(merged[..., start:stop].reshape(*merged.shape[:2], config.n_heads, size))
        start = stop
    return parts
