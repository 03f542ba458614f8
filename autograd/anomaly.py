"""Anomaly detection: stop at the first operation or vjp that produces a NaN or an infinity.

    with detect_anomaly():
        model.loss(src_ids, tgt_ids).backward()

The error names the operation, its layer and its line of code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import npx
from autograd.engine import BackwardEvent, Tensor, observing
from autograd.observe import LayerNames, Observer, calling_line
from npx import Array


class AnomalyError(FloatingPointError):
    """An operation, or its vjp, returned a non-finite value although its inputs were finite."""


class AnomalyDetector(Observer):
    """An observer that raises AnomalyError at the first result that is not finite."""

    def __init__(self) -> None:
        self.locations: dict[int, str] = {}  # location of the forward call, by node number
        self.layer_names = LayerNames()

    def _location(self) -> str:
        file, line, function = calling_line()
        layer = self.layer_names.current()
        return f'{f"{layer}, " if layer else ""}File "{file}", line {line}, in {function}'

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.node is not None:
            self.locations[result.node.number] = self._location()
        if is_finite(result.data):
            return
        for i, x in enumerate(args):
            if isinstance(x, Tensor) and x.node is None and x.requires_grad and not is_finite(x.data):
                problem = f"expected finite parameters; got {first_bad_value(x.data)} in argument {i}"
                raise AnomalyError(f"{name}: {problem}\n{self._location()}")
        if all(is_finite(x.data if isinstance(x, Tensor) else x) for x in args):
            problem = f"expected a finite result for finite inputs; got {first_bad_value(result.data)}"
            raise AnomalyError(f"{name}: {problem}\n{self._location()}")

    def on_backward(self, event: BackwardEvent) -> None:
        name = event.node.name
        location = self.locations.pop(event.node.number, "an operation that ran before the anomaly block")
        if not is_finite(event.g):
            problem = f"expected a finite gradient for {name}; got {first_bad_value(event.g)}"
            raise AnomalyError(f"backward: {problem}\n{location}")
        for i, gradient in enumerate(event.gradients):
            if gradient is not None and not is_finite(gradient):
                problem = f"expected a finite gradient of argument {i}; got {first_bad_value(gradient)}"
                raise AnomalyError(f"backward of {name}: {problem}\n{location}")


def is_finite(x: Any) -> bool:
    """Return whether a float, or every element of a floating-point array, is finite. Other types count as finite."""
    if isinstance(x, float):
        return x == x and abs(x) != npx.inf
    if not hasattr(x, "dtype") or x.dtype.kind in "biu":
        return True
    return bool(npx.isfinite(x).all())


def first_bad_value(x: Array) -> str:
    """Describe the elements of x that are not finite: the value and the index of the first one, and their number."""
    x = npx.host.atleast_1d(npx.to_host(x))
    is_bad = ~npx.isfinite(x)
    index = tuple(int(k[0]) for k in npx.nonzero(is_bad))
    return f"{x[index]} at {index} ({int(is_bad.sum())} of {x.size} values are not finite)"


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Raise AnomalyError at the first operation or vjp within the block that produces a NaN or an infinity.

    The message names the operation, the layer and the line of code that called it. Checking every result is slow.
    Arguments that already contain such values, for example -inf in a mask, raise no error.
    """
    with observing(AnomalyDetector()):
        yield
