"""SiLU, also called swish (Ramachandran et al., 2017)."""

import npx
from autograd import Tensor, differentiable
from autograd.operations import logistic
from models.layers.basic import Linear
from models.registry import ACTIVATIONS


@differentiable
def silu(x):
    """Return y = x * s, where s = sigmoid(x); dy/dx = s * (1 + x * (1 - s))."""
    y, s = npx.elementwise(lambda x: (x * (s := logistic(x)), s), x, outputs=2)
    return y, lambda g: (npx.elementwise(lambda g, x, s: g * (s * (1 + x * (1 - s))), g, x, s),)


@ACTIVATIONS.register("silu")
class SiLU(Linear):
    """A linear map, followed by `silu`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return silu(x W + b) (..., F) for x (..., D)."""
        return silu(super().forward(x))
