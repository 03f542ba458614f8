"""Read keys of config.json that several architectures share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.errors import UserError, nearest

# Hugging Face's name -> our name. If several names have the same value, an export writes the last of them.
ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu",
    "gelu": "gelu_erf",
}  # fmt: skip
TRY_SUPPORTED = "try a model that docs/formats.md describes"
WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


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
