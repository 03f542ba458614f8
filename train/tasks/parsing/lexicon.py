"""What is known of words: their shape and ending, and which tags they may have, by how often trees gave them which.

A word has a tag if P(tag | word) is at least LEAST. Of a word that occurs n times, c of them with the tag,

    P(tag | word) = (c + P(tag | shape, ending)) / (n + 1)

and P(tag | shape, ending) likewise from P(tag | shape), that from P(tag), each counted over words that occur at most
RARE times: it is those that a new word is like. So a frequent word has the tags it was seen with, but for what is most
likely a slip; a rare one those of its kind as well; a new one those of its kind alone.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from train.tasks.parsing.trees import Tree

ENDING = 3  # characters
LEAST = 0.01
RARE = 5

Counts = Mapping[str, Mapping[str, int]]  # tag -> word -> how often


class Lexicon:
    """`tags` of a word, from the `counts` of trees."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._words: dict[str, Counter[str]] = defaultdict(Counter)
        for tag, words in counts.items():
            for word, n in words.items():
                self._words[word][tag] = n
        self._kinds: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)  # of rare words: all, by shape, ...
        for word, tags in self._words.items():
            if tags.total() <= RARE:
                for kind in _kinds(word):
                    self._kinds[kind].update(tags)

    @classmethod
    def learn(cls, trees: Iterable[Tree]) -> "Lexicon":
        """Count the leaves of cleaned trees."""
        counts: dict[str, dict[str, int]] = defaultdict(dict)
        for leaf, n in sorted(Counter(leaf for tree in trees for leaf in tree.leaves()).items()):
            counts[leaf.tag][leaf.word] = n
        return cls(counts)

    def tags(self, word: str) -> frozenset[str]:
        """Those that a word may have."""
        share = dict.fromkeys(self.counts, 1 / max(1, len(self.counts)))
        for seen in (*(self._kinds.get(kind) for kind in _kinds(word)), self._words.get(word)):
            if seen:
                total = seen.total() + 1
                share = {tag: (seen[tag] + p) / total for tag, p in share.items()}
        return frozenset(tag for tag, p in share.items() if p >= LEAST)


def _kinds(word: str) -> tuple[tuple[str, ...], ...]:
    """What a word is one of, each kind within the one before it."""
    return (), (shape(word),), (shape(word), ending(word))


def shape(word: str) -> str:
    """What kinds of characters a word is made of: ?Aa, ?aa-aa, ?00."""
    kinds = re.sub(r"[^\W\d_]", lambda m: "A" if m[0].isupper() else "a", re.sub(r"\d", "0", word))
    return "?" + re.sub(r"(.)\1+", r"\1\1", kinds)[:8]


def ending(word: str) -> str:
    """The last characters of a word, in lower case; of a short one all."""
    return f"~{word[-ENDING:].lower()}"
