"""JAX for the benchmarks: the functions of benchmarks/twin.py, weights, and a training step under one `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models import TransformerConfig


class Functions:
    """The functions of one loss; `key` seeds its dropout masks, one after the other."""

    relu = staticmethod(jax.nn.relu)
    gelu = staticmethod(jax.nn.gelu)  # the tanh form
    embedding = staticmethod(lambda ids, table: table[ids])
    stack = staticmethod(lambda arrays: jnp.stack(arrays, -1))

    def __init__(self, key: Any = None) -> None:
        self.key, self.n_masks = key, 0

    def constant(self, name: str, make: Callable[[], np.ndarray], like: Any) -> Any:
        """Return a constant of the compiled function."""
        return jnp.asarray(make(), like.dtype)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """Return x @ weight + bias."""
        return x @ weight if bias is None else x @ weight + bias

    def layer_norm(self, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
        """Return layer norm by its formula, which XLA fuses."""
        centered = x - x.mean(-1, keepdims=True)
        return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + eps) * gamma + beta

    def attention(self, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
        """Return the result of JAX's `dot_product_attention`."""
        mask = None if mask is None else mask[:, None, None, :]
        return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal)

    def dropout(self, x: Any, rate: float) -> Any:
        """Return inverted dropout."""
        if not rate:
            return x
        self.n_masks += 1
        is_kept = jax.random.bernoulli(jax.random.fold_in(self.key, self.n_masks), 1 - rate, x.shape)
        return jnp.where(is_kept, x / (1 - rate), 0)


def new_weights(config: TransformerConfig) -> dict[str, Any]:
    """Return random weights for timing."""
    random = np.random.default_rng(0)
    return {
        name: jnp.asarray(random.normal(size=p.shape) * 0.02 + name.endswith("gamma"), jnp.float32)
        for name, p in config.build_abstract().named_parameters()
    }


def cross_entropy(logits: Any, targets: Any, label_smoothing: float = 0.0) -> Any:
    """Return the mean cross entropy of logits (n, V), smoothed over all classes as in PyTorch."""
    log_p = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(log_p, targets[:, None], 1).mean()
    return -(1 - label_smoothing) * picked - label_smoothing * log_p.mean()


def training_step(loss: Callable[[Functions, dict[str, Any]], Any], weights: dict[str, Any]) -> Callable[[], None]:
    """Return a function that runs forward, backward and Adam once, compiled as one function.

    Old weights and moments are donated, so they are updated in place.

    Args:
        loss: a function of the functions and the weights.
    """
    rate, beta1, beta2, eps = 1e-4, 0.9, 0.98, 1e-9

    def update(weights: Any, m: Any, v: Any, step: Any) -> Any:
        # XLA's own generator is several times as fast on a CPU as JAX's default, Threefry.
        key = jax.random.fold_in(jax.random.key(0, impl="unsafe_rbg"), step)
        gradients = jax.grad(lambda w: loss(Functions(key), w))(weights)
        m = jax.tree.map(lambda a, g: beta1 * a + (1 - beta1) * g, m, gradients)
        v = jax.tree.map(lambda a, g: beta2 * a + (1 - beta2) * g * g, v, gradients)
        scale1, scale2 = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        weights = jax.tree.map(lambda w, a, b: w - rate * a * scale1 / (jnp.sqrt(b * scale2) + eps), weights, m, v)
        return weights, m, v

    compiled = jax.jit(update, donate_argnums=(0, 1, 2))
    zeros = lambda: {name: jnp.zeros_like(w) for name, w in weights.items()}  # noqa: E731
    state: list[Any] = [weights, zeros(), zeros(), 0.0]

    def step() -> None:
        state[3] += 1.0
        state[:3] = compiled(*state)
        jax.block_until_ready(state[0])

    return step
