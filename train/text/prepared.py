"""Prepared text on disk: a folder of flat array files and a meta.json with checksums of the files and of itself."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from train.errors import UserError
from train.files import atomic_write, digest, make_folder, text_digest, write_text
from train.json_files import is_seal_broken, read_json, seal


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of stored token ids: uint16, or uint32 for a vocabulary of more than 65,536 tokens."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def write_prepared(
    out_dir: Path, names: Sequence[str], write_files: Callable[[Sequence[Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Write the files `names` and meta.json, whose content `write_files` returns after writing the open files.

    meta.json is written last and holds the checksums of the other files, so an interrupted or mixed-up preparation is
    never mistaken for a complete one. Raises UserError if the folder cannot be written.
    """
    try:
        make_folder(out_dir)
        with ExitStack() as stack:
            meta = write_files([stack.enter_context(atomic_write(out_dir / name)) for name in names])
        meta = seal(meta | {"files": {name: digest(out_dir / name) for name in names}})
        write_text(out_dir / "meta.json", json.dumps(meta, indent=1) + "\n")
        return meta
    except OSError as error:
        raise UserError(
            f"{out_dir}: expected a writable folder for prepared text; got '{error.strerror}'; "
            f"try another folder or more disk space"
        ) from None


def read_prepared(
    out_dir: Path,
    file_sizes: Callable[[dict[str, Any]], dict[str, int]],
    sources: Mapping[str, str | PathLike[str]],
    **expected: Any,
) -> dict[str, Any] | None:
    """Return the content of meta.json, or None unless it and its files are intact and were made from `sources`.

    `file_sizes` computes the size in bytes of each file from that content; `expected` holds values that must be in it.
    """
    if not (out_dir / "meta.json").exists():
        return None
    try:
        meta = read_json(out_dir / "meta.json", "prepared text")
        if is_seal_broken(meta) or any(meta[name] != value for name, value in expected.items()):
            return None
        checksums = {out_dir / name: meta["files"][name] for name in file_sizes(meta)}
        if any((out_dir / name).stat().st_size != size for name, size in file_sizes(meta).items()):
            return None
        if any(text_digest(path) != meta["sha256"][side] for side, path in sources.items()):
            return None
        return meta if all(digest(path) == checksum for path, checksum in checksums.items()) else None
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
