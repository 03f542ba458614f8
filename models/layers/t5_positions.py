"""T5's relative positions: a learned bias for each head and bucket of distances (Raffel et al., 2020, section 2.1)."""

from math import log
from typing import TYPE_CHECKING

import npx
from autograd import Tensor, neural
from models.init import normal
from models.layers.positions import UnchangedEmbeddings
from models.layers.score_bias import ScoreBias, distances
from models.module import Parameter
from models.registry import POSITIONS

if TYPE_CHECKING:
    from models.config import TransformerConfig


def bucket(distance: npx.Array, n_buckets: int, max_distance: int, causal: bool) -> npx.Array:
    """Return the bucket, an integer from 0 to n_buckets - 1, of each distance s - t from a query to a key.

    Of the n buckets for one direction, the first n/2 hold the distances 0 to n/2 - 1, one each. The others hold ranges
    that grow logarithmically up to max_distance, and the last one also holds all larger distances. A causal model uses
    all buckets for earlier keys; other models use the second half for later keys.
    """
    offset = npx.zeros(distance.shape, npx.int64)
    if causal:
        distance = npx.maximum(-distance, 0)
    else:
        n_buckets //= 2
        offset = (distance > 0).astype(npx.int64) * n_buckets
        distance = npx.absolute(distance)
    n_exact = n_buckets // 2
    # The fraction of the logarithmic range that is below the distance: 0 at n_exact, 1 at max_distance.
    fraction = npx.log(npx.maximum(distance, 1) / n_exact) / log(max_distance / n_exact)
    far = n_exact + (fraction * (n_buckets - n_exact)).astype(npx.int64)
    return offset + npx.where(distance < n_exact, distance, npx.minimum(far, n_buckets - 1))


class BucketBias(ScoreBias):
    """The bias b[bucket(s - t), h] for query position t, key position s and head h; b (n_buckets, H) is learned.

    As in T5, all layers of a stack share the table. Unlike T5, scores are divided by sqrt(d_k).

    Args:
        n_heads: number H of heads.
        n_buckets, max_distance, causal: see `bucket`.
    """

    is_shared = True

    def __init__(self, n_heads: int, n_buckets: int = 32, max_distance: int = 128, causal: bool = False) -> None:
        self.weight = Parameter(normal(n_buckets, n_heads, 0.02))
        self.n_buckets, self.max_distance, self.causal = n_buckets, max_distance, causal

    def forward(self, q: Tensor, n_keys: int, packing: npx.Packing | None = None) -> Tensor:
        """Return the learned bias (H, T, S) for queries q and S = n_keys keys; see `ScoreBias`."""
        buckets = bucket(distances(q, n_keys, packing), self.n_buckets, self.max_distance, self.causal)
        return neural.embedding(self.weight, buckets).transpose((2, 0, 1))  # (H, T, S)


@POSITIONS.register("t5")
class BucketPositions(UnchangedEmbeddings):
    """Positions that add `BucketBias` to the scores of every self-attention."""

    @classmethod
    def make_score_bias(cls, config: "TransformerConfig", causal: bool) -> ScoreBias:
        return BucketBias(config.n_heads, config.position_buckets, config.longest_distance, causal)
