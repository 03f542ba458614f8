"""Wrong layers of first-time users: wrong in another mode or a later call.

Each has one bug, of the kind mode (training, evaluation, running statistics), random (masks) or state (other calls,
updates).
"""

import numpy as np

import npx
from autograd import Tensor, differentiable
from models import Module, Parameter
from tests.user_code.base import weights, wrong

# Training and evaluation


@wrong()
class ConstantStatistics(Module):
    """Batch norm; the gradient treats mean and variance as constants [mode]."""

    def __init__(self, n):
        self.gain, self.mean, self.var = Parameter(np.ones(n)), np.zeros(n), np.ones(n)

    def forward(self, x):
        mean, var = (x.data.mean(axis=0), x.data.var(axis=0)) if self.training else (self.mean, self.var)
        if self.training:
            self.mean, self.var = 0.9 * self.mean + 0.1 * mean, 0.9 * self.var + 0.1 * var
        return (x - mean.astype(x.dtype)) * (1 / np.sqrt(var + 1e-5)).astype(x.dtype) * self.gain


@differentiable
def normed(x, mean, var, backward_mean, backward_var, of_batch):
    z, scale = (x - mean) / np.sqrt(var + 1e-5), 1 / np.sqrt(backward_var + 1e-5)

    def vjp(g):
        if not of_batch:
            return (g * scale,)
        z = (x - backward_mean) * scale
        return (scale * (g - g.mean(axis=0) - z * (g * z).mean(axis=0)),)

    return z, vjp


class Norm(Module):
    def __init__(self, n):
        self.mean, self.var = np.zeros(n), np.ones(n)

    def statistics(self, x):
        now = x.data.mean(axis=0), x.data.var(axis=0)
        running = self.mean.astype(x.dtype), self.var.astype(x.dtype)
        if self.training:
            self.mean, self.var = 0.9 * self.mean + 0.1 * now[0], 0.9 * self.var + 0.1 * now[1]
        return now, running


@wrong()
class RunningInBackward(Norm):
    """Batch norm; the gradient uses the running statistics [mode]."""

    def forward(self, x):
        now, running = self.statistics(x)
        return normed(x, *(now if self.training else running), *running, self.training)


@wrong()
class EvaluatedLikeTraining(Norm):
    """Batch norm; evaluation uses the gradient of training [mode]."""

    def forward(self, x):
        now, running = self.statistics(x)
        used = now if self.training else running
        return normed(x, *used, *used, True)


@wrong()
class TrainedLikeEvaluation(Norm):
    """Batch norm; training uses the gradient of evaluation [mode]."""

    def forward(self, x):
        now, running = self.statistics(x)
        used = now if self.training else running
        return normed(x, *used, *used, False)


@wrong()
class UpdatedFirst(Module):
    """x minus a running mean that includes this batch; the gradient treats it as constant [mode]."""

    def __init__(self, n):
        self.mean = np.zeros(n)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.data.mean(axis=0)
        return x - self.mean.astype(x.dtype)


@wrong()
class ModeOfBackward(Module):
    """Leaky ReLU in training, ReLU in evaluation; the gradient reads the mode in the backward pass [mode]."""

    def __init__(self, n):
        @differentiable
        def rectified(x):
            y = np.where(x > 0, x, x * 0.1 if self.training else 0 * x)
            return y, lambda g: (g * np.where(x > 0, 1, 0.1 if self.training else 0).astype(x.dtype),)

        self.rectified = rectified

    def forward(self, x):
        return self.rectified(x)


@wrong()
class MergedForGood(Module):
    """Product of two matrices, merged in evaluation; they stay merged in training [mode]."""

    def __init__(self, n):
        self.a, self.b, self.merged = weights(n, 2), weights(2, n), None

    def eval(self):
        self.merged = self.a.data @ self.b.data
        return super().eval()

    def forward(self, x):
        return x @ self.a @ self.b if self.merged is None else x @ Tensor(self.merged.astype(x.dtype))


@wrong()
class MergedOnce(Module):
    """Product of two matrices, merged at the first evaluation and not after an update [mode]."""

    def __init__(self, n):
        self.a, self.b, self.merged = weights(n, 2), weights(2, n), None

    def eval(self):
        self.merged = self.a.data @ self.b.data if self.merged is None else self.merged
        return super().eval()

    def forward(self, x):
        return x @ self.a @ self.b if self.training else x @ Tensor(self.merged.astype(x.dtype))


# Random masks


@wrong()
class ScaleForgotten(Module):
    """Dropout; the gradient is not scaled [random]."""

    def __init__(self, n):
        @differentiable
        def drop(x, keep):
            return x * keep / x.dtype.type(0.7), lambda g: (g * keep, None)

        self.drop = drop

    def forward(self, x):
        return self.drop(x, npx.random.uniform(npx.next_key(), x.shape) < 0.7) if self.training else x


@wrong()
class GrowingScale(Module):
    """x times a scale that grows with the number of calls, which the gradient reads in the backward pass [state]."""

    def __init__(self, n):
        self.gain, self.calls = Parameter(np.ones(n)), 0

    def forward(self, x):
        self.calls += self.training

        def scaled(x):
            return x * self.scale(), lambda g: (g * self.scale(),)

        return differentiable(scaled)(x) * self.gain

    def scale(self):
        return (1 + self.calls) / 100


@wrong()
class DrawnAgain(Module):
    """Dropout by np.random; the gradient samples another mask [random]."""

    def __init__(self, n):
        @differentiable
        def drop(x):
            return x * (np.random.rand(*x.shape) < 0.5) * 2, lambda g: (g * (np.random.rand(*x.shape) < 0.5) * 2,)

        self.drop = drop

    def forward(self, x):
        return self.drop(x) if self.training else x


@wrong()
class KeyDrawnAgain(Module):
    """Dropout by a key; the gradient takes the next key [random]."""

    def __init__(self, n):
        @differentiable
        def drop(x):
            def keep():
                return npx.random.uniform(npx.next_key(), x.shape) < 0.5

            return x * keep() * 2, lambda g: (g * keep() * 2,)

        self.drop = drop

    def forward(self, x):
        return self.drop(x) if self.training else x


@wrong()
class LastMask(Module):
    """Dropout; the mask is stored in the layer and overwritten by the next call [random]."""

    def __init__(self, n):
        self.rng = np.random.default_rng(5)

        @differentiable
        def drop(x):
            self.keep = (self.rng.random(x.shape) < 0.5) * x.dtype.type(2)
            return x * self.keep, lambda g: (g * self.keep,)

        self.drop = drop

    def forward(self, x):
        return self.drop(x) if self.training else x


@wrong()
class NoiseIgnored(Module):
    """x times (1 + noise); the gradient omits the noise [random]."""

    def __init__(self, n):
        self.rng = np.random.default_rng(5)

        @differentiable
        def noisy(x, noise):
            return x * (1 + noise), lambda g: (g, None)

        self.noisy = noisy

    def forward(self, x):
        return self.noisy(x, (0.1 * self.rng.normal(size=x.shape)).astype(x.dtype)) if self.training else x


# Later calls, updates


@wrong()
class LastInput(Module):
    """Linear map; x is stored in the layer and overwritten by the next call [state]."""

    def __init__(self, n):
        self.w = weights(n, 4)

        @differentiable
        def linear(x, w):
            self.x = x
            return x @ w, lambda g: (g @ w.T, self.x.T @ g)

        self.linear = linear

    def forward(self, x):
        return self.linear(x, self.w)


@wrong()
class FirstTranspose(Module):
    """Linear map; the gradient uses the transposed weights of the first call [state]."""

    def __init__(self, n):
        self.w, self.wt = weights(n, 4), None

        @differentiable
        def linear(x, w):
            if self.wt is None or self.wt.dtype != w.dtype:
                self.wt = np.ascontiguousarray(w.T)
            wt = self.wt
            return x @ w, lambda g: (g @ wt, x.T @ g)

        self.linear = linear

    def forward(self, x):
        return self.linear(x, self.w)


@wrong()
class WeightsOfBackward(Module):
    """Linear map; the gradient uses the weights after an update [state]."""

    def __init__(self, n):
        self.w = weights(n, 4)

        @differentiable
        def linear(x, w):
            return x @ w, lambda g: (g @ self.w.data.T, x.T @ g)

        self.linear = linear

    def forward(self, x):
        return self.linear(x, self.w)


@wrong()
class ShrinksItsWeights(Module):
    """Linear map that decays its weights in every training call [state]."""

    def __init__(self, n):
        self.w = weights(n, 4)

    def forward(self, x):
        if self.training:
            self.w.data *= 0.999
        return x @ self.w


@wrong((5, 4), fixed=True)
class RenormalisedTable(Module):
    """Linear map whose columns are normalized in place; the gradient ignores this [state]."""

    def __init__(self, n):
        self.w = weights(n, 4)

    def forward(self, x):
        length = np.sqrt((self.w.data**2).sum(axis=0))
        self.w.data /= np.maximum(length, 1)
        return x @ self.w
