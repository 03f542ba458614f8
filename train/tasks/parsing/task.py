"""Parsing: a sentence to its constituency tree (section 6.3), F1 while training; the parsing of text once trained."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import npx
from models.fields import key
from models.search import greedy_search
from train.errors import UserError
from train.tasks.pairs import Pairs, search_lines
from train.tasks.parsing.constrained import WholeTrees
from train.tasks.parsing.evalb import Report, score
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.linearize import tree_of
from train.tasks.parsing.tokenizer import KINDS, TreeTokenizer
from train.tasks.parsing.trees import Tree, clean, read_trees, split_words, write_tree
from train.tasks.task import task
from train.text.batches import Batch
from train.text.corpus import Corpus, prepare_pairs

CHUNK = 1024  # trees encoded together


@dataclass(frozen=True)
class ParsingKeys:
    """A parser learns trees, in Penn Treebank brackets."""

    # Files may move between a run and its resumption: that they hold the same text is told by SHA-256.
    train_trees: str = key("", "Trees a parser learns: Penn Treebank brackets. Also --train-trees.", may_change=True)
    valid_trees: str = key("", "Trees to validate a parser with; empty: none. Also --valid-trees.", may_change=True)
    leaves: str = key(
        "XX",
        "What a word is in the tree that a parser writes: XX, as in the paper, or its tag, from which a parser of few"
        " trees learns what kinds of words there are. Also --leaves.",
        choices=("XX", "tags"),
    )


@task
class Parsing(Pairs):
    """Sentences, and their trees written as tokens."""

    name = "parsing"
    keys = ParsingKeys
    files = {"train": ("train_trees",), "valid": ("valid_trees",)}
    tokenizers = KINDS
    scores = {"f1": "F1", "repaired": "repaired %"}
    selection_metric = "f1"

    def learn_tokenizer(self, data: Any, files: Sequence[str]) -> TreeTokenizer:
        return TreeTokenizer.learn(list(cleaned(files[0])), data.tokenizer, data.vocab_size, data.leaves == "tags")

    def load_tokenizer(self, path: str | Path) -> TreeTokenizer:
        tokenizer = TreeTokenizer.load(path)
        assert isinstance(tokenizer, TreeTokenizer)
        return tokenizer

    def prepare(self, files: Sequence[str], tokenizer: Any, *how: Any) -> Corpus:
        (path,) = files

        def encoded(watch: Callable[[bytes], object]) -> Iterator[tuple[list[list[int]], ...]]:
            trees = cleaned(path, watch)
            while part := list(islice(trees, CHUNK)):
                yield encode(part, tokenizer)

        return prepare_pairs({"trees": path}, encoded, tokenizer, *how)

    def evaluation(self, config: Any, tokenizer: Any, corpus: Corpus) -> "GreedyF1 | None":
        how = config.data.valid_trees, config.data.max_length, config.search.max_extra
        return GreedyF1(tokenizer, *how) if config.train.validate_bleu else None


def cleaned(path: str | PathLike[str], watch: Callable[[bytes], object] | None = None) -> Iterator[Tree]:
    """The trees of a file as a parser learns them, but for those without a word; UserError where none is left."""
    found = False
    for _, tree in read_trees(path, watch):
        if (tree := clean(tree)).children:
            found = True
            yield tree
    if not found:
        raise UserError(f"{path}: expected at least one tree with a word; got traces alone; try another file")


def encode(trees: Sequence[Tree], tokenizer: TreeTokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of the sentences of trees, and of the trees."""
    return tokenizer.encode_batch([" ".join(tree.words()) for tree in trees]), tokenizer.encode_trees(trees)


class GreedyF1:
    """Labelled F1 as EVALB has it, of greedy search, over the trees that `data.max_length` leaves in the corpus."""

    def __init__(self, tokenizer: TreeTokenizer, path: str, max_length: int, max_extra: int) -> None:
        self.tokenizer, self.max_extra = tokenizer, max_extra
        trees = list(cleaned(path))
        lengths = zip(*(map(len, side) for side in encode(trees, tokenizer)), strict=True)
        self.gold = [tree for tree, pair in zip(trees, lengths, strict=True) if max(pair) < max_length]
        self.records: list[tuple[Tree, Tree, bool]] = []  # gold, found, whether that one was repaired

    def add(self, model: Any, indices: npx.Array, batch: Batch) -> None:
        best = greedy_search(model, batch.src, max_extra=self.max_extra)
        for i, hypothesis in zip(indices, best, strict=True):
            gold = self.gold[int(i)]
            self.records.append((gold, *tree_of(self.tokenizer.symbols(hypothesis.tokens), gold.words())))

    def result(self) -> dict[str, float]:
        report = score(([gold], [found]) for gold, found, _ in self.records)
        repaired = sum(repaired for *_, repaired in self.records)
        return {"f1": report.all.f1, "repaired": 100 * repaired / max(1, len(self.records))}


# ---- parsing text


@dataclass
class Parse:
    """One tree found for a sentence."""

    tree: Tree
    score: float
    repaired: bool  # what the model wrote was no tree over the words

    def __str__(self) -> str:
        return write_tree(self.tree)


def parse_stream(
    model: Any,
    tokenizer: TreeTokenizer,
    lines: Iterable[str | None],
    free: bool = False,
    lexicon: Lexicon | None = None,
    **options: Any,
) -> Iterator[list[Parse]]:
    """Yield, for one line after another, the `n_best` parses of its words, best first; none for a line without words.

    Words are what spaces separate, as in the Penn Treebank; a bracket in a word becomes -LRB- or -RRB-. Every tree has
    exactly the words of its line, also where the model did not read all of them. The search is kept to trees over the
    words, and to the tags that a lexicon gives them (default: the tokenizer's, if it has one), unless it is `free`, as
    in the paper: then what is no tree is repaired. The options are `search_lines`'s.
    """

    def kept_to(model: Any, lines: list[str]) -> Any:
        if free:
            return model
        return WholeTrees(model, tokenizer, [split_words(line) for line in lines], lexicon or tokenizer.lexicon)

    escaped = (line and line.replace("(", "-LRB-").replace(")", "-RRB-") for line in lines)

    def parses(line: str, found: list[Any]) -> list[Parse]:
        words = split_words(line)
        trees = (tree_of(tokenizer.symbols(h.tokens), words) for h in found)
        return [Parse(tree, h.score, repaired) for (tree, repaired), h in zip(trees, found, strict=True)]

    return (parses(line, found) for line, found in search_lines(model, tokenizer, escaped, kept_to=kept_to, **options))


def parse_gold(
    model: Any, tokenizer: TreeTokenizer, gold: Sequence[Tree], **options: Any
) -> tuple[list[list[Parse]], Report]:
    """The parses of the sentences of cleaned trees, and the best of each scored beside them."""
    parses = list(parse_stream(model, tokenizer, (" ".join(tree.words()) for tree in gold), **options))
    return parses, score(([tree], [found[0].tree]) for tree, found in zip(gold, parses, strict=True))


def summary(parses: Sequence[Sequence[Parse]], report: Report) -> Iterator[str]:
    """Lines on how well gold trees were found: F1 of all, up to the cut-off, by length, and how many were repaired."""
    for name, counts in {"all": report.all, f"at most {report.cutoff}": report.short, **report.by_length()}.items():
        if counts.sentences:
            figures = f"F1 {counts.f1:6.2f}  recall {counts.recall:6.2f}  precision {counts.precision:6.2f}"
            yield f"{name + ' words':>17}: {counts.sentences:6,} sentences  {figures}"
    repaired, c = sum(found[0].repaired for found in parses), report.all
    yield f"repaired {repaired:,} of {len(parses):,} outputs; {c.errors:,} error sentences; {c.complete:,} exact trees"
