"""Resuming a run that has nothing left to do, and continuing one that stopped early."""

import shutil

import pytest

from tests.helpers.trainings import crash_after, metrics, outcome, run
from tests.train.test_trainer import scripted
from train.cli import main
from train.run.folder import RunFolder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("max_steps", [12, 9, 1])
@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_run_with_no_step_left_stays_unchanged(uninterrupted, tmp_path, capfd, max_steps, options):
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out)
    before = contents(out)
    assert main(["train", "--resume", "--out", str(out), f"--set=train.max_steps={max_steps}", *options]) == 0
    err = capfd.readouterr().err
    end = f"step 12 is beyond train.max_steps = {max_steps}" if max_steps < 12 else "ended after step 12"
    assert err.count("step 12") == 1, "one line says that the run has no step left"
    changed = "; config.toml keeps its train.max_steps" if max_steps < 12 else ""
    advice = "to continue, try --set train.max_steps=N with N > 12"
    assert f"{out}: nothing left to do: {end}; {advice}{changed}\n" in err
    assert contents(out) == before


@pytest.mark.parametrize(
    "setting, ends_early",
    [("keep_best=2", True), ("keep_best=2", False), ("keep_last=1", True), ("best_metric=bleu", False)],
)
def test_a_finished_run_keeps_its_checkpoints_and_says_that_no_key_changes(
    text, tmp_path, monkeypatch, capfd, setting, ends_early
):
    out = tmp_path / "run"
    name = setting.partition("=")[0]
    losses = [5, 4, 3, *range(4, 13)] if ends_early else range(12, 0, -1)
    scripted(monkeypatch, [*map(float, losses)])
    options = {"validate_every": 1, "checkpoint_every": 1, "keep_best": 4, "best_metric": "loss"}
    assert run(text, out, **options, patience=2 if ends_early else 0).step == (5 if ends_early else 12)
    before = contents(out)
    assert len({path.parent.name for path in before if path.parent.name.startswith("best-")}) == 4
    assert main(["train", "--resume", "--out", str(out), f"--set=train.{setting}"]) == 0
    err = capfd.readouterr().err
    assert f"; config.toml keeps its train.{name}\n" in err and "is now" not in err
    assert contents(out) == before


def test_a_complete_run_gets_the_metric_files_that_it_lacks(uninterrupted, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(uninterrupted, out)
    before = contents(out)
    for _ in range(2):
        assert main(["train", "--resume", "--out", str(out), "--set=train.csv=true", "--quiet"]) == 0
        lines = (out / "metrics.csv").read_text().splitlines()
        assert len(lines) == 1 + len(metrics(out))
    assert {path: content for path, content in contents(out).items() if path.name != "metrics.csv"} == before


def test_the_summary_of_a_complete_run_is_that_of_the_run(text, tmp_path):
    first = run(text, tmp_path / "run", max_steps=5)
    resumed = run(text, tmp_path / "run", resume=True, max_steps=5)
    assert resumed == first and first.scores  # step 5 is not a multiple of validate_every


def test_a_final_validation_that_was_lost_is_repeated(text, tmp_path, uninterrupted):
    """The process may be killed between the last checkpoint and the final validation."""
    out = tmp_path / "run"
    run(text, out, max_steps=5)
    entries = metrics(out)
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert run(text, out, resume=True, max_steps=5).valid_loss
    assert metrics(out) == entries


@pytest.mark.parametrize("patience", [0, 4])
def test_a_run_that_stopped_early_says_how_it_continues_and_does(text, tmp_path, monkeypatch, capfd, patience):
    out = tmp_path / "run"
    scripted(monkeypatch, [5, 6, 7])
    assert run(text, out, validate_every=1, patience=2).step == 3
    advice = "--set train.patience=0 (or more than 2)"
    log = (out / "log.txt").read_text()
    assert f"2 validations without a better loss than after step 1; to continue, try --resume {advice}" in log
    before = contents(out)
    assert main(["train", "--resume", "--out", str(out)]) == 0
    assert (
        f"nothing left to do: stopped early after step 3 of 12; to continue, try {advice}\n" in capfd.readouterr().err
    )
    assert contents(out) == before
    assert main(["info", str(out)]) == 0 and " in 3 of 12 updates\n" in capfd.readouterr().out
    scripted(monkeypatch, [8, 9, *range(20, 30)])
    assert main(["train", "--resume", "--out", str(out), f"--set=train.patience={patience}"]) == 0
    assert RunFolder(out).step_paths()[-1].name == ("step-5" if patience else "step-12")


def test_continuing_after_early_stopping_equals_not_stopping(text, tmp_path, monkeypatch):
    losses = [5.0, *range(6, 17)]
    for name, patience in (("a", 0), ("b", 2)):
        scripted(monkeypatch, losses)
        run(text, tmp_path / name, validate_every=1, patience=patience)
    scripted(monkeypatch, losses[3:])
    run(text, tmp_path / "b", resume=True, validate_every=1, patience=0)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


@pytest.mark.parametrize(("changes", "last"), [({"max_steps": 5}, 5), ({"patience": 1, "validate_every": 2}, 4)])
def test_the_checkpoint_of_a_finished_run_counts_for_keep_last(text, tmp_path, monkeypatch, changes, last):
    """Training that continues removes this checkpoint only once there are keep_last newer ones."""
    out = tmp_path / "run"
    names = []
    scripted(monkeypatch, [3.0, 4.0, *range(2, -9, -1)])
    assert run(text, out, **changes).step == last
    for max_steps in (7, 10, 12):
        run(text, out, resume=True, max_steps=max_steps)
        names.append([path.name.removeprefix("step-") for path in RunFolder(out).step_paths()])
    assert names == [[str(last), "6", "7"], ["7", "9", "10"], ["9", "10", "12"]]


def test_a_run_without_a_checkpoint_starts_at_its_first_step(text, tmp_path, capfd):
    with crash_after(2):
        run(text, tmp_path / "run")
    capfd.readouterr()
    run(text, tmp_path / "run", resume=True)
    assert f"{tmp_path}/run: there is no checkpoint, so training starts at step 1\n" in capfd.readouterr().err


def test_a_configuration_given_again_leaves_the_other_keys_of_the_run(text, tmp_path, monkeypatch, capfd):
    """Keys that were set on the command line, such as those that keep the best checkpoints, are not reset."""
    scripted(monkeypatch, [9.0, 8.0, 7.0, 6.0, 5.0])
    out, file = tmp_path / "run", tmp_path / "my.toml"
    file.write_text(
        "[model]\nd_model = 12\nd_ff = 16\nn_heads = 3\nn_layers = 1\n[data]\nvocab_size = 290\n"
        "[train]\nbatch_tokens = 60\nwarmup_steps = 6\nvalidate_every = 1\nmax_steps = 3\n"
    )
    texts = [
        f"--{part}-{side}={text}/{part}.{language}"
        for part in ("train", "valid")
        for side, language in (("src", "en"), ("tgt", "de"))
    ]
    settings = ["seed=3", "keep_best=2", "best_metric=loss", "validate_score=false", "peak_lr=0.01"]
    assert main(["train", str(file), *texts, *(f"--set=train.{setting}" for setting in settings), f"--out={out}"]) == 0
    before = RunFolder(out).load_config()
    capfd.readouterr()
    assert main(["train", str(file), "--resume", f"--out={out}", "--set=train.max_steps=4"]) == 0
    assert "changed since the last start: train.max_steps = 4\n" in capfd.readouterr().err
    assert before.changed_keys(RunFolder(out).load_config()) == ["train.max_steps"]
    assert [path.name for path in RunFolder(out).ranked_paths()] == ["best-3", "best-4"]
    assert main(["train", "--resume", f"--out={out}", "--set=train.max_steps=5", "--set=train.keep_best=1"]) == 0
    assert "keep_best = 1 do not keep best-3, best-4; removing them\n" in capfd.readouterr().err
    file.write_text("[model]\nn_heads = 3\n[train]\nfreeze = ''\n")  # 3 heads do not fit the default d_model
    assert main(["train", str(file), "--resume", f"--out={out}"]) == 0
    file.write_text("[train]\nnonsense = ''\n")
    assert main(["train", str(file), "--resume", f"--out={out}"]) == 2
    assert "nonsense" in capfd.readouterr().err
