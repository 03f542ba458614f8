"""The layers that others are made of: Linear, Embedding, Dropout."""

import npx
from autograd import Tensor, neural
from models.init import full, normal, xavier_uniform
from models.module import Module, Parameter


class Linear(Module):
    """x W + b, then max(0, .) for `activation` "relu". (..., n_in) -> (..., sum(n_out)); several n_out: merged maps."""

    def __init__(self, n_in: int, *n_out: int, bias: bool = True, activation: str = "", gain: float = 1.0) -> None:
        self.weight = Parameter(xavier_uniform(n_in, *n_out, gain=gain))  # (n_in, n_out)
        self.bias = Parameter(full(0, sum(n_out))) if bias else None
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return neural.linear(x, self.weight, self.bias, self.activation, recompute_x=x.recompute)


class Embedding(Module):
    """Rows of a table, times sqrt(D) (paper section 3.4), plus what is `added`; then dropout. ids (...) -> (..., D).

    `init` "normal": N(0, D^-0.5), with a zero row for `pad_id`; "xavier": Xavier uniform over (V, D).
    """

    def __init__(self, rows: int, d_model: int, pad_id: int = 0, init: str = "normal") -> None:
        xavier = init == "xavier"
        self.weight = Parameter(  # (V, D)
            xavier_uniform(rows, d_model) if xavier else normal(rows, d_model, d_model**-0.5, zero_row=pad_id)
        )
        self.scale = d_model**0.5

    def forward(self, ids: npx.Array, added: npx.Array | None = None, drop: npx.Drop | None = None) -> Tensor:
        return neural.embedding(self.weight, ids, scale=self.scale, added=added, drop=drop)


class Dropout(Module):
    """In training mode zeroes a share `rate` of the values and scales up the others; needs a `with npx.keyed(...)`."""

    def __init__(self, rate: float) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"Dropout: expected a rate from 0 to 1; got {rate}; the paper has 0.1")
        self.rate = rate

    def draw(self) -> npx.Drop | None:
        """What is dropped next; None for nothing."""
        return npx.Drop(self.rate, npx.next_key()) if self.training and self.rate > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        drop = self.draw()
        return neural.dropout(x, drop) if drop else x
