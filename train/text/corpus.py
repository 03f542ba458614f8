"""Sentence pairs as token arrays on disk.

`prepare` streams two text files through a tokenizer into four flat files and a `meta.json`, which `PairCorpus` maps
into memory. On disk a token takes 2 bytes (4 for a vocabulary of more than 65,536 tokens) and a pair 16 bytes of
offsets; in RAM a pair takes 4 bytes for its two lengths.

Lengths include EOS: a sentence of n subwords has length n + 1 on both sides. It occupies n + 1 positions in
the encoder (`tokens + [EOS]`) and in the decoder (input `[BOS] + tokens`, output `tokens + [EOS]`).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError, plural
from train.files import MISSING, describe_base
from train.text.lines import read_parallel
from train.text.pair_tokenizer import PairTokenizer
from train.text.prepared import read_prepared, token_dtype, write_prepared
from train.text.tokenizer import DEFAULT_IDS, SpecialIds, Tokenizer

FORMAT = 2  # version of the prepared files; increment it when their content changes, so that old files are replaced
MAX_LENGTH = 65_535  # lengths are stored as uint16
SIDES = ("src", "tgt")
ARRAYS = [f"{side}.{kind}" for side in SIDES for kind in ("tokens", "offsets")] + ["left-out"]

IntArray = NDArray[np.integer[Any]]


def prepare(
    src_path: str | PathLike[str],
    tgt_path: str | PathLike[str],
    tokenizer: Tokenizer | PairTokenizer,
    out_dir: str | PathLike[str],
    max_length: int = 256,
    on_progress: Callable[[int], object] = lambda n_read: None,
) -> "PairCorpus":
    """Encode two parallel files, write the token arrays to the folder `out_dir`, and open them.

    A pair is skipped (and counted) if a side is empty or longer than `max_length` tokens, end token included. A folder
    that already holds the result for the same text, tokenizer and `max_length` is reused. `on_progress` receives the
    number of pairs read so far.

    Raises UserError for unreadable files, for different numbers of lines, if no pair remains, and if `out_dir` cannot
    be written.
    """

    source, target = (getattr(tokenizer, side, tokenizer) for side in ("source", "target"))

    def encode(*on_bytes: Callable[[bytes], object]) -> Iterator[tuple[list[list[int]], ...]]:
        for src, tgt in read_parallel(src_path, tgt_path, on_bytes=on_bytes):
            yield source.encode_batch(src), target.encode_batch(tgt)

    return prepare_pairs({"src": src_path, "tgt": tgt_path}, encode, tokenizer, out_dir, max_length, on_progress)


def prepare_pairs(
    paths: Mapping[str, str | PathLike[str]],
    encode: Callable[..., Iterable[tuple[list[list[int]], ...]]],
    tokenizer: Tokenizer | PairTokenizer,
    out_dir: str | PathLike[str],
    max_length: int = 256,
    on_progress: Callable[[int], object] = lambda n_read: None,
    *,
    unseen_labels: Mapping[str, int] | None = None,
) -> "PairCorpus":
    """Prepare pairs from files of any kind, as `prepare` does for text files.

    `encode` receives one function for each file, calls it with all bytes of the file, and yields chunks of pairs as
    (source ids, target ids). `encode` may also fill `unseen_labels`, which is stored in meta.json.
    """
    if not 2 <= max_length <= MAX_LENGTH:
        raise UserError(f"max_length: expected 2 to {MAX_LENGTH} tokens per side; got {max_length}; try 256")
    out_dir = Path(out_dir)
    identity = {"format": FORMAT, "tokenizer": tokenizer.digest, "max_length": max_length}
    if read_prepared(out_dir, ARRAYS, paths, **identity) is None:
        dtype = token_dtype(max(tokenizer.vocab_size, tokenizer.src_vocab_size or 0))

        def write_files(files: Sequence[BinaryIO]) -> dict[str, Any]:
            hashes = {name: hashlib.sha256() for name in paths}
            chunks = encode(*(sha256.update for sha256 in hashes.values()))
            pairs, tokens = _write(chunks, max_length, files, dtype, on_progress)
            if not pairs["kept"]:
                raise UserError(
                    f"{', '.join(map(str, paths.values()))}: expected at least one pair; got {pairs['empty']:,} pairs "
                    f"with an empty side and {pairs['too_long']:,} over max_length {max_length}; try other files or a "
                    "larger maximum length (data.max_length, or --max-length of `data`)"
                )
            sources = {name: str(path) for name, path in paths.items()}
            digests = {name: sha256.hexdigest() for name, sha256 in hashes.items()}
            return identity | {
                "sources": sources, "dtype": dtype.name, "sha256": digests, "pairs": pairs, "tokens": tokens,
                **({"unseen_labels": unseen_labels} if unseen_labels else {}),
            }  # fmt: skip

        write_prepared(out_dir, ARRAYS, write_files)
    return PairCorpus.open(out_dir, tokenizer.special_ids)


def _write(
    chunks: Iterable[tuple[list[list[int]], ...]],
    max_length: int,
    files: Sequence[BinaryIO],
    dtype: np.dtype[Any],
    on_progress: Callable[[int], object],
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the tokens and offsets of all chunks; return the number of pairs per outcome and of tokens per side."""
    pairs = {"read": 0, "kept": 0, "empty": 0, "too_long": 0}
    tokens = dict.fromkeys(SIDES, 0)
    for file in files[1:4:2]:
        file.write(np.zeros(1, np.int64).tobytes())
    files[4].write(np.full(1, -1, np.int64).tobytes())  # an empty file could not be memory-mapped
    for encoded in chunks:
        lengths = np.array([[len(ids) for ids in side] for side in encoded])  # (2, pairs), without the end token
        empty = (lengths == 0).any(0)
        too_long = (lengths >= max_length).any(0)
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
        on_progress(pairs["read"])
    return pairs, tokens


class PairCorpus:
    """Pairs of token sequences: `len(corpus)`, `corpus.pair(i)`, `corpus.src_lengths`, `corpus.tgt_lengths`.

    Lengths (uint16, shape (pairs,)) include EOS. `meta` is the content of `meta.json`, or {} if there is no such file.
    """

    def __init__(
        self,
        tokens: Sequence[IntArray],
        offsets: Sequence[IntArray],
        special_ids: SpecialIds = DEFAULT_IDS,
        meta: dict[str, Any] | None = None,
        skipped: IntArray | None = None,
    ) -> None:
        """Wrap flat tokens and offsets of both sides.

        Args:
            tokens: token ids of the source and of the target; sentence i is `tokens[offsets[i] : offsets[i + 1]]`.
            offsets: start of each sentence and end of the last one, per side.
            special_ids: ids of the padding, beginning and end tokens.
            meta: content of meta.json.
            skipped: ascending indices, from 0, of the pairs of the text that are not in the corpus.
        """
        self._skipped = np.zeros(0, np.int64) if skipped is None else skipped
        self.special_ids = special_ids
        self.meta = meta or {}
        self._tokens, self._offsets = tuple(tokens), tuple(offsets)
        self.src_lengths, self.tgt_lengths = map(_lengths, offsets)

    @classmethod
    def open(cls, out_dir: str | PathLike[str], special_ids: SpecialIds = DEFAULT_IDS) -> "PairCorpus":
        """Map the files written by `prepare`; `special_ids` are the tokenizer's special ids.

        Raises UserError if the files are missing or damaged.
        """
        out_dir = Path(out_dir)
        meta = read_prepared(out_dir, ARRAYS, {}, format=FORMAT)
        if meta is None:
            got, suggestion = "missing or damaged files", "preparing the data again"
            if not out_dir.exists():
                got, suggestion = MISSING, "its new path in data.prepared (in config.toml of the run) if it was moved"
            raise UserError(
                f"{out_dir}: expected prepared data; got {got}; try {suggestion}{describe_base(str(out_dir))}"
            )
        dtypes = [np.dtype(meta["dtype"]), np.dtype(np.int64)] * 2 + [np.dtype(np.int64)]
        arrays = [np.asarray(np.memmap(out_dir / name, dtype, "r")) for name, dtype in zip(ARRAYS, dtypes, strict=True)]
        return cls(arrays[:4:2], arrays[1:4:2], special_ids, meta, arrays[4][1:])

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], special_ids: SpecialIds = DEFAULT_IDS
    ) -> "PairCorpus":
        """Return an in-memory corpus of pairs of token id sequences without special ids."""
        sides = list(zip(*pairs, strict=True)) or [(), ()]
        offsets = [np.concatenate([[0], np.cumsum([len(ids) for ids in side], dtype=np.int64)]) for side in sides]
        return cls([np.array(list(chain.from_iterable(side)), np.uint32) for side in sides], offsets, special_ids)

    def __len__(self) -> int:
        return len(self.src_lengths)

    def pair(self, i: int) -> tuple[list[int], list[int]]:
        """Return the source and target token ids of pair i, without special ids."""
        if not 0 <= i < len(self):
            raise IndexError(f"pair: expected 0 to {len(self) - 1}; got {i}")
        src, tgt = (t[o[i] : o[i + 1]].tolist() for t, o in zip(self._tokens, self._offsets, strict=True))
        return src, tgt

    def flat_tokens(self, side: int, first: int, end: int) -> tuple[IntArray, IntArray]:
        """Return one side of the pairs `first` to `end` - 1: the tokens, and each sentence's offset in these tokens."""
        offsets = self._offsets[side][first : end + 1]
        return self._tokens[side][offsets[0] : offsets[-1]], offsets - offsets[0]

    def with_tokens(self, tokens: Sequence[IntArray], offsets: Sequence[IntArray]) -> "PairCorpus":
        """Return the same pairs with different tokens."""
        return PairCorpus(tokens, offsets, self.special_ids, self.meta, self._skipped)

    @property
    def digest(self) -> Any:
        """SHA-256 of the text of each side; None for pairs that were never in files."""
        return self.meta.get("sha256")

    @property
    def n_targets(self) -> int:
        """Number of target tokens, end tokens included."""
        return int(self.tgt_lengths.sum())

    def line_numbers(self, indices: IntArray) -> IntArray:
        """Return the ascending line numbers (from 1) of pairs in the original text, counting skipped pairs."""
        kept_before = self._skipped - np.arange(len(self._skipped))  # number of kept pairs before each skipped one
        ordered = np.sort(np.asarray(indices).astype(np.int64))
        return ordered + 1 + np.searchsorted(kept_before, ordered, side="right")

    def describe(self) -> str:
        """Return the numbers of pairs, tokens and skipped pairs as text."""
        tokens = f"{int(self.src_lengths.sum()):,} + {int(self.tgt_lengths.sum()):,} tokens"
        pairs = self.meta.get("pairs")
        if pairs is None:
            return f"{plural(len(self), 'pair')}, {tokens}"
        skipped = (
            f"{pairs['empty']:,} with an empty side, {pairs['too_long']:,} longer than {self.meta['max_length']} tokens"
        )
        return f"{plural(pairs['read'], 'pair')} read, {pairs['kept']:,} kept ({tokens}); skipped: {skipped}"

    def pad_rows(self, side: int, indices: IntArray, bos: bool = False) -> NDArray[np.int32]:
        """Return one side (0: source, 1: target) of the pairs as rows `[BOS] + tokens + [EOS]` with padding.

        Shape (B, L), int32; rows start with BOS only if `bos`.
        """
        tokens, offsets = self._tokens[side], self._offsets[side]
        starts = offsets[indices][:, None]  # (B, 1)
        lengths = offsets[np.asarray(indices) + 1][:, None] - starts  # (B, 1), without the end token
        columns = np.arange(int(lengths.max(initial=0)) + 1)  # (S,)
        rows = np.full((len(lengths), bos + len(columns)), self.special_ids.bos_id, np.int32)
        body = rows[:, bos:]  # (B, S)
        if len(tokens):
            body[...] = tokens.take(starts + columns, mode="clip")  # positions past the sentence are overwritten below
        body[columns == lengths] = self.special_ids.eos_id
        body[columns > lengths] = self.special_ids.pad_id
        return rows


def _lengths(offsets: IntArray, block: int = 1 << 20) -> NDArray[np.uint16]:
    """Return the length of each sentence, EOS included; reads one block at a time, so the int64 offsets stay on disk.

    Raises UserError for a sentence that is too long. Only pairs in memory can be too long, because `prepare` leaves
    long pairs out.
    """
    lengths = np.empty(len(offsets) - 1, np.uint16)
    for i in range(0, len(lengths), block):
        exact = np.diff(offsets[i : i + block + 1]) + 1
        if exact.max() > MAX_LENGTH:
            raise UserError(
                f"pair {i + int(exact.argmax())} (numbered from 0): expected at most {MAX_LENGTH:,} tokens per side; "
                f"got {exact.max():,}; "
                "try splitting the pair"
            )
        lengths[i : i + block] = exact
    return lengths
