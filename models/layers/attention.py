"""Multi-head attention (paper section 3.2.2): self-attention and cross-attention, for training and for decoding."""

from typing import Any

import npx
from autograd import Tensor, neural, no_grad
from models.cache import INITIAL_CAPACITY, KeyValueCache
from models.layers.basic import Dropout, Linear
from models.layers.score_bias import ScoreBias
from models.module import Module
from models.registry import NORMS


class Attention(Module):
    """Base class of self-attention and cross-attention.

    Args:
        d_model: width D of inputs and outputs.
        n_heads: number H of heads.
        d_k, d_v: width of a head's queries and keys, and width of its values. Default: D / H.
        projection_bias: whether the projections have biases. Default False.
        dropout: rate on the attention weights. Default 0.
        rotary_base: the base for rotating queries and keys by their positions. Default None: no rotation.
        gain: the gain of the Xavier initialization of W^Q, W^K and W^V. Default 1.
        n_kv_heads: number of key and value heads, a divisor of H; H / n_kv_heads query heads share each of them. This
            is grouped-query attention (Ainslie et al., 2023) or, if 1, multi-query attention (Shazeer, 2019).
            Default: H.
        qk_norm_type: a norm that is applied to each head's queries and keys (Dehghani et al., "ViT-22B", 2023): a name
            in NORMS. Default None: no norm.
        eps: epsilon of the norm `qk_norm_type`. Default 1e-6.
        score_bias: module that computes a bias on the scores of self-attention. Default None.
        deepnorm_beta: factor on the initialization of W^V and W^O (`deep_norm_factors`). Default 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        *,
        projection_bias: bool = False,
        dropout: float = 0.0,
        rotary_base: float | None = None,
        gain: float = 1.0,
        n_kv_heads: int | None = None,
        qk_norm_type: str | None = None,
        eps: float = 1e-6,
        score_bias: ScoreBias | None = None,
        deepnorm_beta: float = 1.0,
    ) -> None:
        self.n_heads = n_heads
        self.d_k = d_k or d_model // n_heads
        self.d_v = d_v or d_model // n_heads
        self.n_kv_heads = n_kv_heads or n_heads
        self.rotary_base = rotary_base
        self.make_projections(d_model, gain, gain * deepnorm_beta, projection_bias=projection_bias)
        self.output = Linear(n_heads * self.d_v, d_model, bias=projection_bias, gain=deepnorm_beta)
        self.dropout = Dropout(dropout)
        self.query_norm = NORMS[qk_norm_type](self.d_k, eps) if qk_norm_type else None
        self.key_norm = NORMS[qk_norm_type](self.d_k, eps) if qk_norm_type else None
        self.score_bias = score_bias

    def make_projections(self, d_model: int, gain: float, value_gain: float, projection_bias: bool) -> None:
        """Create the projections to queries, keys and values; subclasses must define this."""
        raise NotImplementedError(f"{type(self).__name__} must define make_projections()")

    @property
    def query_shape(self) -> tuple[int, int]:
        """The number of heads and the head size of the queries."""
        return self.n_heads, self.d_k

    @property
    def key_value_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The number of heads and the head size, for the keys and for the values."""
        return (self.n_kv_heads, self.d_k), (self.n_kv_heads, self.d_v)

    @property
    def can_run_merged(self) -> bool:
        """Whether attention can read the merged projections directly, so that less is saved for backward."""
        return self.query_norm is None and self.score_bias is None

    def next_options(self, spec: npx.AttentionSpec) -> dict[str, Any]:
        """Return the keyword arguments of the attention operation: the spec with rotary positions, and dropout.

        If dropout is active, this method takes the next random key, so call it once per forward pass.
        """
        return {"spec": spec._replace(rotary_base=self.rotary_base), "drop": self.dropout.next_spec()}

    def split_queries(self, x: Tensor) -> Tensor:
        """Split the projection x (..., H d_k) into queries (..., H, d_k), normalized if configured."""
        (q,) = neural.split_columns(x, self.query_shape)
        return self.query_norm(q) if self.query_norm else q

    def split_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split the projection x (..., n_kv_heads * (d_k + d_v)) into keys, normalized if configured, and values."""
        k, v = neural.split_columns(x, *self.key_value_shapes)
        return (self.key_norm(k) if self.key_norm else k), v

    def add_score_bias(self, q: Tensor, k: Tensor, spec: npx.AttentionSpec) -> tuple[npx.AttentionSpec, Tensor | None]:
        """Compute the score bias, and return it as a part of the spec or, if it needs a gradient, as a Tensor."""
        if self.score_bias is None:
            return spec, None
        n_keys = spec.sizes(q.data, k.data)[2]
        bias = self.score_bias(q, n_keys, spec.q_packing)
        if bias.requires_grad:
            return spec, bias
        total = bias.data if spec.constant_bias is None else spec.constant_bias + bias.data
        return spec._replace(constant_bias=total), None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, spec: npx.AttentionSpec, drop: npx.DropoutSpec | None) -> Tensor:
        """Return attention (B, T, H d_v) for separate heads q, k and v (B, T, H, d)."""
        spec, score_bias = self.add_score_bias(q, k, spec)
        y = neural.attention(q, k, v, spec, drop, score_bias)
        return y.reshape(*y.shape[:-2], self.n_heads * self.d_v)

    def _attention_weights(self, q: Tensor, k: Tensor, spec: npx.AttentionSpec) -> npx.Array:
        """Return the attention weights (B, H, T, S) of separate heads, before dropout."""
        with no_grad():
            spec, _ = self.add_score_bias(q, k, spec._replace(rotary_base=self.rotary_base))
        return npx.attention_weights(q.data, neural.repeat_heads(k.data, self.n_heads), spec)


class SelfAttention(Attention):
    """Multi-head attention of a sequence to itself.

    One matrix contains W^Q, W^K and W^V of all heads. Arguments: see `Attention`.
    """

    def make_projections(self, d_model: int, gain: float, value_gain: float, projection_bias: bool) -> None:
        columns = tuple(n_heads * size for n_heads, size in (self.query_shape, *self.key_value_shapes))
        self.query_key_value = Linear(d_model, columns, bias=projection_bias, gain=(gain, gain, value_gain))

    def forward(
        self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), cache: KeyValueCache | None = None
    ) -> Tensor:
        """Return Concat(head_1 .. head_H) W^O, where head_i = Attention(x W_i^Q, x W_i^K, x W_i^V).

        x and the result are (B, T, D), or packed (R, D).

        Args:
            spec: the mask, bias and packing of the attention.
            cache: the keys and values of earlier positions; the keys and values of x are appended.
        """
        qkv = self.query_key_value(x)
        options = self.next_options(spec)
        if cache is None and self.can_run_merged:
            sizes = self.n_heads, self.d_k
            y = neural.self_attention(qkv, *sizes, **options, n_kv_heads=self.n_kv_heads)  # (B, T, H d_v)
        elif cache is None:
            y = self.attend(*self.split(qkv), **options)
        else:
            q, k, v = self.split(Tensor(qkv.data))
            keys, values = cache.append(k.data, v.data)
            y = self.attend(q, Tensor(keys), Tensor(values), **options)
        return self.output(y)

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the merged projection into queries, keys and values of separate heads."""
        columns = self.n_heads * self.d_k
        return self.split_queries(qkv[..., :columns]), *self.split_keys_values(qkv[..., columns:])

    def new_cache(self, n_rows: int, dtype: Any, capacity: int = INITIAL_CAPACITY) -> KeyValueCache:
        """Return an empty cache for `n_rows` sequences."""
        k, v = (npx.empty((n_rows, capacity, *shape), dtype) for shape in self.key_value_shapes)
        return KeyValueCache(k, v, 0)

    def attention_weights(self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec()) -> npx.Array:
        """Return the attention weights (B, H, T, T) of `forward` without a cache, before dropout."""
        q, k, _ = self.split(self.query_key_value(x))
        return self._attention_weights(q, k, spec)


class CrossAttention(Attention):
    """Multi-head attention of one sequence to another, the memory.

    One matrix contains W^K and W^V of all heads. Arguments: see `Attention`.
    """

    def make_projections(self, d_model: int, gain: float, value_gain: float, projection_bias: bool) -> None:
        self.query = Linear(d_model, self.n_heads * self.d_k, bias=projection_bias, gain=gain)
        columns = tuple(n_heads * size for n_heads, size in self.key_value_shapes)
        self.key_value = Linear(d_model, columns, bias=projection_bias, gain=(gain, value_gain))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        spec: npx.AttentionSpec = npx.AttentionSpec(),
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the attention (B, T, D) of x (B, T, D) to `memory` (B, S, D); all three may be packed as (R, D).

        Args:
            spec: the mask of the memory, and the packing of x and of the memory.
            cache: the keys and values of the memory, if they are already computed; `memory` may then be None. If x has
                k times as many rows as the cache, with one position each, every k adjacent rows of x share one row of
                the cache.
        """
        q = self.query(x)
        options = self.next_options(spec)
        if cache is None and not self.can_run_merged:
            y = self.attend(self.split_queries(q), *self.split_keys_values(self.key_value(memory)), **options)
        elif cache is None:
            kv = self.key_value(memory)  # (B, S, n_kv_heads (d_k + d_v))
            # Keys and values are recomputed: saving them in all N layers would take 2 N times the space of `memory`.
            recompute = q.recompute_fn, kv.recompute_fn
            sizes = self.n_heads, self.d_k
            y = neural.cross_attention(q, kv, *sizes, **options, recompute_inputs=recompute, n_kv_heads=self.n_kv_heads)
        else:
            n_rows = len(cache.keys)
            # The hypotheses of one source become query positions, so that they share its keys and values.
            rows_per_source = len(x) * x.shape[1] // max(1, n_rows)
            queries = self.split_queries(Tensor(q.data.reshape(n_rows, rows_per_source, self.n_heads * self.d_k)))
            y = self.attend(queries, Tensor(cache.keys), Tensor(cache.values), **options)
            y = y.reshape(*x.shape[:2], self.n_heads * self.d_v)
        return self.output(y)

    def new_cache(self, memory: Tensor) -> KeyValueCache:
        """Return a cache with the keys and values of `memory` (B, S, D)."""
        keys, values = self.split_keys_values(Tensor(self.key_value(memory).data))
        return KeyValueCache(keys.data, values.data, memory.shape[1])

    def attention_weights(self, x: Tensor, memory: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec()) -> npx.Array:
        """Return the attention weights (B, H, T, S) of `forward` without a cache, before dropout."""
        k, _ = self.split_keys_values(self.key_value(memory))
        return self._attention_weights(self.split_queries(self.query(x)), k, spec)
