"""What attention does to its scores q k^T / sqrt(d_k) before the softmax, in one description for every version.

    AttentionSpec(causal=True, kv_lengths=lengths, rotary_base=10000.0)

Of T queries and S keys, query t stands at position t + S - T and key s at s: so T new queries over a cache of S keys
stand where they belong. Nothing here is learned.

Sentences of different lengths may stand one after another without padding (npx/kernels/packing.py): `queries` and
`keys` say
which rows are whose, and T and S are a sentence's own.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, array_module
from npx.kernels.packing import Packing


class AttentionSpec(NamedTuple):
    """Which keys a query may attend to, and what is added to its scores.

    `causal`: keys up to the query's own position. `lengths` (B,), integers: of sentence b the keys before lengths[b].
    `bias`, broadcastable to (B, H, T, S): added; a constant; where it is -inf a key is not attended. `rotary`: queries
    and keys are rotated by their positions (`rotated`), with this base, usually 10000. `queries`, `keys`: how the
    queries, and the keys and values, are packed; T and S above are then those of the longest; `lengths` is of no use.
    """

    causal: bool = False
    kv_lengths: Array | None = None
    bias: Array | None = None
    rotary_base: float | None = None
    q_packing: Packing | None = None
    kv_packing: Packing | None = None

    def sizes(self, q: Array, k: Array) -> tuple[int, int, int]:
        """B, T and S of q and k, packed or (B, T, H, d_k) and (B, S, H, d_k)."""
        batch, queries = self.q_packing.shape if self.q_packing else q.shape[:2]
        return batch, queries, self.kv_packing.max_length if self.kv_packing else k.shape[1]


def mask_bias(mask: Array | None) -> Array | None:
    """A mask, True = may be attended, as a bias: 0 and -inf in float32."""
    return None if mask is None else array_module(mask).where(mask, 0, -np.inf).astype(np.float32)


def additive(spec: AttentionSpec, q: Array, k: Array) -> Array | None:
    """All that is added to the scores (B, H, T, S) of q (B, T, H, d_k) and k (B, S, H, d_k), where it has B rows.

    An array of q's dtype whose other axes may have length 1; None for nothing.
    """
    xp, (batch, queries, keys) = array_module(q), spec.sizes(q, k)
    position = xp.arange(keys)
    allowed, total = None, None
    lengths: Any = spec.kv_packing.counts if spec.kv_packing else spec.kv_lengths
    if spec.causal and queries > 1:  # a single query is the last of all
        last = xp.arange(keys - queries, keys)[None, :, None]  # (1, T, 1)
        if spec.q_packing is not spec.kv_packing:  # else both are as long, and later keys than a query's are padding's
            own: Any = lengths if spec.kv_packing else keys
            own = own - (spec.q_packing.counts if spec.q_packing else queries)  # (B,)
            last = xp.arange(queries)[:, None] + own[:, None, None]  # (B, T, 1)
        elif spec.kv_packing:
            lengths = None
        allowed = (position <= last)[:, None]  # (B or 1, 1, T, S)
    if lengths is not None:
        real = (position < lengths[:, None])[:, None, None]  # (B, 1, 1, S)
        allowed = real if allowed is None else allowed & real
    if spec.bias is not None:
        total = spec.bias.reshape((1,) * (4 - spec.bias.ndim) + spec.bias.shape).astype(q.dtype, copy=False)
    if allowed is not None:
        allowed = xp.where(allowed, q.dtype.type(0), q.dtype.type(-np.inf)).astype(q.dtype, copy=False)
        total = allowed if total is None else total + allowed
    return None if total is None else xp.broadcast_to(total, (batch, *total.shape[1:]))


def rotated(x: Array, first: Any, base: float | None, back: bool = False) -> Array:
    """x (..., T, H, d) with the vector at position first + t turned by that position; `back`: turned back.

    first: a number, or the positions (T,) themselves.

    The pair (x_2i, x_2i+1) is turned by the angle position / base^(2i/d): as one complex number it is multiplied by
    e^(i angle). So q.k depends on the distance of their positions alone (Su et al., "RoFormer", 2021, section 3.2.2).
    The gradient of a rotation is the one back. base None: x itself. ValueError for an odd d.
    """
    if base is None:
        return x
    wide = array_module(x).ascontiguousarray(x, np.result_type(x.dtype, np.float32))
    turns = rotations(x, first, base)
    return (wide.view(turns.dtype) * (turns.conj() if back else turns)).view(wide.dtype).astype(x.dtype, copy=False)


def rotations(x: Array, first: Any, base: float) -> Array:
    """e^(i angle), complex (T, 1, d/2), for the positions of x (..., T, H, d)."""
    xp, length, size = array_module(x), x.shape[-3], x.shape[-1]
    if size % 2:
        raise ValueError(f"rotary positions: expected an even d_k; got {size}; try d_k = {size + 1}")
    position = xp.arange(first, first + length) if isinstance(first, int) else first
    rate = base ** (-2 * xp.arange(size // 2) / size)
    return xp.exp(1j * (position[:, None] * rate)[:, None]).astype(np.result_type(x.dtype, np.complex64))


def positions(spec: AttentionSpec, q: Array, k: Array) -> tuple[Any, Any]:
    """`first` of `rotated` for q and for k, both packed or neither."""
    if spec.q_packing is None or spec.kv_packing is None:
        return k.shape[1] - q.shape[1], 0
    ahead = spec.kv_packing.counts - spec.q_packing.counts  # (B,)
    return spec.q_packing.positions + ahead[
        spec.q_packing.flat_index // spec.q_packing.max_length
    ], spec.kv_packing.positions
