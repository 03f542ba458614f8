"""Blocks of sentences, which the NumPy version of attention computes one by one, so that their scores stay in cache."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npx.backend import Array
from npx.cpu.row_blocks import INLINE_BYTES, block_rows, parallel_for
from npx.kernels.attention_spec import AttentionSpec, multiply_pairs
from npx.kernels.packing import Packing, pack_padded, pad_packed


class SentenceRows(NamedTuple):
    """The rows and the packing of a block of sentences in one array: the queries, the keys or the values."""

    rows: slice
    packing: Packing | None

    def pad(self, x: Array) -> Array:
        """Return these rows of x as (b, t, H, d)."""
        return pad_packed(x[self.rows], self.packing)

    def buffer(self, x: Array) -> Array:
        """Return an array (b, t, H, d) for results: a view of these rows of x or, if they need padding, a new array."""
        if self.packing and not self.packing.is_rectangular:
            return np.empty((*self.packing.padded_shape, *x.shape[1:]), x.dtype)
        return self.pad(x)

    def store(self, values: Array, x: Array) -> None:
        """Copy the results in `buffer(x)` to x, unless they are already there."""
        if self.packing and not self.packing.is_rectangular:
            x[self.rows] = pack_padded(values, self.packing)

    def rotate(self, x: Array, factors: Array, out: Array) -> None:
        """Rotate these rows of x by the factors of `rotations`; `out` may be x."""
        multiply_pairs(x[self.rows], factors[self.rows] if self.packing else factors, out[self.rows])


class SentenceBlock(NamedTuple):
    """A block of sentences, i to j - 1, with their rows in the queries and their rows in the keys and values."""

    i: int
    j: int
    queries: SentenceRows
    keys: SentenceRows

    def part_of_scores(self, x: Array, n_queries: int, n_keys: int) -> Array:
        """Return the block's part (b, H, t, s) of an array (B, H, T, S), whose last three axes may have length 1."""
        return x[self.i : self.j, :, :n_queries, :n_keys]

    def scores_buffer(self, p: Array, n_queries: int, n_keys: int) -> Array:
        """Return a contiguous array (b, H, t, s) in the memory of the block's part of p."""
        shape = self.j - self.i, p.shape[1], n_queries, n_keys
        return p[self.i : self.j].reshape(-1)[: int(np.prod(shape))].reshape(shape)


def sentence_blocks(spec: AttentionSpec, batch: int, row_bytes: int) -> list[SentenceBlock]:
    """Split the batch into blocks of sentences. The scores of one sentence take `row_bytes` bytes."""
    step = block_rows(batch, row_bytes)

    def rows_of(packing: Packing | None, i: int, j: int) -> SentenceRows:
        return SentenceRows(*packing.select(i, j)) if packing else SentenceRows(slice(i, j), None)

    ends = [(i, min(i + step, batch)) for i in range(0, batch, step)]
    return [SentenceBlock(i, j, rows_of(spec.q_packing, i, j), rows_of(spec.kv_packing, i, j)) for i, j in ends]


def for_each_block(blocks: list[SentenceBlock], body: Callable[[SentenceBlock], None], p: Array) -> None:
    """Run `body` for each block: on all cores, or on one if the weights p (B, H, T, S) are small."""
    parallel_for(lambda i, j: body(blocks[i]), len(blocks), 1, inline=p.nbytes < INLINE_BYTES)
