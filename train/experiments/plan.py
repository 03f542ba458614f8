"""Estimate the time and cost of training on k GPUs from the speed of one GPU and a model of the links.

The gradient is reduced in B buckets of 16 MiB, one after the other (train/learn/parallel/reducer.py). To reduce a
bucket, each rank sends every part to the rank that sums it, and each sum is sent to all ranks. For m bytes and k ranks,
with b bytes per second in each direction and a latency of l seconds, the times are:

    bucket   2 * (k - 1) / k * m / b + 2 * l
    step     gradient_accumulation_steps * t + max(B buckets - 2/3 * t * (1 - 1 / (B - L)), L buckets) + 2 * l
    shard    a bucket takes half the time, because only parts are sent; gathering the weights after the update takes the
             other half

t is the compute time of a micro-batch, of which the backward pass takes 2/3 (the time that a sharded update saves is
ignored). Buckets are reduced during the backward pass, as soon as each is ready. The last L buckets contain the
embedding matrix (L is at least 1) and are ready only when the backward pass ends. The term 2 * l is the time in which
the ranks exchange losses, norms and timings.

For comparison, the table shows the faster of the two usual algorithms for an all-reduce of n bytes:

    ring     2 * (k - 1) / k * n / b + 2 * (k - 1) * l     each byte passes each rank twice, in k - 1 steps each way
    tree     2 * n / b + 2 * log2(k) * l                   each byte goes to the root and back, pipelined
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from train.learn.parallel.reducer import BUCKET

BACKWARD = 2 / 3  # fraction of the compute in the backward pass, which has two matmuls for each one in the forward pass


class Link(NamedTuple):
    """A full-duplex link of a GPU: bandwidth in bytes per second in each direction, and latency in seconds."""

    bandwidth: float
    latency: float
    name: str


LINKS = {  # nominal figures of the hardware, not measurements
    "nvlink": Link(450e9, 3e-6, "NVLink 4, as on an H100"),
    "ib": Link(50e9, 5e-6, "InfiniBand NDR, 400 Gb/s for each GPU"),
    "ethernet": Link(3.125e9, 30e-6, "Ethernet, 25 Gb/s for each GPU"),
}


class StepEstimate(NamedTuple):
    """Estimated times of a step, in seconds."""

    gpus: int
    compute: float
    reduction: float
    exposed: float  # communication that does not overlap with compute
    all_reduce: float  # an all-reduce by ring or tree

    @property
    def step(self) -> float:
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Speed divided by k times the speed of one GPU."""
        return self.compute / self.step


def buckets_seconds(size: float, count: float, gpus: int, link: Link) -> float:
    """Return the seconds needed to scatter or gather `count` buckets totaling `size` bytes."""
    return (gpus - 1) / gpus * size / link.bandwidth + link.latency * count if gpus > 1 else 0.0


def all_reduce_seconds(size: float, gpus: int, link: Link) -> float:
    """Return the seconds that an all-reduce of `size` bytes takes by ring or tree, whichever is faster."""
    if gpus == 1:
        return 0.0
    ring = 2 * (gpus - 1) / gpus * size / link.bandwidth + 2 * (gpus - 1) * link.latency
    return min(ring, 2 * size / link.bandwidth + 2 * math.log2(gpus) * link.latency)


def estimate_step(
    gradient_bytes: float, late_fraction: float, micro_batch_seconds: float, n_micro_batches: int, gpus: int,
    link: Link, backward: float = BACKWARD, wire_fraction: float = 1.0, gathered_bytes: float = 0.0,
) -> StepEstimate:  # fmt: skip
    """Estimate a training step.

    Args:
        gradient_bytes: bytes of the gradient.
        late_fraction: fraction of the gradient that is ready only at the end of the backward pass (the embedding).
        micro_batch_seconds: compute seconds of a micro-batch.
        n_micro_batches: micro-batches per step.
        gpus: number of GPUs.
        link: link between them.
        backward: fraction of the compute that communication can overlap with; 0 for none.
        wire_fraction: fraction of the gradient's bytes that is sent (`train.reduce_dtype`).
        gathered_bytes: bytes of weights that are gathered after a sharded update (`train.shard_optimizer`); 0 if every
            rank updates all weights.
    """
    n_buckets = math.ceil(gradient_bytes / BUCKET)
    # The flat buffer begins with the embedding; its first bucket is sent last.
    first = gradient_bytes - (n_buckets - 1) * BUCKET
    n_late = 1 + max(0, math.ceil((late_fraction * gradient_bytes - first) / BUCKET))
    directions = 1 if gathered_bytes else 2
    total = directions * buckets_seconds(wire_fraction * gradient_bytes, n_buckets, gpus, link)
    end = directions * buckets_seconds(wire_fraction * (first + (n_late - 1) * BUCKET), n_late, gpus, link)
    overlap = backward * micro_batch_seconds * (1 - 1 / (n_buckets - n_late)) if n_buckets > n_late else 0.0
    gather = buckets_seconds(gathered_bytes, n_buckets, gpus, link) if gathered_bytes else 0.0
    exchange = 2 * link.latency if gpus > 1 else 0.0
    exposed = max(total - overlap, end if overlap else total) + gather + exchange
    all_reduce = all_reduce_seconds(wire_fraction * gradient_bytes, gpus, link)
    return StepEstimate(gpus, n_micro_batches * micro_batch_seconds, total + gather, exposed, all_reduce)


def table(estimates: list[StepEstimate], tokens: float) -> Iterator[str]:
    """Yield the lines of a table; `tokens` is the number of tokens per step on one GPU."""
    yield "  GPUs      s/step  exposed, s   efficiency      tokens/s reduction, s   ring or tree"
    for e in estimates:
        yield (
            f"{e.gpus:>6,} {e.step:>11.4f} {e.exposed:>11.4f} {100 * e.efficiency:>11.1f}% "
            f"{e.gpus * tokens / e.step:>13,.0f} {e.reduction:>12.4f} {e.all_reduce:>14.4f}"
        )


def training_table(estimates: list[StepEstimate], updates: int, price: float | None) -> Iterator[str]:
    """Yield the lines of a table with the time and cost of `updates` updates; `price` is that of one GPU-hour."""
    yield f"  GPUs       hours    GPU-hours{'' if price is None else '         cost'}   of {updates:,} updates"
    for e in estimates:
        hours = updates * e.step / 3600
        cost = "" if price is None else f"{e.gpus * hours * price:>13,.2f}"
        yield f"{e.gpus:>6,} {hours:>11,.2f} {e.gpus * hours:>12,.1f}{cost}"
