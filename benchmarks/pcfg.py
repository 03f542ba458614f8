"""The baseline of parsing: a probabilistic grammar read off the training trees, and the likeliest tree under it (CKY).

    python -m benchmarks.pcfg --train wsj-train.mrg --gold wsj-test.mrg --output wsj-test.pcfg

Rules of more than two parts are made of binary ones that remember the last `--horizontal` parts; labels carry those of
`--vertical` - 1 constituents above them (Johnson, 1998; Klein and Manning, 2003). 1 and infinity are the grammar as it
stands in the trees. A word's tags are those it was seen with, smoothed by those of rare words of the same ending and
shape, which alone speak for a word not seen.
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
from train.tasks.parsing.tokenizer import shape
from train.tasks.parsing.trees import TOP, Leaf, Tree, punctuation

RARE = 2  # words seen at most so often speak for unseen ones
SMOOTHING = 1.0  # what their tags count for beside a word's own
BETWEEN = "|>"  # in the name of a symbol that stands for the rest of a rule
NONE = -np.inf


class Pcfg:
    """A grammar with its lexicon: `parse(words)` is the likeliest tree."""

    def __init__(self, trees: Iterable[Tree], horizontal: int = 2, vertical: int = 2) -> None:
        self.horizontal, self.vertical = horizontal, vertical
        binary: Counter[tuple[str, str, str]] = Counter()
        unary: Counter[tuple[str, str]] = Counter()
        words: dict[str, Counter[str]] = defaultdict(Counter)
        for tree in trees:
            for leaf, mark in zip(tree.leaves(), punctuation(tree.words()), strict=True):
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
        self.names, self.index = names, {name: i for i, name in enumerate(names)}
        weighed = ((*map(self.index.get, rule), np.log(n / totals[rule[0]])) for rule, n in binary.items())
        columns = list(zip(*sorted(weighed), strict=True))
        self.left, self.first, self.second = map(np.array, columns[:3])
        self.weight = np.array(columns[3], np.float32)
        self.close_unaries({(self.index[a], self.index[b]): np.log(n / totals[a]) for (a, b), n in unary.items()})
        self.learn_words(words)

    def rules(self, tree: Tree) -> Iterator[tuple[str, ...]]:
        """(left side, one part) or (left side, two parts) for each rule of a tree, in parts of at most two."""
        waiting: list[tuple[Tree, tuple[str, ...]]] = [(tree, ())]
        while waiting:
            node, above = waiting.pop()
            below = (node.label, *above)[: self.vertical - 1]
            parts = []
            for child in node.children:
                parts.append(child.tag if isinstance(child, Leaf) else self.name(child.label, below))
                if isinstance(child, Tree):
                    waiting.append((child, below))
            left = own = self.name(node.label, above)
            for i in range(len(parts) - 2):
                rest = f"{own}{BETWEEN}{' '.join(parts[max(0, i + 1 - self.horizontal) : i + 1])}"
                yield left, parts[i], rest
                left = rest
            yield left, *parts[-2:]

    def name(self, label: str, above: tuple[str, ...]) -> str:
        """A label with those above it."""
        return "^".join((label, *above[: self.vertical - 1]))

    def close_unaries(self, rules: dict[tuple[int, int], float]) -> None:
        """The best chain of unary rules from every symbol to every other, and where it goes first."""
        size = len(self.names)
        touched = sorted({i for pair in rules for i in pair})
        self.touched, place = np.array(touched), {symbol: i for i, symbol in enumerate(touched)}
        best = np.full((len(touched), len(touched)), NONE, np.float32)
        step = np.tile(np.arange(len(touched)), (len(touched), 1))
        for (a, b), weight in rules.items():
            if a != b:
                best[place[a], place[b]] = weight
        np.fill_diagonal(best, 0)
        for k in range(len(touched)):
            through = best[:, k : k + 1] + best[k]
            better = through > best
            best, step = np.where(better, through, best), np.where(better, step[:, k : k + 1], step)
        self.unary, self.step, self.place, self.size = best, step, place, size

    def learn_words(self, words: dict[str, Counter[str]]) -> None:
        """Log P(word | tag), but for P(word), of known words and of the classes of unknown ones."""
        tags: Counter[str] = Counter()
        classes: dict[str, Counter[str]] = defaultdict(Counter)
        for word, seen in words.items():
            tags.update(seen)
            if sum(seen.values()) <= RARE:
                for kind in kinds(word):
                    classes[kind].update(seen)
        self.tags, self.total, self.words, self.classes = tags, sum(tags.values()), words, classes

    def word(self, word: str, mark: str) -> dict[int, float]:
        """The tags of a word: symbol -> log P(tag | word) / P(tag)."""
        if mark in self.tags:
            return {self.index[mark]: 0.0}
        seen = self.words.get(word, Counter())
        like = next((c for kind in kinds(word) if (c := self.classes.get(kind))), self.tags)
        n, m = sum(seen.values()), sum(like.values())
        share = {
            t: (seen[t] + SMOOTHING * like[t] / m) / (n + SMOOTHING)
            for t in {*seen, *like}
            if t not in TAGS_OF_PUNCTUATION
        }
        return {self.index[t]: float(np.log(p * self.total / self.tags[t])) for t, p in share.items()}

    def parse(self, words: Sequence[str]) -> tuple[Tree, bool]:
        """The likeliest tree, and False; a flat one and True where the grammar has none."""
        n, marks = len(words), punctuation(words)
        chart = np.full((n, n + 1, self.size), NONE, np.float32)  # of words i to j, symbol
        bare = np.full((n, n + 1, self.size), NONE, np.float32)  # the same before unary rules
        for i, (word, mark) in enumerate(zip(words, marks, strict=True)):
            for symbol, weight in self.word(word, mark).items():
                bare[i, i + 1, symbol] = weight
            chart[i, i + 1] = self.with_unaries(bare[i, i + 1])
        for width in range(2, n + 1):
            for i in range(n - width + 1):
                self.combine(chart, bare[i, i + width], i, i + width)
                chart[i, i + width] = self.with_unaries(bare[i, i + width])
        goal = self.index[TOP]
        if chart[0, n, goal] == NONE:
            choices = [self.word(word, mark) for word, mark in zip(words, marks, strict=True)]
            tags = [self.names[max(choice, key=choice.__getitem__)] for choice in choices]
            return Tree(TOP, [Tree("S", map(Leaf, tags, words))]), True
        return self.read(chart, bare, words, goal), False

    def combine(self, chart: Any, bare: Any, i: int, j: int) -> None:
        """The best two parts of the words i to j, for every symbol."""
        lefts, rights = chart[i, i + 1 : j], chart[i + 1 : j, j]  # (splits, symbols)
        alive = (lefts > NONE).any(0)[self.first] & (rights > NONE).any(0)[self.second]
        some = np.flatnonzero(alive)
        if not len(some):
            return
        best = (lefts[:, self.first[some]] + rights[:, self.second[some]]).max(axis=0) + self.weight[some]
        symbols, starts = np.unique(self.left[some], return_index=True)
        bare[symbols] = np.maximum.reduceat(best, starts)

    def with_unaries(self, bare: Any) -> Any:
        """The scores with a chain of unary rules on top."""
        full, own = bare.copy(), bare[self.touched]
        full[self.touched] = (self.unary + own).max(axis=1)
        return full

    def read(self, chart: Any, bare: Any, words: Sequence[str], goal: int) -> Tree:
        """The tree that the chart's best score stands for."""
        top = Tree("")
        waiting = [(goal, 0, len(words), top, True)]
        while waiting:
            symbol, i, j, above, chained = waiting.pop()
            if chained and symbol in self.place:
                row = self.unary[self.place[symbol]] + bare[i, j, self.touched]
                target = int(row.argmax())
                while self.touched[target] != symbol:
                    above = self.put(symbol, above)
                    symbol = int(self.touched[self.step[self.place[symbol], target]])
            name = self.names[symbol]
            if j == i + 1:
                above.children.append(Leaf(name, words[i]))
                continue
            node = self.put(symbol, above)
            rules = np.flatnonzero(self.left == symbol)
            b, c = self.first[rules], self.second[rules]
            scores = chart[i, i + 1 : j][:, b] + chart[i + 1 : j, j][:, c] + self.weight[rules]
            split, rule = np.unravel_index(scores.argmax(), scores.shape)
            middle = i + 1 + int(split)
            waiting.append((int(c[rule]), middle, j, node, True))
            waiting.append((int(b[rule]), i, middle, node, True))
        return top.children[0]  # type: ignore[return-value]

    def put(self, symbol: int, above: Tree) -> Tree:
        """A new constituent in the one above; that one itself for the rest of a rule."""
        name = self.names[symbol]
        if BETWEEN in name:
            return above
        node = Tree(name.split("^")[0])
        above.children.append(node)
        return node


def kinds(word: str) -> list[str]:
    """Classes of a word that was not seen, the narrowest first."""
    form, small = shape(word), word.lower()
    return [f"{form} {small[-3:]}", f"{form} {small[-2:]}", f"{form} {small[-1:]}", form]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--train", required=True, help="trees")
    p.add_argument("--gold", required=True, help="trees whose sentences are parsed")
    p.add_argument("--output", type=Path, help="where the trees found go")
    p.add_argument("--horizontal", type=int, default=2)
    p.add_argument("--vertical", type=int, default=2)
    p.add_argument("--longest", type=int, default=1000, help="words; longer sentences are left out")
    a = p.parse_args()
    started = time.perf_counter()
    grammar = Pcfg(read_clean_trees(a.train), a.horizontal, a.vertical)
    print(f"{len(grammar.names):,} symbols, {len(grammar.weight):,} binary rules", flush=True)
    gold = [tree for tree in read_clean_trees(a.gold) if len(tree.words()) <= a.longest]
    found = [[Parse(tree, 0.0, flat)] for tree, flat in (grammar.parse(tree.words()) for tree in gold)]
    print("\n".join(summarize(found, score(([g], [f[0].tree]) for g, f in zip(gold, found, strict=True)))))
    print(f"{time.perf_counter() - started:.0f} s")
    if a.output:
        a.output.write_text("".join(f"{parse}\n" for (parse,) in found), encoding="utf-8")


if __name__ == "__main__":
    main()
