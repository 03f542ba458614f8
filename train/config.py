"""The configuration of a run: every key with its meaning, choices, range and default, in one place.

A key is a dataclass field whose metadata holds what a person and a check need to know. Validation, nearest-name
hints, `--set table.key=value` and the commented config.toml of a run are all drawn from it. Next: `train/cli.py`.

    config = RunConfig.load("configs/base.toml", settings=["train.max_steps=50"])
    config.dump()                                  # complete commented TOML, which loads back to an equal config
    config.transformer_config(vocab_size=37000)    # what the model is built from

Paths in [data] are relative to the folder the command is run in, not to the file they are written in.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import textwrap
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from models.config import PRESETS, TransformerConfig
from train.errors import UserError

POSITIVE = "(0, inf)"
COUNT = "[1, inf)"  # of whole numbers
SHARE = "[0, 1)"
PRESET = "what the preset says"


def key(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    within: str = "",
    unset: str = "",
    may_change: bool = False,
) -> Any:
    """One key: its interval `within`, what leaving it out means (`unset`), whether a resumed run may alter it."""
    return field(default=default, metadata={
        "help": help, "choices": tuple(choices), "within": within, "unset": unset, "may_change": may_change,
    })  # fmt: skip


def of_preset(help: str, *, choices: Iterable[str] = (), within: str = "") -> Any:
    """A key of [model] that overrides the preset's value."""
    return key(None, help, choices=choices, within=within, unset=PRESET)


@dataclass(frozen=True)
class ModelSection:
    """[model]: Which Transformer. A key that is left out is the preset's."""

    preset: str = key("base", "Architecture of the paper (base, big, rows of Table 3) that the keys below start from.",
                      choices=PRESETS)  # fmt: skip
    d_model: int | None = of_preset("Width D of every layer.", within=COUNT)
    d_ff: int | None = of_preset("Width F inside the feed-forward network.", within=COUNT)
    n_heads: int | None = of_preset("Attention heads H.", within=COUNT)
    n_layers: int | None = of_preset("Layers N of the encoder, and of the decoder.", within=COUNT)
    d_k: int | None = key(None, "Width of a head's queries and keys.", within=COUNT, unset="d_model / n_heads")
    d_v: int | None = key(None, "Width of a head's values.", within=COUNT, unset="d_model / n_heads")
    dropout: float | None = of_preset(
        "Dropout where the paper has it: on each sub-layer's output and on embedding + position.", within=SHARE
    )
    attention_dropout: float | None = of_preset("Dropout on attention weights (none in the paper).", within=SHARE)
    activation_dropout: float | None = of_preset("Dropout after the inner ReLU (none in the paper).", within=SHARE)
    norm: str | None = of_preset(
        "Layer norm after the residual sum (post, the paper's), or before the sub-layer and at the very end (pre).",
        choices=("post", "pre"),
    )
    positions: str | None = of_preset(
        "Positions: sine and cosine interleaved (the paper's), in two halves (tensor2tensor, fairseq), or learned.",
        choices=("sinusoidal", "sinusoidal_halves", "learned"),
    )
    max_positions: int | None = of_preset("Longest sentence, in tokens, that learned positions can take.", within=COUNT)
    attention_bias: bool | None = of_preset("Biases in the attention projections (none in the paper).")
    layer_norm_eps: float | None = of_preset("Added to the variance in layer norm.", within=POSITIVE)
    embedding_init: str | None = of_preset(
        "First values of the embedding: N(0, D^-0.5), or Xavier's uniform.", choices=("normal", "xavier")
    )


@dataclass(frozen=True)
class DataSection:
    """[data]: Which text. Line i of the source file is translated by line i of the target file."""

    train_src: str = key("", "Training text, source language: UTF-8, a sentence a line. Also --train-src.")
    train_tgt: str = key("", "Training text, target language. Also --train-tgt.")
    valid_src: str = key("", "Validation text, source language; empty: none. Also --valid-src.", may_change=True)
    valid_tgt: str = key("", "Validation text, target language. Also --valid-tgt.", may_change=True)
    tokenizer: str = key(
        "bpe", 'Learned jointly on both training texts: "bpe" or "wordpiece"; or the path of a saved tokenizer.json.'
    )
    pretokenizer: str = key(
        "words",
        "What a piece may not reach across: words and punctuation (words; for plain text), or white space alone"
        " (whitespace; for text that is tokenised already).",
        choices=("words", "whitespace"),
    )
    vocab_size: int = key(37000, "Types V of the joint vocabulary, its 4 special ones included.", within="[5, inf)")
    max_length: int = key(
        256, "Longest side in tokens, end included; longer pairs are skipped and counted.", within="[2, inf)"
    )


@dataclass(frozen=True)
class TrainSection:
    """[train]: How the model is trained."""

    seed: int = key(1, "Fixes the first weights, the order of batches and dropout.", within="[0, 4294967295]")
    batch_tokens: int = key(
        25000, "Size of a micro-batch: at most so many tokens on each side, padding included.", within=COUNT
    )
    accumulate: int = key(1, "Micro-batches an update: their union's gradient in the memory of one.", within=COUNT)
    max_steps: int = key(100_000, "Updates to train for.", within=COUNT, may_change=True)
    warmup_steps: int = key(4000, "Updates in which the rate rises; then it falls as step^-0.5.", within=COUNT)
    lr_scale: float = key(
        1.0,
        "Factor on the paper's learning rate d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).",
        within=POSITIVE,
    )
    beta1: float = key(0.9, "Adam: decay of the mean of the gradients.", within=SHARE)
    beta2: float = key(0.98, "Adam: decay of the mean of the squared gradients.", within=SHARE)
    adam_eps: float = key(1e-9, "Adam: added to the root of the second moment.", within=POSITIVE)
    adam_eps_inside: bool = key(
        False, "Adam: adam_eps is added before the bias correction (TensorFlow, fairseq), not after it (the paper)."
    )
    weight_decay: float = key(0.0, "Decoupled weight decay; 0 is none, as in the paper.", within="[0, inf)")
    clip_norm: float = key(0.0, "Longest gradient (Euclidean norm); 0 never clips, as in the paper.", within="[0, inf)")
    label_smoothing: float = key(0.1, "Share of the target probability that is spread over the types.", within=SHARE)
    smoothing_over: str = key(
        "all",
        "The types it is spread over: all V, the V - 1 wrong ones, or those without padding (V - 2).",
        choices=("all", "others", "others_without_pad"),
    )
    precision: str = key(
        "float32", "Numbers the model computes with; float64 is for checks.", choices=("float32", "float64")
    )
    validate_every: int = key(1000, "Updates between validations.", within=COUNT, may_change=True)
    checkpoint_every: int = key(1000, "Updates between checkpoints.", within=COUNT, may_change=True)
    keep_last: int = key(5, "Checkpoints kept; `average` takes the mean of these.", within=COUNT, may_change=True)
    patience: int = key(
        0, "Stop after so many validations without a lower loss; 0: never early.", within="[0, inf)", may_change=True
    )
    validate_bleu: bool = key(True, "Also translate the validation text and report its BLEU.", may_change=True)
    log_every: int = key(50, "Updates between lines of metrics.jsonl and log.txt.", within=COUNT, may_change=True)


@dataclass(frozen=True)
class SearchSection:
    """[search]: How validation and `translate` search; the options of `translate` go before."""

    beam: int = key(4, "Hypotheses kept for a sentence; 1 is greedy search.", within=COUNT, may_change=True)
    alpha: float = key(0.6, "Exponent of the length penalty; 0 is none.", within="[0, inf)", may_change=True)
    penalty: str = key(
        "paper",
        "Score = log-probability / penalty: ((5 + |Y|) / 6)^alpha (paper), or |Y|^alpha (length: fairseq, Marian,"
        " CTranslate2); |Y| counts the end of the sentence.",
        choices=("paper", "length"),
        may_change=True,
    )
    max_extra: int = key(50, "Tokens a translation may have more than its source.", within=COUNT, may_change=True)
    batch_tokens: int = key(4096, "Source tokens translated together, padding included.", within=COUNT, may_change=True)


SECTIONS: dict[str, Any] = {"model": ModelSection, "data": DataSection, "train": TrainSection, "search": SearchSection}
TYPES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text on one line"}
GPU_PRECISIONS = ("float16", "bfloat16", "fp16", "bf16")


@dataclass(frozen=True)
class RunConfig:
    """All four tables; raises UserError (one line: table.key, expected, got, try) for an impossible value."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    train: TrainSection = TrainSection()
    search: SearchSection = SearchSection()

    def __post_init__(self) -> None:
        for table, f, value in self.keys():
            if value is not None or f.default is not None:
                check(table, f, value)

    @classmethod
    def load(cls, path: str | os.PathLike[str], settings: Iterable[str] = ()) -> RunConfig:
        """Reads a TOML file with `table.key=value` settings on top; UserError names the file, and a bad line in it."""
        try:
            raw = Path(path).read_bytes()
            text = raw.decode("utf-8")
            tables = tomllib.loads(text)
        except OSError as error:
            advice = f"a preset ({', '.join(PRESETS)}) or `npx-transformer info base --config > my.toml`"
            raise UserError(f"{path}: expected a configuration file; got '{error.strerror}'; try {advice}") from None
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
    def from_dict(cls, tables: Mapping[str, Any], settings: Iterable[str] = (), where: str = "config") -> RunConfig:
        """The config of `tables` as tomllib reads them, `settings` on top; the preset fills [model] and [train].

        Where a setting changes the preset, values that the file has only from its own preset give way to the new one's.
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
        of_file = given["model"].get("preset", "base")
        preset = set_here.get(("model", "preset"), of_file)
        if preset != of_file:
            for table, values in preset_values(of_file).items():
                given[table] = {n: v for n, v in given[table].items() if n not in values or v != values[n]}
        given["model"]["preset"] = preset
        for (table, name), value in set_here.items():
            given[table][name] = value
        for table, values in preset_values(preset).items():
            given[table] = {**values, **given[table]}
        config = cls(**{table: section(**given[table]) for table, section in SECTIONS.items()})
        try:
            config.transformer_config(config.data.vocab_size)
        except ValueError as error:
            raise UserError(f"{where}: [model] {one_line(str(error))}") from error
        return config

    def transformer_config(self, vocab_size: int) -> TransformerConfig:
        """The model's configuration; ValueError (one line) where it is impossible: heads that do not divide d_model."""
        changes = {f.name: v for t, f, v in self.keys() if t == "model" and f.name != "preset" and v is not None}
        return TransformerConfig.preset(self.model.preset, vocab_size=vocab_size, **changes)

    def keys(self) -> Iterator[tuple[str, Field[Any], Any]]:
        """(table, key, value) of every key, in the order of the file."""
        for table in SECTIONS:
            section = getattr(self, table)
            for f in fields(section):
                yield table, f, getattr(section, f.name)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Tables of keys, without those that are left out; `from_dict` gives an equal config back."""
        tables: dict[str, dict[str, Any]] = {table: {} for table in SECTIONS}
        for table, f, value in self.keys():
            if value is not None:
                tables[table][f.name] = value
        return tables

    def dump(self) -> str:
        """The whole configuration as TOML, each key under its meaning; `load` gives an equal one back."""
        lines = ["# Configuration of npx-transformer. Paths are relative to the folder the command is run in."]
        last = ""
        for table, f, value in self.keys():
            if table != last:
                about = SECTIONS[table].__doc__.split(": ", 1)[1]
                lines += ["", "", f"# {about}", f"[{table}]"]
                last = table
            lines += ["", *textwrap.wrap(explain(f), 118, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"# {f.name} =" if value is None else f"{f.name} = {to_toml(value)}")
        return "\n".join(lines) + "\n"

    def frozen_difference(self, other: RunConfig) -> str | None:
        """The first `table.key` in which the two differ and that a resumed run may not change, or None."""
        for (table, f, value), (_, _, others) in zip(self.keys(), other.keys(), strict=True):
            if value != others and not f.metadata["may_change"]:
                return f"{table}.{f.name}"
        return None


def keys_of(table: str) -> dict[str, Field[Any]]:
    """The keys of a table by name."""
    return {f.name: f for f in fields(SECTIONS[table])}


def all_keys() -> list[str]:
    """Every `table.key`."""
    return [f"{table}.{name}" for table in SECTIONS for name in keys_of(table)]


def owner_of(name: str) -> str | None:
    """The table that has a key of this name."""
    return next((table for table in SECTIONS if name in keys_of(table)), None)


@cache
def types_of(table: str) -> dict[str, type]:
    """The plain type of each key: `int | None` is int."""
    hints = get_type_hints(SECTIONS[table])
    return {n: get_args(hint)[0] if isinstance(hint, types.UnionType) else hint for n, hint in hints.items()}


def preset_values(preset: str) -> dict[str, dict[str, Any]]:
    """What a preset decides: in [model] the whole architecture, in [train] what the paper's row says."""
    model = {f.name: f.default for f in fields(TransformerConfig) if f.default is not MISSING} | PRESETS[preset].model
    return {
        "model": {name: model[name] for name in keys_of("model") if model.get(name) is not None},
        "train": {name: value for name, value in PRESETS[preset].train.items() if name in keys_of("train")},
    }


def check(table: str, f: Field[Any], value: Any, where: str = "config") -> Any:
    """`value` in the type of the key; UserError says what was expected, what was got and what to try."""
    kind, choices = types_of(table)[f.name], f.metadata["choices"]
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    ok = type(value) is kind and (not choices or value in choices)
    if ok and kind in (int, float):
        ok = abs(value) < math.inf and (not f.metadata["within"] or inside(f.metadata["within"], value))
    if ok and kind is str:
        ok = not re.search(r"[\n\r\0\ud800-\udfff]", value)
    if ok:
        return value
    if choices and isinstance(value, str):
        attempt = f'{f.name} = "{nearest(value, choices)}"'
    elif f.default is None:
        attempt = f"leaving {f.name} out ({f.metadata['unset']})"
    else:
        attempt = f"{f.name} = {to_toml(f.default)} (the default)"
    got = shown(value)
    if f.name == "precision" and value in GPU_PRECISIONS:
        got, attempt = f"{got}, which comes with the GPU engine", 'precision = "float32"'
    raise UserError(f"{where}: {table}.{f.name}: expected {expected(table, f)}; got {got}; try {attempt}")


def inside(interval: str, value: float) -> bool:
    """Whether a number lies in an interval as `[0, 1)`."""
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)


def expected(table: str, f: Field[Any]) -> str:
    """What a key takes, in words: `a number from 0 to below 1`."""
    if f.metadata["choices"]:
        return "one of " + ", ".join(f'"{choice}"' for choice in f.metadata["choices"])
    words = TYPES[types_of(table)[f.name]]
    if interval := f.metadata["within"]:
        low, high = (side.strip() for side in interval[1:-1].split(","))
        words += f" from {low}" if interval[0] == "[" else f" above {low}"
        words += "" if high == "inf" else f" to {high}" if interval[-1] == "]" else f" to below {high}"
    return words


def explain(f: Field[Any]) -> str:
    """A key's meaning, what it takes and its default, as the commented file shows it."""
    table = next(table for table in SECTIONS if keys_of(table).get(f.name) is f)
    default = f"left out: {f.metadata['unset']}" if f.default is None else f"default {to_toml(f.default)}"
    takes = expected(table, f)
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
        document = tomllib.loads(f"value = {text}")
        value = document["value"] if len(document) == 1 else text
    except ValueError:
        value = text
    if types_of(table)[name] is str and not isinstance(value, str):
        value = text
    return table, name, check(table, f, value, "--set")


def nearest(name: str, choices: Iterable[str]) -> str:
    """The choice most like `name`."""
    return difflib.get_close_matches(name, list(choices), n=1, cutoff=0.0)[0]


def shown(value: Any) -> str:
    """A value as an error message shows it: on one line, and short."""
    text = one_line(to_toml(value) if isinstance(value, (str, bool, int, float)) else repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(text: str) -> str:
    return " ".join(text.split())


def to_toml(value: Any) -> str:
    """A text, number or truth value as TOML writes it; a number with the fewest digits that read back to it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if " " <= c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    return repr(value)
