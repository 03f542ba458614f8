"""What keeps the vectors between sub-layers in range: norms, and the residual connection that they stand in."""

from collections.abc import Callable

from autograd import Tensor, neural
from models.init import full
from models.layers.basic import Dropout
from models.module import Module, Parameter
from models.registry import NORMS


class Norm(Module):
    """Base of the norms, (..., D) -> (..., D): subclasses define `forward`."""

    def of_sum(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        """The norm of x + dropout(y); a norm that has a fused operation for it uses that."""
        return self(x + dropout(y))


@NORMS.register("layer_norm")
class LayerNorm(Norm):
    """gamma * (x - mean) / sqrt(var + eps) + beta over the last axis, var biased. (..., D) -> (..., D)."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        self.gamma, self.beta = Parameter(full(1, d_model)), Parameter(full(0, d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return neural.layer_norm(x, self.gamma, self.beta, self.eps)

    def of_sum(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        return neural.dropout_residual_norm(y, x, self.gamma, self.beta, dropout.draw(), self.eps)


class Residual(Module):
    """The connection around a sub-layer f (paper sections 3.1 and 5.4). (..., D) -> (..., D).

    place "post" (the paper): Norm(x + Dropout(f(x))); "pre": x + Dropout(f(Norm(x))).
    """

    def __init__(
        self, d_model: int, rate: float, place: str = "post", eps: float = 1e-6, normalization: str = "layer_norm"
    ) -> None:
        self.norm: Norm = NORMS[normalization](d_model, eps)
        self.dropout = Dropout(rate)
        self.post = place == "post"

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.post:
            return self.norm.of_sum(x, f(x), self.dropout)
        return x + self.dropout(f(self.norm(x)))
