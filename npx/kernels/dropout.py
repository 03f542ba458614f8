"""Dropout (Srivastava et al., 2014; paper section 5.4): zero a fraction of the values and scale up the others."""

from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, array_module, ceil_div
from npx.cpu.row_blocks import map_blocks
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.dispatch import Output, kernel
from npx.random import Key, bits16

WORD_VALUES = 1 << 16  # random words are 16 bits; a value is dropped if its word is below rate * WORD_VALUES


class DropoutSpec(NamedTuple):
    """The dropout of one array: each value is dropped with probability `rate`; `key` generates the random numbers."""

    rate: float
    key: Key

    @property
    def threshold(self) -> int:
        """`rate` in units of 1 / 65,536: a value is dropped if its random 16-bit word is below the threshold.

        Raises ValueError if `rate` is not a probability.
        """
        if not 0 <= self.rate <= 1:
            raise ValueError(f"DropoutSpec: expected a rate from 0 to 1; got {self.rate!r}; try 0.1")
        return round(self.rate * WORD_VALUES)

    @property
    def scale(self) -> float:
        """1 / (1 - rounded rate), which preserves the expected value exactly; 0 for rate 1."""
        n_kept = WORD_VALUES - self.threshold
        return WORD_VALUES / n_kept if n_kept else 0.0

    def keep_mask(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a bool array on the host, False where a value is dropped. The array depends only on key and rate."""
        size = int(np.prod(shape))
        keep_mask = np.empty(size, bool)

        def body(i: int, j: int) -> None:
            np.greater_equal(bits16(self.key, i, j), self.threshold, out=keep_mask[i:j])

        map_blocks(body, size, 2)
        return keep_mask.reshape(shape)


SavedDropout = tuple[DropoutSpec | None, Array | None]  # what `dropout` saves: its argument `drop` and the mask


@kernel
def dropout(x: Array, drop: DropoutSpec | None) -> Output:
    """Return x * keep_mask / (1 - rate), or x if `drop` is None. Saved: drop, keep_mask (bool, shape of x)."""
    keep_mask = drop and array_module(x).asarray(drop.keep_mask(x.shape))
    return dropout_grad.reference(x, drop, keep_mask), (drop, keep_mask)


@dropout.define_gradient
def dropout_grad(g: Array, drop: DropoutSpec | None, keep_mask: Array | None) -> Array:
    """Return gx = g * keep_mask / (1 - rate); the forward pass applies the same linear map to x."""
    return g if drop is None else array_module(g).where(keep_mask, g * drop.scale, 0).astype(g.dtype, copy=False)


@dropout_grad.fast("numpy", "float32", "float64")
def dropout_grad_numpy(g: Array, drop: DropoutSpec | None, keep_mask: Array | None) -> Array:
    """Compute one block of the flat array at a time; multiplying by a bool array is much faster than `where`."""
    if drop is None or keep_mask is None:
        return g
    gx = np.empty(g.shape, g.dtype)
    flat_g, flat_keep, flat_gx = (a.reshape(-1) for a in (g, keep_mask, gx))
    scale = drop.scale

    def body(i: int, j: int) -> None:
        np.multiply(flat_g[i:j], scale, out=flat_gx[i:j])
        np.multiply(flat_gx[i:j], flat_keep[i:j], out=flat_gx[i:j])

    map_blocks(body, g.size, g.itemsize)
    return gx


@dropout.fast("numpy", "float32", "float64")
def dropout_numpy(x: Array, drop: DropoutSpec | None) -> Output:
    """Generate the mask and multiply by it."""
    keep_mask = drop and drop.keep_mask(x.shape)
    return dropout_grad_numpy(x, drop, keep_mask), (drop, keep_mask)


def launch_arguments(drop: DropoutSpec | None) -> tuple[Any, ...]:
    """Return the dropout arguments of a CUDA kernel: threshold, scale, seed, step, call, device_counter."""
    threshold, scale, key = (drop.threshold, drop.scale, drop.key) if drop else (0, 1.0, Key(0, 0, 0))
    return np.uint32(threshold), np.float32(scale), *map(np.uint64, key), key.device_counter


@dropout_grad.fast("cupy", "float32", "float16", "bfloat16")
def dropout_grad_cuda(g: Array, drop: DropoutSpec | None) -> Array:
    """Generate the mask within the kernel."""
    g = contiguous(g)
    gx = array_module(g).empty(g.shape, g.dtype)
    blocks = ceil_div(g.size, 16 * BLOCK_THREADS)
    args = g, gx, np.int64(g.size), *launch_arguments(drop)
    launch("dropout.cu", "dropout", blocks, BLOCK_THREADS, args, T=g.dtype)
    return gx


@dropout.fast("cupy", "float32", "float16", "bfloat16")
def dropout_cuda(x: Array, drop: DropoutSpec | None) -> Output:
    """Generate the mask within the kernel and do not save it: the gradient runs the same kernel."""
    return dropout_grad_cuda(x, drop), (drop,)
