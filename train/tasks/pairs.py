"""What tasks of pairs share: a sequence learned from another one, and the search for it once trained.

`search_lines` takes lines to token ids, searches in batches of like length, and gives the hypotheses of every line in
their order, for input of any size, as it comes. Beam search is called here and nowhere else in `train`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

import npx
from autograd import Tensor
from models.search import Hypothesis, beam_search, check_search
from train.tasks.task import Task
from train.text.batches import Batch, Batches
from train.text.corpus import Corpus

WINDOW = 1024  # lines read, sorted by length and searched before the first of them is given out
LEAST_TOKENS = 16  # what a sentence counts for in a batch at least: its beam x V probabilities outweigh a short source


class Pairs(Task):
    """Pairs of sequences, the second predicted from the first."""

    examples = "pairs"
    sides = ("source", "target")

    def batches(self, corpus: Corpus, batch_tokens: int, seed: int) -> Batches:
        return Batches(corpus, batch_tokens, seed)

    def in_order(self, corpus: Corpus, batch_tokens: int) -> Iterator[tuple[npx.Array, Batch]]:
        longest_side = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        batches = Batches(corpus, max(longest_side, batch_tokens))
        return ((indices, batches.batch(indices)) for indices in batches.by_length())

    def loss(self, model: Any, batch: Batch, **how: Any) -> Tensor:
        return model.loss(batch.src, batch.tgt, **how)


def search_lines(
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
) -> Iterator[tuple[str, list[Hypothesis]]]:
    """Yield one line after another with its `n_best` hypotheses, best first; none for a line without tokens.

    Lines are read and given out in windows of `window`, within which sentences of like length share a batch of at most
    `batch_tokens` source tokens, padding included (one sentence may exceed it). A line of more than `max_length`
    tokens, EOS included, is cut, and `on_warning` (default: Python's warnings) is told so. `progress` is told, after
    every batch, how many more lines are done. `search`: `beam_search`'s beam, alpha, penalty, max_extra and n_best.
    Raises ValueError for a bad option, at once.
    """
    check_search(**search)
    for name, value, least in (("batch_tokens", batch_tokens, 1), ("max_length", max_length, 2), ("window", window, 1)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}; got {value}")
    if model.longest:
        max_length = min(max_length, model.longest)

    def found(sources: list[list[int]]) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in sources]
        filled = [i for i, ids in enumerate(sources) if ids]
        if len(filled) < len(sources):
            progress(len(sources) - len(filled))
        for batch in length_batches([len(sources[i]) + 1 for i in filled], batch_tokens):
            members = [filled[j] for j in batch]
            best = beam_search(model, pad_sources([sources[i] for i in members], model.config), **search)
            for i, hypotheses in zip(members, best, strict=True):
                results[i] = hypotheses
            progress(len(members))
        return results

    def windows() -> Iterator[tuple[str, list[Hypothesis]]]:
        rest, first = iter(lines), 1
        while part := [line.removesuffix("\n").removesuffix("\r") for line in islice(rest, window)]:
            yield from zip(part, found(_encode(tokenizer, part, first, max_length, on_warning)), strict=True)
            first += len(part)

    return windows()


def _encode(
    tokenizer: Any, lines: Sequence[str], first: int, max_length: int, on_warning: Callable[[str], object]
) -> list[list[int]]:
    """The token ids of each line, without EOS, cut to max_length - 1; `first` is the number of the first line."""
    sources = tokenizer.encode_batch(lines)
    for number, ids in enumerate(sources, first):
        if len(ids) >= max_length:
            on_warning(
                f"line {number}: expected at most {max_length - 1} tokens; got {len(ids)}; "
                f"the model reads the first {max_length - 1}; try splitting the line"
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


def numbered(found: Sequence[tuple[str, float]], index: int, n_best: int = 1) -> str:
    """What is written for line `index` (from 0): the text or, for n_best > 1, Moses' lines `index ||| text ||| score`.

    Without a line end after the last.
    """
    if n_best == 1:
        return found[0][0]
    return "\n".join(f"{index} ||| {text} ||| {score:.6f}" for text, score in found)
