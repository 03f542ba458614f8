"""Read weights by name from safetensors and PyTorch files, as float32 arrays."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from train.errors import UserError, one_line
from train.files import open_for_reading
from train.formats.settings import TRY_SUPPORTED, read_object
from train.formats.torch_file import bfloat16_values, read_torch_file

SAFETENSORS, INDEX, TORCH = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "<u1", "BOOL": "?"}


class Tensors:
    """The tensors of a file, to be taken one by one. `check_empty` rejects a file if other tensors remain.

    Args:
        weights: arrays by name.
        name: name of the file in error messages.
    """

    def __init__(self, weights: Mapping[str, Any], name: str) -> None:
        self.weights, self.name = weights, name
        self.remaining = {*weights}

    def take(self, candidates: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        """Return the first existing candidate as float32. Raises UserError for a wrong shape, NaN and infinity."""
        key = next((key for key in candidates if key in self.weights), None)
        got = "no tensor of this name" if key is None else f"shape {self.weights[key].shape}"
        if key is None or self.weights[key].shape != shape:
            raise UserError(
                f"{self.name}: {key or candidates[0]}: expected shape {shape}, as in the settings; got {got}; try "
                "files that all come from the same model"
            )
        with np.errstate(over="ignore"):  # overflow from float64
            array = self.weights[key].astype(np.float32)
        if not np.isfinite(array).all():
            raise UserError(
                f"{self.name}: {key}: expected finite float32 values; got NaN or infinity; try a new download"
            )
        self.remaining.discard(key)
        return array

    def check_empty(self, architecture: str, ignored: Callable[[str], bool]) -> None:
        """Raise UserError for a tensor that was not taken, unless it is `ignored`."""
        if others := [key for key in sorted(self.remaining) if not ignored(key)]:
            raise UserError(f"{self.name}: expected only tensors of {architecture}; got {others[0]}; {TRY_SUPPORTED}")


def read_weights(folder: Path) -> dict[str, Any]:
    """Return the arrays of a Hugging Face folder by name, from one or several safetensors files or from PyTorch's file.

    Raises UserError for a missing or damaged file.
    """
    if (folder / SAFETENSORS).exists():
        return read_safetensors(folder / SAFETENSORS)
    if (folder / INDEX).exists():
        files = read_object(folder / INDEX, expected="an index of weights").get("weight_map")
        if not isinstance(files, dict) or not all(
            isinstance(name, str) and Path(name).name == name for name in files.values()
        ):
            raise UserError(
                f"{folder / INDEX}: expected a weight_map of file names; got something else; try a new download"
            )
        parts = [read_safetensors(folder / name) for name in sorted({*files.values()})]
        return {name: array for part in parts for name, array in part.items()}
    if (folder / TORCH).exists():
        return read_torch_file(folder / TORCH)
    raise UserError(f"{folder}: expected {SAFETENSORS} or {TORCH}; got neither; try downloading the weights as well")


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return a .safetensors file's arrays by name; bfloat16 becomes float32. Raises UserError for a damaged file."""
    with open_for_reading(path, "weights in safetensors") as file:
        content = file.read()
    try:
        return {name: decode(tensor) for name, tensor in deserialize(content)}
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: expected weights in safetensors; got '{one_line(error)}'; try a new download"
        ) from None


def decode(tensor: Mapping[str, Any]) -> Any:
    """Return one tensor of `safetensors.deserialize` as an array. Raises ValueError for an unknown dtype."""
    name = tensor["dtype"]
    if name not in DTYPES:
        raise ValueError(f"numbers of the dtype {name}")
    array = np.frombuffer(tensor["data"], DTYPES[name]).reshape(tensor["shape"])
    return bfloat16_values(array) if name == "BF16" else array
