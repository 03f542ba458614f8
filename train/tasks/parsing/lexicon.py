"""A lexicon: the part-of-speech tags that a word can have, estimated from trees.

A word can have a tag if P(tag | word) is at least MIN_PROBABILITY. For a word that occurs n times in total and c
times with the tag,

    P(tag | word) = (c + P(tag | shape, ending)) / (n + 1)

P(tag | shape, ending) is smoothed in the same way with P(tag | shape), and P(tag | shape) with P(tag). These three
probabilities are estimated from words that occur at most RARE times, because these resemble new words most. As a
result, a frequent word has the tags with which it occurs, unless they are likely annotation errors; a rare word also
has the tags of similar words; a new word has only the tags of similar words.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from train.tasks.parsing.trees import Tree
from train.text.affixes import word_ending, word_shape

MIN_PROBABILITY = 0.01
RARE = 5

Counts = Mapping[str, Mapping[str, int]]  # counts by tag and word


class Lexicon:
    """Possible tags of words, from the `counts` of (tag, word) in trees."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._words: dict[str, Counter[str]] = defaultdict(Counter)
        for tag, words in counts.items():
            for word, n in words.items():
                self._words[word][tag] = n
        self._classes: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)  # counts of rare words
        for word, tags in self._words.items():
            if tags.total() <= RARE:
                for word_class in _classes(word):
                    self._classes[word_class].update(tags)

    @classmethod
    def from_trees(cls, trees: Iterable[Tree]) -> "Lexicon":
        """Count the leaves of clean trees."""
        counts: dict[str, dict[str, int]] = defaultdict(dict)
        for leaf, n in sorted(Counter(leaf for tree in trees for leaf in tree.leaves()).items()):
            counts[leaf.tag][leaf.word] = n
        return cls(counts)

    def tags(self, word: str) -> frozenset[str]:
        """Return the tags that a word can have."""
        probability = dict.fromkeys(self.counts, 1 / max(1, len(self.counts)))
        for counts in (*(self._classes.get(word_class) for word_class in _classes(word)), self._words.get(word)):
            if counts:
                total = counts.total() + 1
                probability = {tag: (counts[tag] + p) / total for tag, p in probability.items()}
        return frozenset(tag for tag, p in probability.items() if p >= MIN_PROBABILITY)


def _classes(word: str) -> tuple[tuple[str, ...], ...]:
    """Return the classes of a word, from the most general to the most specific."""
    return (), (word_shape(word),), (word_shape(word), word_ending(word))
