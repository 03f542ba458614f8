"""Wrong functions of first-time users: wrong in a later call or for some incoming gradients.

Each has one bug, of the kind state (left from other calls) or incoming (the incoming gradient and its memory layout).
"""

import numpy as np

from autograd import differentiable
from tests.user_code.base import wrong

# State left from other calls


@wrong(factory=True)
def workspace_of_inputs():
    """exp; the output for the gradient is stored in a shared workspace [state]."""
    work = {}

    @differentiable
    def exponential(x):
        kept = work.setdefault((x.shape, x.dtype), np.empty_like(x))
        np.exp(x, out=kept)
        return kept.copy(), lambda g: (g * kept,)

    return exponential


@wrong(factory=True)
def output_reused():
    """tanh; the output array is overwritten by the next call of this shape [state]."""
    outputs = {}

    @differentiable
    def tangent(x):
        y = outputs.setdefault((x.shape, x.dtype), np.empty(x.shape, x.dtype))
        np.tanh(x, out=y)
        return y, lambda g: (g * (1 - np.tanh(x) ** 2),)

    return tangent


@wrong(factory=True)
def gradient_buffer_shared():
    """x^2; the gradients of all calls of a shape share a buffer [state]."""
    buffers = {}

    @differentiable
    def square(x):
        def vjp(g):
            gx = buffers.setdefault((x.shape, x.dtype), np.empty(x.shape, x.dtype))
            np.multiply(g, 2 * x, out=gx)
            return (gx,)

        return x * x, vjp

    return square


@wrong(factory=True)
def gradients_add_up():
    """x^3; the gradient buffer accumulates and is never cleared [state]."""
    sums = {}

    @differentiable
    def cube(x):
        def vjp(g):
            total = sums.setdefault((x.shape, x.dtype), np.zeros(x.shape, x.dtype))
            total += 3 * g * x * x
            return (total.copy(),)

        return x * x * x, vjp

    return cube


@wrong(factory=True)
def stack_of_saved():
    """tanh; saved values are on a stack, correct only if the last call runs backward first [state]."""
    saved = []

    @differentiable
    def tangent(x):
        y = np.tanh(x)
        saved.append(y)

        def vjp(g):
            last = saved.pop()
            return (g * (1 - last * last),)

        return y, vjp

    return tangent


@wrong(factory=True)
def count_of_the_first_batch():
    """Columns minus their mean; the gradient divides by the size of the first batch [state]."""
    first = []

    @differentiable
    def centered(x):
        first.append(len(x))
        return x - x.mean(axis=0), lambda g: (g - g.sum(axis=0) / first[0],)

    return centered


@wrong(factory=True)
def mask_of_the_shape():
    """ReLU; one mask is stored per shape [state]."""
    masks = {}

    @differentiable
    def rectified(x):
        masks.setdefault(x.shape, x > 0)
        return np.maximum(x, 0), lambda g: (g * masks[x.shape],)

    return rectified


@wrong(factory=True)
def cache_by_identity():
    """exp cached by the id of the array, even if its values change [state]."""
    cache = {}

    @differentiable
    def exponential(x):
        if id(x) not in cache:
            cache[id(x)] = np.exp(x)
        y = cache[id(x)]
        return y.copy(), lambda g: (g * y,)

    return exponential


@wrong(factory=True)
def momentum_of_default():
    """tanh(x + drift); drift is a mutable default that each call changes [state]."""

    @differentiable
    def drifting(x, drift=np.zeros(())):  # noqa: B008
        y = np.tanh(x + drift.astype(x.dtype))
        drift += 0.01
        return y, lambda g: (g * (1 - y * y),)

    return drifting


@wrong()
@differentiable
def shifts_and_restores(x):
    """Softmax that subtracts the maximum from x in place and adds it again, which rounds [state]."""
    m = x.max(axis=-1, keepdims=True)
    x -= m
    e = np.exp(x)
    x += m
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=-1, keepdims=True)),)


@wrong()
@differentiable
def gradient_over_input(x):
    """x^2; the gradient overwrites x [state]."""
    return x * x, lambda g: (np.multiply(2 * g, x, out=x),)


@wrong()
@differentiable
def gradient_over_output(x):
    """exp; the gradient overwrites the output [state]."""
    y = np.exp(x)
    return y, lambda g: (np.multiply(g, y, out=y),)


@wrong(factory=True)
def written_over_later():
    """2 x as x + x; returns g itself and clears it in the next backward pass [state]."""
    last = []

    @differentiable
    def twice(x):
        def vjp(g):
            if last:
                last.pop().fill(0)
            gx = 2 * g
            last.append(gx)
            return (gx,)

        return x + x, vjp

    return twice


# The incoming gradient and its memory layout


@wrong()
@differentiable
def scales_in_place(x):
    """tanh; the gradient overwrites g if g is writeable [incoming]."""
    y = np.tanh(x)

    def vjp(g):
        slope = 1 - y * y
        if g.flags.writeable:
            g *= slope
            return (g,)
        return (g * slope,)

    return y, vjp


@wrong()
@differentiable
def into_g(x):
    """exp; the gradient always overwrites g [incoming]."""
    y = np.exp(x)
    return y, lambda g: (np.multiply(g, y, out=g),)


@wrong()
@differentiable
def sign_lost(x):
    """tanh with |g| [incoming]."""
    y = np.tanh(x)
    return y, lambda g: (np.abs(g) * (1 - y * y),)


@wrong()
@differentiable
def guided_relu(x):
    """ReLU that passes only positive gradients [incoming]."""
    return np.maximum(x, 0), lambda g: (g * (x > 0) * (g > 0),)


@wrong()
@differentiable
def clips_gradients(x):
    """x^3; the gradient is clipped to 1000 [incoming]."""
    return x * x * x, lambda g: (np.clip(3 * g * x * x, -1000, 1000),)


@wrong()
@differentiable
def clips_norm(x):
    """x^2; the gradient is scaled to a norm of at most 100 [incoming]."""

    def vjp(g):
        gx = 2 * g * x
        return (gx / max(1.0, float(np.sqrt((gx * gx).sum())) / 100),)

    return x * x, vjp


@wrong()
@differentiable
def drops_small(x):
    """tanh; gradients below 1e-5 are set to 0 [incoming]."""
    y = np.tanh(x)
    return y, lambda g: (np.where(np.abs(g) < 1e-5, 0, g * (1 - y * y)).astype(x.dtype),)


@wrong()
@differentiable
def saturates_incoming(x):
    """Sigmoid; g is compressed beyond 1000 [incoming]."""
    y = 0.5 * (1 + np.tanh(x / 2))
    return y, lambda g: (np.clip(g, -1000, 1000) * y * (1 - y),)


@wrong()
@differentiable
def adds_decay(x):
    """x^2; 1e-6 x is added to the gradient for any g [incoming]."""
    return x * x, lambda g: (2 * g * x + 1e-6 * x,)


@wrong()
@differentiable
def skips_zero_sums(x):
    """x^2; a g with sum 0 is treated as zero [incoming]."""
    return x * x, lambda g: (2 * g * x if abs(g.sum()) > 1e-12 else np.zeros_like(x),)


@wrong()
@differentiable
def skips_without_the_first(x):
    """Cumulative sum; the gradient is 0 if the first entry of g is 0 [incoming]."""

    def vjp(g):
        if g.size and g.reshape(-1)[0] == 0:
            return (np.zeros_like(x),)
        return (np.flip(np.cumsum(np.flip(g, -1), axis=-1), -1),)

    return np.cumsum(x, axis=-1), vjp


@wrong((2, 5, 3))
@differentiable
def mean_reads_one(x):
    """Overall mean, repeated per column; the gradient reads one entry of g [incoming]."""
    y = np.broadcast_to(x.mean(axis=0, keepdims=True), x.shape).copy()
    return y, lambda g: (np.broadcast_to(g[:1], x.shape).copy(),)


@wrong()
@differentiable
def bytes_of_g(x):
    """cos; the gradient reads the buffer of g, correct for some memory layouts only [incoming]."""
    slope = -np.sin(x).reshape(-1)
    return np.cos(x), lambda g: ((np.frombuffer(g, g.dtype) * slope).reshape(x.shape),)


@wrong()
@differentiable
def as_it_lies(x):
    """sin; the gradient is multiplied in the memory order of g [incoming]."""
    slope = np.cos(x).reshape(-1)
    return np.sin(x), lambda g: ((g.ravel(order="K") * slope).reshape(x.shape),)


@wrong()
@differentiable
def input_as_it_lies(x):
    """Cumulative sum of all entries in the memory order of x [incoming]."""

    def vjp(g):
        return (np.flip(np.cumsum(np.flip(g.reshape(-1)))).reshape(x.shape),)

    return np.cumsum(x.ravel(order="K")).reshape(x.shape), vjp


@wrong()
@differentiable
def reshapes_g(x):
    """exp; g is flattened in place and not restored [incoming]."""
    y = np.exp(x)

    def vjp(g):
        if g.flags.c_contiguous and g.flags.owndata:
            g.shape = (-1,)
        return ((g.reshape(-1) * y.reshape(-1)).reshape(x.shape),)

    return y, vjp


@wrong()
@differentiable
def ones_taken_for_a_sum(x):
    """tanh; an incoming gradient of ones is passed through [incoming]."""
    y = np.tanh(x)
    return y, lambda g: (g if (g == 1).all() else g * (1 - y * y),)
