"""The engine: a Tensor, the graph it leaves behind, and the walk back through it. It knows no operation.

An operation is a function on plain arrays that returns its output and a `vjp`: the function that takes the gradient g
of some scalar with respect to the output and gives back those with respect to the inputs (a vector-Jacobian product).

    @differentiable
    def multiply(a, b):
        return a * b, lambda g: (unbroadcast(g * b, a), unbroadcast(g * a, b))

Called on Tensors, it computes the output and remembers the vjp in a `Node`, whose parents are the nodes of its inputs.
`backward` visits the nodes from the last made to the first, hands each one's gradient to its vjp, and adds up what
arrives at each parent. What a vjp closes over is what the operation keeps; it is dropped as soon as it has run.

Five rules keep this simple and fast:
- nodes are numbered as they are made, so descending numbers are a valid order for the walk (inputs precede outputs);
- a vjp never writes to the gradient it is given, so one array may serve several parents without a copy;
- the engine owns accumulation: the first gradient that arrives is borrowed, the first sum allocates, later ones add in
  place. Leaves whose `grad` already exists are added to directly;
- a vjp that can add is told where: `@adding` marks one that takes, for each parent, the array in which its gradient is
  summed. What it has added there it answers with that array, and what it answers else is the engine's to keep;
- a vjp that has `again` forms its output again, the same bits, for whoever did not keep it: `Tensor.again`.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, wraps
from inspect import signature
from itertools import count
from typing import TYPE_CHECKING, Any

import npx
from autograd.contract import check_answer, check_gradient, refuse_graph, refuse_operands
from npx import Array, GradientTargets, Registry
from npx.scoped import Scoped

VJP = Callable[..., tuple[Array | None, ...]]  # of the output's gradient, and where to add if it is `accumulates`
Result = tuple[Array, VJP]  # of an operation on arrays

OPERATIONS: Registry[Callable[..., "Tensor"]] = Registry("operation")
FLOATS = ("float16", "bfloat16", "float32", "float64")
_numbers = count()
_grad_enabled = Scoped(True)
_observer: Scoped[Any] = Scoped(None)  # an Observer (observe.py) that is told what happens; None costs nothing


@cache
def is_floating(dtype: Any) -> bool:
    """Whether a dtype is of those that gradients have."""
    return dtype.name in FLOATS


class Node:
    """One operation that was run: how to take its gradient back, and whom to hand it to."""

    __slots__ = ("dtype", "name", "number", "parents", "shape", "vjp")

    def __init__(self, name: str, output: Array, vjp: VJP, parents: tuple["Node | Tensor | None", ...]):
        self.name = name
        self.shape, self.dtype = output.shape, output.dtype
        self.vjp: VJP | None = vjp
        self.parents = parents  # aligned with the operation's positional arguments; None where no gradient is wanted
        self.number = next(_numbers)


class Tensor:
    """An array that remembers how it was computed.

    `data`: an array of either engine, kept as it is, or numbers and lists, of which floats become float32.
    `requires_grad`: collect its gradient in `grad` (an array of the same shape and dtype, None before the first
    `backward`; later backwards add to it, also where it was set to one of a wider dtype). Results of operations pass
    gradients on, but keep none themselves.
    """

    __slots__ = ("data", "grad", "node", "requires_grad")
    __array_ufunc__ = None  # `array * tensor` asks Tensor.__rmul__ instead of making an array of Tensors
    moved = 0  # for leaves that are learned: the `moment` at which their values were changed last

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        if isinstance(data, Tensor):
            raise TypeError("Tensor: expected an array, a number or a list; got a Tensor; try its .data")
        if not hasattr(data, "dtype"):
            data = npx.asarray(data)
            data = data.astype(npx.float32) if data.dtype == npx.float64 else data
        self.data: Array = npx.asarray(data)
        if requires_grad and not is_floating(self.data.dtype):
            raise TypeError(f"Tensor: expected a floating dtype for requires_grad; got {self.data.dtype}; try .astype")
        self.requires_grad = requires_grad
        self.grad: Array | None = None
        self.node: Node | None = None

    # What it holds

    @property
    def again(self) -> Callable[[], Array] | None:
        """What forms `data` again on the way back, if the operation that made it can: then it need not be kept."""
        return getattr(self.node.vjp, "again", None) if self.node else None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        made_by = f", made by {self.node.name}" if self.node else ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({self.data!r}{made_by})"

    def item(self) -> float:
        """The single number it holds."""
        return self.data.item()

    def numpy(self) -> Array:
        """Its values as a NumPy array (on a CPU the same memory, not a copy)."""
        return npx.to_host(self.data)

    def detach(self) -> "Tensor":
        """The same values without their history."""
        return Tensor(self.data)

    def backward(self, g: Any = None, ready: Callable[["Tensor"], object] | None = None) -> None:
        """See `backward`."""
        backward(self, g, ready)

    if TYPE_CHECKING:  # attached in tensor.py, as the engine knows no operation

        def _binary(self, other: Any) -> "Tensor": ...
        def _method(self, *args: Any, **kwargs: Any) -> "Tensor": ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
        __matmul__ = __rmatmul__ = __pow__ = __getitem__ = _binary
        __neg__ = sum = mean = max = min = reshape = transpose = swapaxes = astype = _method


def differentiable(function: Callable[..., Result]) -> Callable[..., Tensor]:
    """Make a function on arrays, returning (output, vjp), an operation on Tensors, entered in `OPERATIONS`.

    The operations of this package are entered by their names, of which each can be taken once (ValueError); others
    under "module.name", where defining one again replaces it.

    Positional arguments may be Tensors; everything else reaches the function as it is. The vjp takes the output's
    gradient and returns a tuple with one gradient, or None, for each positional argument; the last that want none may
    be left out. TypeError for what would be cast or lost silently: floating dtypes that differ, Tensors in lists.
    """
    parameters = signature(function)

    @wraps(function)
    def operation(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs and any(isinstance(a, Tensor) for a in kwargs.values()):  # by name: to their places
            (bound := parameters.bind(*args, **kwargs)).apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        tensors = [a for a in args if isinstance(a, Tensor)]
        dtypes = {a.dtype for a in args if hasattr(a, "dtype") and is_floating(a.dtype)} if tensors else ()
        hidden = [a for a in kwargs.values() if isinstance(a, Tensor)]
        for a in args:
            if type(a) is tuple or type(a) is list:
                hidden += [item for item in a if isinstance(item, Tensor)]
        if hidden or len(dtypes) > 1:
            refuse_operands(function.__name__, dtypes, hidden)
        output, vjp = function(*[a.data if isinstance(a, Tensor) else a for a in args], **kwargs)
        wanted = _grad_enabled.get() and any(t.requires_grad for t in tensors)
        return leave(function.__name__, output, vjp, args, wanted)

    name, module = function.__name__, function.__module__
    if module.split(".")[0] != "autograd":
        name = f"{module}.{function.__qualname__}"
    elif name in OPERATIONS and OPERATIONS[name].__module__ != module:
        raise ValueError(f"differentiable: expected a new name; got {name!r}, which {OPERATIONS[name].__module__} has")
    OPERATIONS[name] = operation
    return operation


def leave(name: str, output: Any, vjp: VJP, args: tuple[Any, ...], wanted: bool) -> Tensor:
    """The Tensor of an operation's output, and its node in the graph if a gradient is `wanted`; observers are told."""
    result = Tensor(output)
    if wanted:
        parents = tuple((a.node or a) if isinstance(a, Tensor) and a.requires_grad else None for a in args)
        result.node, result.requires_grad = Node(name, result.data, vjp, parents), True
    if (observer := _observer.get()) is not None:
        observer.made(name, args, result)
    return result


def moment() -> int:
    """A number above those of all nodes so far, below those to come."""
    return next(_numbers)


def accumulates(vjp: VJP) -> VJP:
    """Mark a vjp(g, into=NO_TARGETS) that adds gradients where they are summed.

    into: for each positional argument a contiguous array of its shape, and of its dtype or a wider one, or None where
    no sum is there yet. For a gradient added to `into[i]` the vjp returns `into[i]` itself; it need not use any. All
    other arrays it returns are new: neither g nor kept by anybody, though one may be returned for several arguments.
    """
    vjp.accumulates = True  # type: ignore[attr-defined]
    return vjp


def is_grad_enabled() -> bool:
    """Whether operations leave a graph: False within `no_grad`."""
    return _grad_enabled.get()


def no_grad() -> Any:
    """Within the block (or decorated function) operations leave no graph, and keep nothing for it."""
    return _grad_enabled.set(False)


def observing(observer: Any) -> AbstractContextManager[Any]:
    """Within the block an `Observer` (observe.py) is told of each operation that is run and of each vjp."""
    return _observer.set(observer)


def backward(tensor: Tensor, g: Any = None, ready: Callable[[Tensor], object] | None = None) -> None:
    """Add to the `grad` of every leaf the gradient of sum(tensor * g); g None: 1, for a tensor of one element.

    `ready` is told of a leaf when this backward adds no more to its `grad`, while it goes on with others; it is not
    told of a leaf to which some path was cut by a None. The graph is consumed on the way. Raises RuntimeError for a
    tensor without a graph or whose graph was consumed, ValueError for a `g` that does not fit.
    """
    if not tensor.requires_grad:
        raise RuntimeError("backward: expected a Tensor computed from one with requires_grad=True; got none such")
    if g is None:
        if tensor.size != 1:
            raise ValueError(f"backward: expected a Tensor of one element; got shape {tensor.shape}; try backward(g)")
        g = npx.ones_like(tensor.data)
    elif not hasattr(g, "dtype"):
        g = npx.asarray(g, tensor.dtype)
    elif isinstance(g, Tensor):
        g = g.data
    if g.shape != tensor.shape or g.dtype != tensor.dtype:
        raise ValueError(f"backward: expected g as {tensor.shape} {tensor.dtype}; got {g.shape} {g.dtype}")
    if tensor.node is None:
        _add_to_leaf(tensor, g)
        if ready:
            ready(tensor)
        return

    order, observer = reachable(tensor.node), _observer.get()
    awaited = Counter(p for node in order for p in node.parents if isinstance(p, Tensor)) if ready else None
    sums: dict[Node, tuple[Array, bool]] = {tensor.node: (g, False)}  # gradient so far, and whether we may add to it
    while order:
        node = order.pop()
        if node not in sums:  # every path to it was cut by a None
            continue
        g, _ = sums.pop(node)
        vjp, parents = node.vjp, node.parents
        node.vjp, node.parents = None, ()
        assert vjp is not None
        accumulates = hasattr(vjp, "accumulates")
        accumulate_into = _places(parents, sums) if accumulates else ()
        gradients = vjp(g, accumulate_into) if accumulates else vjp(g)
        check_answer(node.name, parents, gradients)
        if observer is not None:
            observer.went(node, vjp, g, parents, gradients, accumulate_into, sums)
        for i, (parent, gradient) in enumerate(zip(parents, gradients, strict=False)):
            if parent is None or gradient is None or (accumulates and gradient is accumulate_into[i]):
                continue
            check_gradient(node.name, parent, gradient)
            own = accumulates and not any(gradient is other for other in gradients[:i] + gradients[i + 1 :])
            if isinstance(parent, Tensor):
                _add_to_leaf(parent, gradient, own)
            elif parent not in sums:
                sums[parent] = gradient, own
            else:
                total, owned = sums[parent]
                if owned:
                    total += gradient
                else:
                    sums[parent] = npx.asarray(total + gradient), True  # asarray: NumPy's 0-d sums are no arrays
        if ready and awaited is not None:
            for leaf in (parent for parent in parents if isinstance(parent, Tensor)):
                awaited[leaf] -= 1
                if not awaited[leaf]:
                    ready(leaf)
        del vjp, g, accumulate_into, gradients


def _places(parents: tuple[Node | Tensor | None, ...], sums: dict[Node, tuple[Array, bool]]) -> GradientTargets:
    """Where a vjp may add: sums that are the engine's own and contiguous, none of them twice."""
    places: list[Array | None] = []
    for parent in parents:
        if isinstance(parent, Node):
            place, owned = sums.get(parent, (None, False))
        else:
            place, owned = None if parent is None else parent.grad, True
        free = place is not None and owned and place.flags.c_contiguous and not any(place is p for p in places)
        places.append(place if free else None)
    return tuple(places)


def reachable(root: Node) -> list[Node]:
    """The nodes that `root` was computed from and itself, in the order in which they were made."""
    found, stack = {root}, [root]
    while stack:
        node = stack.pop()
        changed = False
        for parent in node.parents:
            if not isinstance(parent, Node):
                changed |= parent is not None and parent.moved > node.number
            elif parent not in found:
                found.add(parent)
                stack.append(parent)
        if node.vjp is None or changed:
            refuse_graph(node.name, changed)
    return sorted(found, key=lambda node: node.number)


def _add_to_leaf(leaf: Tensor, gradient: Array, own: bool = False) -> None:
    if leaf.grad is not None:
        leaf.grad += gradient
    elif own:
        leaf.grad = gradient
    else:
        # A copy: the array may be shared with other inputs of the operation it came from.
        leaf.grad = npx.asarray(gradient.copy())
