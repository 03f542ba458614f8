"""The configuration of a run: loading, validation and dumping. The keys are in train/run/keys.py.

Validation, suggestions of names, `--set table.key=value` and the comments in config.toml use the fields' metadata.

    config = RunConfig.load("configs/base.toml", overrides=["train.max_steps=50"])
    config.dump()                                  # complete commented TOML, which loads back to an equal config
    config.transformer_config(vocab_size=37000)    # the configuration of the model

Paths in [data] are relative to the working directory, not to the configuration file.
"""

import difflib
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

from models import PRESETS, TransformerConfig
from models.config import upgrade_config
from models.fields import describe_range, fits, range_of, value_type
from train.errors import UserError, one_line, quote
from train.files import MISSING, open_for_reading
from train.run.key_names import FORMER_KEYS, OTHER_UNITS, TRY_KEY_LIST, plain_name, suggest_key, upgrade_table
from train.run.keys import (
    PRESET_DATA,
    PRESET_TRAIN,
    RESET_KEYS,
    SECTIONS,
    SELECTORS,
    VARIANTS,
    DataSection,
    ModelSection,
    SearchSection,
    TrainSection,
)
from train.run.toml_text import MAX_BYTES, MAX_LINE, format_value, read_toml, to_toml
from train.run.value_names import suggest_value
from train.tasks import TASKS

HEADER = "# Configuration of npx-transformer, to the last line. A relative path refers to the working directory."
END = "# end of the configuration"  # the last line after a HEADER; missing in a truncated file


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run: one dataclass per table of config.toml.

    Args:
        model: [model], a ModelSection. A key that is None takes the preset's value.
        data: [data], a DataSection.
        train: [train], a TrainSection.
        search: [search], a SearchSection.

    Raises UserError for an invalid value. The message is one line, `table.key: expected ...; got ...; try ...`.
    """

    model: Any = ModelSection()  # ModelSection and DataSection are built with make_dataclass
    data: Any = DataSection()
    train: TrainSection = TrainSection()
    search: SearchSection = SearchSection()

    def __post_init__(self) -> None:
        for table, f, value in self.items():
            if value is not None or f.default is not None:
                checked_value(table, f, value, f"config: {table}.{f.name}")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        overrides: Iterable[str] = (),
        complete: bool = False,
        base: "RunConfig | None" = None,
    ) -> "RunConfig":
        """Load a TOML file.

        Args:
            path: the file.
            overrides: `table.key=value` strings that override it.
            complete: whether the file must be as complete as `dump` wrote it, as in a run folder.
            base: a configuration whose values apply to the keys that the file does not contain.

        Raises UserError if the file is missing, invalid or truncated; the message names the line or the key.
        """
        if not os.path.exists(path):
            for setting in overrides:
                parse_setting(setting)  # after `--set key value`, without "=", the value is taken for a file
            files = {file.name: str(file) for file in Path(path).parent.glob("*.toml")}
            similar = difflib.get_close_matches(Path(path).name, [*files, *PRESETS], n=1, cutoff=0.7)
            presets = f"tiny or another preset ({', '.join(PRESETS)}) or `npx-transformer info base --config > my.toml`"
            suggestion = quote(files.get(similar[0], similar[0])) if similar else presets
            if Path(path).parent.name == "configs" and not Path(path).parent.exists():
                suggestion = "configs/ in a clone of the repository"
            raise UserError(f"{str(path) or repr('')}: expected a configuration file; got {MISSING}; try {suggestion}")
        with open_for_reading(path, "a configuration file") as file:
            raw = file.read(MAX_BYTES + 1)
        suggestion = "" if str(path).endswith(".toml") else f"--train-src {quote(path)} of `train` if it is a text"
        if len(raw) > MAX_BYTES:
            got = f"a text of more than {MAX_BYTES:,} bytes; try {suggestion or 'a shorter file'}"
            raise UserError(f"{path}: expected a configuration file; got {got}")
        try:
            text = raw.decode("utf-8").removeprefix("\ufeff")
            tables = read_toml(text)
        except UnicodeDecodeError as error:
            place, got = f"{path}:{raw[: error.start].count(10) + 1}", f"byte {raw[error.start]:#04x}"
            raise UserError(f"{place}: expected UTF-8; got {got}; try saving the file as UTF-8") from None
        except ValueError as error:  # tomllib.TOMLDecodeError, or Python's error for a number with too many digits
            found = re.search(r"\(at line (\d+), column \d+\)", str(error))
            lines = text.split("\n")[: int(found[1]) if found else None]
            number, line = max((len(s) > MAX_LINE, bool(s.strip()), i, s) for i, s in enumerate(lines, 1))[2:]
            reason = re.sub(r"\s*\(at [^()]*\)$", "", str(error))
            got = f"{format_value(line.strip())} ({one_line(reason)})"
            example = 'lines `key = value` below a line `[table]`, with text in "quotes" and numbers such as 0.1'
            example += suggestion and f", or {suggestion}"
            raise UserError(f"{path}:{number}: expected TOML; got {got}; try {example}") from None
        if complete and (tables.keys() < SECTIONS.keys() or HEADER in text and END not in text):
            raise UserError(
                f"{path}: expected the complete configuration of a run, with the tables {', '.join(SECTIONS)}"
                f"{f' and the last line {END!r}' if HEADER in text else ''}; got a truncated file; try a backup"
            )
        return cls.from_dict(tables, overrides, str(path), base)

    @classmethod
    def from_dict(
        cls,
        tables: Mapping[str, Any],
        overrides: Iterable[str] = (),
        source: str = "config",
        base: "RunConfig | None" = None,
    ) -> "RunConfig":
        """Return the configuration in `tables` (table -> key -> value), with the values in `overrides`.

        The preset and the variant set defaults. If `overrides` change the preset or the variant, values that equal the
        old defaults are replaced by the new ones. `source` is the name of the tables in messages. The values of `base`
        apply to keys that are not in `tables`, or "" there.
        """
        given: dict[str, dict[str, Any]] = {table: {} for table in SECTIONS}
        for table, f, value in base.items() if base else ():
            if value is not None:
                given[table][f.name] = value
        for table, entries in tables.items():
            if table not in SECTIONS or not isinstance(entries, Mapping):
                got = f"the table [{table}]"
                similar = "".join(difflib.get_close_matches(table, SECTIONS, n=1))
                suggestion = f"; try [{similar}]" if similar else ""
                if not isinstance(entries, Mapping):
                    owner, _, key = (suggest_key(table) or "").partition(".")
                    got = f"{table} outside of these tables"
                    suggestion = f"; try {f'{key} below a line [{owner}]' if key else TRY_KEY_LIST}"
                raise UserError(f"{source}: {table}: expected the tables {', '.join(SECTIONS)}; got {got}{suggestion}")
            for name, value in upgrade_table(table, entries, source).items():
                value = checked_value(table, find_field(table, name, source), value, f"{source}: {table}.{name}")
                if value != "" or not base:  # as in a file with all keys, "" means that the key is not set
                    given[table][name] = value
        parsed = {(table, name): value for table, name, value in map(parse_setting, overrides)}
        file_selectors = [given["model"].get(name, fields_of("model")[name].default) for name in SELECTORS]
        selectors = [parsed.get(("model", name), value) for name, value in zip(SELECTORS, file_selectors, strict=True)]
        if selectors != file_selectors:
            for table, values in preset_values(*file_selectors).items():
                given[table] = {n: v for n, v in given[table].items() if n not in values or v != values[n]}
        given["model"] |= dict(zip(SELECTORS, selectors, strict=True))
        for (table, name), value in parsed.items():
            given[table][name] = value
        for table, values in preset_values(*selectors).items():
            given[table] = {**values, **given[table]}
        config = cls(**{table: section(**given[table]) for table, section in SECTIONS.items()})
        try:
            config.transformer_config(config.data.vocab_size)
        except ValueError as error:
            raise UserError(f"{source}: [model] {one_line(str(error))}") from error
        return config

    def transformer_config(self, vocab_size: int, **special: int) -> TransformerConfig:
        """Return the model's configuration. Raises ValueError, with a one-line message, if it is invalid.

        `special` contains the values that depend on the tokenizer: pad_id, bos_id, eos_id, n_outputs.
        """
        changes = {f.name: v for t, f, v in self.items() if t == "model" and f.name not in SELECTORS and v is not None}
        return TransformerConfig.preset(self.model.preset, vocab_size=vocab_size, **special, **changes)

    def items(self) -> Iterator[tuple[str, Field[Any], Any]]:
        """Yield (table, field, value) for every key, in the order of the file."""
        for table in SECTIONS:
            section = getattr(self, table)
            for f in fields(section):
                yield table, f, getattr(section, f.name)

    def dump(self, header: str = HEADER) -> str:
        """Return the complete configuration as TOML with comments. `load` reads it back as an equal configuration."""
        lines = [header]
        comment: dict[str, Any] = {"initial_indent": "# ", "subsequent_indent": "# "}
        for table, section in SECTIONS.items():
            lines += ["", "", f"# {section.__doc__.split(': ', 1)[1]}", f"[{table}]"]
            for name, f in fields_of(table).items():
                value = getattr(getattr(self, table), name)
                lines += ["", *textwrap.wrap(explain(f), 118, break_on_hyphens=False, **comment)]
                lines.append(f"# {name} =" if value is None else f"{name} = {to_toml(value)}")
        return "\n".join([*lines, "", END]) + "\n"

    def resumed(self, model_config: TransformerConfig) -> "RunConfig":
        """Return the configuration with which a run resumes, given the configuration of its model.

        A run of a version without `position_rates` continues with the rates that it was trained with.
        """
        if self.model.position_rates is None and self.model.positions == model_config.positions:
            return replace(self, model=replace(self.model, position_rates=model_config.position_rates))
        return self

    def with_absolute_paths(self, is_resumed: bool = False) -> "RunConfig":
        """Return the configuration of a run with absolute paths, which are valid in every working directory.

        With `is_resumed`, paths that must not change and paths of missing files remain as they are.
        """
        paths: dict[str, dict[str, str]] = {table: {} for table in SECTIONS}
        kinds = {kind for task in TASKS.values() for kind in task.tokenizers}  # values of data.tokenizer, not paths
        for table, f, value in self.items():
            if f.metadata["is_path"] and value and value not in kinds:
                exists = os.path.exists(value) or f.name == "prepared"  # a folder to be written
                absolute = os.path.abspath(value)
                if (not is_resumed or f.metadata["may_change"] and exists) and fits(f, absolute):
                    paths[table][f.name] = absolute
        return replace(self, **{table: replace(getattr(self, table), **changes) for table, changes in paths.items()})

    def fixed_keys(self) -> dict[str, Any]:
        """Return {`table.key`: value} for the keys that must stay the same when a run is resumed."""
        return {f"{table}.{f.name}": value for table, f, value in self.items() if not f.metadata["may_change"]}

    def changed_keys(self, other: "RunConfig") -> list[str]:
        """Return the keys whose values differ in `other`, among those that a resumed run may change."""
        pairs = zip(self.items(), other.items(), strict=True)
        return [f"{table}.{f.name}" for (table, f, a), (_, _, b) in pairs if f.metadata["may_change"] and a != b]

    def check_fixed_keys(self, original: Mapping[str, Any], source: Path, command: str = "resume") -> None:
        """Raise UserError, naming the keys, if fixed keys differ from `original`, the fixed keys of the run.

        Older programs did not have some of the keys; these get the values that match what the programs did. If
        model.position_rates is not set here, the run's value is accepted. In the message, `source` is the file of
        `original` and `command` is the command that requires equal keys.
        """
        original, values = complete_fixed_keys(original), complete_fixed_keys(self.fixed_keys())
        optional = ("model.position_rates", None)
        different = [n for n, value in values.items() if value != original[n] and (n, value) != optional]
        if not different:
            return
        name, saved = different[0], original[different[0]]
        key = name.partition(".")[2]
        expected = "no value" if saved is None else format_value(saved, 240)  # long enough for a path
        suggestion = f"leaving {key} out" if saved is None else f"{key} = {expected}"
        suggestion += " and the run's values of the others" if different[1:] else ""
        if (folder := os.path.dirname(str(saved))) and os.path.isfile(f"{folder}/manifest.json"):
            suggestion = f"--data {quote(folder)}"
        others = f" (also different: {', '.join(different[1:])})" if different[1:] else ""
        alternative = "a checkpoint of this run"
        if command == "resume":
            alternative = "a new run that starts from its weights (--init RUN --out NEW)"
            if any(n.startswith(("model.", "data.tokenizer")) and "dropout" not in n for n in different):
                alternative = "a new run (--out NEW)"  # the weights would not fit
        raise UserError(
            f"{command}: {name}: expected {expected} as in {source}; got {format_value(values[name])}{others}; "
            f"try {suggestion}, or {alternative}"
        )


def fields_of(table: str) -> dict[str, Field[Any]]:
    """Return the fields of a table by key."""
    return {f.name: f for f in fields(SECTIONS[table])}


def default_of(table: str, f: Field[Any]) -> Any:
    """Return the default of a key. For a model key, this is the default of the `base` preset."""
    return getattr(TransformerConfig, f.name, None) if table == "model" and f.default is None else f.default


def complete_fixed_keys(fixed_keys: Mapping[str, Any]) -> dict[str, Any]:
    """Add the keys that are newer than the program version that wrote the `fixed_keys` of a run, and rename others.

    The values of the added keys match the behavior of that version. Keys of [model] that the run did not set get the
    values of its preset and variant.
    """
    fixed_keys = {FORMER_KEYS.get(name, name): value for name, value in fixed_keys.items()}
    keys = ((table, name, f) for table in SECTIONS for name, f in fields_of(table).items())
    defaults = {f"{table}.{name}": default_of(table, f) for table, name, f in keys if not f.metadata["may_change"]}
    stored = {name: fixed_keys[f"model.{name}"] for name in fields_of("model") if f"model.{name}" in fixed_keys}
    preset, variant = (str(stored.get(name)) for name in SELECTORS)
    values = preset_values(preset, variant)["model"] if preset in PRESETS and variant in VARIANTS else {}
    unset_keys = {f"model.{name}": values.get(name) for name, value in stored.items() if value is None}
    upgraded = {f"model.{n}": value for n, value in upgrade_config(stored).items()}
    return {**defaults, **upgraded, **fixed_keys, **unset_keys}


def preset_values(preset: str, variant: str = "paper") -> dict[str, dict[str, Any]]:
    """Return the values that the preset and the variant determine, by table: all of [model] and some other keys."""
    model = TransformerConfig.preset(preset, vocab_size=37000)
    changes = VARIANTS[variant]
    values = {name: getattr(model, name) for name in fields_of("model") if name not in SELECTORS}
    defaults = {table: {name: fields_of(table)[name].default for name in names} for table, names in RESET_KEYS.items()}
    defaults["train"] |= PRESET_TRAIN.get(preset, {})
    defaults["data"] |= PRESET_DATA.get(preset, {})
    defaults["model"] = {n: v for n, v in values.items() if v is not None}
    return {table: keys | changes.get(table, {}) for table, keys in defaults.items()}


def checked_value(table: str, f: Field[Any], value: Any, place: str, name: str = "", fallback: str = "") -> Any:
    """Return `value` converted to the type of the key. Raises UserError if the key does not accept it.

    The message begins with `place` and suggests a value for `name` (default: the key's name) or otherwise `fallback`.
    """
    name = name or f.name
    choices = tuple(f.metadata["choices"])
    if value_type(f) is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if fits(f, value):
        return value
    if value_type(f) is bool and (meant := suggest_value("bool", value, ("true", "false"))):
        suggestion = f"{name} = {meant}"
    elif choices and isinstance(value, str | bool):
        similar = suggest_value(f.name, value, choices)
        suggestion = similar and f'{name} = "{similar}"'
    elif digits := range_of(f).normalize_number(value):
        suggestion = f"{name} = {digits}"
    elif value_type(f) is int and type(value) is float and value.is_integer() and fits(f, int(value)):
        suggestion = f"{name} = {int(value)}"
    elif f.metadata["is_path"] and isinstance(value, str):  # the path may come from an option other than --set
        place, suggestion = place.replace("--set", "path"), "renaming the file or folder, or using a link to it"
    elif {type(value), value_type(f)} <= {int, float}:
        suggestion = fallback  # the range says what to do
    elif f.default is None or f.name in RESET_KEYS.get(table, ()):
        effect = f.metadata["none_means"] if f.default is None else "the default of the preset"
        suggestion = f"leaving {name} out ({effect})"
    else:
        suggestion = f"{name} = {to_toml(f.default)} (the default)"
    text = f"expected {describe_range(f)}; got {format_value(value)}{suggestion and f'; try {suggestion}'}"
    raise UserError(f"{place}: {text}")


def explain(f: Field[Any]) -> str:
    """Return a key's meaning, accepted values and default, as shown in the comments of config.toml."""
    default = f"default: {f.metadata['none_means']}" if f.default is None else f"default: {to_toml(f.default)}"
    accepted = describe_range(f)
    return f"{f.metadata['help']} {accepted[0].upper()}{accepted[1:]}; {default}."


def find_field(table: str, name: str, source: str) -> Field[Any]:
    """Return the key `name` of a table. Raises UserError with the nearest valid name."""
    names = fields_of(table)
    if name in names:
        return names[name]
    suggestion = describe_unit(name, suggest_key(name, table)) or TRY_KEY_LIST
    raise UserError(f"{source}: {table}.{name}: unknown key of [{table}]; try {suggestion}")


def suggest_setting(name: str, text: str, key: str | None) -> str:
    """Return the --set option for `key`, which the user called `name`; include the value `text` if it is valid."""
    if key is None:
        return TRY_KEY_LIST
    table, _, field_name = key.partition(".")
    f = fields_of(table)[field_name]
    value = not text and suggest_value(field_name, name, f.metadata["choices"]) or "VALUE"  # --fp16 names a value
    with suppress(UserError):
        parse_value(table, f, text)
        value = text if text and plain_name(name) not in OTHER_UNITS else value
    return f"--set {describe_unit(name, key).replace(key, quote(f'{key}={value}'), 1)}"


def describe_unit(name: str, key: str | None) -> str:
    """Return `key`, or "" for None; if the user's `name` has another unit or meaning, add the meaning of the key."""
    if key is None or plain_name(name) not in OTHER_UNITS:
        return key or ""
    table, _, field_name = key.partition(".")
    meaning = re.split(r"[.](?: |$)| [(]", fields_of(table)[field_name].metadata["help"])[0]
    return f"{key} ({meaning[0].lower()}{meaning[1:]})"


def parse_setting(setting: str) -> tuple[str, str, Any]:
    """Parse `table.key=value` into (table, key, value). The value is in TOML syntax, or a string without quotes."""
    full, equals, text = (part.strip() for part in setting.partition("="))
    table, _, name = full.partition(".")
    if not equals or table not in SECTIONS or not name:
        suggestion = suggest_setting(full, text, suggest_key(full))
        raise UserError(f"--set: expected table.key=value; got {format_value(setting)}; try {suggestion}")
    return table, name, parse_value(table, find_field(table, name, "--set"), text)


def parse_value(table: str, f: Field[Any], text: str) -> Any:
    """Return the value that `text` gives a key, in TOML syntax. The quotes of a string may be omitted."""
    try:
        document = read_toml(f"value = {text}")
        value = document["value"] if len(document) == 1 else text
    except ValueError:
        value = text
        for kind in (float, int):  # unlike TOML, Python also accepts ".1" and "5."
            with suppress(ValueError):
                value = kind(text)
    value = text if value_type(f) is str and not isinstance(value, str) else value
    return checked_value(table, f, value, f"--set: {table}.{f.name}")
