"""Stream lines of text from archives without unpacking them to disk."""

import gzip
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, cast

from train.errors import UserError, one_line
from train.files import open_for_reading
from train.text.download.catalog import Pair
from train.text.lines import decode_line, limited_lines, unequal_lines_error

SEGMENT = re.compile(r"<seg.*?>(.*)</seg>.*?")
DAMAGE_ERRORS = (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile)  # raised when reading a damaged file
# Maximum number of entries in an archive, and maximum number of bytes of an entry's attributes.
MAX_ENTRIES, MAX_ATTRIBUTES = 10_000, 1 << 20
ATTRIBUTE_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
                   tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)  # fmt: skip
TEXT_TAG = re.compile(r"</?(title|description)>")


class BoundedHeader(tarfile.TarInfo):
    """A header of a tar archive. Headers that are too large raise ReadError.

    Without a limit, tarfile reads names, attributes and sparse-file maps of any size into memory.
    """

    @classmethod
    def frombuf(cls, *args: Any) -> Any:
        entry = super().frombuf(*args)
        if entry.type in ATTRIBUTE_TYPES and entry.size > MAX_ATTRIBUTES or entry.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"a header of type {entry.type!r} with {entry.size:,} bytes")
        return entry


def sgml_segments(lines: Iterator[str]) -> Iterator[str]:
    """Parse a WMT or IWSLT test set in SGML or XML line by line, as sacreBLEU does, and yield its sentences."""
    return (" ".join(SEGMENT.sub(r"\1", line).split()) for line in lines if line.lstrip().startswith("<seg "))


def untagged_lines(lines: Iterator[str]) -> Iterator[str]:
    """Yield the sentences of IWSLT's training text, including titles and descriptions but no other tagged lines."""
    untagged = (TEXT_TAG.sub("", line).strip() for line in lines)
    return (line for line in untagged if not line.startswith("<"))


LINE_FILTERS: dict[str, Callable[[Iterator[str]], Iterator[str]]] = {
    "lines": iter,
    "segments": sgml_segments,
    "tags": untagged_lines,
}


def read_pairs(pair: Pair, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of two texts.

    Raises UserError for a damaged archive, a missing member, different numbers of lines and an empty text.
    """
    archive = folder / pair.archive if pair.archive else None
    with open_member(archive, pair.src) as src, open_member(archive, pair.tgt) as tgt:
        suggestion = (
            f"deleting {archive} and running the command again" if archive else "downloading or copying the file again"
        )
        sides = [LINE_FILTERS[pair.form](decode_lines(file, f"{archive or ''}:{member}".lstrip(":"), suggestion))
                 for file, member in ((src, pair.src), (tgt, pair.tgt))]  # fmt: skip
        number = -1
        for number, (a, b) in enumerate(zip_longest(*sides)):
            if a is None or b is None:
                longer = number + 1 + sum(1 for _ in sides[0 if b is None else 1])
                counts = (longer, number) if b is None else (number, longer)
                suggestions = [f"downloading {pair.archive} again"] if archive else []
                raise unequal_lines_error((pair.src, pair.tgt), counts, *suggestions)
            yield a, b
    if number < 0:
        raise UserError(f"{pair.src}, {pair.tgt}: expected at least one pair; got empty files; try other files")


@contextmanager
def open_member(archive: Path | None, member: str) -> Iterator[IO[bytes]]:
    """Open a member of a tar archive, or a file if there is no archive; decompress it if its name ends in .gz."""
    if archive is None:
        with open_for_reading(member, "a text file") as file:
            yield gunzip(file, member)
        return
    try:
        # Only gzip is accepted, because 10 KB of bzip2 can decompress to gigabytes in one step.
        with tarfile.open(archive, "r|" if archive.suffix == ".tar" else "r|gz", tarinfo=BoundedHeader) as tar:
            for n_entries, entry in enumerate(tar):
                if n_entries == MAX_ENTRIES:
                    raise tarfile.ReadError(f"more than {MAX_ENTRIES:,} entries")
                if entry.isfile() and entry.name.removeprefix("./") == member:
                    yield gunzip(cast(IO[bytes], tar.extractfile(entry)), member)
                    return
            raise tarfile.ReadError("an archive without this member")
    except DAMAGE_ERRORS as error:
        raise UserError(
            f"{archive}: expected an archive with {member}; got '{one_line(error)}'; "
            "try deleting it and running the command again"
        ) from None


def gunzip(file: IO[bytes], name: str) -> IO[bytes]:
    """Return the file or, if its name ends in .gz, a file of its decompressed content."""
    return cast(IO[bytes], gzip.open(file)) if name.lower().endswith(".gz") else file


def decode_lines(file: IO[bytes], name: str, suggestion: str) -> Iterator[str]:
    """Yield the lines of a text; only "\\n" ends a line.

    Raises UserError if a line is not UTF-8, or if the file is damaged; the latter message ends with `suggestion`.
    """
    try:
        for number, raw in enumerate(limited_lines(file, name), 1):
            yield decode_line(raw, name, number)
    except DAMAGE_ERRORS as error:
        raise UserError(f"{name}: expected a complete file; got '{one_line(error)}'; try {suggestion}") from None
