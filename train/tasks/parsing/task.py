"""Constituency parsing (section 6.3): the task, with F1 as its validation score, and the parsing of text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import npx
from models.fields import key
from models.search import Hypothesis, SearchModel, beam_search, greedy_search
from train.errors import UserError
from train.tasks.pairs import Line, PairTask, search_lines
from train.tasks.parsing.constrained import ConstrainedParser
from train.tasks.parsing.evalb import Report, score
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.linearize import tree_from_tokens
from train.tasks.parsing.tokenizer import KINDS, TreeTokenizer
from train.tasks.parsing.trees import Tree, clean, escape_brackets, read_trees, write_tree
from train.tasks.protocols import Configuration, SourceModel
from train.tasks.task import file_key, task
from train.text.affixes import split_words
from train.text.batches import PairBatch
from train.text.corpus import PairCorpus, prepare_pairs
from train.text.lines import chunks_of

CHUNK = 1024  # number of trees encoded together


@dataclass(frozen=True)
class ParsingKeys:
    """A parser is trained on trees in Penn Treebank brackets."""

    train_trees: str = file_key("Training trees of a parser: Penn Treebank brackets. Option: --train-trees.")
    valid_trees: str = file_key("Validation trees of a parser; empty: none. Option: --valid-trees.")
    tree_leaves: str = key(
        "XX",
        "Output token for a word in a parser's trees: XX, as in the paper, or the word's tag, which is better for a"
        " small set of training trees. Option: --tree-leaves.",
        choices=("XX", "tags"),
    )


@task
class Parsing(PairTask[TreeTokenizer]):
    """Predict the linearized tree of a sentence."""

    name = "parsing"
    model_kind = "a parser"
    command = "parse"
    key_class = ParsingKeys
    file_keys = {"train": ("train_trees",), "valid": ("valid_trees",)}
    tokenizers = KINDS
    scores = {"f1": "F1", "repaired": "repaired %"}
    lower_is_better = ("repaired",)
    selection_metric = "f1"

    def train_tokenizer(self, data: Any, files: Sequence[str]) -> TreeTokenizer:
        return TreeTokenizer.from_trees(
            list(read_clean_trees(files[0])), data.tokenizer, data.vocab_size, data.tree_leaves == "tags"
        )

    def load_tokenizer(self, path: str | Path) -> TreeTokenizer:
        return TreeTokenizer.load(path)

    def prepare(self, files: Sequence[str], tokenizer: TreeTokenizer, *args: Any) -> PairCorpus:
        (path,) = files

        def encode(on_bytes: Callable[[bytes], object]) -> Iterator[tuple[list[list[int]], ...]]:
            trees = read_clean_trees(path, on_bytes)
            for chunk in chunks_of(trees, CHUNK, lambda tree: sum(map(len, tree.words()))):
                yield encode_pairs(chunk, tokenizer)

        return prepare_pairs({"trees": path}, encode, tokenizer, *args)

    def side_tokenizers(self, tokenizer: TreeTokenizer) -> tuple[TreeTokenizer, None]:
        return tokenizer, None

    def evaluation(self, config: Configuration, tokenizer: TreeTokenizer, corpus: PairCorpus) -> "GreedyF1 | None":
        if not config.train.validate_score:
            return None
        return GreedyF1(tokenizer, config.data.valid_trees, corpus, config.search.max_extra_tokens)


def read_clean_trees(path: str | PathLike[str], on_bytes: Callable[[bytes], object] | None = None) -> Iterator[Tree]:
    """Yield the trees of a file, cleaned for training; skip trees that have no words.

    Raises UserError if no tree remains.
    """
    is_empty = True
    for _, tree in read_trees(path, on_bytes):
        if (tree := clean(tree)).children:
            is_empty = False
            yield tree
    if is_empty:
        raise UserError(f"{path}: expected at least one tree with a word; got only traces; try (S (NN word))")


def encode_pairs(trees: Sequence[Tree], tokenizer: TreeTokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """Return the token ids of the trees' sentences and the token ids of the trees."""
    return tokenizer.encode_batch([" ".join(tree.words()) for tree in trees]), tokenizer.encode_trees(trees)


class GreedyF1:
    """EVALB's labeled F1 of greedy search, over the trees of the file `path` that are in its prepared `corpus`."""

    def __init__(self, tokenizer: TreeTokenizer, path: str, corpus: PairCorpus, max_extra_tokens: int) -> None:
        self.tokenizer, self.max_extra_tokens = tokenizer, max_extra_tokens
        trees = list(read_clean_trees(path))
        self.gold = [trees[number - 1] for number in corpus.line_numbers(npx.host.arange(len(corpus)))]
        self.records: list[tuple[Tree, Tree, bool]] = []  # gold tree, predicted tree, whether it was repaired

    def add(self, model: SearchModel, indices: npx.Array, batch: PairBatch) -> None:
        best = greedy_search(model, batch.src, max_extra_tokens=self.max_extra_tokens)
        for i, hypothesis in zip(indices, best, strict=True):
            gold = self.gold[int(i)]
            self.records.append((gold, *tree_from_tokens(self.tokenizer.symbols(hypothesis.tokens), gold.words())))

    def result(self) -> dict[str, float]:
        report = score(([gold], [predicted]) for gold, predicted, _ in self.records)
        repaired = sum(repaired for *_, repaired in self.records)
        return {"f1": report.total.f1, "repaired": 100 * repaired / max(1, len(self.records))}


# ---- parsing of text


@dataclass
class Parse:
    """A predicted tree."""

    tree: Tree
    score: float
    repaired: bool  # whether the output was not a tree over the words

    def __str__(self) -> str:
        return write_tree(self.tree)


def parse_stream(
    model: SourceModel,
    tokenizer: TreeTokenizer,
    lines: Iterable[str | None],
    free: bool = False,
    lexicon: Lexicon | None = None,
    **options: Any,
) -> Iterator[list[Parse]]:
    """Yield, for each line, the `n_best` parses of its words, best first; an empty list for a line without words.

    Words are separated by spaces, as in the Penn Treebank; a bracket in a word becomes -LRB- or -RRB-. Every tree has
    exactly the words of its line, even if the model truncates the line.

    Args:
        model: a parser, in eval mode.
        tokenizer: the model's tokenizer.
        lines: sentences; None marks a pause in the input.
        free: whether to search without constraints, as in the paper, and repair outputs that are not trees. By default
            the search is constrained to trees over the words, with the tags of the lexicon.
        lexicon: possible tags of words; default: the tokenizer's, if it has one.
        options: keyword arguments of `search_lines`.
    """

    def decode(src: npx.Array, lines: list[Line], **search: Any) -> list[list[Hypothesis]]:
        words = [split_words(line.text) for line in lines]
        parser = ConstrainedParser(model, tokenizer, words, lexicon or tokenizer.lexicon)
        return beam_search(parser, src, **search)

    escaped = (line and escape_brackets(line) for line in lines)

    def parses(line: Line, hypotheses: list[Hypothesis]) -> list[Parse]:
        words = split_words(line.text)
        # If no word has a token, there is no search, and the tree is flat.
        outputs = [(h.tokens, h.score) for h in hypotheses] or [([], 0.0)] * bool(words)
        trees = (tree_from_tokens(tokenizer.symbols(tokens), words) for tokens, _ in outputs)
        return [Parse(tree, score, repaired) for (tree, repaired), (_, score) in zip(trees, outputs, strict=True)]

    results = search_lines(model, tokenizer, escaped, decode=None if free else decode, **options)
    return (parses(line, hypotheses) for line, hypotheses in results)


def parse_gold(
    model: SourceModel, tokenizer: TreeTokenizer, gold: Sequence[Tree], **options: Any
) -> tuple[list[list[Parse]], Report]:
    """Parse the sentences of clean gold trees and score the best parse of each; `options` as for `parse_stream`."""
    parses = list(parse_stream(model, tokenizer, (" ".join(tree.words()) for tree in gold), **options))
    return parses, score(([tree], [hypotheses[0].tree]) for tree, hypotheses in zip(gold, parses, strict=True))
