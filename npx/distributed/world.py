"""A process that trains alone: all that a world of ranks can do, where there is one."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from npx import array

Wait = Callable[[], object]  # waits for the end of what was begun


class World:
    """One process alone."""

    rank, size = 0, 1
    sent = 0  # bytes of arrays given to other ranks
    step = 0  # of the training, for messages

    @property
    def waited(self) -> float:
        """Seconds in which this process did nothing but wait for the others, or for what they gave."""
        return 0.0

    def gather(self, thing: Any) -> list[Any]:
        """What every rank gives, in the order of ranks, on every rank."""
        return [thing]

    def broadcast(self, thing: Any) -> Any:
        """What rank 0 gives."""
        return thing

    def barrier(self) -> None:
        """Waits for all ranks."""

    # Each begins something, and what it returns waits for its end. All ranks begin the same in the same order. `wire_dtype`: a
    # narrower dtype in which numbers travel, while they are added in that of `flat`; None: as they are.

    def reduce_scatter(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        """Leaves in this rank's part of `flat` (n,) the sum over all ranks, added in their order."""
        return lambda: None

    def all_gather(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        """Fills `flat` (n,) with the part of each rank."""
        return lambda: None

    def all_reduce(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        """Makes `flat` (n,) the sum over all ranks."""
        return lambda: None

    def part(self, size: int, rank: int | None = None) -> slice:
        """A rank's own part (default: this rank's) of a flat array of so many elements."""
        r = self.rank if rank is None else rank
        return slice(size * r // self.size, size * (r + 1) // self.size)

    @contextmanager
    def first(self) -> Iterator[None]:
        """A block that rank 0 does before the others do; where it fails there, it fails on all ranks alike."""
        yield

    def watch(self, seconds: float) -> None:
        """From now on the run ends where a rank gives no sign of life for so long."""

    def expect(self, seconds: float | None) -> None:
        """Ranks come to what they do together within so many seconds of each other; None: whenever they do."""

    def alike(self) -> bool:
        """Whether all ranks come here now, as they do when they end for the same reason."""
        return True

    def abort(self, status: int) -> None:
        """Ends all ranks."""

    @property
    def name(self) -> str:
        """This rank in words."""
        return f"rank {self.rank} of {self.size} ({socket.gethostname()})"
