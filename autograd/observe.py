"""What happens in the engine, for those who look: every operation that runs, every vjp, and the bytes that are alive.

    with observing(Recorder()) as seen:
        loss = model.loss(src, tgt)
        loss.backward()

An `Observer` is told at two places of the engine, after an operation has run and after a vjp has, before its gradients
are handed out. `Recorder` keeps what it is told, for pictures (draw.py); `Memory` counts the bytes of a training step
over its operations, by layer; `anomaly` stops at the first operation that makes a number that is not finite.
"""

import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import npx
from autograd.engine import Node, Tensor, is_grad_enabled, leave, observing
from autograd.saved import captured, owner
from npx import Array

BELOW = tuple(str(Path(__file__).parent.parent / package) + "/" for package in ("autograd", "npx"))


class Observer:
    """Is told what happens. It must not change what it is given."""

    def made(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        """An operation has run; `result.node` is None where no gradient is wanted."""

    def went(
        self, node: Node, vjp: Any, g: Array, parents: tuple[Any, ...], gradients: Any, accumulate_into: Any, sums: Any
    ) -> None:
        """The vjp of a node has run, for its whole gradient g, and has given `gradients` for the `parents`.

        `accumulate_into`: where it was allowed to add; `sums`: node -> (gradient so far, whether it is the engine's
        own).
        """


def calling_line() -> tuple[str, int, str]:
    """File, line and function of the code that called the operation: the innermost that is not below the models."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(BELOW):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def calling_modules() -> list[Any]:
    """The modules in whose `forward` the operation was called, the outermost first."""
    frame: Any = sys._getframe(1)
    found: list[Any] = []
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            values = frame.f_locals
            module = values.get("self")
            if sys.version_info < (3, 13):  # there it is a copy that the frame keeps, and with it every array in it
                values.clear()
            if hasattr(module, "named_children") and (not found or found[-1] is not module):
                found.append(module)
        frame = frame.f_back
    return found[::-1]


class Layers:
    """Names of modules, "decoder.3.attention", as the attributes of the outermost one have them."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.roots: list[Any] = []  # kept alive, or an id may be another's

    def here(self) -> str:
        """That of the module that is computing now; "" for none."""
        modules = calling_modules()
        if modules and id(modules[-1]) not in self.names:
            self.roots.append(modules[0])
            self.enter(modules[0], "")
        return self.names.get(id(modules[-1]), type(modules[-1]).__name__) if modules else ""

    def enter(self, module: Any, name: str) -> None:
        self.names.setdefault(id(module), name)
        for child, below in module.named_children():
            self.enter(below, f"{name}.{child}" if name else child)


@dataclass
class Step:
    """One operation that ran, and what its way back did: all that there is to see of a node."""

    number: int  # of the node
    name: str
    layer: str
    value: Array
    parents: list[int]  # numbers of nodes; leaves have negative ones
    kept: int = 0  # bytes that its vjp closes over
    visit: int | None = None  # the how-manieth on the way back; None: not visited
    g: Array | None = None  # what it got
    gave: list[Array | None] = field(default_factory=list)
    how: list[str] = field(default_factory=list)  # for each parent, what the engine does with the gradient


class Recorder(Observer):
    """Keeps everything: values, gradients, and how each gradient was passed on. For small graphs."""

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self.leaves: dict[int, Tensor] = {}  # by negative numbers, in the order of their first use
        self.layers = Layers()
        self.visits = 0

    def leaf(self, tensor: Tensor) -> int:
        for number, known in self.leaves.items():
            if known is tensor:
                return number
        self.leaves[-len(self.leaves) - 1] = tensor
        return -len(self.leaves)

    def made(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.node is None:
            return
        node = result.node
        parents = [p.number if isinstance(p, Node) else self.leaf(p) for p in node.parents if p is not None]
        kept = sum(a.nbytes for a in {id(a): a for a in map(owner, captured(node.vjp))}.values())
        self.steps[node.number] = Step(node.number, name, self.layers.here(), result.data, parents, kept)

    def went(
        self, node: Node, vjp: Any, g: Array, parents: tuple[Any, ...], gradients: Any, accumulate_into: Any, sums: Any
    ) -> None:
        step = self.steps.get(node.number)
        if step is None:
            return
        step.visit, self.visits, step.g = self.visits, self.visits + 1, npx.asarray(g.copy())
        for i, (parent, gradient) in enumerate(zip(parents, gradients, strict=False)):
            if parent is not None:
                step.gave.append(None if gradient is None else npx.asarray(gradient.copy()))
                step.how.append(treatment(parent, gradient, accumulate_into[i] if accumulate_into else None, sums))


def treatment(parent: Any, gradient: Any, place: Any, sums: Any) -> str:
    """What the engine does with a gradient that arrives: borrows it, allocates a sum, or adds it in place."""
    if gradient is None:
        return "none"
    if gradient is place:
        return "added by the vjp"
    if isinstance(parent, Tensor):
        return "copied" if parent.grad is None else "added in place"
    if parent not in sums:
        return "borrowed"
    return "added in place" if sums[parent][1] else "sum allocated"


class Moment(NamedTuple):
    """After an operation (or its vjp): which, in which layer, the bytes that were alive then, and at most till then."""

    phase: str  # forward, backward
    operation: str
    layer: str
    live: int
    most: int  # since the moment before; more than `live` only where tracemalloc was asked


class Memory(Observer):
    """Bytes of the arrays that are alive after each operation of a step and each vjp, what stood before not counted.

    Arrays are counted when they are first seen, and until they are gone (by weak references): outputs, what vjps keep,
    gradients. What a kernel needs for itself while it runs, a masked gradient, say, is seen by tracemalloc alone:
    `traced` asks it, and sets its peak back at each moment. ValueError where it has not been started.
    """

    def __init__(self, traced: bool = False) -> None:
        if traced and not tracemalloc.is_tracing():
            raise ValueError("Memory: expected tracemalloc to be tracing; got it stopped; try tracemalloc.start()")
        self.traced = traced
        self.moments: list[Moment] = []
        self.live = 0
        self.layers = Layers()
        self.alive: dict[int, weakref.ref[Any]] = {}
        self.before: dict[int, Any] = {}  # arrays of leaves, which stood before the step: by id, kept alive
        self.leaves: dict[int, Tensor] = {}
        self.layer_of: dict[int, str] = {}

    @property
    def peak(self) -> Moment:
        """The moment with the most bytes."""
        return max(self.moments, key=lambda moment: moment.most)

    def moment(self, phase: str, operation: str, layer: str) -> None:
        """Note what is alive now; on the CPU, if asked, what was while the operation ran."""
        most = self.live
        if self.traced:
            now, peak = tracemalloc.get_traced_memory()
            most += peak - now
            tracemalloc.reset_peak()
        self.moments.append(Moment(phase, operation, layer, self.live, most))

    def by_layer(self) -> dict[str, int]:
        """By how many bytes each layer's operations let memory grow on the way forward, largest first."""
        grown: dict[str, int] = {}
        last = 0
        for moment in self.moments:
            if moment.phase == "forward":
                grown[moment.layer] = grown.get(moment.layer, 0) + moment.live - last
            last = moment.live
        return dict(sorted(grown.items(), key=lambda item: -item[1]))

    def count(self, array: Any) -> None:
        array = owner(array)
        key = id(array)
        if key in self.alive or key in self.before or not array.shape:  # NumPy's single numbers are no arrays
            return
        size = array.nbytes

        def gone(_: Any) -> None:
            del self.alive[key]
            self.live -= size

        self.alive[key] = weakref.ref(array, gone)
        self.live += size

    def leaf(self, tensor: Tensor) -> None:
        if id(tensor) not in self.leaves:
            self.leaves[id(tensor)] = tensor
            for array in (tensor.data, tensor.grad):
                if array is not None:
                    self.before[id(owner(array))] = owner(array)

    def made(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        for x in args:
            if isinstance(x, Tensor) and x.node is None and x.requires_grad:
                self.leaf(x)
        self.count(result.data)
        layer = self.layers.here()
        if result.node is not None:
            self.layer_of[result.node.number] = layer
            for array in captured(result.node.vjp):
                self.count(array)
        self.moment("forward", name, layer)

    def went(
        self, node: Node, vjp: Any, g: Array, parents: tuple[Any, ...], gradients: Any, accumulate_into: Any, sums: Any
    ) -> None:
        for array in (g, *gradients):
            if array is not None:
                self.count(array)
        for array, _ in sums.values():
            self.count(array)
        for parent in parents:  # what one of them formed again for this vjp, it has now
            for array in captured(parent.vjp) if isinstance(parent, Node) else ():
                self.count(array)
        for leaf in self.leaves.values():
            if leaf.grad is not None:
                self.count(leaf.grad)
        self.moment("backward", node.name, self.layer_of.get(node.number, ""))


class AnomalyError(FloatingPointError):
    """An operation, or its way back, made a number that is not finite from numbers that were."""


class Anomaly(Observer):
    """Raises AnomalyError where the first number that is not finite comes up."""

    def __init__(self) -> None:
        self.lines: dict[int, str] = {}
        self.layers = Layers()

    def place(self) -> str:
        file, line, function = calling_line()
        layer = self.layers.here()
        return f'{f"{layer}, " if layer else ""}File "{file}", line {line}, in {function}'

    def made(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.node is not None:
            self.lines[result.node.number] = self.place()
        if finite(result.data):
            return
        came = [x.data if isinstance(x, Tensor) else x for x in args]
        for i, x in enumerate(args):
            if isinstance(x, Tensor) and x.node is None and x.requires_grad and not finite(x.data):
                said = f"expected finite parameters; got {worst(x.data)} in argument {i}"
                raise AnomalyError(f"{name}: {said}\n{self.place()}")
        if all(map(finite, came)):
            said = f"expected finite numbers from finite ones; gave {worst(result.data)}"
            raise AnomalyError(f"{name}: {said}\n{self.place()}")

    def went(
        self, node: Node, vjp: Any, g: Array, parents: tuple[Any, ...], gradients: Any, accumulate_into: Any, sums: Any
    ) -> None:
        where = self.lines.pop(node.number, "an operation that ran before the block")
        bad = [(i, x) for i, x in enumerate(gradients) if x is not None and not finite(x)]
        if not finite(g):
            raise AnomalyError(f"backward: expected a finite gradient for {node.name}; got {worst(g)}\n{where}")
        if bad:
            i, x = bad[0]
            raise AnomalyError(
                f"{node.name}, on the way back: expected a finite gradient of argument {i}; gave {worst(x)}\n{where}"
            )


def finite(x: Any) -> bool:
    """Whether all numbers of a floating array, or a number, are finite; True of what has none."""
    if isinstance(x, float):
        return x == x and abs(x) != npx.inf
    if not hasattr(x, "dtype") or x.dtype.kind in "biu":
        return True
    return bool(npx.isfinite(x).all())


def worst(x: Array) -> str:
    """Where the first number that is not finite stands, and how many there are."""
    x = npx.to_host(x)
    bad = ~npx.isfinite(npx.host.atleast_1d(x))
    place = tuple(int(k[0]) for k in npx.nonzero(bad))
    return f"{npx.host.atleast_1d(x)[place]} at {place}, {int(bad.sum())} of {x.size}"


@contextmanager
def anomaly() -> Iterator[None]:
    """Within the block the first operation that makes a NaN or an infinity, or whose vjp does, raises AnomalyError.

    It names the operation, forward or backward, the layer, and the line of code that called it. Every result is looked
    at, so it is slow. -inf in a mask is no anomaly, since what is not finite already is not made.
    """
    with observing(Anomaly()):
        yield


def on_gradient(x: Tensor, function: Callable[[Array], Any]) -> Tensor:
    """x itself; on the way back `function` gets its whole gradient, and gives another one, or None to leave it.

    A hook: `x = on_gradient(x, print)` in the place where x is made. It must not write to what it gets.
    """
    if not (is_grad_enabled() and x.requires_grad):
        return x

    def vjp(g: Array) -> tuple[Array | None, ...]:
        other = function(g)
        return (g if other is None else npx.asarray(other),)

    return leave("on_gradient", x.data, vjp, (x,), True)
