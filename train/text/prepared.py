"""Text prepared as arrays on disk: a folder of flat files and a meta.json, written whole or not at all."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from train.errors import UserError


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """What token ids are written in: 2 bytes each, 4 where there are over 65,536 pieces."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def write_prepared(
    out_dir: Path, names: Sequence[str], fill: Callable[[Sequence[BinaryIO]], dict[str, Any]]
) -> dict[str, Any]:
    """Write the files `names` and meta.json, the content of which `fill` returns once it has written the others.

    meta.json comes last: an interrupted preparation is never taken for a finished one. UserError where the folder
    cannot be written.
    """
    parts = {name: out_dir / f"{name}.part-{os.getpid()}" for name in [*names, "meta.json"]}
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            meta = fill([stack.enter_context(parts[name].open("wb")) for name in names])
        parts["meta.json"].write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        (out_dir / "meta.json").unlink(missing_ok=True)  # from here to the last rename nothing counts as prepared
        for name, part in parts.items():
            part.replace(out_dir / name)
        return meta
    except OSError as error:
        raise UserError(
            f"{out_dir}: expected a folder to write prepared text to; got '{error.strerror}'; "
            f"try another folder or more disk space"
        ) from None
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()


def read_prepared(
    out_dir: Path,
    sizes: Callable[[dict[str, Any]], dict[str, int]],
    sources: Mapping[str, str | PathLike[str]],
    **same: Any,
) -> dict[str, Any] | None:
    """Content of meta.json where it and the files beside it are whole and made of the text `sources`, else None.

    sizes: from that content, the bytes of each file by its name; same: what it has to hold besides.
    """
    try:
        meta = json.loads((out_dir / "meta.json").read_text(encoding="utf-8"))
        whole = all((out_dir / name).stat().st_size == size for name, size in sizes(meta).items())
        fits = whole and all(meta[name] == value for name, value in same.items())
        return meta if fits and all(meta["sha256"][side] == digest(path) for side, path in sources.items()) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def digest(path: str | PathLike[str]) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
