"""The configuration of a run: read, checked, written. The keys themselves stand in `train/run/keys.py`.

Validation, nearest-name hints, `--set table.key=value` and the commented config.toml of a run are all drawn from what
a key's dataclass field says about it.

    config = RunConfig.load("configs/base.toml", settings=["train.max_steps=50"])
    config.dump()                                  # complete commented TOML, which loads back to an equal config
    config.transformer_config(vocab_size=37000)    # what the model is built from

Paths in [data] are relative to the folder the command is run in, not to the file they are written in.
"""

import difflib
import os
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from models import PRESETS, TransformerConfig
from models.fields import expected, fits, value_type
from train.errors import UserError, nearest, one_line
from train.files import opened
from train.run.keys import (
    DECIDED,
    NAMED,
    SECTIONS,
    TRAINING,
    VARIANTS,
    DataSection,
    ModelSection,
    SearchSection,
    TrainSection,
)

SYNONYMS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "single": "float32", "fp32": "float32",
            "double": "float64", "fp64": "float64"}  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """All four tables; raises UserError (one line: table.key, expected, got, try) for an impossible value."""

    model: Any = ModelSection()  # this and the next are put together in run/keys.py
    data: Any = DataSection()
    train: TrainSection = TrainSection()
    search: SearchSection = SearchSection()

    def __post_init__(self) -> None:
        for table, f, value in self.keys():
            if value is not None or f.default is not None:
                check(table, f, value)

    @classmethod
    def load(cls, path: str | os.PathLike[str], settings: Iterable[str] = ()) -> "RunConfig":
        """Reads a TOML file with `table.key=value` settings on top; UserError names the file, and a bad line in it."""
        if not os.path.exists(path):
            path = str(path) or "''"
            advice = f"a preset ({', '.join(PRESETS)}) or `npx-transformer info base --config > my.toml`"
            raise UserError(f"{path}: expected a configuration file; got no such file; try {advice}")
        with opened(path, "a configuration file") as file:
            raw = file.read()
        try:
            text = raw.decode("utf-8").removeprefix("\ufeff")
            tables = read_toml(text)
        except UnicodeDecodeError as error:
            place = f"{path}:{raw[: error.start].count(10) + 1}"
            found = f"byte {raw[error.start]:#04x}"
            raise UserError(f"{place}: expected UTF-8; got {found}; try saving the file as UTF-8") from None
        except ValueError as error:  # tomllib.TOMLDecodeError, or Python's own for a number of too many digits
            at = re.search(r"\(at line (\d+), column \d+\)", str(error))
            place = f"{path}:{at[1] if at else text.count(chr(10)) + 1}"
            reason = re.sub(r"\s*\(at [^()]*\)$", "", str(error))
            advice = 'lines key = value below a line [table], text in "quotes"'
            raise UserError(f"{place}: expected TOML; got '{one_line(reason)}'; try {advice}") from None
        return cls.from_dict(tables, settings, where=str(path))

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], settings: Iterable[str] = (), where: str = "config") -> "RunConfig":
        """The config of `tables` as tomllib reads them, `settings` on top; preset and variant fill [model] and [train].

        Where a setting changes one of them, values that the file has only from its own give way to the new one's.
        """
        given: dict[str, dict[str, Any]] = {table: {} for table in SECTIONS}
        for table, entries in tables.items():
            if table not in SECTIONS or not isinstance(entries, Mapping):
                line = f"[{owner_of(table) or nearest(table, SECTIONS)}]"
                hint = line if isinstance(entries, Mapping) else f"{table} below a line {line}"
                got = f"the table [{table}]" if isinstance(entries, Mapping) else f"{table} outside of them"
                raise UserError(f"{where}: {table}: expected the tables {', '.join(SECTIONS)}; got {got}; try {hint}")
            for name, value in entries.items():
                given[table][name] = check(table, find_key(table, name, where), value, where)
        set_here = {(table, name): value for table, name, value in map(parse_setting, settings)}
        of_file = [given["model"].get(name, keys_of("model")[name].default) for name in NAMED]
        named = [set_here.get(("model", name), value) for name, value in zip(NAMED, of_file, strict=True)]
        if named != of_file:
            for table, values in preset_values(*of_file).items():
                given[table] = {n: v for n, v in given[table].items() if n not in values or v != values[n]}
        given["model"] |= dict(zip(NAMED, named, strict=True))
        for (table, name), value in set_here.items():
            given[table][name] = value
        for table, values in preset_values(*named).items():
            given[table] = {**values, **given[table]}
        config = cls(**{table: section(**given[table]) for table, section in SECTIONS.items()})
        try:
            config.transformer_config(config.data.vocab_size)
        except ValueError as error:
            raise UserError(f"{where}: [model] {one_line(str(error))}") from error
        return config

    def transformer_config(self, vocab_size: int, **special: int) -> TransformerConfig:
        """The model's configuration; ValueError (one line) where it is impossible: heads that do not divide d_model.

        `special`: what the tokenizer decides: pad_id, bos_id, eos_id, n_outputs.
        """
        changes = {f.name: v for t, f, v in self.keys() if t == "model" and f.name not in NAMED and v is not None}
        return TransformerConfig.preset(self.model.preset, vocab_size=vocab_size, **special, **changes)

    def keys(self) -> Iterator[tuple[str, Field[Any], Any]]:
        """(table, key, value) of every key, in the order of the file."""
        for table in SECTIONS:
            section = getattr(self, table)
            for f in fields(section):
                yield table, f, getattr(section, f.name)

    def dump(self) -> str:
        """The whole configuration as TOML, each key under its meaning; `load` gives an equal one back."""
        lines = ["# Configuration of npx-transformer. Paths are relative to the folder the command is run in."]
        for table, section in SECTIONS.items():
            lines += ["", "", f"# {section.__doc__.split(': ', 1)[1]}", f"[{table}]"]
            for name, f in keys_of(table).items():
                value = getattr(getattr(self, table), name)
                lines += ["", *textwrap.wrap(explain(f), 118, initial_indent="# ", subsequent_indent="# ")]
                lines.append(f"# {name} =" if value is None else f"{name} = {to_toml(value)}")
        return "\n".join(lines) + "\n"

    def frozen(self) -> dict[str, Any]:
        """`table.key` -> value of every key that a resumed run may not change."""
        return {f"{table}.{f.name}": value for table, f, value in self.keys() if not f.metadata["may_change"]}

    def check_frozen(self, before: Mapping[str, Any], where: Path) -> None:
        """UserError, naming the key, where a run that goes on was another `before`; a key it lacks had its default."""
        for table, f, now in self.keys():
            name = f"{table}.{f.name}"
            was = before.get(name, f.default)
            if now != was and not f.metadata["may_change"]:
                raise UserError(
                    f"resume: {name}: expected {shown(was)} as in {where}; got {shown(now)}; "
                    f"try {f.name} = {shown(was)}, or a new run with --out"
                )


def keys_of(table: str) -> dict[str, Field[Any]]:
    """The keys of a table by name."""
    return {f.name: f for f in fields(SECTIONS[table])}


def all_keys() -> list[str]:
    """Every `table.key`."""
    return [f"{table}.{name}" for table in SECTIONS for name in keys_of(table)]


def owner_of(name: str) -> str | None:
    """The table that has a key of this name."""
    return next((table for table in SECTIONS if name in keys_of(table)), None)


def preset_values(preset: str, variant: str = "paper") -> dict[str, dict[str, Any]]:
    """What preset and variant decide: in [model] the whole architecture, in [train] what the paper's row says."""
    model, changes = TransformerConfig.preset(preset, vocab_size=37000), VARIANTS[variant]
    values = {name: getattr(model, name) for name in keys_of("model") if name not in NAMED}
    train = {name: getattr(TrainSection, name) for name in DECIDED} | TRAINING.get(preset, {})
    shape = {name: value for name, value in values.items() if value is not None}
    return {"model": shape | changes.get("model", {}), "train": train | changes.get("train", {})}


def check(table: str, f: Field[Any], value: Any, where: str = "config") -> Any:
    """`value` in the type of the key; UserError says what was expected, what was got and what to try."""
    choices = tuple(f.metadata["choices"])
    if value_type(f) is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if fits(f, value):
        return value
    if choices and isinstance(value, str):
        attempt = f'{f.name} = "{SYNONYMS.get(value.lower()) or nearest(value.lower(), choices)}"'
    elif f.default is None:
        attempt = f"leaving {f.name} out ({f.metadata['unset']})"
    else:
        attempt = f"{f.name} = {to_toml(f.default)} (the default)"
    raise UserError(f"{where}: {table}.{f.name}: expected {expected(f)}; got {shown(value)}; try {attempt}")


def explain(f: Field[Any]) -> str:
    """A key's meaning, what it takes and its default, as the commented file shows it."""
    default = f"left out: {f.metadata['unset']}" if f.default is None else f"default {to_toml(f.default)}"
    takes = expected(f)
    return f"{f.metadata['help']} {takes[0].upper()}{takes[1:]}; {default}."


def find_key(table: str, name: str, where: str) -> Field[Any]:
    """The key `name` of a table; UserError names the nearest valid one."""
    names = keys_of(table)
    if name in names:
        return names[name]
    here = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    owner = owner_of(name)
    hint = f"{owner}.{name}" if owner else f"{table}.{here[0]}" if here else nearest(f"{table}.{name}", all_keys())
    raise UserError(f"{where}: {table}.{name}: expected a key of [{table}]; got an unknown one; try {hint}")


def parse_setting(setting: str) -> tuple[str, str, Any]:
    """(table, key, value) of `table.key=value`; the value is written as in TOML, or as bare text."""
    full, equals, text = (part.strip() for part in setting.partition("="))
    table, _, name = full.partition(".")
    if not equals or table not in SECTIONS or not name:
        hint = f"{owner_of(full)}.{full}" if owner_of(full) else nearest(full, all_keys())
        raise UserError(f"--set: expected table.key=value; got {shown(setting)}; try --set {hint}={text or '...'}")
    f = find_key(table, name, "--set")
    try:
        document = read_toml(f"value = {text}")
        value = document["value"] if len(document) == 1 else text
    except ValueError:
        value = text
    if value_type(f) is str and not isinstance(value, str):
        value = text
    return table, name, check(table, f, value, "--set")


def read_toml(text: str) -> dict[str, Any]:
    """What TOML says; ValueError where it is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("brackets too deep") from None


def shown(value: Any) -> str:
    """A value as an error message shows it: on one line, and short."""
    text = one_line(to_toml(value) if isinstance(value, (str, bool, int, float)) else repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def to_toml(value: Any) -> str:
    """A text, number or truth value as TOML writes it; a number with the fewest digits that read back to it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if " " <= c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    return repr(value)
