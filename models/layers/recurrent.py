"""Recurrent layers: LSTM (Hochreiter and Schmidhuber, 1997) and GRU (Cho et al., 2014), in one or both directions.

The input projection of all positions is one matmul. The kernels of npx/kernels/recurrent.py run all steps on time-major
arrays.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import Tensor, differentiable
from autograd import operations as ops
from models.cache import RowArray
from models.init import constant, uniform
from models.layers.basic import Linear
from models.module import Module, Parameter
from models.registry import CELLS
from npx.kernels.recurrent import split_gates


class TimeMajor:
    """Converts x (B, T, ...), or packed x (R, ...), to time-major steps (T, B, ...), padded with zeros, and back.

    Args:
        reverse: whether to reverse the order of the positions of each sentence; padding stays last.
        lengths: the lengths (B,) of padded sentences.
    """

    def __init__(self, x: npx.Array, packing: npx.Packing | None, lengths: npx.Array | None, reverse: bool) -> None:
        self.leading = x.shape[:-1]
        self.dtype = x.dtype
        batch, length = packing.padded_shape if packing else x.shape[:2]
        flat = packing.flat_index if packing else npx.arange(batch * length)
        sentence, position = flat // max(1, length), flat % max(1, length)
        if reverse:
            lengths = packing.lengths if packing else lengths
            last = (length if lengths is None else npx.minimum(lengths, length)[sentence]) - 1
            position = npx.where(position <= last, last - position, position)
        self.batch, self.length = batch, length
        self.rows = position * batch + sentence
        # For sentences of equal length that are read forward, the conversion is a transposition and needs no indices.
        self.is_transposed = not reverse and (packing is None or packing.is_rectangular)

    def to_steps(self, x: npx.Array) -> npx.Array:
        """Convert x (..., G) to steps (T, B, G) in the accumulation dtype of x. The result may share memory with x."""
        dtype = npx.accumulation_dtype(x.dtype)
        if self.is_transposed:
            return x.reshape(self.batch, self.length, x.shape[-1]).swapaxes(0, 1).astype(dtype, copy=False)
        steps = npx.zeros((self.length * self.batch, x.shape[-1]), dtype)
        steps[self.rows] = x.reshape(-1, x.shape[-1])
        return steps.reshape(self.length, self.batch, x.shape[-1])

    def to_steps_with_parameters(self, z: npx.Array, *parameters: npx.Array) -> list[npx.Array]:
        """Return z converted to steps, and the parameters in the dtype of these steps."""
        steps = self.to_steps(z)
        return [steps, *(p.astype(steps.dtype, copy=False) for p in parameters)]

    def from_steps(self, steps: npx.Array) -> npx.Array:
        """Convert steps (T, B, G) to the layout and dtype of x: (..., G). The result may share memory with `steps`."""
        rows = steps.swapaxes(0, 1) if self.is_transposed else steps.reshape(-1, steps.shape[-1])[self.rows]
        return rows.reshape(*self.leading, steps.shape[-1]).astype(self.dtype, copy=False)


def recurrence(
    kernel: npx.Kernel, gradient: npx.GradientKernel, layout: TimeMajor, n_states: int, *arrays: npx.Array
) -> Any:
    """Return the outputs of a recurrence that starts from zeros, and its vjp.

    Args:
        arrays: the gate inputs z, padded or packed; the recurrent weights w; other parameters.
    """
    steps, *parameters = layout.to_steps_with_parameters(*arrays)
    y, saved = kernel(steps, *parameters, npx.zeros((n_states, layout.batch, len(parameters[0])), steps.dtype))

    def vjp(g: npx.Array) -> tuple[npx.Array, ...]:
        gz, *others = gradient(layout.to_steps(g), saved)
        return layout.from_steps(gz), *(part.astype(layout.dtype, copy=False) for part in others)

    return layout.from_steps(y), vjp


def check_gates(name: str, z: npx.Array, w: npx.Array, n_gates: int) -> None:
    """Raise ValueError unless floating z (..., n H) and w (H, n H) fit a cell with n gates."""
    npx.check_floating(name, z)
    if w.ndim != 2 or w.shape[1] != n_gates * len(w) or z.shape[-1:] != w.shape[1:]:
        raise ValueError(f"{name}: expected z (..., {n_gates} H) and w (H, {n_gates} H); got {z.shape} and {w.shape}")


@differentiable
def lstm(z, w, packing=None, lengths=None, reverse=False):
    """Return the outputs h_t (..., H) of an LSTM for gate inputs z = x W_x + b (..., 4 H), from h_0 = c_0 = 0.

    The formula is in npx/kernels/recurrent.py. z (B, T, 4 H), or packed (R, 4 H); w (H, 4 H). Other arguments: see
    `TimeMajor`.
    """
    check_gates("lstm", z, w, 4)
    return recurrence(npx.lstm, npx.lstm_grad, TimeMajor(z, packing, lengths, reverse), 2, z, w)


def composed_lstm(z: Tensor, w: Tensor) -> Tensor:
    """Compute `lstm` with elementary operations, for z (B, T, 4 H)."""
    h = c = Tensor(npx.zeros((z.shape[0], len(w)), z.dtype))
    outputs = []
    for t in range(z.shape[1]):
        a = z[:, t] + h @ w
        i, f, o = (ops.sigmoid(part) for part in split_gates(a, 4)[:3])
        c = f * c + i * ops.tanh(split_gates(a, 4)[3])
        h = o * ops.tanh(c)
        outputs.append(h)
    return ops.stack(*outputs, axis=1)


@differentiable
def gru(z, w, b, packing=None, lengths=None, reverse=False):
    """Return the outputs h_t (..., H) of a GRU for gate inputs z = x W_x + b_x (..., 3 H), from h_0 = 0.

    The formula is in npx/kernels/recurrent.py. z (B, T, 3 H), or packed (R, 3 H); w (H, 3 H); b (H,). Other arguments:
    see `TimeMajor`.
    """
    check_gates("gru", z, w, 3)
    return recurrence(npx.gru, npx.gru_grad, TimeMajor(z, packing, lengths, reverse), 1, z, w, b)


class Recurrent(Module):
    """Base class of LSTM and GRU: one layer in one direction.

    Args:
        d_in: width D of the input.
        d_hidden: width H of the state and of the output.
        reverse: whether to read each sentence from its end to its beginning. Default False.
    """

    n_gates: int
    n_states: int
    operation: Callable[..., Tensor]
    kernel: npx.Kernel

    def __init__(self, d_in: int, d_hidden: int, reverse: bool = False) -> None:
        if min(d_in, d_hidden) < 1:
            raise ValueError(
                f"{type(self).__name__}: expected widths of at least 1; got {d_in} and {d_hidden}; try 512"
            )
        self.input = Linear(d_in, (d_hidden,) * self.n_gates)
        self.weight = Parameter(uniform(d_hidden, *[d_hidden] * self.n_gates))  # (H, n_gates H)
        self.d_hidden = d_hidden
        self.reverse = reverse

    def extra_parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters that a step needs in addition to `weight`."""
        return ()

    def forward(
        self,
        x: Tensor,
        packing: npx.Packing | None = None,
        lengths: npx.Array | None = None,
        cache: RowArray | None = None,
    ) -> Tensor:
        """Return the outputs (B, T, H) for x (B, T, D), or (R, H) for packed x (R, D).

        Args:
            packing: the packing of x, if x is packed.
            lengths: the number of positions (B,) of each sentence of padded x. Default: T for each.
            cache: the states from which to continue; they are updated. With a cache, no graph is recorded.
        """
        z = self.input(x)
        if cache is None:
            return type(self).operation(z, self.weight, *self.extra_parameters(), packing, lengths, self.reverse)
        layout = TimeMajor(z.data, None, None, reverse=False)
        state = cache.array.swapaxes(0, 1).copy()
        arrays = layout.to_steps_with_parameters(z.data, self.weight.data, *(p.data for p in self.extra_parameters()))
        y, _ = type(self).kernel(*arrays, state)
        cache.array = state.swapaxes(0, 1)
        return Tensor(layout.from_steps(y))

    def new_cache(self, n_rows: int, dtype: Any) -> RowArray:
        """Return the initial states (R, n_states, H) of `n_rows` sequences. Raises ValueError for a reversed layer."""
        if self.reverse:
            raise ValueError("recurrent: expected a layer that reads forward; got a reversed layer; try reverse=False")
        return RowArray(npx.zeros((n_rows, self.n_states, self.d_hidden), npx.accumulation_dtype(dtype)))


@CELLS.register("lstm")
class LSTM(Recurrent):
    """A long short-term memory (`lstm`), with a forget gate that is initially open."""

    n_gates = 4
    n_states = 2
    operation = lstm
    kernel = npx.lstm

    def __init__(self, d_in: int, d_hidden: int, reverse: bool = False) -> None:
        super().__init__(d_in, d_hidden, reverse)
        zeros, ones = constant((d_hidden,), 0), constant((d_hidden,), 1)
        self.input.bias = Parameter(npx.concatenate([zeros, ones, zeros, zeros]))


@CELLS.register("gru")
class GRU(Recurrent):
    """A gated recurrent unit (`gru`); its reset gate acts after the matmul, as in cuDNN."""

    n_gates = 3
    n_states = 1
    operation = gru
    kernel = npx.gru

    def __init__(self, d_in: int, d_hidden: int, reverse: bool = False) -> None:
        super().__init__(d_in, d_hidden, reverse)
        self.bias = Parameter(constant((d_hidden,), 0))

    def extra_parameters(self) -> tuple[Tensor, ...]:
        return (self.bias,)


class Bidirectional(Module):
    """Two recurrent layers, one in each direction.

    Args:
        cell: LSTM or GRU.
        d_in, d_hidden: widths D and H.
    """

    def __init__(self, cell: type[Recurrent], d_in: int, d_hidden: int) -> None:
        self.ahead = cell(d_in, d_hidden)
        self.back = cell(d_in, d_hidden, reverse=True)

    def forward(self, x: Tensor, packing: npx.Packing | None = None, lengths: npx.Array | None = None) -> Tensor:
        """Return the concatenated outputs (..., 2 H) of both layers for x (..., D); see `Recurrent.forward`."""
        return ops.concatenate(self.ahead(x, packing, lengths), self.back(x, packing, lengths), axis=-1)
