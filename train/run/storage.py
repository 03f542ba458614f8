"""A folder of arrays with its state.json: written whole or not at all, and believed only as far as it was checked.

state.json holds, for each .safetensors beside it, the bytes of the file and the SHA-256 of every array (with its name,
type and shape), and the SHA-256 of itself. Each .safetensors holds in its turn whose it is, so that two that were
swapped are told apart. Format 1 (to 0.2.0) had the SHA-256 of the whole files and none of itself: it is read as well.
"""

import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import npx
from npx.ranges import Range
from train.errors import UserError, one_line
from train.files import Schema, as_json, digest, disk_errors, opened, read_json, schema_error, seal_broken, sync

FORMATS = 1, 2  # of state.json; the last is what is written
STATE = "state.json"
IDENTITY = ("step", "model", "tokenizer_digest")  # of the state, repeated inside each .safetensors
STEP = Range(int, "[0, 1000000000]")
SCHEMA: Schema = {"format": int, "step": STEP, "model": dict, "tokenizer_digest": str, "files": dict}
FILE: Schema = {"bytes": Range(int, "[0, 1e18]")}
OLDER = "an older checkpoint, or a copy of the file"
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2


class Damaged(UserError):
    """A checkpoint that is not what was written: a file missing, cut short or changed."""


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint folder; Damaged where it is missing, changed or impossible."""
    file = folder / STATE
    try:
        state = read_json(file, "a checkpoint's state", OLDER)
    except UserError as error:
        raise Damaged(str(error)) from None
    if wrong := schema_error(state, SCHEMA):
        raise damaged(file, f"a checkpoint's state; got one whose {wrong}")
    if state["format"] not in FORMATS:
        raise UserError(
            f"{file}: expected checkpoint format {' or '.join(map(str, FORMATS))}; got {state['format']}; "
            "try the version that wrote it"
        )
    if state["format"] > 1 and seal_broken(state):
        raise damaged(file, "the state that was written; got another (by its own SHA-256)")
    if folder.name.startswith("step-") and folder.name != f"step-{state['step']}":
        raise damaged(file, f"the state of {folder.name}; got that of step {state['step']}")
    return state


def read_arrays(file: Path, state: Mapping[str, Any]) -> Iterator[tuple[str, npx.Array]]:
    """Every array of a .safetensors with its name, one at a time, each checked; Damaged says what is wrong."""
    try:
        listed = state["files"].get(file.name)
        if listed is None or schema_error(listed, FILE):
            raise damaged(file, f"a file of the checkpoint; got none in {STATE}")
        with opened(file, "a checkpoint's arrays", attempt=OLDER) as raw:
            if (size := os.fstat(raw.fileno()).st_size) != listed["bytes"]:
                raise damaged(file, f"{listed['bytes']:,} bytes; got {size:,}")
        if state["format"] == 1 and digest(file) != listed.get("sha256"):
            raise damaged(file, "the bytes that were written; got others (by SHA-256)")
        with safe_open(file, framework="np") as found:
            whose = json.loads((found.metadata() or {}).get("npx_transformer", "null"))
            if whose != {key: state[key] for key in IDENTITY}:
                raise damaged(file, f"the arrays of the checkpoint that {STATE} tells of; got another's")
            names = list(found.keys())
            if state["format"] > 1 and {*names} != {*listed.get("tensors", ())}:
                raise damaged(file, f"the arrays that {STATE} lists; got others")
            for name in names:
                array = found.get_tensor(name)
                if state["format"] > 1 and _digest(name, array) != listed["tensors"][name]:
                    raise damaged(file, f"{name} as it was written; got other numbers (by SHA-256)")
                if not np.isfinite(array).all():
                    raise damaged(file, f"finite numbers; got others in {name}")
                yield name, array
    except UserError as error:
        raise error if isinstance(error, Damaged) else Damaged(str(error)) from None
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise damaged(file, f"arrays; got '{one_line(error)}'") from None


def write_folder(target: Path, files: Mapping[str, Mapping[str, npx.Array]], state: Mapping[str, Any]) -> None:
    """Writes {file name: {array name: array}} and state.json as the folder `target`, whole or not at all.

    UserError where a number is not finite, WriteError where the disk is full.
    """
    # One entry: safetensors writes several in a random order, and the same run is to give the same bytes.
    metadata = {"npx_transformer": json.dumps({key: state[key] for key in IDENTITY})}
    partial = _hidden(target, "partial")
    with disk_errors(str(target)):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            os.makedirs(partial)
            listed = {}
            for name, arrays in files.items():
                file = f"{partial}/{name}"
                # safetensors takes C order for granted.
                in_order = {key: np.asarray(npx.to_host(array), order="C") for key, array in arrays.items()}
                for key, array in in_order.items():
                    if not np.isfinite(array).all():
                        raise UserError(f"{target}: expected finite numbers; got others in {key}; try an earlier one")
                save_file(in_order, file, metadata=metadata)
                tensors = {key: _digest(key, array) for key, array in in_order.items()}
                listed[name] = {"bytes": os.stat(file).st_size, "tensors": tensors}
                sync(file)
            with open(f"{partial}/{STATE}", "x", encoding="utf-8") as text:
                text.write(as_json({"format": FORMATS[-1], **state, "files": listed}))
            sync(text.name)
            sync(partial)
            _put(partial, target)
            sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _hidden(path: Path, suffix: str) -> str:
    """A hidden name beside a path. Not a Path, which interns its parts: the table of interned strings grew with them,
    by 1.7 MiB at the 2,500th checkpoint."""
    return f"{path.parent}/.{path.name}.{suffix}"


def _digest(name: str, array: npx.Array) -> str:
    """SHA-256 of an array with its name, type and shape."""
    found = hashlib.sha256(f"{name} {array.dtype} {array.shape}\n".encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _put(partial: str, target: Path) -> None:
    """Gives the partial folder its name; what had it is never gone before the new one is there, where Linux can."""
    if not target.exists():
        os.replace(partial, target)
        return
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        done = renameat2(AT_FDCWD, os.fsencode(partial), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE) == 0
    except (OSError, AttributeError):  # no such function here
        done = False
    if not done:  # a file system that exchanges no names
        remove(target)
        os.replace(partial, target)


def remove(path: Path) -> None:
    """Renames first, so that a kill in between leaves no half-emptied folder under a checkpoint's name."""
    hidden = _hidden(path, "old.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def damaged(file: Path, found: str) -> Damaged:
    """The error for a file of a checkpoint folder; `found`: what was expected and what was got."""
    attempt = "averaging again" if file.parent.name == "averaged" else OLDER
    return Damaged(f"{file}: damaged checkpoint: expected {found}; try {attempt}")
