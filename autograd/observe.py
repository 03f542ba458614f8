"""Observers: callbacks on every operation and every vjp, for pictures, memory profiles and debugging.

    with observing(Recorder()) as recorder:
        loss = model.loss(src_ids, tgt_ids)
        loss.backward()

The engine calls an `Observer` in two places: after an operation has run, and after a vjp has run, before its gradients
are passed on. `Recorder` stores everything, for pictures (draw/). `MemoryProfiler` (memory.py) counts the bytes of a
training step by operation and layer. `detect_anomaly` (anomaly.py) stops at the first result that is not finite.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import npx
from autograd.engine import BackwardEvent, Node, Tensor, is_grad_enabled, record_node
from autograd.saved import find_owner, iterate_captured_arrays
from npx import Array

LOWER_PACKAGES = tuple(str(Path(__file__).parent.parent / package) + "/" for package in ("autograd", "npx"))


class Observer:
    """Base class of observers; its methods do nothing. An observer must not modify the arrays that it receives."""

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        """Called after operation `name` has run on `args`; `result.node` is None if no gradient is needed."""

    def on_backward(self, event: BackwardEvent) -> None:
        """Called after the vjp of a node has run, before its gradients are passed on."""


def calling_line() -> tuple[str, int, str]:
    """Return the file, line and function that called the operation: the innermost frame outside autograd and npx."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LOWER_PACKAGES):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def calling_modules() -> list[Any]:
    """Return the modules that have a method on the call stack, outermost first."""
    frame: Any = sys._getframe(1)
    modules: list[Any] = []
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            values = frame.f_locals
            module = values.get("self")
            if sys.version_info < (3, 13):  # f_locals is a copy that the frame caches and that would keep arrays alive
                values.clear()
            if hasattr(module, "named_children") and (not modules or modules[-1] is not module):
                modules.append(module)
        frame = frame.f_back
    return modules[::-1]


class LayerNames:
    """Dotted names of modules, such as "decoder.3.attention", relative to the outermost module that is running."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.roots: list[Any] = []  # kept alive so that no id is reused

    def current(self) -> str:
        """Return the name of the innermost running module; "" if no module is running."""
        modules = calling_modules()
        if modules and id(modules[-1]) not in self.names:
            self.roots.append(modules[0])
            self._add(modules[0], "")
        return self.names.get(id(modules[-1]), type(modules[-1]).__name__) if modules else ""

    def _add(self, module: Any, name: str) -> None:
        self.names.setdefault(id(module), name)
        for child_name, child in module.named_children():
            self._add(child, f"{name}.{child_name}" if name else child_name)


@dataclass
class OperationRecord:
    """One operation that ran, with the values of its forward and backward passes."""

    number: int  # number of the node
    name: str
    layer: str
    value: Array
    parents: list[int]  # the numbers of the parent nodes; negative for leaves
    saved_bytes: int = 0  # size of the arrays that the vjp closes over
    backward_index: int | None = None  # position in the backward pass; None if no gradient reached the operation
    g: Array | None = None  # the gradient that the vjp received
    gradients: list[Array | None] = field(default_factory=list)  # from the vjp, for parents that require a gradient
    accumulation: list[str] = field(default_factory=list)  # how the engine handles each of these gradients


class Recorder(Observer):
    """An observer that stores every value, every gradient, and how each gradient was passed on, for small graphs.

    Attributes:
        operations: the operations by node number.
        leaves: the leaves in order of first use, with the numbers -1, -2, ...
    """

    def __init__(self) -> None:
        self.operations: dict[int, OperationRecord] = {}
        self.leaves: dict[int, Tensor] = {}
        self.layer_names = LayerNames()
        self.n_visited = 0

    def leaf_number(self, tensor: Tensor) -> int:
        """Return the number of a leaf, assigning one at its first use."""
        for number, leaf in self.leaves.items():
            if leaf is tensor:
                return number
        self.leaves[-len(self.leaves) - 1] = tensor
        return -len(self.leaves)

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.node is None:
            return
        node = result.node
        parents = [p.number if isinstance(p, Node) else self.leaf_number(p) for p in node.parents if p is not None]
        saved = {id(array): array for array in map(find_owner, iterate_captured_arrays(node.vjp))}
        saved_bytes = sum(array.nbytes for array in saved.values())
        layer = self.layer_names.current()
        self.operations[node.number] = OperationRecord(node.number, name, layer, result.data, parents, saved_bytes)

    def on_backward(self, event: BackwardEvent) -> None:
        record = self.operations.get(event.node.number)
        if record is None:
            return
        record.backward_index = self.n_visited
        self.n_visited += 1
        record.g = npx.asarray(event.g.copy())
        for parent, gradient in zip(event.parents, event.gradients, strict=False):
            if parent is not None:
                record.gradients.append(None if gradient is None else npx.asarray(gradient.copy()))
        record.accumulation = describe_accumulation(event)


def describe_accumulation(event: BackwardEvent) -> list[str]:
    """Describe what the engine will do with each gradient: borrow, own or copy it, allocate a sum, or add to a sum."""
    # For each parent with a sum, whether the engine owns it.
    is_owned: dict[Any, bool] = {parent: total.is_owned for parent, total in event.sums.items()}
    descriptions = []
    can_add = hasattr(event.vjp, "adds_in_place")
    for i, (parent, gradient) in enumerate(zip(event.parents, event.gradients, strict=False)):
        if parent is None:
            continue
        if isinstance(parent, Tensor) and parent.grad is not None:
            is_owned[parent] = True
        if gradient is None:
            description = "none"
        elif can_add and gradient is event.accumulate_into[i]:
            description = "added by the vjp"
        elif parent in is_owned:
            description = "added in place" if is_owned[parent] else "sum allocated"
            is_owned[parent] = True
        else:
            is_new = can_add and sum(gradient is other for other in event.gradients) == 1
            description = "owned" if is_new else "copied" if isinstance(parent, Tensor) else "borrowed"
            is_owned[parent] = description != "borrowed"
        descriptions.append(description)
    return descriptions


def hook_gradient(x: Tensor, function: Callable[[Array], Any]) -> Tensor:
    """Return x with a hook: in the backward pass `function` receives the full gradient of x and may replace it.

    Use it where x is computed: `x = hook_gradient(x, print)`. `function` must not write to its argument; it
    returns a new gradient, or None to leave the gradient unchanged.
    """
    if not (is_grad_enabled() and x.requires_grad):
        return x

    def vjp(g: Array) -> tuple[Array | None, ...]:
        replacement = function(g)
        return (g if replacement is None else npx.asarray(replacement),)

    return record_node("hook_gradient", x.data, vjp, (x,), True)
