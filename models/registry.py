"""What a configuration names: norms, activations, positions and architectures, each entered in a registry by name."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(dict[str, Any]):
    """Name -> what makes one; ValueError for a name that is taken, and for one that is not there."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, name: str) -> Callable[[T], T]:
        """Enter the decorated class or function."""

        def enter(made: T) -> T:
            if name in self:
                raise ValueError(f"{self.what}: expected a new name; got {name!r}, which is registered already")
            self[name] = made
            return made

        return enter

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.what}: expected one of {', '.join(self)}; got {name!r}")


NORMS = Registry("normalization")  # (d_model, eps) -> a layer (..., D) -> (..., D): layers/norm.py
ACTIVATIONS = Registry("activation")  # (d_model, d_ff) -> a layer (..., D) -> (..., F): layers/feed_forward.py
POSITIONS = Registry("positions")  # (d_model, max_positions) -> a layer (B, T, D) -> (B, T, D): layers/positions.py
ARCHITECTURES = Registry("architecture")  # (config, seed, dtype) -> a model: architectures/
architecture = ARCHITECTURES.register
