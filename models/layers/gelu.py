"""GELU (Hendrycks and Gimpel, 2016) inside the feed-forward network, in its form with tanh: NumPy has no erf."""

import math

import npx
from autograd import Tensor, differentiable
from autograd.operations import logistic
from models.layers.basic import Linear
from models.registry import ACTIVATIONS

ROOT, CUBIC = (2 / math.pi) ** 0.5, 0.044715


@differentiable
def gelu(x):
    """x p with p = (1 + tanh u) / 2, nearly Phi(x), where u = sqrt(2/pi) (x + 0.044715 x^3)."""
    p = npx.elementwise(share, x)
    return x * p, lambda g: (npx.elementwise(slope, g, x, p),)


def share(x):
    """p of `gelu`: the logistic function of 2 u, which keeps the digits that 1 + tanh u loses near 0."""
    u = x * x
    u *= 2 * ROOT * CUBIC
    u += 2 * ROOT
    u *= x
    return logistic(u)


def slope(g, x, p):
    """g dy/dx, which is g p (1 + 2 x (1 - p) du/dx): dp/du = 2 p (1 - p)."""
    y = x * x
    y *= 3 * ROOT * CUBIC
    y += ROOT  # du/dx
    y *= 1 - p
    y *= 2 * x
    y += 1
    y *= p
    y *= g
    return y


@ACTIVATIONS.register("gelu")
class GELU(Linear):
    """gelu(x W + b). (..., D) -> (..., F)."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(super().forward(x))
