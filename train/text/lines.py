"""Reading UTF-8 text files of any size, one sentence per line, with an error message for every defect."""

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain, islice, zip_longest
from os import PathLike
from pathlib import Path

from train.errors import UserError
from train.files import open_for_reading

CHUNK_LINES = 8192
MAX_LINE_BYTES = 1 << 24


def read_lines(
    path: str | PathLike[str],
    *,
    chunk_lines: int = CHUNK_LINES,
    on_bytes: Callable[[bytes], object] | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    allow_pipe: bool = False,
) -> Generator[list[str], None, None]:
    r"""Yield the lines of a UTF-8 text file in lists of `chunk_lines` lines; the last list may be shorter.

    Only "\n" ends a line: U+0085 and U+2028 are part of the text. A "\r" before it, a byte order mark at the start and
    a missing last "\n" are accepted. `on_bytes` is called with all bytes in order, for example a hash's `update`.
    A pipe can be read only once and is rejected unless `allow_pipe`.

    Raises `UserError` for a missing, unreadable or empty file, a folder, and (with the line number) for invalid UTF-8
    and a line of more than `max_line_bytes` bytes.
    """
    path = Path(path)
    with open_for_reading(path, "a text file", allow_pipe) as file:
        first = 1  # number of the chunk's first line, from 1
        while raw := list(islice(iter(lambda: file.readline(max_line_bytes + 1), b""), chunk_lines)):
            block = b"".join(raw)
            if len(block) > max_line_bytes:
                for number, line in enumerate(raw, first):
                    if len(line) > max_line_bytes:
                        raise UserError(
                            f"{path}, line {number}: expected at most {max_line_bytes:,} bytes; got a longer line; "
                            "try one sentence per line"
                        )
            if on_bytes is not None:
                on_bytes(block)
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError as error:
                number = first + block.count(b"\n", 0, error.start)
                column = error.start - block.rfind(b"\n", 0, error.start)
                raise UserError(
                    f"{path}, line {number}: expected UTF-8 text; got 0x{block[error.start]:02x} as byte {column} of "
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


def count_lines(path: str | PathLike[str]) -> int:
    """Return the number of lines of a file, as `read_lines` counts them."""
    with open_for_reading(path, "a text file") as file:
        count, last = 0, b"\n"
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def read_all_lines(path: str | PathLike[str], allow_pipe: bool = False) -> list[str]:
    """Return all lines of a text file (see `read_lines`)."""
    return list(chain.from_iterable(read_lines(path, allow_pipe=allow_pipe)))


def check_parallel(*paths: str | PathLike[str]) -> None:
    """Raise UserError if files whose lines translate each other have different numbers of lines."""
    counts = [count_lines(path) for path in paths]
    if len(set(counts)) > 1:
        raise unequal_lines_error(paths, counts)


def unequal_lines_error(paths: Sequence[str | PathLike[str]], counts: Sequence[int]) -> UserError:
    """Return the error for parallel files with different numbers of lines."""
    return UserError(
        f"{', '.join(map(str, paths))}: expected equal numbers of lines, line i translating line i; "
        f"got {' and '.join(f'{count:,}' for count in counts)}; try files made from the same pairs"
    )


def read_parallel(
    *paths: str | PathLike[str],
    chunk_lines: int = CHUNK_LINES,
    on_bytes: Sequence[Callable[[bytes], object] | None] = (),
) -> Iterator[tuple[list[str], ...]]:
    """Yield chunks of lines of several files, where line i of one file translates line i of the others.

    Raises `UserError` like `read_lines`, and at the end if the files have different numbers of lines.
    """
    sides = [
        read_lines(path, chunk_lines=chunk_lines, on_bytes=callback) for path, callback in zip_longest(paths, on_bytes)
    ]
    n_read = 0
    for chunks in zip_longest(*sides, fillvalue=[]):
        if len(set(map(len, chunks))) > 1:
            counts = [n_read + len(lines) + sum(map(len, side)) for lines, side in zip(chunks, sides, strict=True)]
            raise unequal_lines_error(paths, counts)
        n_read += len(chunks[0])
        yield chunks
