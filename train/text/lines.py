"""Text files, a sentence a line, read with every check that a mistake in them needs; of any size, a part at a time."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from os import PathLike
from pathlib import Path

from train.errors import UserError

CHUNK_LINES = 8192


def read_lines(
    path: str | PathLike[str], *, chunk: int = CHUNK_LINES, watch: Callable[[bytes], object] | None = None
) -> Iterator[list[str]]:
    r"""Yield the lines of a UTF-8 text file in lists of `chunk` lines (the last one shorter), so that any size fits.

    Only "\n" ends a line: U+0085 and U+2028 belong to the text.  A "\r" before it, a byte order mark at the start and a
    missing last "\n" are tolerated.  `watch`, if given, sees every byte in order (a hash's `update`, for one).

    Raises `UserError` for a missing or unreadable file, a folder, an empty file and invalid UTF-8 (with its line).
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: expected a text file; got a folder; try the path of a file inside it")
    try:
        with path.open("rb") as file:
            first = 1  # number of the chunk's first line, from 1
            while raw := list(islice(file, chunk)):
                block = b"".join(raw)
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
    except FileNotFoundError:
        raise UserError(f"{path}: expected a text file; got no such file; try another path") from None
    except OSError as error:
        raise UserError(f"{path}: expected a readable file; got '{error.strerror}'; try another path") from None


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
