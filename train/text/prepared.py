"""Text prepared as arrays on disk: a folder of flat files and a meta.json with their checksums and its own."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from train.errors import UserError
from train.files import atomic_write, digest, is_seal_broken, read_json, seal, write_text


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """What token ids are written in: 2 bytes each, 4 where there are over 65,536 pieces."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def write_prepared(
    out_dir: Path, names: Sequence[str], fill: Callable[[Sequence[Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Write the files `names` and meta.json, the content of which `fill` returns once it has written the others.

    meta.json comes last and has the checksums of the others: an interrupted preparation, or one that was mixed with
    another, is never taken for a finished one. UserError where the folder cannot be written.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            meta = fill([stack.enter_context(atomic_write(out_dir / name)) for name in names])
        meta = seal(meta | {"files": {name: digest(out_dir / name) for name in names}})
        write_text(out_dir / "meta.json", json.dumps(meta, indent=1) + "\n")
        return meta
    except OSError as error:
        raise UserError(
            f"{out_dir}: expected a folder to write prepared text to; got '{error.strerror}'; "
            f"try another folder or more disk space"
        ) from None


def read_prepared(
    out_dir: Path,
    sizes: Callable[[dict[str, Any]], dict[str, int]],
    sources: Mapping[str, str | PathLike[str]],
    **same: Any,
) -> dict[str, Any] | None:
    """Content of meta.json where it and the files beside it are as written and made of the text `sources`, else None.

    sizes: from that content, the bytes of each file by its name; same: what it has to hold besides.
    """
    if not (out_dir / "meta.json").exists():
        return None
    try:
        meta = read_json(out_dir / "meta.json", "prepared text")
        if is_seal_broken(meta) or any(meta[name] != value for name, value in same.items()):
            return None
        made = {out_dir / name: meta["files"][name] for name in sizes(meta)}
        if any((out_dir / name).stat().st_size != size for name, size in sizes(meta).items()):
            return None
        made |= {Path(path): meta["sha256"][side] for side, path in sources.items()}
        return meta if all(digest(path) == found for path, found in made.items()) else None
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
