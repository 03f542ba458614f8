"""GELU (Hendrycks and Gimpel, 2016) inside the feed-forward network, in its form with tanh: NumPy has no erf."""

import math

import npx
from autograd import Tensor, differentiable
from models.layers.basic import Linear
from models.registry import ACTIVATIONS

ROOT, CUBIC = (2 / math.pi) ** 0.5, 0.044715


@differentiable
def gelu(x):
    """x Phi(x), nearly: x (1 + t) / 2 with t = tanh(sqrt(2/pi) (x + 0.044715 x^3))."""
    t = npx.tanh(ROOT * (x + CUBIC * x * x * x))

    def vjp(g):
        slope = ROOT * (1 + 3 * CUBIC * x * x)  # of the argument of tanh
        return (g * 0.5 * (1 + t + x * (1 - t * t) * slope),)

    return 0.5 * x * (1 + t), vjp


@ACTIVATIONS.register("gelu")
class GELU(Linear):
    """gelu(x W + b). (..., D) -> (..., F)."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(super().forward(x))
