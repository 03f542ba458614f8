"""The world of a single process, and the interface of worlds with several ranks."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from npx import backend

Wait = Callable[[], object]  # a function that waits until the operation has finished


class World:
    """A world of one rank."""

    rank, size = 0, 1
    bytes_sent = 0  # bytes of arrays sent to other ranks
    step = 0  # the training step, for messages
    # Seconds that a rank may wait for another in a collective before the run ends; None means forever.
    collective_timeout: float | None = None

    @property
    def wait_seconds(self) -> float:
        """The seconds that this process has spent waiting for other ranks or their data."""
        return 0.0

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of the ranks, on every rank."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return value

    # The next three methods start a collective and return a function that waits for it. All ranks must start the same
    # collectives in the same order. `wire_dtype`: a narrower dtype for the transfer; sums are computed in flat's dtype.

    def reduce_scatter(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        """Replace this rank's shard of `flat` (n,) with the sum of this shard over all ranks, added in rank order."""
        return lambda: None

    def all_gather(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        """Fill `flat` (n,) with the shards of all ranks."""
        return lambda: None

    def all_reduce(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        """Replace `flat` (n,) with the sum over all ranks."""
        return lambda: None

    def shard_slice(self, size: int, rank: int | None = None) -> slice:
        """Return the slice of a flat array of `size` elements that belongs to a rank (default: this rank)."""
        r = self.rank if rank is None else rank
        return slice(size * r // self.size, size * (r + 1) // self.size)

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, then on the others; an error of rank 0 is raised on every rank."""
        yield

    def start_heartbeat(self, seconds: float) -> None:
        """Start monitoring: end the run if a rank sends no heartbeat for this many seconds."""

    def all_ranks_failed(self) -> bool:
        """Return whether all ranks call this method at about the same time, as they do if all fail in the same way."""
        return True

    def abort(self, status: int) -> None:
        """End all ranks with this exit status."""

    @property
    def name(self) -> str:
        """The rank and its host, for messages."""
        return f"rank {self.rank} of {self.size} ({socket.gethostname()})"
