"""The recurrences of LSTM (Hochreiter and Schmidhuber, 1997) and GRU (Cho et al., 2014), all steps in one call.

One matmul before the kernel yields the gate inputs z = x W_x + b of all steps, so a step computes only h w and the
gates. One matmul after the last step yields the gradient of w. Arrays are time-major, so that the rows of a step are
contiguous.
"""

from typing import Any

import numpy as np

from npx.backend import Array, array_module, ceil_div
from npx.cpu.row_blocks import map_blocks, matmul
from npx.cuda import blas
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.dispatch import Output, kernel
from npx.kernels.layer_norm import column_sums


def split_gates(x: Any, n: int) -> list[Any]:
    """Return views (..., H) of the n equal parts of the last axis of x (..., n H)."""
    size = x.shape[-1] // n
    return [x[..., k * size : (k + 1) * size] for k in range(n)]


@kernel
def lstm(z: Array, w: Array, state: Array) -> Output:
    """Return the outputs h_t of T steps of an LSTM.

        i, f, o = sigmoid(z_t + h_(t-1) w) and u = tanh(z_t + h_(t-1) w), each from its own columns of z and w
        c_t = f c_(t-1) + i u,  h_t = o tanh(c_t)

    z (T, B, 4 H); w (H, 4 H); state (2, B, H): h and c before the first step, overwritten with those after the last; y
    (T, B, H). Saved: w, the gates i, f, o, u (T, B, 4 H), and all h and c, the initial ones first (T + 1, B, H).
    """
    xp = array_module(z)
    gates = xp.empty(z.shape, z.dtype)
    h, c = state[0].copy(), state[1].copy()
    hs, cs = [h], [c]
    for t in range(len(z)):
        a = z[t] + h @ w
        gates[t] = xp.tanh(a)
        gates[t, :, : 3 * len(w)] = _sigmoid(a[:, : 3 * len(w)])
        i, f, o, u = split_gates(gates[t], 4)
        c = f * c + i * u
        h = o * xp.tanh(c)
        hs.append(h)
        cs.append(c)
    state[0], state[1] = h, c
    return xp.stack(hs)[1:], (w, gates, xp.stack(hs), xp.stack(cs))


@lstm.define_gradient
def lstm_grad(g: Array, w: Array, gates: Array, hs: Array, cs: Array) -> tuple[Array, Array]:
    """Return the gradients (gz, gw) of `lstm`; the initial state is a constant.

    The gradient of h_t is g_t + gz_(t+1) w^T. The gradient of c_t is the sum of two terms: one through h_t, and
    f_(t+1) gc_(t+1). The derivatives are sigmoid' = s (1 - s) and tanh' = 1 - u^2.
    """
    xp = array_module(g)
    gz = xp.empty_like(gates)
    gh = gc = 0
    for t in reversed(range(len(g))):
        i, f, o, u = split_gates(gates[t], 4)
        tanh_c = xp.tanh(cs[t + 1])
        gh = gh + g[t]
        gc = gc + gh * o * (1 - tanh_c**2)
        gi = gc * u * i * (1 - i)
        gf = gc * cs[t] * f * (1 - f)
        go = gh * tanh_c * o * (1 - o)
        gu = gc * i * (1 - u**2)
        gz[t] = xp.concatenate((gi, gf, go, gu), axis=-1)
        gh = gz[t] @ w.T
        gc = gc * f
    return gz, _weight_gradient(hs, gz)


@kernel
def gru(z: Array, w: Array, b: Array, state: Array) -> Output:
    """Return the outputs h_t of T steps of a GRU.

        r, s = sigmoid(z_t + h_(t-1) w), q = h_(t-1) w + b, u = tanh(z_t + r q), each from its own columns
        h_t = s h_(t-1) + (1 - s) u

    z (T, B, 3 H); w (H, 3 H); b (H,); state (1, B, H): h before the first step, overwritten with h after the last; y
    (T, B, H). Saved: w, the gates r, s, u (T, B, 3 H), q (T, B, H), and all h, the initial one first (T + 1, B, H).
    """
    xp = array_module(z)
    size = len(w)
    gates = xp.empty(z.shape, z.dtype)
    q = xp.empty((*z.shape[:2], size), z.dtype)
    h = state[0].copy()
    hs = [h]
    for t in range(len(z)):
        a = h @ w
        gates[t, :, : 2 * size] = _sigmoid(z[t, :, : 2 * size] + a[:, : 2 * size])
        q[t] = a[:, 2 * size :] + b
        r, s, u = split_gates(gates[t], 3)
        u[...] = xp.tanh(z[t, :, 2 * size :] + r * q[t])
        h = s * h + (1 - s) * u
        hs.append(h)
    state[0] = h
    return xp.stack(hs)[1:], (w, gates, q, xp.stack(hs))


@gru.define_gradient
def gru_grad(g: Array, w: Array, gates: Array, q: Array, hs: Array) -> tuple[Array, Array, Array]:
    """Return the gradients (gz, gw, gb) of `gru`; the initial state is a constant.

    Let ga be the gradient of h_(t-1) w + (0, 0, b); it is gz with the columns of q multiplied by r. Then the gradient
    of h_(t-1) is g_(t-1) + s gh_t + ga_t w^T.
    """
    xp = array_module(g)
    gz, ga = xp.empty_like(gates), xp.empty_like(gates)
    gh = 0
    for t in reversed(range(len(g))):
        r, s, u = split_gates(gates[t], 3)
        gh = gh + g[t]
        gu = gh * (1 - s) * (1 - u**2)
        gr = gu * q[t] * r * (1 - r)
        gs = gh * (hs[t] - u) * s * (1 - s)
        gz[t] = xp.concatenate((gr, gs, gu), axis=-1)
        ga[t] = xp.concatenate((gr, gs, gu * r), axis=-1)
        gh = gh * s + ga[t] @ w.T
    return gz, _weight_gradient(hs, ga), split_gates(ga, 3)[2].sum(axis=(0, 1))


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e^-x), computed as (1 + tanh(x / 2)) / 2, which cannot overflow."""
    return (1 + array_module(x).tanh(x / 2)) / 2


def _weight_gradient(hs: Array, ga: Array) -> Array:
    """Return the sum over steps of h_(t-1)^T ga_t."""
    rows = ga.shape[0] * ga.shape[1]
    return hs[:-1].reshape(rows, hs.shape[-1]).T @ ga.reshape(rows, ga.shape[-1])


def _sigmoid_in_place(x: np.ndarray) -> None:
    x *= 0.5
    np.tanh(x, out=x)
    x += 1
    x *= 0.5


@lstm.fast("numpy", "float32", "float64")
def lstm_numpy(z: np.ndarray, w: np.ndarray, state: np.ndarray) -> Output:
    """Write each matmul into the array of gates, and apply the gates in place to one block of rows at a time."""
    n, batch, _ = z.shape
    size = len(w)
    gates = np.empty(z.shape, z.dtype)
    hs, cs = (np.empty((n + 1, batch, size), z.dtype) for _ in range(2))
    hs[0], cs[0] = state[0], state[1]
    for t in range(n):
        matmul(hs[t], w, out=gates[t])

        def body(start: int, stop: int, t: int = t) -> None:
            a, c, h = gates[t, start:stop], cs[t + 1, start:stop], hs[t + 1, start:stop]
            a += z[t, start:stop]
            _sigmoid_in_place(a[:, : 3 * size])
            i, f, o, u = split_gates(a, 4)
            np.tanh(u, out=u)
            np.multiply(f, cs[t, start:stop], out=c)
            np.multiply(i, u, out=h)
            c += h
            np.tanh(c, out=h)
            h *= o

        map_blocks(body, batch, gates[0, :1].nbytes)
    state[0], state[1] = hs[-1], cs[-1]
    return hs[1:], (w, gates, hs, cs)


@lstm_grad.fast("numpy", "float32", "float64")
def lstm_grad_numpy(
    g: np.ndarray, w: np.ndarray, gates: np.ndarray, hs: np.ndarray, cs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Overwrite the gates with their gradient, one block of rows at a time."""
    size = len(w)
    w_transposed = w.T.copy()
    gh, gc = (np.zeros(g.shape[1:], g.dtype) for _ in range(2))
    for t in reversed(range(len(g))):

        def body(start: int, stop: int, t: int = t) -> None:
            gates_t, gct, ght = gates[t, start:stop], gc[start:stop], gh[start:stop]
            ght += g[t, start:stop]
            i, f, o, u = split_gates(gates_t, 4)
            tanh_c = np.tanh(cs[t + 1, start:stop])
            gz = gates_t * gates_t
            np.subtract(gates_t[:, : 3 * size], gz[:, : 3 * size], out=gz[:, : 3 * size])
            gi, gf, go, gu = split_gates(gz, 4)  # at first i (1 - i), f (1 - f), o (1 - o), u^2
            go *= ght
            go *= tanh_c
            tanh_c *= tanh_c
            np.subtract(1, tanh_c, out=tanh_c)
            tanh_c *= ght
            tanh_c *= o
            gct += tanh_c
            gi *= u
            gi *= gct
            gf *= cs[t, start:stop]
            gf *= gct
            np.subtract(1, gu, out=gu)
            gu *= i
            gu *= gct
            gct *= f
            gates_t[...] = gz

        map_blocks(body, g.shape[1], gates[0, :1].nbytes)
        if t:
            matmul(gates[t], w_transposed, out=gh)
    gw = np.empty(w.shape, w.dtype)
    matmul(hs[:-1].reshape(-1, size).T, gates.reshape(-1, 4 * size), out=gw)
    return gates, gw


@gru.fast("numpy", "float32", "float64")
def gru_numpy(z: np.ndarray, w: np.ndarray, b: np.ndarray, state: np.ndarray) -> Output:
    """Write each matmul into the array of gates, and apply the gates in place to one block of rows at a time."""
    n, batch, _ = z.shape
    size = len(w)
    gates = np.empty(z.shape, z.dtype)
    q = np.empty((n, batch, size), z.dtype)
    hs = np.empty((n + 1, batch, size), z.dtype)
    hs[0] = state[0]
    for t in range(n):
        matmul(hs[t], w, out=gates[t])

        def body(start: int, stop: int, t: int = t) -> None:
            a, h, q_t = gates[t, start:stop], hs[t + 1, start:stop], q[t, start:stop]
            np.add(a[:, 2 * size :], b, out=q_t)
            a[:, 2 * size :] = 0
            a += z[t, start:stop]
            _sigmoid_in_place(a[:, : 2 * size])
            r, s, u = split_gates(a, 3)
            np.multiply(r, q_t, out=h)
            u += h
            np.tanh(u, out=u)
            np.subtract(hs[t, start:stop], u, out=h)
            h *= s
            h += u

        map_blocks(body, batch, gates[0, :1].nbytes)
    state[0] = hs[-1]
    return hs[1:], (w, gates, q, hs)


@gru_grad.fast("numpy", "float32", "float64")
def gru_grad_numpy(
    g: np.ndarray, w: np.ndarray, gates: np.ndarray, q: np.ndarray, hs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Overwrite the gates with their gradient, one block of rows at a time."""
    size = len(w)
    w_transposed = w.T.copy()
    ga = np.empty(gates.shape, g.dtype)
    gh = np.zeros(g.shape[1:], g.dtype)
    gh_through_w = np.empty(g.shape[1:], g.dtype)
    for t in reversed(range(len(g))):

        def body(start: int, stop: int, t: int = t) -> None:
            gates_t, ga_t, ght = gates[t, start:stop], ga[t, start:stop], gh[start:stop]
            ght += g[t, start:stop]
            r, s, u = split_gates(gates_t, 3)
            gr, gs, gu = split_gates(ga_t, 3)
            np.subtract(hs[t, start:stop], u, out=gs)
            gs *= ght
            u *= u
            np.subtract(1, u, out=u)
            u *= ght
            ght *= s
            np.subtract(1, s, out=gu)
            u *= gu
            np.multiply(u, q[t, start:stop], out=gr)
            np.multiply(u, r, out=gu)
            sigmoids = gates_t[:, : 2 * size]
            ga_t[:, : 2 * size] *= sigmoids - sigmoids * sigmoids
            sigmoids[...] = ga_t[:, : 2 * size]

        map_blocks(body, g.shape[1], gates[0, :1].nbytes)
        if t:
            np.add(gh, matmul(ga[t], w_transposed, out=gh_through_w), out=gh)
    rows = ga.reshape(-1, 3 * size)
    return gates, matmul(hs[:-1].reshape(-1, size).T, rows), column_sums(rows[:, 2 * size :])


# The kernels of recurrent.cu compute one step each. The forward kernels replace h w by the gates in their array `a`,
# and the backward kernels replace the gates by gz. The host runs the matmuls between the steps.


def _launch_step(kernel: str, batch: int, size: int, *arrays: Array) -> None:
    """Launch one thread for each of the B H elements of a state."""
    n = batch * size
    launch(
        "recurrent.cu",
        kernel,
        ceil_div(n, BLOCK_THREADS),
        BLOCK_THREADS,
        (*arrays, np.int64(n), np.int32(size)),
        T=np.dtype("float32"),
    )


@lstm.fast("cupy", "float32")
def lstm_cuda(z: Array, w: Array, state: Array) -> Output:
    """Alternate between matmuls and launches, one of each per step."""
    xp = array_module(z)
    n, batch, _ = z.shape
    size = len(w)
    z = contiguous(z)
    gates = xp.empty(z.shape, z.dtype)
    hs, cs = (xp.empty((n + 1, batch, size), z.dtype) for _ in range(2))
    hs[0], cs[0] = state[0], state[1]
    for t in range(n):
        blas.matmul(hs[t], w, gates[t])
        _launch_step("lstm", batch, size, z[t], cs[t], gates[t], hs[t + 1], cs[t + 1])
    state[0], state[1] = hs[-1], cs[-1]
    return hs[1:], (w, gates, hs, cs)


@lstm_grad.fast("cupy", "float32")
def lstm_grad_cuda(g: Array, w: Array, gates: Array, hs: Array, cs: Array) -> tuple[Array, Array]:
    """Alternate between launches and matmuls, one of each per step, from the last step to the first."""
    xp = array_module(g)
    n, batch, size = g.shape
    g = contiguous(g)
    gh, gc = (xp.zeros(g.shape[1:], g.dtype) for _ in range(2))
    for t in reversed(range(n)):
        _launch_step("lstm_grad", batch, size, g[t], gh, cs[t], cs[t + 1], gates[t], gc)
        if t:
            blas.matmul(gates[t], w.T, gh)
    return gates, blas.matmul(hs[:-1].reshape(n * batch, size).T, gates.reshape(n * batch, 4 * size))


@gru.fast("cupy", "float32")
def gru_cuda(z: Array, w: Array, b: Array, state: Array) -> Output:
    """Alternate between matmuls and launches, one of each per step."""
    xp = array_module(z)
    n, batch, _ = z.shape
    size = len(w)
    z, b = contiguous(z), contiguous(b)
    gates = xp.empty(z.shape, z.dtype)
    q = xp.empty((n, batch, size), z.dtype)
    hs = xp.empty((n + 1, batch, size), z.dtype)
    hs[0] = state[0]
    for t in range(n):
        blas.matmul(hs[t], w, gates[t])
        _launch_step("gru", batch, size, z[t], b, hs[t], gates[t], q[t], hs[t + 1])
    state[0] = hs[-1]
    return hs[1:], (w, gates, q, hs)


@gru_grad.fast("cupy", "float32")
def gru_grad_cuda(g: Array, w: Array, gates: Array, q: Array, hs: Array) -> tuple[Array, Array, Array]:
    """Alternate between launches and matmuls, one of each per step, from the last step to the first."""
    xp = array_module(g)
    n, batch, size = g.shape
    g = contiguous(g)
    ga = xp.empty(gates.shape, g.dtype)
    gh = xp.zeros(g.shape[1:], g.dtype)
    for t in reversed(range(n)):
        _launch_step("gru_grad", batch, size, g[t], hs[t], q[t], gates[t], ga[t], gh)
        if t:
            blas.matmul(ga[t], w.T, gh, add=True)
    rows = ga.reshape(n * batch, 3 * size)
    return gates, blas.matmul(hs[:-1].reshape(n * batch, size).T, rows), rows[:, 2 * size :].sum(axis=0)
