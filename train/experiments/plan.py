"""How long a step takes on k GPUs: measured compute of one, and what the sum of the gradients costs beside it.

A gradient of n bytes over k ranks, each with b bytes a second in either direction and a latency of l seconds:

    ring   2 (k - 1) / k  n / b  +  2 (k - 1) l        each byte passes each rank twice, in k - 1 steps each way
    tree   2 n / b               +  2 log2(k) l        up to the root and down again, in pieces
    step = accumulate t + max(sum - 2/3 t, e sum)      t: compute of a micro-batch, of which backward is 2/3

The quicker of the two is taken. It runs beside the backward of the last micro-batch, but for the share e of the
gradient that backward gives last: the matrix that embeds the words. Ranks here send as many bytes as the ring does.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

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
    """A step on so many GPUs, in seconds; `exposed`: of the sum, what compute does not hide."""

    gpus: int
    compute: float
    sum: float
    exposed: float
    way: str

    @property
    def step(self) -> float:
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Of k times the tokens a second of one GPU."""
        return self.compute / self.step


def sum_seconds(size: float, gpus: int, link: Link) -> tuple[float, str]:
    """Seconds of a sum of `size` bytes over GPUs, and by which way: the quicker one."""
    if gpus == 1:
        return 0.0, "none"
    ring = 2 * (gpus - 1) / gpus * size / link.bandwidth + 2 * (gpus - 1) * link.latency
    tree = 2 * size / link.bandwidth + 2 * math.log2(gpus) * link.latency
    return min((ring, "ring"), (tree, "tree"))


def planned(size: float, last: float, micro: float, accumulate: int, gpus: int, link: Link) -> Planned:
    """A step: gradients of `size` bytes, of which the share `last` comes last; `micro`: seconds of a micro-batch."""
    total, way = sum_seconds(size, gpus, link)
    return Planned(gpus, accumulate * micro, total, max(total - BACKWARD * micro, last * total), way)


def table(plans: list[Planned], tokens: float) -> Iterator[str]:
    """Lines for people; `tokens` of one GPU's step."""
    yield "  GPUs   s a step   of it waiting   efficiency      tokens/s   sum"
    for p in plans:
        yield (
            f"{p.gpus:>6,} {p.step:>10.4f} {p.exposed:>15.4f} {100 * p.efficiency:>10.1f} % "
            f"{p.gpus * tokens / p.step:>13,.0f}   {p.way}"
        )
