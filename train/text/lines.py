"""Text files, a sentence a line, read with every check that a mistake in them needs; of any size, a part at a time."""

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice, zip_longest
from os import PathLike
from pathlib import Path

from train.errors import UserError
from train.files import open_for_reading

CHUNK_LINES = 8192
LONGEST_LINE = 1 << 24  # bytes


def read_lines(
    path: str | PathLike[str],
    *,
    chunk: int = CHUNK_LINES,
    watch: Callable[[bytes], object] | None = None,
    longest: int = LONGEST_LINE,
    pipes: bool = False,
) -> Generator[list[str], None, None]:
    r"""Yield the lines of a UTF-8 text file in lists of `chunk` lines (the last one shorter), so that any size fits.

    Only "\n" ends a line: U+0085 and U+2028 belong to the text.  A "\r" before it, a byte order mark at the start and a
    missing last "\n" are tolerated.  `watch`, if given, sees every byte in order (a hash's `update`, for one).
    A pipe can be read but once, so it is refused unless `pipes`.

    Raises `UserError` for a missing or unreadable file, a folder, an empty file, and (with its line) for invalid UTF-8
    and a line of over `longest` bytes.
    """
    path = Path(path)
    with open_for_reading(path, "a text file", pipes) as file:
        first = 1  # number of the chunk's first line, from 1
        while raw := list(islice(iter(lambda: file.readline(longest + 1), b""), chunk)):
            block = b"".join(raw)
            if len(block) > longest and (long := [n for n, bytes_ in enumerate(raw, first) if len(bytes_) > longest]):
                raise UserError(
                    f"{path}, line {long[0]}: expected a line of at most {longest:,} bytes; got a longer one; "
                    "try a file with a sentence a line"
                )
            if watch is not None:
                watch(block)
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError as error:
                line = first + block.count(b"\n", 0, error.start)
                column = error.start - block.rfind(b"\n", 0, error.start)
                raise UserError(
                    f"{path}, line {line}: expected UTF-8 text; got 0x{block[error.start]:02x} as byte {column} of "
                    f"the line; try converting the file (iconv -t UTF-8) or removing the line on both sides"
                ) from None
            lines = text.split("\n")
            if lines[-1] == "":
                lines.pop()
            if first == 1:
                lines[0] = lines[0].removeprefix("\ufeff")
            if "\r" in text:
                lines = [line.removesuffix("\r") for line in lines]
            yield lines
            first += len(raw)
        if first == 1:
            raise UserError(f"{path}: expected at least one line of text; got an empty file; try another file")


def read_parallel(
    *paths: str | PathLike[str], chunk: int = CHUNK_LINES, watch: Sequence[Callable[[bytes], object] | None] = ()
) -> Iterator[tuple[list[str], ...]]:
    """Yield a part of the lines of each file, equally many, where line i of one translates line i of another.

    Raises `UserError` as `read_lines` does, and where the files have unequal numbers of lines (at their end).
    """
    sides = [read_lines(path, chunk=chunk, watch=see) for path, see in zip_longest(paths, watch)]
    before = 0
    for parts in zip_longest(*sides, fillvalue=[]):
        if len(set(map(len, parts))) > 1:
            counts = [before + len(lines) + sum(map(len, side)) for lines, side in zip(parts, sides, strict=True)]
            raise UserError(
                f"{', '.join(map(str, paths))}: expected equally many lines, line i translating line i; "
                f"got {' and '.join(f'{count:,}' for count in counts)}; try files made from the same pairs"
            )
        before += len(parts[0])
        yield parts
