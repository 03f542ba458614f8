"""Restricted self-attention (paper section 4): each position attends to a window of r positions around it.

The scores are computed in blocks of L = r queries, with the keys of the block and of its margins, so memory and time
grow with n r instead of n^2.
"""

from typing import Any

import npx
from autograd import Tensor, differentiable, neural
from models.cache import KeyValueCache
from models.layers.attention import SelfAttention
from npx.kernels.attention_spec import rotate


def window_margins(window: int, causal: bool) -> tuple[int, int]:
    """Return how many earlier and how many later positions each position attends to; their sum is `window` - 1."""
    return (window - 1, 0) if causal else (window // 2, (window - 1) // 2)


def window_mask(n_queries: int, n_keys: int, window: int, causal: bool) -> npx.Array:
    """Return a mask (T, S) for queries at the last T of S positions: True where a query attends to a key."""
    n_before, n_after = window_margins(window, causal)
    offset = npx.arange(n_keys) - npx.arange(n_keys - n_queries, n_keys)[:, None]
    return (-n_before <= offset) & (offset <= n_after)


class Blocks:
    """Sequences (B, T, ...) cut into n blocks of L positions, with margins that overlap the neighboring blocks."""

    def __init__(self, shape: tuple[int, int], window: int, causal: bool) -> None:
        self.batch, self.length = shape
        self.n_before, self.n_after = window_margins(window, causal)
        self.block_size = window
        self.n_blocks = npx.ceil_div(self.length, self.block_size)
        self.width = self.block_size + self.n_before + self.n_after  # positions of a block with its margins
        # Each sequence is padded in front, by the front margin. Block b with its margins then begins where block b of
        # the padded sequence begins, and consists of the first part_sizes[i] positions of each padded block b + i.
        self.part_sizes = [min(self.block_size, self.width - start) for start in range(0, self.width, self.block_size)]
        self.n_padded_blocks = self.n_blocks + len(self.part_sizes) - 1

    def cut(self, x: npx.Array) -> npx.Array:
        """Return the blocks (B n, L, ...) of x (B, T, ...), the last one padded with zeros."""
        padded = self.pad(x, 0, self.n_blocks)
        return padded.reshape(self.batch * self.n_blocks, self.block_size, *x.shape[2:])

    def pad(self, x: npx.Array, n_before: int, n_blocks: int) -> npx.Array:
        """Return x (B, T, ...) as (B, n_blocks, L, ...), with `n_before` zeros in front."""
        padded = npx.zeros((self.batch, n_blocks * self.block_size, *x.shape[2:]), x.dtype)
        padded[:, n_before : n_before + self.length] = x
        return padded.reshape(self.batch, n_blocks, self.block_size, *x.shape[2:])

    def cut_with_margins(self, x: npx.Array) -> npx.Array:
        """Return the blocks of x (B, T, ...) with their margins, (B n, L + margins, ...)."""
        padded = self.pad(x, self.n_before, self.n_padded_blocks)
        parts = [padded[:, i : i + self.n_blocks, :size] for i, size in enumerate(self.part_sizes)]
        return npx.concatenate(parts, axis=2).reshape(self.batch * self.n_blocks, self.width, *x.shape[2:])

    def join(self, blocks: npx.Array) -> npx.Array:
        """Return the sequences (B, T, ...) of blocks (B n, L, ...): the inverse of `cut`."""
        return blocks.reshape(self.batch, self.n_blocks * self.block_size, *blocks.shape[2:])[:, : self.length]

    def overlap_add(self, blocks: npx.Array) -> npx.Array:
        """Return the sums (B, T, ...) over the blocks (B n, L + margins, ...): the gradient of `cut_with_margins`."""
        total = npx.zeros((self.batch, self.n_padded_blocks, self.block_size, *blocks.shape[2:]), blocks.dtype)
        blocks = blocks.reshape(self.batch, self.n_blocks, *blocks.shape[1:])
        for i, size in enumerate(self.part_sizes):
            start = i * self.block_size
            total[:, i : i + self.n_blocks, :size] += blocks[:, :, start : start + size]
        flat = total.reshape(self.batch, self.n_padded_blocks * self.block_size, *blocks.shape[3:])
        return flat[:, self.n_before : self.n_before + self.length]

    def bias(self, lengths: npx.Array | None) -> npx.Array:
        """Return the bias (B n, 1, L, L + margins) that masks keys outside the window or the sentence."""
        query = npx.arange(self.block_size)[:, None]
        key = npx.arange(self.width)  # 0 is the first position of the front margin
        in_window = (query <= key) & (key <= query + self.n_before + self.n_after)  # (L, width)
        position = npx.arange(self.n_blocks)[:, None] * self.block_size - self.n_before + key  # (n, width)
        ends = npx.full((self.batch,), self.length, npx.int64) if lengths is None else npx.minimum(lengths, self.length)
        exists = (position >= 0) & (position < ends[:, None, None])  # (B, n, width)
        shape = (self.batch * self.n_blocks, 1, self.block_size, self.width)
        bias = npx.mask_bias((in_window & exists[:, :, None]).reshape(shape))
        assert bias is not None
        return bias


def require_no_bias(spec: npx.AttentionSpec) -> None:
    """Raise ValueError for a spec with a bias, because the window itself is implemented as a bias."""
    if spec.constant_bias is not None:
        raise ValueError("restricted attention: a bias is not supported; try self_attention with npx.mask_bias")


@differentiable
def restricted_self_attention(qkv, n_heads, d_k, window, spec=npx.AttentionSpec(), drop=None):
    """Return `self_attention` in which each position attends to `window` positions around or, if causal, up to itself.

    qkv (B, T, H * (2 d_k + d_v)) begins with the queries of all heads; result (B, T, H * d_v). Packed arrays are (R,
    ...). The spec must have no bias.
    """
    require_no_bias(spec)
    packing = spec.q_packing
    padded = npx.pad_packed(qkv, packing)
    blocks = Blocks(padded.shape[:2], window, spec.causal)
    sizes = d_k, d_k, padded.shape[-1] // n_heads - 2 * d_k
    q, k, v = neural.split_heads(padded, n_heads, *sizes)
    q, k = (rotate(part, 0, spec.rotary_base) for part in (q, k))
    block_spec = npx.AttentionSpec(constant_bias=blocks.bias(packing.lengths if packing else spec.kv_lengths))
    inputs = blocks.cut(q), blocks.cut_with_margins(k), blocks.cut_with_margins(v)
    y, saved = npx.attention(*inputs, block_spec, drop)
    leading = qkv.shape[:-1]
    block_shape = y.shape

    def vjp(g):
        g = npx.pad_packed(g, packing)
        g = blocks.cut(g.reshape(*g.shape[:2], *block_shape[2:]))
        gq, gk, gv = npx.attention_grad(g, saved)
        gq, gk, gv = blocks.join(gq), blocks.overlap_add(gk), blocks.overlap_add(gv)
        gq, gk = (rotate(part, 0, spec.rotary_base, inverse=True) for part in (gq, gk))
        parts = [part.reshape(*part.shape[:2], n_heads * part.shape[-1]) for part in (gq, gk, gv)]
        return (npx.pack_padded(npx.concatenate(parts, axis=2), packing),)

    joined = blocks.join(y)
    joined = npx.pack_padded(joined.reshape(*joined.shape[:2], n_heads * sizes[2]), packing)
    return joined.reshape(*leading, n_heads * sizes[2]), vjp


class RestrictedSelfAttention(SelfAttention):
    """Self-attention in which each position attends to a window around itself or, if causal, to a window up to itself.

    Args:
        window: number r of positions that a position attends to, itself included.

    Other arguments: see `Attention`.
    """

    def __init__(self, *args: Any, window: int, **options: Any) -> None:
        if window < 1:
            raise ValueError(f"attention_window: expected at least 1; got {window}; try 8")
        super().__init__(*args, **options)
        if not self.can_run_merged or self.n_kv_heads != self.n_heads:
            raise ValueError(
                f"attention_window = {window} cannot be combined with n_kv_heads, qk_norm or relative positions; "
                "try without attention_window, or without the other options"
            )
        self.window = window

    def forward(
        self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec(), cache: KeyValueCache | None = None
    ) -> Tensor:
        """Return the attention of x (B, T, D), or packed x (R, D), to itself within the window, in the shape of x.

        Args:
            spec: mask and packing.
            cache: the keys and values of earlier positions; the keys and values of x are appended.

        Raises ValueError for a spec with a bias.
        """
        require_no_bias(spec)
        qkv = self.query_key_value(x)
        if cache is None:
            y = restricted_self_attention(qkv, self.n_heads, self.d_k, self.window, **self.next_options(spec))
        else:
            q, k, v = self.split(Tensor(qkv.data))
            keys, values = cache.append(k.data, v.data)
            n = min(keys.shape[1], x.shape[1] + self.window - 1)
            if x.shape[1] > 1:
                spec = self.with_window(spec, x.shape[1], n)
            y = self.attend(q, Tensor(keys[:, -n:]), Tensor(values[:, -n:]), **self.next_options(spec))
        return self.output(y)

    def with_window(self, spec: npx.AttentionSpec, n_queries: int, n_keys: int) -> npx.AttentionSpec:
        """Return the spec with a bias that masks the keys outside the window."""
        return spec._replace(constant_bias=npx.mask_bias(window_mask(n_queries, n_keys, self.window, spec.causal)))

    def attention_weights(self, x: Tensor, spec: npx.AttentionSpec = npx.AttentionSpec()) -> npx.Array:
        require_no_bias(spec)
        length = spec.q_packing.max_length if spec.q_packing else x.shape[1]
        return super().attention_weights(x, self.with_window(spec, length, length))
