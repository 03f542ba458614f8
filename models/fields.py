"""Configuration keys: dataclass fields with a help text, a default, a range and choices.

A key is declared once, as a dataclass field with metadata. Checks, error messages, commented configuration files, the
documentation and command-line options are generated from it.
"""

import types
from collections.abc import Iterable, Iterator
from dataclasses import Field, field, fields
from typing import Any, get_args

from npx.ranges import Range

# The upper bounds are far above any practical value and exclude values that no machine can handle.
COUNT = "[1, 1000000000]"  # a number of updates or tokens
WIDTH = "[1, 65536]"
LENGTH = "[1, 1048576]"
POSITIVE = "(0, 1e9]"
FRACTION = "[0, 1)"


def key(
    default: Any, help: str, *, choices: Iterable[str] = (), interval: str = "", none_means: str = "",
    may_change: bool = False, is_path: bool = False, architectures: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Declare a configuration key as a dataclass field.

    Args:
        default: the value if the key is left out.
        help: the description, for documentation and `--help`.
        choices: the allowed names; may be a registry, to which later imports add names.
        interval: the allowed numbers, such as "[0, 1)".
        none_means: what the value None means, for keys whose default is None.
        may_change: whether the value may change when a run is resumed.
        is_path: whether the value is the path of a file or folder; a run stores absolute paths.
        architectures: the architectures that use the key; empty for all.
    """
    return field(default=default, metadata={
        "help": help, "choices": choices, "interval": interval, "none_means": none_means, "may_change": may_change,
        "is_path": is_path, "architectures": architectures,
    })  # fmt: skip


def value_type(f: Field[Any]) -> Any:
    """Return the type of a key's values other than None: int for `int | None`."""
    return get_args(f.type)[0] if isinstance(f.type, types.UnionType) else f.type


def range_of(f: Field[Any]) -> Range:
    """Return the range of a key."""
    return Range(value_type(f), f.metadata["interval"], f.metadata["choices"])


def fits(f: Field[Any], value: Any) -> bool:
    """Return whether a value has exactly the key's type and lies in its range."""
    return range_of(f).fits(value)


def describe_range(f: Field[Any]) -> str:
    """Return the range of a key in words, such as "a number of at least 0 and below 1"."""
    return range_of(f).describe()


def keys_of(cls: type) -> Iterator[Field[Any]]:
    """Return the fields of a dataclass that are keys."""
    return (f for f in fields(cls) if "help" in f.metadata)


def check_ranges(config: object) -> None:
    """Raise ValueError for the first key of a dataclass with an invalid value. Float keys accept integers."""
    for f in keys_of(type(config)):
        value = getattr(config, f.name)
        if value_type(f) is float and type(value) is int:
            value = float(value)
        if not (value is None and f.default is None or fits(f, value)):
            raise ValueError(f"{f.name}: expected {describe_range(f)}; got {value!r}")


def optional_keys(cls: type, none_means: str) -> list[tuple[str, Any, Any]]:
    """Return the keys of a dataclass as fields for `make_dataclass`, with None as an additional value and default.

    Args:
        none_means: a description of None, for keys that have no such description.
    """
    optional = []
    for f in keys_of(cls):
        changes = {"none_means": f.metadata["none_means"] or none_means, "choices": tuple(f.metadata["choices"])}
        optional.append((f.name, value_type(f) | None, field(default=None, metadata={**f.metadata, **changes})))
    return optional
