"""ALiBi: a penalty on scores that grows linearly with the distance (Press et al., "Train Short, Test Long", 2022)."""

from math import floor, log2
from typing import TYPE_CHECKING

import npx
from autograd import Tensor
from models.layers.positions import IdentityPositions
from models.layers.score_bias import ScoreBias, relative_offsets
from models.registry import POSITIONS

if TYPE_CHECKING:
    from models.config import TransformerConfig


def slopes(n_heads: int) -> list[float]:
    """Return the slope m_h of each head: the geometric sequence 2^(-8h/H), h = 1 .. H, if H is a power of two.

    Otherwise, as in the authors' code, the slopes are those for n heads, where n is the largest power of two below H,
    followed by every other slope for 2n heads.
    """
    n = 2 ** floor(log2(n_heads))
    first = [2 ** (-8 * h / n) for h in range(1, n + 1)]
    return first + [2 ** (-4 * h / n) for h in range(1, 2 * n + 1, 2)][: n_heads - n]


class AlibiBias(ScoreBias):
    """The bias -m_h |s - t| for query position t and key position s. The slope m_h of head h is not learned (`slopes`).

    The paper defines this bias for causal attention. Without a causal mask, later positions get the same penalty as
    earlier ones at the same distance.
    """

    def __init__(self, n_heads: int) -> None:
        self.slopes = slopes(n_heads)

    def forward(self, q: Tensor, n_keys: int, packing: npx.Packing | None = None) -> Tensor:
        """Return the penalties (H, T, S) for queries q and S = n_keys keys; see `ScoreBias`."""
        dtype = npx.accumulation_dtype(q.dtype)  # 16-bit floats cannot represent large distances
        slope = npx.asarray(self.slopes, dtype)[:, None, None]
        return Tensor(-slope * npx.absolute(relative_offsets(q, n_keys, packing)).astype(dtype))  # (H, T, S)


@POSITIONS.register("alibi")
class AlibiPositions(IdentityPositions):
    """Positions that add `AlibiBias` to the scores of every self-attention."""

    @classmethod
    def make_score_bias(cls, config: "TransformerConfig", causal: bool) -> ScoreBias:
        return AlibiBias(config.n_heads)
