"""One step of the Transformer's decoder layers on plain arrays, for search on a CPU.

With a cache, the layers in `layers.py` give the same results, but they are slower: they create Tensors, and each
hypothesis has its own cache. Here the hypotheses of a sentence form a group that shares one cache. Each step adds one
column per hypothesis, so all queries of a sentence read the same keys in one matmul. A mask marks the columns that
belong to each hypothesis, so reordering the hypotheses copies no keys or values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import npx
from autograd import Tensor
from models.architectures.layers import DecoderLayer
from models.cache import INITIAL_CAPACITY, DecodingState, equal_runs
from models.layers.attention import CrossAttention, SelfAttention
from models.layers.basic import Linear
from models.layers.feed_forward import FeedForward
from models.layers.norm import LayerNorm, Norm, Residual
from npx import host  # NumPy, for arrays that stay on the CPU

MAX_SHARED_ROWS = 16  # maximum rows per group, because each row reads the columns of all rows in its group


def supports_decode_step(layers: list[Any], memory: npx.Array) -> bool:
    """Return whether `decode_step` supports these decoder layers with a memory (B, S, D).

    Layers with relative positions, normalized queries and keys, grouped heads, windows or hooks must be run as ordinary
    layers.
    """
    return isinstance(memory, host.ndarray) and all(
        type(layer) is DecoderLayer
        and type(layer.attention) is SelfAttention
        and type(layer.cross_attention) is CrossAttention
        and layer.attention.can_run_merged
        and layer.attention.rotary_base is None
        and layer.attention.n_kv_heads == layer.attention.n_heads
        and not any(module.hook or module.training for module in layer.modules())
        for layer in layers
    )


class GroupedCache(DecodingState):
    """Keys and values of the target positions for all layers. The rows of a group are adjacent and share columns.

    Attributes:
        keys, values: for each layer an array (n, capacity, H, d), of which `n_columns` columns are in use.
        is_visible: (n, rows_per_group, n_columns), True where a column belongs to the prefix of a row.
    """

    def __init__(self, layers: list[DecoderLayer], n_rows: int, dtype: Any) -> None:
        caches = [layer.new_cache(n_rows, dtype) for layer in layers]
        self.keys = [cache.keys for cache in caches]
        self.values = [cache.values for cache in caches]
        self.capacity = INITIAL_CAPACITY
        self.n_columns = 0
        self.is_visible = host.zeros((n_rows, 1, 0), bool)

    def add_columns(self) -> npx.Array | None:
        """Add a column for each row, and return a bias that masks the columns outside the prefix of each row.

        The bias has the shape (n, 1, rows_per_group, n_columns); it is None if every row sees all columns.
        """
        n, rows_per_group, _ = self.is_visible.shape
        if self.n_columns + rows_per_group > self.capacity:
            self.drop_hidden_columns()
            if 2 * (self.n_columns + rows_per_group) > self.capacity:
                self.capacity = 2 * (self.n_columns + rows_per_group)
                self.replace(lambda x: x[:, : self.n_columns])
        new = host.broadcast_to(host.eye(rows_per_group, dtype=bool), (n, rows_per_group, rows_per_group))
        self.is_visible = host.concatenate([self.is_visible, new], axis=2)
        self.n_columns += rows_per_group
        if self.is_visible.all():
            return None
        return host.where(self.is_visible, 0, -host.inf).astype(self.keys[0].dtype)[:, None]

    def drop_hidden_columns(self) -> None:
        """Remove columns that no row of their group sees.

        All groups keep the same number of columns: the largest number of visible columns in any group.
        """
        is_used = self.is_visible.any(axis=1)  # (n, n_columns)
        if is_used.all():
            return
        self.n_columns = int(is_used.sum(axis=1).max())
        columns = host.argsort(~is_used, axis=1, kind="stable")[:, : self.n_columns]
        self.is_visible = host.take_along_axis(self.is_visible, columns[:, None], axis=2)
        self.replace(lambda x: x[host.arange(len(x))[:, None], columns])

    def replace(self, select: Callable[[npx.Array], npx.Array]) -> None:
        """Replace all keys and values with the `n_columns` columns that `select` returns."""
        for arrays in (self.keys, self.values):
            for i, x in enumerate(arrays):
                selected = select(x)
                arrays[i] = npx.empty((len(selected), self.capacity, *x.shape[2:]), x.dtype)
                arrays[i][:, : self.n_columns] = selected

    def select(self, rows: npx.Array) -> None:
        n, rows_per_group, _ = self.is_visible.shape
        groups = rows // rows_per_group  # (R,)
        is_visible = self.is_visible[groups, rows % rows_per_group]
        selected, rows_per_group = equal_runs(groups)
        if rows_per_group > MAX_SHARED_ROWS:
            selected = groups
            rows_per_group = 1
        self.is_visible = is_visible.reshape(len(selected), rows_per_group, self.n_columns)
        if len(selected) > n:
            self.replace(lambda x: x[selected, : self.n_columns])
        else:
            replaced = host.flatnonzero(selected != host.arange(len(selected)))
            for arrays in (self.keys, self.values):
                for i, x in enumerate(arrays):
                    x[replaced, : self.n_columns] = x[selected[replaced], : self.n_columns]
                    arrays[i] = x[: len(selected)]
        if rows_per_group == 1:
            self.drop_hidden_columns()


def decode_step(layers: list[DecoderLayer], x: npx.Array, caches: GroupedCache, source: Any) -> npx.Array:
    """Run the layers on x (R, D), one new position for each row, and return their output (R, D).

    The keys and values of the new position are appended to the caches.

    Args:
        source: the SourceState of the rows.
    """
    spec = npx.AttentionSpec(constant_bias=caches.add_columns())
    source_spec = npx.AttentionSpec(kv_lengths=source.lengths.array)
    n_columns = caches.n_columns
    n, rows_per_group, _ = caches.is_visible.shape

    def attend(i: int, x: npx.Array) -> npx.Array:
        layer = layers[i].attention
        qkv = linear(layer.query_key_value, x)
        parts = []
        start = 0
        for size in (layer.d_k, layer.d_k, layer.d_v):
            parts.append(qkv[:, start : start + layer.n_heads * size].reshape(n, rows_per_group, layer.n_heads, size))
            start += layer.n_heads * size
        q, k, v = parts
        keys = caches.keys[i][:, :n_columns]
        values = caches.values[i][:, :n_columns]
        keys[:, -rows_per_group:] = k
        values[:, -rows_per_group:] = v
        y, _ = npx.attention(q, keys, values, spec)
        return linear(layer.output, y.reshape(len(x), layer.n_heads * layer.d_v))

    def attend_to_source(i: int, x: npx.Array) -> npx.Array:
        layer = layers[i].cross_attention
        cache = source.caches[i]
        n_sources = len(cache.keys)
        q = linear(layer.query, x).reshape(n_sources, len(x) // max(1, n_sources), layer.n_heads, layer.d_k)
        y, _ = npx.attention(q, cache.keys, cache.values, source_spec)
        return linear(layer.output, y.reshape(len(x), layer.n_heads * layer.d_v))

    for i, layer in enumerate(layers):
        x = add_residual(layer.attention_residual, x, partial(attend, i))
        x = add_residual(layer.cross_attention_residual, x, partial(attend_to_source, i))
        x = add_residual(layer.feed_forward_residual, x, partial(feed_forward, layer.feed_forward))
    return x


def linear(layer: Linear, x: npx.Array) -> npx.Array:
    """Apply a Linear layer to x (R, n_in)."""
    y, _ = npx.linear(x, layer.weight.data, None if layer.bias is None else layer.bias.data, layer.activation)
    return y


def feed_forward(layer: Any, x: npx.Array) -> npx.Array:
    """Apply a feed-forward layer to x (R, D)."""
    if type(layer) is FeedForward and type(layer.inner) is Linear:
        return linear(layer.outer, linear(layer.inner, x))
    return layer(Tensor(x[:, None])).data[:, 0]


def add_residual(residual: Residual, x: npx.Array, f: Callable[[npx.Array], npx.Array]) -> npx.Array:
    """Apply a residual connection, in evaluation mode, to a sub-layer f and its input x (R, D)."""
    if residual.is_post_norm:
        return normalize(residual.norm, f(x), x if residual.alpha == 1 else x * x.dtype.type(residual.alpha))
    y = f(normalize(residual.norm, x))
    return x + (normalize(residual.output_norm, y) if residual.output_norm else y)


def normalize(norm: Norm, x: npx.Array, residual: npx.Array | None = None) -> npx.Array:
    """Return the norm of x (R, D) or, with a residual (R, D), of residual + x."""
    if type(norm) is not LayerNorm:
        return norm(Tensor(x if residual is None else residual + x)).data
    if residual is None:
        return npx.layer_norm(x, norm.gamma.data, norm.beta.data, norm.eps)[0]
    return npx.dropout_residual_norm(x, residual, norm.gamma.data, norm.beta.data, None, norm.eps)[0]
