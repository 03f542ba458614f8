"""Random expressions of this package's operations, to test how the engine composes them."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from autograd import OPERATIONS, Tensor
from autograd.testing.strategies import arrays

# Steps of expressions: registered operations, looked up when they run, on arguments for which they are smooth and
# bounded.
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda x: OPERATIONS["tanh"](x),
    "sigmoid": lambda x: OPERATIONS["sigmoid"](x),
    "negative": lambda x: OPERATIONS["negative"](x),
    "power": lambda x: OPERATIONS["power"](OPERATIONS["tanh"](x), 2),
    "exp": lambda x: OPERATIONS["exp"](OPERATIONS["tanh"](x)),
    "log": lambda x: OPERATIONS["log"](x * x + 1.0),
    "sqrt": lambda x: OPERATIONS["sqrt"](x * x + 1.0),
    "sum": lambda x: OPERATIONS["sum"](x, axis=-1, keepdims=True),
    "mean": lambda x: OPERATIONS["mean"](x, axis=0, keepdims=True),
    "getitem": lambda x: OPERATIONS["getitem"](x, slice(None, None, -1)),
    "repeats": lambda x: OPERATIONS["getitem"](x, [0, -1, 0]).sum(axis=0, keepdims=True),
    "reshape": lambda x: OPERATIONS["reshape"](OPERATIONS["reshape"](x, (-1,)), x.shape),
    "transpose": lambda x: OPERATIONS["transpose"](OPERATIONS["transpose"](x)),
    "swapaxes": lambda x: OPERATIONS["swapaxes"](OPERATIONS["swapaxes"](x, 0, 1), 0, 1),
    "softmax": lambda x: OPERATIONS["softmax"](x),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: OPERATIONS["add"](a, b),
    "subtract": lambda a, b: OPERATIONS["subtract"](a, b),
    "multiply": lambda a, b: OPERATIONS["multiply"](a, b),
    "divide": lambda a, b: OPERATIONS["divide"](a, b * b + 1.0),
    "matmul": lambda a, b: OPERATIONS["matmul"](a, b.transpose()) if a.shape == b.shape == (len(a),) * 2 else a * b,
    "concatenate": lambda a, b: OPERATIONS["concatenate"](a * b, b * a, axis=0).sum(axis=0, keepdims=True),
}


class Expression:
    """A random function of Tensors whose steps apply operations to earlier values, which may be shared.

    Args:
        steps: (operation, position of its first argument, position of its second) for each step.
        inputs: the number of Tensors it takes.

    Returns a scalar.
    """

    def __init__(self, steps: list[tuple[str, int, int]], inputs: int) -> None:
        self.steps, self.inputs = steps, inputs

    def __call__(self, *tensors: Tensor) -> Tensor:
        values = list(tensors)
        for name, i, j in self.steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b))
        result = values[-1].sum()
        for value in values[:-1]:  # ensures that no gradient is trivially zero
            result = result + value.mean() * 0.5 if value.size else result
        return result

    def __repr__(self) -> str:
        return f"Expression({self.steps}, {self.inputs})"


@st.composite
def expressions(draw: st.DrawFn, max_steps: int = 8) -> tuple[Expression, list[Any]]:
    """Draw an expression of up to `max_steps` operations and inputs for it, to test the composition of operations."""
    n = draw(st.integers(1, 3))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    inputs = [
        draw(arrays(draw(st.sampled_from([(rows, columns), (1, columns), (rows, 1)])), styles=("plain", "normal")))
        for _ in range(n)
    ]
    step = st.tuples(st.sampled_from([*BINARY, *UNARY]), st.integers(0, 9), st.integers(0, 9))
    return Expression(draw(st.lists(step, min_size=1, max_size=max_steps)), n), [0.5 * x for x in inputs]
