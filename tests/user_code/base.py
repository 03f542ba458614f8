"""A newcomer's operation or layer, right or wrong, with the one plain array it is checked with.

`right` and `wrong` enter a function of Tensors or a Module; `factory` says that what stands below makes one (for
functions that remember something, which have to be fresh each time). The name is its own, the kind is what stands in
brackets at the end of the docstring's first line.
"""

import inspect
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import npx
from autograd import Tensor, backward
from autograd.testing import check_layer, check_operation
from models import Module, Parameter


@dataclass
class Newcomer:
    """`make(seed)` gives the function or layer, fresh, and its inputs; seed 0: the plain shape, others vary it."""

    name: str
    kind: str
    says: str
    make: Callable[..., tuple[Any, tuple[Any, ...]]]


RIGHT: list[Newcomer] = []
WRONG: list[Newcomer] = []


def enter(
    entries: list[Newcomer],
    shape: tuple[int, ...] = (4, 6),
    *,
    fixed: bool = False,
    factory: bool = False,
    build: Callable[[np.ndarray], Any] | None = None,
    first: Callable[..., Any] | None = None,
    second: Callable[..., Any] | None = None,
) -> Callable[[Any], Any]:
    """Enter what is decorated, called with standard normal numbers of `shape`, which other seeds vary unless `fixed`.

    build(x): the layer, if not `cls(x.shape[-1])`; first(rng, shape): another x; second(rng, x): a second argument.
    """

    def decorate(what: Any) -> Any:
        says = inspect.cleandoc(what.__doc__).splitlines()[0]
        found = re.fullmatch(r"(.+) \[(.+)\]\.", says)
        assert found, f"{what.__name__}: expected `What it is [kind].` as first line; got {says!r}"

        def make(seed: int = 0) -> tuple[Any, tuple[Any, ...]]:
            rng = np.random.default_rng(seed)
            own = shape if fixed or not seed else tuple(max(2, n + int(rng.integers(-1, 3))) for n in shape)
            x = first(rng, own) if first else rng.normal(size=own)
            inputs = (x, second(rng, x)) if second else (x,)
            with npx.keyed(seed, 0):  # the first values of parameters
                if build:
                    return build(x), inputs
                if inspect.isclass(what):
                    return what(x.shape[-1]), inputs
            return what() if factory else what, inputs

        entries.append(Newcomer(what.__name__, found[2], found[1], make))
        return what

    return decorate


def right(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return enter(RIGHT, *args, **kwargs)


def wrong(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return enter(WRONG, *args, **kwargs)


def check(newcomer: Newcomer, seed: int = 0) -> Any:
    """What a newcomer would call: no strategy, no option."""
    what, inputs = newcomer.make(seed)
    random.seed(seed)
    np.random.seed(seed)
    return check_layer(what, *inputs) if isinstance(what, Module) else check_operation(what, *inputs)


def weights(*shape: int) -> Parameter:
    """A parameter of small random numbers."""
    return Parameter(npx.random.normal(npx.next_key(), shape) * 0.5)


def rows(x: np.ndarray) -> np.ndarray:
    """x (..., D) as (N, D)."""
    return x.reshape(-1, x.shape[-1])


def ids(below: int) -> Callable[..., np.ndarray]:
    """For `second`: a random integer below `below` for each row of x."""
    return lambda rng, x: rng.integers(0, below, size=x.shape[:-1])


def naive(newcomer: Newcomer, seed: int = 0) -> float:
    """The test that people write: central differences at the given input, in float64, for x and the parameters.

    Returns the largest difference, relative to the largest slope.
    """
    what, inputs = newcomer.make(seed)
    named = list(what.named_parameters()) if isinstance(what, Module) else []
    for _, p in named:
        p.data = p.data.astype(np.float64)
    leaves = [p for _, p in named]
    if inputs[0].dtype == np.float64:
        leaves.append(Tensor(inputs[0].copy(), requires_grad=True))
    own = leaves[-1] if len(leaves) > len(named) else inputs[0]
    others = [Tensor(a) if a.dtype == np.float64 else a for a in inputs[1:]]

    def call() -> Tensor:
        with npx.keyed(0, 0):
            return what(own, *others)

    y = call()
    g = np.asarray(np.random.default_rng(1).uniform(1, 2, size=y.shape).astype(y.dtype))
    backward(y, g.copy())
    worst = 0.0
    for leaf in leaves:
        slopes = np.zeros(leaf.shape)
        for i in np.ndindex(leaf.shape):
            value, sums = leaf.data[i], []
            for step in (1e-6, -1e-6):
                leaf.data[i] = value + step
                sums.append(float((call().data * g).sum()))
            leaf.data[i] = value
            slopes[i] = (sums[0] - sums[1]) / 2e-6
        analytic = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad
        difference = float(np.abs(analytic - slopes).max() / (np.abs(slopes).max() + 1e-3))
        worst = max(worst, difference if np.isfinite(difference) else np.inf)
    return worst
