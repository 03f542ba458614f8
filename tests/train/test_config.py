"""The configuration: round trips through TOML, an explanation for every key, one-line errors."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import PRESETS, TransformerConfig
from models.fields import describe_range, value_type
from npx.ranges import is_inside
from tests import ROOT
from train.errors import UserError
from train.run import config as keys
from train.run.config import SECTIONS, RunConfig, checked_value, explain, fields_of
from train.run.key_names import all_keys
from train.run.keys import ModelSection
from train.tasks import TASKS

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=20)


def values_of(table, f):
    """Return a strategy for the values that a key accepts, from its metadata."""
    kind = value_type(f)
    interval = f.metadata["interval"]
    if f.metadata["choices"]:
        return st.sampled_from(tuple(f.metadata["choices"]))
    if kind is bool:
        return st.booleans()
    if kind is str:
        return TEXT
    numbers = st.integers(1, 10_000) if kind is int else st.floats(0, 1e6) | st.floats(0, 1)
    return numbers.filter(lambda value: not interval or is_inside(interval, value))


INTERDEPENDENT = (
    *("d_model", "n_heads", "d_k", "d_v", "n_kv_heads"),
    *("relative_buckets", "max_relative_distance", "attention_window", "architecture"),
    *(f.name for f in fields(TransformerConfig) if f.metadata.get("architectures")),
)


@st.composite
def tables(draw):
    """Draw some keys of each table, with valid values; interdependent sizes have the preset's values."""
    chosen = {}
    for table in SECTIONS:
        names = [n for n in fields_of(table) if n not in INTERDEPENDENT]
        subset = draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
        chosen[table] = {name: draw(values_of(table, fields_of(table)[name])) for name in subset}
    return chosen


def message(call, *arguments, **named):
    """Return the one-line message of the UserError that a call raises."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **named)
    text = str(caught.value)
    assert "\n" not in text
    assert ": unknown key of [" in text or all(part in text for part in (": expected ", "; got "))
    assert "; try " in text or re.search(": expected (one of|a number|a whole number) ", text)
    return text


@given(tables())
def test_a_dumped_config_loads_back_equal(tmp_path_factory, chosen):
    config = RunConfig.from_dict(chosen)
    file = tmp_path_factory.mktemp("config") / "config.toml"
    file.write_text(config.dump(), encoding="utf-8")
    assert RunConfig.load(file) == config
    for table, entries in chosen.items():
        for name, value in entries.items():
            assert getattr(getattr(config, table), name) == value


@pytest.mark.parametrize(
    "text", ["C:\\new", 'a "b"', "tab\there", "\x7f\x01\x85", "caf\u00e9 \U0001f600", "# no = comment"]
)
def test_any_string_round_trips_through_toml(text, tmp_path):
    config = RunConfig.from_dict({"data": {"train_src": text}})
    (tmp_path / "config.toml").write_text(config.dump(), encoding="utf-8")
    assert RunConfig.load(tmp_path / "config.toml").data.train_src == text


@given(st.data())
def test_a_setting_equals_the_same_line_in_the_file(data):
    table, name = data.draw(st.sampled_from(all_keys())).split(".")
    if name in ("preset", *INTERDEPENDENT):
        return
    value = data.draw(values_of(table, fields_of(table)[name]))
    by_setting = RunConfig.from_dict({}, [f"{table}.{name}={keys.to_toml(value)}"])
    assert by_setting == RunConfig.from_dict({table: {name: value}})


@pytest.mark.parametrize("full", all_keys())
def test_every_key_is_explained_and_its_default_is_valid(full):
    table, name = full.split(".")
    f = fields_of(table)[name]
    assert len(f.metadata["help"]) > 15
    text = explain(f)
    assert describe_range(f)[1:] in text
    if f.default is None:
        assert f.metadata["none_means"] in text
    else:
        assert checked_value(table, f, f.default, "key") == f.default
    lines = RunConfig().dump().splitlines()
    at = next(i for i, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{name} ="))
    assert lines[at - 1].startswith("# ")


def test_the_model_table_has_every_field_of_the_architecture():
    given_elsewhere = {"vocab_size", "src_vocab_size", "pad_id", "bos_id", "eos_id", "unk_id", "n_outputs"}
    given_elsewhere |= {"suppressed_ids"}
    names = set(fields_of("model")) - {"preset", "variant"}
    assert names == {f.name for f in fields(TransformerConfig)} - given_elsewhere


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_decides_the_keys_that_are_not_given(preset):
    config = RunConfig.from_dict({"model": {"preset": preset}})
    assert config.transformer_config(100) == TransformerConfig.preset(preset, vocab_size=100)
    for name, value in keys.preset_values(preset)["train"].items():
        assert getattr(config.train, name) == value
    assert RunConfig.from_dict({"model": {"preset": preset}, "train": {"max_steps": 7}}).train.max_steps == 7


def test_a_preset_setting_replaces_sizes_but_not_explicit_values(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(RunConfig.from_dict({"model": {"d_ff": 1000}, "train": {"label_smoothing": 0.3}}).dump())
    config = RunConfig.load(file, ["model.preset=big"])
    assert (config.model.d_model, config.model.n_heads, config.model.d_ff) == (1024, 16, 1000)
    assert (config.train.max_steps, config.train.label_smoothing) == (300_000, 0.3)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_a_shipped_config_loads_and_explains_its_keys(file):
    config = RunConfig.load(file)
    texts = TASKS[config.data.task].file_keys
    assert all(getattr(config.data, name).startswith("data/") for name in texts["train"] + texts["valid"])
    before = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if " = " in line and not line.startswith("#"):
            assert before.startswith("#") or " = " in before, f"{line} has no comment"
        before = line


@pytest.mark.parametrize(
    ("tables", "named", "hint"),
    [
        ({"train": {"max_stepz": 3}}, "train.max_stepz", "train.max_steps"),
        ({"train": {"beam_size": 3}}, "train.beam_size", "search.beam_size"),
        ({"trian": {"seed": 3}}, "trian", "[train]"),
        ({"max_steps": 3}, "max_steps", "[train]"),
        ({"model": {"preset": "bigg"}}, "model.preset", '"big"'),
        ({"model": {"norm_placement": "past"}}, "model.norm_placement", '"post"'),
        ({"model": {"d_model": 100}}, "d_model", "8"),
        ({"model": {"d_model": "512"}}, "model.d_model", "try d_model = 512"),
        ({"model": {"d_model": "x"}}, "model.d_model", "preset"),
        ({"train": {"max_steps": 0}}, "train.max_steps", "from 1 to 1000000000; got 0"),
        ({"train": {"max_steps": 2.5}}, "train.max_steps", "whole number"),
        ({"train": {"max_steps": True}}, "train.max_steps", "whole number"),
        ({"train": {"lr_scale": float("nan")}}, "train.lr_scale", "above 0"),
        ({"train": {"lr_scale": float("inf")}}, "train.lr_scale", "above 0"),
        ({"train": {"lr_scale": 10**400}}, "train.lr_scale", "above 0"),
        ({"train": {"lr_scale": 0}}, "train.lr_scale", "above 0"),
        ({"train": {"adam_eps": 1e-46}}, "train.adam_eps", "from 1e-30"),  # 0 in float32
        ({"train": {"seed": 2**32}}, "train.seed", "to 4294967295"),
        ({"train": {"beta2": 1.0}}, "train.beta2", "below 1"),
        ({"train": {"validate_score": 1}}, "train.validate_score", "true or false"),
        ({"train": {"precision": "bfloat16"}}, "train.precision", 'try precision = "bf16"'),
        ({"train": {"precision": "float99"}}, "train.precision", 'got "float99"'),
        ({"train": {"seed": [1, 2]}}, "train.seed", "seed = 1"),
        ({"data": {"train_src": "a\nb"}}, "data.train_src", "one line"),
        ({"search": {"length_penalty": -11}}, "search.length_penalty", "from -10 to 10; got -11.0"),
    ],
)
def test_an_invalid_table_is_reported_with_key_and_hint(tables, named, hint):
    text = message(RunConfig.from_dict, tables, source="my.toml")
    assert text.startswith("my.toml: ")
    assert named in text
    assert hint in text


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("train.max_stepz=3", "train.max_steps"),
        ("max_steps=3", "--set train.max_steps=3"),
        ("trian.max_steps=3", "--set train.max_steps=3"),
        ("train.max_steps", "train.max_steps=VALUE"),
        ("train.max_steps=many", "whole number"),
        ("train.max_steps=", "whole number"),
        ("train.validate_score=True", "true or false"),
        ("train.seed=1\nmax_steps=3", "whole number"),
    ],
)
def test_an_invalid_setting_is_reported_with_a_hint(setting, hint):
    text = message(RunConfig.from_dict, {}, [setting])
    assert text.startswith("--set: ")
    assert hint in text


@pytest.mark.parametrize(
    ("text", "value"),
    [(".5", 0.5), ("+.5", 0.5), ("5e-1", 0.5), (".50", 0.5), ("00.5", 0.5), ("0.", 0.0), ("5_0e-2", 0.5)],
)
def test_a_setting_may_be_a_number_that_toml_rejects(text, value):
    assert RunConfig.from_dict({}, [f"model.dropout={text}"]).model.dropout == value


def test_a_whole_number_may_have_leading_zeros_but_no_point():
    assert RunConfig.from_dict({}, ["train.max_steps=007"]).train.max_steps == 7
    assert message(RunConfig.from_dict, {}, ["train.max_steps=3."]).endswith("; got 3.0; try max_steps = 3")
    assert RunConfig.from_dict({}, ["data.train_src=.5"]).data.train_src == ".5"


def test_settings_accept_unquoted_text_and_the_last_one_wins():
    config = RunConfig.from_dict({}, ["data.train_src=a b.txt", "data.train_tgt=7", "train.seed=2", "train.seed=3"])
    assert (config.data.train_src, config.data.train_tgt, config.train.seed) == ("a b.txt", "7", 3)
    assert RunConfig.from_dict({}, ['data.train_src="a=b"']).data.train_src == "a=b"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"[train]\nseed = = 3\n", ":2: "),
        (b"[train]\nseed = 3\nseed = 4\n", ":3: "),
        (b"[train\n", ":1: "),
        (b'[model]\npreset = """tiny\n\n', ':2: expected TOML; got "preset = '),
        (b"[train]\nx = 1" + b" " * 5000 + b"\nseed = 3\n", ':2: expected TOML; got "x = 1'),
        (b"[train]\nseed = \xff\n", ":2: "),
        (b"[train]\nseed = " + b"9" * 5000, ":2: "),
    ],
)
def test_invalid_toml_is_reported_with_its_line(tmp_path, content, place):
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    assert message(RunConfig.load, file).startswith(f"{file}{place}")


def test_a_missing_file_is_reported(tmp_path):
    (tmp_path / "small.toml").write_text("")
    assert "does not exist; try tiny or another preset (base, " in message(RunConfig.load, tmp_path / "none.toml")
    assert message(RunConfig.load, tmp_path / "smal.tom").endswith(f"does not exist; try {tmp_path}/small.toml")
    assert message(RunConfig.load, "parsing_small").endswith("does not exist; try parsing-small")


def test_a_resumed_run_can_change_max_steps_but_no_frozen_key():
    config = RunConfig.from_dict({"train": {"seed": 1}})
    longer = RunConfig.from_dict(
        {"train": {"seed": 1, "max_steps": 7, "validate_every": 3}, "search": {"beam_size": 9}}
    )
    longer.check_fixed_keys(config.fixed_keys(), Path("before"))
    assert config.fixed_keys() == longer.fixed_keys()
    for tables, name, suggestion in (
        ({"train": {"seed": 2}}, "train.seed", ", or a new run that starts from its weights (--init RUN --out NEW)"),
        ({"train": {"seed": 1}, "model": {"d_ff": 8}}, "model.d_ff", ", or a new run (--out NEW)"),  # other weights
    ):
        error = message(RunConfig.from_dict(tables).check_fixed_keys, config.fixed_keys(), Path("before"))
        assert f"resume: {name}" in error and error.endswith(suggestion)
    several = RunConfig.from_dict({"train": {"seed": 2, "beta1": 0.5}, "model": {"d_ff": 8}})
    error = message(several.check_fixed_keys, config.fixed_keys(), Path("before"))
    assert "; got 8 (also different: train.seed, train.beta1); try d_ff" in error and error.endswith(
        "new run (--out NEW)"
    )
    before = config.fixed_keys()
    del before["train.seed"]  # a missing key had its default
    seeded = RunConfig.from_dict({"train": {"seed": 2}})
    assert "train.seed" in message(seeded.check_fixed_keys, before, Path("before"))


@pytest.mark.parametrize("variant", ["paper", "tensor2tensor-v1"])
def test_keys_that_are_left_to_the_preset_equal_its_values(variant, tmp_path):
    left_open = RunConfig(model=ModelSection(preset="tiny", variant=variant))
    (tmp_path / "config.toml").write_text(left_open.dump())
    stored = RunConfig.load(tmp_path / "config.toml", complete=True)
    earlier = {name: value for name, value in left_open.fixed_keys().items() if name != "model.tying"}
    for config in (left_open, stored):
        config.check_fixed_keys(left_open.fixed_keys(), Path("run"))
        config.check_fixed_keys(earlier, Path("run"))
    left_open.check_fixed_keys(stored.fixed_keys(), Path("run"))
    other = RunConfig(model=ModelSection(preset="base", variant=variant))
    assert "model.preset" in message(other.check_fixed_keys, earlier, Path("run"))
