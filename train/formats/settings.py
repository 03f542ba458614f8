"""Read JSON files of other programs, and the keys of config.json that several architectures share."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.errors import UserError, nearest
from train.json_files import read_json

# Hugging Face's name -> our name. If several names have the same value, an export writes the last of them.
ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu",
    "gelu": "gelu_erf",
}  # fmt: skip
SUPPORTED_MODEL = "a model that docs/formats.md describes"
TRY_SUPPORTED = f"try {SUPPORTED_MODEL}"
WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def read_object(path: Path, is_optional: bool = False, expected: str = "settings of a model") -> dict[str, Any]:
    """Return the JSON object in a file, or {} for a missing file that `is_optional`.

    Raises UserError for other content and for half of a surrogate pair, which UTF-8 cannot represent.
    """
    if is_optional and not path.exists():
        return {}
    content = read_json(path, expected)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object; got a {type(content).__name__}; try a new download")
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        got = f"{error.object[error.start]!r}, half of a character"
        raise UserError(f"{path}: expected Unicode text; got {got}; try a new download") from None
    return content


def read_value(config: Mapping[str, Any], name: str, key: str, kind: type = int, default: Any = None) -> Any:
    """Return the value of a key in the file `name`. Raises UserError for a value that is not of type `kind`."""
    value = config.get(key, default)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise UserError(
            f"{name}: {key}: expected {WORDS[kind]}; got {value!r}; try correcting this key, or "
            "downloading the model again"
        )
    return value


def check_required(config: Mapping[str, Any], expected: Mapping[str, Any], name: str) -> None:
    """Raise UserError for a key of the file `name` with an unexpected value. A missing key is accepted."""
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise UserError(f"{name}: {key}: expected {value}; got {config[key]!r}; {TRY_SUPPORTED}")


def check_vocab_size(folder: Path, key: str, size: Any, n_subwords: int) -> None:
    """Raise UserError unless the tokenizer of a folder has `size` subwords, the value of `key` in the settings."""
    if size != n_subwords:
        raise UserError(
            f"{folder}: expected a tokenizer with {size} subwords, the value of {key}; got {n_subwords}; "
            "try files that all come from the same model"
        )


def read_activation(
    config: Mapping[str, Any], name: str, default: str | None = None, key: str = "activation_function"
) -> str:
    """Return our name for the activation. Raises UserError for an unsupported activation."""
    value = config.get(key, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise UserError(
            f"{name}: {key}: expected one of {', '.join(ACTIVATIONS)}; got {value!r}; "
            f"try {nearest(str(value), ACTIVATIONS)}"
        )
    return ACTIVATIONS[value]
