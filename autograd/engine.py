"""The engine: Tensors, the graph of the operations that computed them, and `backward`, but no operations.

An operation is a function on plain arrays that returns its output and a `vjp` (vector-Jacobian product): a function
that takes the gradient g of a scalar with respect to the output and returns the gradients with respect to the inputs.

    @differentiable
    def multiply(a, b):
        return a * b, lambda g: (unbroadcast(g * b, a), unbroadcast(g * a, b))

Called on Tensors, an operation computes its output and stores the vjp in a `Node`, whose parents are the nodes of its
inputs. `backward` visits the nodes from the newest to the oldest, passes each node's gradient to its vjp, and sums the
gradients that arrive at each parent. The closure of a vjp holds the saved arrays; it is dropped as soon as it has run.

What the engine guarantees:
- Nodes are numbered in order of creation. Inputs are created before outputs, so backward begins at the highest number.
- The first gradient of a node is borrowed, or owned if an `adds_in_place` vjp has allocated it. A borrowed gradient and
  the next are added in a new array, later ones in place. If a leaf has a `grad`, gradients are added to it directly.
What a vjp must do or may do:
- It never writes to the gradient it receives, because several parents may receive the same array without a copy.
- Marked with `adds_in_place`, it also receives the sum of each parent's gradients. It either adds its gradient to this
  array and returns the array, or returns the gradient in a new array.
- It may have a `recompute_fn`, which recomputes the output, bit for bit, for operations that would otherwise save it.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from itertools import count
from typing import Any

import npx
from autograd import operation_checks
from autograd.accumulation import GradientSum, add_to_leaf
from autograd.tensor import OPERATIONS, TensorMethods
from npx import Accumulators, Array
from npx.scoped import ScopedValue

VJP = Callable[..., tuple[Array | None, ...]]  # its arguments are g and, with `adds_in_place`, `accumulate_into`
Result = tuple[Array, VJP]  # result of an operation on arrays

FLOATS = ("float16", "bfloat16", "float32", "float64")
_clock = count()  # numbers nodes and changes of weights in one sequence, so that backward knows which came first
_grad_enabled = ScopedValue(True)
_observer: ScopedValue[Any] = ScopedValue(None)  # an Observer (observe.py), or None


@cache
def is_floating(dtype: Any) -> bool:
    """Return whether arrays of a dtype can have gradients."""
    return dtype.name in FLOATS


class Node:
    """One operation in the graph: its vjp and the nodes or leaves that receive the gradients."""

    __slots__ = ("dtype", "name", "number", "parents", "shape", "vjp")

    def __init__(self, name: str, output: Array, vjp: VJP, parents: tuple["Node | Tensor | None", ...]):
        self.name = name
        self.shape, self.dtype = output.shape, output.dtype
        self.vjp: VJP | None = vjp
        self.parents = parents  # one for each positional argument; None where no gradient is wanted
        self.number = next(_clock)


class Tensor(TensorMethods):
    """An array that records how it was computed.

    Args:
        data: a NumPy or CuPy array, which is not copied, or a number or (nested) list, whose floats become float32.
        requires_grad: whether to collect the gradient in `grad`. Default False. Results of operations pass gradients on
            to their inputs but do not store their own.

    Attributes:
        data: the values.
        grad: None before the first `backward`, then an array of the same shape and dtype, to which later passes add.
            Before `backward`, `grad` may be set to an array of the same or a wider dtype.
        node: the `Node` of the operation that computed the Tensor; None for a leaf.
        requires_grad: whether gradients flow through the Tensor.

    Raises TypeError for a Tensor, text, objects or a masked array as `data`, and for `requires_grad` with a
    non-floating dtype.
    """

    __slots__ = ("data", "grad", "node", "requires_grad")
    changed_at = 0  # the value of `_clock` when the values of a leaf last changed (models/module.py)

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        if isinstance(data, Tensor):
            raise TypeError("Tensor: expected an array, a number or a list; got a Tensor; try its .data")
        if hasattr(data, "filled"):
            raise TypeError("Tensor: expected an array without a mask; got a masked array; try .filled(0)")
        if not hasattr(data, "dtype"):
            data = npx.asarray(data)
            data = data.astype(npx.float32) if data.dtype == npx.float64 else data
        self.data: Array = operation_checks.checked_values(npx.asarray(data))
        if requires_grad and not is_floating(self.data.dtype):
            raise TypeError(f"requires_grad: expected a floating dtype; got {self.data.dtype}; try .astype('float32')")
        self.requires_grad = requires_grad
        self.grad: Array | None = None
        self.node: Node | None = None

    @property
    def recompute_fn(self) -> Callable[[], Array] | None:
        """A function that recomputes `data` in the backward pass, or None if `data` must be saved."""
        return getattr(self.node.vjp, "recompute_fn", None) if self.node else None

    def __repr__(self) -> str:
        origin = f", made by {self.node.name}" if self.node else ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({self.data!r}{origin})"

    def detach(self) -> "Tensor":
        """Return a Tensor that shares the values (no copy) but has no graph."""
        return Tensor(self.data)

    def backward(self, g: Any = None, on_leaf_done: Callable[["Tensor"], object] | None = None) -> None:
        """Add gradients to the `grad` of every leaf: see `autograd.backward`."""
        backward(self, g, on_leaf_done)


def differentiable(function: Callable[..., Result]) -> Callable[..., Tensor]:
    """Turn a function on arrays that returns (output, vjp) into an operation on Tensors, and register it.

    Positional arguments may be Tensors, which `function` receives as arrays; other arguments are passed on unchanged.
    The vjp takes the gradient of the output and returns a tuple with one gradient, or None, for each positional
    argument. Trailing Nones may be omitted.

    `OPERATIONS` lists the operations of this package by name; a name registered in two modules raises ValueError.
    Operations of other packages are listed as "module.name", and a new definition replaces the old one.

    The operation raises TypeError for arguments that would be cast or lose their gradient silently: mixed floating
    dtypes, and Tensors inside lists.
    """
    parameters = signature(function)

    @wraps(function)
    def operation(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs and any(isinstance(a, Tensor) for a in kwargs.values()):  # make keyword Tensors positional
            (bound := parameters.bind(*args, **kwargs)).apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        arrays, dtypes, items, requires_grad = [], [], [*kwargs.values()], False
        for a in args:  # a single loop, for speed: it takes most of an operation's time if the arrays are small
            if isinstance(a, Tensor):
                requires_grad = requires_grad or a.requires_grad
                a = a.data
            elif type(a) is tuple or type(a) is list:
                items += a
            arrays.append(a)
            dtype = getattr(a, "dtype", None)
            if dtype is not None and dtype not in dtypes and is_floating(dtype):
                dtypes.append(dtype)
        keyword_arrays = (a for a in kwargs.values() if getattr(a, "ndim", 0) and not isinstance(a, type))
        dtypes += {a.dtype for a in keyword_arrays if is_floating(a.dtype)}.difference(dtypes) if kwargs else ()
        nested = [a for a in items if isinstance(a, Tensor)]
        if nested or len(dtypes) > 1 and any(isinstance(a, Tensor) for a in args):
            operation_checks.reject_operands(function.__name__, dtypes, nested)
        output, vjp = function(*arrays, **kwargs)
        return record_node(function.__name__, output, vjp, args, requires_grad and _grad_enabled.get())

    name, module = function.__name__, function.__module__
    if module.split(".")[0] != "autograd":
        name = f"{module}.{function.__qualname__}"
    elif name in OPERATIONS and OPERATIONS[name].__module__ != module:
        raise ValueError(f"differentiable: expected a new name; {OPERATIONS[name].__module__} already has {name!r}")
    OPERATIONS[name] = operation
    return operation


def record_node(name: str, output: Any, vjp: VJP, args: tuple[Any, ...], requires_grad: bool) -> Tensor:
    """Wrap an operation's output in a Tensor, with a node if `requires_grad`, and notify the observer."""
    result = Tensor(output)
    if requires_grad:
        parents = tuple((a.node or a) if isinstance(a, Tensor) and a.requires_grad else None for a in args)
        result.node = Node(name, result.data, vjp, parents)
        result.requires_grad = True
    if (observer := _observer.get()) is not None:
        observer.on_forward(name, args, result)
    return result


def next_number() -> int:
    """Return a number for changed values, above the numbers of all nodes computed from the old values."""
    return next(_clock)


def adds_in_place(vjp: VJP) -> VJP:
    """Mark vjp(g, accumulate_into=NO_ACCUMULATORS) as one that can add gradients to existing sums.

    `accumulate_into` has an entry for each argument: None if there is no sum yet, otherwise a contiguous array with the
    sum so far. The array has the argument's shape, and the argument's dtype or a wider one. For argument i, the vjp
    either adds the gradient to `accumulate_into[i]` and returns this array, or returns the gradient in a new array:
    neither g nor an array that is used elsewhere. The same new array may be returned for several arguments.
    """
    vjp.adds_in_place = True  # type: ignore[attr-defined]
    return vjp


def is_grad_enabled() -> bool:
    """Return whether operations record a graph: False within `no_grad`."""
    return _grad_enabled.get()


def no_grad() -> Any:
    """Return a context manager, or decorator, within which operations record no graph and save nothing for backward.

    It affects only the current thread and can be nested. As a decorator, it has no effect on generator functions.
    """
    return _grad_enabled.override(False)


def observing(observer: Any) -> AbstractContextManager[Any]:
    """Return a context manager within which an `Observer` (observe.py) is called for each operation and each vjp."""
    return _observer.override(observer)


@dataclass(frozen=True, slots=True)
class BackwardEvent:
    """One call to a vjp, reported before its gradients are passed on. Observers must not modify the arrays."""

    node: Node
    vjp: VJP
    g: Array  # gradient of the node's output
    parents: tuple[Node | Tensor | None, ...]
    gradients: tuple[Array | None, ...]  # the gradients that the vjp returned, aligned with `parents`
    accumulate_into: Accumulators  # the sums that the vjp could add to; empty without `adds_in_place`
    sums: dict[Node, GradientSum]


def backward(tensor: Tensor, g: Any = None, on_leaf_done: Callable[[Tensor], object] | None = None) -> None:
    """Add the gradient of sum(tensor * g) to the `grad` of every leaf, and consume the graph.

    Args:
        tensor: the result of operations on Tensors with `requires_grad`.
        g: gradient of `tensor`, of the same shape and dtype. Default: 1, for a tensor of one element.
        on_leaf_done: called with each leaf as soon as its `grad` is complete, while the pass continues; not called for
            a leaf if a vjp on any path to this leaf returned None, and never if the graph contains a `checkpoint`.

    Raises RuntimeError if `tensor` requires no gradient, if its graph is consumed, or if a weight has changed since
    it was used. Raises ValueError for a wrong shape or dtype of `g`, or if `tensor` has several elements but no `g`.
    """
    if not tensor.requires_grad:
        operation_checks.reject_constant_result()
    if g is None:
        if tensor.size != 1:
            operation_checks.reject_missing_gradient(tensor.shape)
        g = npx.ones_like(tensor.data)
    elif not hasattr(g, "dtype"):
        g = npx.asarray(g, tensor.dtype)
    elif isinstance(g, Tensor):
        g = g.data
    if g.shape != tensor.shape or g.dtype != tensor.dtype:
        expected = f"shape {tensor.shape} and dtype {tensor.dtype}"
        raise ValueError(f"backward: expected g with {expected}; got shape {g.shape} and dtype {g.dtype}")
    if tensor.node is None:
        add_to_leaf(tensor, g)
        if on_leaf_done:
            on_leaf_done(tensor)
        return

    nodes = toposort(tensor.node)
    if on_leaf_done and any(hasattr(node.vjp, "runs_backward") for node in nodes):
        on_leaf_done = None  # it adds to leaves at times that this pass does not know
    uses_left = Counter(p for node in nodes for p in node.parents if isinstance(p, Tensor)) if on_leaf_done else None
    sums = {tensor.node: GradientSum(g, is_owned=False)}
    while nodes:
        node = nodes.pop()
        if node not in sums:  # no gradient arrived: a vjp returned None on every path to the node
            continue
        g = sums.pop(node).array
        vjp, parents = node.vjp, node.parents
        node.vjp, node.parents = None, ()
        assert vjp is not None
        can_add = hasattr(vjp, "adds_in_place")
        accumulate_into = _accumulators(parents, sums) if can_add else ()
        gradients = vjp(g, accumulate_into) if can_add else vjp(g)
        operation_checks.check_vjp_result(node.name, parents, gradients)
        if (observer := _observer.get()) is not None:
            observer.on_backward(BackwardEvent(node, vjp, g, parents, gradients, accumulate_into, sums))
        for i, (parent, gradient) in enumerate(zip(parents, gradients, strict=False)):
            if parent is None or gradient is None or (can_add and gradient is accumulate_into[i]):
                continue
            operation_checks.check_gradient_shape(node.name, parent, gradient)
            is_owned = can_add and not any(gradient is other for other in gradients[:i] + gradients[i + 1 :])
            if isinstance(parent, Tensor):
                add_to_leaf(parent, gradient, is_owned)
            elif parent not in sums:
                sums[parent] = GradientSum(gradient, is_owned)
            else:
                sums[parent].add(gradient)
        if on_leaf_done and uses_left is not None:
            for leaf in (parent for parent in parents if isinstance(parent, Tensor)):
                uses_left[leaf] -= 1
                if not uses_left[leaf]:
                    on_leaf_done(leaf)
        del vjp, g, accumulate_into, gradients


def _accumulators(parents: tuple[Node | Tensor | None, ...], sums: dict[Node, GradientSum]) -> Accumulators:
    """Return the arrays to which a vjp may add: contiguous sums that the engine owns. No array occurs twice."""
    accumulators: list[Array | None] = []
    for parent in parents:
        if isinstance(parent, Node):
            total = s.array if (s := sums.get(parent)) and s.is_owned else None
        else:
            total = None if parent is None else parent.grad
        is_usable = total is not None and total.flags.c_contiguous and not any(total is a for a in accumulators)
        accumulators.append(total if is_usable else None)
    return tuple(accumulators)


def toposort(root: Node) -> list[Node]:
    """Return `root` and all nodes it was computed from, oldest first; raise if a weight or the graph has changed."""
    nodes, stack = {root}, [root]
    while stack:
        node = stack.pop()
        changed = False
        for parent in node.parents:
            if not isinstance(parent, Node):
                changed |= parent is not None and parent.changed_at > node.number
            elif parent not in nodes:
                nodes.add(parent)
                stack.append(parent)
        if changed:
            operation_checks.reject_changed_weights(node.name)
        if node.vjp is None:
            operation_checks.reject_consumed_graph(node.name)
    return sorted(nodes, key=lambda node: node.number)
