"""The weights that a training run selects: best checkpoints by any metric, early stopping, and the moving average."""

import csv
import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from models import Transformer, TransformerConfig
from tests.helpers.trainings import metrics, one_line, outcome, rewrite, run, tables
from train import RunConfig, UserError, load_model, train
from train.cli import main
from train.errors import plural
from train.learn.signals import Signals
from train.learn.training import check_best_metric
from train.learn.update import Updater
from train.learn.validation import Validator
from train.run.average import average_checkpoints
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.run.keys import TrainSection
from train.run.report import SilentReport
from train.run.state import RunState
from train.tasks import TASKS
from train.tasks.translation import best_translations
from train.text.corpus import PairCorpus


def scripted(monkeypatch, results):
    """Make validations return these (loss, BLEU) pairs instead of measuring them."""
    remaining = iter(results)

    def measure(self, signals):
        loss, bleu = next(remaining)
        self.last_result = {"loss": loss, "perplexity": np.exp(loss), "bleu": bleu, "seconds": 0.0}
        return self.last_result

    monkeypatch.setattr(Validator, "measure", measure)


def newest(out):
    return load_checkpoint(RunFolder(out).step_paths()[-1])


# ---- best checkpoints and early stopping


RESULTS = [(5.0, 10.0), (4.0, 30.0), (3.0, 20.0), (3.5, 30.0), (2.0, 5.0), (2.5, 25.0)]


@pytest.mark.parametrize(
    ("metric", "keep", "patience", "stop", "best", "kept"),
    [
        ("bleu", 1, 0, 6, 2, []),
        ("bleu", 3, 0, 6, 2, [2, 4, 6]),  # if scores are equal, the earlier one is better
        ("bleu", 2, 2, 4, 2, [2, 4]),
        ("loss", 2, 0, 6, 5, [5, 6]),
        ("loss", 9, 1, 4, 3, [1, 2, 3, 4]),
    ],
)
def test_the_metric_selects_checkpoints_and_stops(
    text, tmp_path, monkeypatch, metric, keep, patience, stop, best, kept
):
    out = tmp_path / "run"
    scripted(monkeypatch, RESULTS)
    keys = {"validate_every": 1, "max_steps": 6, "best_metric": metric, "keep_best": keep, "patience": patience}
    summary = run(text, out, **keys)
    assert (summary.step, summary.best_step) == (stop, best)
    assert sorted(int(path.name.removeprefix("best-")) for path in RunFolder(out).ranked_paths()) == kept
    assert load_checkpoint(RunFolder(out).best_path).state["step"] == best
    stopped = f"early stopping: {plural(patience, 'validation')} without a better {metric} than after step {best}"
    assert (stopped in (out / "log.txt").read_text(encoding="utf-8")) == (stop < 6)
    for step in kept:
        assert load_checkpoint(RunFolder(out).ranked_path(step)).state["step"] == step


def test_without_a_metric_no_best_checkpoint_is_written(uninterrupted):
    assert not RunFolder(uninterrupted).best_path.exists() and not RunFolder(uninterrupted).ranked_paths()


def test_selection_survives_a_stop(text, tmp_path):
    keys = {"validate_every": 2, "best_metric": "loss", "keep_best": 2}
    run(text, tmp_path / "a", **keys)
    run(text, tmp_path / "b", **keys, max_steps=5)
    (tmp_path / "b" / "checkpoints" / "best-7").mkdir()  # from a killed run, before it resumed
    run(text, tmp_path / "b", resume=True, **keys)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b", 5)
    names = [path.name for path in RunFolder(tmp_path / "a").ranked_paths()]
    assert names == [path.name for path in RunFolder(tmp_path / "b").ranked_paths()] and len(names) == 2
    for name in (*names, "best"):
        a, b = (load_checkpoint(tmp_path / run / "checkpoints" / name).weights for run in "ab")
        assert all(a[key].tobytes() == b[key].tobytes() for key in a)
    for keep, last, n_left in ((1, 12, 2), (1, 13, 0)):  # a run that makes no further update is left unchanged
        run(text, tmp_path / "b", resume=True, **keys | {"keep_best": keep}, max_steps=last)
        assert len(RunFolder(tmp_path / "b").ranked_paths()) == n_left


@pytest.mark.parametrize("last", [4.0, 6.0])
def test_a_last_validation_that_is_best_but_not_saved_is_reported(text, tmp_path, monkeypatch, capsys, last):
    scripted(monkeypatch, [(5.0, 10.0), (last, 10.0)])
    run(text, tmp_path / "run", validate_every=2, max_steps=3, best_metric="loss")
    line = "the validation after step 3 has the best loss, but checkpoints/best keeps step 2"
    hint = f"to use step 3, name {tmp_path / 'run' / 'checkpoints' / 'step-3'} instead of the run"
    shown = capsys.readouterr().err
    assert (line in shown) == (hint in shown) == (last < 5)


def test_a_run_without_best_weights_names_the_step_of_the_first_ones(text, tmp_path, capsys):
    """A run without best_metric records the step of its best validation, but saves no best weights."""
    line = "; try a smaller train.validate_every, or --resume until step 4\n"
    run(text, tmp_path / "new", max_steps=1, validate_every=4, best_metric="loss")
    reason = "checkpoints/best is missing, because only validations at multiples of train.validate_every = 4 count"
    assert reason + line in capsys.readouterr().err
    out = tmp_path / "resumed"
    run(text, out, max_steps=2, validate_every=2)
    assert "best" not in capsys.readouterr().err
    run(text, out, resume=True, max_steps=3, validate_every=2, best_metric="chrf")
    shown = capsys.readouterr().err
    assert line in shown and "keeps" not in shown and not RunFolder(out).best_path.exists()
    run(text, out, resume=True, max_steps=5, validate_every=2, best_metric="chrf")
    assert RunFolder(out).best_path.exists() and "is missing" not in capsys.readouterr().err
    shutil.rmtree(RunFolder(out).best_path)  # by hand
    run(text, out, resume=True, max_steps=7, validate_every=4, best_metric="chrf")
    assert line.replace("step 4", "step 8") in capsys.readouterr().err


def test_the_best_checkpoints_are_averaged(text, tmp_path, monkeypatch, capsys, recwarn):
    scripted(monkeypatch, RESULTS)
    out = tmp_path / "run"
    run(text, out, validate_every=1, max_steps=6, best_metric="bleu", keep_best=2)
    parts = [load_checkpoint(path).weights for path in RunFolder(out).ranked_paths()]
    assert main(["average", str(out), "--best", "--last", "2"]) == 2
    assert "--last cannot be combined with --best; try" in capsys.readouterr().err
    assert main(["average", str(out), "--best"]) == 0
    assert capsys.readouterr().err.endswith("now use this average instead of checkpoints/best\n")
    mean = load_checkpoint(RunFolder(out).averaged_path)
    assert mean.state["averaged_steps"] == [2, 4]
    for name, array in mean.weights.items():
        np.testing.assert_allclose(array, (parts[0][name].astype(float) + parts[1][name]) / 2, rtol=1e-6)
    load_model(out)
    assert not recwarn.list  # step 6 is not in the average, and need not be
    capsys.readouterr()
    assert main(["info", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "averaged, best, best-2, best-4; commands load averaged\n" in shown and "30.00  checkpoints/best" in shown


@pytest.mark.parametrize("version", ["this", "an earlier one"])
def test_a_resumed_run_has_the_validation_text_of_its_ranking(text, tmp_path, version):
    out = tmp_path / "run"
    data = shutil.copytree(text, tmp_path / "text")
    options = {"best_metric": "loss", "keep_best": 2, "validate_every": 2}
    run(data, out, max_steps=4, **options)
    if version != "this":  # its checkpoints lack the hash
        for path in RunFolder(out).step_paths():
            rewrite(path, lambda state: state.pop("valid_sha256"))
        run(data, out, resume=True, max_steps=5, **options)
    without = tables(data, max_steps=6)
    without["data"] |= {"valid_src": "", "valid_tgt": ""}
    without["train"]["patience"] = 0
    train(RunConfig.from_dict(without), out, resume=True, progress=False)  # does not lose the hash
    lines = {file: file.read_text() for file in data.glob("valid.*")}
    for file, content in lines.items():
        file.write_text(content.partition("\n")[2])
    before = {path: path.read_bytes() for path in (out / "checkpoints").rglob("*") if path.is_file()}
    for max_steps in (6, 8):
        with pytest.raises(
            UserError, match="expected the validation text of .*step-6; got a text with a different SHA"
        ):
            run(data, out, resume=True, max_steps=max_steps, **options)
    assert before == {path: path.read_bytes() for path in (out / "checkpoints").rglob("*") if path.is_file()}
    for file, content in lines.items():
        file.write_text(content)
    assert run(data, out, resume=True, max_steps=8, **options).step == 8


def test_a_run_may_get_its_first_validation_text_when_it_resumes(text, tmp_path):
    without = tables(text, max_steps=4, patience=0)
    without["data"] |= {"valid_src": "", "valid_tgt": ""}
    train(RunConfig.from_dict(without), tmp_path / "run", progress=False)
    assert run(text, tmp_path / "run", resume=True, max_steps=8, validate_every=2).best_step == 8


def test_the_name_of_a_best_checkpoint_is_its_step(text, tmp_path, monkeypatch, capsys):
    """No checkpoint therefore counts twice in an average. A folder that a kill left hidden is included."""
    scripted(monkeypatch, RESULTS)
    out = tmp_path / "run"
    run(text, out, validate_every=1, max_steps=6, best_metric="bleu", keep_best=2)
    folder = out / "checkpoints"
    shutil.copytree(folder / "best-2", folder / "best-02")
    (folder / "best-2").rename(folder / ".best-2.replaced")
    os.symlink("missing", folder / ".averaged.replaced")
    os.symlink("missing", folder / "averaged")
    for _ in range(2):  # the second average replaces the first one
        assert load_checkpoint(average_checkpoints(out, best=True)).state["averaged_steps"] == [2, 4]
        os.symlink("missing", folder / ".averaged.replaced")
    for original, copy in (("best-4", "best-3"), (".best-2.replaced", ".best-5.replaced")):
        shutil.copytree(folder / original, folder / copy)
        with pytest.raises(UserError, match=f"expected the state of best-{min(set(copy) & set('35'))}; got the state"):
            average_checkpoints(out, best=True)
        shutil.rmtree(folder / copy)


def test_more_best_checkpoints_include_the_one_from_before(text, tmp_path, monkeypatch, capsys):
    """checkpoints/best is copied to best-1 before a better validation can replace it."""
    scripted(monkeypatch, [(5.0, 30.0), (4.0, 20.0), (3.0, 10.0), (3.0, 40.0)])
    out = tmp_path / "run"
    run(text, out, validate_every=1, max_steps=1, best_metric="bleu")
    weights = load_checkpoint(RunFolder(out).best_path).weights
    run(text, out, resume=True, max_steps=3, validate_every=1, best_metric="bleu", keep_best=2)
    assert main(["average", str(out), "--best"]) == 0
    assert load_checkpoint(RunFolder(out).averaged_path).state["averaged_steps"] == [1, 2]
    run(text, out, resume=True, max_steps=4, validate_every=1, best_metric="bleu", keep_best=2)
    copied = load_checkpoint(RunFolder(out).ranked_path(1)).weights
    assert all(copied[name].tobytes() == weights[name].tobytes() for name in weights)
    capsys.readouterr()
    with pytest.warns(UserWarning, match="the loaded .*averaged is older than best-4; try .*/best instead"):
        load_model(out)
    assert main(["average", str(out), "--best"]) == 0
    assert "averaged the weights after steps 1, 4\n" in capsys.readouterr().err


def test_a_damaged_best_checkpoint_does_not_stop_a_resumed_run(text, tmp_path, capsys):
    out = tmp_path / "run"
    run(text, out, validate_every=1, max_steps=1, best_metric="loss")
    file = RunFolder(out).best_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    run(text, out, resume=True, validate_every=1, max_steps=2, best_metric="loss", keep_best=2)
    assert "; training continues; best-1 is not saved\n" in capsys.readouterr().err
    assert [path.name for path in RunFolder(out).ranked_paths()] == ["best-2"]


def test_every_validation_measures_bleu_and_chrf_and_either_selects(text, uninterrupted, tmp_path, capfd):
    summary = run(text, tmp_path / "run", validate_every=4, best_metric="chrf", csv=True)
    validations = [entry for entry in metrics(tmp_path / "run") if entry["kind"] == "valid"]
    best = max(validations, key=lambda entry: (entry["chrf"], -entry["step"]))
    assert 0 < best["chrf"] <= 100 and summary.best_step == best["step"]
    model, tokenizer, _ = load_model(RunFolder(tmp_path / "run").best_path)
    references = (text / "valid.de").read_text(encoding="utf-8").splitlines()
    lines = (text / "valid.en").read_text(encoding="utf-8").splitlines()
    hypotheses = best_translations(model, tokenizer, lines, beam_size=1, max_extra_tokens=10)
    assert CHRF().corpus_score(hypotheses, [references]).score == pytest.approx(best["chrf"], abs=1e-9)
    for out in (tmp_path / "run", uninterrupted):
        assert all("chrf" in entry and "bleu" in entry for entry in metrics(out) if entry["kind"] == "valid")
        assert main(["info", str(out)]) == 0 and "BLEU   chrF" in capfd.readouterr().out
        assert all(name in (out / "log.txt").read_text(encoding="utf-8") for name in ("  BLEU ", "  chrF "))
    rows = [*csv.DictReader((tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8").splitlines())]
    assert [float(row["chrf"]) for row in rows if row["kind"] == "valid"] == [entry["chrf"] for entry in validations]


@pytest.mark.parametrize("is_earlier_version", [False, True])
def test_a_resumed_run_may_select_by_another_metric(text, tmp_path, monkeypatch, is_earlier_version):
    """The best weights are kept until a validation is better by the new metric, even in a run of an earlier version."""
    out = tmp_path / "run"
    keys = {"validate_every": 1, "keep_best": 2, "patience": 2}
    scripted(monkeypatch, [(5.0, 10.0), (4.0, 30.0), (3.0, 20.0), (3.5, 25.0), (3.2, 5.0), (2.5, 1.0)])
    assert run(text, out, **keys, max_steps=6, best_metric="bleu").step == 4  # early stopping
    if is_earlier_version:
        rewrite(
            RunFolder(out).step_paths()[-1],
            lambda state: (state.pop("best_metric"), state["config"].update({"train.best_metric": "bleu"})),
        )
    assert run(text, out, resume=True, **keys, max_steps=6, best_metric="loss").best_step == 6
    change = (
        "warning: train.best_metric is now loss instead of bleu: checkpoints/best keeps step 2, loss 4, until a "
        "validation is better; the count for train.patience restarts here"
    )
    assert change in (out / "log.txt").read_text(encoding="utf-8")
    assert load_checkpoint(RunFolder(out).best_path).state["step"] == 6
    assert [path.name for path in RunFolder(out).ranked_paths()] == ["best-5", "best-6"]


def test_of_two_scores_of_zero_the_lower_loss_is_better():
    state = RunState()
    better = []
    for loss, score in ((6.0, 0.0), (5.9, 0.0), (5.9, 0.0), (5.8, 0.1), (5.7, 0.1)):
        state.step += 1
        better.append(state.add_validation(loss, score))
    assert better == [True, True, False, True, False] and state.best_step == 4


def test_scores_of_zero_are_ranked_by_loss(text, tmp_path, monkeypatch):
    scripted(monkeypatch, [(6.7, 0.0), (6.6, 0.0), (6.5, 0.0)])
    run(text, tmp_path / "run", validate_every=1, max_steps=3, best_metric="bleu", keep_best=2)
    assert [path.name for path in RunFolder(tmp_path / "run").ranked_paths()] == ["best-2", "best-3"]


def test_averaging_the_best_needs_two(uninterrupted):
    with pytest.raises(UserError) as error:
        average_checkpoints(uninterrupted, best=True)
    assert one_line(error).startswith("average: expected at least 2 checkpoints best-N in ")
    advice = "--resume with train.best_metric, train.keep_best of 2 or more, and more validations"
    assert one_line(error).endswith(f"; got 0; try {advice}")


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"best_metric": "f1"}, "expected loss or bleu or chrf for the task translation; got f1; try "),
        ({"best_metric": "bleu", "validate_score": False}, "train.validate_score: expected true"),
        ({"keep_best": 2}, "train.best_metric: expected loss or bleu or chrf; got keep_best = 2 without a metric"),
    ],
)
def test_selections_that_cannot_work_are_rejected(text, tmp_path, keys, part):
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", **keys)
    assert part in one_line(error) and not (tmp_path / "run").exists()


def test_patience_needs_validations(text, tmp_path):
    values = tables(text)
    values["data"] |= {"valid_src": "", "valid_tgt": ""}
    with pytest.raises(UserError) as error:
        train(RunConfig.from_dict(values), tmp_path / "a", progress=False)
    assert "train.patience: expected a validation text on which to measure the loss; got no file" in one_line(error)
    assert str(error.value).endswith("try --valid-src F, or train.patience = 0") and not (tmp_path / "a").exists()
    values["train"]["patience"] = 0
    assert train(RunConfig.from_dict(values), tmp_path / "a", progress=False).step == 12
    for patience, too_late in ((1, False), (2, True)):
        run(text, tmp_path / str(patience), max_steps=9, validate_every=4, patience=patience)
        log = (tmp_path / str(patience) / "log.txt").read_text(encoding="utf-8")
        warning = f"warning: train.patience = {patience} cannot stop this training of 9 steps, because it needs valid"
        assert (warning in log) == too_late


def test_a_missing_validation_text_is_named_by_the_option_of_the_task():
    for task, option in (
        ("translation", "--valid-src F"),
        ("parsing", "--valid-trees F"),
        ("language", "--valid-text F"),
    ):
        config = RunConfig.from_dict({"data": {"task": task}, "train": {"best_metric": "loss"}})
        with pytest.raises(UserError, match=f"try {option}$"):
            check_best_metric(config, TASKS[task], {"train": ()})


@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.0, 1.0, 2.0])), max_size=9),
    st.integers(1, 4),
    st.booleans(),
)
def test_the_ranking_and_the_best_checkpoint_follow_one_comparison(values, keep, by_loss):
    """The ranking equals repeated selection of the best validation, so its first entry is checkpoints/best."""
    state = RunState()
    values = [(loss, None if by_loss else score) for loss, score in values]
    for state.step, value in enumerate(values, 1):
        is_ranked = state.insert_into_ranking(*value, keep)
        assert is_ranked == (str(state.step) in state.ranking)
    remaining = dict(enumerate(values, 1))
    order = {}
    while remaining and len(order) < keep:
        best = RunState()
        for best.step, value in remaining.items():
            best.add_validation(*value)
        order[str(best.best_step)] = [*remaining.pop(best.best_step)]
    assert [*state.ranking.items()] == [*order.items()]


@pytest.mark.parametrize("by_loss", [False, True])
def test_a_ranking_of_an_earlier_version_is_continued(by_loss):
    """Earlier versions stored one number for each step, the score or the loss."""
    content = RunState(step=4, valid_step=4).to_json() | {"ranking": {"2": 1.0, "1": 3.0} if by_loss else {"1": 3.0}}
    state = RunState.read(content, 4)
    state.step = 5
    assert state.insert_into_ranking(2.0, None if by_loss else 2.0, 2) and [*state.ranking] == (
        ["2", "5"] if by_loss else ["1", "5"]
    )
    assert RunState.read(state.to_json() | {"validated": 5}, 5).ranking == state.ranking


@pytest.mark.parametrize(
    "ranking",
    [[], {"x": 1.0}, {"5": 1.0}, {"3": "1"}, {"-1": 1.0}, {"4": []}, {"4": [1.0]}, {"4": [None, 1.0]}, {"4": [1, 1]}],
)
def test_an_invalid_ranking_is_rejected(ranking):
    content = RunState(step=4, valid_step=4).to_json()
    for valid in ([1.0, 2.0], [1.0, None]):
        assert RunState.read(content | {"ranking": {"4": valid}}, 4).ranking == {"4": valid}
    with pytest.raises(ValueError, match="run.ranking: expected"):
        RunState.read(content | {"ranking": ranking}, 4)


# ---- the moving average of the weights


DECAY = 0.6


@pytest.fixture(scope="module")
def averaged(text, tmp_path_factory):
    """A run with a moving average, and the weights after each of its updates."""
    out = tmp_path_factory.mktemp("averaged") / "run"
    history = []
    apply_gradient = Updater.apply_gradient

    def recorded(self, lr, norm):
        apply_gradient(self, lr, norm)
        history.append(self.flat.data.copy())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "apply_gradient", recorded)
        run(text, out, ema_decay=DECAY)
    return out, history


def test_checkpoints_hold_the_average_and_training_is_unchanged(averaged, uninterrupted):
    (out, history), plain = averaged, newest(uninterrupted)
    checkpoint = newest(out)
    assert all(checkpoint.optimizer_arrays[name].tobytes() == plain.optimizer_arrays[name].tobytes() for name in "mv")
    trained = np.concatenate([plain.weights[name].reshape(-1) for name in shapes(out)])
    assert checkpoint.optimizer_arrays["weights"].tobytes() == trained.tobytes() == history[-1].tobytes()
    average = history[0].astype(float) * 0
    for n, weights in enumerate(history, 1):  # the initialization has nearly no weight after 12 updates
        d = min(DECAY, (1 + n) / (10 + n))
        average = d * average + (1 - d) * weights
    flat = np.concatenate([checkpoint.weights[name].reshape(-1) for name in shapes(out)])
    forgotten = np.prod([min(DECAY, (1 + n) / (10 + n)) for n in range(1, 13)])
    np.testing.assert_allclose(flat, average, atol=1e-6 + forgotten * 2)
    assert abs(flat - trained).max() > 1e-3


def shapes(out):
    """Return the names of parameters in the order of the flat buffer."""
    return [name for name, _ in load_model(out)[0].named_parameters()]


def test_validations_and_commands_use_the_average(averaged):
    out, _ = averaged
    log = (out / "log.txt").read_text(encoding="utf-8")
    assert f"validations and checkpoints use the moving average of the weights (train.ema_decay = {DECAY})" in log
    model, tokenizer, config = load_model(out)
    corpus = PairCorpus.open(out / "data" / "valid")
    measured = Validator(TASKS["translation"], model, tokenizer, corpus, config).measure(Signals())
    assert metrics(out)[-1]["loss"] == pytest.approx(measured["loss"], rel=1e-6)


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_the_average_replaces_the_weights_of_computations_for_a_while(precision):
    model = Transformer(TransformerConfig(vocab_size=11, d_model=4, d_ff=6, n_heads=2, n_layers=1), 1)
    updater = Updater(
        TASKS["translation"], model, TrainSection(precision=precision, ema_decay=DECAY), SilentReport(RunFolder(""), 1)
    )
    for step in range(1, 4):
        updater.flat.flatten_grad()[...] = step % 2 - 0.5
        updater.apply_gradient(0.1, 1.0)
    flat = updater.flat
    average = updater.average.values.copy()
    before = flat.data.copy(), [p.data.copy() for p in flat.parameters]
    with updater.use_average():
        assert flat.data.tobytes() == average.tobytes() != before[0].tobytes()
        for p, span in zip(flat.parameters, flat.spans.values(), strict=True):
            assert p.data.tobytes() == average[span].astype(p.data.dtype).tobytes()
    assert flat.data.tobytes() == before[0].tobytes() and updater.average.values.tobytes() == average.tobytes()
    assert [p.data.tobytes() for p in flat.parameters] == [data.tobytes() for data in before[1]]


@pytest.mark.parametrize("stop", [1, 7])
def test_a_moving_average_resumes_bit_for_bit(averaged, text, tmp_path, stop):
    run(text, tmp_path / "run", ema_decay=DECAY, max_steps=stop)
    run(text, tmp_path / "run", ema_decay=DECAY, resume=True)
    assert outcome(tmp_path / "run", stop) == outcome(averaged[0])


def test_a_resumed_run_keeps_its_decay(averaged, text):
    with pytest.raises(UserError, match="resume: train.ema_decay: expected 0.6"):
        run(text, averaged[0], resume=True)


def test_info_counts_the_memory_of_the_average(averaged, uninterrupted, capsys):
    lines = []
    for out in (averaged[0], uninterrupted):
        assert main(["info", str(out)]) == 0
        lines += [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory")]
    n = load_model(uninterrupted)[0].n_parameters() * 4 / 2**10
    for line, copies, rest in zip(lines, (5, 4), (f", moving average {n:,.0f}", ""), strict=True):
        parts = f"parameters {n:,.0f}, gradients {n:,.0f}, Adam {2 * n:,.0f}{rest}"
        assert line == f"memory       {copies * n:,.0f} KiB: {parts}; activations not included"
