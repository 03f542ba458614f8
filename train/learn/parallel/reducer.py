"""The gradient of a model, of one process or of several ranks: summed, measured, shared out among them.

Ranks add their gradients up in buckets, from the end of the flat buffer to its beginning, which is about the order in
which backward is done with them: a bucket whose parameters have all they get from the last micro-batch goes at once,
beside the rest of backward. All ranks send the same buckets in the same order, whatever is ready where.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import Tensor
from models import FlatParameters
from npx.distributed.world import Wait, World
from train.learn.optimizer import square, squared_norm

BUCKET = 16 << 20  # bytes: many enough to begin early, few enough that a message's latency does not count


class LocalGradients:
    """The gradient of a process that trains alone."""

    shards = False  # whether each rank updates parts of its own
    begun = False  # whether a part of it was given away, so that it cannot be formed anew
    ready: Callable[[Tensor], object] | None = None  # is told by backward of leaves that are done

    def __init__(self, flat: FlatParameters) -> None:
        self.flat = flat

    def begin(self) -> None:
        """Before the last backward of an update."""

    def square(self) -> npx.Array:
        """sum g^2 over this process's parts (), once the gradient is that of all."""
        return squared_norm(self.flat)

    def spread(self) -> None:
        """After an update of the parts: all ranks get all weights that they compute with."""

    def whole(self, own: npx.Array) -> npx.Array:
        """Of what each rank has for its parts, on the host, one array for the whole buffer; on rank 0."""
        return own

    def own(self, whole: npx.Array) -> npx.Array:
        """Of an array for the whole flat buffer, this rank's parts."""
        return whole


class GradientReducer(LocalGradients):
    """The gradient of several ranks. `shard`: each rank gets the sum of its parts alone, and updates only these.

    `wire_dtype`: a narrower dtype in which gradients travel; they are added in their own.
    """

    def __init__(
        self, flat: FlatParameters, world: World, shard: bool = False, wire_dtype: Any = None, bucket: int = BUCKET
    ) -> None:
        super().__init__(flat)
        self.wire_dtype = wire_dtype
        self.world, self.shards = world, shard
        size, step = flat.grad.size, max(world.size, bucket // flat.grad.itemsize)
        self.buckets = [slice(max(0, stop - step), stop) for stop in range(size, 0, -step)]
        self.mine = [self._own_of(bucket) for bucket in self.buckets]
        if shard:
            flat.shard_to(self.mine)
        # Which buckets a parameter lies in, and how many parameters a bucket has to wait for.
        spans = zip(flat.parameters, flat.spans.values(), strict=True)
        self.homes: dict[Tensor, list[int]] = {
            p: [i for i, b in enumerate(self.buckets) if b.start < s.stop and s.start < b.stop] for p, s in spans
        }
        self.awaited: list[int] = []
        self.next = 0  # the bucket to be sent next
        self.ends: list[Wait] = []  # of the buckets that are under way
        self.overlaps = True  # buckets are sent beside backward, not after it

    def _own_of(self, bucket: slice) -> slice:
        part = self.world.shard_slice(bucket.stop - bucket.start)
        return slice(bucket.start + part.start, bucket.start + part.stop)

    @property
    def begun(self) -> bool:  # type: ignore[override]
        return self.next > 0

    def begin(self) -> None:
        self.next, self.ends = 0, []
        self.awaited = [0] * len(self.buckets)
        for home in self.homes.values():
            for i in home:
                self.awaited[i] += 1
        # A layer that is computed again takes its gradients in a backward of its own, of which none is told.
        again = any(module.gradient_checkpointing for module in self.flat.module.modules())
        self.ready = self._ready if self.overlaps and not again else None

    def _ready(self, leaf: Tensor) -> None:
        for i in self.homes.get(leaf, ()):
            self.awaited[i] -= 1
        while self.next < len(self.buckets) and not self.awaited[self.next]:
            self._send()

    def _send(self) -> None:
        grad = self.flat.grad[self.buckets[self.next]]
        add_up = self.world.reduce_scatter if self.shards else self.world.all_reduce
        self.ends.append(add_up(grad, self.wire_dtype))
        self.next += 1

    def square(self) -> npx.Array:
        while self.next < len(self.buckets):
            self._send()
        for end in self.ends:
            end()
        self.ends = []
        return npx.sum(npx.stack([square(self.flat.grad[own]) for own in self.mine]))

    def spread(self) -> None:
        if self.shards:
            weights = self.flat.data if self.flat.low_precision is None else self.flat.low_precision
            for end in [self.world.all_gather(weights[bucket]) for bucket in self.buckets]:
                end()

    def whole(self, own: npx.Array) -> npx.Array:
        if not self.shards:
            return own
        found = npx.host.empty(self.flat.size if self.world.rank == 0 else 0, own.dtype)
        start = 0
        for bucket, part in zip(self.buckets, self.mine, strict=True):
            there, size = npx.empty(bucket.stop - bucket.start, own.dtype), part.stop - part.start
            there[self.world.shard_slice(there.size)] = npx.from_host(own[start : start + size])
            start += size
            self.world.all_gather(there)()
            if self.world.rank == 0:
                found[bucket] = npx.to_host(there)
        return found

    def own(self, whole: npx.Array) -> npx.Array:
        return npx.host.concatenate([whole[part] for part in self.mine]) if self.shards else whole


def gradient_of(flat: FlatParameters, world: World, shard: bool, wire_dtype: Any = None) -> Any:
    """The gradient of a flat buffer, as this process has part in it."""
    return GradientReducer(flat, world, shard, wire_dtype) if world.size > 1 else LocalGradients(flat)
