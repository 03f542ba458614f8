"""SwiGLU (Shazeer, 2020): SiLU of one half of a projection gates the other half."""

import npx
from autograd import Tensor, differentiable
from autograd.operations import logistic
from models.layers.basic import Linear
from models.module import Module
from models.registry import ACTIVATIONS


@differentiable
def gated_silu(x):
    """Return a * sigmoid(a) * b, where x (..., 2 F) is the concatenation of a and b. Result (..., F)."""
    if x.shape[-1] % 2:
        raise ValueError(f"gated_silu: expected an even number of columns; got {x.shape[-1]}; try (..., 2 F)")
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    s = npx.elementwise(logistic, a)

    def vjp(g):
        ga = npx.elementwise(lambda g, a, b, s: g * b * s * (1 + a * (1 - s)), g, a, b, s)
        return (npx.concatenate([ga, g * (a * s)], axis=-1),)

    return a * s * b, vjp


@ACTIVATIONS.register("swiglu")
class SwiGLU(Module):
    """The SiLU of one linear map, multiplied by another linear map; one matrix holds the weights of both."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        self.gate_value = Linear(d_model, (d_ff, d_ff))

    def forward(self, x: Tensor) -> Tensor:
        """Return silu(x W + b) * (x V + c) (..., F) for x (..., D)."""
        return gated_silu(self.gate_value(x))
