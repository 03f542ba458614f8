"""Runs written by version 0.2 still work (tests/train/run_0_2/: a run folder, its text and its translations)."""

import json
import re
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from models import TransformerConfig
from models.config import FORMER_NAMES
from tests.helpers.trainings import outcome, rewrite, run, tables
from train import RunConfig, average_checkpoints, load_model, train
from train.errors import UserError
from train.experiments.folder import open_table_folder
from train.learn import trainer
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.run.key_names import FORMER_KEYS
from train.run.keys import SearchSection
from train.run.state import RunState
from train.tasks.pairs import format_hypotheses
from train.tasks.translation import translate_lines
from train.text.batches import ORDER_VERSION

BEFORE = Path(__file__).parent / "run_0_2"
LATER_KEYS = ("position_rates", "matrix_init", "target_space", "decoder_start")


def test_a_0_2_checkpoint_gives_the_same_translations():
    model, tokenizer, config = load_model(BEFORE)
    lines = (BEFORE / "valid.en").read_text(encoding="utf-8").splitlines()
    translations = translate_lines(model, tokenizer, lines, **asdict(config.search), n_best=2)
    written = "\n".join(format_hypotheses(best, i, 2) for i, best in enumerate(translations))
    expected = (BEFORE / "translated").read_text(encoding="utf-8")
    rows, wanted = ([line.split(" ||| ") for line in text.splitlines()] for text in (written, expected))
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]
    # The last digits of a score depend on the processor.
    assert [float(row[2]) for row in rows] == pytest.approx([float(row[2]) for row in wanted], abs=1e-4)


def test_a_0_2_run_can_be_resumed_and_averaged(tmp_path):
    out = tmp_path / "run"
    shutil.copytree(BEFORE, out)
    texts = [f"data.{part}={BEFORE / name}" for part, name in (("train_src", "train.en"), ("train_tgt", "train.de"))]
    settings = [*texts, "data.valid_src=", "data.valid_tgt=", "train.max_steps=601", "train.log_every=1"]
    config = RunConfig.load(out / "config.toml", [*settings, "train.keep_last=2"])
    assert train(config, out, resume=True, progress=False).step == 601
    (entry,) = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert (entry["epoch"], entry["tokens"]) == (201, 131468)
    assert entry["loss"] == pytest.approx(0.92475224, rel=1e-4)
    assert entry["gradient_norm"] == pytest.approx(0.14483128, rel=1e-3)
    old, new = (load_checkpoint(path).state for path in RunFolder(out).step_paths())
    assert "task" not in old and new["task"] == "translation" and new["text_sha256"] == old["text_sha256"]
    average_checkpoints(out, 2)
    assert load_model(out)[2] == config


@pytest.mark.parametrize("setting", ["positions=sinusoidal_halves", "variant=tensor2tensor", "norm_placement=pre"])
def test_a_run_without_later_keys_keeps_the_rates_it_was_trained_with(setting, text, tmp_path):
    """Version 0.2 had the paper's rates here; a resumed run equals a run that sets these rates, bit for bit."""
    rates = [] if setting == "norm_placement=pre" else ["model.position_rates=paper"]
    settings = [f"model.{setting}", *rates]
    train(RunConfig.from_dict(tables(text, max_steps=5), settings), tmp_path / "new", progress=False)
    out = tmp_path / "old"
    train(RunConfig.from_dict(tables(text, max_steps=3), settings), out, progress=False)

    def remove_later_keys(state):
        for name in LATER_KEYS:
            del state["model"][name], state["config"][f"model.{name}"]

    for path in RunFolder(out).step_paths():
        rewrite(path, remove_later_keys)
    lines = (out / "config.toml").read_text(encoding="utf-8").splitlines()
    written = "\n".join(line for line in lines if line.split(" =")[0].removeprefix("# ") not in LATER_KEYS)
    (out / "config.toml").write_text(written, encoding="utf-8")
    assert load_model(out)[0].config.position_rates == ("paper" if rates else None)
    for steps in (4, 5):
        config = RunConfig.load(out / "config.toml", [f"train.max_steps={steps}"])
        train(config, out, resume=True, progress=False)
    old, new = outcome(out), outcome(tmp_path / "new")
    assert old[0] == new[0] and old[1]["model"] == new[1]["model"]


def test_a_run_of_a_version_without_batch_orders_keeps_its_batches(text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "RunState", partial(RunState, batch_order=1))
        run(text, tmp_path / "whole", max_steps=6)
        run(text, tmp_path / "parts", max_steps=3)

    def remove_later_keys(state):
        del state["run"]["batch_order"]
        for key in ("model.tying", "model.word_dropout", "train.rdrop_weight", "train.freeze", "data.vocabularies"):
            del state["config"][key]
        for key in ("tying", "word_dropout", "unk_id", "src_vocab_size"):
            del state["model"][key]

    rewrite(tmp_path / "parts/checkpoints/step-3", remove_later_keys)
    run(text, tmp_path / "parts", resume=True, max_steps=6)
    run(text, tmp_path / "new", max_steps=6)
    weights = [outcome(tmp_path / name)[0] for name in ("whole", "parts", "new")]
    assert weights[0] == weights[1] != weights[2]
    assert [outcome(tmp_path / name)[1]["batch_order"] for name in ("whole", "parts", "new")] == [1, 1, ORDER_VERSION]


FORMER_TABLES = {
    "model": {
        **{"norm": "pre", "normalization": "rms_norm", "initialization": "uniform_unit_scaling"},
        **{"position_buckets": 8, "position_distance": 9, "balance_loss": 0.5, "layer_norm_eps": 1e-5},
    },
    "train": {
        **{"smoothing_over": "others", "adam_eps_inside": True, "recompute": True, "graphs": True},
        **{"validate_bleu": False, "rdrop": 1.0, "shard": True, "max_skipped": 3, "accumulate": 2},
        **{"init_only": "encoder.*"},
    },
    "data": {"text": "train.txt", "leaves": "tags"},
    "search": {"beam": 2, "alpha": 0.3, "penalty": "length", "rule": "fairseq", "max_extra": 7},
}


def test_keys_with_their_former_names_are_read_and_both_names_of_a_key_are_refused():
    config = RunConfig.from_dict(FORMER_TABLES)
    for key, name in FORMER_KEYS.items():
        table, _, former = key.partition(".")
        assert getattr(getattr(config, table), name.partition(".")[2]) == FORMER_TABLES[table][former]
    former = {former: config.fixed_keys()[key] for former, key in FORMER_KEYS.items() if key in config.fixed_keys()}
    assert len(former) == 14
    config.check_fixed_keys(
        {k: v for k, v in config.fixed_keys().items() if k not in FORMER_KEYS.values()} | former, "run"
    )
    assert TransformerConfig.from_dict({"vocab_size": 9, "normalization": "rms_norm"}).norm_type == "rms_norm"
    with pytest.raises(ValueError, match="unknown field 'normalization'; try norm_type$"):
        TransformerConfig.from_dict({"vocab_size": 9, "normalization": "rms_norm", "norm_type": "rms_norm"})
    for key, name in FORMER_KEYS.items():
        table, _, former = key.partition(".")
        value = FORMER_TABLES[table][former]
        present = name.partition(".")[2]
        with pytest.raises(UserError, match=f"{key}: former name of {present}, which is also set; try removing it"):
            RunConfig.from_dict({table: {former: value, present: value, "seed": 2}})
        with pytest.raises(UserError, match=f"{key}: unknown key .*; try {name}"):
            RunConfig.from_dict({}, [f"{key}={value}"])


def test_a_run_with_former_names_of_keys_continues_and_its_config_keeps_comments(text, tmp_path):
    changes = {"smoothing_classes": "others", "validate_score": False}
    run(text, tmp_path / "whole", max_steps=5, **changes)
    run(text, out := tmp_path / "old", max_steps=3, **changes)
    names = {key: former for former, key in FORMER_KEYS.items()}

    def use_former_names(state):
        state["config"] = {names.get(key, key): value for key, value in state["config"].items()}
        for former, name in FORMER_NAMES.items():
            state["model"][former] = state["model"].pop(name)

    for path in RunFolder(out).step_paths():
        rewrite(path, use_former_names)
    former = (out / "config.toml").read_text(encoding="utf-8")
    for key, name in names.items():
        key, name = (full.partition(".")[2] for full in (key, name))
        former = re.sub(rf"^((# )?){key} =", rf"\1{name} =", former, flags=re.MULTILINE)
    former = former.replace('smoothing_over = "others"', 'smoothing_over = "others"  # mine')
    (out / "config.toml").write_text(former, encoding="utf-8")
    settings = ["train.max_steps=5", "train.validate_score=true"]
    train(RunConfig.load(out / "config.toml", settings), out, resume=True, progress=False)
    assert outcome(out)[0] == outcome(tmp_path / "whole")[0]
    written = (out / "config.toml").read_text(encoding="utf-8")
    assert '\nsmoothing_classes = "others"  # mine\n' in written and "\nvalidate_score = true\n" in written
    assert not any(re.search(rf"^(# )?{name.partition('.')[2]} =", written, re.MULTILINE) for name in names.values())
    average_checkpoints(out, last=2)
    run(text, tmp_path / "new", max_steps=1, init=str(out))


def test_rows_can_be_added_to_a_table_whose_settings_have_former_names(tmp_path):
    open_table_folder(out := tmp_path / "table", {"scale": "tiny", "settings": ["train.rdrop=1", "model.norm=pre"]})
    settings = ["train.rdrop_weight=1", "model.norm_placement=pre"]
    open_table_folder(out, {"scale": "tiny", "settings": settings})
    with pytest.raises(UserError, match="expected settings = .'train.rdrop_weight=1'"):
        open_table_folder(out, {"settings": settings[1:]})


@pytest.mark.parametrize("variant", ["paper", "tensor2tensor-v1"])
@pytest.mark.parametrize(
    ("former", "rule"),
    [((False, False, False), "plain"), ((True, False, False), "tensor2tensor"), ((True, True, False), "transformers"),
     ((True, True, True), "fairseq"), ((False, True, True), "plain")],
)  # fmt: skip
def test_the_former_keys_of_search_become_its_rule(former, rule, variant):
    table = dict(zip(("full_beam", "finish_in_beam", "stop_at_beam"), former, strict=True))
    config = RunConfig.from_dict({"model": {"variant": variant}, "search": {"beam_size": 3, **table}})
    assert config.search == SearchSection(beam_size=3, candidate_rule=rule)


@pytest.mark.parametrize(
    "table", [{"full_beam": "true"}, {"full_beam": True, "candidate_rule": "fairseq"}, {"finish_in_beam": True}]
)
def test_former_keys_that_contradict_or_make_no_sense_are_unknown(table):
    with pytest.raises(UserError, match="unknown key of .search.; try search.candidate_rule"):
        RunConfig.from_dict({"search": table})
