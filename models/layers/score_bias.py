"""The base class of positional encodings that are a bias on the scores of self-attention."""

from typing import Any

import npx
from models.module import Module


class ScoreBias(Module):
    """Base class of positional encodings that are added to the scores q k^T / sqrt(d_k) of self-attention.

    Subclasses define `forward(q, n_keys, packing)`, which returns a bias that is broadcastable to the scores
    (B, H, T, S), S = n_keys. The queries q are (B, T, H, d_k) or, with a packing, (R, H, d_k). The last query is at the
    position of the last key.

    Attributes:
        is_shared: whether all layers of a stack use the bias of the first layer.
        macs: number of multiply-accumulate operations for each query token, for the FLOP count.
    """

    is_shared = False
    macs = 0


def relative_offsets(q: Any, n_keys: int, packing: npx.Packing | None) -> npx.Array:
    """Return the positions of keys relative to queries, s - t, integers (T, S). Arguments: see `ScoreBias`."""
    n_queries = packing.max_length if packing else q.shape[1]
    return npx.arange(n_keys) - npx.arange(n_keys - n_queries, n_keys)[:, None]
