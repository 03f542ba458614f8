"""How long a step takes on k GPUs: measured compute of one, and what the sum of the gradients costs beside it.

A gradient goes in B buckets of 16 MiB, one after the other (train/learn/parallel/reducer.py). A bucket of m bytes
over k
ranks, each with b bytes a second in either direction and a latency of l seconds: its parts go straight to the ranks
that add them up, then their sums to all.

    bucket   2 (k - 1) / k  m / b  +  2 l
    step     accumulate t + max(B buckets - 2/3 t (1 - 1 / (B - L)), L buckets) + 2 l
    shard    a bucket is half of that, its parts alone; after the update the weights' bytes go as the other half

t: compute of a micro-batch, of which backward is 2/3 (what a split update saves is not counted). Buckets go beside
backward, from when the first of them is ready. The L last ones are ready when it ends: all that hold some of the matrix
that embeds the words, and one at least. 2 l: ranks tell each other losses and norms, and how long they took.

What libraries do for a sum of n bytes is told beside it, the quicker one:

    ring     2 (k - 1) / k  n / b  +  2 (k - 1) l        each byte passes each rank twice, in k - 1 steps each way
    tree     2 n / b               +  2 log2(k) l        up to the root and down again, in pieces
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from train.learn.parallel.reducer import BUCKET

BACKWARD = 2 / 3  # of a step's compute: two products for each one of forward


class Link(NamedTuple):
    """What a GPU can send, and at the same time receive: bytes a second, and the seconds until the first arrives."""

    bandwidth: float
    latency: float
    what: str


LINKS = {  # nominal figures of the hardware, not measurements of ours
    "nvlink": Link(450e9, 3e-6, "NVLink 4, as on an H100"),
    "ib": Link(50e9, 5e-6, "InfiniBand NDR, 400 Gb/s for each GPU"),
    "ethernet": Link(3.125e9, 30e-6, "Ethernet, 25 Gb/s for each GPU"),
}


class Planned(NamedTuple):
    """A step on so many GPUs, in seconds; `exposed`: what compute does not hide; `others`: the sum by ring or tree."""

    gpus: int
    compute: float
    sum: float
    exposed: float
    others: float

    @property
    def step(self) -> float:
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Of k times the tokens a second of one GPU."""
        return self.compute / self.step


def buckets_seconds(size: float, count: float, gpus: int, link: Link) -> float:
    """Seconds of so many buckets, of `size` bytes together, one way: from each rank its parts to all, or from all."""
    return (gpus - 1) / gpus * size / link.bandwidth + link.latency * count if gpus > 1 else 0.0


def others_seconds(size: float, gpus: int, link: Link) -> float:
    """Seconds of a sum of `size` bytes by a ring or a tree, whichever is quicker."""
    if gpus == 1:
        return 0.0
    ring = 2 * (gpus - 1) / gpus * size / link.bandwidth + 2 * (gpus - 1) * link.latency
    return min(ring, 2 * size / link.bandwidth + 2 * math.log2(gpus) * link.latency)


def planned(
    size: float, last: float, micro: float, accumulate: int, gpus: int, link: Link, backward: float = BACKWARD,
    narrow: float = 1.0, gathered: float = 0.0,
) -> Planned:  # fmt: skip
    """A step: gradients of `size` bytes, of which the share `last` comes last; `micro`: seconds of a micro-batch.

    `backward`: the share of them beside which buckets go; 0 where they go after it. `narrow`: the share of these bytes
    that travels (`train.reduce_dtype`). `gathered`: bytes of weights that ranks give each other after an update, having
    summed and updated a part each (`train.shard`); 0: all of them sum and update all.
    """
    count = math.ceil(size / BUCKET)
    first = size - (count - 1) * BUCKET  # the bucket that goes last begins the flat buffer, as the embedding does
    late = 1 + max(0, math.ceil((last * size - first) / BUCKET))
    ways = 1 if gathered else 2
    total = ways * buckets_seconds(narrow * size, count, gpus, link)
    end = ways * buckets_seconds(narrow * (first + (late - 1) * BUCKET), late, gpus, link)
    beside = backward * micro * (1 - 1 / (count - late)) if count > late else 0.0
    gather = buckets_seconds(gathered, count, gpus, link) if gathered else 0.0
    told = 2 * link.latency if gpus > 1 else 0.0
    exposed = max(total - beside, end if beside else total) + gather + told
    return Planned(gpus, accumulate * micro, total + gather, exposed, others_seconds(narrow * size, gpus, link))


def table(plans: list[Planned], tokens: float) -> Iterator[str]:
    """Lines for people; `tokens` of one GPU's step."""
    yield "  GPUs   s a step   of it waiting   efficiency      tokens/s      s a sum   by ring or tree"
    for p in plans:
        yield (
            f"{p.gpus:>6,} {p.step:>10.4f} {p.exposed:>15.4f} {100 * p.efficiency:>10.1f} % "
            f"{p.gpus * tokens / p.step:>13,.0f} {p.sum:>12.4f} {p.others:>17.4f}"
        )
