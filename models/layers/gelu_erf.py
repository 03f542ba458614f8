"""GELU with the exact Gaussian distribution function, as BERT defines it (layers/gelu.py approximates it by tanh)."""

import math

import npx
from autograd import Tensor, differentiable
from models.layers.basic import Linear
from models.registry import ACTIVATIONS
from npx import host

# NumPy has no erf. erfc(z) = e^(-z²) erfcx(z), where erfcx is smooth in t = 1 / (1 + z) and needs no asymptotic cases.
END = 6.5  # erfc is below 1e-19 from here on
DEGREES = {"float32": 12, "float64": 24}  # of the polynomials in t; relative errors 3e-8 and 2e-14


def interpolate(degree: int) -> list[float]:
    """Return the Chebyshev coefficients of erfcx for t in [1 / (1 + END), 1], scaled to [-1, 1]."""

    def erfcx(t: npx.Array) -> npx.Array:
        return host.array([math.erfc(z) * math.exp(z * z) for z in (1 / t - 1).tolist()])

    polynomial = host.polynomial.Chebyshev.interpolate(erfcx, degree, [1 / (1 + END), 1.0])
    return [float(c) for c in polynomial.coef]


COEFFICIENTS = {dtype: interpolate(degree) for dtype, degree in DEGREES.items()}


@differentiable
def gelu_erf(x):
    """x Phi(x), with Phi(x) = (1 + erf(x / sqrt(2))) / 2."""
    p = npx.elementwise(normal_cdf, x)
    return x * p, lambda g: (npx.elementwise(gelu_erf_grad, g, x, p),)


def normal_cdf(x):
    """Return Phi(x); small values are as accurate as large ones, down to x = -9."""
    z = npx.absolute(x) * math.sqrt(0.5)
    t = npx.maximum(1 / (1 + z), 1 / (1 + END))
    t = (2 * t - (1 + 1 / (1 + END))) / (1 - 1 / (1 + END))  # [-1, 1]
    b, c = 0 * t, 0 * t  # Clenshaw's recurrence
    *coefficients, last = reversed(COEFFICIENTS[x.dtype.name])
    for coefficient in coefficients:
        b, c = 2 * t * b - c + coefficient, b
    tail = (t * b - c + last) * npx.exp(-z * z) / 2  # Phi(-|x|)
    return npx.where(x < 0, tail, 1 - tail)


def gelu_erf_grad(g, x, p):
    """Return g dy/dx = g (Phi(x) + x e^(-x²/2) / sqrt(2 pi))."""
    y = npx.exp(-x * x / 2)
    y *= x
    y *= 1 / math.sqrt(2 * math.pi)
    y += p
    y *= g
    return y


@ACTIVATIONS.register("gelu_erf")
class ErfGELU(Linear):
    """gelu_erf(x W + b). (..., D) -> (..., F)."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu_erf(super().forward(x))
