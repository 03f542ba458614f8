"""Sentence pairs as token arrays on disk, and batches of similar length in an order that follows from (seed, epoch).

`prepare` streams two text files through a tokenizer into four flat files and a `meta.json`, which `Corpus` maps into
memory: a token takes 2 bytes of disk (4 where there are over 65,536 pieces), a pair 16 bytes of offsets, and 4 bytes a
pair, its lengths, stay in RAM.  `Batches` cuts an epoch into batches of similar length (section 5.1 of the paper).
Read `trainer.py` next.

Lengths here count the end mark: a sentence of n pieces has length n + 1, on both sides, which is also the number of
positions that it takes in the encoder (`tokens + [EOS]`) and in the decoder (`[BOS] + tokens` in, `tokens + [EOS]`
out).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, compress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError, read_pairs
from train.tokenizer import BOS, EOS, PAD, Tokenizer

FORMAT = 1  # of the prepared files; a change of what they hold gets a new number, and older ones are prepared again
LONGEST = 65_535  # lengths are kept as uint16
SIDES = ("src", "tgt")
POOL_BATCHES = 32  # to 256, see `Batches`

Ints = NDArray[np.integer[Any]]


def prepare(
    src_path: str | PathLike[str],
    tgt_path: str | PathLike[str],
    tokenizer: Tokenizer,
    out_dir: str | PathLike[str],
    max_length: int = 256,
    progress: Callable[[int], object] | None = None,
) -> Corpus:
    """Encode two files, line i translating line i, into the folder `out_dir`, and open the result.

    A pair is skipped (and counted) where a side is empty or longer than `max_length` tokens, end mark included.
    Where `out_dir` already holds the result of the same text, tokenizer and `max_length`, it is used as it is.
    `meta.json` is written last: an interrupted preparation is never taken for a finished one.  `progress` is told the
    pairs read so far.

    Raises `UserError` for unreadable or unequal files, for no pair left, and where `out_dir` cannot be written.
    """
    if not 2 <= max_length <= LONGEST:
        raise UserError(f"max_length: expected 2 to {LONGEST} tokens a side; got {max_length}; try 256")
    src_path, tgt_path, out_dir = Path(src_path), Path(tgt_path), Path(out_dir)
    meta = _read_meta(out_dir)
    if (
        meta is not None
        and (meta["tokenizer"], meta["max_length"]) == (tokenizer.digest, max_length)
        and [meta["sha256"][side] for side in SIDES] == [_digest(src_path), _digest(tgt_path)]
    ):
        return Corpus.open(out_dir)

    hashes = {side: hashlib.sha256() for side in SIDES}
    chunks = read_pairs(src_path, tgt_path, watch_src=hashes["src"].update, watch_tgt=hashes["tgt"].update)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    parts = {name: out_dir / f"{name}.part-{os.getpid()}" for name in [*_names(), "meta.json"]}
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            files = [stack.enter_context(parts[name].open("wb")) for name in _names()]
            pairs, tokens = _encode(chunks, tokenizer, max_length, files, dtype, progress)
        if not pairs["kept"]:
            raise UserError(
                f"{src_path}, {tgt_path}: expected at least one pair; got {pairs['empty']:,} with an empty side and "
                f"{pairs['too_long']:,} over max_length {max_length}; try other files or a larger data.max_length"
            )
        meta = {
            "format": FORMAT,
            "sources": {"src": str(src_path), "tgt": str(tgt_path)},
            "sha256": {side: hashes[side].hexdigest() for side in SIDES},
            "tokenizer": tokenizer.digest,
            "max_length": max_length,
            "dtype": dtype.name,
            "pairs": pairs,
            "tokens": tokens,
        }
        parts["meta.json"].write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        (out_dir / "meta.json").unlink(missing_ok=True)  # from here to the last rename nothing counts as prepared
        for name, part in parts.items():
            part.replace(out_dir / name)
    except OSError as error:
        raise UserError(
            f"{out_dir}: expected a folder to write prepared text to; got '{error.strerror}'; "
            f"try another folder or more disk space"
        ) from None
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
    return Corpus.open(out_dir)


def _encode(
    chunks: Iterable[tuple[list[str], list[str]]],
    tokenizer: Tokenizer,
    max_length: int,
    files: Sequence[BinaryIO],
    dtype: np.dtype[Any],
    progress: Callable[[int], object] | None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the tokens and offsets of all chunks to `files`; the numbers of pairs (by fate) and tokens (by side)."""
    pairs = {"read": 0, "kept": 0, "empty": 0, "too_long": 0}
    tokens = dict.fromkeys(SIDES, 0)
    for file in files[1::2]:
        file.write(np.zeros(1, np.int64).tobytes())
    for lines in chunks:
        encoded = [tokenizer.encode_batch(side) for side in lines]
        lengths = np.array([[len(ids) for ids in side] for side in encoded])  # (2, pairs), end mark not counted
        empty, too_long = (lengths == 0).any(0), (lengths >= max_length).any(0)
        keep = ~(empty | too_long)
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
        if progress is not None:
            progress(pairs["read"])
    return pairs, tokens


class Corpus:
    """Pairs of token sequences: `len(corpus)`, `corpus.pair(i)`, `corpus.src_lengths`, `corpus.tgt_lengths`.

    Lengths (uint16, shape (pairs,)) count the end mark.  `meta` is the content of `meta.json`, {} for one in memory.
    """

    def __init__(self, tokens: Sequence[Ints], offsets: Sequence[Ints], meta: dict[str, Any] | None = None) -> None:
        """Wrap flat tokens and offsets of both sides: sentence i of a side is `tokens[offsets[i] : offsets[i + 1]]`."""
        self.meta = meta or {}
        self._tokens, self._offsets = tuple(tokens), tuple(offsets)
        self.src_lengths, self.tgt_lengths = map(_lengths, offsets)

    @classmethod
    def open(cls, out_dir: str | PathLike[str]) -> Corpus:
        """Map the files written by `prepare`.  Raises `UserError` where they are missing or incomplete."""
        out_dir = Path(out_dir)
        meta = _read_meta(out_dir)
        if meta is None:
            raise UserError(f"{out_dir}: expected prepared data; got none, or damaged files; try preparing it again")
        dtypes = [np.dtype(meta["dtype"]), np.dtype(np.int64)] * 2
        arrays = [
            np.asarray(np.memmap(out_dir / name, dtype, "r")) for name, dtype in zip(_names(), dtypes, strict=True)
        ]
        return cls(arrays[::2], arrays[1::2], meta)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Corpus:
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

    def rows(self, side: int, indices: Ints, bos: bool = False) -> NDArray[np.int32]:
        """Padded rows `[BOS] + tokens + [EOS]` (BOS if asked for) of one side (0 source, 1 target): (B, L) int32."""
        tokens, offsets = self._tokens[side], self._offsets[side]
        starts = offsets[indices][:, None]  # (B, 1)
        lengths = offsets[np.asarray(indices) + 1][:, None] - starts  # (B, 1), without the end mark
        columns = np.arange(int(lengths.max(initial=0)) + 1)  # (S,)
        rows = np.full((len(lengths), bos + len(columns)), BOS, np.int32)
        body = rows[:, bos:]  # (B, S)
        if len(tokens):
            body[...] = tokens.take(starts + columns, mode="clip")  # what lies beyond a sentence is overwritten below
        body[columns == lengths] = EOS
        body[columns > lengths] = PAD
        return rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded ids of some pairs: `tokens + [EOS]` and `[BOS] + tokens + [EOS]`, filled up with PAD."""

    src: NDArray[np.int32]  # (B, S)
    tgt: NDArray[np.int32]  # (B, T + 1): the decoder reads [:, :-1] and predicts [:, 1:]
    n_target_tokens: int  # predicted tokens, end marks included, padding excluded


class Plan(Sequence[Ints]):
    """The batches of an epoch, in order: `plan[i]` is an array of pair numbers; every pair is in exactly one batch."""

    def __init__(self, order: Ints, starts: Ints, sequence: Ints | None = None) -> None:
        """Batch i is `order[starts[j] : starts[j + 1]]` with j = sequence[i] (i itself where there is no sequence)."""
        self._order, self._starts = order, starts
        self._sequence = np.arange(len(starts) - 1) if sequence is None else sequence

    def __len__(self) -> int:
        return len(self._sequence)

    @overload
    def __getitem__(self, i: int) -> Ints: ...
    @overload
    def __getitem__(self, i: slice) -> Plan: ...
    def __getitem__(self, i: int | slice) -> Ints | Plan:
        if isinstance(i, slice):
            return Plan(self._order, self._starts, self._sequence[i])
        j = self._sequence[i]
        return self._order[self._starts[j] : self._starts[j + 1]]


class Batches:
    """Cuts a corpus into batches of similar length, each within a budget of tokens on either side.

    A batch of n pairs whose longest sentence, of either side, has length L keeps n L <= batch_tokens.

    The pairs of an epoch are shuffled and dealt into pools; a pool is sorted by length and cut; the batches of all
    pools are shuffled.  All of it follows from (seed, epoch) and from nothing else.  The pool's size is a bargain: a
    larger one leaves less padding, a smaller one makes it more random which pairs share a batch.  One of 32 batches
    leaves 7 to 8 % of padding at 4,096 tokens (Multi30k, Tatoeba), one of 256 leaves 5 to 6 % at 25,000 (news).
    """

    def __init__(self, corpus: Corpus, batch_tokens: int, seed: int = 1) -> None:
        """Raise `UserError` for a corpus with no pair, or with a sentence longer than `batch_tokens`."""
        if not len(corpus):
            raise UserError("data: expected at least one pair; got none; try other training files")
        if seed < 0:
            raise UserError(f"train.seed: expected 0 or more; got {seed}; try 1")
        longest = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        if longest > batch_tokens:
            raise UserError(
                f"batch_tokens: expected at least {longest}, the longest sentence's tokens with its end mark; "
                f"got {batch_tokens}; try a larger batch_tokens or a smaller data.max_length"
            )
        self.corpus, self.batch_tokens, self.seed = corpus, int(batch_tokens), int(seed)
        tokens = np.maximum(corpus.src_lengths, corpus.tgt_lengths).sum(dtype=np.int64)
        batches = int(tokens) / batch_tokens
        pool_batches = min(max(POOL_BATCHES, batches / 16), 8 * POOL_BATCHES)
        pools = max(1, round(batches / pool_batches), min(2, int(batches / 8)))
        self._pool = -(-len(corpus) // pools)  # pairs in a pool

    def epoch(self, epoch: int) -> Plan:
        """Batches of one epoch (0, 1, ...), each pair once."""
        bits = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        order = _shuffled(len(self.corpus), bits)
        pieces = []
        for start in range(0, len(order), self._pool):
            pool = order[start : start + self._pool]
            lengths = _sort_by_length(self.corpus, pool)
            pieces.append(start + _cuts(lengths, self.batch_tokens))
        starts = np.concatenate([[0], *pieces])
        return Plan(order, starts, _shuffled(len(starts) - 1, bits))

    def by_length(self) -> Plan:
        """The same batches every time, from short to long: for validation and translation."""
        order = np.arange(len(self.corpus), dtype=np.uint32)
        lengths = _sort_by_length(self.corpus, order)
        return Plan(order, np.concatenate([[0], _cuts(lengths, self.batch_tokens)]))

    def batch(self, indices: Ints) -> Batch:
        """Padded arrays of the pairs `indices` (B,), in that order."""
        src, tgt = self.corpus.rows(0, indices), self.corpus.rows(1, indices, bos=True)
        return Batch(src, tgt, int(self.corpus.tgt_lengths[indices].sum(dtype=np.int64)))

    def padding(self, plan: Plan) -> float:
        """Share of padding among the source and target positions of a plan's batches, 0 to 1."""
        sides = self.corpus.src_lengths, self.corpus.tgt_lengths
        shares = [(int(side[i].sum(dtype=np.int64)), len(i) * int(side[i].max())) for i in plan for side in sides]
        real, taken = map(sum, zip(*shares, strict=True))
        return 1 - real / taken


Place = tuple[int, int]  # of a batch: its epoch, and its index within it


class Stream:
    """The batches of all epochs in a row, each at its place, some of them made before they are asked for."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._epochs: dict[int, Plan] = {}  # the last two
        self._ready: dict[Place, Batch] = {}

    def epoch(self, epoch: int) -> Plan:
        """`Batches.epoch`, kept for this epoch and the one before."""
        if epoch not in self._epochs:
            before = {e: plan for e, plan in self._epochs.items() if e == epoch - 1}
            self._epochs = {**before, epoch: self._batches.epoch(epoch)}
        return self._epochs[epoch]

    def after(self, place: Place) -> Place:
        """The place that follows."""
        epoch, index = place
        return (epoch, index + 1) if index + 1 < len(self.epoch(epoch)) else (epoch + 1, 0)

    def batch(self, place: Place) -> Batch:
        """The batch at a place."""
        epoch, index = place
        return self._ready.pop(place, None) or self._batches.batch(self.epoch(epoch)[index])

    def prepare(self, place: Place, count: int) -> None:
        """Make the `count` batches from `place` on now."""
        self._ready.clear()
        for _ in range(count):
            self._ready[place] = self.batch(place)
            place = self.after(place)


def _shuffled(n: int, bits: np.random.Philox) -> Ints:
    """A permutation of 0..n-1 (uint32): the order of n random numbers, each carrying its index in its low bits.

    NumPy promises that a bit generator's raw stream never changes; of `Generator.permutation` it does not.
    """
    width = max(1, (n - 1).bit_length())
    keys = bits.random_raw(n)
    keys <<= np.uint64(width)
    keys |= np.arange(n, dtype=np.uint64)
    keys.sort()  # no two are equal, so that every sorting algorithm gives this order
    keys &= np.uint64((1 << width) - 1)
    return keys.astype(np.uint32)


def _sort_by_length(corpus: Corpus, pool: Ints) -> Ints:
    """Sort the pair numbers in `pool`, in place, by longer side, then source, then as they stand; the longer sides."""
    src = corpus.src_lengths[pool].astype(np.uint64)
    longer = np.maximum(src, corpus.tgt_lengths[pool])
    keys = (longer << np.uint64(48)) | (src << np.uint64(32)) | np.arange(len(pool), dtype=np.uint64)
    keys.sort()
    pool[:] = pool[keys & np.uint64(0xFFFFFFFF)]
    return (keys >> np.uint64(48)).astype(np.int64)


def _cuts(lengths: Ints, batch_tokens: int) -> Ints:
    """Ends of the batches cut from ascending lengths: each takes n sentences while n * its longest <= batch_tokens."""
    ends, start = [], 0
    while start < len(lengths):
        window = lengths[start : start + batch_tokens // int(lengths[start])]
        start += int(np.searchsorted(window * np.arange(1, len(window) + 1), batch_tokens, side="right"))
        ends.append(start)
    return np.array(ends, np.int64)


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


def _names() -> list[str]:
    return [f"{side}.{kind}" for side in SIDES for kind in ("tokens", "offsets")]


def _digest(path: Path) -> str | None:
    """sha256 of a file, None where it cannot be read (which reading it as text will explain)."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _read_meta(out_dir: Path) -> dict[str, Any] | None:
    """Content of `meta.json` where it and the files beside it are whole, else None."""
    try:
        meta = json.loads((out_dir / "meta.json").read_text(encoding="utf-8"))
        width = np.dtype(meta["dtype"]).itemsize
        sizes = [size for side in SIDES for size in (meta["tokens"][side] * width, 8 * (meta["pairs"]["kept"] + 1))]
        whole = meta["format"] == FORMAT and [(out_dir / name).stat().st_size for name in _names()] == sizes
        return meta if whole and {"sha256", "tokenizer", "max_length"} <= meta.keys() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
