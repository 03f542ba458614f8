"""Lines out of archives, as they come: nothing is unpacked to disk."""

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
DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError)  # what reading a damaged file raises
KEPT_TAG = re.compile(r"</?(title|description)>")


def segments(lines: Iterator[str]) -> Iterator[str]:
    """The sentences of WMT's and IWSLT's test sets, whose SGML and XML is read line by line, as sacreBLEU does."""
    return (" ".join(SEGMENT.sub(r"\1", line).split()) for line in lines if line.lstrip().startswith("<seg "))


def tags(lines: Iterator[str]) -> Iterator[str]:
    """The sentences of IWSLT's training text: titles and descriptions too, other lines in tags left out."""
    plain = (KEPT_TAG.sub("", line).strip() for line in lines)
    return (line for line in plain if not line.startswith("<"))


FORMS: dict[str, Callable[[Iterator[str]], Iterator[str]]] = {"lines": iter, "segments": segments, "tags": tags}


def read_pairs(pair: Pair, folder: Path) -> Iterator[tuple[str, str]]:
    """The pairs of two texts; UserError for a damaged archive, a member that is not in it, or unequal numbers."""
    archive = folder / pair.archive if pair.archive else None
    with opened(archive, pair.src) as src, opened(archive, pair.tgt) as tgt:
        again = f"removing {archive} and fetching it again" if archive else "another copy of it"
        sides = [FORMS[pair.form](decoded(file, f"{archive or ''}:{member}".lstrip(":"), again))
                 for file, member in ((src, pair.src), (tgt, pair.tgt))]  # fmt: skip
        number = -1
        for number, (a, b) in enumerate(zip_longest(*sides)):
            if a is None or b is None:
                more = number + 1 + sum(1 for _ in sides[0 if b is None else 1])
                counts = (more, number) if b is None else (number, more)
                raise UserError(
                    f"{pair.src}, {pair.tgt}: expected equally many lines, line i translating line i; "
                    f"got {counts[0]:,} and {counts[1]:,}; try fetching {pair.archive or 'them'} again"
                )
            yield a, b
    if number < 0:
        raise UserError(f"{pair.src}, {pair.tgt}: expected at least one pair; got none; try other files")


@contextmanager
def opened(archive: Path | None, member: str) -> Iterator[IO[bytes]]:
    """A member of a tar archive, or a file; unpacked where it ends in .gz."""
    if archive is None:
        with open(member, "rb") as file:
            yield unzipped(file, member)
        return
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                if entry.isfile() and entry.name.removeprefix("./") == member:
                    yield unzipped(cast(IO[bytes], tar.extractfile(entry)), member)
                    return
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(
            f"{archive}: expected an archive with {member}; got '{one_line(error)}'; try removing it and fetching again"
        ) from None
    raise UserError(f"{archive}: expected {member} in it; got no such file; try removing it and fetching it again")


def unzipped(file: IO[bytes], name: str) -> IO[bytes]:
    """The content of a file, which is packed where its name ends in .gz."""
    return cast(IO[bytes], gzip.open(file)) if name.endswith(".gz") else file


def decoded(file: IO[bytes], name: str, attempt: str) -> Iterator[str]:
    """The lines of a text, ended by "\\n" alone; UserError with the line for what is no UTF-8, or damaged."""
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
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{name}: expected a whole file; got '{one_line(error)}'; try {attempt}") from None
