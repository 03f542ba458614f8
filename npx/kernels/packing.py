"""Sentences of different lengths in one array without padding: one after another along its first axis.

    pack([3, 1, 2])     of x (6, ...) rows 0 to 2 are the first sentence, row 3 the second, rows 4 and 5 the third

What works on each row alone (products, norms, embedding, loss) needs to know nothing of it. Attention does: it is told
by `Scores` (npx/kernels/attention_spec.py), takes a few sentences apart (`sentences`) and puts them `together` again.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, array_module, from_host


class Packed(NamedTuple):
    """Sentence b is the rows from starts[b] to before starts[b + 1]; padded, row n is at cells[n] of (B * longest).

    starts (B + 1,) and cells (N,), int64; `longest`: rows of the longest sentence.
    """

    starts: Array
    cells: Array
    longest: int

    @property
    def counts(self) -> Array:
        """Rows of each sentence (B,)."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def shape(self) -> tuple[int, int]:
        """(B, longest)."""
        return len(self.starts) - 1, self.longest

    @property
    def even(self) -> bool:
        """Whether all sentences are of one length, so that padded and packed are the same rows."""
        return len(self.cells) == (len(self.starts) - 1) * self.longest

    @property
    def places(self) -> Array:
        """Of each row (N,) its position in its sentence, from 0."""
        return self.cells % max(1, self.longest)

    def rows(self, x: Any) -> Any:
        """Of x (B, T, ...), on the host, those of the sentences, (N, ...): T may be more than the longest."""
        return x[:, : self.longest].reshape(-1, *x.shape[2:])[self.cells]

    def there(self) -> "Packed":
        """The same for arrays on the current device."""
        return Packed(from_host(self.starts), from_host(self.cells), self.longest)

    def some(self, i: int, j: int) -> tuple[slice, "Packed"]:
        """The rows of sentences i to before j, and how they are packed. For arrays on the host."""
        starts = self.starts[i : j + 1]
        rows, longest = slice(int(starts[0]), int(starts[-1])), int((starts[1:] - starts[:-1]).max())
        sentence, place = np.divmod(self.cells[rows], max(1, self.longest))
        return rows, Packed(starts - starts[0], (sentence - i) * longest + place, longest)


def pack(lengths: Any) -> Packed:
    """Sentences of so many rows (B,), given and described on the host, one after another."""
    lengths = np.asarray(lengths, np.int64)
    starts, longest = np.concatenate(([0], np.cumsum(lengths))), int(lengths.max(initial=0))
    return Packed(starts, np.flatnonzero(np.arange(longest) < lengths[:, None]), longest)


def sentences(x: Array, packed: Packed | None) -> Array:
    """x (N, ...) as (B, longest, ...), zeros after the end of a sentence. packed None: x, which is so already."""
    if packed is None:
        return x
    (batch, longest), rest = packed.shape, x.shape[1:]
    if not packed.even:
        apart = array_module(x).zeros((batch * longest, *rest), x.dtype)
        apart[packed.cells] = x
        x = apart
    return x.reshape(batch, longest, *rest)


def together(x: Array, packed: Packed | None) -> Array:
    """x (B, longest, ...) as (N, ...), the way back from `sentences`. packed None: x."""
    if packed is None:
        return x
    rows = x.reshape(len(x) * x.shape[1], *x.shape[2:])
    return rows if packed.even else rows[packed.cells]
