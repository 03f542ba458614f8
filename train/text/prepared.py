"""Store prepared text in a folder: flat array files, and a meta.json with checksums of the files and of itself."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

import npx
from train.errors import UserError
from train.files import atomic_write, digest, make_folder, text_digest
from train.json_files import read_sealed, reject_links, write_sealed


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of stored token ids: uint16, or uint32 for a vocabulary of more than 65,536 tokens."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def write_prepared(
    out_dir: Path, names: Sequence[str], write_files: Callable[[Sequence[Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Write the files `names` and meta.json. `write_files` fills the open files and returns the content of meta.json.

    meta.json is first written without content, to mark the folder. At the end it is written again, with the checksums
    of the other files, so incomplete or inconsistent files are never mistaken for complete ones. Raises UserError if
    the folder is a link or cannot be written, and on ranks other than 0.
    """
    if npx.distributed.world().rank:
        got = "missing or different arrays"
        raise UserError(f"{out_dir}: expected the token arrays that rank 0 wrote; got {got}; try a shared folder")
    reject_links(out_dir)
    make_folder(out_dir)
    with ExitStack() as stack, ExitStack() as undo:
        if read_sealed(out_dir / "meta.json") is None:
            write_sealed(out_dir / "meta.json", {})
            undo.callback(os.unlink, out_dir / "meta.json")
        meta = write_files([stack.enter_context(atomic_write(out_dir / name)) for name in names])
        undo.pop_all()
    meta |= {"files": {name: digest(out_dir / name) for name in names}}
    write_sealed(out_dir / "meta.json", meta)
    return meta


def read_prepared(
    out_dir: Path, names: Sequence[str], sources: Mapping[str, str | PathLike[str]], **expected: Any
) -> dict[str, Any] | None:
    """Return the content of meta.json; None if meta.json or a file in `names` is damaged or not made from `sources`.

    `expected` contains keys of meta.json and the values that they must have.
    """
    meta = read_sealed(out_dir / "meta.json")
    if meta is None:
        return None
    try:
        if any(meta[name] != value for name, value in expected.items()):
            return None
        if any(text_digest(path) != meta["sha256"][side] for side, path in sources.items()):
            return None
        return meta if all(digest(out_dir / name) == meta["files"][name] for name in names) else None
    except (UserError, KeyError, TypeError, AttributeError):
        return None
