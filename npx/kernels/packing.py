"""Sentences of different lengths in one array without padding: one after another along its first axis.

    pack([3, 1, 2])     of x (6, ...) rows 0 to 2 are the first sentence, row 3 the second, rows 4 and 5 the third

What works on each row alone (products, norms, embedding, loss) needs to know nothing of it. Attention does: it is told
by `AttentionSpec` (npx/kernels/attention_spec.py), takes a few sentences apart (`pad_packed`) and puts them
`pack_padded` again.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, array_module, from_host


class Packing(NamedTuple):
    """Sentence b is the rows from starts[b] to before starts[b + 1]; padded, row n is at flat_index[n] of (B *
    longest).

    starts (B + 1,) and flat_index (N,), int64; `max_length`: rows of the longest sentence.
    """

    starts: Array
    flat_index: Array
    max_length: int

    @property
    def counts(self) -> Array:
        """Rows of each sentence (B,)."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def shape(self) -> tuple[int, int]:
        """(B, longest)."""
        return len(self.starts) - 1, self.max_length

    @property
    def is_rectangular(self) -> bool:
        """Whether all sentences are of one length, so that padded and packed are the same rows."""
        return len(self.flat_index) == (len(self.starts) - 1) * self.max_length

    @property
    def positions(self) -> Array:
        """Of each row (N,) its position in its sentence, from 0."""
        return self.flat_index % max(1, self.max_length)

    def rows(self, x: Any) -> Any:
        """Of x (B, T, ...), on the host, those of the sentences, (N, ...): T may be more than the longest."""
        return x[:, : self.max_length].reshape(-1, *x.shape[2:])[self.flat_index]

    def to_device(self) -> "Packing":
        """The same for arrays on the current device."""
        return Packing(from_host(self.starts), from_host(self.flat_index), self.max_length)

    def select(self, i: int, j: int) -> tuple[slice, "Packing"]:
        """The rows of sentences i to before j, and how they are packed. For arrays on the host."""
        starts = self.starts[i : j + 1]
        rows, longest = slice(int(starts[0]), int(starts[-1])), int((starts[1:] - starts[:-1]).max())
        sentence, place = np.divmod(self.flat_index[rows], max(1, self.max_length))
        return rows, Packing(starts - starts[0], (sentence - i) * longest + place, longest)


def pack(lengths: Any) -> Packing:
    """Sentences of so many rows (B,), given and described on the host, one after another."""
    lengths = np.asarray(lengths, np.int64)
    starts, longest = np.concatenate(([0], np.cumsum(lengths))), int(lengths.max(initial=0))
    return Packing(starts, np.flatnonzero(np.arange(longest) < lengths[:, None]), longest)


def pad_packed(x: Array, packing: Packing | None) -> Array:
    """x (N, ...) as (B, longest, ...), zeros after the end of a sentence. packed None: x, which is so already."""
    if packing is None:
        return x
    (batch, longest), rest = packing.shape, x.shape[1:]
    if not packing.is_rectangular:
        apart = array_module(x).zeros((batch * longest, *rest), x.dtype)
        apart[packing.flat_index] = x
        x = apart
    return x.reshape(batch, longest, *rest)


def pack_padded(x: Array, packing: Packing | None) -> Array:
    """x (B, longest, ...) as (N, ...), the way back from `pad_packed`. packed None: x."""
    if packing is None:
        return x
    rows = x.reshape(len(x) * x.shape[1], *x.shape[2:])
    return rows if packing.is_rectangular else rows[packing.flat_index]
