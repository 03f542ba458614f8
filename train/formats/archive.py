"""Read zip files of uncompressed members, as PyTorch and Marian write them, with memory limited by the file's size."""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from train.errors import UserError, one_line
from train.files import open_for_reading

# Errors that zipfile, pickle, NumPy and our own checks raise for damaged or malicious files.
DAMAGED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, EOFError, OSError, struct.error,
    BadZipFile,
)  # fmt: skip


@contextmanager
def open_untrusted(path: Path, expected: str) -> Iterator[BinaryIO]:
    """Open a file for reading. Raises UserError if the file cannot be read or is damaged."""
    try:
        with open_for_reading(path, expected) as file:
            yield file
    except DAMAGED as error:
        got = one_line(error)[:200] or type(error).__name__
        raise UserError(f"{path}: expected {expected}; got '{got}'; try a new download") from None


def open_archive(file: BinaryIO) -> ZipFile:
    """Open a zip file. Raises ValueError for members that need more memory than the file has bytes."""
    archive = ZipFile(file)
    members = archive.infolist()
    if any(member.compress_type != ZIP_STORED for member in members):
        raise ValueError("compressed data")
    if sum(member.file_size for member in members) > file.seek(0, os.SEEK_END):
        raise ValueError("overlapping data")
    return archive
