"""An update's micro-batches shared out among the ranks: one plan, which every rank makes for itself.

The micro-batches of an update follow from (seed, epoch) and their number alone, and not from who computes them. So k
ranks with train.accumulate = a make the updates that one rank with a k makes, and a run may go on with other ranks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from npx.distributed import World
from train.text.batches import Position, Stream


class WorkShare(NamedTuple):
    """What one rank does of an update."""

    numbers: Sequence[int]  # of its micro-batches, among all of the update
    all: int  # how many these are
    targets: int  # of all of them, the target tokens

    def of_halves(self, halves: Sequence[int]) -> "WorkShare":
        """The share where each micro-batch is made of so many; the halves of number n are n and n + all."""
        made = zip(self.numbers, halves, strict=True)
        return self._replace(numbers=[n + half * self.all for n, parts in made for half in range(parts)])


def shared_out(tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """The numbers of the micro-batches that each rank takes, in order, so that ranks have nearly equal tokens.

    The largest first, each to the rank that has the fewest tokens so far (and of these the fewest micro-batches), as
    Graham (1969) does: no rank has more than 4/3 of the least that the greatest share can be.
    """
    loads, taken = [0] * ranks, [list[int]() for _ in range(ranks)]
    for number in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], len(taken[r]), r))
        loads[rank] += tokens[number]
        taken[rank].append(number)
    return [sorted(numbers) for numbers in taken]


def planned(stream: Stream, place: Position, count: int, world: World) -> tuple[list[Position], int, WorkShare]:
    """An update of `count` micro-batches from a place on: their places, all their tokens, and this rank's share."""
    places = stream.positions(place, count)
    targets, tokens = zip(*map(stream.sizes, places), strict=True)
    return places, sum(tokens), WorkShare(shared_out(tokens, world.size)[world.rank], count, sum(targets))


def whole(micro: Sequence[Any]) -> WorkShare:
    """The share of one rank that does all."""
    return WorkShare(range(len(micro)), len(micro), sum(batch.n_target_tokens for batch in micro))
