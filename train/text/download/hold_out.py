"""Choose the validation text of `data own --hold-out N`: one pair of the training text for each of N sources.

The sources with the smallest hashes are chosen, so the order of the text does not matter. If the text grows, a source
remains chosen unless a new source with a smaller hash replaces it.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

import numpy as np

from train.errors import UserError

CHUNK = 8192  # number of pairs hashed together

Pairs = Iterable[tuple[str, str]]


def source_hash(pair: tuple[str, str]) -> int:
    """Return a 64-bit hash of the source of a pair."""
    return int.from_bytes(blake2b(pair[0].encode(), digest_size=8).digest(), "big")


def choose_sources(pairs: Pairs, count: int) -> set[int]:
    """Return the `count` smallest hashes of sources; raise UserError unless there are more distinct sources."""
    smallest = np.zeros(0, np.uint64)
    pairs = iter(pairs)
    while chunk := list(islice(pairs, CHUNK)):
        hashes = np.array([source_hash(pair) for pair in chunk], np.uint64)
        smallest = np.unique(np.concatenate([smallest, hashes]))[: count + 1]
    if len(smallest) <= count:
        raise UserError(
            f"--hold-out: expected fewer sources than the training text has; got {count:,} of {len(smallest):,} "
            f"distinct sources; try --hold-out {max(1, len(smallest) // 10)}"
        )
    return {*smallest[:count].tolist()}


def hold_out(pairs: Pairs, chosen: set[int]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield ("valid", pair) for the first pair of each chosen source and ("train", pair) for pairs of other sources.

    Other pairs of a chosen source are left out.
    """
    remaining = {*chosen}
    for pair in pairs:
        if (source := source_hash(pair)) not in chosen:
            yield "train", pair
        elif source in remaining:
            remaining.remove(source)
            yield "valid", pair
