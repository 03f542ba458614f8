"""Convolutions over sequences: causal or centered, dilated, depthwise-separable; and gated linear units."""

from typing import Any

import npx
from autograd import Tensor, differentiable
from autograd.neural import attach_recompute_fn
from autograd.operations import logistic
from models.cache import RowArray
from models.init import uniform
from models.layers.basic import Linear
from models.module import Module, Parameter


def tap_offsets(width: int, dilation: int, causal: bool) -> list[int]:
    """Return the offsets, in increasing order, of the positions that a convolution reads to compute one position.

    If `causal`, the last offset is 0; otherwise the middle one is 0, or the one after the middle if `width` is even.
    """
    center = width - 1 if causal else width // 2
    return [(tap - center) * dilation for tap in range(width)]


def has_neighbor(x: npx.Array, offset: int, packing: npx.Packing | None, lengths: npx.Array | None) -> npx.Array:
    """Return, for each position of x (B, T, ...) or packed x (R, ...), whether position + offset is in its sentence."""
    if packing is None:
        position = npx.arange(x.shape[1]) + offset
        end = x.shape[1] if lengths is None else npx.minimum(lengths, x.shape[1])[:, None]
        return npx.broadcast_to((position >= 0) & (position < end), x.shape[:2]).reshape(-1)
    position = packing.positions + offset
    return (position >= 0) & (position < packing.lengths[packing.flat_index // max(1, packing.max_length)])


@differentiable
def unfold(x, width, dilation=1, causal=False, packing=None, lengths=None):
    """Concatenate, for each position, the inputs at the offsets of `tap_offsets`. (..., D) -> (..., width D).

    x (B, T, D), of which sentence b has `lengths[b]` positions (default: T), or packed (R, D). Positions outside the
    sentence are zeros.
    """
    *leading, size = x.shape
    n_rows = npx.host.prod(leading, dtype=int)
    offsets = tap_offsets(width, dilation, causal)
    exists = [has_neighbor(x, offset, packing, lengths)[:, None] for offset in offsets]
    # The positions of a sentence are consecutive rows, so row r reads row r + offset, and a slice of rows reads a slice
    # of the same length.
    slices = [
        (
            slice(max(0, -offset), max(0, n_rows - max(0, offset))),
            slice(max(0, offset), max(0, n_rows + min(0, offset))),
        )
        for offset in offsets
    ]

    def compute():
        rows = x.reshape(n_rows, size)
        taps = npx.zeros((n_rows, width, size), x.dtype)
        for tap, (target, source) in enumerate(slices):
            taps[target, tap] = rows[source] * exists[tap][target]
        return taps.reshape(*leading, width * size)

    def vjp(g):
        taps = g.reshape(n_rows, width, size)
        gx = npx.zeros((n_rows, size), g.dtype)
        for tap, (target, source) in enumerate(slices):
            gx[source] += taps[target, tap] * exists[tap][target]
        return (gx.reshape(*leading, size),)

    return compute(), attach_recompute_fn(vjp, compute) if npx.should_rematerialize(x) else vjp


@differentiable
def glu(x):
    """Return a * sigmoid(b) (..., F), where x (..., 2 F) is the concatenation of a and b (Dauphin et al., 2017)."""
    if x.shape[-1] % 2:
        raise ValueError(f"glu: expected an even number of columns; got {x.shape[-1]}; try (..., 2 F)")
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    s = npx.elementwise(logistic, b)
    return a * s, lambda g: (npx.concatenate([g * s, g * a * s * (1 - s)], axis=-1),)


class Convolution(Module):
    """A convolution over sequences, which are padded with zeros.

    Args:
        d_in, d_out: widths D and F.
        width: number of positions that an output reads.
        dilation: distance between neighboring positions that an output reads. Default 1.
        causal: whether an output reads only its own and earlier positions. Default False.
        separable: whether to replace the matmul over positions and features by a weighted sum over the positions for
            each feature, followed by a matmul over the features. Default False.
        gain: factor on the Xavier uniform initialization of the matrix. Default 1.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        width: int,
        dilation: int = 1,
        causal: bool = False,
        separable: bool = False,
        gain: float = 1.0,
    ) -> None:
        for name, value in (("width", width), ("dilation", dilation)):
            if value < 1:
                raise ValueError(f"convolution: expected a {name} of at least 1; got {value}; try {name}=3")
        self.width, self.dilation, self.causal = width, dilation, causal
        self.d_in = d_in
        self.depthwise = Parameter(uniform(width, d_in)) if separable else None  # (width, D)
        self.mix = Linear(d_in if separable else width * d_in, d_out, gain=gain)

    def forward(
        self,
        x: Tensor,
        packing: npx.Packing | None = None,
        lengths: npx.Array | None = None,
        cache: RowArray | None = None,
    ) -> Tensor:
        """Return the convolution (B, T, F) of x (B, T, D), or (R, F) of packed x (R, D).

        Args:
            packing: the packing of x, if x is packed.
            lengths: the number of positions (B,) of each sentence of padded x. Default: T for each.
            cache: the earlier positions; the positions of x are appended. With a cache, no graph is recorded.
        """
        n_earlier = 0
        if cache is not None:
            n_earlier = cache.array.shape[1]
            x = Tensor(npx.concatenate([cache.array, x.data], axis=1))
            cache.array = x.data[:, x.shape[1] - n_earlier :]
        taps = unfold(x, self.width, self.dilation, self.causal, packing, lengths)
        if n_earlier:
            taps = taps[:, n_earlier:]
        if self.depthwise is not None:
            taps = (taps.reshape(*taps.shape[:-1], self.width, self.d_in) * self.depthwise).sum(axis=-2)
        return self.mix(taps)

    def new_cache(self, n_rows: int, dtype: Any) -> RowArray:
        """Return the initial cache of `n_rows` sequences: zeros for the positions before the first one.

        Raises ValueError unless the layer is causal.
        """
        if not self.causal:
            raise ValueError("convolution: expected a causal layer for a cache; got a centered layer; try causal=True")
        return RowArray(npx.zeros((n_rows, (self.width - 1) * self.dilation, self.d_in), dtype))
