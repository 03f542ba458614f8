"""Sentence pairs as token arrays on disk.

`prepare` streams two text files through a tokenizer into four flat files and a `meta.json`, which `Corpus` maps into
memory: a token takes 2 bytes of disk (4 where there are over 65,536 pieces), a pair 16 bytes of offsets, and 4 bytes a
pair, its lengths, stay in RAM.

Lengths here count the end mark: a sentence of n pieces has length n + 1, on both sides, which is also the number of
positions that it takes in the encoder (`tokens + [EOS]`) and in the decoder (`[BOS] + tokens` in, `tokens + [EOS]`
out).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError
from train.text.lines import read_parallel
from train.text.prepared import read_prepared, token_dtype, write_prepared
from train.text.tokenizer import OWN_IDS, SpecialIds, Tokenizer

FORMAT = 2  # of the prepared files; a change of what they hold gets a new number, and older ones are prepared again
LONGEST = 65_535  # lengths are kept as uint16
SIDES = ("src", "tgt")
_NAMES = [f"{side}.{kind}" for side in SIDES for kind in ("tokens", "offsets")] + ["left-out"]

Ints = NDArray[np.integer[Any]]


def prepare(
    src_path: str | PathLike[str],
    tgt_path: str | PathLike[str],
    tokenizer: Tokenizer,
    out_dir: str | PathLike[str],
    max_length: int = 256,
    progress: Callable[[int], object] = lambda read: None,
) -> "Corpus":
    """Encode two files, line i translating line i, into the folder `out_dir`, and open the result.

    A pair is skipped (and counted) where a side is empty or longer than `max_length` tokens, end mark included.
    Where `out_dir` already holds the result of the same text, tokenizer and `max_length`, it is used as it is.
    `meta.json` is written last: an interrupted preparation is never taken for a finished one.  `progress` is told the
    pairs read so far.

    Raises `UserError` for unreadable or unequal files, for no pair left, and where `out_dir` cannot be written.
    """

    def encoded(*watch: Callable[[bytes], object]) -> Iterator[tuple[list[list[int]], ...]]:
        for lines in read_parallel(src_path, tgt_path, watch=watch):
            yield tuple(tokenizer.encode_batch(side) for side in lines)

    return prepare_pairs({"src": src_path, "tgt": tgt_path}, encoded, tokenizer, out_dir, max_length, progress)


def prepare_pairs(
    paths: Mapping[str, str | PathLike[str]],
    encoded: Callable[..., Iterable[tuple[list[list[int]], ...]]],
    tokenizer: Tokenizer,
    out_dir: str | PathLike[str],
    max_length: int = 256,
    progress: Callable[[int], object] = lambda read: None,
) -> "Corpus":
    """`prepare` for files of any kind: `encoded` yields the token ids of both sides of some pairs after others.

    It gets, for each of `paths` (by what each holds), a function to be told every byte read.
    """
    if not 2 <= max_length <= LONGEST:
        raise UserError(f"max_length: expected 2 to {LONGEST} tokens a side; got {max_length}; try 256")
    out_dir = Path(out_dir)
    same = {"format": FORMAT, "tokenizer": tokenizer.digest, "max_length": max_length}
    if read_prepared(out_dir, _sizes, paths, **same) is None:
        dtype = token_dtype(tokenizer.vocab_size)

        def fill(files: Sequence[BinaryIO]) -> dict[str, Any]:
            hashes = {name: hashlib.sha256() for name in paths}
            chunks = encoded(*(found.update for found in hashes.values()))
            pairs, tokens = _write(chunks, max_length, files, dtype, progress)
            if not pairs["kept"]:
                raise UserError(
                    f"{', '.join(map(str, paths.values()))}: expected at least one pair; got {pairs['empty']:,} with "
                    f"an empty side and {pairs['too_long']:,} over max_length {max_length}; try other files or a "
                    "larger data.max_length"
                )
            about = {"sources": {name: str(path) for name, path in paths.items()}, "dtype": dtype.name}
            sha256 = {name: found.hexdigest() for name, found in hashes.items()}
            return same | about | {"sha256": sha256, "pairs": pairs, "tokens": tokens}

        write_prepared(out_dir, _NAMES, fill)
    return Corpus.open(out_dir, tokenizer.special)


def _write(
    chunks: Iterable[tuple[list[list[int]], ...]],
    max_length: int,
    files: Sequence[BinaryIO],
    dtype: np.dtype[Any],
    progress: Callable[[int], object],
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the tokens and offsets of all chunks to `files`; the numbers of pairs (by fate) and tokens (by side)."""
    pairs = {"read": 0, "kept": 0, "empty": 0, "too_long": 0}
    tokens = dict.fromkeys(SIDES, 0)
    for file in files[1:4:2]:
        file.write(np.zeros(1, np.int64).tobytes())
    files[4].write(np.full(1, -1, np.int64).tobytes())  # no file is empty, for an empty one cannot be mapped
    for encoded in chunks:
        lengths = np.array([[len(ids) for ids in side] for side in encoded])  # (2, pairs), end mark not counted
        empty, too_long = (lengths == 0).any(0), (lengths >= max_length).any(0)
        keep = ~(empty | too_long)
        files[4].write((pairs["read"] + np.flatnonzero(~keep)).tobytes())
        pairs["read"] += len(keep)
        pairs["kept"] += int(keep.sum())
        pairs["empty"] += int(empty.sum())
        pairs["too_long"] += int((too_long & ~empty).sum())
        for i, side in enumerate(SIDES):
            flat = np.fromiter(chain.from_iterable(compress(encoded[i], keep)), dtype, int(lengths[i, keep].sum()))
            offsets = tokens[side] + np.cumsum(lengths[i, keep], dtype=np.int64)
            tokens[side] += len(flat)
            files[2 * i].write(flat.tobytes())
            files[2 * i + 1].write(offsets.tobytes())
        progress(pairs["read"])
    return pairs, tokens


class Corpus:
    """Pairs of token sequences: `len(corpus)`, `corpus.pair(i)`, `corpus.src_lengths`, `corpus.tgt_lengths`.

    Lengths (uint16, shape (pairs,)) count the end mark.  `meta` is the content of `meta.json`, {} for one in memory.
    """

    def __init__(
        self,
        tokens: Sequence[Ints],
        offsets: Sequence[Ints],
        special: SpecialIds = OWN_IDS,
        meta: dict[str, Any] | None = None,
        left_out: Ints | None = None,
    ) -> None:
        """Wrap flat tokens and offsets of both sides: sentence i of a side is `tokens[offsets[i] : offsets[i + 1]]`.

        `left_out`: the numbers, from 0 and in order, of the pairs of the text that are none of these.
        """
        self._left_out = np.zeros(0, np.int64) if left_out is None else left_out
        self.special, self.meta = special, meta or {}
        self._tokens, self._offsets = tuple(tokens), tuple(offsets)
        self.src_lengths, self.tgt_lengths = map(_lengths, offsets)

    @classmethod
    def open(cls, out_dir: str | PathLike[str], special: SpecialIds = OWN_IDS) -> "Corpus":
        """Map the files written by `prepare`; `special` are the ids of the tokenizer's marks.

        Raises `UserError` where the files are missing or incomplete.
        """
        out_dir = Path(out_dir)
        meta = read_prepared(out_dir, _sizes, {}, format=FORMAT)
        if meta is None:
            raise UserError(f"{out_dir}: expected prepared data; got none, or damaged files; try preparing it again")
        dtypes = [np.dtype(meta["dtype"]), np.dtype(np.int64)] * 2 + [np.dtype(np.int64)]
        arrays = [np.asarray(np.memmap(out_dir / name, dtype, "r")) for name, dtype in zip(_NAMES, dtypes, strict=True)]
        return cls(arrays[:4:2], arrays[1:4:2], special, meta, arrays[4][1:])

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> "Corpus":
        """Hold pairs of token id sequences (no special ids) in memory."""
        sides = list(zip(*pairs, strict=True)) or [(), ()]
        offsets = [np.concatenate([[0], np.cumsum([len(ids) for ids in side], dtype=np.int64)]) for side in sides]
        return cls([np.array(list(chain.from_iterable(side)), np.uint32) for side in sides], offsets)

    def __len__(self) -> int:
        return len(self.src_lengths)

    def pair(self, i: int) -> tuple[list[int], list[int]]:
        """Token ids of pair i, source and target, without special ids."""
        if not 0 <= i < len(self):
            raise IndexError(f"pair: expected 0 to {len(self) - 1}; got {i}")
        src, tgt = (t[o[i] : o[i + 1]].tolist() for t, o in zip(self._tokens, self._offsets, strict=True))
        return src, tgt

    @property
    def digest(self) -> Any:
        """SHA-256 of the text of each side; None for pairs that never were files."""
        return self.meta.get("sha256")

    def numbers(self, indices: Ints) -> Ints:
        """The numbers of pairs in the text they are from, in order and from 1: of lines, where a line is a pair."""
        before = self._left_out - np.arange(len(self._left_out))  # kept pairs before each that was left out
        found = np.sort(np.asarray(indices).astype(np.int64))
        return found + 1 + np.searchsorted(before, found, side="right")

    def describe(self) -> str:
        """How many pairs there are, and how many were left out and why."""
        tokens = f"{int(self.src_lengths.sum()):,} + {int(self.tgt_lengths.sum()):,} tokens"
        pairs = self.meta.get("pairs")
        if pairs is None:
            return f"{len(self):,} pairs, {tokens}"
        return (
            f"{pairs['read']:,} pairs read, {pairs['kept']:,} kept ({tokens}); skipped: {pairs['empty']:,} with an "
            f"empty side, {pairs['too_long']:,} longer than {self.meta['max_length']} tokens"
        )

    def rows(self, side: int, indices: Ints, bos: bool = False) -> NDArray[np.int32]:
        """Padded rows `[BOS] + tokens + [EOS]` (BOS if asked for) of one side (0 source, 1 target): (B, L) int32."""
        tokens, offsets = self._tokens[side], self._offsets[side]
        starts = offsets[indices][:, None]  # (B, 1)
        lengths = offsets[np.asarray(indices) + 1][:, None] - starts  # (B, 1), without the end mark
        columns = np.arange(int(lengths.max(initial=0)) + 1)  # (S,)
        rows = np.full((len(lengths), bos + len(columns)), self.special.bos_id, np.int32)
        body = rows[:, bos:]  # (B, S)
        if len(tokens):
            body[...] = tokens.take(starts + columns, mode="clip")  # what lies beyond a sentence is overwritten below
        body[columns == lengths] = self.special.eos_id
        body[columns > lengths] = self.special.pad_id
        return rows


def _lengths(offsets: Ints, block: int = 1 << 20) -> NDArray[np.uint16]:
    """Lengths with the end mark, (pairs,), computed by blocks: the int64 offsets of a large corpus stay on disk."""
    lengths = np.empty(len(offsets) - 1, np.uint16)
    for i in range(0, len(lengths), block):
        exact = np.diff(offsets[i : i + block + 1]) + 1
        if exact.max() > LONGEST:
            raise UserError(
                f"pair {i + int(exact.argmax())}: expected at most {LONGEST} tokens a side; got {exact.max()}; "
                f"try cutting it"
            )
        lengths[i : i + block] = exact
    return lengths


def _sizes(meta: dict[str, Any]) -> dict[str, int]:
    """The bytes of each prepared file."""
    width, pairs = np.dtype(meta["dtype"]).itemsize, meta["pairs"]["kept"]
    sizes = [size for side in SIDES for size in (meta["tokens"][side] * width, 8 * (pairs + 1))]
    return dict(zip(_NAMES, [*sizes, 8 * (meta["pairs"]["read"] - pairs + 1)], strict=True))
