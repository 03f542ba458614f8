"""Multi-head attention (paper section 3.2.2), whole sequences or one position at a time. Next: `transformer.py`."""

from typing import Any

import npx
from autograd import Tensor, neural
from models.layers import Dropout, Linear
from models.module import Module


class MultiHeadAttention(Module):
    """Concat(head_1 .. head_H) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    `cross` False: queries, keys and values from one sequence, W^Q, W^K, W^V merged into one product; True: queries from
    x, keys and values from `memory`, W^K and W^V merged. x (B, T, D) -> (B, T, D).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        *,
        cross: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        self.n_heads, self.d_k, self.d_v = n_heads, d_k or d_model // n_heads, d_v or d_model // n_heads
        keys, values = n_heads * self.d_k, n_heads * self.d_v
        self.cross = cross
        if cross:
            self.query = Linear(d_model, keys, bias=bias)
            self.key_value = Linear(d_model, keys, values, bias=bias)
        else:
            self.query_key_value = Linear(d_model, keys, keys, values, bias=bias)
        self.output = Linear(values, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        self.weights: Any = None  # (B, H, T, S) of the last call, kept only while `keep_weights`
        self.keep_weights = False

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Any = None) -> Tensor:
        """mask: bool, broadcastable to (B, H, T, S), True = may be attended; memory (B, S, D) for cross-attention."""
        drop = {"scores": npx.Scores(bias=npx.mask_bias(mask)), "rate": self.dropout.rate, "key": self.dropout.key()}
        if self.cross:
            q, kv = self.query(x), self.key_value(memory)  # (B, T, H d_k), (B, S, H (d_k + d_v))
            if self.keep_weights:
                self.weights = self._weights(q, kv, mask)
            y = neural.cross_attention(q, kv, self.n_heads, self.d_k, **drop)  # (B, T, H d_v)
        else:
            y = neural.self_attention(self.query_key_value(x), self.n_heads, self.d_k, **drop)  # (B, T, H d_v)
        return self.output(y)

    def _weights(self, q: Tensor, kv: Tensor, mask: Any) -> Any:
        (q_heads,) = neural.split_heads(q.data, self.n_heads, self.d_k)
        k, _ = neural.split_heads(kv.data, self.n_heads, self.d_k, self.d_v)
        return npx.attention_weights(q_heads, k, npx.Scores(bias=npx.mask_bias(mask)))

    def start(self, memory: Tensor, capacity: int = 32) -> "AttentionCache":
        """A cache for `step`: over `memory` (R, S, D) for cross-attention, empty with R rows for self-attention."""
        if self.cross:
            k, v = neural.split_heads(self.key_value(memory).data, self.n_heads, self.d_k, self.d_v)
            return AttentionCache(k, v, memory.shape[1])
        rows = len(memory)
        k = npx.empty((rows, capacity, self.n_heads, self.d_k), memory.dtype)
        v = npx.empty((rows, capacity, self.n_heads, self.d_v), memory.dtype)
        return AttentionCache(k, v, 0)

    def step(self, x: Tensor, cache: "AttentionCache", mask: Any = None) -> Tensor:
        """One position x (R, 1, D) -> (R, 1, D), attending to what `cache` holds (and, if not cross, to itself).

        In cross-attention the R rows may be several times as many as those of the cache: then R / rows neighbours
        share one row of it. mask (rows, 1, 1, S).
        """
        if self.cross:
            queries = self.query(x).data
            neighbours = len(x) // max(1, len(cache.keys))
            shared = queries.reshape(len(cache.keys), neighbours, self.n_heads, self.d_k)  # neighbours as positions
            y = npx.attention(shared, cache.keys, cache.values, npx.Scores(bias=npx.mask_bias(mask)))[0]
        else:
            q, k, v = neural.split_heads(self.query_key_value(x).data, self.n_heads, self.d_k, self.d_k, self.d_v)
            cache.append(k, v)
            y = npx.attention(q, cache.keys[:, : cache.length], cache.values[:, : cache.length])[0]
        return self.output(Tensor(y.reshape(len(x), 1, self.n_heads * self.d_v)))


class AttentionCache:
    """Keys (R, capacity, H, d_k) and values (R, capacity, H, d_v) of the `length` positions seen so far."""

    def __init__(self, keys: Any, values: Any, length: int) -> None:
        self.keys, self.values, self.length = keys, values, length

    def append(self, k: Any, v: Any) -> None:
        """Add one position (R, 1, H, d); the room doubles when it is full."""
        if self.length == self.keys.shape[1]:
            self.keys = npx.concatenate([self.keys, npx.empty(self.keys.shape, k.dtype)], axis=1)
            self.values = npx.concatenate([self.values, npx.empty(self.values.shape, v.dtype)], axis=1)
        self.keys[:, self.length] = k[:, 0]
        self.values[:, self.length] = v[:, 0]
        self.length += 1

    def select(self, rows: Any) -> None:
        """Keep, repeat or reorder rows (integer array, on the device of the cache)."""
        for name in ("keys", "values"):
            before = getattr(self, name)
            after = npx.empty((len(rows), *before.shape[1:]), before.dtype)
            after[:, : self.length] = before[rows, : self.length]  # the room for later positions is not copied
            setattr(self, name, after)
