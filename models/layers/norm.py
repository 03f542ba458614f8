"""Layer norm, the base class of norms, and the residual connection around a sub-layer."""

from collections.abc import Callable

from autograd import Tensor, neural
from models.init import full
from models.layers.basic import Dropout
from models.module import Module, Parameter
from models.registry import NORMS


class Norm(Module):
    """Base class of norms, (..., D) -> (..., D). Subclasses define `forward`."""

    def residual_norm(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        """Return the norm of x + dropout(y). Norms with a fused operation override it."""
        return self(x + dropout(y))


@NORMS.register("layer_norm")
class LayerNorm(Norm):
    """gamma * (x - mean) / sqrt(var + eps) + beta over the last axis. (..., D) -> (..., D).

    Args:
        d_model: width D.
        eps: added to the variance, which is the biased one. Default 1e-6.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        self.gamma, self.beta = Parameter(full(1, d_model)), Parameter(full(0, d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return neural.layer_norm(x, self.gamma, self.beta, self.eps)

    def residual_norm(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        return neural.dropout_residual_norm(y, x, self.gamma, self.beta, dropout.draw(), self.eps)


class Residual(Module):
    """The residual connection around a sub-layer f (paper sections 3.1 and 5.4). (..., D) -> (..., D).

    Args:
        d_model: width D.
        dropout: rate on the output of the sub-layer.
        placement: "post" (default, the paper): Norm(x + Dropout(f(x))); "pre": x + Dropout(f(Norm(x))).
        eps: of the norm.
        normalization: name of the norm in NORMS. Default "layer_norm".
    """

    def __init__(
        self,
        d_model: int,
        dropout: float,
        placement: str = "post",
        eps: float = 1e-6,
        normalization: str = "layer_norm",
    ) -> None:
        self.norm: Norm = NORMS[normalization](d_model, eps)
        self.dropout = Dropout(dropout)
        self.post = placement == "post"

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.post:
            return self.norm.residual_norm(x, f(x), self.dropout)
        return x + self.dropout(f(self.norm(x)))
