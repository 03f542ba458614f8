"""Table 1 of the paper, measured: the cost of a layer, and the length of the path between two positions.

    OUT/settings.json          scale and format of the results
       /kinds/NAME.json        results of a kind of layer; a kind that has this file is finished
       /table1.{md,json,png}   all finished kinds and the paper's, rewritten after each kind

As in the paper, only the part of a layer that connects positions is measured, for one sequence of n positions of width
d. For self-attention, this part does not include the projections to queries, keys and values.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import npx
from autograd import Tensor, neural
from models.layers.attention import SelfAttention
from models.layers.basic import Embedding, Linear
from models.layers.convolution import Convolution
from models.layers.norm import LayerNorm
from models.layers.positions import SinusoidalPositions
from models.layers.recurrent import LSTM, composed_lstm
from models.layers.restricted_attention import RestrictedSelfAttention, restricted_self_attention
from models.module import Module
from train.experiments.folder import open_table_folder
from train.experiments.table1_page import write_page
from train.files import make_folder
from train.json_files import read_sealed, write_sealed
from train.learn.optimizer import Adam

WINDOW, KERNEL_WIDTH = 16, 3  # r of restricted self-attention, and kernel width k of convolutions
D_HEAD = 64  # width of an attention head
MIN_SECONDS = 0.3  # minimum seconds for which a measurement is repeated, unless MAX_REPEATS is reached earlier
MAX_REPEATS = 20  # maximum number of repetitions of a measurement
SAMPLES = 32  # random inputs over which gradients are averaged
VOCABULARY, COPY_WIDTH, COPY_BATCH = 8, 32, 16  # sizes for the copying task
COPY_ACCURACY, COPY_LR = 0.95, 1e-2


@dataclass(frozen=True)
class MeasuredSizes:
    """The sizes that are measured."""

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    distances: tuple[int, ...]  # distances for the gradient and for copying
    copy_steps: int  # maximum number of updates for learning to copy


SCALES = {
    "full": MeasuredSizes((16, 64, 256, 1024, 4096), (64, 128, 256, 512, 1024), (1, 2, 4, 8, 16, 32), 1000),
    "small": MeasuredSizes((16, 64, 256), (64, 128, 256), (1, 4, 8), 400),
}


class Mixing(Module):
    """The part of a layer that connects positions, for inputs of shape (1, n, n_inputs * d)."""

    def __init__(self, layer: Module | None, function: Callable[[Tensor], Tensor], n_inputs: int = 1) -> None:
        self.layer, self.function, self.n_inputs = layer, function, n_inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Attributes:
        layer: returns a complete layer of width d, which can be stacked.
        mixing: returns the part that is measured.
        multiplications: the number of multiplications in a forward pass over n positions.
        complexity, sequential, path: the paper's entries, as text.
        exponents: the exponents of n and d in `complexity`.
    """

    layer: Callable[[int], Module]
    mixing: Callable[[int], Mixing]
    multiplications: Callable[[int, int], int]
    complexity: str
    exponents: tuple[int, int]
    sequential: str
    path: str


def n_heads(d: int) -> int:
    """Return the number of heads for width d."""
    return max(1, d // D_HEAD)


def mixing_of_layer(make: Callable[[int], Module]) -> Callable[[int], Mixing]:
    """Return a factory of `Mixing` modules whose function is a complete layer."""

    def mixing(d: int) -> Mixing:
        layer = make(d)
        return Mixing(layer, layer)

    return mixing


def lstm_layer(d: int) -> LSTM:
    return LSTM(d, d)


def convolution_layer(d: int) -> Convolution:
    return Convolution(d, d, KERNEL_WIDTH)


def separable_layer(d: int) -> Convolution:
    return Convolution(d, d, KERNEL_WIDTH, separable=True)


KINDS = {
    "self-attention": Kind(
        lambda d: SelfAttention(d, n_heads(d)),
        lambda d: Mixing(None, lambda x: neural.self_attention(x, n_heads(d), d // n_heads(d)), 3),
        lambda n, d: 2 * n * n * d,
        "O(n^2 d)", (2, 1), "O(1)", "O(1)",
    ),
    "recurrent (LSTM)": Kind(
        lstm_layer, mixing_of_layer(lstm_layer), lambda n, d: 8 * n * d * d, "O(n d^2)", (1, 2), "O(n)", "O(n)"
    ),
    "convolutional": Kind(
        convolution_layer, mixing_of_layer(convolution_layer), lambda n, d: KERNEL_WIDTH * n * d * d,
        "O(k n d^2)", (1, 2), "O(1)", "O(n/k), O(log_k n) if dilated",
    ),
    "separable convolutional": Kind(
        separable_layer, mixing_of_layer(separable_layer), lambda n, d: KERNEL_WIDTH * n * d + n * d * d,
        "O(k n d + n d^2)", (1, 2), "O(1)", "as convolutional",
    ),
    "restricted self-attention": Kind(
        lambda d: RestrictedSelfAttention(d, n_heads(d), window=WINDOW),
        lambda d: Mixing(None, lambda x: restricted_self_attention(x, n_heads(d), d // n_heads(d), WINDOW), 3),
        lambda n, d: 2 * n * min(n, 2 * WINDOW - 1) * d,
        "O(r n d)", (1, 1), "O(1)", "O(n/r)",
    ),
}  # fmt: skip


def run_table1(out: Path, scale: str = "full", progress: bool = True) -> dict[str, Any]:
    """Measure the unfinished kinds of layers in the folder `out`, and return the table.

    Args:
        scale: key of SCALES.
        progress: whether to print a line for each measurement.

    Raises UserError if the folder has other settings.
    """
    open_table_folder(out, {"scale": scale})
    make_folder(out / "kinds")

    def report(line: str) -> None:
        if progress:
            print(line, file=sys.stderr, flush=True)

    for number, (name, kind) in enumerate(KINDS.items(), 1):
        if name not in results(out):
            report(f"kind {number} of {len(KINDS)}: {name}")
            write_sealed(result_file(out, name), measure_kind(kind, SCALES[scale], report))
        write_page(out, scale, KINDS, results(out))
    return write_page(out, scale, KINDS, results(out))


def result_file(out: Path, name: str) -> Path:
    """Return the file with the results of a kind."""
    return out / "kinds" / f"{name.split(' (')[0].replace(' ', '-')}.json"


def results(out: Path) -> dict[str, dict[str, Any]]:
    """Return the results of all finished kinds."""
    return {name: result for name in KINDS if (result := read_sealed(result_file(out, name)))}


def measure_kind(kind: Kind, sizes: MeasuredSizes, report: Callable[[str], object]) -> dict[str, Any]:
    """Return all measurements of a kind."""
    cells = []
    for n, d in product(sizes.lengths, sizes.widths):
        cells.append(measure_cell(kind, n, d))
        report("  n {n}, d {d}: forward {forward:.5f} s, backward {backward:.5f} s".format(**cells[-1]))
    depth = {str(n): graph_depth(kind, n) for n in (8, 16, 32)}
    gradients = gradient_by_distance(kind, sizes.distances)
    path = {str(distance): path_length(kind, distance) for distance in sizes.distances}
    copying = {}
    for distance in sizes.distances:
        steps = copying[str(distance)] = steps_to_copy(kind, distance, max(sizes.distances), sizes.copy_steps)
        report(f"  copying from distance {distance}: {steps or 'not learned'}")
    return {
        "cells": cells, "depth": depth, "gradients": gradients, "path": path, "copying": copying,
    }  # fmt: skip


def build_initialized(function: Callable[[int], Any], d: int) -> Any:
    """Return function(d) with initialized parameters."""
    with npx.keyed(1, 0):
        return function(d)


def measure_cell(kind: Kind, n: int, d: int) -> dict[str, Any]:
    """Return the seconds (the minimum over repetitions), peak bytes and FLOPs of a forward and a backward pass."""
    module: Mixing = build_initialized(kind.mixing, d)
    data = npx.random.normal(npx.Key(1, 1, 0), (1, n, module.n_inputs * d))
    g = npx.random.normal(npx.Key(1, 2, 0), (1, n, d))

    def run() -> tuple[float, float]:
        for p in module.parameters():
            p.grad = None
        x = Tensor(data, requires_grad=True)
        start = time.perf_counter()
        y = module(x)
        middle = time.perf_counter()
        y.backward(g)
        return middle - start, time.perf_counter() - middle

    times = [run()]
    while len(times) < MAX_REPEATS and sum(map(sum, times)) < MIN_SECONDS:
        times.append(run())
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    forward, backward = (min(column) for column in zip(*times, strict=True))
    flops = 2 * kind.multiplications(n, d)
    return {"n": n, "d": d, "forward": forward, "backward": backward, "peak_bytes": peak, "flops": 3 * flops}


def graph_depth(kind: Kind, n: int) -> int:
    """Return the number of operations on the longest path through a layer's graph.

    The recurrence of an LSTM is composed of elementary operations here, so each of its steps counts.
    """
    x = Tensor(npx.ones((1, n, 4)), requires_grad=True)
    layer = build_initialized(kind.layer, 4)
    y = composed_lstm(layer.input(x), layer.weight) if isinstance(layer, LSTM) else layer(x)
    depths: dict[Any, int] = {}
    stack = [y.node]
    while stack:
        node = stack[-1]
        parents = [p for p in getattr(node, "parents", ()) if p is not None]
        missing = [p for p in parents if p not in depths]
        if missing:
            stack += missing
        else:
            depths[stack.pop()] = 1 + max(depths[p] for p in parents) if parents else 0
    return depths[y.node]


def input_gradient(layers: list[Module], n: int, d: int) -> Any:
    """Differentiate the last output of stacked layers with respect to each input, and return the norms (n,).

    The norms are root mean squares over SAMPLES random inputs.
    """
    x = Tensor(npx.random.normal(npx.Key(1, 3, 0), (SAMPLES, n, d)), requires_grad=True)
    y = x
    for layer in layers:
        y = layer(y)
    g = npx.zeros(y.shape)
    g[:, -1] = npx.random.normal(npx.Key(1, 4, 0), (SAMPLES, d))
    y.backward(g)
    assert x.grad is not None
    return np.sqrt((npx.to_host(x.grad) ** 2).sum(axis=-1).mean(axis=0))


def gradient_by_distance(kind: Kind, distances: tuple[int, ...]) -> dict[str, float]:
    """Differentiate a layer's last output; return the norm of the gradient at each distance before that output."""
    n = max(distances) + 1
    norms = input_gradient([build_initialized(kind.layer, D_HEAD)], n, D_HEAD)
    return {str(distance): float(norms[n - 1 - distance]) for distance in distances}


def layers_to_reach(kind: Kind, distance: int) -> int:
    """Return the smallest number of layers that make an output depend on the input `distance` positions earlier."""
    layers: list[Module] = []
    while True:
        layers.append(build_initialized(kind.layer, 4))
        if input_gradient(layers, distance + 1, 4)[0] > 0:
            return len(layers)


def path_length(kind: Kind, distance: int) -> int:
    """Return the number of steps that a signal needs to cross a distance: layers times recurrent steps per layer."""
    one, two, all_positions = (graph_depth(kind, n) for n in (1, 2, distance + 1))
    steps = 1 + (all_positions - one) // (two - one) if two > one else 1
    return layers_to_reach(kind, distance) * steps


class Copier(Module):
    """Copies an earlier token. The model has one layer, inside a residual connection."""

    def __init__(self, kind: Kind) -> None:
        self.embedding = Embedding(VOCABULARY, COPY_WIDTH)
        self.positions = SinusoidalPositions(COPY_WIDTH)
        self.norm = LayerNorm(COPY_WIDTH)
        self.layer = kind.layer(COPY_WIDTH)
        self.output = Linear(COPY_WIDTH, VOCABULARY)

    def forward(self, ids: Any) -> Tensor:
        x = self.positions(self.embedding(ids))
        return self.output(x + self.layer(self.norm(x)))


def steps_to_copy(kind: Kind, distance: int, longest: int, limit: int) -> int | None:
    """Train to copy the token at a distance; return the updates until COPY_ACCURACY, or None if `limit` is reached."""
    with npx.keyed(1, 0):
        model = Copier(kind)
    adam = Adam(model)
    rng = np.random.default_rng(1)
    for step in range(1, limit + 1):
        ids = npx.from_host(rng.integers(1, VOCABULARY, (COPY_BATCH, longest + 8)))  # 0 is padding
        logits = model(ids)[:, distance:]
        targets = ids[:, :-distance]
        correct = float((logits.data.argmax(axis=-1) == targets).mean())
        if correct >= COPY_ACCURACY:
            return step
        adam.zero_grad()
        neural.cross_entropy(logits, targets).backward()
        adam.step(COPY_LR)
    return None
