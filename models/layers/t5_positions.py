"""T5's relative positions: a learned bias for each head and bucket of distances (Raffel et al., 2020, section 2.1)."""

from math import log
from typing import TYPE_CHECKING

import npx
from autograd import Tensor, neural
from models.init import normal
from models.layers.positions import IdentityPositions
from models.layers.score_bias import ScoreBias, relative_offsets
from models.module import Parameter
from models.registry import POSITIONS

if TYPE_CHECKING:
    from models.config import TransformerConfig


def relative_bucket(offset: npx.Array, relative_buckets: int, max_relative_distance: int, causal: bool) -> npx.Array:
    """Return the bucket, an integer from 0 to relative_buckets - 1, of each offset s - t from a query to a key.

    Of the n buckets for one direction, the first n/2 hold the distances 0 to n/2 - 1, one each. The others hold ranges
    that grow logarithmically up to max_relative_distance, and the last one also holds all larger distances. A causal
    model uses all buckets for earlier keys; other models use the second half for later keys.
    """
    n = relative_buckets
    first_bucket = npx.zeros(offset.shape, npx.int64)
    if causal:
        distance = npx.maximum(-offset, 0)
    else:
        n //= 2
        first_bucket = (offset > 0).astype(npx.int64) * n
        distance = npx.absolute(offset)
    n_exact = n // 2
    # The fraction of the logarithmic range that is below the distance: 0 at n_exact, 1 at max_relative_distance.
    fraction = npx.log(npx.maximum(distance, 1) / n_exact) / log(max_relative_distance / n_exact)
    far = n_exact + (fraction * (n - n_exact)).astype(npx.int64)
    return first_bucket + npx.where(distance < n_exact, distance, npx.minimum(far, n - 1))


class T5Bias(ScoreBias):
    """The bias b[relative_bucket(s - t), h] for query position t, key position s and head h.

    The table b (relative_buckets, H) is learned. As in T5, all layers of a stack share it. Unlike T5, scores are
    divided by sqrt(d_k).

    Args:
        n_heads: number H of heads.
        relative_buckets, max_relative_distance, causal: see `relative_bucket`.
    """

    is_shared = True

    def __init__(
        self, n_heads: int, relative_buckets: int = 32, max_relative_distance: int = 128, causal: bool = False
    ) -> None:
        self.weight = Parameter(normal(relative_buckets, n_heads, 0.02))
        self.relative_buckets, self.max_relative_distance, self.causal = relative_buckets, max_relative_distance, causal

    def forward(self, q: Tensor, n_keys: int, packing: npx.Packing | None = None) -> Tensor:
        """Return the learned bias (H, T, S) for queries q and S = n_keys keys; see `ScoreBias`."""
        offsets = relative_offsets(q, n_keys, packing)
        buckets = relative_bucket(offsets, self.relative_buckets, self.max_relative_distance, self.causal)
        return neural.embedding(self.weight, buckets).transpose((2, 0, 1))  # (H, T, S)


@POSITIONS.register("t5")
class T5Positions(IdentityPositions):
    """Positions that add `T5Bias` to the scores of every self-attention."""

    @classmethod
    def make_score_bias(cls, config: "TransformerConfig", causal: bool) -> ScoreBias:
        return T5Bias(config.n_heads, config.relative_buckets, config.resolved_max_relative_distance, causal)
