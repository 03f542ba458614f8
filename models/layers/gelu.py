"""GELU (Hendrycks and Gimpel, 2016), in the tanh approximation because NumPy has no erf."""

import math

import npx
from autograd import Tensor, differentiable
from autograd.operations import logistic
from models.layers.basic import Linear
from models.registry import ACTIVATIONS

SCALE, CUBIC = (2 / math.pi) ** 0.5, 0.044715


@differentiable
def gelu(x):
    """x p with p = (1 + tanh u) / 2, which approximates Phi(x), and u = sqrt(2/pi) (x + 0.044715 x^3)."""
    y, p = npx.elementwise(lambda x: (x * (p := approximate_gaussian_cdf(x)), p), x, outputs=2)
    return y, lambda g: (npx.elementwise(gelu_grad, g, x, p),)


def approximate_gaussian_cdf(x):
    """Approximate Phi(x) by the logistic function of 2 u, equal to (1 + tanh u) / 2 but accurate for negative u."""
    u = x * x
    u *= 2 * SCALE * CUBIC
    u += 2 * SCALE
    u *= x
    return logistic(u)


def gelu_grad(g, x, p):
    """Return g dy/dx = g p (1 + 2 x (1 - p) du/dx), because dp/du = 2 p (1 - p)."""
    y = x * x
    y *= 3 * SCALE * CUBIC
    y += SCALE  # du/dx
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
