"""Plain text for language models: a lossless tokenizer, and a text as one sequence of tokens.

Whitespace is preserved: `decode(encode(text))` is the text. Lines are read as in lines.py, which drops a byte order
mark, and a carriage return before a line feed. Each line is encoded with its line feed, so the tokens do not depend on
how the text is divided into chunks.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from tokenizers import Regex, decoders, pre_tokenizers

from train.errors import UserError, check_choice, plural
from train.text.batches import shuffled
from train.text.corpus import IntArray
from train.text.lines import decoded_chunks, line_pieces
from train.text.prepared import read_prepared, token_dtype, write_prepared
from train.text.tokenizer import (
    DEFAULT_IDS,
    SPECIALS,
    Tokenizer,
    byte_pretokenizer,
    tokenizer_spec,
    train_bpe,
)

KINDS = ("characters", "bpe")
FORMAT = 2  # version of the prepared file
TOKENS = "text.tokens"  # name of the prepared file
# The matches are words, numbers and groups of symbols, each with the space before it; line feeds; and other whitespace.
# No subword spans two matches.
WORDS = r" ?[\p{L}\p{M}]{1,100}| ?\p{N}{1,100}| ?[^\s\p{L}\p{M}\p{N}]{1,100}|\n|[^\S\n]{1,100}|[\s\S]"


class PlainTokenizer(Tokenizer):
    """A vocabulary of characters, or of subwords of UTF-8 bytes, that preserves whitespace."""

    @classmethod
    def from_files(cls, paths: Sequence[str | PathLike[str]], kind: str, vocab_size: int) -> Self:
        """Train on text files. The tokens are all characters that occur, or at most `vocab_size` byte-pair subwords.

        Raises UserError for an unknown kind, for an unreadable file, and if `vocab_size` is too small for all
        characters.
        """
        check_choice("tokenizer", kind, KINDS)
        lines = chain.from_iterable(map(read_plain, paths))
        if kind == "characters":
            distinct: set[str] = set()
            for chunk in lines:
                distinct.update(*chunk)
            characters = sorted(distinct)
            if len(SPECIALS) + len(characters) > vocab_size:
                raise UserError(
                    f"data.vocab_size: expected at least {len(SPECIALS) + len(characters)} ({len(characters)} "
                    f"different characters and {len(SPECIALS)} special tokens); got {vocab_size}; "
                    'try a larger data.vocab_size, or tokenizer = "bpe"'
                )
            vocabulary = {token: i for i, token in enumerate((*SPECIALS, *characters))}
            model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[DEFAULT_IDS.unk_id]}
            split = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            return cls(tokenizer_spec(model, None, split, decoders.Fuse()))
        pretokenizer = byte_pretokenizer(WORDS)
        model = train_bpe(lines, vocab_size, None, pretokenizer)
        return cls(tokenizer_spec(model, None, pretokenizer, decoders.ByteLevel()))

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids, whitespace included; special ids are dropped."""
        ids = [[int(i) for i in sequence] for sequence in sequences]
        return self._call(self._engine.decode_batch, ids, skip_special_tokens=True)


def read_plain(
    path: str | PathLike[str], on_bytes: Callable[[bytes], object] | None = None, allow_pipe: bool = False
) -> Iterator[list[str]]:
    """Yield the lines of a text file in chunks, each line with its line feed; divide long lines into pieces."""
    last: list[str] = []
    for chunk in decoded_chunks(path, line_pieces, on_bytes=on_bytes, allow_pipe=allow_pipe):
        if last:
            yield last
        last = [line[:-2] + "\n" if line.endswith("\r\n") else line for line in chunk]
    end = last[-1]
    yield [*last[:-1], end if end.endswith("\n") else end.removesuffix("\r") + "\n"]


@dataclass(frozen=True)
class PlainText:
    """A text as one sequence of token ids.

    Args:
        tokens: token ids (N,).
        window_length: number of predictions per window.
        meta: content of meta.json, {} for a text in memory.

    Raises UserError for a text shorter than one window.
    """

    tokens: IntArray
    window_length: int
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.window_length:
            name = self.meta["sources"]["text"] if self.meta else "data"
            raise UserError(
                f"{name}: expected a text of at least {self.window_length + 1} tokens (data.max_length + 1); "
                f"got {len(self.tokens)}; try a longer text, or training with a smaller data.max_length"
            )

    @classmethod
    def prepare(
        cls,
        path: str | PathLike[str],
        tokenizer: Tokenizer,
        out_dir: Path,
        window_length: int,
        on_progress: Callable[[int], object] = lambda n_read: None,
    ) -> "PlainText":
        """Encode a file into the folder `out_dir`, or reuse the folder if it holds the result for the same text.

        `on_progress` receives the number of lines read so far. Raises UserError for an unreadable file.
        """
        identity = {"format": FORMAT, "tokenizer": tokenizer.digest}
        meta = read_prepared(out_dir, [TOKENS], {"text": path}, **identity)
        if meta is None:
            dtype = token_dtype(tokenizer.vocab_size)

            def write_files(files: Sequence[BinaryIO]) -> dict[str, Any]:
                sha256 = hashlib.sha256()
                n_tokens = n_lines = n_characters = 0
                # A pipe is accepted here, where the text is read once. For training, which reads the text several
                # times, `Task.text_files` rejects a pipe.
                for lines in read_plain(path, on_bytes=sha256.update, allow_pipe=True):
                    ids = np.fromiter(chain.from_iterable(tokenizer.encode_batch(lines)), dtype)
                    files[0].write(ids.tobytes())
                    n_tokens += len(ids)
                    n_lines += sum(line.endswith("\n") for line in lines)
                    n_characters += sum(map(len, lines))
                    on_progress(n_lines)
                return identity | {
                    "sources": {"text": str(path)}, "dtype": dtype.name, "tokens": n_tokens, "lines": n_lines,
                    "characters": n_characters, "sha256": {"text": sha256.hexdigest()},
                }  # fmt: skip

            meta = write_prepared(out_dir, [TOKENS], write_files)
        return cls(np.asarray(np.memmap(out_dir / TOKENS, np.dtype(meta["dtype"]), "r")), window_length, meta)

    @property
    def digest(self) -> Any:
        """SHA-256 of the text; None for a text that was never in a file."""
        return self.meta.get("sha256")

    @property
    def n_targets(self) -> int:
        """Number of predictions: one for every token except the first."""
        return len(self.tokens) - 1

    def describe(self) -> str:
        """Return the token and line counts as text."""
        lines = f" in {plural(self.meta['lines'], 'line')}" if self.meta else ""
        return plural(len(self.tokens), "token") + lines


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """A batch of windows of equal length. At each position, the model predicts the next token."""

    ids: IntArray  # (B, T + 1)

    @property
    def n_targets(self) -> int:
        """Number of predicted tokens."""
        return len(self.ids) * (self.ids.shape[1] - 1)

    n_tokens = n_targets

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return len(self.ids), self.ids.shape[1] - 1

    def describe(self) -> str:
        """Return the shape as text."""
        return "{} windows of {} tokens".format(*self.shape)

    def halves(self) -> list["WindowBatch"]:
        """Return the two halves of the batch, or the batch itself if it has only one window."""
        middle = len(self.ids) // 2
        return [WindowBatch(self.ids[:middle]), WindowBatch(self.ids[middle:])] if middle else [self]


class WindowBatches:
    """Batches of windows. A window has `text.window_length` predictions, and a batch has at most `batch_tokens`.

    Each epoch divides the text into adjacent windows, from a random offset within the first window, and shuffles them.
    The result depends only on (seed, epoch). Tokens that do not fill a window are skipped in that epoch.
    """

    def __init__(self, text: PlainText, batch_tokens: int, seed: int = 1) -> None:
        """Raise UserError if a window has more than `batch_tokens` predictions."""
        length = text.window_length
        if length > batch_tokens:
            raise UserError(
                f"train.batch_tokens: expected at least data.max_length = {length}; got {batch_tokens}; try {length}"
            )
        self.text, self.window_length, self.seed = text, length, seed
        self.batch_size = batch_tokens // length  # in windows

    def epoch_batches(self, epoch: int) -> list[IntArray]:
        """Return the batches of an epoch (from 0) as arrays of window starts."""
        philox = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        predictions = len(self.text.tokens) - 1
        offset = int(philox.random_raw()) % min(self.window_length, predictions - self.window_length + 1)
        n_windows = (predictions - offset) // self.window_length
        starts = offset + self.window_length * shuffled(n_windows, philox).astype(np.int64)
        return [starts[i : i + self.batch_size] for i in range(0, len(starts), self.batch_size)]

    def token_counts(self, starts: IntArray) -> tuple[int, int]:
        """Return `n_targets` and `n_tokens` of the batch of these windows without building it."""
        n_tokens = len(starts) * self.window_length
        return n_tokens, n_tokens

    def batch(self, starts: IntArray) -> WindowBatch:
        """Build the batch of the windows that start at these positions (B,)."""
        return WindowBatch(self.text.tokens[starts[:, None] + np.arange(self.window_length + 1)].astype(np.int32))

    def validation_batches(self) -> Iterator[tuple[IntArray, WindowBatch]]:
        """Yield each prediction of the text once: full windows from the start, then a shorter one for the rest."""
        predictions = len(self.text.tokens) - 1
        starts = np.arange(0, predictions - self.window_length + 1, self.window_length)
        for i in range(0, len(starts), self.batch_size):
            yield starts[i : i + self.batch_size], self.batch(starts[i : i + self.batch_size])
        if rest := predictions % self.window_length:
            yield np.array([predictions - rest]), WindowBatch(self.text.tokens[None, -rest - 1 :].astype(np.int32))
