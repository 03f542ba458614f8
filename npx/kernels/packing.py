"""Packing: storing sentences of different lengths one after another along the first axis, without padding.

    Packing.from_lengths([3, 1, 2])     rows 0 to 2 are the first sentence, row 3 the second, rows 4 and 5 the third

Kernels that treat each row separately (matmuls, norms, embedding, loss) work on packed arrays unchanged. Attention gets
the packing in its `AttentionSpec`, pads a few sentences at a time (`pad_packed`) and packs the result (`pack_padded`).
"""

from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, array_module, from_host


class Packing(NamedTuple):
    """The packing of B sentences with R rows in total.

    Attributes:
        starts: int64 (B + 1,); sentence b has the rows starts[b] to starts[b + 1] - 1.
        flat_index: int64 (R,); the position of each row in the padded array (B * max_length, ...).
        max_length: length of the longest sentence.
    """

    starts: Array
    flat_index: Array
    max_length: int

    @classmethod
    def from_lengths(cls, lengths: Any) -> "Packing":
        """Return the packing of sentences with these lengths (B,), on the host."""
        lengths = np.asarray(lengths, np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        max_length = int(lengths.max(initial=0))
        return cls(starts, np.flatnonzero(np.arange(max_length) < lengths[:, None]), max_length)

    @property
    def lengths(self) -> Array:
        """The number of rows of each sentence (B,)."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def padded_shape(self) -> tuple[int, int]:
        """The shape (B, max_length) of the sentences with padding."""
        return len(self.starts) - 1, self.max_length

    @property
    def is_rectangular(self) -> bool:
        """True if all sentences have the same length, so that padded and packed rows are the same."""
        return len(self.flat_index) == (len(self.starts) - 1) * self.max_length

    @property
    def positions(self) -> Array:
        """The position of each row (R,) within its sentence, from 0."""
        return self.flat_index % max(1, self.max_length)

    def pack(self, x: Any) -> Any:
        """Pack a host array x (B, T, ...), T >= max_length, into (R, ...)."""
        return x[:, : self.max_length].reshape(-1, *x.shape[2:])[self.flat_index]

    def to_device(self) -> "Packing":
        """Return the packing with its arrays on the current device."""
        return Packing(from_host(self.starts), from_host(self.flat_index), self.max_length)

    def select(self, i: int, j: int) -> tuple[slice, "Packing"]:
        """Return the rows of sentences i to j - 1 and their packing. `self` must be on the host."""
        starts = self.starts[i : j + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        max_length = int((starts[1:] - starts[:-1]).max())
        sentence, position = np.divmod(self.flat_index[rows], max(1, self.max_length))
        return rows, Packing(starts - starts[0], (sentence - i) * max_length + position, max_length)


def pad_packed(x: Array, packing: Packing | None) -> Array:
    """Pad x (R, ...) to (B, max_length, ...) with zeros; without a packing, return x itself."""
    if packing is None:
        return x
    batch, max_length = packing.padded_shape
    trailing = x.shape[1:]
    if not packing.is_rectangular:
        padded = array_module(x).zeros((batch * max_length, *trailing), x.dtype)
        padded[packing.flat_index] = x
        x = padded
    return x.reshape(batch, max_length, *trailing)


def pack_padded(x: Array, packing: Packing | None) -> Array:
    """Pack x (B, max_length, ...) into (R, ...), the inverse of `pad_packed`; return x itself without a packing."""
    if packing is None:
        return x
    rows = x.reshape(len(x) * x.shape[1], *x.shape[2:])
    return rows if packing.is_rectangular else rows[packing.flat_index]
