"""Where in the sequence a vector stands: added to the embedding, or turned into queries and keys by attention."""

from typing import Any

import npx
from autograd import Tensor, differentiable, neural
from models.init import normal
from models.layers.basic import Dropout, Embedding
from models.module import Module, Parameter
from models.registry import POSITIONS
from npx import host

Start = int | npx.Packing  # the first position, or whose rows are whose


def stop(start: Start, x: Any) -> int:
    """The number of positions up to those of x (B, T, ...) from `start` on, or of packed x (N, ...)."""
    return start.max_length if isinstance(start, npx.Packing) else start + x.shape[1]


class Positions(Module):
    """Base of the kinds of positions: `forward(x, start)` gives x (B, T, D) with its positions, from `start` on.

    Or x (N, D), where `start` is how it is packed (npx.Packing).
    """

    longest: int | None = None  # positions there are; None: no limit
    rotary: float | None = None  # the base of the rotation that self-attention makes; None: it makes none

    def __init__(self, d_model: int, max_positions: int = 0) -> None:
        self.d_model = d_model

    def embedded(self, embedding: Embedding, ids: npx.Array, start: Start, dropout: Dropout) -> Tensor:
        """A stack's first input, for ids (B, T) from position `start` on, or (N,); a constant kind fuses all of it."""
        return dropout(self(embedding(ids), start))


def sinusoids(length: int, d_model: int, halves: bool = False, dtype: Any = npx.float32) -> npx.Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (paper section 3.5). (length, D).

    `halves`: all sines before all cosines, as tensor2tensor, fairseq and Marian lay them out.
    """
    pairs = -(-d_model // 2)
    rates = 10000.0 ** (-2 * host.arange(pairs) / d_model)  # (D/2,)
    angles = host.arange(length)[:, None] * rates  # (length, D/2)
    waves = host.sin(angles), host.cos(angles)
    table = host.concatenate(waves, axis=1) if halves else host.stack(waves, axis=2).reshape(length, 2 * pairs)
    return npx.asarray(table[:, :d_model].astype(dtype))


@differentiable
def add_constant(x, constant):
    """x + constant, which nobody wants the gradient of: none is summed."""
    return x + constant, lambda g: (g,)


@POSITIONS.register("sinusoidal")
class Sinusoids(Positions):
    """Adds rows of `sinusoids`: sine and cosine in turn, as in the paper."""

    halves = False
    _table: npx.Array | None = None  # grown when a longer sequence comes

    def rows(self, start: Start, x: Any, dtype: Any) -> npx.Array:
        """Those of the positions of x (B, T, ...) from `start` on, (T, D), or of packed x (N, ...), (N, D)."""
        end = stop(start, x)
        if self._table is None or len(self._table) < end or self._table.dtype != dtype:
            self._table = sinusoids(max(64, 2 * end), self.d_model, self.halves, dtype)
        return self._table[start.positions] if isinstance(start, npx.Packing) else self._table[start:end]

    def forward(self, x: Tensor, start: Start = 0) -> Tensor:
        return add_constant(x, self.rows(start, x, x.dtype))

    def embedded(self, embedding: Embedding, ids: npx.Array, start: Start, dropout: Dropout) -> Tensor:
        return embedding(ids, self.rows(start, ids, embedding.weight.dtype), dropout.draw())


@POSITIONS.register("sinusoidal_halves")
class SinusoidsInHalves(Sinusoids):
    """The same columns, all sines before all cosines."""

    halves = True


@POSITIONS.register("learned")
class LearnedPositions(Positions):
    """Adds rows of a learned table, of which there are `longest` (Table 3, E)."""

    def __init__(self, d_model: int, max_positions: int = 1024) -> None:
        self.weight = Parameter(normal(max_positions, d_model, d_model**-0.5))
        self.longest = max_positions

    def forward(self, x: Tensor, start: Start = 0) -> Tensor:
        end = stop(start, x)
        if end > len(self.weight):
            raise ValueError(
                f"positions: expected at most max_positions = {len(self.weight)} tokens; got {end}; "
                "try a larger model.max_positions, or sinusoidal positions, which have no limit"
            )
        if isinstance(start, npx.Packing):
            return x + neural.embedding(self.weight, start.positions)
        return x + self.weight[start:end]


@POSITIONS.register("rotary")
class RotaryPositions(Positions):
    """Adds nothing: self-attention turns its queries and keys by their positions (Su et al., 2021)."""

    rotary = 10000.0

    def forward(self, x: Tensor, start: Start = 0) -> Tensor:
        return x
