"""The feed-forward network of a block, and the activations that may stand inside it."""

from autograd import Tensor
from models.layers.basic import Dropout, Linear
from models.module import Module
from models.registry import ACTIVATIONS


@ACTIVATIONS.register("relu")
def relu(d_model: int, d_ff: int) -> Linear:
    """max(0, x W + b): one fused operation."""
    return Linear(d_model, d_ff, activation="relu")


class FeedForward(Module):
    """max(0, x W1 + b1) W2 + b2 (paper equation 2), with optional dropout between. (..., D) -> (..., D).

    `activation`: what stands for the first half, by its name in ACTIVATIONS.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu") -> None:
        self.inner: Module = ACTIVATIONS[activation](d_model, d_ff)
        self.dropout = Dropout(dropout)
        self.outer = Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.inner(x)))  # (..., F) inside
