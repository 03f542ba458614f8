"""Fields that explain themselves: what a key of a configuration means, takes and defaults to, in one place.

A key is a dataclass field whose metadata holds what a person and a check need to know; messages, commented files and
options are drawn from it.
"""

import types
from collections.abc import Iterable, Iterator
from dataclasses import Field, field, fields
from typing import Any, get_args

from npx.ranges import Range

# Upper ends are far beyond what anybody trains, and below what no machine has the memory, the time or the digits for.
COUNT = "[1, 1000000000]"  # of whole numbers: updates, tokens
WIDTH = "[1, 65536]"
LENGTH = "[1, 1048576]"
POSITIVE = "(0, 1e9]"
SHARE = "[0, 1)"


def key(
    default: Any, help: str, *, choices: Iterable[str] = (), within: str = "", unset: str = "", may_change: bool = False
) -> Any:
    """One key: its interval `within`, what leaving it out means (`unset`), whether a resumed run may alter it.

    `choices` may be a registry that still grows.
    """
    return field(default=default, metadata={
        "help": help, "choices": choices, "within": within, "unset": unset, "may_change": may_change,
    })  # fmt: skip


def kind_of(f: Field[Any]) -> Any:
    """The plain type of a key: `int | None` is int."""
    return get_args(f.type)[0] if isinstance(f.type, types.UnionType) else f.type


def range_of(f: Field[Any]) -> Range:
    """What a key takes."""
    return Range(kind_of(f), f.metadata["within"], f.metadata["choices"])


def fits(f: Field[Any], value: Any) -> bool:
    """Whether a value, of exactly the key's type, is one that it takes."""
    return range_of(f).fits(value)


def expected(f: Field[Any]) -> str:
    """What a key takes, in words: `a number from 0 to below 1`."""
    return range_of(f).words()


def keys_of(cls: type) -> Iterator[Field[Any]]:
    """The fields of a dataclass that are keys."""
    return (f for f in fields(cls) if "help" in f.metadata)


def check(config: Any) -> None:
    """ValueError, naming the first key of a dataclass whose value is none that it takes; whole numbers are numbers."""
    for f in keys_of(type(config)):
        value = getattr(config, f.name)
        if kind_of(f) is float and type(value) is int:
            value = float(value)
        if not (value is None and f.default is None or fits(f, value)):
            raise ValueError(f"{f.name}: expected {expected(f)}; got {value!r}")


def overrides(cls: type, unset: str) -> list[tuple[str, Any, Any]]:
    """The keys of a dataclass for `make_dataclass`, with no value: left out, a key is what `unset` says."""
    found = []
    for f in keys_of(cls):
        own = {"unset": f.metadata["unset"] or unset, "choices": tuple(f.metadata["choices"])}
        found.append((f.name, kind_of(f) | None, field(default=None, metadata={**f.metadata, **own})))
    return found
