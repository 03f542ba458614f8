"""Recurrent layers: LSTM (Hochreiter and Schmidhuber, 1997) and GRU (Cho et al., 2014), in one or both directions.

The input projection of all positions is one matmul, so a step of the recurrence computes only h W and the gates. Each
operation runs all steps, and its gradient needs one matmul for the gradient of W. Arrays are time-major: a step reads
and writes contiguous rows.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import Tensor, differentiable
from autograd import operations as ops
from models.cache import RowArray
from models.init import full, uniform
from models.layers.basic import Linear
from models.module import Module, Parameter
from models.registry import CELLS

Step = Callable[..., None]  # (gates (B, G), w, state, new_state, ...): computes a step in place


class TimeMajor:
    """The layout of a recurrence over x (B, T, ...), or packed (N, ...): arrays (T, B, ...), padded with zeros.

    Args:
        reverse: whether the last position of each sentence comes first; padding stays last.
        lengths: the lengths (B,) of padded sentences.
    """

    def __init__(self, x: npx.Array, packing: npx.Packing | None, lengths: npx.Array | None, reverse: bool) -> None:
        self.leading, self.dtype = x.shape[:-1], x.dtype
        batch, length = packing.shape if packing else x.shape[:2]
        flat = packing.flat_index if packing else npx.arange(batch * length)
        sentence, position = flat // max(1, length), flat % max(1, length)
        if reverse:
            counts = packing.counts if packing else lengths
            last = (length if counts is None else npx.minimum(counts, length)[sentence]) - 1
            position = npx.where(position <= last, last - position, position)
        self.rows, self.length, self.batch = position * batch + sentence, length, batch

    def scatter(self, x: npx.Array) -> npx.Array:
        """Return a copy of x (..., G) as steps (T, B, G), in the accumulation dtype of x."""
        steps = npx.zeros((self.length * self.batch, x.shape[-1]), npx.accumulation_dtype(x.dtype))
        steps[self.rows] = x.reshape(-1, x.shape[-1])
        return steps.reshape(self.length, self.batch, x.shape[-1])

    def gather(self, steps: npx.Array) -> npx.Array:
        """Return a copy of steps (T, B, G) as (..., G), in the layout and dtype of x."""
        rows = steps.reshape(-1, steps.shape[-1])[self.rows]
        return rows.reshape(*self.leading, steps.shape[-1]).astype(self.dtype, copy=False)


def matmul(a: npx.Array, b: npx.Array) -> npx.Array:
    """Return a @ b for matrices, on all cores."""
    y: npx.Array = npx.linear(a, b)[0]
    return y


def sigmoid_in_place(x: npx.Array) -> None:
    """Replace x with its sigmoid, (1 + tanh(x / 2)) / 2: NumPy's tanh takes less time than its exp."""
    x *= 0.5
    npx.tanh(x, out=x)
    x += 1
    x *= 0.5


def columns(x: Any, n: int) -> list[Any]:
    """Return views (..., H) of the n equal parts of the last axis of x (..., n H)."""
    size = x.shape[-1] // n
    return [x[..., k * size : (k + 1) * size] for k in range(n)]


def check_gates(name: str, z: npx.Array, w: npx.Array, n_gates: int) -> None:
    """Raise ValueError unless z (..., n H) and w (H, n H) fit a cell with n gates."""
    if w.ndim != 2 or w.shape[1] != n_gates * len(w) or z.shape[-1:] != w.shape[1:]:
        raise ValueError(f"{name}: expected z (..., {n_gates} H) and w (H, {n_gates} H); got {z.shape} and {w.shape}")


def lstm_step(gates: npx.Array, w: npx.Array, state: npx.Array, new_state: npx.Array) -> None:
    """Compute a step of `lstm`.

    Args:
        gates: (B, 4 H), z on entry; i, f, o, u on return.
        state, new_state: (2, B, H), h and c.
    """
    (h, c), (new_h, new_c), size = state, new_state, len(w)
    gates += matmul(h, w)
    sigmoid_in_place(gates[:, : 3 * size])
    i, f, o, u = columns(gates, 4)
    npx.tanh(u, out=u)
    npx.multiply(f, c, out=new_c)
    new_c += i * u
    npx.multiply(npx.tanh(new_c), o, out=new_h)


@differentiable
def lstm(z, w, packing=None, lengths=None, reverse=False):
    """Return the outputs h_t (..., H) of an LSTM for gate inputs z = x W_x + b (..., 4 H), from h_0 = c_0 = 0.

        i, f, o = sigmoid(z_t + h_(t-1) w) and u = tanh(z_t + h_(t-1) w), each with its own columns
        c_t = f c_(t-1) + i u,  h_t = o tanh(c_t)

    z (B, T, 4 H), or packed (N, 4 H); w (H, 4 H). Other arguments: see `TimeMajor`.
    """
    check_gates("lstm", z, w, 4)
    layout, size = TimeMajor(z, packing, lengths, reverse), len(w)
    gates = layout.scatter(z)
    states = npx.empty((layout.length + 1, 2, layout.batch, size), gates.dtype)
    states[:1] = 0
    wide = w.astype(gates.dtype, copy=False)
    for t in range(layout.length):
        lstm_step(gates[t], wide, states[t], states[t + 1])

    def vjp(g):
        gh, g_gates, transposed = layout.scatter(g), npx.empty(gates.shape, gates.dtype), wide.T.copy()
        gc = npx.zeros(states.shape[2:], gates.dtype)
        for t in reversed(range(layout.length)):
            i, f, o, u = columns(gates[t], 4)
            gi, gf, go, gu = columns(g_gates[t], 4)
            tanh_c = npx.tanh(states[t + 1, 1])
            npx.multiply(gh[t], tanh_c, out=go)
            tanh_c *= tanh_c
            gc += gh[t] * o * (1 - tanh_c)
            npx.multiply(gc, u, out=gi)
            npx.multiply(gc, states[t, 1], out=gf)
            npx.multiply(gc, i, out=gu)
            gu *= 1 - u * u
            sigmoids = gates[t, :, : 3 * size]
            g_gates[t, :, : 3 * size] *= sigmoids * (1 - sigmoids)
            gc *= f
            if t:
                gh[t - 1] += matmul(g_gates[t], transposed)
        gw = matmul(states[:-1, 0].reshape(-1, size).T, g_gates.reshape(-1, 4 * size))
        return layout.gather(g_gates), gw.astype(layout.dtype, copy=False)

    return layout.gather(states[1:, 0]), vjp


def composed_lstm(z: Tensor, w: Tensor) -> Tensor:
    """Compute `lstm` with elementary operations, for z (B, T, 4 H)."""
    h = c = Tensor(npx.zeros((z.shape[0], len(w)), z.dtype))
    outputs = []
    for t in range(z.shape[1]):
        a = z[:, t] + h @ w
        i, f, o = (ops.sigmoid(part) for part in columns(a, 4)[:3])
        c = f * c + i * ops.tanh(columns(a, 4)[3])
        h = o * ops.tanh(c)
        outputs.append(h)
    return ops.stack(*outputs, axis=1)


def gru_step(gates: npx.Array, w: npx.Array, state: npx.Array, new_state: npx.Array, b: npx.Array) -> npx.Array:
    """Compute a step of `gru` and return q (B, H).

    Args:
        gates: (B, 3 H), z on entry; r, s, u on return.
        state, new_state: (1, B, H), h.
    """
    (h,), (new_h,), size = state, new_state, len(w)
    a = matmul(h, w)
    q = a[:, 2 * size :] + b
    gates[:, : 2 * size] += a[:, : 2 * size]
    sigmoid_in_place(gates[:, : 2 * size])
    r, s, u = columns(gates, 3)
    u += r * q
    npx.tanh(u, out=u)
    npx.subtract(h, u, out=new_h)
    new_h *= s
    new_h += u
    return q


@differentiable
def gru(z, w, b, packing=None, lengths=None, reverse=False):
    """Return the outputs h_t (..., H) of a GRU for gate inputs z = x W_x + b_x (..., 3 H), from h_0 = 0.

        r, s = sigmoid(z_t + h_(t-1) w), q = h_(t-1) w + b, u = tanh(z_t + r q), each with its own columns
        h_t = s h_(t-1) + (1 - s) u

    z (B, T, 3 H), or packed (N, 3 H); w (H, 3 H); b (H,). Other arguments: see `TimeMajor`.
    """
    check_gates("gru", z, w, 3)
    layout, size = TimeMajor(z, packing, lengths, reverse), len(w)
    gates = layout.scatter(z)
    states = npx.empty((layout.length + 1, 1, layout.batch, size), gates.dtype)
    states[:1] = 0
    wide = w.astype(gates.dtype, copy=False)
    q = npx.empty((layout.length, layout.batch, size), gates.dtype)
    for t in range(layout.length):
        q[t] = gru_step(gates[t], wide, states[t], states[t + 1], b)

    def vjp(g):
        gh, g_gates, transposed = layout.scatter(g), npx.empty(gates.shape, gates.dtype), wide.T.copy()
        ga = npx.empty(gates.shape, gates.dtype)  # the gradient of h w + (0, 0, b)
        for t in reversed(range(layout.length)):
            r, s, u = columns(gates[t], 3)
            gr, gs, gu = columns(g_gates[t], 3)
            npx.multiply(gh[t], states[t, 0] - u, out=gs)
            npx.multiply(gh[t], (1 - s) * (1 - u * u), out=gu)
            npx.multiply(gu, q[t], out=gr)
            sigmoids = gates[t, :, : 2 * size]
            g_gates[t, :, : 2 * size] *= sigmoids * (1 - sigmoids)
            ga[t] = g_gates[t]
            ga[t, :, 2 * size :] *= r
            if t:
                gh[t - 1] += matmul(ga[t], transposed)
                gh[t - 1] += gh[t] * s
        rows = ga.reshape(-1, 3 * size)
        gw, gb = matmul(states[:-1, 0].reshape(-1, size).T, rows), rows[:, 2 * size :].sum(axis=0)
        return layout.gather(g_gates), gw.astype(layout.dtype, copy=False), gb.astype(layout.dtype, copy=False)

    return layout.gather(states[1:, 0]), vjp


class Recurrent(Module):
    """Base class of LSTM and GRU: one layer in one direction. (..., D) -> (..., H).

    Args:
        d_in: width D of the input.
        d_hidden: width H of the state and of the output.
        reverse: read each sentence from its end to its beginning. Default False.

    `forward(x, packing, lengths)`: x (B, T, D), of which sentence b has `lengths[b]` positions (default: T), or packed
    (N, D). `forward(x, cache=cache)` continues from the states in the cache, without a graph.
    """

    n_gates: int
    n_states: int
    operation: Callable[..., Tensor]
    step: Callable[..., Any]

    def __init__(self, d_in: int, d_hidden: int, reverse: bool = False) -> None:
        if min(d_in, d_hidden) < 1:
            raise ValueError(
                f"{type(self).__name__}: expected widths of at least 1; got {d_in} and {d_hidden}; try 512"
            )
        self.input = Linear(d_in, *[d_hidden] * self.n_gates)
        self.weight = Parameter(uniform(d_hidden, *[d_hidden] * self.n_gates))  # (H, n_gates H)
        self.d_hidden, self.reverse = d_hidden, reverse

    def step_arguments(self) -> tuple[Tensor, ...]:
        """Return the parameters that a step needs besides `weight`."""
        return ()

    def forward(
        self,
        x: Tensor,
        packing: npx.Packing | None = None,
        lengths: npx.Array | None = None,
        cache: RowArray | None = None,
    ) -> Tensor:
        z = self.input(x)
        if cache is None:
            return type(self).operation(z, self.weight, *self.step_arguments(), packing, lengths, self.reverse)
        layout = TimeMajor(z.data, None, None, reverse=False)
        gates, state = layout.scatter(z.data), cache.array.swapaxes(0, 1)
        w, *arguments = (p.data.astype(gates.dtype, copy=False) for p in (self.weight, *self.step_arguments()))
        outputs = []
        for t in range(layout.length):
            new_state = npx.empty(state.shape, state.dtype)
            type(self).step(gates[t], w, state, new_state, *arguments)
            outputs.append(new_state[0])
            state = new_state
        cache.array = state.swapaxes(0, 1)
        return Tensor(layout.gather(npx.stack(outputs)))

    def new_cache(self, rows: int, dtype: Any) -> RowArray:
        """Return the initial states (R, n_states, H) of `rows` sequences. Raises ValueError for a reversed layer."""
        if self.reverse:
            raise ValueError("recurrent: expected a layer that reads forward; got a reversed one; try reverse=False")
        return RowArray(npx.zeros((rows, self.n_states, self.d_hidden), npx.accumulation_dtype(dtype)))


@CELLS.register("lstm")
class LSTM(Recurrent):
    """A long short-term memory (`lstm`), with a forget gate that is initially open. (..., D) -> (..., H)."""

    n_gates, n_states, operation, step = 4, 2, lstm, lstm_step

    def __init__(self, d_in: int, d_hidden: int, reverse: bool = False) -> None:
        super().__init__(d_in, d_hidden, reverse)
        zeros, ones = full(0, d_hidden), full(1, d_hidden)
        self.input.bias = Parameter(npx.concatenate([zeros, ones, zeros, zeros]))


@CELLS.register("gru")
class GRU(Recurrent):
    """A gated recurrent unit (`gru`), with the reset gate after the matmul, as in cuDNN. (..., D) -> (..., H)."""

    n_gates, n_states, operation, step = 3, 1, gru, gru_step

    def __init__(self, d_in: int, d_hidden: int, reverse: bool = False) -> None:
        super().__init__(d_in, d_hidden, reverse)
        self.bias = Parameter(full(0, d_hidden))

    def step_arguments(self) -> tuple[Tensor, ...]:
        return (self.bias,)


class Bidirectional(Module):
    """Two recurrent layers, one in each direction, with concatenated outputs. (..., D) -> (..., 2 H).

    Args:
        cell: LSTM or GRU.
        d_in, d_hidden: widths D and H.
    """

    def __init__(self, cell: type[Recurrent], d_in: int, d_hidden: int) -> None:
        self.ahead, self.back = cell(d_in, d_hidden), cell(d_in, d_hidden, reverse=True)

    def forward(self, x: Tensor, packing: npx.Packing | None = None, lengths: npx.Array | None = None) -> Tensor:
        return ops.concatenate(self.ahead(x, packing, lengths), self.back(x, packing, lengths), axis=-1)
