"""RMSNorm (Zhang and Sennrich, 2019): a norm that neither subtracts the mean nor adds a bias."""

import npx
from autograd import Tensor, differentiable
from models.init import constant
from models.layers.norm import Norm
from models.module import Parameter
from models.registry import NORMS


@differentiable
def rms_norm(x, gain, eps=1e-6):
    """Return gain * x / sqrt(mean(x^2) + eps) over the last axis. x (..., D); gain (D,).

    With z = x / rms and h = g * gain: gx = (h - z * mean(h * z)) / rms. The gradient of the gain is the sum of g * z.
    """
    npx.check_floating("rms_norm", x)
    wide = x.astype(npx.accumulation_dtype(x.dtype), copy=False)
    scale = 1 / npx.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)  # (..., 1)

    def vjp(g):
        z = wide * scale
        h = g * gain
        gx = (h - z * (h * z).mean(axis=-1, keepdims=True)) * scale
        g_gain = (g * z).reshape(-1, len(gain)).sum(axis=0)
        return gx.astype(x.dtype, copy=False), g_gain.astype(gain.dtype, copy=False)

    return (wide * scale).astype(x.dtype, copy=False) * gain, vjp


@NORMS.register("rms_norm")
class RMSNorm(Norm):
    """A norm that divides by the root mean square, with a learned gain.

    Args:
        d_model: width D.
        eps: added to the mean square. Default 1e-6.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        self.gain = Parameter(constant((d_model,), 1))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return gain * x / sqrt(mean(x^2) + eps) over the last axis of x (..., D)."""
        return rms_norm(x, self.gain, self.eps)
