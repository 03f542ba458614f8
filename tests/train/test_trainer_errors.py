"""Failures of a training run: no bad step is saved, nothing is overwritten, and every user error is one line."""

import errno
import math
import os

import numpy as np
import pytest

from models import Transformer
from tests.helpers.trainings import crash_after, metrics, one_line, outcome, run, tables, write_pairs
from train import Adam, RunConfig, UserError, train
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder


@pytest.mark.parametrize("quantity", ["loss nan", "loss inf", "gradient", "validation"])
def test_a_nonfinite_loss_stops_training_and_is_never_saved(text, tmp_path, monkeypatch, quantity):
    out = tmp_path / "run"
    loss = Transformer.loss
    objects = {}

    def bad(self, *args, **kwargs):
        value = loss(self, *args, **kwargs)
        objects["model"] = self
        steps = self.flat_steps()
        if quantity == "validation" and not self.training and steps == 8:
            return value * math.nan
        if self.training and steps == 7:  # within update 8
            if quantity == "gradient":
                objects["adam"].flat.flatten_grad()[3] = math.inf
            else:
                return value * float(quantity.split()[1]) if quantity.startswith("loss") else value
        return value

    monkeypatch.setattr(Transformer, "loss", bad)
    monkeypatch.setattr(Transformer, "flat_steps", lambda self: objects["adam"].steps, raising=False)
    init = Adam.__init__
    monkeypatch.setattr(Adam, "__init__", lambda self, *a, **k: (objects.update(adam=self), init(self, *a, **k))[1])
    with pytest.raises(UserError) as error:
        run(text, out, max_skipped_updates=2)
    assert "step 8" in one_line(error) and "step-6" in str(error.value)
    assert [path.name for path in RunFolder(out).step_paths()] == ["step-3", "step-6"]
    load_checkpoint(RunFolder(out).step_paths()[-1])
    assert np.isfinite(objects["adam"].flat.data).all()
    assert "step 8" in (out / "log.txt").read_text(encoding="utf-8")
    assert objects["adam"].steps == (8 if quantity == "validation" else 7)
    if quantity != "validation":
        assert "3 updates in a row" in str(error.value) and "lines " in str(error.value)
        skipped = [entry for entry in metrics(out) if entry["kind"] == "skipped"]
        assert [entry["in_a_row"] for entry in skipped] == [1, 2, 3] and all(entry["step"] == 8 for entry in skipped)
        monkeypatch.undo()
        run(text, out, resume=True)


def test_a_poisoned_line_is_reported_and_skipped_even_after_resuming(text, tmp_path, monkeypatch):
    """Line 8 of the text always gives NaN. The empty line 4 is left out, but counts for line numbers."""
    for side in ("en", "de"):
        lines = (text / f"train.{side}").read_text(encoding="utf-8").splitlines()
        lines[3] = ""
        lines[7] = " ".join(["nine"] * 28) if side == "en" else lines[7]
        (tmp_path / f"train.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (tmp_path / f"valid.{side}").write_bytes((text / f"valid.{side}").read_bytes())
    loss = Transformer.loss

    def poisoned(self, src, tgt, **how):
        value = loss(self, src, tgt, **how)
        return value * math.nan if self.training and src.shape[1] > 26 else value

    monkeypatch.setattr(Transformer, "loss", poisoned)
    run(tmp_path, tmp_path / "whole")
    skipped = [entry for entry in metrics(tmp_path / "whole") if entry["kind"] == "skipped"]
    assert skipped and all("lines " in e["examples"] and " 8" in f" {e['examples']}" for e in skipped)
    assert all("; " not in entry["examples"] for entry in skipped)  # only the micro-batch with that line
    with crash_after(8):
        run(tmp_path, tmp_path / "run")
    run(tmp_path, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_full_disk_stops_with_one_line_and_leaves_the_last_checkpoint(text, tmp_path, monkeypatch):
    fsync = os.fsync

    def full(descriptor):
        if (tmp_path / "run" / "checkpoints" / "step-6").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run")
    assert "No space left" in one_line(error) and "try freeing space, then --resume" in one_line(error)
    monkeypatch.undo()
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    reports = [line for line in log.splitlines() if "space on the disk" in line]
    assert "training continues; the next attempt" in reports[0]
    assert not any("; try " in line for line in reports)  # the user need not do anything
    assert load_checkpoint(RunFolder(tmp_path / "run").step_paths()[-1]).state["step"] == 6
    run(text, tmp_path / "run", resume=True)


def test_a_run_folder_is_not_overwritten_and_resume_requires_one(text, uninterrupted, tmp_path):
    before = outcome(uninterrupted)
    with pytest.raises(UserError) as error:
        run(text, uninterrupted)
    assert "--resume" in one_line(error) and outcome(uninterrupted) == before
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", resume=True)
    assert "or no --resume" in one_line(error) and not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("x")
    for resume in (False, True):
        with pytest.raises(UserError):
            run(text, tmp_path / "file", resume=resume)
    (tmp_path / "empty").mkdir()
    assert run(text, tmp_path / "empty", max_steps=1).step == 1


def test_resuming_before_the_first_checkpoint_starts_over(text, uninterrupted, tmp_path):
    with crash_after(1):
        run(text, tmp_path / "run")
    run(text, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


@pytest.mark.parametrize(
    "change", [("train", "seed", 5), ("train", "batch_tokens", 70), ("model", "d_ff", 32), ("data", "vocab_size", 300)]
)
def test_a_resumed_run_keeps_its_configuration(text, uninterrupted, change):
    table, key, value = change
    changed = tables(text)
    changed[table][key] = value
    before = outcome(uninterrupted)
    with pytest.raises(UserError) as error:
        train(RunConfig.from_dict(changed), uninterrupted, resume=True, progress=False)
    assert f"{table}.{key}" in one_line(error) and outcome(uninterrupted) == before


def test_a_resumed_run_accepts_moved_text_and_rejects_other_text(text, tmp_path):
    out = tmp_path / "run"
    run(text, out, max_steps=3)
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in text.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert run(moved, out, resume=True, max_steps=4).step == 4
    write_pairs(moved, "train", 40, seed=9)
    with pytest.raises(UserError) as error:
        run(moved, out, resume=True, max_steps=5)
    assert "text" in one_line(error)
    assert run(text, out, resume=True, max_steps=5).step == 5


def test_a_damaged_newest_checkpoint_is_reported_and_the_previous_one_used(text, uninterrupted, tmp_path):
    out = tmp_path / "run"
    run(text, out)
    newest = RunFolder(out).step_paths()[-1]
    (newest / "optimizer.safetensors").write_bytes(b"")
    run(text, out, resume=True)
    log = (out / "log.txt").read_text(encoding="utf-8")
    assert f"{newest / 'optimizer.safetensors'}: damaged checkpoint" in log and "resuming from" in log
    assert outcome(out) == outcome(uninterrupted)
    assert sorted(os.listdir(out / "checkpoints")) == sorted(os.listdir(uninterrupted / "checkpoints"))
    for path in RunFolder(out).step_paths():
        (path / "state.json").write_text("{}")
    with pytest.raises(UserError) as error:
        run(text, out, resume=True)
    assert "damaged checkpoint" in one_line(error)


@pytest.mark.parametrize("wrong", ["missing", "unequal", "utf-8", "empty", "valid", "side", "positions", "length"])
def test_bad_input_gives_one_line_and_writes_nothing(text, tmp_path, wrong):
    folder, out = tmp_path / "text", tmp_path / "run"
    folder.mkdir()
    for file in text.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    changed = tables(folder)
    if wrong == "missing":
        (folder / "train.de").unlink()
    elif wrong == "unequal":
        (folder / "train.de").write_text("eins\n")
    elif wrong == "utf-8":
        (folder / "valid.en").write_bytes(b"one\ntwo\n\xff\nfour\nfive\n")
    elif wrong == "empty":
        (folder / "train.en").write_bytes(b"")
    elif wrong == "valid":
        changed["data"]["valid_tgt"] = ""
    elif wrong == "side":
        changed["data"]["train_src"] = ""
    elif wrong == "positions":
        changed["model"] |= {"positions": "learned", "max_positions": 32}
    elif wrong == "length":
        changed["data"]["max_length"] = 2  # shorter than every pair
    with pytest.raises(UserError) as error:
        train(RunConfig.from_dict(changed), out, progress=False)
    named = {"missing": "train.de", "unequal": "40", "utf-8": "line 3", "empty": "train.en", "valid": "valid_tgt"}
    named |= {"side": "train_src", "positions": "max_positions", "length": "max_length"}
    assert named[wrong] in one_line(error)
    assert not out.exists()


def test_gradient_checkpointing_of_experts_is_rejected(text, tmp_path):
    values = tables(text)
    values["model"]["n_experts"], values["train"]["gradient_checkpointing"] = 2, True
    key = "gradient_checkpointing"
    with pytest.raises(UserError, match=f"^train.{key}: expected false for a model with experts; got true; try "):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
