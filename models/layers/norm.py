"""Layer norm, the base class of norms, and the residual connection around a sub-layer."""

from collections.abc import Callable

import npx
from autograd import Tensor, neural
from models.init import constant
from models.layers.basic import Dropout
from models.module import Module, Parameter
from models.registry import NORMS


class Norm(Module):
    """Base class of norms. Subclasses define `forward`, which maps x (..., D) to (..., D)."""

    def residual_norm(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        """Return the norm of x + dropout(y). Norms with a fused operation override this method."""
        return self(x + dropout(y))


NORMS.base = Norm


@NORMS.register("layer_norm")
class LayerNorm(Norm):
    """Layer normalization, with a learned gain gamma and bias beta.

    Args:
        d_model: width D.
        eps: added to the (biased) variance. Default 1e-6.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        self.gamma = Parameter(constant((d_model,), 1))
        self.beta = Parameter(constant((d_model,), 0))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return gamma * (x - mean) / sqrt(var + eps) + beta over the last axis of x (..., D)."""
        return neural.layer_norm(x, self.gamma, self.beta, self.eps)

    def residual_norm(self, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        return neural.dropout_residual_norm(y, x, self.gamma, self.beta, dropout.next_spec(), self.eps)


PLACEMENTS = ("post", "pre", "sandwich", "deepnorm")  # where a `Residual` has its norm


def deep_norm_factors(stack: str, n_layers: int) -> tuple[float, float]:
    """Return DeepNorm's two factors (Wang et al., 2022, figure 2).

    These are alpha, the factor on residual connections, and beta, the gain of the initialization of W^V, W^O and the
    feed-forward network.

    Args:
        stack: "encoder" or "decoder" for a model with n_layers in each, or "single" for the only stack of a model.
    """
    n = n_layers
    return {
        "encoder": (0.81 * n ** (5 / 16), 0.87 * n ** (-5 / 16)),  # (N^4 M)^(1/16) with N = M
        "decoder": ((3 * n) ** 0.25, (12 * n) ** -0.25),
        "single": ((2 * n) ** 0.25, (8 * n) ** -0.25),
    }[stack]


class Residual(Module):
    """The residual connection around a sub-layer (paper sections 3.1 and 5.4).

    Args:
        d_model: width D.
        dropout: rate on the output of the sub-layer.
        placement: "post" (default, as in the paper), "pre", "sandwich" (Ding et al., "CogView", 2021) or "deepnorm"
            (Wang et al., "DeepNet", 2022); see `forward`.
        eps: epsilon of the norm.
        norm_type: name of the norm in NORMS. Default "layer_norm".
        alpha: factor on x with "deepnorm" (`deep_norm_factors`). Default 1.

    Attributes:
        stochastic_depth: a dropout of the sub-layer (Huang et al., 2016). In training mode, f(x) is replaced by 0 with
            probability `stochastic_depth.rate`, for all sentences of a micro-batch at once, and otherwise scaled by
            1 / (1 - rate). The rate is initially 0.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float,
        placement: str = "post",
        eps: float = 1e-6,
        norm_type: str = "layer_norm",
        alpha: float = 1.0,
    ) -> None:
        self.norm: Norm = NORMS[norm_type](d_model, eps)
        self.output_norm: Norm | None = NORMS[norm_type](d_model, eps) if placement == "sandwich" else None
        self.dropout = Dropout(dropout)
        self.stochastic_depth = Dropout(0.0)
        self.is_post_norm = placement in ("post", "deepnorm")
        self.alpha = alpha

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x + f(x) with norm and dropout, for x (..., D) and a sub-layer f that returns (..., D).

        The result depends on the placement of the norm:
            post       Norm(x + Dropout(f(x)))
            pre        x + Dropout(f(Norm(x)))
            sandwich   x + Dropout(Norm'(f(Norm(x))))
            deepnorm   Norm(alpha x + Dropout(f(x)))
        """
        if self.is_post_norm:
            y = self.apply_stochastic_depth(f(x))
            return self.norm.residual_norm(x if self.alpha == 1 else x * self.alpha, y, self.dropout)
        y = f(self.norm(x))
        return x + self.dropout(self.apply_stochastic_depth(self.output_norm(y) if self.output_norm else y))

    def apply_stochastic_depth(self, y: Tensor) -> Tensor:
        """In training mode, multiply the sub-layer's output y by 0 or 1 / (1 - rate), chosen at random."""
        drop = self.stochastic_depth.next_spec()
        # a factor instead of a branch, so that a CUDA graph makes a new decision in each step
        return y * npx.dropout(npx.ones(1, y.dtype), drop)[0] if drop else y
