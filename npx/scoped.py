"""What a `with` block sets for as long as it lasts, in the thread that opened it.

So several threads may train and translate at once. A thread of your own begins outside of all blocks; those that walk
over rows (rows.py) are within the blocks of the thread that they work for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Scoped(Generic[T]):
    """A value that blocks set; `get()`, that of the innermost one, or `outside` of all."""

    def __init__(self, outside: T) -> None:
        self._value = ContextVar("value", default=outside)
        self.get = self._value.get

    @contextmanager
    def set(self, value: T) -> Iterator[T]:
        """Within the block, or the decorated function, it is this value, which the block is given."""
        token = self._value.set(value)
        try:
            yield value
        finally:
            self._value.reset(token)
