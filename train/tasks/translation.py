"""Translation: pairs of sentences, BLEU while training; and the translation of text once trained.

`translate_lines` translates lines, `translate_stream` does the same for input of any size, as it comes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import npx
from models.fields import key
from models.search import greedy_search
from train.tasks.pairs import Pairs, search_lines
from train.tasks.task import task
from train.text.batches import Batch
from train.text.corpus import Corpus, prepare


@dataclass(frozen=True)
class TranslationKeys:
    """Line i of the source file is translated by line i of the target file."""

    # Files may move between a run and its resumption: that they hold the same text is told by SHA-256.
    train_src: str = key(
        "", "Training text, source language: UTF-8, a sentence a line. Also --train-src.", may_change=True
    )
    train_tgt: str = key("", "Training text, target language. Also --train-tgt.", may_change=True)
    valid_src: str = key("", "Validation text, source language; empty: none. Also --valid-src.", may_change=True)
    valid_tgt: str = key("", "Validation text, target language. Also --valid-tgt.", may_change=True)


@task
class Translation(Pairs):
    """Pairs of sentences, the second predicted from the first."""

    name = "translation"
    keys = TranslationKeys
    files = {"train": ("train_src", "train_tgt"), "valid": ("valid_src", "valid_tgt")}
    scores = {"bleu": "BLEU"}

    def prepare(self, files: Sequence[str], *how: Any) -> Corpus:
        src, tgt = files
        return prepare(src, tgt, *how)

    def describe_examples(self, corpus: Corpus, examples: Any) -> str:
        return super().describe_examples(corpus, examples).replace("pairs", "lines", 1)

    def evaluation(self, config: Any, tokenizer: Any, corpus: Corpus) -> "GreedyBleu | None":
        how = "none" if config.data.pretokenizer == "whitespace" else "13a"  # none: the text is tokenised already
        return GreedyBleu(tokenizer, corpus, config.search.max_extra, how) if config.train.validate_bleu else None


class GreedyBleu:
    """sacreBLEU of greedy search."""

    def __init__(self, tokenizer: Any, corpus: Corpus, max_extra: int, tokenize: str) -> None:
        self.tokenizer, self.corpus, self.max_extra, self.tokenize = tokenizer, corpus, max_extra, tokenize
        self.records: dict[int, list[int]] = {}  # pair -> token ids

    def add(self, model: Any, indices: npx.Array, batch: Batch) -> None:
        best = greedy_search(model, batch.src, max_extra=self.max_extra)
        self.records |= {int(i): hypothesis.tokens for i, hypothesis in zip(indices, best, strict=True)}

    def result(self) -> dict[str, float]:
        from train.metrics.bleu import corpus_bleu_for_validation

        hypotheses = self.tokenizer.decode_batch(list(self.records.values()))
        references = self.tokenizer.decode_batch([self.corpus.pair(i)[1] for i in self.records])
        return {"bleu": corpus_bleu_for_validation(hypotheses, references, tokenize=self.tokenize)}


# ---- translating text


def translate_lines(model: Any, tokenizer: Any, lines: Iterable[str], **options: Any) -> list[list[tuple[str, float]]]:
    """The translations of every line, in order: for each the `n_best` pairs (text, score), best first.

    The options are `search_lines`'s.
    """
    return list(translate_stream(model, tokenizer, lines, **options))


def translate_stream(
    model: Any, tokenizer: Any, lines: Iterable[str | None], **options: Any
) -> Iterator[list[tuple[str, float]]]:
    """Yield the translations of one line after another: `n_best` pairs (text, score), best first.

    A line without tokens stays empty: [("", 0.0)]. The options are `search_lines`'s. Raises ValueError for a bad
    option, at once.
    """

    def texts(found: list[Any]) -> list[tuple[str, float]]:
        decoded = tokenizer.decode_batch([h.tokens for h in found])
        return [(_replace_line_ends(text), h.score) for text, h in zip(decoded, found, strict=True)] or [("", 0.0)]

    return (texts(found) for _, found in search_lines(model, tokenizer, lines, **options))


def _replace_line_ends(text: str) -> str:
    """`text` without line ends, so that line i of the output stays the translation of line i."""
    return text.replace("\r", " ").replace("\n", " ")
