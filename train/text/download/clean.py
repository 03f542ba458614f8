"""Which pairs of a corpus are learned from: those of sound length, ratio and script that were not there before."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 8192  # pairs
# Letters of Greek, Cyrillic, Hebrew, Arabic, of Asia: all that is neither Latin nor common to scripts.
FOREIGN = re.compile(
    "[\u0370-\u1cff\u1f00-\u1fff\u2c00-\u2c5f\u2d00-\u2ddf\u3040-\ua71f\ua800-\ufaff\ufb13-\ufdff\ufe70-\uffdc]"
)
LETTER = re.compile(r"[^\W\d_]")
REASONS = ("empty", "long", "ratio", "script", "duplicate")


@dataclass(frozen=True)
class Rules:
    """What a pair must keep to; 0 switches a rule off."""

    max_words: int = 250  # a side, parted by white space
    max_ratio: float = 3.0  # of the longer side's characters to the shorter's, 20 added to both: names may differ
    scripts: bool = True  # at most half of the letters of a side are not Latin
    duplicates: bool = True  # the same pair again is left out


class Cleaner:
    """`kept(pairs)` passes on the pairs that keep to the rules; `counts` says how many were read, kept, and why not.

    A pair that was seen is known by 8 bytes of its hash, in a table of at most 32 bytes for each different pair.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules, self.seen = rules, Seen()
        self.counts: Counter[str] = Counter(dict.fromkeys(("read", "kept", *REASONS), 0))

    def kept(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The good pairs, with each run of white space made one space."""
        pairs = iter(pairs)
        while chunk := list(islice(pairs, CHUNK)):
            self.counts["read"] += len(chunk)
            good = []
            for pair in ((" ".join(src.split()), " ".join(tgt.split())) for src, tgt in chunk):
                reason = self.reason(*pair)
                if reason:
                    self.counts[reason] += 1
                else:
                    good.append(pair)
            if self.rules.duplicates and good:
                new = self.seen.add([blake2b(f"{a}\n{b}".encode(), digest_size=8).digest() for a, b in good])
                self.counts["duplicate"] += len(good) - int(new.sum())
                good = [pair for pair, fresh in zip(good, new.tolist(), strict=True) if fresh]
            self.counts["kept"] += len(good)
            yield from good

    def reason(self, src: str, tgt: str) -> str:
        """Why a pair is left out; "" where it is not."""
        rules = self.rules
        if not (src and tgt):
            return "empty"
        if rules.max_words and max(src.count(" "), tgt.count(" ")) >= rules.max_words:
            return "long"
        short, long = sorted((len(src), len(tgt)))
        if rules.max_ratio and long + 20 > rules.max_ratio * (short + 20):
            return "ratio"
        return "script" if rules.scripts and (foreign(src) or foreign(tgt)) else ""


def foreign(text: str) -> bool:
    """Whether more than half of the letters of a text are not Latin."""
    if text.isascii():
        return False
    others = len(FOREIGN.findall(text))
    return others > 0 and 2 * others > len(LETTER.findall(text))


class Seen:
    """A set of hashes, 8 bytes each: open addressing in one array, which doubles when it is half full."""

    def __init__(self, room: int = 1 << 16) -> None:
        self.table = np.zeros(room, np.uint64)  # 0: nobody
        self.held = 0

    def add(self, hashes: list[bytes]) -> NDArray[Any]:
        """Adds hashes; which of them (bool) were not there, the first of equal ones alone."""
        values = np.frombuffer(b"".join(hashes), np.uint64) | np.uint64(1)
        different, first = np.unique(values, return_index=True)
        while 2 * (self.held + len(different)) > len(self.table):
            old = self.table[self.table > 0]
            self.table = np.zeros(2 * len(self.table), np.uint64)
            self._insert(old)
        fresh = self._insert(different)
        self.held += int(fresh.sum())
        new = np.zeros(len(values), bool)
        new[first[fresh]] = True
        return new

    def _insert(self, values: NDArray[np.uint64]) -> NDArray[Any]:
        """Inserts different values; which were not there (bool)."""
        table, fresh = self.table, np.zeros(len(values), bool)
        mask = np.uint64(len(table) - 1)
        waiting = np.arange(len(values))
        place = (values >> np.uint64(1)) & mask
        while len(waiting):
            empty = table[place] == 0
            table[place[empty]] = values[waiting[empty]]  # where several want a place, one has it
            there = table[place] == values[waiting]
            fresh[waiting[there & empty]] = True
            waiting, place = waiting[~there], (place[~there] + np.uint64(1)) & mask
        return fresh
