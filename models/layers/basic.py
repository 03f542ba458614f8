"""The layers that all others use: Linear, Embedding and Dropout."""

import npx
from autograd import Tensor, neural
from models.init import constant, normal, uniform
from models.module import Module, Parameter


class Linear(Module):
    """A linear map with a bias, optionally followed by ReLU.

    Args:
        d_in: width of the input.
        d_out: width of the output. For a tuple of widths, the layer has one matrix for each, and `weight` is their
            concatenation; each matrix is initialized separately.
        bias: whether to add b, initially 0. Default True.
        activation: "relu", or None (default) for no activation.
        gain: factor on the initial weights (Xavier uniform, unless a `with models.init.use_scheme(...)` block selects
            another scheme); one number, or one for each matrix. Default 1.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int | tuple[int, ...],
        *,
        bias: bool = True,
        activation: str | None = None,
        gain: float | tuple[float, ...] = 1.0,
    ) -> None:
        widths = d_out if isinstance(d_out, tuple) else (d_out,)
        if not widths or min(d_in, *widths) < 1:
            raise ValueError(f"Linear: expected widths of at least 1; got {d_in} and {d_out}")
        self.weight = Parameter(uniform(d_in, *widths, gain=gain))  # (d_in, sum(widths))
        self.bias = Parameter(constant((sum(widths),), 0)) if bias else None
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b (..., d_out), or its ReLU, for x (..., d_in). For a tuple `d_out`, the width is its sum."""
        return neural.linear(x, self.weight, self.bias, self.activation, recompute_x=x.recompute_fn)


class Embedding(Module):
    """A learned vector for each token, by default multiplied by sqrt(D) (paper section 3.4).

    Args:
        vocab_size: number V of tokens.
        d_model: width D.
        pad_id: with `init` "normal", the row that is initially zero. Default 0.
        init: "normal" (default), with standard deviation D^-0.5, or "xavier", Xavier uniform over (V, D).
        scale_embedding: whether to multiply by sqrt(D). Default True.
    """

    def __init__(
        self, vocab_size: int, d_model: int, pad_id: int = 0, init: str = "normal", scale_embedding: bool = True
    ) -> None:
        is_xavier = init == "xavier"
        std = d_model**-0.5
        weight = uniform(vocab_size, d_model) if is_xavier else normal(vocab_size, d_model, std, zero_row=pad_id)
        self.weight = Parameter(weight)  # (V, D)
        self.scale = d_model**0.5 if scale_embedding else 1.0

    def forward(
        self, ids: npx.Array, encodings: npx.Array | None = None, drop: npx.DropoutSpec | None = None
    ) -> Tensor:
        """Return the vectors (..., T, D) of ids (..., T).

        Args:
            encodings: positional encodings (T, D), which are added to the vectors. Default None.
            drop: the dropout of the sum. Default None: no dropout.
        """
        return neural.embedding(self.weight, ids, scale=self.scale, encodings=encodings, drop=drop)


class Dropout(Module):
    """In training mode, set values to zero with probability `rate` and scale the others by 1 / (1 - rate).

    The random numbers come from the enclosing `with npx.keyed(...)`. Raises ValueError for a rate outside [0, 1].
    """

    def __init__(self, rate: float) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"Dropout: expected a rate from 0 to 1; got {rate}; try 0.1, as in the paper")
        self.rate = rate

    def next_spec(self) -> npx.DropoutSpec | None:
        """Take the next random key; return the rate and this key, or None if nothing is dropped."""
        return npx.DropoutSpec(self.rate, npx.next_key()) if self.training and self.rate > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropout or, in evaluation mode, x itself."""
        drop = self.next_spec()
        return neural.dropout(x, drop) if drop else x
