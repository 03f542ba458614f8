"""Relative positions of Shaw et al. ("Self-Attention with Relative Position Representations", 2018), on the keys."""

from typing import TYPE_CHECKING

import npx
from autograd import Tensor, differentiable
from models.init import uniform
from models.layers.positions import IdentityPositions
from models.layers.score_bias import ScoreBias, relative_offsets
from models.module import Parameter
from models.registry import POSITIONS

if TYPE_CHECKING:
    from models.config import TransformerConfig


@differentiable
def relative_scores(q, table, n_keys, packing=None):
    """Return z with z[b, h, t, s] = q[b, t, h] . table[clip(s - t, -k, k) + k] / sqrt(d_k).

    q (B, T, H, d_k), or (R, H, d_k) with its packing; table (2k + 1, d_k); z (B, H, T, S) with S = n_keys. The last
    query is at the position of the last key. No array with S vectors per query is created.
    """
    k = len(table) // 2
    scale = q.shape[-1] ** -0.5
    offsets = relative_offsets(q, n_keys, packing)  # (T, S)
    by_offset = npx.pad_packed(q, packing).swapaxes(1, 2) @ table.swapaxes(0, 1) * scale  # (B, H, T, 2k + 1)
    index = npx.minimum(npx.maximum(offsets, -k), k) + k
    y = by_offset[:, :, npx.arange(len(index))[:, None], index].astype(q.dtype, copy=False)  # NumPy makes it float32

    def vjp(g):
        n_queries = g.shape[2]
        offsets = relative_offsets(q, n_keys, packing)  # recomputed, so that it is not saved for backward
        clipped = npx.minimum(npx.maximum(offsets, -k), k)
        keys = npx.arange(-k, k + 1) - offsets[:, :1]  # (T, 2k + 1), the key at each offset
        is_key = (keys >= 0) & (keys < n_keys)
        g_offset = g[:, :, npx.arange(n_queries)[:, None], npx.where(is_key, keys, 0)] * is_key.astype(g.dtype)
        g_offset[..., 0] = (g * (clipped == -k).astype(g.dtype)).sum(axis=-1)  # -k and k also cover larger distances
        g_offset[..., -1] = (g * (clipped == k).astype(g.dtype)).sum(axis=-1)
        g_offset = g_offset * scale
        x = npx.pad_packed(q, packing).swapaxes(1, 2)  # (B, H, T, d_k)
        g_table = g_offset.reshape(-1, len(table)).T @ x.reshape(-1, x.shape[-1])  # (2k + 1, d_k)
        gq = npx.pack_padded((g_offset @ table).swapaxes(1, 2), packing)
        return gq.astype(q.dtype, copy=False), g_table.astype(q.dtype, copy=False)

    return y, vjp


class ShawBias(ScoreBias):
    """The bias q_t . a_(s - t) / sqrt(d_k) for query position t and key position s (equation 4 of the paper).

    The vectors a (2k + 1, d_k) are learned in each layer and shared by its heads; distances beyond k use the vectors of
    -k and k. The paper also adds such vectors to the values (equation 3); its table 3 shows no gain from them, so they
    are omitted here.

    Args:
        n_heads: number of heads.
        d_k: width of the queries of a head.
        max_relative_distance: the distance k. Default 16, as in the paper.
    """

    def __init__(self, n_heads: int, d_k: int, max_relative_distance: int = 16) -> None:
        self.weight = Parameter(uniform(2 * max_relative_distance + 1, d_k))
        self.macs = n_heads * self.weight.size

    def forward(self, q: Tensor, n_keys: int, packing: npx.Packing | None = None) -> Tensor:
        """Return the scores of relative positions (B, H, T, S), S = n_keys, for queries q; see `ScoreBias`."""
        return relative_scores(q, self.weight, n_keys, packing)


@POSITIONS.register("shaw")
class ShawPositions(IdentityPositions):
    """Positions that add `ShawBias` to the scores of every self-attention."""

    @classmethod
    def make_score_bias(cls, config: "TransformerConfig", causal: bool) -> ScoreBias:
        return ShawBias(config.n_heads, config.key_size, config.resolved_max_relative_distance)
