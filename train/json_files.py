"""JSON files that are checked when they are read: their structure by a schema, their content by a seal.

The seal is the SHA-256 of the content. A seal is needed because a number with a flipped bit is often valid.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from npx.ranges import Range
from train.errors import ReadError, UserError, one_line
from train.files import PathLike, describe_path, open_for_reading, write_text

SEAL = "sha256_of_this"
# Maps each key to the Range or type of its value, to (Range or type, None) if null is allowed, or to a nested Schema.
Schema = Mapping[str, Any]

# ---- reading


def read_json(
    path: PathLike,
    expected: str,
    suggestion: str = "downloading or copying it again",
    on_bytes: Callable[[bytes], object] | None = None,
) -> Any:
    """Return the content of a JSON file. Raises UserError for invalid JSON, NaN and infinity.

    `on_bytes`, for example a hash's `update`, receives the bytes of the file.
    """
    with open_for_reading(path, expected, suggestion=suggestion) as file:
        raw = file.read()
    if on_bytes is not None:
        on_bytes(raw)
    try:
        return parse_json(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reasons = {RecursionError: "brackets nested too deeply", UnicodeDecodeError: "bytes that are not UTF-8"}
        reason = reasons.get(type(error)) or one_line(error)
        raise UserError(f"{path}: expected {expected} in JSON; got '{reason}'; try {suggestion}") from None


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON, NaN, infinity and numbers that are too large for float64."""

    def parse(digits: str, kind: type = float) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits[:20]}, which is not a finite number")
        return kind(digits)

    return json.loads(text, parse_constant=parse, parse_float=parse, parse_int=partial(parse, kind=int))


def read_sealed(path: PathLike) -> Any:
    """Return the content, without the seal, of a file written by `write_sealed`; None if it is missing or damaged."""
    try:
        content = read_json(path, "sealed content")
    except ReadError:
        raise
    except UserError:
        return None
    if not isinstance(content, dict) or is_seal_broken(content):
        return None
    del content[SEAL]
    return content


def read_output_marker(out: Path, *markers: str, ignored: Collection[str] = ()) -> Any:
    """Return the content of the first valid marker in the output folder `out`, or None if the folder is new.

    The `markers` are the sealed files that the command writes. A new folder contains nothing except the names in
    `ignored` and perhaps an unfinished first marker, which is the first file that the command writes. Any other folder
    belongs to the user. Raises UserError for a folder of the user, for one with a link to a folder, and for
    a new folder in a run.
    """
    reject_links(*(path for path in (out.iterdir() if out.is_dir() else ()) if path.is_dir()))
    for marker in markers:
        if (content := read_sealed(out / marker)) is not None:
            return content
    names = os.listdir(out) if out.is_dir() else ["a file"] if os.path.lexists(out) else []
    if not {*names} <= {*ignored, f".{markers[0]}.partial"}:
        got = "a folder with other files" if out.is_dir() else describe_path(out)
        raise UserError(
            f"{out}: expected a new folder, or an earlier output folder of this command; got {got}; try another folder"
        )
    check_outside_run(out)
    return None


def check_outside_run(
    out: Path, kind: str = "folder", suggestion: str = "another --out", models: Iterable[Path] = ()
) -> None:
    """Raise UserError if an output is inside a run, because training replaces and removes folders there.

    Args:
        out: the output; links are resolved.
        kind: "file" or "folder".
        suggestion: what the message suggests.
        models: runs or checkpoints that the command reads. If a checkpoint is a link, its target is part of the run
            too.
    """

    def runs(path: Path) -> list[Path]:
        return [
            f for start in (os.path.abspath(path), os.path.realpath(path)) for f in Path(start).parents if is_run(f)
        ]

    found = next(iter(runs(out)), None)
    for model in models:
        run = model if is_run(model) else next(iter(runs(model)), model)
        folders = (run, run / "checkpoints", *run.glob("checkpoints/*"))
        if any(Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder)) for folder in folders):
            found = model
    if found:
        raise UserError(f"{out}: expected a {kind} outside the run; got a {kind} in {found}; try {suggestion}")


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run: it has a checkpoint, or the files that a run has before its first one."""
    begun = ("config.toml", "tokenizer.json", "checkpoints")
    return all(os.path.exists(folder / name) for name in begun) or any(folder.glob("checkpoints/*/state.json"))


def reject_links(*folders: Path) -> None:
    """Raise UserError if one of these folders in an output folder is a link: its target may belong to another user."""
    for path in folders:
        if path.is_symlink():
            suggestion = f"moving the folder back, or a link to the complete folder {path.parent} instead"
            raise UserError(
                f"{path}: expected a folder that npx-transformer created; got a symbolic link; try {suggestion}"
            )


# ---- schemas and seals


def schema_error(content: Any, schema: Schema) -> str:
    """Describe the first invalid key of `content`: "run.step: expected ...; got ...". Return "" if all are valid."""
    if not isinstance(content, dict):
        return f"expected keys and values; got {type(content).__name__}"
    for key, kind in schema.items():
        if key not in content:
            return f"{key}: missing"
        value = content[key]
        if isinstance(kind, tuple):
            if value is None:
                continue
            kind = kind[0]
        if isinstance(kind, Range) and kind.kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        if isinstance(kind, Mapping):
            if problem := schema_error(value, kind):
                return f"{key}{': ' if problem.startswith('expected') else '.'}{problem}"
        elif not (kind.fits(value) if isinstance(kind, Range) else type(value) is kind):
            words = kind.describe() if isinstance(kind, Range) else {dict: "keys and values"}.get(kind, kind.__name__)
            return f"{key}: expected {words}; got {one_line(repr(value))[:60]}"
    return ""


def is_seal_broken(content: Mapping[str, Any]) -> bool:
    """Return whether the content has no seal or has changed since it was sealed."""
    unsealed = {key: value for key, value in content.items() if key != SEAL}
    try:
        return content.get(SEAL) != _checksum(unsealed)
    except (ValueError, RecursionError):
        return True


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- writing


def write_sealed(path: PathLike, content: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically and seal it. Raises WriteError if it cannot be written."""
    write_text(path, sealed_json(content))


def sealed_json(content: Mapping[str, Any]) -> str:
    """Return the content as JSON text, one entry per line, with its SHA-256 under the last key."""
    return json.dumps({**content, SEAL: _checksum(content)}, indent=1, allow_nan=False) + "\n"
