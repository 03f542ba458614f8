"""GELU (Hendrycks and Gimpel, 2016) in its exact form, x Phi(x), as in BERT and Marian."""

import math
from typing import Any

import npx
from autograd import Tensor, differentiable
from models.layers.basic import Linear
from models.registry import ACTIVATIONS

# Chebyshev series in the variable 2 t - 1 of log(erfc(z) e^(z^2) / t), where t = 2 / (2 + z) is in (0, 1]. With all
# terms, erfc has a relative error of about 1e-15.
SERIES = (
    -0.651326859890854717, 0.64196979235649026, 0.0194764732041858363, -0.00956151478680863164,
    -0.000946595344482036866, 0.000366839497852761452, 4.25233248069077716e-5, -2.02785781125342432e-5,
    -1.62429000464702551e-6, 1.3036558355805232e-6, 1.56264417220661432e-8, -8.52380959149265425e-8,
    6.52905443909885149e-9, 5.05934349555146895e-9, -9.91364156493033091e-10, -2.27365122293183581e-10,
    9.64679110201552645e-11, 2.39403808303911763e-12, -6.88602752649755563e-12, 8.94487927309074143e-13,
    3.13092139934294907e-13, -1.12708223613672298e-13, 3.81090525519374139e-16, 7.10609761360811203e-15,
    -1.52302820145531142e-15, -9.45749457153634416e-17,
)  # fmt: skip
SHORT_SERIES = SERIES[:11]  # enough for float32


@differentiable
def gelu_erf(x):
    """Return y = x * p, where p = Phi(x) is the Gaussian CDF; dy/dx = p + x * phi(x)."""
    y, p = npx.elementwise(lambda x: (x * (p := gaussian_cdf(x)), p), x, outputs=2)
    return y, lambda g: (npx.elementwise(gelu_erf_grad, g, x, p),)


def gaussian_cdf(x: Any) -> Any:
    """Return Phi(x) = erfc(-x / sqrt(2)) / 2, accurate in both tails."""
    z = npx.absolute(x) / math.sqrt(2)
    t = 2 / (2 + z)
    tail = t * npx.exp(chebyshev(2 * t - 1, SERIES if x.dtype.itemsize > 4 else SHORT_SERIES) - z * z) / 2
    return npx.where(x > 0, 1 - tail, tail)


def chebyshev(x: Any, series: tuple[float, ...]) -> Any:
    """Return sum_i series[i] T_i(x) by Clenshaw's recurrence."""
    b = previous = x * 0
    for c in reversed(series[1:]):
        b, previous = 2 * x * b - previous + c, b
    return x * b - previous + series[0]


def gelu_erf_grad(g: Any, x: Any, p: Any) -> Any:
    """Return g * (p + x * phi(x)), where phi is the Gaussian density."""
    return g * (p + x * npx.exp(-x * x / 2) * (1 / math.sqrt(2 * math.pi)))


@ACTIVATIONS.register("gelu_erf")
class GELUErf(Linear):
    """A linear map, followed by `gelu_erf`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return gelu_erf(x W + b) (..., F) for x (..., D)."""
        return gelu_erf(super().forward(x))
