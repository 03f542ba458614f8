"""Translation: pairs of sentences, their batches, BLEU while training; and the translation of text once trained.

`translate_lines` translates lines: to token ids, search in batches of like length, and back to lines in their order;
`translate_stream` does the same for input of any size, as it comes. The search is called here and nowhere else in
`train`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

import npx
from autograd import Tensor
from models.fields import key
from models.search import beam_search, check_search, greedy_search
from train.tasks.task import Task, task
from train.text.batches import Batch, Batches
from train.text.corpus import Corpus, prepare

WINDOW = 1024  # lines read, sorted by length and translated before the first of them is given out
LEAST_TOKENS = 16  # what a sentence counts for in a batch at least: its beam x V probabilities outweigh a short source


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
class Translation(Task):
    """Pairs of sentences, the second predicted from the first."""

    name = "translation"
    keys = TranslationKeys
    files = {"train": ("train_src", "train_tgt"), "valid": ("valid_src", "valid_tgt")}
    examples = "pairs"
    sides = ("source", "target")
    scores = {"bleu": "BLEU"}

    def prepare(self, files: Sequence[str], *how: Any) -> Corpus:
        src, tgt = files
        return prepare(src, tgt, *how)

    def batches(self, corpus: Corpus, batch_tokens: int, seed: int) -> Batches:
        return Batches(corpus, batch_tokens, seed)

    def in_order(self, corpus: Corpus, batch_tokens: int) -> Iterator[tuple[npx.Array, Batch]]:
        longest_side = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        batches = Batches(corpus, max(longest_side, batch_tokens))
        return ((indices, batches.batch(indices)) for indices in batches.by_length())

    def loss(self, model: Any, batch: Batch, **how: Any) -> Tensor:
        return model.loss(batch.src, batch.tgt, **how)

    def evaluation(self, config: Any, tokenizer: Any, corpus: Corpus) -> "GreedyBleu | None":
        how = "none" if config.data.pretokenizer == "whitespace" else "13a"  # none: the text is tokenised already
        return GreedyBleu(tokenizer, corpus, config.search.max_extra, how) if config.train.validate_bleu else None


class GreedyBleu:
    """sacreBLEU of greedy search."""

    def __init__(self, tokenizer: Any, corpus: Corpus, max_extra: int, tokenize: str) -> None:
        self.tokenizer, self.corpus, self.max_extra, self.tokenize = tokenizer, corpus, max_extra, tokenize
        self.found: dict[int, list[int]] = {}  # pair -> token ids

    def add(self, model: Any, indices: npx.Array, batch: Batch) -> None:
        best = greedy_search(model, batch.src, max_extra=self.max_extra)
        self.found |= {int(i): hypothesis.tokens for i, hypothesis in zip(indices, best, strict=True)}

    def result(self) -> dict[str, float]:
        from train.scores.bleu import corpus_bleu_for_validation

        hypotheses = self.tokenizer.decode_batch(list(self.found.values()))
        references = self.tokenizer.decode_batch([self.corpus.pair(i)[1] for i in self.found])
        return {"bleu": corpus_bleu_for_validation(hypotheses, references, tokenize=self.tokenize)}


# ---- translating text


def translate_lines(model: Any, tokenizer: Any, lines: Iterable[str], **options: Any) -> list[list[tuple[str, float]]]:
    """The translations of every line, in order: for each the `n_best` pairs (text, score), best first.

    The options are `translate_stream`'s.
    """
    return list(translate_stream(model, tokenizer, lines, **options))


def translate_stream(
    model: Any,
    tokenizer: Any,
    lines: Iterable[str],
    *,
    batch_tokens: int = 4096,
    max_length: int = 1024,
    window: int = WINDOW,
    progress: Callable[[int], object] = lambda done: None,
    on_warning: Callable[[str], object] = warnings.warn,
    **search: Any,
) -> Iterator[list[tuple[str, float]]]:
    """Yield the translations of one line after another: `n_best` pairs (text, score), best first.

    Lines are read and given out in windows of `window`, within which sentences of like length share a batch of at most
    `batch_tokens` source tokens, padding included (one sentence may exceed it). A line without tokens stays empty:
    [("", 0.0)]. A line of more than `max_length` tokens, EOS included, is cut, and `on_warning` (default: Python's
    warnings) is told so. `progress` is told, after every batch, how many more lines are done. `search`: `beam_search`'s
    beam, alpha, penalty, max_extra and n_best. Raises ValueError for a bad option, at once.
    """
    check_search(**search)
    for name, value, least in (("batch_tokens", batch_tokens, 1), ("max_length", max_length, 2), ("window", window, 1)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}; got {value}")
    if model.longest:
        max_length = min(max_length, model.longest)

    def translated(sources: list[list[int]]) -> list[list[tuple[str, float]]]:
        results: list[list[tuple[str, float]]] = [[("", 0.0)] for _ in sources]
        filled = [i for i, ids in enumerate(sources) if ids]
        if len(filled) < len(sources):
            progress(len(sources) - len(filled))
        for batch in length_batches([len(sources[i]) + 1 for i in filled], batch_tokens):
            members = [filled[j] for j in batch]
            found = beam_search(model, pad_sources([sources[i] for i in members], model.config), **search)
            texts = iter(tokenizer.decode_batch([h.tokens for hypotheses in found for h in hypotheses]))
            for i, hypotheses in zip(members, found, strict=True):
                results[i] = [(_one_line(next(texts)), h.score) for h in hypotheses]
            progress(len(members))
        return results

    def windows() -> Iterator[list[tuple[str, float]]]:
        rest, first = iter(lines), 1
        while part := list(islice(rest, window)):
            yield from translated(_encode(tokenizer, part, first, max_length, on_warning))
            first += len(part)

    return windows()


def _encode(
    tokenizer: Any, lines: Sequence[str], first: int, max_length: int, on_warning: Callable[[str], object]
) -> list[list[int]]:
    """The token ids of each line, without EOS, cut to max_length - 1; `first` is the number of the first line."""
    sources = tokenizer.encode_batch([line.removesuffix("\n").removesuffix("\r") for line in lines])
    for number, ids in enumerate(sources, first):
        if len(ids) >= max_length:
            on_warning(
                f"line {number}: expected at most {max_length - 1} tokens; got {len(ids)}; "
                f"the first {max_length - 1} are translated; try splitting the line"
            )
    return [list(ids[: max_length - 1]) for ids in sources]


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Cut the indices of `lengths` (tokens) into batches of like length, longest first.

    A batch of n sentences counts for n x its longest (at least LEAST_TOKENS) and is at most `batch_tokens`, or n = 1.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * max(lengths[batch[0]], LEAST_TOKENS) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def pad_sources(sources: Sequence[Sequence[int]], config: Any) -> npx.Array:
    """Token ids as a matrix (B, S) of int32: each row tokens, EOS, padding."""
    src = np.full((len(sources), max(map(len, sources)) + 1), config.pad_id, np.int32)  # (B, S)
    for row, ids in zip(src, sources, strict=True):
        row[: len(ids)] = ids
        row[len(ids)] = config.eos_id
    return src


def _one_line(text: str) -> str:
    """`text` without line ends, so that line i of the output stays the translation of line i."""
    return text.replace("\r", " ").replace("\n", " ")


def format_translation(translations: Sequence[tuple[str, float]], index: int, n_best: int = 1) -> str:
    """What is written for line `index` (from 0): the text or, for n_best > 1, Moses' lines `index ||| text ||| score`.

    Without a line end after the last.
    """
    if n_best == 1:
        return translations[0][0]
    return "\n".join(f"{index} ||| {text} ||| {score:.6f}" for text, score in translations)
