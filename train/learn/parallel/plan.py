"""Divide the micro-batches of an update among the ranks. Every rank computes the same plan.

The micro-batches of an update depend on (seed, epoch) and their index, not on the rank that computes them. Therefore,
k ranks with train.gradient_accumulation_steps = a make the same updates as one rank with k * a, and a run can resume
with a different number of ranks. If there are more ranks than micro-batches, the micro-batches are split. The
gradients of the parts have the same sum, but each part has its own dropout masks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from npx.distributed import World
from train.tasks.protocols import Batch
from train.text.batches import BatchLoader, Position


class WorkShare(NamedTuple):
    """One rank's share of the micro-batches of an update."""

    indices: Sequence[int]  # indices of this rank's micro-batches within the update
    n_micro_batches: int  # number of micro-batches in the complete update
    n_targets: int  # target tokens of the complete update

    def split(self, parts: Sequence[int]) -> "WorkShare":
        """Return the share with its micro-batches split; `parts` contains the number of parts of each micro-batch.

        The parts of micro-batch i have the indices i, i + n_micro_batches, i + 2 * n_micro_batches, ...
        """
        pairs = zip(self.indices, parts, strict=True)
        return self._replace(indices=[i + part * self.n_micro_batches for i, n in pairs for part in range(n)])

    def original_index(self, index: int) -> int:
        """Return the index of the micro-batch that a part belongs to (see `split`)."""
        return index % self.n_micro_batches


def balance(tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the indices of each rank's micro-batches, in ascending order. All ranks get similar numbers of tokens.

    The micro-batches are assigned in descending order of size. The next one always goes to the rank that has the
    fewest tokens so far; of several such ranks, to one with the fewest micro-batches. The largest load is at most 4/3
    of the optimum (Graham, 1969).
    """
    loads = [0] * ranks
    shares = [list[int]() for _ in range(ranks)]
    for index in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], len(shares[r]), r))
        loads[rank] += tokens[index]
        shares[rank].append(index)
    return [sorted(indices) for indices in shares]


def plan_update(
    loader: BatchLoader, start: Position, count: int, world: World
) -> tuple[list[Position], int, WorkShare]:
    """Plan an update that consists of the next `count` micro-batches from position `start`.

    Returns the positions of these micro-batches (or of their parts), their number of tokens, and this rank's share.
    """
    positions = split_positions(loader, loader.positions(start, count), world.size)
    targets, tokens = zip(*map(loader.token_counts, positions), strict=True)
    return positions, sum(tokens), WorkShare(balance(tokens, world.size)[world.rank], len(positions), sum(targets))


def split_positions(loader: BatchLoader, positions: list[Position], ranks: int) -> list[Position]:
    """Split micro-batches into as few parts as possible such that every rank gets one. An example is not split."""
    sizes = [len(loader.examples(position)) for position in positions]
    parts = 1
    while sum(min(parts, size) for size in sizes) < ranks and parts < max(sizes):
        parts += 1
    if parts == 1:
        return positions
    pairs = zip(positions, sizes, strict=True)
    return [(*position[:2], n, min(parts, size)) for position, size in pairs for n in range(min(parts, size))]


def full_share(micro_batches: Sequence[Batch]) -> WorkShare:
    """Return the share of a rank that computes the complete update alone."""
    n = len(micro_batches)
    return WorkShare(range(n), n, sum(batch.n_targets for batch in micro_batches))
