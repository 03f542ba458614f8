"""Clean sentence pairs: remove them by length, length ratio, script, or as duplicates."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError

CHUNK = 8192  # number of pairs filtered together
# Letters that are neither Latin nor common to several scripts: Greek, Cyrillic, Hebrew, Arabic and Asian scripts.
NON_LATIN = re.compile(
    "[\u0370-\u1cff\u1f00-\u1fff\u2c00-\u2c5f\u2d00-\u2ddf\u3040-\ua71f\ua800-\ufaff\ufb13-\ufdff\ufe70-\uffdc]"
)
LETTER = re.compile(r"[^\W\d_]")
REASONS = {  # maps a key of the counts to its name in the output
    "empty": "empty", "long": "too long", "ratio": "length ratio", "script": "not Latin", "duplicate": "duplicates",
}  # fmt: skip
REMEDIES = {"long": "--max-words 0", "ratio": "--max-ratio 0", "script": "--keep-non-latin"}  # options of `data`


@dataclass(frozen=True)
class Rules:
    """The rules by which pairs are removed; 0 disables a limit."""

    max_words: int = 250  # words per side, separated by whitespace
    max_ratio: float = 3.0  # (longer + 20) / (shorter + 20) in characters; adding 20 keeps pairs of short names
    scripts: bool = True  # whether to remove pairs with a side whose letters are mostly not Latin
    duplicates: bool = True  # whether to remove repeated pairs


def describe_removed(counts: Mapping[str, int]) -> str:
    """Return the numbers of removed pairs by reason as text."""
    return ", ".join(f"{counts[reason]:,} {words}" for reason, words in REASONS.items())


class Cleaner:
    """Filters pairs by rules; `counts` holds the number of pairs read, kept, and removed for each reason.

    Duplicates are detected by 8-byte hashes, in a table of at most 32 bytes per distinct pair.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.hashes = HashSet()
        self.counts: Counter[str] = Counter(dict.fromkeys(("read", "kept", *REASONS), 0))

    def filter(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield the pairs to keep, with each run of whitespace replaced by one space."""
        pairs = iter(pairs)
        while chunk := list(islice(pairs, CHUNK)):
            self.counts["read"] += len(chunk)
            clean = []
            for pair in ((" ".join(src.split()), " ".join(tgt.split())) for src, tgt in chunk):
                reason = self.reason(*pair)
                if reason:
                    self.counts[reason] += 1
                else:
                    clean.append(pair)
            if self.rules.duplicates and clean:
                is_new = self.hashes.add([blake2b(f"{a}\n{b}".encode(), digest_size=8).digest() for a, b in clean])
                self.counts["duplicate"] += len(clean) - int(is_new.sum())
                clean = [pair for pair, new in zip(clean, is_new.tolist(), strict=True) if new]
            self.counts["kept"] += len(clean)
            yield from clean

    def reason(self, src: str, tgt: str) -> str:
        """Return why a pair is removed, or "" to keep it."""
        rules = self.rules
        if not (src and tgt):
            return "empty"
        if rules.max_words and max(src.count(" "), tgt.count(" ")) >= rules.max_words:
            return "long"
        short, long = sorted((len(src), len(tgt)))
        if rules.max_ratio and long + 20 > rules.max_ratio * (short + 20):
            return "ratio"
        return "script" if rules.scripts and (is_non_latin(src) or is_non_latin(tgt)) else ""


def clean_pairs(cleaner: Cleaner, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that a cleaner keeps.

    If it keeps none, raises UserError with the option that would keep the most pairs.
    """
    yield from cleaner.filter(pairs)
    counts = cleaner.counts
    if not counts["kept"]:
        remedy = REMEDIES.get(max(REASONS, key=lambda reason: counts[reason]), "other files")
        raise UserError(
            f"train: expected at least one pair; got 0 of {counts['read']:,} after cleaning, which removed "
            f"{describe_removed(counts)}; try {remedy}"
        )


def is_non_latin(text: str) -> bool:
    """Return whether more than half of the letters of a text are not Latin."""
    if text.isascii():
        return False
    non_latin = len(NON_LATIN.findall(text))
    return non_latin > 0 and 2 * non_latin > len(LETTER.findall(text))


class HashSet:
    """A set of 8-byte hashes: a table with open addressing, whose size doubles when it is half full."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self.table = np.zeros(capacity, np.uint64)  # 0 marks an empty slot
        self.size = 0

    def add(self, hashes: list[bytes]) -> NDArray[Any]:
        """Add hashes; return a bool array that is True for each new hash (once, if it is repeated)."""
        values = np.frombuffer(b"".join(hashes), np.uint64) | np.uint64(1)
        distinct, first = np.unique(values, return_index=True)
        while 2 * (self.size + len(distinct)) > len(self.table):
            old = self.table[self.table > 0]
            self.table = np.zeros(2 * len(self.table), np.uint64)
            self._insert(old)
        inserted = self._insert(distinct)
        self.size += int(inserted.sum())
        is_new = np.zeros(len(values), bool)
        is_new[first[inserted]] = True
        return is_new

    def _insert(self, values: NDArray[np.uint64]) -> NDArray[Any]:
        """Insert distinct values; return a bool array that is True for values that were absent."""
        table = self.table
        inserted = np.zeros(len(values), bool)
        mask = np.uint64(len(table) - 1)
        pending = np.arange(len(values))
        slot = (values >> np.uint64(1)) & mask
        while len(pending):
            is_empty = table[slot] == 0
            table[slot[is_empty]] = values[pending[is_empty]]  # if several values fall into one slot, one is stored
            is_stored = table[slot] == values[pending]
            inserted[pending[is_stored & is_empty]] = True
            pending = pending[~is_stored]
            slot = (slot[~is_stored] + np.uint64(1)) & mask
        return inserted
