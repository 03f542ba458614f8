"""Positional encodings: sinusoidal, learned and rotary."""

from typing import TYPE_CHECKING, Any

import npx
from autograd import Tensor, differentiable, neural
from models.init import normal
from models.layers.basic import Dropout, Embedding
from models.layers.score_bias import ScoreBias
from models.module import Module, Parameter
from models.registry import POSITIONS
from npx import host  # NumPy, for arrays that stay on the CPU

if TYPE_CHECKING:
    from models.config import TransformerConfig

StartOrPacking = int | npx.Packing  # the first position of x (B, T, D), or the packing of x (R, D)


def end_position(start: StartOrPacking, x: Any) -> int:
    """Return 1 + the greatest position in x (B, T, ...), or in packed x (R, ...)."""
    return start.max_length if isinstance(start, npx.Packing) else start + x.shape[1]


class Positions(Module):
    """Base class of positional encodings.

    Subclasses define `forward(x, start)`, which returns x (B, T, D), or packed x (R, D), combined with the encodings of
    its positions. `start` is the position of x[:, 0], or the packing of packed x.
    """

    max_positions: int | None = None  # None for no limit
    rotary_base: float | None = None  # base for rotations in self-attention; None for encodings that do not rotate

    def __init__(self, d_model: int, max_positions: int = 0) -> None:
        self.d_model = d_model

    @classmethod
    def make_score_bias(cls, config: "TransformerConfig", causal: bool) -> ScoreBias | None:
        """Return a module that computes a bias on self-attention scores; None if these positions need no bias."""
        return None

    def embed(self, embedding: Embedding, ids: npx.Array, start: StartOrPacking, dropout: Dropout) -> Tensor:
        """Return the input of the first layer for ids (B, T) or (R,): embedding, positions, dropout."""
        return dropout(self(embedding(ids), start))


POSITIONS.base = Positions


def resolve_rate_scheme(interleaved: bool, rate_scheme: str | None) -> str:
    """Return `rate_scheme` or, if it is None, the default scheme of the layout (`sinusoids`)."""
    return rate_scheme or ("paper" if interleaved else "tensor2tensor")


def sinusoids(
    length: int, d_model: int, interleaved: bool = True, dtype: Any = npx.float32, rate_scheme: str | None = None
) -> npx.Array:
    """Return sines and cosines of pos * rate_i (paper section 3.5). (length, D).

    Args:
        interleaved: whether sines and cosines alternate, as in the paper. If not, all sines precede all cosines, as in
            tensor2tensor, fairseq and Marian. Default True.
        rate_scheme: "paper", rate_i = 10000^(-2i/D), or "tensor2tensor", 10000^(-i/(D/2 - 1)), with a last column of
            zeros if D is odd, as in the three programs above. Default: "paper" if interleaved, else "tensor2tensor".
    """
    if resolve_rate_scheme(interleaved, rate_scheme) == "paper":
        pairs = npx.ceil_div(d_model, 2)
        rate = 10000.0 ** (-2 * host.arange(pairs) / d_model)  # (D/2,)
    else:
        pairs = d_model // 2
        rate = 10000.0 ** (-host.arange(pairs) / max(1, pairs - 1))
    angles = host.arange(length)[:, None] * rate  # (length, D/2)
    waves = host.sin(angles), host.cos(angles)
    columns = host.stack(waves, axis=2).reshape(length, 2 * pairs) if interleaved else host.concatenate(waves, axis=1)
    table = host.zeros((length, d_model))
    table[:, : 2 * pairs] = columns[:, :d_model]
    return npx.asarray(table.astype(dtype))


@differentiable
def add_constant(x, constant):
    """Return x + constant, without computing a gradient for the constant."""
    return x + constant, lambda g: (g,)


@POSITIONS.register("sinusoidal")
class SinusoidalPositions(Positions):
    """Sinusoidal positions, with sines and cosines interleaved as in the paper (`sinusoids`)."""

    interleaved = True
    rate_scheme: str | None = None  # see `sinusoids`
    _table: npx.Array | None = None  # the encodings of the first positions; grows with the longest sequence so far

    def table_rows(self, start: StartOrPacking, x: Any, dtype: Any) -> npx.Array:
        """Return the encodings (T, D) of the positions of x (B, T, ...), or (R, D) of packed x (R, ...)."""
        end = end_position(start, x)
        table = self._table  # read once, because another thread may replace it
        if table is None or len(table) < end or table.dtype != dtype:
            table = sinusoids(max(64, 2 * end), self.d_model, self.interleaved, dtype, self.rate_scheme)
            self._table = table
        return table[start.positions] if isinstance(start, npx.Packing) else table[start:end]

    def forward(self, x: Tensor, start: StartOrPacking = 0) -> Tensor:
        """Return x (B, T, D), or packed x (R, D), plus the encodings of its positions from `start` on."""
        if x.shape[-1] != self.d_model:
            raise ValueError(f"positions: expected {self.d_model} columns; got {x.shape[-1]}; try x (B, T, d_model)")
        return add_constant(x, self.table_rows(start, x, x.dtype))

    def embed(self, embedding: Embedding, ids: npx.Array, start: StartOrPacking, dropout: Dropout) -> Tensor:
        return embedding(ids, self.table_rows(start, ids, embedding.weight.dtype), dropout.next_spec())


@POSITIONS.register("sinusoidal_halves")
class SplitSinusoidalPositions(SinusoidalPositions):
    """Sinusoidal positions, with all sines before all cosines (`sinusoids`)."""

    interleaved = False


@POSITIONS.register("learned")
class LearnedPositions(Positions):
    """A learned vector for each of `max_positions` positions (paper Table 3, row E)."""

    def __init__(self, d_model: int, max_positions: int = 1024) -> None:
        self.weight = Parameter(normal(max_positions, d_model, d_model**-0.5))
        self.max_positions = max_positions

    def forward(self, x: Tensor, start: StartOrPacking = 0) -> Tensor:
        """Return x (B, T, D), or packed x (R, D), plus the vectors of its positions from `start` on.

        Raises ValueError for positions beyond `max_positions`.
        """
        end = end_position(start, x)
        if end > len(self.weight):
            raise ValueError(
                f"positions: expected at most max_positions = {len(self.weight)} tokens; got {end}; "
                "try a larger model.max_positions, or sinusoidal positions, which have no limit"
            )
        if isinstance(start, npx.Packing):
            return x + neural.embedding(self.weight, start.positions)
        return x + self.weight[start:end]


class IdentityPositions(Positions):
    """Positions that leave embeddings unchanged: for recurrent layers, and for encodings that act in self-attention."""

    def forward(self, x: Tensor, start: StartOrPacking = 0) -> Tensor:
        """Return x unchanged."""
        return x


@POSITIONS.register("rotary")
class RotaryPositions(IdentityPositions):
    """Self-attention rotates queries and keys by their positions (Su et al., 2021)."""

    rotary_base = 10000.0
