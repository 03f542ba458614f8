"""A process that trains alone: all that a world of ranks can do, where there is one."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from npx import array


class World:
    """One process alone."""

    rank, size = 0, 1
    sent = 0  # bytes of arrays given to other ranks
    waited = 0.0  # seconds in which this process waited for others
    step = 0  # of the training, for messages

    def gather(self, thing: Any) -> list[Any]:
        """What every rank gives, in the order of ranks, on every rank."""
        return [thing]

    def broadcast(self, thing: Any) -> Any:
        """What rank 0 gives."""
        return thing

    def barrier(self) -> None:
        """Waits for all ranks."""

    def reduce_scatter(self, flat: array.Array) -> None:
        """Leaves in this rank's part of `flat` (n,) the sum over all ranks, added in their order."""

    def all_gather(self, flat: array.Array) -> None:
        """Fills `flat` (n,) with the part of each rank."""

    def all_reduce(self, flat: array.Array) -> None:
        """Makes `flat` (n,) the sum over all ranks."""
        self.reduce_scatter(flat)
        self.all_gather(flat)

    def part(self, size: int, rank: int | None = None) -> slice:
        """A rank's own part (default: this rank's) of a flat array of so many elements."""
        r = self.rank if rank is None else rank
        return slice(size * r // self.size, size * (r + 1) // self.size)

    def start(self, work: Callable[[], None]) -> Callable[[], object]:
        """Has `work`, which adds up, done beside what comes next; returns what waits for its end."""
        work()
        return lambda: None

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
