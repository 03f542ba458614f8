"""Streaming of text lines from archives, without unpacking them to disk."""

import gzip
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, cast

from train.errors import UserError, one_line
from train.text.download.catalog import Pair

SEGMENT = re.compile(r"<seg.*?>(.*)</seg>.*?")
DAMAGE_ERRORS = (tarfile.TarError, zlib.error, EOFError, OSError)  # raised when reading a damaged file
TEXT_TAG = re.compile(r"</?(title|description)>")


def segments(lines: Iterator[str]) -> Iterator[str]:
    """Yield the sentences of a WMT or IWSLT test set from its SGML or XML, line by line as sacreBLEU does."""
    return (" ".join(SEGMENT.sub(r"\1", line).split()) for line in lines if line.lstrip().startswith("<seg "))


def tags(lines: Iterator[str]) -> Iterator[str]:
    """Yield the sentences of IWSLT's training text, including titles and descriptions but no other tagged lines."""
    plain = (TEXT_TAG.sub("", line).strip() for line in lines)
    return (line for line in plain if not line.startswith("<"))


FORMS: dict[str, Callable[[Iterator[str]], Iterator[str]]] = {"lines": iter, "segments": segments, "tags": tags}


def read_pairs(pair: Pair, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of two texts.

    Raises UserError for a damaged archive, a missing member, different numbers of lines and an empty text.
    """
    archive = folder / pair.archive if pair.archive else None
    with open_member(archive, pair.src) as src, open_member(archive, pair.tgt) as tgt:
        attempt = f"deleting {archive} to download it again" if archive else "another copy of it"
        sides = [FORMS[pair.form](decode_lines(file, f"{archive or ''}:{member}".lstrip(":"), attempt))
                 for file, member in ((src, pair.src), (tgt, pair.tgt))]  # fmt: skip
        number = -1
        for number, (a, b) in enumerate(zip_longest(*sides)):
            if a is None or b is None:
                longer = number + 1 + sum(1 for _ in sides[0 if b is None else 1])
                counts = (longer, number) if b is None else (number, longer)
                raise UserError(
                    f"{pair.src}, {pair.tgt}: expected equal numbers of lines, line i translating line i; "
                    f"got {counts[0]:,} and {counts[1]:,}; try downloading {pair.archive or 'them'} again"
                )
            yield a, b
    if number < 0:
        raise UserError(f"{pair.src}, {pair.tgt}: expected at least one pair; got empty files; try other files")


@contextmanager
def open_member(archive: Path | None, member: str) -> Iterator[IO[bytes]]:
    """Open a member of a tar archive, or a file if there is no archive; decompress it if its name ends in .gz."""
    if archive is None:
        with open(member, "rb") as file:
            yield gunzip(file, member)
        return
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                if entry.isfile() and entry.name.removeprefix("./") == member:
                    yield gunzip(cast(IO[bytes], tar.extractfile(entry)), member)
                    return
    except DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(
            f"{archive}: expected an archive with {member}; got '{one_line(error)}'; "
            "try deleting it to download it again"
        ) from None
    raise UserError(f"{archive}: expected {member} in it; got no such file; try deleting it to download it again")


def gunzip(file: IO[bytes], name: str) -> IO[bytes]:
    """Return a file, decompressed if its name ends in .gz."""
    return cast(IO[bytes], gzip.open(file)) if name.endswith(".gz") else file


def decode_lines(file: IO[bytes], name: str, attempt: str) -> Iterator[str]:
    """Yield the lines of a text; only "\\n" ends a line.

    Raises UserError for invalid UTF-8, with the line number, and for a damaged file, with `attempt` as the remedy.
    """
    try:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{name}, line {number}: expected UTF-8 text; got byte {raw[error.start]:#04x}; "
                    "try converting it (iconv -t UTF-8)"
                ) from None
            yield line.removeprefix("\ufeff") if number == 1 else line
    except DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{name}: expected a complete file; got '{one_line(error)}'; try {attempt}") from None
