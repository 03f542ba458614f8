"""The feed-forward network of a layer, and its default activation."""

from autograd import Tensor
from models.layers.basic import Dropout, Linear
from models.module import Module
from models.registry import ACTIVATIONS


@ACTIVATIONS.register("relu")
def relu(d_model: int, d_ff: int) -> Linear:
    """Return the layer max(0, x W + b), computed by one fused operation."""
    return Linear(d_model, d_ff, activation="relu")


class FeedForward(Module):
    """The feed-forward network: two linear maps with an activation in between (paper equation 2).

    Args:
        d_model, d_ff: widths D and F.
        dropout: rate after the activation. Default 0.
        activation: name in ACTIVATIONS; the entry includes the first projection. Default "relu".
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu") -> None:
        self.inner: Module = ACTIVATIONS[activation](d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.outer = Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return max(0, x W1 + b1) W2 + b2 (..., D) for x (..., D). Other activations replace max(0, x W1 + b1)."""
        return self.outer(self.dropout(self.inner(x)))  # (..., F), between the two projections
