"""A layer as a user of the packages would write it; docs/check-your-layer.md checks it.

RMSNorm (Zhang and Sennrich, 2019) with a hand-written gradient, once correct and once with a missing term.
"""

import numpy as np

from autograd import differentiable
from models import Module, Parameter


@differentiable
def rms_norm(x, gain, eps=1e-3):
    """Return gain * x / sqrt(mean(x^2) + eps) over the last axis. x (..., D), gain (D,)."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)  # (..., 1)

    def vjp(g):
        h = g * gain
        through_scale = x * scale**3 * np.mean(h * x, axis=-1, keepdims=True)
        return h * scale - through_scale, np.sum(g * x * scale, axis=tuple(range(g.ndim - 1)))

    return gain * x * scale, vjp


@differentiable
def rms_norm_forgetful(x, gain, eps=1e-3):
    """`rms_norm` with a gradient that treats the scale as a constant."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)  # (..., 1)
    return gain * x * scale, lambda g: (g * gain * scale, np.sum(g * x * scale, axis=tuple(range(g.ndim - 1))))


class RMSNorm(Module):
    """RMSNorm of the last axis.

    Args:
        d_model: length D of the last axis.
        norm: the operation to use.
    """

    def __init__(self, d_model, norm=rms_norm):
        self.gain = Parameter(np.ones(d_model, "float32"))
        self.norm = norm

    def forward(self, x):
        return self.norm(x, self.gain)
