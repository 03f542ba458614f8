"""Masks, biases and rotary positions of attention: one description, shared by all versions of the kernel.

    AttentionSpec(causal=True, kv_lengths=lengths, rotary_base=10000.0)

With T queries and S keys, query t has position t + S - T and key s has position s, so T new queries over a cache of S
keys get the right positions. None of these values is trained.

Sentences of different lengths may be packed without padding (npx/kernels/packing.py): `q_packing` and `kv_packing`
then specify which rows belong to which sentence, and T and S differ between sentences.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, array_module, read_only
from npx.kernels.packing import Packing


class AttentionSpec(NamedTuple):
    """The masks and biases of attention, its rotary positions, and the packing of its inputs.

    Attributes:
        causal: whether a query attends only to keys up to its own position.
        kv_lengths: integers (B,); the queries of sentence b attend only to keys before kv_lengths[b].
        constant_bias: constants broadcastable to (B, H, T, S) that are added to the scores; -inf masks a key.
        rotary_base: the base, usually 10000, for rotating queries and keys by position (`rotate`); None: no rotation.
        q_packing, kv_packing: packing of the queries, and packing of the keys and values. For packed inputs, T and S
            above are the lengths of the longest sentences, and kv_lengths has no effect.
    """

    causal: bool = False
    kv_lengths: Array | None = None
    constant_bias: Array | None = None
    rotary_base: float | None = None
    q_packing: Packing | None = None
    kv_packing: Packing | None = None

    def sizes(self, q: Array, k: Array) -> tuple[int, int, int]:
        """Return B, T and S for q (B, T, H, d_k) and k (B, S, H, d_k), either of which may be packed."""
        batch, n_queries = self.q_packing.padded_shape if self.q_packing else q.shape[:2]
        return batch, n_queries, self.kv_packing.max_length if self.kv_packing else k.shape[1]


def mask_bias(mask: Array | None) -> Array | None:
    """Convert a boolean mask (True: the key may be attended to) to a float32 bias of 0 and -inf."""
    return None if mask is None else array_module(mask).where(mask, 0, -np.inf).astype(np.float32)


def total_bias(spec: AttentionSpec, q: Array, k: Array) -> Array | None:
    """Return everything that is added to the scores of q (B, T, H, d_k) and k (B, S, H, d_k), or None for nothing.

    The result has q's dtype and is broadcastable to (B, H, T, S); its first axis has length B.
    """
    xp = array_module(q)
    batch, n_queries, n_keys = spec.sizes(q, k)
    position = xp.arange(n_keys)
    allowed = None
    lengths: Any = spec.kv_packing.lengths if spec.kv_packing else spec.kv_lengths
    if spec.causal and n_queries > 1:  # a single query is the last position and may attend to every key
        last_key = xp.arange(n_keys - n_queries, n_keys)[None, :, None]  # (1, T, 1)
        if spec.q_packing is not spec.kv_packing:  # the number of earlier keys differs between sentences
            n_earlier: Any = lengths if spec.kv_packing else n_keys
            n_earlier = n_earlier - (spec.q_packing.lengths if spec.q_packing else n_queries)  # (B,)
            last_key = xp.arange(n_queries)[:, None] + n_earlier[:, None, None]  # (B, T, 1)
        elif spec.kv_packing:  # keys after a sentence's end follow all its queries, so they are masked already
            lengths = None
        allowed = (position <= last_key)[:, None]  # (B or 1, 1, T, S)
    if lengths is not None:
        in_sentence = (position < lengths[:, None])[:, None, None]  # (B, 1, 1, S)
        allowed = in_sentence if allowed is None else allowed & in_sentence
    total = None
    if spec.constant_bias is not None:
        bias = spec.constant_bias
        total = bias.reshape((1,) * (4 - bias.ndim) + bias.shape).astype(q.dtype, copy=False)
    if allowed is not None:
        mask = xp.where(allowed, q.dtype.type(0), q.dtype.type(-np.inf)).astype(q.dtype, copy=False)
        total = mask if total is None else total + mask
    return total if total is None or len(total) == batch else xp.broadcast_to(total, (batch, *total.shape[1:]))


def rotate(x: Array, positions: Any, base: float | None, inverse: bool = False, out: Array | None = None) -> Array:
    """Rotate each vector of x (..., T, H, d) by its position; `inverse` rotates back. Without a base, return x.

    Args:
        positions: the positions (T,), or the first of T consecutive ones.
        out: an array for the result, which may be x.

    The pair (x_2i, x_2i+1) is rotated by the angle position / base^(2i/d): as a complex number it is multiplied by
    e^(i angle). Therefore q.k depends on positions only through their distance (Su et al., "RoFormer", 2021, section
    3.2.2). The gradient of a rotation is the inverse rotation. Raises ValueError for an odd d.
    """
    if base is None:
        return x
    factors = rotation_factors(x, positions, base)
    return multiply_pairs(x, factors.conj() if inverse else factors, out)


def multiply_pairs(x: Array, factors: Array, out: Array | None = None) -> Array:
    """Multiply the pairs of values in x (..., d), as complex numbers, by factors broadcastable to (..., d/2)."""
    xp = array_module(x)
    dtype = np.result_type(x.dtype, np.float32)

    def has_complex_view(a: Array | None) -> bool:
        return xp is np and a is not None and a.dtype == dtype and a.strides[-1] == a.itemsize

    pairs = x if has_complex_view(x) else xp.ascontiguousarray(x, dtype)
    target = out if has_complex_view(out) else None
    target_view = None if target is None else target.view(factors.dtype)
    rotated = xp.multiply(pairs.view(factors.dtype), factors, out=target_view)
    if out is None:
        return rotated.view(dtype).astype(x.dtype, copy=False)
    if target is None:
        out[...] = rotated.view(dtype)
    return out


def rotation_factors(x: Array, positions: Any, base: float) -> Array:
    """Return e^(i angle), complex (T, H, d/2), for the positions of x (..., T, H, d). All heads have equal factors."""
    xp = array_module(x)
    length, n_heads, size = x.shape[-3:]
    if size % 2:
        raise ValueError(f"rotary positions: expected an even d_k; got {size}; try d_k = {size + 1}")
    dtype = np.result_type(x.dtype, np.complex64)
    if not isinstance(positions, int):
        return _rotation_factors(xp, positions, n_heads, size, base, dtype)
    if xp is not np:
        return _rotation_factors(xp, xp.arange(positions, positions + length), n_heads, size, base, dtype)
    return _consecutive_rotation_factors(positions, length, n_heads, size, base, dtype)


@lru_cache(maxsize=16)
def _consecutive_rotation_factors(start: int, length: int, *args: Any) -> Array:
    """Return the factors of consecutive positions, cached because all layers and training steps use them."""
    return read_only(_rotation_factors(np, np.arange(start, start + length), *args))


def _rotation_factors(xp: Any, positions: Array, n_heads: int, size: int, base: float, dtype: Any) -> Array:
    frequency = base ** (-2 * xp.arange(size // 2) / size)
    factors = xp.exp(1j * (positions[:, None] * frequency)[:, None]).astype(dtype)
    return xp.repeat(factors, n_heads, axis=1)  # longer rows, because NumPy multiplies them faster


def rotary_positions(spec: AttentionSpec, q: Array, k: Array) -> tuple[Any, Any]:
    """Return the `positions` argument of `rotate` for q and for k; either both are packed or neither is."""
    if spec.q_packing is None or spec.kv_packing is None:
        return k.shape[1] - q.shape[1], 0
    n_earlier = spec.kv_packing.lengths - spec.q_packing.lengths  # (B,)
    sentence = spec.q_packing.flat_index // spec.q_packing.max_length  # the sentence of each query
    return spec.q_packing.positions + n_earlier[sentence], spec.kv_packing.positions


def rotations(spec: AttentionSpec, q: Array, k: Array) -> tuple[Array, Array] | None:
    """Return the factors (T, H, d/2), or (R, H, d/2) if packed, that rotate q and k; None without rotary positions."""
    if spec.rotary_base is None:
        return None
    q_positions, k_positions = rotary_positions(spec, q, k)
    return rotation_factors(q, q_positions, spec.rotary_base), rotation_factors(k, k_positions, spec.rotary_base)
