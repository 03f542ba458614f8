"""Sums of arrays on GPUs, a GPU a rank, through NCCL.

NCCL only carries, as MPI does between CPUs: every rank sends each other rank its part and adds what it gets in the
order of ranks. So the bits do not depend on which way NCCL finds between the GPUs, parts may be of any size, and a type
that NCCL does not know is bytes. All of it runs on a stream of its own, beside backward; the host waits for none of it.
"""

from typing import Any

from npx import array
from npx.distributed.world import Wait, World


class NcclCollectives:
    """This rank's links to the GPUs of the others. `world` says who is who; `unique`: the id that rank 0 has drawn."""

    def __init__(self, cupy: Any, nccl: Any, unique: Any, world: World) -> None:
        self.cupy, self.nccl, self.world = cupy, nccl, world
        self.communicator = nccl.NcclCommunicator(world.size, unique, world.rank)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._waits: list[tuple[Any, Any]] = []  # events: when a stream came to wait, and when what it waits for ended
        self._waited = 0.0

    def reduce_scatter(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        return self._begun(lambda: self._reduce(flat, wire_dtype))

    def all_gather(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        return self._begun(lambda: self._spread(flat, wire_dtype))

    def all_reduce(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        def work() -> None:
            self._reduce(flat, wire_dtype)
            self._spread(flat, wire_dtype)

        return self._begun(work)

    def _begun(self, work: Any) -> Wait:
        """Has `work` done after what the current stream was given, which then waits for it when it is told to."""
        cuda = self.cupy.cuda
        ready, done = cuda.Event(disable_timing=True), cuda.Event()
        ready.record(cuda.get_current_stream())
        self.stream.wait_event(ready)
        with self.stream:  # CuPy's kernels and memory are this stream's as well
            work()
        done.record(self.stream)
        return lambda: self._wait(done)

    def _wait(self, done: Any) -> None:
        stream, came = self.cupy.cuda.get_current_stream(), self.cupy.cuda.Event()
        came.record(stream)
        stream.wait_event(done)
        self._waits.append((came, done))

    def waited(self) -> float:
        """Seconds in which streams waited for what the links carry, as far as these waits have ended by now."""
        while self._waits and all(event.done for event in self._waits[0]):
            self._waited += max(0.0, self.cupy.cuda.get_elapsed_time(*self._waits.pop(0))) / 1000
        return self._waited

    def _reduce(self, flat: array.Array, wire_dtype: Any) -> None:
        world, own = self.world, flat[self.world.shard_slice(flat.size)]
        given = flat if wire_dtype is None else flat.astype(wire_dtype)
        found = array.empty((world.size, own.size), given.dtype)  # part `rank` of every rank's array
        found[world.rank] = given[world.shard_slice(flat.size)]
        self._exchange([given[world.shard_slice(flat.size, r)] for r in range(world.size)], list(found))
        own[...] = found[0].astype(own.dtype)
        for part in list(found)[1:]:
            own += part.astype(own.dtype)

    def _spread(self, flat: array.Array, wire_dtype: Any) -> None:
        given, world = flat if wire_dtype is None else flat.astype(wire_dtype), self.world
        parts = [given[world.shard_slice(flat.size, r)] for r in range(world.size)]
        self._exchange([parts[world.rank]] * world.size, parts)
        if wire_dtype is not None:
            flat[...] = given.astype(flat.dtype)

    def _exchange(self, give: list[Any], take: list[Any]) -> None:
        """Gives each rank its array of `give`, and fills with theirs those of `take`; nothing for this rank itself."""
        byte, stream = self.nccl.NCCL_UINT8, self.stream.ptr
        self.nccl.groupStart()  # or each would wait for the other to receive
        for peer in (r for r in range(self.world.size) if r != self.world.rank):
            if give[peer].nbytes:
                self.communicator.send(give[peer].data.ptr, give[peer].nbytes, byte, peer, stream)
                self.world.sent += give[peer].nbytes
            if take[peer].nbytes:
                self.communicator.recv(take[peer].data.ptr, take[peer].nbytes, byte, peer, stream)
        self.nccl.groupEnd()
