"""Dropout (Srivastava et al., 2014; paper section 5.4): zero a share of the values, scale up the others."""

from typing import Any

import numpy as np

from npx.array import Array, array_module
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.random import Key, bits16
from npx.registry import kernel
from npx.rows import map_blocks

WORD = 1 << 16  # a value is dropped where its random 16-bit word is below rate * WORD


def threshold(rate: float) -> int:
    """The number of 16-bit words that mean "drop": `rate` to the nearest 1 / 65,536."""
    return round(rate * WORD)


def keep_scale(rate: float) -> float:
    """1 / (share that is really kept), so that the expected value stays exactly what it was."""
    kept = WORD - threshold(rate)
    return WORD / kept if kept else 0.0


def keep_mask(key: Key, shape: tuple[int, ...], rate: float) -> np.ndarray:
    """bool array on the host, False where dropped: a pure function of key, rate and position."""
    size = int(np.prod(shape))
    keep = np.empty(size, bool)

    def body(i: int, j: int) -> None:
        np.greater_equal(bits16(key, i, j), threshold(rate), out=keep[i:j])

    map_blocks(body, size, 2)
    return keep.reshape(shape)


@kernel
def dropout(x: Array, rate: float, key: Key) -> tuple[Array, tuple[float, Array]]:
    """y = x * keep / (1 - rate), keep drawn by `key`. x any shape. Saved: rate, keep (bool, x's shape)."""
    keep = array_module(x).asarray(keep_mask(key, x.shape, rate))
    return dropout_grad.reference(x, rate, keep), (rate, keep)


@dropout.gradient
def dropout_grad(g: Array, rate: float, keep: Array) -> Array:
    """gx = g * keep / (1 - rate): the same linear map as the forward one."""
    xp = array_module(g)
    return xp.where(keep, g * keep_scale(rate), 0).astype(g.dtype, copy=False)


@dropout_grad.fast("numpy", "float32", "float64")
def dropout_grad_numpy(g: Array, rate: float, keep: Array) -> Array:
    """Blocks of a flat array; float times bool is several times faster than `where`."""
    gx = np.empty(g.shape, g.dtype)
    flat_g, flat_keep, flat_gx = g.reshape(-1), keep.reshape(-1), gx.reshape(-1)
    scale = keep_scale(rate)

    def body(i: int, j: int) -> None:
        np.multiply(flat_g[i:j], scale, out=flat_gx[i:j])
        np.multiply(flat_gx[i:j], flat_keep[i:j], out=flat_gx[i:j])

    map_blocks(body, g.size, g.itemsize)
    return gx


@dropout.fast("numpy", "float32", "float64")
def dropout_numpy(x: Array, rate: float, key: Key) -> tuple[Array, tuple[float, Array]]:
    """The mask, then the same product as the gradient."""
    keep = keep_mask(key, x.shape, rate)
    return dropout_grad_numpy(x, rate, keep), (rate, keep)


def draw(rate: float, key: Key | None) -> tuple[Any, ...]:
    """What a CUDA kernel drops by: threshold, scale, seed, step, call; key None: nothing is dropped."""
    below, scale = (0, 1.0) if key is None else (threshold(rate), keep_scale(rate))
    return np.uint32(below), np.float32(scale), *map(np.uint64, key or (0, 0, 0))


@dropout_grad.fast("cupy", "float32", "float16", "bfloat16")
def dropout_grad_cuda(g: Array, rate: float, key: Key) -> Array:
    """The mask is drawn in the kernel."""
    g = contiguous(g)
    gx = array_module(g).empty(g.shape, g.dtype)
    blocks = -(-g.size // (16 * BLOCK_THREADS))
    launch("dropout.cu", "dropout", blocks, BLOCK_THREADS, (g, gx, np.int64(g.size), *draw(rate, key)), T=g.dtype)
    return gx


@dropout.fast("cupy", "float32", "float16", "bfloat16")
def dropout_cuda(x: Array, rate: float, key: Key) -> tuple[Array, tuple[float, Key]]:
    """The same kernel as the gradient's, which draws the mask again."""
    return dropout_grad_cuda(x, rate, key), (rate, key)
