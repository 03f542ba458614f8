"""The layers: Linear, Embedding, LayerNorm, Dropout, FeedForward, positions, residual connection. Next: `attention.py`.

Initial values come from the keys of the surrounding `with npx.keyed(seed, 0):`, in the order of construction.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import Tensor, neural
from models.module import Module, Parameter


def xavier_uniform(n_in: int, *n_out: int) -> Any:
    """U(-a, a) with a = sqrt(6 / (n_in + n_out)) (Glorot and Bengio, 2010).

    Several n_out: merged matrices, each with its own a. Returns (n_in, sum(n_out)), float32.
    """
    parts = []
    for n in n_out:
        limit = (6 / (n_in + n)) ** 0.5
        parts.append(npx.random.uniform(npx.next_key(), (n_in, n), low=-limit, high=limit))
    return npx.concatenate(parts, axis=1)


class Linear(Module):
    """x W + b, then max(0, .) if `relu`. (..., n_in) -> (..., sum(n_out)); several n_out: merged maps."""

    def __init__(self, n_in: int, *n_out: int, bias: bool = True, relu: bool = False) -> None:
        self.weight = Parameter(xavier_uniform(n_in, *n_out))  # (n_in, n_out)
        self.bias = Parameter(npx.zeros(sum(n_out))) if bias else None
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        return neural.linear(x, self.weight, self.bias, "relu" if self.relu else "")


class Embedding(Module):
    """Rows of a table, times sqrt(D) (paper section 3.4). ids (...) -> (..., D).

    `init` "normal": N(0, D^-0.5), with a zero row for `pad_id`; "xavier": Xavier uniform over (V, D).
    """

    def __init__(self, rows: int, d_model: int, pad_id: int = 0, init: str = "normal") -> None:
        if init == "xavier":
            table = xavier_uniform(rows, d_model)
        else:
            table = npx.random.normal(npx.next_key(), (rows, d_model)) * d_model**-0.5
            table[pad_id] = 0
        self.weight = Parameter(table)  # (V, D)
        self.scale = d_model**0.5

    def forward(self, ids: Any) -> Tensor:
        return neural.embedding(self.weight, ids, scale=self.scale)


class LayerNorm(Module):
    """gamma * (x - mean) / sqrt(var + eps) + beta over the last axis, var biased. (..., D) -> (..., D)."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        self.gamma, self.beta = Parameter(npx.ones(d_model)), Parameter(npx.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return neural.layer_norm(x, self.gamma, self.beta, self.eps)


class Dropout(Module):
    """In training mode zeroes a share `rate` of the values and scales up the others; needs a `with npx.keyed(...)`."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def key(self) -> "npx.Key | None":
        """The key of the next draw; None where nothing is dropped."""
        return npx.next_key() if self.training and self.rate > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        key = self.key()
        return x if key is None else neural.dropout(x, self.rate, key)


class FeedForward(Module):
    """max(0, x W1 + b1) W2 + b2 (paper equation 2), with optional dropout between. (..., D) -> (..., D)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        self.inner = Linear(d_model, d_ff, relu=True)
        self.dropout = Dropout(dropout)
        self.outer = Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.inner(x)))  # (..., F) inside


class Residual(Module):
    """The connection around a sub-layer f (paper sections 3.1 and 5.4). (..., D) -> (..., D).

    norm "post" (the paper): LayerNorm(x + Dropout(f(x))); "pre": x + Dropout(f(LayerNorm(x))).
    """

    def __init__(self, d_model: int, rate: float, norm: str = "post", eps: float = 1e-6) -> None:
        self.norm = LayerNorm(d_model, eps)
        self.dropout = Dropout(rate)
        self.post = norm == "post"

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if not self.post:
            return x + self.dropout(f(self.norm(x)))
        norm, drop = self.norm, self.dropout
        y = f(x)
        return neural.dropout_residual_norm(y, x, norm.gamma, norm.beta, drop.rate, drop.key(), norm.eps)


def sinusoids(length: int, d_model: int, halves: bool = False, dtype: Any = npx.float32) -> Any:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (paper section 3.5). (length, D).

    `halves`: all sines before all cosines, as tensor2tensor, fairseq and Marian lay them out.
    """
    pairs = -(-d_model // 2)
    rates = 10000.0 ** (-2 * npx.host.arange(pairs) / d_model)  # (D/2,)
    angles = npx.host.arange(length)[:, None] * rates  # (length, D/2)
    waves = npx.sin(angles), npx.cos(angles)
    table = npx.concatenate(waves, axis=1) if halves else npx.stack(waves, axis=2).reshape(length, 2 * pairs)
    return npx.asarray(table[:, :d_model].astype(dtype))


class Positions(Module):
    """Adds what says where in the sequence a vector stands. (B, T, D) -> (B, T, D).

    kind "sinusoidal" or "sinusoidal_halves": see `sinusoids`; "learned": a table of `max_positions` rows (Table 3, E).
    """

    def __init__(self, d_model: int, kind: str = "sinusoidal", max_positions: int = 1024) -> None:
        self.kind, self.d_model, self.max_positions = kind, d_model, max_positions
        if kind == "learned":
            self.weight = Parameter(npx.random.normal(npx.next_key(), (max_positions, d_model)) * d_model**-0.5)
        self._table: Any = None  # of sinusoids, grown when a longer sequence comes

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        stop = start + x.shape[1]
        if self.kind == "learned":
            if stop > self.max_positions:
                raise ValueError(
                    f"positions: expected at most max_positions = {self.max_positions} tokens; got {stop}; "
                    "try a larger model.max_positions, or sinusoidal positions, which have no limit"
                )
            return x + self.weight[start:stop]
        if self._table is None or len(self._table) < stop or self._table.dtype != x.dtype:
            self._table = sinusoids(max(64, 2 * stop), self.d_model, self.kind == "sinusoidal_halves", x.dtype)
        return x + self._table[start:stop]
