"""Dropout (Srivastava et al., 2014; paper section 5.4): zero a share of the values, scale up the others."""

from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, array_module
from npx.cpu.row_blocks import map_blocks
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.random import Key, bits16
from npx.registry import Output, kernel

WORD = 1 << 16  # a value is dropped where its random 16-bit word is below rate * WORD


class Drop(NamedTuple):
    """What dropout drops: a share `rate` of the values, drawn by `key`."""

    rate: float
    key: Key

    @property
    def threshold(self) -> int:
        """The number of 16-bit words that mean "drop": `rate` to the nearest 1 / 65,536. ValueError for no share."""
        if not 0 <= self.rate <= 1:
            raise ValueError(f"Drop: expected a rate from 0 to 1; got {self.rate!r}; try 0.1")
        return round(self.rate * WORD)

    @property
    def scale(self) -> float:
        """1 / (share that is really kept), so that the expected value stays exactly what it was."""
        kept = WORD - self.threshold
        return WORD / kept if kept else 0.0

    def keep(self, shape: tuple[int, ...]) -> np.ndarray:
        """bool array on the host, False where dropped: a pure function of key, rate and position."""
        size = int(np.prod(shape))
        keep = np.empty(size, bool)

        def body(i: int, j: int) -> None:
            np.greater_equal(bits16(self.key, i, j), self.threshold, out=keep[i:j])

        map_blocks(body, size, 2)
        return keep.reshape(shape)


Dropped = tuple[Drop | None, Array | None]  # what `dropout` saves: how it drops, and the values it keeps


@kernel
def dropout(x: Array, drop: Drop | None) -> Output:
    """y = x * keep / (1 - rate); None drops nothing. x any shape. Saved: drop, keep (bool, x's shape, or None)."""
    keep = drop and array_module(x).asarray(drop.keep(x.shape))
    return dropout_grad.reference(x, drop, keep), (drop, keep)


@dropout.gradient
def dropout_grad(g: Array, drop: Drop | None, keep: Array | None) -> Array:
    """gx = g * keep / (1 - rate): the same linear map as the forward one."""
    return g if drop is None else array_module(g).where(keep, g * drop.scale, 0).astype(g.dtype, copy=False)


@dropout_grad.fast("numpy", "float32", "float64")
def dropout_grad_numpy(g: Array, drop: Drop | None, keep: Array | None) -> Array:
    """Blocks of a flat array; float times bool is several times faster than `where`."""
    if drop is None or keep is None:
        return g
    gx = np.empty(g.shape, g.dtype)
    flat_g, flat_keep, flat_gx = g.reshape(-1), keep.reshape(-1), gx.reshape(-1)
    scale = drop.scale

    def body(i: int, j: int) -> None:
        np.multiply(flat_g[i:j], scale, out=flat_gx[i:j])
        np.multiply(flat_gx[i:j], flat_keep[i:j], out=flat_gx[i:j])

    map_blocks(body, g.size, g.itemsize)
    return gx


@dropout.fast("numpy", "float32", "float64")
def dropout_numpy(x: Array, drop: Drop | None) -> Output:
    """The mask, then the same product as the gradient."""
    keep = drop and drop.keep(x.shape)
    return dropout_grad_numpy(x, drop, keep), (drop, keep)


def draw(drop: Drop | None) -> tuple[Any, ...]:
    """What a CUDA kernel drops by: threshold, scale, seed, step, call, moment."""
    below, scale, key = (drop.threshold, drop.scale, drop.key) if drop else (0, 1.0, Key(0, 0, 0))
    return np.uint32(below), np.float32(scale), *map(np.uint64, key), key.moment


@dropout_grad.fast("cupy", "float32", "float16", "bfloat16")
def dropout_grad_cuda(g: Array, drop: Drop | None) -> Array:
    """The mask is drawn in the kernel."""
    g = contiguous(g)
    gx = array_module(g).empty(g.shape, g.dtype)
    blocks = -(-g.size // (16 * BLOCK_THREADS))
    launch("dropout.cu", "dropout", blocks, BLOCK_THREADS, (g, gx, np.int64(g.size), *draw(drop)), T=g.dtype)
    return gx


@dropout.fast("cupy", "float32", "float16", "bfloat16")
def dropout_cuda(x: Array, drop: Drop | None) -> Output:
    """The same kernel as the gradient's, which draws the mask again."""
    return dropout_grad_cuda(x, drop), (drop,)
