"""What tasks of pairs share: a sequence learned from another one, and the search for it once trained.

`search_lines` takes lines to token ids, searches in batches of like length, and gives the hypotheses of every line in
their order, for input of any size, as it comes. Beam search is called here and nowhere else in `train`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

import npx
from models.search import Hypothesis, beam_search, check_search
from npx.distributed import World
from train.tasks.task import Task
from train.text.batches import Batch, Batches
from train.text.corpus import Corpus

ALONE = World()  # a process that searches alone
WHERE = 100  # pairs of a batch that are listed
WINDOW = 1024  # lines read, sorted by length and searched before the first of them is given out
AHEAD = 16  # characters read for a token of a batch: about four batches
LEAST_TOKENS = 16  # what a sentence counts for at least, for a beam of 4: its beam x V probabilities outweigh it


class Pairs(Task[Corpus, Batch]):
    """Pairs of sequences, the second predicted from the first."""

    examples = "pairs"
    sides = ("source", "target")

    def batches(self, corpus: Corpus, batch_tokens: int, seed: int) -> Batches:
        return Batches(corpus, batch_tokens, seed)

    def in_order(self, corpus: Corpus, batch_tokens: int) -> Iterator[tuple[npx.Array, Batch]]:
        longest_side = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        batches = Batches(corpus, max(longest_side, batch_tokens))
        return ((indices, batches.batch(indices)) for indices in batches.by_length())

    def sequences(self, batch: Batch) -> tuple[npx.Array, ...]:
        return batch.src, batch.tgt

    def describe_examples(self, corpus: Corpus, examples: Any) -> str:
        numbers = corpus.numbers(examples)
        listed = ", ".join(map(str, numbers[:WHERE])) + (f" and {len(numbers) - WHERE} more" * (len(numbers) > WHERE))
        return f"pairs {listed} of the text, counted from 1"


def search_lines(
    model: Any,
    tokenizer: Any,
    lines: Iterable[str | None],
    *,
    batch_tokens: int = 4096,
    max_length: int = 1024,
    window: int = WINDOW,
    progress: Callable[[int], object] = lambda done: None,
    on_warning: Callable[[str], object] = warnings.warn,
    kept_to: Callable[[Any, list[str]], Any] = lambda model, lines: model,
    world: World = ALONE,
    **search: Any,
) -> Iterator[tuple[str, list[Hypothesis]]]:
    """Yield one line after another with its `n_best` hypotheses, best first; none for a line without tokens.

    Lines are read and given out in windows, within which sentences of like length share a batch of at most
    `batch_tokens` source tokens, padding included (one sentence may exceed it). A window ends after `window` lines,
    after about four batches (AHEAD), and where `lines` has None: the input pauses. A line of more than `max_length`
    tokens, EOS included, is cut, and `on_warning` (default: Python's warnings) is told so. `progress` is told, after
    every batch, how many more lines are done. `kept_to`: of the model and the lines of a batch, what is searched in the
    model's place. `world`: of several ranks all call this, rank 0 alone reads `lines`, each searches every k-th batch,
    and all get the same. `search`: `beam_search`'s beam, alpha, penalty, max_extra and n_best.
    Raises ValueError for a bad option, at once.
    """
    check_search(**search)
    for name, value, least in (("batch_tokens", batch_tokens, 1), ("max_length", max_length, 2), ("window", window, 1)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}; got {value}")
    if model.max_length:
        max_length = min(max_length, model.max_length)

    def found(part: list[str], sources: list[list[int]]) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in sources]
        filled = [i for i, ids in enumerate(sources) if ids]
        if len(filled) < len(sources):
            progress(len(sources) - len(filled))
        least = max(LEAST_TOKENS, LEAST_TOKENS * search.get("beam", 4) // 4)
        own: list[tuple[int, list[Hypothesis]]] = []
        batches = length_batches([len(sources[i]) + 1 for i in filled], batch_tokens, least)
        for batch in islice(batches, world.rank, None, world.size):
            members = [filled[j] for j in batch]
            src = pad_sources([sources[i] for i in members], model.config)
            best = beam_search(kept_to(model, [part[i] for i in members]), src, **search)
            own += zip(members, best, strict=True)
            progress(len(members))
        for i, hypotheses in chain.from_iterable(world.gather(own)):
            results[i] = hypotheses
        return results

    def windows() -> Iterator[tuple[str, list[Hypothesis]]]:
        rest, first = iter(lines), 1
        while part := world.broadcast(_window(rest, window, AHEAD * batch_tokens) if world.rank == 0 else None):
            sources = _encode(tokenizer, part, first, max_length, on_warning)
            yield from zip(part, found(part, sources), strict=True)
            first += len(part)

    return windows()


def _window(lines: Iterator[str | None], most: int, characters: int) -> list[str]:
    """The next lines: `most` of them or so many characters, or those before a pause; none at the end."""
    part: list[str] = []
    for line in lines:
        if line is not None:
            part.append(line.removesuffix("\n").removesuffix("\r"))
            characters -= len(line)
        if part and (line is None or len(part) == most or characters <= 0):
            break
    return part


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


def length_batches(lengths: Sequence[int], batch_tokens: int, least: int = LEAST_TOKENS) -> Iterator[list[int]]:
    """Cut the indices of `lengths` (tokens) into batches of like length, longest first.

    A batch of n sentences counts for n x its longest (at least `least`) and is at most `batch_tokens`, or n = 1.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * max(lengths[batch[0]], least) > batch_tokens:
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
    return "\n".join(f"{index} ||| {text} ||| {score:.4f}" for text, score in found)
