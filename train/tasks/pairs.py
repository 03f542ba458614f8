"""Shared parts of tasks that predict one sequence from another: batches, and beam search over lines of text.

`search_lines` encodes lines, searches in batches of similar length and yields the hypotheses of each line in order. It
reads the lines as they arrive, so the input may be of any size.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple

import numpy as np

import npx
from models import TransformerConfig
from models.search import beam_search, check_search
from npx.distributed import World
from train.tasks.protocols import BatchSource, Configuration, SourceModel, TextTokenizer
from train.tasks.task import TASKS, T, Task, list_lines
from train.text.batches import Batches, PairBatch
from train.text.bpe_dropout import SegmentedBatches, Segmenter
from train.text.corpus import PairCorpus
from train.text.tokenizer import Tokenizer

SINGLE_PROCESS = World()
BUFFER_SIZE = 1024  # number of lines that are read, sorted by length and searched before the first of them is yielded
CHARACTERS_PER_TOKEN = 16  # a buffer has up to 16 * batch_tokens characters, enough for about four batches
MIN_TOKENS = 16  # a shorter sentence counts as 16 tokens, because its probabilities (4, V) need memory too


class Line(NamedTuple):
    """A line of input text."""

    number: int  # from 1
    text: str
    ids: list[int]  # the tokens of the line, without EOS, truncated to the maximum length


class PairTask(Task[T, PairCorpus, PairBatch], Generic[T]):
    """Predict the second sequence of a pair from the first."""

    data_kind = "pairs"
    sides = ("source", "target")

    def training_batches(
        self, corpus: PairCorpus, config: Configuration, tokenizer: T, order_version: int
    ) -> BatchSource:
        t = config.train

        def make_batches(corpus: PairCorpus) -> Batches:
            return Batches(corpus, t.batch_tokens, t.seed, order_version)

        if not t.bpe_dropout:
            return make_batches(corpus)
        max_length = min(config.data.max_length, t.batch_tokens)
        segmenter = Segmenter(corpus, self.side_tokenizers(tokenizer), t.bpe_dropout, t.seed, max_length)
        return SegmentedBatches(segmenter, make_batches)

    def side_tokenizers(self, tokenizer: T) -> Sequence[Tokenizer | None]:
        """Return the tokenizers of the source and of the target, with None for a side that is not text."""
        raise NotImplementedError

    def validation_batches(self, corpus: PairCorpus, batch_tokens: int) -> Iterator[tuple[npx.Array, PairBatch]]:
        longest_side = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        batches = Batches(corpus, max(longest_side, batch_tokens))
        return ((indices, batches.batch(indices)) for indices in batches.by_length())

    def loss_inputs(self, batch: PairBatch) -> tuple[npx.Array, ...]:
        return batch.src, batch.tgt

    def describe_examples(self, corpus: PairCorpus, examples: Any) -> str:
        return f"pairs {list_lines(corpus, examples)}"


def search_lines(
    model: SourceModel,
    tokenizer: TextTokenizer,
    lines: Iterable[str | None],
    *,
    decode: Callable[..., list[list[Any]]] | None = None,
    width: int | None = None,
    batch_tokens: int = 4096,
    max_length: int = 1024,
    trained_length: int | None = None,
    buffer_size: int = BUFFER_SIZE,
    on_progress: Callable[[int], object] = lambda n_lines: None,
    on_warning: Callable[[str], object] = warnings.warn,
    world: World = SINGLE_PROCESS,
    **search: Any,
) -> Iterator[tuple[Line, list[Any]]]:
    """Yield each line with its hypotheses, best first; a line without tokens has no hypotheses.

    Args:
        model: a sequence-to-sequence model, in eval mode.
        tokenizer: the model's tokenizer.
        lines: input text; None marks a pause in the input.
        decode: `decode(src_ids, lines, **search)` returns the hypotheses of a batch of Lines; default: beam search.
        width: number of hypotheses that are decoded at once for each line; default: the beam size.
        batch_tokens: maximum source tokens per batch, padding included; a single sentence may exceed it.
        max_length: maximum tokens per line, EOS included; longer lines are truncated and reported to `on_warning`.
        trained_length: maximum tokens per line in training, EOS included; longer lines are reported.
        buffer_size: maximum number of lines to read before they are sorted by length and searched. The buffer also ends
            after about four batches and at a pause.
        on_progress: called after every batch with the number of its lines.
        on_warning: called with a message; defaults to Python's warnings.
        world: the ranks that share the work; all of these ranks must call this function. Rank 0 reads `lines`, batch i
            is searched by rank i modulo the number of ranks, and all ranks yield the same results.
        search: options of `beam_search`: beam_size, length_penalty, length_penalty_type, max_extra_tokens and n_best.

    Raises ValueError for an invalid option, and TypeError if `lines` is a string, before the first line is read.
    """
    if isinstance(lines, str):
        raise TypeError(f"lines: expected a list of sentences; got a string; try [{lines[:60]!r}]")
    check_search(**search)
    for name, value, minimum in (
        ("batch_tokens", batch_tokens, 1),
        ("max_length", max_length, 2),
        ("buffer_size", buffer_size, 1),
    ):
        if value < minimum:
            raise ValueError(f"{name}: expected at least {minimum}; got {value}")
    if model.max_length:
        max_length = min(max_length, model.max_length)
    min_tokens = max(MIN_TOKENS, MIN_TOKENS * (width or search.get("beam_size", 4)) // 4)

    def search_buffer(lines: list[Line]) -> list[list[Any]]:
        results: list[list[Any]] = [[] for _ in lines]
        non_empty = [i for i, line in enumerate(lines) if line.ids]
        if len(non_empty) < len(lines):
            on_progress(len(lines) - len(non_empty))
        rank_results: list[tuple[int, list[Any]]] = []
        batches = length_batches([len(lines[i].ids) + 1 for i in non_empty], batch_tokens, min_tokens)
        for batch in islice(batches, world.rank, None, world.size):
            members = [non_empty[j] for j in batch]
            src = pad_sources([lines[i].ids for i in members], model.config)
            if decode is None:
                best: list[list[Any]] = beam_search(model, src, **search)
            else:
                best = decode(src, [lines[i] for i in members], **search)
            rank_results += zip(members, best, strict=True)
            on_progress(len(members))
        for i, hypotheses in chain.from_iterable(world.all_gather_object(rank_results)):
            results[i] = hypotheses
        return results

    def search_buffers() -> Iterator[tuple[Line, list[Any]]]:
        remaining = iter(lines)
        first_number = 1
        n_characters = CHARACTERS_PER_TOKEN * batch_tokens
        while texts := world.broadcast_object(
            read_buffer(remaining, buffer_size, n_characters) if world.rank == 0 else None
        ):
            encoded = encode_lines(tokenizer, texts, first_number, max_length, on_warning, trained_length)
            numbers = range(first_number, first_number + len(texts))
            batch = [Line(*fields) for fields in zip(numbers, texts, encoded, strict=True)]
            yield from zip(batch, search_buffer(batch), strict=True)
            first_number += len(texts)

    return search_buffers()


def trained_length(config: Configuration) -> int | None:
    """Return data.max_length of a run's configuration, or None for an imported model, which has no training text."""
    has_text = any(getattr(config.data, name) for name in TASKS[config.data.task].file_keys["train"])
    return config.data.max_length if has_text else None


def read_buffer(lines: Iterator[str | None], max_lines: int, max_characters: int) -> list[str]:
    """Read lines up to a limit or a pause; an empty list means the end of the input."""
    buffer: list[str] = []
    for line in lines:
        if line is not None:
            buffer.append(line.removesuffix("\n").removesuffix("\r"))
            max_characters -= len(line)
        if buffer and (line is None or len(buffer) == max_lines or max_characters <= 0):
            break
    return buffer


def encode_lines(
    tokenizer: TextTokenizer,
    lines: Sequence[str],
    first_number: int,
    max_length: int,
    on_warning: Callable[[str], object],
    trained_length: int | None = None,
) -> list[list[int]]:
    """Return the token ids of each line, without EOS, truncated to max_length - 1.

    `first_number` is the number of the first line. `on_warning` is called for a line that is truncated, or longer than
    `trained_length`, the limit in training.
    """
    sources = tokenizer.encode_batch(lines)
    for number, ids in enumerate(sources, first_number):
        if len(ids) >= max_length:
            on_warning(
                f"line {number}: expected at most {max_length - 1} tokens; got {len(ids)}; "
                f"the model reads the first {max_length - 1}; try splitting the line"
            )
        elif trained_length is not None and len(ids) >= trained_length:
            on_warning(
                f"line {number}: the model was trained on at most {trained_length - 1} tokens, and this line has "
                f"{len(ids)}, so its output may be incomplete; try splitting the line"
            )
    return [list(ids[: max_length - 1]) for ids in sources]


def length_batches(lengths: Sequence[int], batch_tokens: int, min_tokens: int = MIN_TOKENS) -> Iterator[list[int]]:
    """Divide the indices of `lengths` (in tokens) into batches of similar length, longest first.

    The cost of a batch is the number of its sentences times the length of the longest one, which counts as at least
    `min_tokens`. It is at most `batch_tokens`, unless the batch has a single sentence.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * max(lengths[batch[0]], min_tokens) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def pad_sources(sources: Sequence[Sequence[int]], config: TransformerConfig) -> npx.Array:
    """Return token ids as an int32 matrix (B, S); each row contains one source, EOS and padding."""
    src = np.full((len(sources), max(map(len, sources)) + 1), config.pad_id, np.int32)  # (B, S)
    for row, ids in zip(src, sources, strict=True):
        row[: len(ids)] = ids
        row[len(ids)] = config.eos_id
    return src


def format_hypotheses(hypotheses: Sequence[tuple[Any, ...]], index: int, n_best: int = 1) -> str:
    """Format the output for line `index` (from 0), without a trailing newline.

    Each hypothesis is (text, score, further fields as text). The result is the best text or, for n_best > 1, a line
    `index ||| text ||| score` for each hypothesis, as in Moses. The further fields are appended to each line, separated
    by ` ||| `.
    """
    if n_best == 1:
        text, _, *fields = hypotheses[0]
        return " ||| ".join([text, *fields])
    return "\n".join(" ||| ".join([f"{index}", text, f"{score:.4f}", *fields]) for text, score, *fields in hypotheses)
