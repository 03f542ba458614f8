"""Read UTF-8 text files of any size, with one sentence per line; every defect raises an error."""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, count, zip_longest
from os import PathLike
from pathlib import Path
from typing import IO, TypeVar

from train.errors import TO_UTF8, UserError
from train.files import open_for_reading

T = TypeVar("T")
CHUNK_LINES = 8192
CHUNK_BYTES = 1 << 20  # size of a chunk of lines in bytes; a tokenizer needs up to 400 times as much memory
MAX_LINE_BYTES = 1 << 20  # maximum length of a line in bytes, except in text that is read in pieces
PIECE_BYTES = 1 << 16  # maximum length of a piece in bytes, for text whose lines may have any length
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
_COMPLETE_WORDS = re.compile(r".*\S(?= )", re.DOTALL)  # everything up to the last word with a space after it


def chunks_of(items: Iterable[T], max_items: int, size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists. A list ends after `max_items` items, or earlier when its size reaches CHUNK_BYTES."""
    chunk, size = [], 0
    for item in items:
        chunk.append(item)
        size += size_of(item)
        if len(chunk) == max_items or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def limited_lines(file: IO[bytes], name: object) -> Iterator[bytes]:
    """Yield the lines of a file, with their line feeds; raise UserError for a line of more than MAX_LINE_BYTES bytes.

    Reading stops at the limit, so a small compressed file with one huge line cannot exhaust the memory.
    """
    for number in count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise long_line_error(name, number, MAX_LINE_BYTES)
        if not line:
            return
        yield line


def long_line_error(name: object, number: int, max_bytes: int) -> UserError:
    """Return the error for a line that has more than `max_bytes` bytes."""
    return UserError(
        f"{name}, line {number}: expected at most {max_bytes:,} bytes; got a longer line; try one sentence per line"
    )


def decode_line(raw: bytes, name: object, number: int) -> str:
    """Return a line as text, without its line ending or byte order mark. Raises UserError for invalid UTF-8."""
    try:
        text = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        if number == 1 and raw.startswith(GZIP):
            raise gzip_error(name) from None
        got = f"byte {raw[error.start]:#04x} at column {error.start + 1}"
        raise UserError(f"{name}, line {number}: expected UTF-8 text; got {got}; try {TO_UTF8}") from None
    return text.removeprefix("\ufeff") if number == 1 else text


def gzip_error(name: object) -> UserError:
    """Return the error for a gzip file where text is expected."""
    return UserError(f"{name}: expected UTF-8 text; got a gzip file; try `gunzip`")


def line_pieces(file: IO[bytes], name: object) -> Iterator[bytes]:
    """Yield the lines of a file, with their line feeds; divide long lines into pieces.

    A piece ends before a single space, so that no word or subword is divided. Without such a space, it may end
    after any character, but not between carriage return and line feed.
    """
    rest = b""
    while block := rest + file.readline(PIECE_BYTES):
        cut = len(block)
        if cut >= PIECE_BYTES and not block.endswith(b"\n"):
            text = block.decode(errors="ignore")  # excludes an incomplete last character
            match = _COMPLETE_WORDS.match(text)
            cut = len(match[0].encode() if match else text.removesuffix("\r").encode()) or len(block)
        yield block[:cut]
        rest = block[cut:]


def read_lines(
    path: str | PathLike[str],
    *,
    chunk_lines: int = CHUNK_LINES,
    on_bytes: Callable[[bytes], object] | None = None,
    allow_pipe: bool = False,
) -> Generator[list[str], None, None]:
    r"""Yield the lines of a UTF-8 text file in lists of `chunk_lines` lines, or fewer if the lines are long.

    Only "\n" ends a line: U+0085 and U+2028 are part of the text. A "\r" before a "\n", a byte order mark at the start
    and a missing last "\n" are accepted. `on_bytes`, for example a hash's `update`, receives all bytes in order.
    A pipe can be read only once and is rejected unless `allow_pipe`.

    Raises UserError for a folder, for a missing, unreadable or empty file, and, with the line number, for invalid
    UTF-8 and for a line of more than MAX_LINE_BYTES bytes.
    """
    for chunk in decoded_chunks(path, limited_lines, chunk_lines, on_bytes, allow_pipe):
        yield [line.removesuffix("\n").removesuffix("\r") for line in chunk]


def numbered_lines(
    path: str | PathLike[str], on_bytes: Callable[[bytes], object] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) for each line of a text file (see `read_lines`)."""
    return enumerate(chain.from_iterable(read_lines(path, on_bytes=on_bytes)), 1)


def decoded_chunks(
    path: str | PathLike[str],
    divide: Callable[[IO[bytes], object], Iterator[bytes]],
    chunk_lines: int = CHUNK_LINES,
    on_bytes: Callable[[bytes], object] | None = None,
    allow_pipe: bool = False,
) -> Generator[list[str], None, None]:
    """Yield lists of the lines (or pieces of lines) that `divide` yields, decoded and with their line endings."""
    path = Path(path)
    with open_for_reading(path, "a text file", allow_pipe) as file:
        is_first = True
        number = 1  # number of the line in which the next chunk begins
        for raw in chunks_of(divide(file, path), chunk_lines, len):
            block = b"".join(raw)
            if on_bytes is not None:
                on_bytes(block)
            try:
                lines = [line.decode("utf-8") for line in raw]
            except UnicodeDecodeError as error:
                if is_first and block.startswith(GZIP):
                    raise gzip_error(path) from None
                preceding = b"".join(raw[: raw.index(error.object)])
                number += preceding.count(b"\n")
                column = len(preceding) - preceding.rfind(b"\n") + error.start
                raise UserError(
                    f"{path}, line {number}: expected UTF-8 text; got "
                    f"0x{error.object[error.start]:02x} as byte {column} of the line; try {TO_UTF8}, "
                    "or removing the line on both sides"
                ) from None
            if is_first:
                lines[0] = lines[0].removeprefix("\ufeff")
            yield lines
            is_first = False
            number += block.count(b"\n")
        if is_first:
            raise UserError(f"{path}: expected at least one line of text; got an empty file; try another file")


def count_lines(path: str | PathLike[str]) -> int:
    """Return the number of lines of a file, as `read_lines` counts them."""
    with open_for_reading(path, "a text file") as file:
        count = 0
        last_byte = b"\n"
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last_byte = block[-1:]
    return count + (last_byte != b"\n")


def read_all_lines(path: str | PathLike[str], allow_pipe: bool = False) -> list[str]:
    """Return all lines of a text file (see `read_lines`)."""
    return list(chain.from_iterable(read_lines(path, allow_pipe=allow_pipe)))


def count_shared_lines(path: str | PathLike[str], others: str | PathLike[str]) -> tuple[int, int]:
    """Return how many lines of a small text also occur in the text `others`, and how many lines the small text has.

    A line occurs if the line itself, or the line with single spaces, as `data` writes it, is equal to one of `others`.
    """
    lines = read_all_lines(path)
    single_spaced = [" ".join(line.split()) for line in lines]
    distinct = {*lines, *single_spaced} - {""}
    shared = set[str]()
    for chunk in read_lines(others):
        shared.update(distinct.intersection(chunk))
    return sum(not shared.isdisjoint(pair) for pair in zip(lines, single_spaced, strict=True)), len(lines)


def check_parallel(*paths: str | PathLike[str]) -> None:
    """Raise UserError if parallel files have different numbers of lines."""
    counts = [count_lines(path) for path in paths]
    if len(set(counts)) > 1:
        for path in paths:
            next(read_lines(path), None)  # raises a more specific error for a compressed or binary file
        raise unequal_lines_error(paths, counts)


def unequal_lines_error(
    paths: Sequence[str | PathLike[str]], counts: Sequence[int], suggestion: str = "files made from the same pairs"
) -> UserError:
    """Return the error for parallel files with different numbers of lines."""
    return UserError(
        f"{', '.join(map(str, paths))}: expected equal numbers of lines, line i translating line i; "
        f"got {' and '.join(f'{count:,}' for count in counts)}; try {suggestion}"
    )


def read_parallel(
    *paths: str | PathLike[str],
    chunk_lines: int = CHUNK_LINES,
    on_bytes: Sequence[Callable[[bytes], object] | None] = (),
) -> Iterator[tuple[list[str], ...]]:
    """Yield chunks of lines of several files, where line i of one file translates line i of the others.

    Raises UserError in the same cases as `read_lines`, and at the end if the files have different numbers of lines.
    """
    sides = [
        read_lines(path, chunk_lines=chunk_lines, on_bytes=callback) for path, callback in zip_longest(paths, on_bytes)
    ]
    n_read = 0
    chunks = [next(side, []) for side in sides]
    while n := min(map(len, chunks)):
        yield tuple(lines[:n] for lines in chunks)
        n_read += n
        chunks = [lines[n:] or next(side, []) for lines, side in zip(chunks, sides, strict=True)]
    if any(chunks):
        raise unequal_lines_error(
            paths, [n_read + len(lines) + sum(map(len, side)) for lines, side in zip(chunks, sides, strict=True)]
        )
