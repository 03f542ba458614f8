"""GELU (Hendrycks and Gimpel, 2016), in the tanh approximation because NumPy has no erf."""

import math

import npx
from autograd import Tensor, differentiable
from models.layers.basic import Linear
from models.registry import ACTIVATIONS

SCALE = (2 / math.pi) ** 0.5
CUBIC = 0.044715


@differentiable
def gelu(x):
    """Return x * p, where p = (1 + tanh(u)) / 2 approximates Phi(x), and u = sqrt(2/pi) * (x + 0.044715 x^3)."""
    y, p = npx.elementwise(gelu_values, x, outputs=2, in_place=True)
    return y, lambda g: (npx.elementwise(gelu_grad, g, x, p, in_place=True),)


def gelu_values(x, y, p):
    """Write y = x * p and p = 1 / (1 + e^-2u), which equals (1 + tanh(u)) / 2 but is accurate for negative u."""
    npx.multiply(x, x, out=p)
    p *= -2 * SCALE * CUBIC
    p -= 2 * SCALE
    p *= x  # -2 u
    with npx.host.errstate(over="ignore"):  # the limit of 1 / (1 + e^-2u) is 0
        npx.exp(p, out=p)
    p += 1
    npx.divide(1, p, out=p)
    npx.multiply(x, p, out=y)


def gelu_grad(g, x, p, gx):
    """Write gx = g dy/dx = g p (1 + 2 x (1 - p) du/dx), because dp/du = 2 p (1 - p)."""
    npx.multiply(x, x, out=gx)
    gx *= 3 * SCALE * CUBIC
    gx += SCALE  # du/dx
    gx *= 1 - p
    gx *= x
    gx *= 2
    gx += 1
    gx *= p
    gx *= g


@ACTIVATIONS.register("gelu")
class GELU(Linear):
    """A linear map, followed by `gelu`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return gelu(x W + b) (..., F) for x (..., D)."""
        return gelu(super().forward(x))
