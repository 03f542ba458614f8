"""An operation or layer of a first-time user, correct or wrong, with the one plain array that it is checked with.

The decorators `right` and `wrong` register a function of Tensors or a Module; with `factory` the decorated function
returns a new one each time, for functions with state. The first line of the docstring is "Description [kind]."
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
class UserCode:
    """`make(seed)` returns a new function or layer and its inputs. Seed 0 keeps the given shape; others vary it."""

    name: str
    kind: str
    description: str
    make: Callable[..., tuple[Any, tuple[Any, ...]]]


RIGHT: list[UserCode] = []
WRONG: list[UserCode] = []


def register(
    entries: list[UserCode],
    shape: tuple[int, ...] = (4, 6),
    *,
    fixed: bool = False,
    factory: bool = False,
    build: Callable[[np.ndarray], Any] | None = None,
    first: Callable[..., Any] | None = None,
    second: Callable[..., Any] | None = None,
) -> Callable[[Any], Any]:
    """Register the decorated code, called with standard normal x of `shape`, which seeds vary unless `fixed`.

    build(x) returns the layer, by default `cls(x.shape[-1])`; first(rng, shape) returns another x; second(rng, x)
    returns a second argument.
    """

    def decorate(code: Any) -> Any:
        line = inspect.cleandoc(code.__doc__).splitlines()[0]
        match = re.fullmatch(r"(.+) \[(.+)\]\.", line)
        assert match, f"{code.__name__}: expected a first line `Description [kind].`; got {line!r}"

        def make(seed: int = 0) -> tuple[Any, tuple[Any, ...]]:
            rng = np.random.default_rng(seed)
            size = shape if fixed or not seed else tuple(max(2, n + int(rng.integers(-1, 3))) for n in shape)
            x = first(rng, size) if first else rng.normal(size=size)
            inputs = (x, second(rng, x)) if second else (x,)
            with npx.keyed(seed, 0):  # initialization of parameters
                if build:
                    return build(x), inputs
                if inspect.isclass(code):
                    return code(x.shape[-1]), inputs
            return code() if factory else code, inputs

        entries.append(UserCode(code.__name__, match[2], match[1], make))
        return code

    return decorate


def right(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return register(RIGHT, *args, **kwargs)


def wrong(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return register(WRONG, *args, **kwargs)


def check(code: UserCode, seed: int = 0) -> Any:
    """Check user code with default options."""
    subject, inputs = code.make(seed)
    random.seed(seed)
    np.random.seed(seed)
    return check_layer(subject, *inputs) if isinstance(subject, Module) else check_operation(subject, *inputs)


def weights(*shape: int) -> Parameter:
    """Return a parameter with small random values."""
    return Parameter(npx.random.normal(npx.next_key(), shape) * 0.5)


def rows(x: np.ndarray) -> np.ndarray:
    """Reshape x (..., D) to (R, D)."""
    return x.reshape(-1, x.shape[-1])


def ids(below: int) -> Callable[..., np.ndarray]:
    """Return a function for `second`: a random integer below `below` for each row of x."""
    return lambda rng, x: rng.integers(0, below, size=x.shape[:-1])


def central_difference_error(code: UserCode, seed: int = 0) -> float:
    """Return the largest error of the gradients of x and the parameters, relative to the largest derivative.

    This is the usual test: central differences at the given input, in float64.
    """
    function, inputs = code.make(seed)
    named = list(function.named_parameters()) if isinstance(function, Module) else []
    for _, p in named:
        p.data = p.data.astype(np.float64)
    leaves = [p for _, p in named]
    if inputs[0].dtype == np.float64:
        leaves.append(Tensor(inputs[0].copy(), requires_grad=True))
    x = leaves[-1] if len(leaves) > len(named) else inputs[0]
    others = [Tensor(a) if a.dtype == np.float64 else a for a in inputs[1:]]

    def call() -> Tensor:
        with npx.keyed(0, 0):
            return function(x, *others)

    y = call()
    g = np.asarray(np.random.default_rng(1).uniform(1, 2, size=y.shape).astype(y.dtype))
    backward(y, g.copy())
    worst = 0.0
    for leaf in leaves:
        derivatives = np.zeros(leaf.shape)
        for i in np.ndindex(leaf.shape):
            value, sums = leaf.data[i], []
            for step in (1e-6, -1e-6):
                leaf.data[i] = value + step
                sums.append(float((call().data * g).sum()))
            leaf.data[i] = value
            derivatives[i] = (sums[0] - sums[1]) / 2e-6
        analytic = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad
        difference = float(np.abs(analytic - derivatives).max() / (np.abs(derivatives).max() + 1e-3))
        worst = max(worst, difference if np.isfinite(difference) else np.inf)
    return worst
