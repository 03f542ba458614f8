"""Handle the gradient of a model, in one process or over several ranks: its sum, its norm and its shards.

Ranks sum their gradients in buckets, from the end of the flat buffer to its start, roughly in the order in which
backward finishes them. In the last micro-batch, a bucket is sent as soon as all its gradients are complete, while
backward continues. All ranks send the same buckets in the same order.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import Tensor
from models import FlatParameters
from npx.distributed.world import Wait, World
from train.learn.optimizer import squared_norm, sum_of_squares

BUCKET = 16 << 20  # bytes; small enough for an early start, and large enough that latency does not matter


class LocalReducer:
    """Handles the gradient of a model that a single process trains. `GradientReducer` inherits from this class."""

    is_sharded = False  # whether each rank updates only its own shard
    has_sent = False  # whether a part of the gradient has been sent, so that it is too late to recompute it
    # The backward pass calls this function with each leaf whose gradient is complete.
    on_leaf_done: Callable[[Tensor], object] | None = None

    def __init__(self, flat: FlatParameters) -> None:
        self.flat = flat

    def begin(self) -> None:
        """Prepare for the last backward of an update."""

    def squared_norm(self) -> npx.Array:
        """Wait for the sum over ranks, and return the sum of g^2 over this process's shard, a scalar on the device."""
        return squared_norm(self.flat)

    def all_gather_weights(self) -> None:
        """Send the updated weights of every shard to all ranks."""

    def gather_full(self, shard: npx.Array) -> npx.Array:
        """Combine the shards of all ranks, and return the full array on rank 0; all arrays are in host memory."""
        return shard

    def local_shard(self, full: npx.Array) -> npx.Array:
        """Return this rank's shard of `full`, an array as long as the flat buffer."""
        return full


class GradientReducer(LocalReducer):
    """Handles the gradient of a model that several ranks train.

    Args:
        flat: the parameters of the model.
        world: the ranks.
        shard_optimizer: whether each rank receives only its shard of the summed gradient, and updates only that shard.
        wire_dtype: a narrower dtype in which gradients are sent; they are added in their original dtype.
        bucket: number of bytes that are sent at once.
    """

    def __init__(
        self,
        flat: FlatParameters,
        world: World,
        shard_optimizer: bool = False,
        wire_dtype: Any = None,
        bucket: int = BUCKET,
    ) -> None:
        super().__init__(flat)
        self.wire_dtype = wire_dtype
        self.world, self.is_sharded = world, shard_optimizer
        grad = flat.flatten_grad()
        step = max(world.size, bucket // grad.itemsize)
        self.buckets = [slice(max(0, stop - step), stop) for stop in range(grad.size, 0, -step)]
        self.local_slices = [self._local_slice(bucket) for bucket in self.buckets]
        if shard_optimizer:
            flat.shard_to(self.local_slices)
        # The buckets of each parameter, and how many parameters each bucket still waits for.
        spans = zip(flat.parameters, flat.spans.values(), strict=True)
        self.buckets_of: dict[Tensor, list[int]] = {
            p: [i for i, b in enumerate(self.buckets) if b.start < s.stop and s.start < b.stop] for p, s in spans
        }
        self.n_missing: list[int] = []
        self.next_bucket = 0
        self.pending: list[Wait] = []  # buckets being sent
        self.sends_during_backward = True

    def _local_slice(self, bucket: slice) -> slice:
        part = self.world.shard_slice(bucket.stop - bucket.start)
        return slice(bucket.start + part.start, bucket.start + part.stop)

    @property
    def has_sent(self) -> bool:  # type: ignore[override]
        return self.next_bucket > 0

    def begin(self) -> None:
        self.next_bucket = 0
        self.pending = []
        self.n_missing = [0] * len(self.buckets)
        for buckets in self.buckets_of.values():
            for i in buckets:
                self.n_missing[i] += 1
        self.on_leaf_done = self._on_leaf_done if self.sends_during_backward else None

    def _on_leaf_done(self, leaf: Tensor) -> None:
        for i in self.buckets_of.get(leaf, ()):
            self.n_missing[i] -= 1
        while self.next_bucket < len(self.buckets) and not self.n_missing[self.next_bucket]:
            self._send()

    def _send(self) -> None:
        grad = self.flat.flatten_grad()[self.buckets[self.next_bucket]]
        reduce = self.world.reduce_scatter if self.is_sharded else self.world.all_reduce
        self.pending.append(reduce(grad, self.wire_dtype))
        self.next_bucket += 1

    def squared_norm(self) -> npx.Array:
        while self.next_bucket < len(self.buckets):
            self._send()
        for wait in self.pending:
            wait()
        self.pending = []
        grad = self.flat.flatten_grad()
        return npx.sum(npx.stack([sum_of_squares(grad[part]) for part in self.local_slices]))

    def all_gather_weights(self) -> None:
        if self.is_sharded:
            weights = self.flat.data if self.flat.low_precision_data is None else self.flat.low_precision_data
            for wait in [self.world.all_gather(weights[bucket]) for bucket in self.buckets]:
                wait()

    def gather_full(self, shard: npx.Array) -> npx.Array:
        if not self.is_sharded:
            return shard
        full = npx.host.empty(self.flat.size if self.world.rank == 0 else 0, shard.dtype)
        start = 0
        for bucket, part in zip(self.buckets, self.local_slices, strict=True):
            buffer = npx.empty(bucket.stop - bucket.start, shard.dtype)
            size = part.stop - part.start
            buffer[self.world.shard_slice(buffer.size)] = npx.from_host(shard[start : start + size])
            start += size
            self.world.all_gather(buffer)()
            if self.world.rank == 0:
                full[bucket] = npx.to_host(buffer)
        return full

    def local_shard(self, full: npx.Array) -> npx.Array:
        return npx.host.concatenate([full[part] for part in self.local_slices]) if self.is_sharded else full


def make_reducer(flat: FlatParameters, world: World, shard_optimizer: bool, wire_dtype: Any = None) -> LocalReducer:
    """Return the object that handles the gradient of a flat buffer, for the ranks of `world`."""
    return GradientReducer(flat, world, shard_optimizer, wire_dtype) if world.size > 1 else LocalReducer(flat)
