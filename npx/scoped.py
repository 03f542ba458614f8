"""Values that a `with` block overrides for its duration, in the thread that entered it.

Several threads can therefore train and translate at the same time. A new thread starts outside all blocks. Only the
worker threads of `cpu/row_blocks.py` run within the blocks of the thread that they work for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class ScopedValue(Generic[T]):
    """A value that `with` blocks override.

    `get()` returns the value of the innermost block, or `default` outside all blocks.
    """

    def __init__(self, default: T) -> None:
        self._value = ContextVar("value", default=default)
        self.get = self._value.get

    @contextmanager
    def override(self, value: T) -> Iterator[T]:
        """Return a context manager, or decorator, that replaces the value within its block."""
        token = self._value.set(value)
        try:
            yield value
        finally:
            self._value.reset(token)
