"""Wrong layers of first-time users, with bugs about parameters.

Each has one bug, of the kind model (bugs hidden by the initialization, tied or detached parameters) or inputs (other
shapes).
"""

import numpy as np

from autograd import Tensor, differentiable
from autograd import operations as ops
from models import Linear, Module, Parameter
from tests.user_code.base import ids, rows, weights, wrong
from tests.user_code.right import log_softmax, softmax

# Bugs hidden by the initialization


@differentiable
def rms_norm_without_gain(x, gain):
    scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
    z = x * scale
    return z * gain, lambda g: (scale * (g - z * (g * z).mean(axis=-1, keepdims=True)), rows(g * z).sum(axis=0))


@wrong((2, 5, 3))
class GainForgotten(Module):
    """RMSNorm; the gradient of x omits the gain, which is initialized to 1 [model]."""

    def __init__(self, n):
        self.gain = Parameter(np.ones(n))

    def forward(self, x):
        return rms_norm_without_gain(x, self.gain)


@differentiable
def dense_tanh(x, w, b):
    return np.tanh(x @ w + b), lambda g: dense_tanh_grad(g * (1 - np.tanh(x @ w) ** 2), x, w)


def dense_tanh_grad(h, x, w):
    return h @ w.T, x.T @ h, h.sum(axis=0)


@wrong()
class BiasForgotten(Module):
    """tanh(x W + b); the derivative omits the bias, which is initialized to 0 [model]."""

    def __init__(self, n):
        self.w, self.b = weights(n, 4), Parameter(np.zeros(4))

    def forward(self, x):
        return dense_tanh(x, self.w, self.b)


@differentiable
def low_rank(x, w, a, b):
    def vjp(g):
        return g @ w.T + g @ b.T @ a.T, x.T @ g, x.T @ (g @ w.T @ w @ b.T), (x @ a).T @ g

    return x @ w + x @ a @ b, vjp


@wrong()
class LowRank(Module):
    """W + A B; B is initialized to 0, which hides the wrong gradient of A [model]."""

    def __init__(self, n):
        self.w, self.a, self.b = weights(n, 4), weights(n, 2), Parameter(np.zeros((2, 4)))

    def forward(self, x):
        return low_rank(x, self.w, self.a, self.b)


@differentiable
def gated_branch(x, alpha):
    y = np.tanh(x)
    return x + alpha * y, lambda g: (g, np.asarray((g * y).sum()).reshape(1))


@wrong()
class BranchForgotten(Module):
    """x + alpha tanh(x), alpha initialized to 0; the gradient through the branch is missing [model]."""

    def __init__(self, n):
        self.alpha = Parameter(np.zeros(1))

    def forward(self, x):
        return gated_branch(x, self.alpha)


@differentiable
def parametric_relu(x, slope):
    return np.where(x > 0, x, slope * x), lambda g: (
        g * np.where(x > 0, 1, 0.25).astype(x.dtype),
        rows(g * np.minimum(x, 0)).sum(axis=0),
    )


@wrong()
class SlopeOfTheStart(Module):
    """PReLU; the gradient uses the initial slope 0.25 [model]."""

    def __init__(self, n):
        self.slope = Parameter(np.full(n, 0.25))

    def forward(self, x):
        return parametric_relu(x, self.slope)


@differentiable
def blur(x, w):
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    t = x.shape[1]

    def vjp(g):
        gp = np.pad(g, ((0, 0), (1, 1), (0, 0)))
        gw = np.stack([np.asarray((g * padded[:, k : k + t]).sum()) for k in range(3)])
        return sum(w[k] * gp[:, k : k + t] for k in range(3)), gw

    return sum(w[k] * padded[:, k : k + t] for k in range(3)), vjp


@wrong((2, 5, 3))
class KernelNotFlipped(Module):
    """Learned blur, initialized symmetric; the gradient does not flip it [model]."""

    def __init__(self, n):
        self.w = Parameter(np.array([0.25, 0.5, 0.25]))

    def forward(self, x):
        return blur(x, self.w)


@differentiable
def heated(x, t):
    z = x / t
    return z, lambda g: (g, np.asarray(-(g * z).sum() / t).reshape(t.shape))


@wrong()
class TemperatureForgotten(Module):
    """x / t, t initialized to 1; the gradient of x is not divided [model]."""

    def __init__(self, n):
        self.t = Parameter(np.ones(()))

    def forward(self, x):
        return heated(x, self.t)


@differentiable
def weight_normed(x, v, length):
    norm = np.sqrt((v * v).sum(axis=0))
    unit = v / norm

    def vjp(g):
        gw = x.T @ g
        along = (gw * unit).sum(axis=0)
        return g @ (unit * length).T, gw - unit * along, along

    return x @ (unit * length), vjp


@wrong()
class LengthOfTheStart(Module):
    """Weight norm, initialized to the norms of v; the gradient of v omits their ratio [model]."""

    def __init__(self, n):
        self.v = weights(n, 4)
        self.length = Parameter(np.sqrt((self.v.data**2).sum(axis=0)))

    def forward(self, x):
        return weight_normed(x, self.v, self.length)


# Parameters in general


@differentiable
def affine(x, w, b):
    def vjp(g):
        gb = g.sum(axis=0)
        while gb.ndim > 1:
            gb = gb.mean(axis=0)
        return g @ w.T, rows(x).T @ rows(g), gb

    return x @ w + b, vjp


@wrong((2, 5, 3))
class BiasOfTheFirstAxis(Module):
    """Linear map; the bias gradient is a sum over the batch but a mean over the steps [model]."""

    def __init__(self, n):
        self.w, self.b = weights(n, 4), Parameter(np.zeros(4))

    def forward(self, x):
        return affine(x, self.w, self.b)


@differentiable
def squeezed(x, w):
    def vjp(g):
        gb = np.zeros_like(w)
        gb += (g * x).squeeze().sum(axis=0)
        return g * w, gb

    return x * w, vjp


@wrong()
class SqueezedBatch(Module):
    """Columns times learned weights; squeeze also removes the axis of a batch of one [inputs]."""

    def __init__(self, n):
        self.w = Parameter(np.ones(n))

    def forward(self, x):
        return squeezed(x, self.w)


@wrong()
class DetachedTie(Module):
    """Autoencoder with tied W; only the encoder contributes to the gradient [model]."""

    def __init__(self, n):
        self.w = weights(n, 3)

    def forward(self, x):
        return ops.tanh(x @ self.w) @ self.w.detach().transpose()


@wrong()
class CutEncoder(Module):
    """Two layers on the output of a third; one gets it detached [model]."""

    def __init__(self, n):
        self.encoder, self.first, self.second = Linear(n, 5), Linear(5, 5), Linear(5, 5)

    def forward(self, x):
        memory = ops.tanh(self.encoder(x))
        return self.second(ops.tanh(self.first(memory)) + memory.detach())


@wrong()
class HardGate(Module):
    """Mixture of experts; the gate is used as a constant [model]."""

    def __init__(self, n):
        self.gate, self.experts = Linear(n, 2), [Linear(n, 4), Linear(n, 4)]

    def forward(self, x):
        p = softmax(self.gate(x)).data
        p = p * (p == p.max(axis=-1, keepdims=True))
        return self.experts[0](x) * p[:, :1] + self.experts[1](x) * p[:, 1:]


@differentiable
def looked_up(table, ids):
    def vjp(g):
        gt = np.zeros_like(table)
        np.add.at(gt, ids, g)
        gt[0] = 0
        return (gt,)

    return table[ids], vjp


@wrong(first=lambda rng, shape: rng.integers(1, 7, size=shape))
class PaddingWithoutGradient(Module):
    """Embedding; the row of padding is used but gets no gradient [model]."""

    def __init__(self, n):
        self.table = weights(7, 3)

    def forward(self, ids):
        return looked_up(self.table, ids)


@differentiable
def masked_softmax(z, seen):
    e = np.exp(z - z.max(axis=-1, keepdims=True)) * seen
    p = e / e.sum(axis=-1, keepdims=True)
    every = np.exp(z - z.max(axis=-1, keepdims=True))
    every = every / every.sum(axis=-1, keepdims=True)
    return p, lambda g: (every * (g - (g * every).sum(axis=-1, keepdims=True)), None)


@wrong((2, 5, 4))
class MaskForwardOnly(Module):
    """Causal attention; the gradient of softmax ignores the mask [model]."""

    def __init__(self, n):
        self.q, self.k = weights(n, n), weights(n, n)

    def forward(self, x):
        seen = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
        return masked_softmax((x @ self.q) @ (x @ self.k).swapaxes(-1, -2), seen) @ x


@differentiable
def mean_loss(log_p, targets):
    real = targets != 0
    picked = np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]

    def vjp(g):
        gx = np.zeros_like(log_p)
        np.put_along_axis(gx, targets[..., None], (-g * real / real.size).astype(g.dtype)[..., None], axis=-1)
        return gx, None

    return -(picked * real).sum() / max(1, int(real.sum())), vjp


@wrong((5, 4), second=lambda rng, x: rng.integers(1, 3, size=len(x)))
class PaddingCounted(Module):
    """Mean loss of targets other than padding (0); the gradient includes padding [model]."""

    def __init__(self, n):
        self.map = Linear(n, 3)

    def forward(self, x, targets):
        return mean_loss(log_softmax(self.map(x)), targets)


@wrong((5, 4), second=ids(3))
class OneBiasForAll(Module):
    """Scores with a bias per class, selected for the targets as constants [model]."""

    def __init__(self, n):
        self.map, self.bias = Linear(n, 3, bias=False), Parameter(np.zeros(3))

    def forward(self, x, targets):
        return self.map(x)[np.arange(len(targets)), targets] + self.bias.data[targets]


@wrong()
class GainOutsideTheParameters(Module):
    """Columns times a gain that requires a gradient but is not a Parameter [model]."""

    def __init__(self, n):
        self.gain = Tensor([1.0] * n, requires_grad=True)

    def forward(self, x):
        return x * self.gain.astype(x.dtype)
