"""Gradients of micro-batches by CUDA graphs (`train.graphs`), for batches so small that a GPU waits for its host.

Forward and backward of a base model are some 410 kernels and products, which Python asks for in about 10 ms; a graph
is one call. It belongs to one shape of a batch, of which there are few, as batches are cut from sorted sentences
(docs/gpu.md); packed (npx/kernels/packing.py) hardly two would be alike, so here they stay padded. The first batch
of a shape is
computed call by call, the calls of the second become the graph. What differs from then on is in its inputs: ids,
lengths, the step and the number of the draw that dropout is keyed by, the factor on the loss. Adam is one call more,
outside.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

import npx
from npx.cuda import blas
from npx.cuda.graphs import Graph
from train.run.keys import TrainSection

T = TypeVar("T")
MOST = 512  # shapes that are told apart; batches of others are computed call by call


class Graphs:
    """The losses of micro-batches of a model whose parameters are in a flat buffer, and their gradients in it.

    say: told once, in a line, where a step cannot be captured; all are then computed call by call.
    """

    def __init__(self, model: Any, settings: TrainSection, say: Callable[[str], object]) -> None:
        self.model, self.settings, self.say = model, settings, say
        self.how = {
            "label_smoothing": settings.label_smoothing,
            "smoothing_classes": settings.smoothing_over,
            "loss_normalizer": 1,
        }
        self.graphs: dict[Any, tuple[Graph, int, Any] | None] = {}  # by shapes; None for one that was met once
        self.possible = True
        self.gradient_of_all = model.embedding.weight.buffer().grad  # in one place, where graphs add to it

    def loss(self, sequences: Sequence[npx.Array], normalizer: float, scale: float) -> npx.Array:
        """The loss () of a batch, divided by `normalizer`, on the device; `scale` times its gradient is added up."""
        model, kind = self.model, self.gradient_of_all.dtype.type
        share = kind(1 / float(normalizer))
        if not self.graphs:  # the first batch's products are on the graphs' handle too
            self.tried(lambda: blas.use_own_handle(npx.array_module(model.embedding.weight.data)))
        inputs = [np.asarray(kind(scale) * share), *model.loss_inputs(*sequences)]
        shapes = tuple((x.shape, x.dtype.name) for x in inputs)
        if self.graphs.get(shapes) is None and shapes in self.graphs and self.possible:
            self.graphs[shapes] = self.tried(lambda: self.captured(inputs))
        if (found := self.graphs.get(shapes)) is None:
            if len(self.graphs) < MOST:
                self.graphs[shapes] = None
            return self.gradient(*map(npx.from_host, inputs)) * share
        graph, draws, _ = found
        keys = [npx.next_key() for _ in range(draws)]
        moment = np.array(keys[0][1:3] if keys else (0, 0), np.uint64)
        return graph([moment, *inputs]) * share

    def gradient(self, g: npx.Array, *inputs: npx.Array) -> npx.Array:
        """The loss () of inputs on the device, summed over tokens; g times its gradient is added up."""
        loss = self.model.loss_from_inputs(*inputs, **self.how)
        loss.backward(g)
        return loss.data

    def tried(self, make: Callable[[], T]) -> T | None:
        """What `make` makes, or None where a graph cannot be had."""
        try:
            return make()
        except (RuntimeError, MemoryError, ImportError, AttributeError, OSError) as error:
            found, self.possible = " ".join(str(error).split()), False
            self.say(f"train.graphs: expected kernels that a CUDA graph can hold; got '{found}'; on without one")
            return None

    def captured(self, inputs: Sequence[np.ndarray]) -> tuple[Graph, int, Any]:
        """The graph for batches of these shapes, the draws it makes, and what it reads that others may replace."""
        draws = 0

        def function(moment: npx.Array, *rest: npx.Array) -> npx.Array:
            nonlocal draws
            with npx.keyed(self.settings.seed, 0, moment):
                loss = self.gradient(*rest)
                draws = npx.next_key().call
            return loss

        held = [vars(module).copy() for module in self.model.modules()]  # tables of positions, which may grow
        return Graph(function, [np.zeros(2, np.uint64), *inputs]), draws, held
