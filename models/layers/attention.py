"""Multi-head attention (paper section 3.2.2): of a sequence to itself, or to another; whole, or on from a state."""

from typing import Any

import npx
from autograd import Tensor, neural
from models.cache import KeysValues
from models.layers.basic import Dropout, Linear
from models.module import Module

ROOM = 32  # positions that a new state has room for


class Attention(Module):
    """What both kinds share: H heads of sizes d_k and d_v (None: D / H), projections, dropout on the weights.

    `gain` is that of the first values of W^Q, W^K and W^V.
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
        rotary: float | None = None,
        gain: float = 1.0,
    ) -> None:
        self.n_heads, self.d_k, self.d_v = n_heads, d_k or d_model // n_heads, d_v or d_model // n_heads
        self.rotary = rotary
        self.project(d_model, n_heads * self.d_k, n_heads * self.d_v, bias=bias, gain=gain)
        self.output = Linear(n_heads * self.d_v, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def project(self, d_model: int, keys: int, values: int, **how: Any) -> None:
        """Make the projections to queries, keys and values."""
        raise NotImplementedError

    def how(self, spec: npx.AttentionSpec) -> dict[str, Any]:
        """The options of an attention operation: positions turned as this layer does, and its dropout."""
        return {"spec": spec._replace(rotary_base=self.rotary), "drop": self.dropout.draw()}

    def plain(self, x: Tensor, q: npx.Array, k: npx.Array, v: npx.Array, how: dict[str, Any]) -> Tensor:
        """Attention of arrays (B, T, H, d), without a graph, with the positions of x."""
        return Tensor(npx.attention(q, k, v, **how)[0].reshape(*x.shape[:2], self.n_heads * self.d_v))


class SelfAttention(Attention):
    """Concat(head_1 .. head_H) W^O with head_i = Attention(x W_i^Q, x W_i^K, x W_i^V). (B, T, D) -> (B, T, D).

    W^Q, W^K and W^V of all heads are merged into one product. `rotary`: turn queries and keys by their positions.
    """

    def project(self, d_model: int, keys: int, values: int, **how: Any) -> None:
        self.query_key_value = Linear(d_model, keys, keys, values, **how)

    def forward(
        self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), state: KeysValues | None = None
    ) -> Tensor:
        """scores: what may be attended to; state: the positions before x, to which those of x are added."""
        qkv, how = self.query_key_value(x), self.how(spec)
        if state is None:
            y = neural.self_attention(qkv, self.n_heads, self.d_k, **how)  # (B, T, H d_v)
        else:
            q, k, v = neural.split_heads(qkv.data, self.n_heads, self.d_k, self.d_k, self.d_v)
            y = self.plain(x, q, *state.extend(k, v), how)
        return self.output(y)

    def start(self, rows: int, dtype: Any, room: int = ROOM) -> KeysValues:
        """The state of `rows` sequences of which nothing is there yet."""
        k, v = (npx.empty((rows, room, self.n_heads, size), dtype) for size in (self.d_k, self.d_v))
        return KeysValues(k, v, 0)

    def weights(
        self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), state: KeysValues | None = None
    ) -> npx.Array:
        """The softmax (B, H, T, T) that `forward` of a whole sequence weighs with, without dropout."""
        q, k, _ = neural.split_heads(self.query_key_value(x).data, self.n_heads, self.d_k, self.d_k, self.d_v)
        return npx.attention_weights(q, k, spec._replace(rotary_base=self.rotary))


class CrossAttention(Attention):
    """Attention with queries from x (B, T, D), keys and values from `memory` (B, S, D): W^K and W^V are merged."""

    def project(self, d_model: int, keys: int, values: int, **how: Any) -> None:
        self.query = Linear(d_model, keys, **how)
        self.key_value = Linear(d_model, keys, values, **how)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        spec: npx.AttentionSpec = npx.AttentionSpec(),
        state: KeysValues | None = None,
    ) -> Tensor:
        """scores: what of the memory may be attended to; state: its keys and values, in the memory's stead.

        x may have several times as many rows as the state, one position each: then as many neighbours share a row.
        """
        q, how = self.query(x), self.how(spec)
        if state is None:
            kv = self.key_value(memory)  # (B, S, H (d_k + d_v))
            recompute = q.recompute, kv.recompute  # saves 2 arrays of the memory's size in each layer
            y = neural.cross_attention(q, kv, self.n_heads, self.d_k, recompute=recompute, **how)  # (B, T, H d_v)
        else:
            rows = len(state.keys)
            neighbours = len(x) * x.shape[1] // max(1, rows)  # as positions
            queries = q.data.reshape(rows, neighbours, self.n_heads, self.d_k)
            y = self.plain(x, queries, state.keys, state.values, how)
        return self.output(y)

    def start(self, memory: Tensor) -> KeysValues:
        """The state over `memory` (R, S, D)."""
        keys, values = neural.split_heads(self.key_value(memory).data, self.n_heads, self.d_k, self.d_v)
        return KeysValues(keys, values, memory.shape[1])

    def weights(
        self, x: Tensor, memory: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), state: None = None
    ) -> npx.Array:
        """The softmax (B, H, T, S) that `forward` weighs with, without dropout."""
        (q,) = neural.split_heads(self.query(x).data, self.n_heads, self.d_k)
        return npx.attention_weights(q, self.start(memory).keys, spec._replace(rotary_base=self.rotary))
