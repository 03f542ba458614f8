"""Wrong layers, as newcomers write them, for another call than the one they were tried with. One bug each, of:

mode (training, evaluation, running statistics), random (masks), state (other calls, updates).
"""

import numpy as np

import npx
from autograd import Tensor, differentiable
from models import Module, Parameter
from tests.user_code.base import weights, wrong

# Training and evaluation


@wrong()
class ConstantStatistics(Module):
    """Batch norm whose mean and variance are constants to the gradient [mode]."""

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
    """Batch norm whose gradient takes the running statistics [mode]."""

    def forward(self, x):
        now, running = self.statistics(x)
        return normed(x, *(now if self.training else running), *running, self.training)


@wrong()
class EvaluatedLikeTraining(Norm):
    """Batch norm, in evaluation with the gradient of training [mode]."""

    def forward(self, x):
        now, running = self.statistics(x)
        used = now if self.training else running
        return normed(x, *used, *used, True)


@wrong()
class TrainedLikeEvaluation(Norm):
    """Batch norm, in training with the gradient of evaluation [mode]."""

    def forward(self, x):
        now, running = self.statistics(x)
        used = now if self.training else running
        return normed(x, *used, *used, False)


@wrong()
class UpdatedFirst(Module):
    """x less a running mean that this batch has already moved, which the gradient takes for constant [mode]."""

    def __init__(self, n):
        self.mean = np.zeros(n)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.data.mean(axis=0)
        return x - self.mean.astype(x.dtype)


@wrong()
class ModeOfBackward(Module):
    """A leaky ReLU in training, ReLU in evaluation; the gradient asks for the mode when it is too late [mode]."""

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
    """A product of two matrices, merged for evaluation; back in training they are still merged [mode]."""

    def __init__(self, n):
        self.a, self.b, self.merged = weights(n, 2), weights(2, n), None

    def eval(self):
        self.merged = self.a.data @ self.b.data
        return super().eval()

    def forward(self, x):
        return x @ self.a @ self.b if self.merged is None else x @ Tensor(self.merged.astype(x.dtype))


@wrong()
class MergedOnce(Module):
    """A product of two matrices, merged at the first evaluation and not at the next, after an update [mode]."""

    def __init__(self, n):
        self.a, self.b, self.merged = weights(n, 2), weights(2, n), None

    def eval(self):
        self.merged = self.a.data @ self.b.data if self.merged is None else self.merged
        return super().eval()

    def forward(self, x):
        return x @ self.a @ self.b if self.training else x @ Tensor(self.merged.astype(x.dtype))


# Masks of random numbers


@wrong()
class ScaleForgotten(Module):
    """Dropout whose gradient forgets to scale up [random]."""

    def __init__(self, n):
        @differentiable
        def drop(x, keep):
            return x * keep / x.dtype.type(0.7), lambda g: (g * keep, None)

        self.drop = drop

    def forward(self, x):
        return self.drop(x, npx.random.uniform(npx.next_key(), x.shape) < 0.7) if self.training else x


@wrong()
class DrawnAgain(Module):
    """Dropout by np.random, drawn once more for the gradient [random]."""

    def __init__(self, n):
        @differentiable
        def drop(x):
            return x * (np.random.rand(*x.shape) < 0.5) * 2, lambda g: (g * (np.random.rand(*x.shape) < 0.5) * 2,)

        self.drop = drop

    def forward(self, x):
        return self.drop(x) if self.training else x


@wrong()
class KeyDrawnAgain(Module):
    """Dropout by a key, which the gradient draws anew [random]."""

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
    """Dropout whose mask lies in the layer, where the next call puts its own [random]."""

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
    """x times 1 + noise, the gradient without the noise [random]."""

    def __init__(self, n):
        self.rng = np.random.default_rng(5)

        @differentiable
        def noisy(x, noise):
            return x * (1 + noise), lambda g: (g, None)

        self.noisy = noisy

    def forward(self, x):
        return self.noisy(x, (0.1 * self.rng.normal(size=x.shape)).astype(x.dtype)) if self.training else x


# Other calls, updates


@wrong()
class LastInput(Module):
    """A linear map that remembers its x for the gradient, until the next call [state]."""

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
    """A linear map that transposes its weights once, at the first call, for the gradient [state]."""

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
    """A linear map whose gradient takes the weights as they are then, after an update [state]."""

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
    """A linear map that decays its weights in every call in training [state]."""

    def __init__(self, n):
        self.w = weights(n, 4)

    def forward(self, x):
        if self.training:
            self.w.data *= 0.999
        return x @ self.w


@wrong((5, 4), fixed=True)
class RenormalisedTable(Module):
    """A map whose columns are cut to length 1 in place, which the gradient does not know [state]."""

    def __init__(self, n):
        self.w = weights(n, 4)

    def forward(self, x):
        length = np.sqrt((self.w.data**2).sum(axis=0))
        self.w.data /= np.maximum(length, 1)
        return x @ self.w
