"""Plain text for language models: a tokenizer that gives back every character, and text as one long row of tokens.

Here white space is text like any other: `decode(encode(text))` is the text. Lines are read as everywhere (a line feed
ends one; a carriage return before it and a byte order mark are left out) and each is encoded with its end, so that the
tokens do not depend on how a text is cut into chunks.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Regex, decoders, pre_tokenizers

from train.errors import UserError
from train.text.batches import shuffled
from train.text.corpus import Ints
from train.text.lines import read_lines
from train.text.prepared import read_prepared, token_dtype, write_prepared
from train.text.tokenizer import OWN_IDS, SPECIALS, Tokenizer, byte_pairs, choice, pieces_of_bytes, tokenizer_spec

KINDS = ("characters", "bpe")
FORMAT = 2  # of the prepared file
# Words with the space before them, digits, the rest, a line's end, other white space: no piece reaches across.
PIECES = r" ?[\p{L}\p{M}]{1,100}| ?\p{N}{1,100}| ?[^\s\p{L}\p{M}\p{N}]{1,100}|\n|[^\S\n]{1,100}|[\s\S]"


class PlainTokenizer(Tokenizer):
    """A vocabulary of characters, or of pieces of UTF-8 bytes, that keeps white space as it is."""

    @classmethod
    def learn(cls, paths: Sequence[str | PathLike[str]], kind: str, vocab_size: int) -> Tokenizer:
        """Learn from text files: every character that occurs, or by byte-pair encoding at most `vocab_size` pieces.

        Raises `UserError` for an unknown kind, an unreadable file, and for more characters than `vocab_size`.
        """
        choice("tokenizer", kind, KINDS)
        lines = chain.from_iterable(map(read_plain, paths))
        if kind == "characters":
            found = sorted(set().union(*(set(line) for chunk in lines for line in chunk)))
            if len(SPECIALS) + len(found) > vocab_size:
                raise UserError(
                    f"data.vocab_size: expected at least {len(SPECIALS) + len(found)}, the text's {len(found)} "
                    f"different characters and {len(SPECIALS)} special ones; got {vocab_size}; "
                    'try more, or tokenizer = "bpe"'
                )
            vocabulary = {piece: i for i, piece in enumerate((*SPECIALS, *found))}
            model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[OWN_IDS.unk_id]}
            split = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            return cls(tokenizer_spec(model, None, split, decoders.Fuse()))
        pieces = pieces_of_bytes(PIECES)
        return cls(tokenizer_spec(byte_pairs(lines, vocab_size, None, pieces), None, pieces, decoders.ByteLevel()))

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence of ids, white space as it was; special ids are left out."""
        plain = [[int(i) for i in ids] for ids in sequences]
        return self._ask(self._engine.decode_batch, plain, skip_special_tokens=True)


def read_plain(path: str | PathLike[str], watch: Callable[[bytes], object] | None = None) -> Iterator[list[str]]:
    """Yield the lines of a text file, each with its end, as `read_lines`."""
    for chunk in read_lines(path, watch=watch, longest=sys.maxsize - 1):  # a whole text may be one line
        yield [line + "\n" for line in chunk]


@dataclass(frozen=True)
class PlainText:
    """A text as one row of token ids, `tokens` (N,); `meta` is the content of its meta.json, {} for one in memory.

    UserError for a text shorter than one window.
    """

    tokens: Ints
    length: int  # of a window: predictions in a row
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.length:
            name = self.meta["sources"]["text"] if self.meta else "data"
            raise UserError(
                f"{name}: expected a text of at least {self.length + 1} tokens, data.max_length and one more; "
                f"got {len(self.tokens)}; try a longer text or a smaller data.max_length"
            )

    @classmethod
    def prepare(
        cls,
        path: str | PathLike[str],
        tokenizer: Tokenizer,
        out_dir: Path,
        length: int,
        progress: Callable[[int], object] = lambda read: None,
    ) -> "PlainText":
        """Encode a file into the folder `out_dir`, or use what it already holds of it. UserError for an unreadable one.

        `progress` is told the lines read so far.
        """
        same = {"format": FORMAT, "tokenizer": tokenizer.digest}
        meta = read_prepared(out_dir, _sizes, {"text": path}, **same)
        if meta is None:
            dtype = token_dtype(tokenizer.vocab_size)

            def fill(files: Sequence[BinaryIO]) -> dict[str, Any]:
                found, tokens, read = hashlib.sha256(), 0, 0
                for lines in read_plain(path, watch=found.update):
                    ids = np.fromiter(chain.from_iterable(tokenizer.encode_batch(lines)), dtype)
                    files[0].write(ids.tobytes())
                    tokens, read = tokens + len(ids), read + len(lines)
                    progress(read)
                about = {"sources": {"text": str(path)}, "dtype": dtype.name, "tokens": tokens, "lines": read}
                return same | about | {"sha256": {"text": found.hexdigest()}}

            meta = write_prepared(out_dir, ["text.tokens"], fill)
        return cls(np.asarray(np.memmap(out_dir / "text.tokens", np.dtype(meta["dtype"]), "r")), length, meta)

    @property
    def digest(self) -> Any:
        """SHA-256 of the text; None for one that never was a file."""
        return self.meta.get("sha256")

    def describe(self) -> str:
        """How much there is."""
        return f"{len(self.tokens):,} tokens" + (f" in {self.meta['lines']:,} lines" if self.meta else "")


def _sizes(meta: dict[str, Any]) -> dict[str, int]:
    """The bytes of the prepared file."""
    return {"text.tokens": meta["tokens"] * np.dtype(meta["dtype"]).itemsize}


@dataclass(frozen=True, slots=True)
class Windows:
    """Equally long stretches of a text: each position but the last is followed by what is to be predicted there."""

    ids: Ints  # (B, T + 1)

    @property
    def n_target_tokens(self) -> int:
        """Predicted tokens."""
        return len(self.ids) * (self.ids.shape[1] - 1)

    n_tokens = n_target_tokens

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)."""
        return len(self.ids), self.ids.shape[1] - 1

    def describe(self) -> str:
        """Its shape in words."""
        return "{} windows of {} tokens".format(*self.shape)

    def halves(self) -> list["Windows"]:
        """The first and the second half of the windows; these themselves where there is only one."""
        middle = len(self.ids) // 2
        return [Windows(self.ids[:middle]), Windows(self.ids[middle:])] if middle else [self]


class WindowBatches:
    """Cuts a text into batches of windows of `text.length` predictions, at most `batch_tokens` of them a batch.

    Each epoch lays the windows end to end from another place within the first of them, and shuffles them; all of it
    follows from (seed, epoch). What does not fill a window is left out of that epoch.
    """

    def __init__(self, text: PlainText, batch_tokens: int, seed: int = 1) -> None:
        """Raise `UserError` for a window of more than `batch_tokens`."""
        length = text.length
        if length > batch_tokens:
            raise UserError(
                f"batch_tokens: expected at least data.max_length = {length}; got {batch_tokens}; try {length}"
            )
        self.text, self.length, self.seed = text, length, seed
        self.each = batch_tokens // length  # windows a batch

    def epoch(self, epoch: int) -> list[Ints]:
        """The first positions of each batch's windows."""
        bits = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        predictions = len(self.text.tokens) - 1
        first = int(bits.random_raw()) % min(self.length, predictions - self.length + 1)
        starts = first + self.length * shuffled((predictions - first) // self.length, bits).astype(np.int64)
        return [starts[i : i + self.each] for i in range(0, len(starts), self.each)]

    def sizes(self, starts: Ints) -> tuple[int, int]:
        """`n_target_tokens` and `n_tokens` of the batch of these windows, without making it."""
        return len(starts) * self.length, len(starts) * self.length

    def batch(self, starts: Ints) -> Windows:
        """The windows at these positions (B,)."""
        return Windows(self.text.tokens[starts[:, None] + np.arange(self.length + 1)].astype(np.int32))

    def in_order(self) -> Iterator[tuple[Ints, Windows]]:
        """Every prediction of the text once: whole windows from its beginning, then what is left, a shorter one."""
        predictions = len(self.text.tokens) - 1
        starts = np.arange(0, predictions - self.length + 1, self.length)
        for i in range(0, len(starts), self.each):
            yield starts[i : i + self.each], self.batch(starts[i : i + self.each])
        if rest := predictions % self.length:
            yield np.array([predictions - rest]), Windows(self.text.tokens[None, -rest - 1 :].astype(np.int32))
