"""A registry: values by name, used for kernels, operations, layers, architectures and tasks."""

from collections.abc import Callable
from typing import TypeVar

from npx.messages import nearest

T = TypeVar("T")
U = TypeVar("U")


class UnknownName(KeyError, ValueError):
    """A name that is not registered: a KeyError, as in any dict, and a ValueError, because the name is a bad value."""

    __str__ = ValueError.__str__  # KeyError.__str__ would put the message in quotes


class Registry(dict[str, T]):
    """Values by name, in the order of registration. `kind` names the values in messages.

    Looking up an unknown name raises UnknownName with the registered names; registering a name twice raises ValueError.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def add(self, name: str, value: T) -> T:
        """Register `value` under a new name and return it."""
        if name in self:
            raise ValueError(f"{self.kind}: expected an unused name; got {name!r}, which is already registered")
        self[name] = value
        return value

    def register(self, name: str) -> Callable[[U], U]:
        """Register the decorated class or function under a new name."""

        def decorate(value: U) -> U:
            self.add(name, value)  # type: ignore[arg-type]
            return value

        return decorate

    def __missing__(self, name: str) -> T:
        advice = f"; try {nearest(str(name), self)}" if self else ""
        raise UnknownName(f"{self.kind}: expected one of {', '.join(self)}; got {name!r}{advice}")
