"""Compute labels or vectors of lines of text with the encoder of a run, for `classify` and `embed`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

import npx
from autograd import no_grad
from models import Encoder
from train.errors import UserError
from train.metrics.classification import LabelScores
from train.tasks.pairs import BUFFER_SIZE, CHARACTERS_PER_TOKEN, length_batches, pad_sources, read_buffer
from train.text.affixes import split_words
from train.text.labeled_text import LabeledExample, WordEncoder, encode_texts, label_names, split_texts
from train.text.pair_tokenizer import TranslationTokenizer
from train.text.tokenizer import SPECIALS

BATCH_TOKENS = 4096  # tokens per batch, padding included; a single line may exceed it
Rows = list[list[int]]  # token ids of texts
Progress = Callable[[int], object]
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


class LinePrediction(NamedTuple):
    """The labels of a line: one for the complete text (`words` is then empty), or one for each of its words."""

    words: list[str]
    labels: list[str]  # the most probable labels
    probabilities: NDArray[np.floating[Any]]  # (n, L), the probabilities of all labels in the order of `label_names`


def label_lines(
    model: Encoder,
    tokenizer: TranslationTokenizer,
    lines: Iterable[str | None],
    task: str,
    on_progress: Progress = lambda n_lines: None,
    line_numbers: Iterable[int] | None = None,
) -> Iterator[LinePrediction]:
    """Yield the labels of each line.

    Args:
        model: a classifier or tagger, in eval mode.
        tokenizer: the model's tokenizer.
        lines: texts; None marks a pause in the input. For a classifier of pairs, a tab separates the two texts; for
            a tagger, spaces separate the words.
        task: "classification" or "tagging".
        on_progress: called after every batch with the number of its lines.
        line_numbers: the number of each line in its file, named in messages. Default: 1, 2, 3, ...

    Raises UserError for an empty line, for a line with more tokens than the model has positions, for a line with more
    than two texts, and, for a tagger, for a line with a tab. Raises FloatingPointError for NaN or infinite logits.
    """
    names = label_names(tokenizer)
    first_label = len(SPECIALS)
    special_ids = tokenizer.special_ids
    encode_words = WordEncoder(tokenizer.source)

    def encode(texts: Sequence[str], places: Sequence[str]) -> tuple[Rows, list[Any]]:
        if task == "classification":
            return encode_texts(tokenizer.source, [*map(split_texts, texts, places)]), [[] for _ in texts]
        for text, place in zip(texts, places, strict=True):
            if "\t" in text:
                got = "a tab; try --gold F for a file with lines word<TAB>tag"
                raise UserError(f"{place}: expected words separated by spaces; got {got}")
        sentences = [split_words(line) for line in texts]
        ids, positions = encode_words(sentences)
        return ids, list(zip(sentences, positions, strict=True))

    def label(ids: NDArray[np.int32], extras: list[Any]) -> Iterator[LinePrediction]:
        if task == "classification":
            is_labeled = np.ones((len(ids), 1), bool)
        else:
            is_labeled = np.zeros(ids.shape, bool)
            for row, (_, positions) in zip(is_labeled, extras, strict=True):
                row[positions] = True
        _, logits = model.label_logits(ids, np.where(is_labeled, first_label, special_ids.pad_id))
        logits = logits[:, first_label:].astype(np.float64)
        check_finite("logits", logits)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        ends = np.cumsum(is_labeled.sum(axis=1))
        for extra, rows in zip(extras, np.split(p, ends[:-1]), strict=True):
            yield LinePrediction(extra[0] if extra else [], [names[i] for i in rows.argmax(axis=1)], rows)

    return map_lines(model, lines, encode, label, on_progress, line_numbers)


def embed_lines(
    model: Encoder,
    tokenizer: TranslationTokenizer,
    lines: Iterable[str | None],
    pooling: str = "mean",
    on_progress: Progress = lambda n_lines: None,
) -> Iterator[npx.Array]:
    """Yield a vector (D,) for each line, computed by `Encoder.text_vectors`. Other arguments: see `label_lines`."""

    def encode(texts: Sequence[str], places: Sequence[str]) -> tuple[Rows, list[Any]]:
        return encode_texts(tokenizer.source, [*map(split_texts, texts, places)]), [None for _ in texts]

    def embed(ids: NDArray[np.int32], extras: list[Any]) -> Iterator[npx.Array]:
        with no_grad():
            vectors = npx.to_host(model.text_vectors(ids, pooling).data)
        check_finite("vectors", vectors)
        return iter(vectors)

    return map_lines(model, lines, encode, embed, on_progress)


def map_lines(
    model: Encoder,
    lines: Iterable[str | None],
    encode: Callable[[Sequence[str], Sequence[str]], tuple[Rows, list[ValueT]]],
    compute: Callable[[NDArray[np.int32], list[ValueT]], Iterable[ResultT]],
    on_progress: Progress,
    line_numbers: Iterable[int] | None = None,
) -> Iterator[ResultT]:
    """Compute results in batches of lines of similar length, and yield one result for each line, in order.

    Args:
        encode: maps lines and their names for messages ("line 1") to two lists: the ids of each line (BOS and tokens,
            or [] for a line without tokens), and a value for each line.
        compute: returns the results for padded ids (B, S) and the values that `encode` returned for these B lines.

    Other arguments: see `label_lines`.
    """
    remaining = iter(lines)
    numbers = count(1) if line_numbers is None else iter(line_numbers)
    while texts := read_buffer(remaining, BUFFER_SIZE, CHARACTERS_PER_TOKEN * BATCH_TOKENS):
        places = [f"line {number}" for number in islice(numbers, len(texts))]
        rows, extras = encode(texts, places)
        for text, row, place in zip(texts, rows, places, strict=True):
            if len(row) < 2:
                got = repr(text[:60]) if text.strip() else "an empty line"
                raise UserError(f"{place}: expected text; got {got}; try removing the line")
            if model.max_length and len(row) >= model.max_length:
                raise UserError(
                    f"{place}: expected at most {model.max_length - 2} tokens, the model's maximum length; got "
                    f"{len(row) - 1}; try splitting the text"
                )
        results: dict[int, ResultT] = {}
        for batch in length_batches([len(row) + 1 for row in rows], BATCH_TOKENS):
            ids = pad_sources([rows[i] for i in batch], model.config)
            for i, result in zip(batch, compute(ids, [extras[i] for i in batch]), strict=True):
                results[i] = result
            on_progress(len(batch))
        for i in range(len(rows)):
            yield results[i]


def check_finite(name: str, values: NDArray[Any]) -> None:
    """Raise FloatingPointError if a model has computed NaN or infinity."""
    if not np.isfinite(values).all():
        raise FloatingPointError(f"expected finite {name} of every line; got NaN or infinity")


def text_of(example: LabeledExample, task: str) -> str:
    """Return an example as a line in the format that `label_lines` expects."""
    return ("\t" if task == "classification" else " ").join(example.texts)


def score_labels(gold: Sequence[LabeledExample], predicted: Sequence[Sequence[str]]) -> LabelScores:
    """Return the scores of predicted labels. Raises UserError if an example has more or fewer labels than `gold`."""
    for example, labels in zip(gold, predicted, strict=True):
        if len(example.labels) != len(labels):
            raise UserError(
                f"line {example.line}: expected {len(example.labels)} labels, one for each word; got {len(labels)}; "
                "try predictions for the same words"
            )
    pairs = [pair for e, labels in zip(gold, predicted, strict=True) for pair in zip(e.labels, labels, strict=True)]
    names = sorted({name for pair in pairs for name in pair})
    index = {name: i for i, name in enumerate(names)}
    sides = (np.array([index[name] for name in side]) for side in zip(*pairs, strict=True))
    return LabelScores.of(names, *sides)
