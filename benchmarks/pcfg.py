"""Baseline for parsing: a probabilistic grammar, estimated from training trees, with CKY parsing.

    python -m benchmarks.pcfg --train wsj-train.mrg --gold wsj-test.mrg --output wsj-test.pcfg

Rules with more than two children are binarized; the new symbols remember the last `--horizontal` children. A label
includes the labels of `--vertical` - 1 ancestors (Johnson, 1998; Klein and Manning, 2003). Unlimited horizontal memory
and `--vertical` 1 give the grammar of the unmodified trees. A word can have the tags of its occurrences, smoothed with
the tags of rare words with the same ending and shape; an unknown word can have only the tags of such rare words.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train.tasks.parsing.commands import summarize
from train.tasks.parsing.evalb import score
from train.tasks.parsing.linearize import TAGS_OF_PUNCTUATION
from train.tasks.parsing.task import Parse, read_clean_trees
from train.tasks.parsing.trees import TOP, Leaf, Tree, punctuation_tags
from train.text.affixes import word_shape

RARE = 2  # maximum count of the words that model unknown words
SMOOTHING = 1.0  # pseudo-count of the tags of similar words
REST = "|>"  # marks the name of a symbol for the rest of a binarized rule
IMPOSSIBLE = -np.inf


class Pcfg:
    """A grammar with its lexicon; `parse(words)` returns the most probable tree."""

    def __init__(self, trees: Iterable[Tree], horizontal: int = 2, vertical: int = 2) -> None:
        self.horizontal, self.vertical = horizontal, vertical
        binary: Counter[tuple[str, str, str]] = Counter()
        unary: Counter[tuple[str, str]] = Counter()
        words: dict[str, Counter[str]] = defaultdict(Counter)
        for tree in trees:
            for leaf, mark in zip(tree.leaves(), punctuation_tags(tree.words()), strict=True):
                words[leaf.word][mark or leaf.tag] += 1
            for left, *right in self.rules(tree):
                if len(right) == 2:
                    binary[left, right[0], right[1]] += 1
                else:
                    unary[left, right[0]] += 1
        totals: Counter[str] = Counter()
        for rule, n in (*binary.items(), *unary.items()):
            totals[rule[0]] += n
        names = sorted({name for rule in (*binary, *unary) for name in rule} | {t for c in words.values() for t in c})
        self.names = names
        self.index = {name: i for i, name in enumerate(names)}
        weighted = ((*map(self.index.get, rule), np.log(n / totals[rule[0]])) for rule, n in binary.items())
        columns = list(zip(*sorted(weighted), strict=True))
        self.left, self.first, self.second = map(np.array, columns[:3])
        self.weight = np.array(columns[3], np.float32)
        self.close_unaries({(self.index[a], self.index[b]): np.log(n / totals[a]) for (a, b), n in unary.items()})
        self.count_words(words)

    def rules(self, tree: Tree) -> Iterator[tuple[str, ...]]:
        """Yield the binarized rules of a tree as (left side, child) or (left side, child, child)."""
        stack: list[tuple[Tree, tuple[str, ...]]] = [(tree, ())]
        while stack:
            node, above = stack.pop()
            below = (node.label, *above)[: self.vertical - 1]
            parts = []
            for child in node.children:
                parts.append(child.tag if isinstance(child, Leaf) else self.name(child.label, below))
                if isinstance(child, Tree):
                    stack.append((child, below))
            left = name = self.name(node.label, above)
            for i in range(len(parts) - 2):
                rest = f"{name}{REST}{' '.join(parts[max(0, i + 1 - self.horizontal) : i + 1])}"
                yield left, parts[i], rest
                left = rest
            yield left, *parts[-2:]

    def name(self, label: str, above: tuple[str, ...]) -> str:
        """Return a label together with the labels of its ancestors."""
        return "^".join((label, *above[: self.vertical - 1]))

    def close_unaries(self, rules: dict[tuple[int, int], float]) -> None:
        """Compute the best chain of unary rules between all symbols, and its first step."""
        size = len(self.names)
        unary_symbols = sorted({i for pair in rules for i in pair})
        self.unary_symbols = np.array(unary_symbols)
        unary_index = {symbol: i for i, symbol in enumerate(unary_symbols)}
        best = np.full((len(unary_symbols), len(unary_symbols)), IMPOSSIBLE, np.float32)
        step = np.tile(np.arange(len(unary_symbols)), (len(unary_symbols), 1))
        for (a, b), weight in rules.items():
            if a != b:
                best[unary_index[a], unary_index[b]] = weight
        np.fill_diagonal(best, 0)
        for k in range(len(unary_symbols)):
            through = best[:, k : k + 1] + best[k]
            better = through > best
            best = np.where(better, through, best)
            step = np.where(better, step[:, k : k + 1], step)
        self.unary = best
        self.step = step
        self.unary_index = unary_index
        self.size = size

    def count_words(self, words: dict[str, Counter[str]]) -> None:
        """Count the tags of words and of the classes of rare words."""
        tags: Counter[str] = Counter()
        classes: dict[str, Counter[str]] = defaultdict(Counter)
        for word, counts in words.items():
            tags.update(counts)
            if sum(counts.values()) <= RARE:
                for word_class in word_classes(word):
                    classes[word_class].update(counts)
        self.tags = tags
        self.total = sum(tags.values())
        self.words = words
        self.classes = classes

    def word(self, word: str, mark: str) -> dict[int, float]:
        """Return the tags of a word, as a map from symbol to log P(tag | word) / P(tag)."""
        if mark in self.tags:
            return {self.index[mark]: 0.0}
        counts = self.words.get(word, Counter())
        similar = next((c for name in word_classes(word) if (c := self.classes.get(name))), self.tags)
        n, m = sum(counts.values()), sum(similar.values())
        probability = {
            t: (counts[t] + SMOOTHING * similar[t] / m) / (n + SMOOTHING)
            for t in {*counts, *similar}
            if t not in TAGS_OF_PUNCTUATION
        }
        return {self.index[t]: float(np.log(p * self.total / self.tags[t])) for t, p in probability.items()}

    def parse(self, words: Sequence[str]) -> tuple[Tree, bool]:
        """Return the most probable tree and False, or a flat tree and True if the grammar derives none."""
        n = len(words)
        marks = punctuation_tags(words)
        chart = np.full((n, n + 1, self.size), IMPOSSIBLE, np.float32)  # [i, j, symbol] for words i to j
        bare = np.full((n, n + 1, self.size), IMPOSSIBLE, np.float32)  # scores before unary rules
        for i, (word, mark) in enumerate(zip(words, marks, strict=True)):
            for symbol, weight in self.word(word, mark).items():
                bare[i, i + 1, symbol] = weight
            chart[i, i + 1] = self.with_unaries(bare[i, i + 1])
        for width in range(2, n + 1):
            for i in range(n - width + 1):
                self.combine(chart, bare[i, i + width], i, i + width)
                chart[i, i + width] = self.with_unaries(bare[i, i + width])
        goal = self.index[TOP]
        if chart[0, n, goal] == IMPOSSIBLE:
            choices = [self.word(word, mark) for word, mark in zip(words, marks, strict=True)]
            tags = [self.names[max(choice, key=choice.__getitem__)] for choice in choices]
            return Tree(TOP, [Tree("S", map(Leaf, tags, words))]), True
        return self.read(chart, bare, words, goal), False

    def combine(self, chart: Any, bare: Any, i: int, j: int) -> None:
        """Compute the best binary rule for the words i to j, for every symbol."""
        lefts, rights = chart[i, i + 1 : j], chart[i + 1 : j, j]  # (splits, symbols)
        alive = (lefts > IMPOSSIBLE).any(0)[self.first] & (rights > IMPOSSIBLE).any(0)[self.second]
        active = np.flatnonzero(alive)
        if not len(active):
            return
        best = (lefts[:, self.first[active]] + rights[:, self.second[active]]).max(axis=0) + self.weight[active]
        symbols, starts = np.unique(self.left[active], return_index=True)
        bare[symbols] = np.maximum.reduceat(best, starts)

    def with_unaries(self, bare: Any) -> Any:
        """Return the scores after the best chain of unary rules."""
        full = bare.copy()
        scores = bare[self.unary_symbols]
        full[self.unary_symbols] = (self.unary + scores).max(axis=1)
        return full

    def read(self, chart: Any, bare: Any, words: Sequence[str], goal: int) -> Tree:
        """Return the tree with the best score in the chart."""
        top = Tree("")
        stack = [(goal, 0, len(words), top, True)]
        while stack:
            symbol, i, j, parent, has_unaries = stack.pop()
            if has_unaries and symbol in self.unary_index:
                row = self.unary[self.unary_index[symbol]] + bare[i, j, self.unary_symbols]
                target = int(row.argmax())
                while self.unary_symbols[target] != symbol:
                    parent = self.add_node(symbol, parent)
                    symbol = int(self.unary_symbols[self.step[self.unary_index[symbol], target]])
            name = self.names[symbol]
            if j == i + 1:
                parent.children.append(Leaf(name, words[i]))
                continue
            node = self.add_node(symbol, parent)
            rules = np.flatnonzero(self.left == symbol)
            b, c = self.first[rules], self.second[rules]
            scores = chart[i, i + 1 : j][:, b] + chart[i + 1 : j, j][:, c] + self.weight[rules]
            split, rule = np.unravel_index(scores.argmax(), scores.shape)
            middle = i + 1 + int(split)
            stack.append((int(c[rule]), middle, j, node, True))
            stack.append((int(b[rule]), i, middle, node, True))
        return top.children[0]  # type: ignore[return-value]

    def add_node(self, symbol: int, parent: Tree) -> Tree:
        """Add a constituent to its parent; return the parent itself for the rest of a binarized rule."""
        name = self.names[symbol]
        if REST in name:
            return parent
        node = Tree(name.split("^")[0])
        parent.children.append(node)
        return node


def word_classes(word: str) -> list[str]:
    """Return the classes of an unknown word, the most specific first."""
    form = word_shape(word)
    lower = word.lower()
    return [f"{form} {lower[-3:]}", f"{form} {lower[-2:]}", f"{form} {lower[-1:]}", form]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--train", required=True, help="training trees")
    p.add_argument("--gold", required=True, help="gold trees of the sentences to parse")
    p.add_argument("--output", type=Path, help="file for the predicted trees")
    p.add_argument("--horizontal", type=int, default=2)
    p.add_argument("--vertical", type=int, default=2)
    p.add_argument("--longest", type=int, default=1000, help="skip sentences with more words")
    a = p.parse_args()
    started = time.perf_counter()
    grammar = Pcfg(read_clean_trees(a.train), a.horizontal, a.vertical)
    print(f"{len(grammar.names):,} symbols, {len(grammar.weight):,} binary rules", flush=True)
    gold = [tree for tree in read_clean_trees(a.gold) if len(tree.words()) <= a.longest]
    parses = [[Parse(tree, 0.0, flat)] for tree, flat in (grammar.parse(tree.words()) for tree in gold)]
    print("\n".join(summarize(parses, score(([g], [p[0].tree]) for g, p in zip(gold, parses, strict=True)))))
    print(f"{time.perf_counter() - started:.0f} s")
    if a.output:
        a.output.write_text("".join(f"{parse}\n" for (parse,) in parses), encoding="utf-8")


if __name__ == "__main__":
    main()
