"""A stop at any moment: by a signal, --max-hours, a full disk, or checkpoints that are damaged or cannot be removed."""

import errno
import os
import shutil
import signal
import time

import numpy as np
import pytest

from tests.helpers.trainings import config, metrics, outcome, run
from tests.train.test_system_errors import fail
from train import RunConfig, Trainer, UserError, train
from train.files import WriteError
from train.learn import checkpointer
from train.learn.checkpointer import Checkpointer
from train.learn.training import check_best_metric
from train.learn.update import Updater
from train.learn.validation import Validator
from train.run import storage
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.tasks import TASKS


def names(out):
    return [path.name for path in RunFolder(out).step_paths()]


def newest_state(out):
    return load_checkpoint(RunFolder(out).step_paths()[-1]).state["run"]


@pytest.fixture
def clock(monkeypatch):
    """A list with the number of seconds by which time.monotonic() is ahead."""
    ahead, monotonic = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead[0])
    return ahead


def call_before(monkeypatch, owner, name, action):
    """Call `action` with the arguments of a method before each of its calls."""
    method = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: (action(*arguments), method(*arguments))[1])


def interrupt(*arguments):
    os.kill(os.getpid(), signal.SIGINT)


# ---- damaged checkpoints


@pytest.fixture
def damaged(copied):
    """A run whose newest checkpoint, step-12, has a wrong bit in its weights; state.json is intact."""
    file = copied / "checkpoints" / "step-12" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 4
    file.write_bytes(content)
    return copied


def test_a_run_that_ends_before_its_damaged_checkpoint_keeps_its_new_one(text, damaged):
    assert run(text, damaged, resume=True, max_steps=11, keep_last=1).checkpoint.is_dir()
    assert names(damaged) == ["step-11", "step-12"]
    assert run(text, damaged, resume=True, max_steps=11, keep_last=1).step == 11


def test_a_run_that_is_often_interrupted_passes_its_damaged_checkpoint(text, damaged, uninterrupted, monkeypatch):
    for step in (10, 11):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            call_before(patch, Trainer, "_run_update", interrupt)
            run(text, damaged, resume=True)
        assert load_checkpoint(RunFolder(damaged).step_path(step)).state["step"] == step
    run(text, damaged, resume=True)
    assert outcome(damaged) == outcome(uninterrupted) and names(damaged) == names(uninterrupted)


# ---- stops


def skip_update(monkeypatch, step, action):
    """Make the loss of update `step` NaN when it is first tried, and call `action` during this attempt."""
    compute_gradient, skipped = Updater.compute_gradient, []

    def compute(self, batches, n, share):
        result = compute_gradient(self, batches, n, share)
        if n == step and not skipped:
            skipped.append(n)
            action()
            return np.nan, np.nan
        return result

    monkeypatch.setattr(Updater, "compute_gradient", compute)


@pytest.mark.parametrize("reason", ["signal", "max_hours"])
def test_a_stop_during_a_skipped_update_writes_a_checkpoint(text, tmp_path, monkeypatch, clock, reason):
    with monkeypatch.context() as patch:
        skip_update(patch, 8, lambda: None)
        run(text, tmp_path / "whole")
    with monkeypatch.context() as patch:
        if reason == "signal":
            skip_update(patch, 8, interrupt)
            with pytest.raises(KeyboardInterrupt, match="the newest checkpoint is .*/step-7$"):
                run(text, tmp_path / "run")
        else:
            skip_update(patch, 8, lambda: clock.append(clock.pop() + 7200.0))
            summary = train(config(text), tmp_path / "run", progress=False, max_hours=1)
            assert (summary.stop_reason, summary.checkpoint.name) == ("max_hours", "step-7")
    assert newest_state(tmp_path / "run")["all_skipped"] == 1
    run(text, tmp_path / "run", resume=True)
    assert [entry["in_a_row"] for entry in metrics(tmp_path / "run") if entry["kind"] == "skipped"] == [1]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_deadline_that_passes_just_before_the_next_update_stops_with_a_checkpoint(text, tmp_path, monkeypatch, clock):
    def pass_deadline(self, *arguments):
        clock[0] += 7200.0

    call_before(monkeypatch, Checkpointer, "is_due", pass_deadline)
    summary = train(config(text), tmp_path / "run", progress=False, max_hours=1)
    assert (summary.step, summary.stop_reason, names(tmp_path / "run")) == (1, "max_hours", ["step-1"])


def test_a_second_interruption_of_a_validation_does_not_lose_it(text, uninterrupted, tmp_path, monkeypatch):
    out = tmp_path / "run"
    for resume in (False, True, True):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            call_before(patch, Validator, "measure", interrupt)
            run(text, out, resume=resume)
        state = newest_state(out)
        assert (state["step"], state["validated"]) == (4, 0) and metrics(out) == []
    run(text, out, resume=True)
    assert outcome(out) == outcome(uninterrupted)


def test_max_hours_includes_the_next_validation(text, uninterrupted, tmp_path, monkeypatch, clock):
    """The duration of the first validation is unknown, so a checkpoint is written before it."""
    out, validations = tmp_path / "run", []

    def validate(self, signals):
        validations.append(names(out)[-1])
        clock[0] += 3000.0

    def update(self):
        clock[0] += 1000.0

    with monkeypatch.context() as patch:
        call_before(patch, Validator, "measure", validate)
        call_before(patch, Trainer, "_run_update", update)
        summary = train(config(text), out, progress=False, max_hours=13500 / 3600)
    assert (summary.stop_reason, summary.step, validations) == ("max_hours", 8, ["step-4"])
    assert (newest_state(out)["step"], newest_state(out)["validated"]) == (8, 4)
    run(text, out, resume=True)
    assert outcome(out) == outcome(uninterrupted) and names(out) == names(uninterrupted)


def test_a_checkpoint_is_written_before_the_last_validation_of_a_run_with_a_deadline(text, tmp_path, monkeypatch):
    validations = []
    call_before(monkeypatch, Validator, "measure", lambda *arguments: validations.append(names(tmp_path / "run")[-1]))
    train(config(text), tmp_path / "run", progress=False, max_hours=1)
    assert validations[-1] == "step-12"


# ---- disks


def test_a_full_disk_is_tried_once_a_minute_even_if_checkpoints_are_due_by_time(text, tmp_path, monkeypatch, clock):
    tries = []

    def full(content):
        tries.append(content["step"])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def pass_time(self):
        clock[0] += 25.0

    monkeypatch.setattr(storage, "sealed_json", full)
    call_before(monkeypatch, Trainer, "_run_update", pass_time)
    with pytest.raises(UserError, match="No space left on device"):
        run(text, tmp_path / "run", checkpoint_minutes=1e-6)
    assert tries == [1, 4, 7, 10, 12]


@pytest.mark.parametrize("part", ["best", "best-2"])
def test_best_weights_that_cannot_be_written_are_not_recorded_as_the_best(text, tmp_path, monkeypatch, part):
    losses, write = iter([5.0, 3.0, 4.0, 6.0]), checkpointer.write_folder
    failed = []

    def measure(self, signals):
        self.last_result = {"loss": next(losses), "perplexity": 1.0, "seconds": 0.0}
        return self.last_result

    def write_once(target, files, state):
        if target.name == part and state["step"] == 2 and not failed:
            failed.append(target)
            raise WriteError(f"{target}: expected space on the disk; got 'No space left'")
        write(target, files, state)

    monkeypatch.setattr(Validator, "measure", measure)
    monkeypatch.setattr(checkpointer, "write_folder", write_once)
    keys = {"validate_every": 1, "max_steps": 4, "best_metric": "loss", "keep_best": 2}
    assert run(text, tmp_path / "run", **keys).best_step == 3 and failed
    folder = RunFolder(tmp_path / "run")
    assert load_checkpoint(folder.best_path).state["step"] == 3
    assert [path.name for path in folder.ranked_paths()] == ["best-1", "best-3"]


@pytest.mark.parametrize("call", ["replace", "rmtree"])
def test_a_checkpoint_that_cannot_be_removed_does_not_stop_training(text, tmp_path, monkeypatch, capfd, call):
    out, losses = tmp_path / "run", iter(range(20, 0, -1))
    path = out / "checkpoints"

    def measure(self, signals):
        self.last_result = {"loss": float(next(losses)), "perplexity": 1.0, "seconds": 0.0}
        return self.last_result

    monkeypatch.setattr(Validator, "measure", measure)
    if call == "replace":
        fail(monkeypatch, os, call, errno.EACCES, lambda old, new: old in (path / "step-3", path / "best-1"))
    else:
        fail(
            monkeypatch,
            shutil,
            call,
            errno.EACCES,
            lambda old, *_: old.endswith(("step-3.old.partial", "best-1.old.partial")),
        )
    keys = {"validate_every": 1, "checkpoint_every": 1, "best_metric": "loss", "keep_best": 2}
    for max_steps in (8, 9):
        assert run(text, out, resume=max_steps > 8, max_steps=max_steps, **keys).step == max_steps
    log, shown = (out / "log.txt").read_text(encoding="utf-8"), capfd.readouterr().err
    for name in ("step-3", "best-1"):
        warning = f"warning: {path / name} cannot be removed (Permission denied); training continues\n"
        assert log.count(warning) == shown.count(warning) == (2 if call == "replace" else 1)
        assert (path / name).exists() == (call == "replace")
    assert {"step-7", "step-8", "step-9"} <= {*names(out)} <= {"step-3", "step-7", "step-8", "step-9"}


@pytest.mark.parametrize("task", ["parsing", "classification"])
def test_the_score_that_selects_by_default_must_be_measured(task):
    """Otherwise, worse weights could replace checkpoints/best after validate_score has been false for a while."""
    tables = {"data": {"task": task}, "train": {"validate_score": False}}
    metric = TASKS[task].selection_metric
    with pytest.raises(UserError, match=f"train.validate_score: expected true, because {metric} selects the best ch"):
        check_best_metric(RunConfig.from_dict(tables), TASKS[task], {"train": (), "valid": ()})
    check_best_metric(RunConfig.from_dict(tables), TASKS[task], {"train": ()})
    tables["train"]["best_metric"] = "loss"
    check_best_metric(RunConfig.from_dict(tables), TASKS[task], {"train": (), "valid": ()})
