"""Memory profile of a training step: the size of the live arrays after each operation and each vjp, by layer.

    with observing(MemoryProfiler()) as memory:
        model.loss(src_ids, tgt_ids).backward()
    print(memory.peak, memory.by_layer())

`draw_memory` (train/viewer/memory.py) draws the samples.
"""

import tracemalloc
import weakref
from typing import Any, NamedTuple

from autograd.engine import BackwardEvent, Node, Tensor
from autograd.observe import LayerNames, Observer
from autograd.saved import find_owner, iterate_captured_arrays


class MemorySample(NamedTuple):
    """Memory after one operation, or after its vjp."""

    phase: str  # "forward" or "backward"
    operation: str
    layer: str
    live: int  # bytes of the live arrays afterwards
    max_live: int  # the maximum since the previous sample; it differs from `live` only with tracemalloc


class MemoryProfiler(Observer):
    """An observer that counts the bytes of a step's live arrays after each operation and each vjp.

    Args:
        traced: whether to use tracemalloc to include temporary arrays of kernels, such as a masked gradient. Each
            sample then resets the peak of tracemalloc. Default False.

    An output, saved array or gradient counts from its creation until a weak reference reports that it has been freed.
    The data and gradients of leaves that existed before the step are not counted.

    Raises ValueError if `traced` is given but tracemalloc is not tracing.
    """

    def __init__(self, traced: bool = False) -> None:
        if traced and not tracemalloc.is_tracing():
            problem = "expected tracemalloc to be tracing; it is stopped; try tracemalloc.start()"
            raise ValueError(f"MemoryProfiler: {problem}")
        self.traced = traced
        self.samples: list[MemorySample] = []
        self.live = 0
        self.layer_names = LayerNames()
        self.references: dict[int, weakref.ref[Any]] = {}  # weak references to the counted arrays, by id
        self.preexisting: dict[int, Any] = {}  # arrays of leaves from before the step, by id; kept alive
        self.leaves: dict[int, Tensor] = {}
        self.layer_of_node: dict[int, str] = {}

    @property
    def peak(self) -> MemorySample:
        """The sample with the most bytes."""
        return max(self.samples, key=lambda sample: sample.max_live)

    def by_layer(self) -> dict[str, int]:
        """Return how many bytes each layer's forward pass adds to the live arrays, largest first."""
        growth: dict[str, int] = {}
        previous = 0
        for sample in self.samples:
            if sample.phase == "forward":
                growth[sample.layer] = growth.get(sample.layer, 0) + sample.live - previous
            previous = sample.live
        return dict(sorted(growth.items(), key=lambda item: -item[1]))

    def _sample(self, phase: str, operation: str, layer: str) -> None:
        max_live = self.live
        if self.traced:
            current, peak = tracemalloc.get_traced_memory()
            max_live += peak - current
            tracemalloc.reset_peak()
        self.samples.append(MemorySample(phase, operation, layer, self.live, max_live))

    def _count(self, array: Any) -> None:
        array = find_owner(array)
        key = id(array)
        if key in self.references or key in self.preexisting or not array.shape:  # NumPy scalars are not arrays
            return
        nbytes = array.nbytes

        def on_freed(_: Any) -> None:
            del self.references[key]
            self.live -= nbytes

        self.references[key] = weakref.ref(array, on_freed)
        self.live += nbytes

    def _add_leaf(self, tensor: Tensor) -> None:
        if id(tensor) not in self.leaves:
            self.leaves[id(tensor)] = tensor
            for array in (tensor.data, tensor.grad):
                if array is not None:
                    self.preexisting[id(find_owner(array))] = find_owner(array)

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        for x in args:
            if isinstance(x, Tensor) and x.node is None and x.requires_grad:
                self._add_leaf(x)
        self._count(result.data)
        layer = self.layer_names.current()
        if result.node is not None:
            self.layer_of_node[result.node.number] = layer
            for array in iterate_captured_arrays(result.node.vjp):
                self._count(array)
        self._sample("forward", name, layer)

    def on_backward(self, event: BackwardEvent) -> None:
        for array in (event.g, *event.gradients):
            if array is not None:
                self._count(array)
        for gradient_sum in event.sums.values():
            self._count(gradient_sum.array)
        for parent in event.parents:  # the parent's vjp may hold an output recomputed for this vjp
            for array in iterate_captured_arrays(parent.vjp) if isinstance(parent, Node) else ():
                self._count(array)
        for leaf in self.leaves.values():
            if leaf.grad is not None:
                self._count(leaf.grad)
        self._sample("backward", event.node.name, self.layer_of_node.get(event.node.number, ""))
