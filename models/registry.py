"""Registries of the parts that a configuration names: norms, activations, position schemes, cells and architectures."""

import inspect
from typing import Any

from npx.registry import Registry


class PartRegistry(Registry[Any]):
    """A registry of classes, or functions, that build a part of a model when called with `arguments`.

    Registering anything else raises TypeError. `base` is the class that every entry must extend.
    """

    base: type | None = None

    def __init__(self, kind: str, *arguments: str) -> None:
        super().__init__(kind)
        self.arguments = arguments

    def add(self, name: str, value: Any) -> Any:
        if self.base and not (isinstance(value, type) and issubclass(value, self.base)):
            expected = f"{self.base.__module__}.{self.base.__name__}"
            raise TypeError(f"{self.kind} {name!r}: expected a subclass of {expected}; got {value!r}")
        signature = inspect.signature(value)  # raises TypeError if it is not callable
        try:
            signature.bind(*self.arguments)
        except TypeError:
            raise TypeError(
                f"{self.kind} {name!r}: expected the arguments ({', '.join(self.arguments)}); got {signature}"
            ) from None
        return super().add(name, value)


# The comments give the input and output shapes of the layers.
NORMS = PartRegistry("norm_type", "d_model", "eps")  # (..., D) -> (..., D), layers/norm.py
ACTIVATIONS = PartRegistry("activation", "d_model", "d_ff")  # (..., D) -> (..., F), layers/feed_forward.py
POSITIONS = PartRegistry("positions", "d_model", "max_positions")  # (B, T, D) -> (B, T, D), layers/positions.py
CELLS = PartRegistry("cell", "d_in", "d_hidden")  # (..., D) -> (..., H), layers/recurrent.py
ARCHITECTURES = PartRegistry("architecture", "config", "seed", "dtype")  # a model, architectures/
architecture = ARCHITECTURES.register
