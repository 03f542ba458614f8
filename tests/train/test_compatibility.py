"""Runs written by version 0.2 still work (tests/train/run_0_2/: a run folder, its text and its translations)."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from train import RunConfig, average_checkpoints, load_model, train
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.tasks.pairs import format_hypotheses
from train.tasks.translation import translate_lines

BEFORE = Path(__file__).parent / "run_0_2"


def test_a_0_2_checkpoint_gives_the_same_translations():
    model, tokenizer, config = load_model(BEFORE)
    lines = (BEFORE / "valid.en").read_text(encoding="utf-8").splitlines()
    found = translate_lines(model, tokenizer, lines, **asdict(config.search), n_best=2)
    written = "\n".join(format_hypotheses(best, i, 2) for i, best in enumerate(found))
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
    old, new = (load_checkpoint(path).state for path in RunFolder(out).steps())
    assert "task" not in old and new["task"] == "translation" and new["text_sha256"] == old["text_sha256"]
    average_checkpoints(out, 2)
    assert load_model(out)[2] == config
