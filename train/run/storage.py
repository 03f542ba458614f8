"""A folder of arrays with a state.json, written atomically and verified when read.

For each .safetensors file, state.json contains its size in bytes and the SHA-256 of every array with its name, dtype
and shape. It also contains its own SHA-256. Each .safetensors file repeats the identity of its checkpoint, so files
that were swapped between checkpoints are detected. Version 0.2.0 and earlier wrote format 1, which can still be read.
Format 1 has SHA-256 hashes of complete files, but not of state.json.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import npx
from models import TransformerConfig
from npx.ranges import Range
from train.errors import ReadError, UserError, one_line
from train.files import UNREADABLE, digest, disk_errors, error_number, fsync, open_for_reading
from train.json_files import Schema, is_seal_broken, read_json, schema_error, sealed_json
from train.run.folder_swap import new_folder, original_name

FORMATS = 1, 2  # formats of state.json that can be read; new files have the last one
STATE = "state.json"
IDENTITY = ("step", "model", "tokenizer_digest")  # keys of the state that each .safetensors file repeats
STEP = Range(int, "[0, 1000000000]")
DTYPES = ("float32", "float64")  # dtypes of weights and moments
MAX_HEADER = 1 << 20  # limit on a .safetensors header in bytes, enough for about 7,000 arrays
SCHEMA: Schema = {"format": int, "step": STEP, "model": dict, "tokenizer_digest": str, "files": dict}
FILE: Schema = {"bytes": Range(int, "[0, 1e18]")}
REMEDY = "an older checkpoint, or a copy of the file"
TRY_WRITER_VERSION = "the version of npx-transformer that wrote the checkpoint"


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is missing, truncated or changed."""


def read_state(folder: Path, on_bytes: Callable[[bytes], object] | None = None) -> dict[str, Any]:
    """Return state.json of a checkpoint folder, and call `on_bytes` with its bytes.

    Raises DamagedCheckpoint if it is missing, changed or invalid.
    """
    file = folder / STATE
    try:
        state = read_json(file, "a checkpoint's state", REMEDY, on_bytes)
    except ReadError:
        raise
    except UserError as error:
        raise DamagedCheckpoint(str(error)) from None
    if problem := schema_error(state, SCHEMA):
        raise damaged_error(file, problem)
    if state["format"] not in FORMATS:
        raise UserError(
            f"{file}: expected checkpoint format {' or '.join(map(str, FORMATS))}; got {state['format']}; "
            f"try {TRY_WRITER_VERSION}"
        )
    if state["format"] > 1 and is_seal_broken(state):
        raise damaged_error(file, "expected a state that matches its SHA-256; got a changed one")
    if (named := re.fullmatch(r"(?:step|best)-([0-9]+)", original_name(folder))) and named[1] != str(state["step"]):
        raise damaged_error(file, f"expected the state of {named[0]}; got the state of step {state['step']}")
    try:
        model_config(state)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return state


def model_config(state: Mapping[str, Any]) -> TransformerConfig:
    """Return the configuration of a checkpoint's model.

    Keys that did not exist in the version that wrote the checkpoint get the value that corresponds to that version.
    """
    try:
        return TransformerConfig.from_dict(state["model"])
    except (TypeError, ValueError) as error:
        got = f"'{one_line(error)}'"
        raise UserError(f"model: expected a known configuration; got {got}; try {TRY_WRITER_VERSION}") from None


def read_arrays(file: Path, state: Mapping[str, Any]) -> Iterator[tuple[str, npx.Array]]:
    """Verify the arrays of a .safetensors file and yield (name, array) pairs. Raises DamagedCheckpoint."""
    try:
        listed = state["files"].get(file.name)
        if listed is None or schema_error(listed, FILE):
            raise damaged_error(file, f"expected a valid entry in {STATE}; got a missing or invalid one")
        with open_for_reading(file, "a checkpoint's arrays", suggestion=REMEDY) as raw:
            if (size := os.fstat(raw.fileno()).st_size) != listed["bytes"]:
                raise damaged_error(file, f"expected {listed['bytes']:,} bytes; got {size:,}")
            if (header := int.from_bytes(raw.read(8), "little")) > MAX_HEADER:
                raise damaged_error(file, f"expected a header of at most {MAX_HEADER:,} bytes; got {header:,}")
        if state["format"] == 1 and digest(file) != listed.get("sha256"):
            raise damaged_error(file, "expected content that matches its SHA-256; got changed content")
        with safe_open(file, framework="np") as tensors:
            identity = json.loads((tensors.metadata() or {}).get("npx_transformer", "null"))
            if identity != {key: state[key] for key in IDENTITY}:
                raise damaged_error(file, f"expected the arrays of {STATE}; got those of another checkpoint")
            names = list(tensors.keys())
            if state["format"] > 1 and {*names} != {*listed.get("tensors", ())}:
                raise damaged_error(file, f"expected the arrays that {STATE} lists; got other arrays")
            for name in names:
                array = tensors.get_tensor(name)
                if str(array.dtype) not in DTYPES:
                    raise damaged_error(file, f"expected {' or '.join(DTYPES)} in {name}; got {array.dtype}")
                if state["format"] > 1 and array_digest(name, array) != listed["tensors"][name]:
                    raise damaged_error(file, f"expected values of {name} that match their SHA-256; got changed values")
                if not np.isfinite(array).all():
                    raise damaged_error(file, f"expected finite values in {name}; got NaN or infinity")
                yield name, array
    except UserError as error:
        raise error if isinstance(error, DamagedCheckpoint | ReadError) else DamagedCheckpoint(str(error)) from None
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        if error_number(error) in UNREADABLE:
            raise ReadError(f"{file}: cannot be read ({one_line(error)}); try {REMEDY}") from None
        raise damaged_error(file, f"expected arrays; got '{one_line(error)}'") from None


def write_folder(target: Path, files: Mapping[str, Mapping[str, npx.Array]], state: Mapping[str, Any]) -> None:
    """Write {file name: {array name: array}} and state.json as the folder `target`, atomically.

    Raises UserError for NaN or infinity in an array, and WriteError if the disk is full.
    """
    # Equal runs must produce equal bytes, but safetensors writes entries in random order. So there is only one.
    metadata = {"npx_transformer": json.dumps({key: state[key] for key in IDENTITY})}
    with disk_errors(str(target)), new_folder(target) as partial:
        listed = {}
        for name, arrays in files.items():
            file = f"{partial}/{name}"
            # save_file writes the buffer as if it were in C order.
            in_order = {key: np.asarray(npx.to_host(array), order="C") for key, array in arrays.items()}
            for key, array in in_order.items():
                if not np.isfinite(array).all():
                    raise UserError(
                        f"{target}: expected finite values in {key}; got NaN or infinity; try an earlier checkpoint"
                    )
            save_file(in_order, file, metadata=metadata)
            tensors = {key: array_digest(key, array) for key, array in in_order.items()}
            listed[name] = {"bytes": os.stat(file).st_size, "tensors": tensors}
            fsync(file)
        with open(f"{partial}/{STATE}", "x", encoding="utf-8") as text:
            text.write(sealed_json({"format": FORMATS[-1], **state, "files": listed}))
        fsync(text.name)
        for name in files:  # save_file makes the files unreadable for other users, regardless of the umask
            os.chmod(f"{partial}/{name}", stat.S_IMODE(os.stat(text.name).st_mode))


def array_digest(name: str, array: npx.Array) -> str:
    """Return the SHA-256 of an array with its name, dtype and shape."""
    checksum = hashlib.sha256(f"{name} {array.dtype} {array.shape}\n".encode())
    checksum.update(np.ascontiguousarray(npx.to_host(array)).reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


def damaged_error(file: Path, problem: str) -> DamagedCheckpoint:
    """Return the error for a file of a checkpoint folder; `problem` has the form "expected X; got Y"."""
    suggestion = "averaging again" if file.parent.name == "averaged" else REMEDY
    return DamagedCheckpoint(f"{file}: damaged checkpoint: {problem}; try {suggestion}")


def check_shapes(model: Any, weights: Mapping[str, npx.Array], file: Path) -> None:
    """Raise DamagedCheckpoint unless `weights`, read from `file`, have the names and shapes of the model's parameters.

    `model` can be abstract (`TransformerConfig.build_abstract`); then it takes no memory, however large the model is.
    """
    shapes = {name: p.shape for name, p in model.named_parameters()}
    if problems := mismatches(shapes, weights):
        raise damaged_error(file, f"expected the parameters of the model in {STATE}; got {problems[0]}")
    if len(dtypes := {str(array.dtype) for array in weights.values()}) != 1:
        raise damaged_error(file, f"expected weights of one dtype; got {' and '.join(sorted(dtypes)) or 'no weights'}")


def mismatches(shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, npx.Array]) -> list[str]:
    """Return a description of each parameter that is missing, unexpected or of the wrong shape in `weights`."""
    missing = [f"no {name}" for name in shapes if name not in weights]
    wrong = [
        f"{name} of shape {weights[name].shape} instead of {shape}"
        for name, shape in shapes.items()
        if name in weights and weights[name].shape != shape
    ]
    return wrong + missing + [f"{name}, which this model does not have" for name in weights if name not in shapes]
