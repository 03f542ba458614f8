"""Compute the gradients of micro-batches with CUDA graphs (`train.cuda_graphs`).

This is faster for small batches, for which the GPU would otherwise wait for the host.

The forward and backward passes of a base model consist of about 420 kernels and matmuls, which Python launches in 10 to
35 ms, depending on the processor; a graph is a single launch. Each graph serves one batch shape. There are few shapes,
because batches are cut from sorted sentences (docs/gpu.md). Packing (npx/kernels/packing.py) would make nearly every
shape unique, so batches stay padded.

The first batch of a shape runs kernel by kernel; the second is captured as a graph. Everything that varies is an input
of the graph: the ids, the lengths, the dropout key (step and call number) and the factor on the loss. Adam is one more
launch, outside the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

import npx
from npx.cuda import blas
from npx.cuda.graphs import CudaGraph
from train.run.keys import TrainSection

T = TypeVar("T")
MAX_SHAPES = 512  # maximum number of graphs; batches of other shapes run kernel by kernel


class GraphedLoss:
    """Computes the losses and gradients of micro-batches, with CUDA graphs if possible.

    The gradients are accumulated in the model's flat buffer.

    Args:
        model: the model; its parameters are in a flat buffer.
        settings: the section [train] of the configuration.
        warn: called once with a line if a step cannot be captured. All steps then run kernel by kernel.
    """

    def __init__(self, model: Any, settings: TrainSection, warn: Callable[[str], object]) -> None:
        self.model, self.settings, self.warn = model, settings, warn
        self.loss_options = settings.loss_options(1)
        self.graphs: dict[Any, tuple[CudaGraph, int, Any] | None] = {}  # by input shapes; None after only one batch
        self.can_capture = True
        trained = next(p for p in model.parameters() if p.requires_grad)
        self.flat_gradient = trained.flat_ref().flatten_grad()  # graphs accumulate into this address

    def loss(self, loss_inputs: Sequence[npx.Array], loss_normalizer: float, loss_scale: float) -> npx.Array:
        """Return loss / `loss_normalizer`, a scalar on the device; accumulate the gradient times `loss_scale`."""
        model = self.model
        dtype = self.flat_gradient.dtype.type
        weight = dtype(1 / float(loss_normalizer))
        if not self.graphs:  # graphs need another cuBLAS handle, and the first batch must use it too
            self.try_capture(lambda: blas.use_graph_handle(npx.array_module(model.embedding.weight.data)))
        inputs = [np.asarray(dtype(loss_scale) * weight), *model.checked_loss_inputs(*loss_inputs)]
        shapes = tuple((x.shape, x.dtype.name) for x in inputs)
        if self.graphs.get(shapes) is None and shapes in self.graphs and self.can_capture:
            self.graphs[shapes] = self.try_capture(lambda: self.capture(inputs))
        if (captured := self.graphs.get(shapes)) is None:
            if len(self.graphs) < MAX_SHAPES:
                self.graphs[shapes] = None
            return self.backward(*map(npx.from_host, inputs)) * weight
        graph, n_keys, _ = captured
        keys = [npx.next_key() for _ in range(n_keys)]
        first_key = np.array(keys[0][1:3] if keys else (0, 0), np.uint64)
        return graph([first_key, *inputs]) * weight

    def backward(self, g: npx.Array, *inputs: npx.Array) -> npx.Array:
        """Return the loss summed over tokens, a scalar on the device; accumulate `g` times the gradient."""
        loss = self.model.loss_on_device(*inputs, **self.loss_options)
        loss.backward(g)
        return loss.data

    def try_capture(self, capture: Callable[[], T]) -> T | None:
        """Return the result of `capture`. If graphs are not possible, warn and return None."""
        try:
            return capture()
        except (RuntimeError, MemoryError, ImportError, AttributeError, OSError) as error:
            reason = " ".join(str(error).split())
            self.can_capture = False
            self.warn(
                f"train.cuda_graphs: expected kernels that a CUDA graph can capture; got '{reason}'; "
                "continuing without new graphs"
            )
            return None

    def capture(self, inputs: Sequence[np.ndarray]) -> tuple[CudaGraph, int, Any]:
        """Return the graph for these shapes, its number of dropout keys, and arrays that must be kept alive for it."""
        n_keys = 0

        def function(first_key: npx.Array, *inputs: npx.Array) -> npx.Array:
            nonlocal n_keys
            with npx.keyed(self.settings.seed, 0, first_key):
                loss = self.backward(*inputs)
                n_keys = npx.next_key().call
            return loss

        references = [vars(module).copy() for module in self.model.modules()]  # position tables, which may grow
        return CudaGraph(function, [np.zeros(2, np.uint64), *inputs]), n_keys, references
