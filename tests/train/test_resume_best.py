"""Best checkpoints of a run that was killed after a validation and resumed from an earlier checkpoint."""

import json
import shutil

import pytest

from tests.helpers.trainings import crash_after, outcome, run
from tests.train.test_selection import scripted
from train import average_checkpoints, load_model
from train.cli import main
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder, step_of

# The validation after step 6 is the best one, and the next checkpoint after step 4 is that of step 8.
KEYS = {"validate_every": 2, "checkpoint_every": 4, "max_steps": 8, "best_metric": "loss", "keep_best": 2}
LOSSES = [7.0, 5.0, 4.0, 3.0]


@pytest.fixture
def killed(text, tmp_path, monkeypatch):
    """Return a function that trains until a kill after step 6.

    Its arguments are the losses of the resumed run's validations."""

    def start(*resumed, **changes):
        scripted(monkeypatch, [(loss, 0.0) for loss in LOSSES])
        with crash_after(7):
            run(text, tmp_path / "run", **KEYS | changes)
        scripted(monkeypatch, [(loss, 0.0) for loss in resumed])
        return tmp_path / "run"

    return start


def contents(out):
    """Return the steps of checkpoints/best and of the folders best-N."""
    folders = RunFolder(out)
    best = load_checkpoint(folders.best_path).state["step"] if folders.best_path.exists() else 0
    return best, [step_of(path) for path in folders.ranked_paths()]


def weights(path):
    return {name: array.tobytes() for name, array in load_checkpoint(path).weights.items()}


@pytest.mark.parametrize("keep_best", [1, 2])
def test_with_other_settings_the_best_weights_are_those_of_the_resumed_run(text, killed, capfd, keep_best):
    """No validation of the resumed run is better than that of step 4, whose weights checkpoints/best must have."""
    out = killed(9.0, 8.0, keep_best=keep_best)
    assert contents(out) == (6, [4, 6] if keep_best == 2 else [])
    summary = run(text, out, resume=True, **KEYS | {"lr_scale": 8.0, "keep_best": keep_best})
    assert summary.best_step == 4 and contents(out) == (4, [4, 8] if keep_best == 2 else [])
    assert weights(RunFolder(out).best_path) == weights(RunFolder(out).step_path(4))
    assert "have been replaced" not in capfd.readouterr().err
    ranking = load_checkpoint(RunFolder(out).step_path(8)).state["run"]["ranking"]
    assert sorted(map(int, ranking)) == contents(out)[1], "every step of the ranking has a folder"
    assert main(["info", str(out)]) == 0
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines() if "  checkpoints/best" in line] == ["4"]


@pytest.mark.parametrize("keep_best", [1, 2])
@pytest.mark.parametrize("max_steps", [4, 5])  # with 4, there is no update left
def test_best_weights_of_a_step_that_is_not_repeated_are_kept(text, killed, keep_best, max_steps):
    out = killed(5.5, keep_best=keep_best)
    later = weights(RunFolder(out).best_path)
    assert run(text, out, resume=True, **KEYS | {"max_steps": max_steps, "keep_best": keep_best}).best_step == 4
    assert contents(out) == (4, [4, 6] if keep_best == 2 else [6])
    assert later == weights(RunFolder(out).ranked_path(6))


@pytest.mark.parametrize("keep_best", [1, 2])
def test_the_same_settings_lead_to_the_same_best_weights(text, killed, tmp_path, monkeypatch, capfd, keep_best):
    keys = KEYS | {"keep_best": keep_best}
    scripted(monkeypatch, [(loss, 0.0) for loss in LOSSES])
    run(text, tmp_path / "uninterrupted", **keys)
    out = killed(*LOSSES[2:], keep_best=keep_best)
    capfd.readouterr()
    run(text, out, resume=True, **keys)
    assert "warning" not in capfd.readouterr().err
    assert outcome(out) == outcome(tmp_path / "uninterrupted")
    assert contents(out) == contents(tmp_path / "uninterrupted") == (8, [6, 8] if keep_best == 2 else [])


def test_lost_best_weights_do_not_count(text, killed, capfd):
    """The weights of step 4 existed only in checkpoints/best and in a checkpoint that is lost."""
    out = killed(9.0, keep_best=1, keep_last=9, checkpoint_every=1)
    for step in (4, 6):
        shutil.rmtree(RunFolder(out).step_path(step))
    summary = run(text, out, resume=True, **KEYS | {"max_steps": 6, "keep_best": 1})
    assert summary.best_step == 6 and contents(out) == (6, [])
    message = "the weights of step 4, the best up to step 5, have been replaced; the next validation counts as the best"
    assert f"warning: {message} so far\n" in capfd.readouterr().err


def test_best_weights_of_a_validation_that_is_repeated_give_no_warning(text, tmp_path, monkeypatch, capfd):
    """The process was killed between its first validation and its first checkpoint."""
    keys = KEYS | {"checkpoint_every": 100}
    scripted(monkeypatch, [(7.0, 0.0)])
    with crash_after(3):
        run(text, tmp_path / "run", **keys)
    assert contents(tmp_path / "run") == (2, [2])
    scripted(monkeypatch, [(7.0, 0.0), (9.0, 0.0)])
    run(text, tmp_path / "run", resume=True, **keys | {"max_steps": 4})
    assert "removing" not in capfd.readouterr().err and contents(tmp_path / "run") == (2, [2, 4])


@pytest.mark.parametrize("is_best", [False, True])
def test_an_average_of_weights_that_have_been_replaced_is_older(text, tmp_path, monkeypatch, recwarn, is_best):
    """A repeated step counts as newer only if its weights differ."""
    keys = {"validate_every": 2, "max_steps": 6, "best_metric": "loss", "keep_best": 3, "log_every": 1}
    scripted(monkeypatch, [(loss, 0.0) for loss in (3.0, *[2.0, 1.0] * 3)])
    run(text, out := tmp_path / "run", **keys)
    average_checkpoints(out, None if is_best else 2, best=is_best)
    for scale, expected in ((1.0, 0), (0.01, 1)):
        shutil.rmtree(RunFolder(out).step_path(6))
        run(text, out, resume=True, **keys | {"lr_scale": scale})
        load_model(out)
        assert len(recwarn.list) == expected
    name = ("best-6", "step-6")[not is_best]
    assert f"averaged is older than {name}; try" in str(recwarn.list[0].message)


def test_the_entries_of_later_steps_are_dropped_from_all_copies(text, killed):
    out = killed(csv=True, log_every=1)
    assert run(text, out, resume=True, **KEYS | {"max_steps": 4, "csv": True, "log_every": 1}).step == 4
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert max(entry["step"] for entry in entries) == 4
    assert len((out / "metrics.csv").read_text().splitlines()) == 1 + len(entries)


def test_a_metric_that_was_unset_for_a_while_finds_its_best_weights(text, tmp_path, monkeypatch):
    """While best_metric is unset, checkpoints/best is not replaced, and the best step is that of the loss."""
    keys = {"validate_every": 2, "checkpoint_every": 2, "keep_last": 1, "validate_score": True}
    metric = {"best_metric": "bleu"}
    scripted(monkeypatch, [(5.0, 10.0), (4.0, 30.0), (3.5, 20.0), (2.0, 20.0), (2.8, 20.0), (2.5, 10.0)])
    run(text, tmp_path / "run", max_steps=4, **keys, **metric)
    run(text, tmp_path / "run", resume=True, max_steps=12, **keys)
    scripted(monkeypatch, [(2.4, 22.0)])
    with crash_after(13):
        run(text, tmp_path / "run", resume=True, max_steps=14, **keys, **metric)
    assert contents(tmp_path / "run") == (4, [])
    assert run(text, tmp_path / "run", resume=True, max_steps=14, **keys, **metric).best_step == 4
    assert contents(tmp_path / "run") == (4, [])


def test_a_run_that_is_killed_twice_ends_with_best_weights(text, tmp_path, monkeypatch):
    keys = {"validate_every": 2, "checkpoint_every": 4, "keep_last": 1, "max_steps": 16, "best_metric": "loss"}
    scripted(monkeypatch, [(loss, 0.0) for loss in (7.0, 6.0, 5.0, 6.0, 4.0)])
    with crash_after(11):  # the newest checkpoint is that of step 8, and step 6 exists only in its state
        run(text, tmp_path / "run", **keys)
    with crash_after(9):
        run(text, tmp_path / "run", resume=True, lr_scale=8.0, **keys)
    scripted(monkeypatch, [(loss, 0.0) for loss in (9.0, 8.5, 8.0, 9.5)])
    assert run(text, tmp_path / "run", resume=True, lr_scale=8.0, **keys).best_step == 14
    assert contents(tmp_path / "run") == (14, [])
