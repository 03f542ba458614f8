"""Multi-head attention (paper section 3.2.2): self-attention and cross-attention, for training and for decoding."""

from typing import Any

import npx
from autograd import Tensor, neural
from models.cache import INITIAL_CAPACITY, KeyValueCache
from models.layers.basic import Dropout, Linear
from models.module import Module


class Attention(Module):
    """Base class of self-attention and cross-attention.

    Args:
        d_model: width D of inputs and outputs.
        n_heads: number H of heads.
        d_k, d_v: widths, per head, of the queries and keys, and of the values. Default: D / H.
        bias: whether the projections have biases. Default False.
        dropout: rate on the attention weights. Default 0.
        rotary_base: rotate queries and keys by their positions, with this base. Default None: no rotation.
        gain: the gain of the Xavier initialization of W^Q, W^K and W^V. Default 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        rotary_base: float | None = None,
        gain: float = 1.0,
    ) -> None:
        self.n_heads, self.d_k, self.d_v = n_heads, d_k or d_model // n_heads, d_v or d_model // n_heads
        self.rotary_base = rotary_base
        self.make_projections(d_model, n_heads * self.d_k, n_heads * self.d_v, bias=bias, gain=gain)
        self.output = Linear(n_heads * self.d_v, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def make_projections(self, d_model: int, keys: int, values: int, **options: Any) -> None:
        """Create the projections to queries, keys and values; `keys`, `values`: total widths over all heads."""
        raise NotImplementedError

    def options(self, spec: npx.AttentionSpec) -> dict[str, Any]:
        """Return the keyword arguments of the attention operation: the spec with rotary positions, and dropout."""
        return {"spec": spec._replace(rotary_base=self.rotary_base), "drop": self.dropout.draw()}

    def attend(self, x: Tensor, q: npx.Array, k: npx.Array, v: npx.Array, options: dict[str, Any]) -> Tensor:
        """Attend with arrays (B, T, H, d), without a graph; return a Tensor (B, T, H d_v) for x (B, T, D)."""
        return Tensor(npx.attention(q, k, v, **options)[0].reshape(*x.shape[:2], self.n_heads * self.d_v))


class SelfAttention(Attention):
    """Concat(head_1 .. head_H) W^O with head_i = Attention(x W_i^Q, x W_i^K, x W_i^V). (B, T, D) -> (B, T, D).

    W^Q, W^K and W^V of all heads are one matrix. Arguments: see `Attention`.
    """

    def make_projections(self, d_model: int, keys: int, values: int, **options: Any) -> None:
        self.query_key_value = Linear(d_model, keys, keys, values, **options)

    def forward(
        self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), cache: KeyValueCache | None = None
    ) -> Tensor:
        """Attend within x (B, T, D), or packed (N, D).

        spec: mask, bias and packing. cache: the keys and values of earlier positions; those of x are appended.
        """
        qkv, options = self.query_key_value(x), self.options(spec)
        if cache is None:
            y = neural.self_attention(qkv, self.n_heads, self.d_k, **options)  # (B, T, H d_v)
        else:
            q, k, v = neural.split_heads(qkv.data, self.n_heads, self.d_k, self.d_k, self.d_v)
            y = self.attend(x, q, *cache.append(k, v), options)
        return self.output(y)

    def new_cache(self, rows: int, dtype: Any, capacity: int = INITIAL_CAPACITY) -> KeyValueCache:
        """Return an empty cache for `rows` sequences."""
        k, v = (npx.empty((rows, capacity, self.n_heads, size), dtype) for size in (self.d_k, self.d_v))
        return KeyValueCache(k, v, 0)

    def weights(
        self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), cache: KeyValueCache | None = None
    ) -> npx.Array:
        """Return the attention weights (B, H, T, T) of `forward` without a cache, before dropout."""
        q, k, _ = neural.split_heads(self.query_key_value(x).data, self.n_heads, self.d_k, self.d_k, self.d_v)
        return npx.attention_weights(q, k, spec._replace(rotary_base=self.rotary_base))


class CrossAttention(Attention):
    """Attention with queries from x (B, T, D) and keys and values from `memory` (B, S, D). (B, T, D) -> (B, T, D).

    W^K and W^V are one matrix. Arguments: see `Attention`.
    """

    def make_projections(self, d_model: int, keys: int, values: int, **options: Any) -> None:
        self.query = Linear(d_model, keys, **options)
        self.key_value = Linear(d_model, keys, values, **options)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        spec: npx.AttentionSpec = npx.AttentionSpec(),
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Attend from x to the memory.

        spec: mask of the memory and packing. cache: the keys and values of the memory, which may then be None. With a
        cache, x may have a multiple of its rows, one position each; then as many neighboring rows share a cache row.
        """
        q, options = self.query(x), self.options(spec)
        if cache is None:
            kv = self.key_value(memory)  # (B, S, H (d_k + d_v))
            # saved keys and values of N layers would take 2 N times as much as `memory`
            recompute = q.recompute, kv.recompute
            y = neural.cross_attention(q, kv, self.n_heads, self.d_k, recompute=recompute, **options)  # (B, T, H d_v)
        else:
            rows = len(cache.keys)
            rows_each = len(x) * x.shape[1] // max(1, rows)  # the rows of one source count as positions
            queries = q.data.reshape(rows, rows_each, self.n_heads, self.d_k)
            y = self.attend(x, queries, cache.keys, cache.values, options)
        return self.output(y)

    def new_cache(self, memory: Tensor) -> KeyValueCache:
        """Return the keys and values of `memory` (R, S, D)."""
        keys, values = neural.split_heads(self.key_value(memory).data, self.n_heads, self.d_k, self.d_v)
        return KeyValueCache(keys, values, memory.shape[1])

    def weights(
        self, x: Tensor, memory: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), cache: None = None
    ) -> npx.Array:
        """Return the attention weights (B, H, T, S) of `forward` without a cache, before dropout."""
        (q,) = neural.split_heads(self.query(x).data, self.n_heads, self.d_k)
        return npx.attention_weights(q, self.new_cache(memory).keys, spec._replace(rotary_base=self.rotary_base))
