"""GELU (Hendrycks and Gimpel, 2016) inside the feed-forward network, in its form with tanh: NumPy has no erf."""

import math

from autograd import Tensor, differentiable
from autograd.operations import logistic
from models.layers.basic import Linear
from models.registry import ACTIVATIONS

ROOT, CUBIC = (2 / math.pi) ** 0.5, 0.044715


@differentiable
def gelu(x):
    """x p with p = (1 + tanh u) / 2, nearly Phi(x), where u = sqrt(2/pi) (x + 0.044715 x^3).

    p is the logistic function of 2 u, which keeps the digits that 1 + tanh u loses near 0. dp/du = 2 p (1 - p), so the
    slope is p (1 + 2 x (1 - p) du/dx).
    """
    u = x * x
    u *= 2 * ROOT * CUBIC
    u += 2 * ROOT
    u *= x
    p = logistic(u)

    def vjp(g):
        slope = x * x
        slope *= 3 * ROOT * CUBIC
        slope += ROOT  # du/dx
        slope *= 1 - p
        slope *= 2 * x
        slope += 1
        slope *= p
        slope *= g
        return (slope,)

    return x * p, vjp


@ACTIVATIONS.register("gelu")
class GELU(Linear):
    """gelu(x W + b). (..., D) -> (..., F)."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(super().forward(x))
