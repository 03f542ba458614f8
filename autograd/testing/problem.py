"""What is checked: a function at some inputs, how it is run, and what a check saw."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import npx
from autograd.engine import Node, Tensor, is_floating, no_grad
from npx import Array

REFUSALS = (ValueError, TypeError, IndexError, ArithmeticError, KeyError)  # of inputs that a function is not made for


class GradientError(AssertionError):
    """An analytic gradient and the numeric one differ. `rule`: slope, kink, tie or finite."""

    rule = "slope"


class NotFinite(ValueError):
    """A function gives a value that is not finite: the inputs are outside its domain."""


@dataclass
class Report:
    """What a passed check saw.

    `compared` slopes, the largest relative difference `worst` among them, the `kinks`, where any slope of a range is
    right, those `unjudged` because no step gave a slope good enough, `notes` of what was recognised and held fixed, the
    number of `variants` derived from the inputs, and the bytes that an operation kept for its backward beyond inputs
    and output (`saved_bytes`; `check_operation` alone fills it in).
    """

    compared: int = 0
    worst: float = 0.0
    kinks: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    variants: int = 0
    saved_bytes: int = 0


@dataclass
class Problem:
    """A function to check, at some inputs.

    `values`: its positional arguments, of which floating arrays get gradients; `call(values)`, given Tensors in the
    place of those, returns the output. `parameters`: arrays by name that get gradients too, put into the Tensors `own`,
    which `call` knows.
    """

    name: str
    call: Callable[[list[Any]], Any]
    values: list[Any]
    parameters: dict[str, Array] = field(default_factory=dict)
    own: list[Tensor] = field(default_factory=list)
    reproduce: Callable[["Problem"], str] = lambda problem: ""

    @cached_property
    def floats(self) -> list[int]:
        return [i for i, x in enumerate(self.values) if is_float(x)]

    @property
    def arrays(self) -> list[Array]:
        return [*(self.values[i] for i in self.floats), *self.parameters.values()]

    @property
    def labels(self) -> list[str]:
        return [f"input {i}" for i in self.floats] + [f"parameter {n}" for n in self.parameters]

    def at(self, arrays: Sequence[Array]) -> "Problem":
        """The same function at other arrays."""
        values = list(self.values)
        for i, a in zip(self.floats, arrays, strict=False):
            values[i] = a
        own = arrays[len(self.floats) :]
        return replace(self, values=values, parameters=dict(zip(self.parameters, own, strict=True)))

    def run(
        self, arrays: Sequence[Array] | None = None, wanted: Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The output for some arrays (None: its own), and the Tensors of those, which want gradients (or some do)."""
        arrays = [npx.asarray(a) for a in (self.arrays if arrays is None else arrays)]
        leaves = [Tensor(a) for a in arrays[: len(self.floats)]] + self.own
        for i, (leaf, a) in enumerate(zip(leaves, arrays, strict=True)):
            leaf.data, leaf.node, leaf.grad = a, None, None
            leaf.requires_grad = wanted is None or i in wanted
        return self.output(leaves), leaves

    def apply(self, tensors: Sequence[Tensor]) -> Tensor:
        """The output for results of other operations in the place of its arrays."""
        for parameter, t in zip(self.own, tensors[len(self.floats) :], strict=True):
            parameter.data, parameter.node, parameter.grad = t.data, t.node, None
            parameter.requires_grad = True
        output = self.output(tensors)
        for parameter in self.own:
            parameter.node = None
        return output

    def output(self, tensors: Sequence[Tensor]) -> Tensor:
        values = list(self.values)
        for i, t in zip(self.floats, tensors, strict=False):
            values[i] = t
        output = self.call(values)
        if not isinstance(output, Tensor):
            raise TypeError(f"{self.name}: expected it to return a Tensor; got {type(output).__name__}")
        return output


def is_array(x: Any) -> bool:
    """Whether x is an array, of either engine."""
    return hasattr(x, "dtype") and hasattr(x, "shape")


def is_float(x: Any) -> bool:
    """Whether x is a floating array."""
    return is_array(x) and is_floating(x.dtype)


def refuse_without_floats(name: str, values: Sequence[Any]) -> None:
    """TypeError unless one of the values is a floating array."""
    if not any(map(is_float, values)):
        found = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in values) or "none"
        raise TypeError(f"{name}: expected a floating input; got {found}; try np.asarray(x, 'float64')")


def forward(problem: Problem, arrays: Sequence[Array] | None = None, shaped: bool = False) -> Array:
    """The output as an array of float64, flat unless `shaped`, without a graph."""
    with no_grad():
        y = npx.to_host(problem.run(arrays)[0].data).astype("float64")
        return y if shaped else y.reshape(-1)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of overflow, of division by zero and the like, where they are expected."""
    with npx.host.errstate(all="ignore"):
        yield


def gradients_of(problem: Problem, output: Tensor, leaves: list[Tensor], c: Array) -> list[Array]:
    """The gradients of sum(output * c), on the host; zeros where there is none. GradientError where vjps do not fit."""
    if output.requires_grad:
        try:
            output.backward(npx.from_host(c.copy()))
        except (RuntimeError, *REFUSALS) as error:  # of the engine, which refuses what a vjp gave, or of the vjp
            refused = GradientError(f"{problem.name}: {error}\nrule: dtype\nreproduce: {problem.reproduce(problem)}")
            refused.rule = "dtype"
            raise refused from error
    return [npx.zeros_like(npx.to_host(t.data)) if t.grad is None else npx.to_host(t.grad).copy() for t in leaves]


def nodes(output: Tensor) -> set[Node]:
    """The operations that the output was computed by."""
    found: set[Node] = set()
    stack = [output.node] if output.node else []
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [p for p in node.parents if isinstance(p, Node)]
    return found
