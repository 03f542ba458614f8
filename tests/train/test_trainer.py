"""Laws of the training loop: a resumed run equals an uninterrupted one, and micro-batches equal one large batch."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd import checkpoint
from models import Transformer, TransformerConfig
from models.search import greedy_search
from tests import ROOT
from tests.helpers.trainings import config, crash_after, metrics, outcome, run, tables
from train import Adam, NoamSchedule, RunConfig, Trainer, load_model, train
from train.cli import main
from train.cli.info import last_update
from train.learn.update import Updater
from train.learn.validation import Validator
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.text.batches import Batches
from train.text.corpus import PairCorpus

# ---- stopping and resuming


def test_a_killed_process_resumes_to_the_same_bits(text, uninterrupted, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tests.helpers.killed_training", json.dumps(tables(text)), str(out), "8"]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120)
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert [path.name for path in RunFolder(out).step_paths()] == ["step-3", "step-6"]
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')  # what a kill in the middle of a line leaves
    (out / "checkpoints" / ".step-9.partial").mkdir()
    run(text, out, resume=True)
    assert outcome(out) == outcome(uninterrupted)
    assert sorted(os.listdir(out / "checkpoints")) == sorted(os.listdir(uninterrupted / "checkpoints"))


@pytest.mark.parametrize("step", [1, 4, 5, 9, 12])
def test_a_crash_at_any_step_resumes_to_the_same_bits(text, uninterrupted, tmp_path, step):
    with crash_after(step):
        run(text, tmp_path / "run")
    run(text, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


def test_a_finished_run_has_logged_and_validated_its_last_step(text, tmp_path):
    out = tmp_path / "run"
    summary = run(text, out, max_steps=7)
    assert (summary.step, summary.stop_reason) == (7, "max_steps")
    last_entry = metrics(out)[-1]
    assert last_entry["kind"] == "valid" and last_entry["step"] == 7
    folder = RunFolder(out)
    shown = last_update(folder, folder.metrics())  # by `info`: step 7, although only every fifth step is logged
    state = load_checkpoint(summary.checkpoint).state["run"]
    assert (shown["step"], shown["tokens"]) == (7, summary.tokens)
    assert shown["loss"] == state["window_loss"] / state["window_targets"]


def test_resuming_a_finished_run_changes_nothing(text, tmp_path):
    out = tmp_path / "run"
    summary = run(text, out, max_steps=7)
    metrics_before = metrics(out)
    resumed = run(text, out, resume=True, max_steps=7)
    assert resumed.valid_loss == summary.valid_loss and metrics(out) == metrics_before


def test_extending_a_finished_run_equals_a_longer_run(text, tmp_path, uninterrupted):
    out = tmp_path / "run"
    run(text, out, max_steps=7)
    of_step_7 = [entry for entry in metrics(out) if entry["step"] == 7]
    assert [entry["kind"] for entry in of_step_7] == ["train", "valid"]
    run(text, out, resume=True)
    assert outcome(out, 7) == outcome(uninterrupted)
    assert [entry for entry in metrics(out) if entry["step"] == 7] == of_step_7
    run(text, out, resume=True)
    assert [entry["step"] for entry in metrics(out)] == [4, 5, 7, 7, 8, 10, 12, 12]


def test_gradient_checkpointing_may_change_between_resumes(text, tmp_path, uninterrupted, monkeypatch):
    calls = []
    monkeypatch.setattr("models.module.checkpoint", lambda f, *xs: calls.append(f) or checkpoint(f, *xs))
    for steps, is_checkpointing in ((4, False), (9, True), (12, False)):
        run(text, tmp_path / "run", resume=steps > 4, max_steps=steps, gradient_checkpointing=is_checkpointing)
        assert bool(calls) == is_checkpointing
        calls.clear()
    assert outcome(tmp_path / "run", 4, 9) == outcome(uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("step", [5, 8])
def test_ctrl_c_writes_a_checkpoint_and_resumes_to_the_same_bits(
    text, uninterrupted, tmp_path, monkeypatch, capfd, number, step
):
    update = Trainer._run_update
    before = signal.getsignal(number)

    def interrupted(self):
        if self.state.step + 1 == step:
            os.kill(os.getpid(), number)
        return update(self)

    monkeypatch.setattr(Trainer, "_run_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "run")
    monkeypatch.undo()
    assert signal.getsignal(number) is before
    assert load_checkpoint(RunFolder(tmp_path / "run").step_paths()[-1]).state["step"] == step  # the step was completed
    assert f"after step {step}" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    run(text, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


def interrupt_validations(monkeypatch):
    """Make each validation begin with Ctrl-C."""
    measure = Validator.measure

    def interrupted(self, signals):
        os.kill(os.getpid(), signal.SIGINT)
        return measure(self, signals)

    monkeypatch.setattr(Validator, "measure", interrupted)


def test_ctrl_c_during_the_last_validation_is_logged(text, tmp_path, monkeypatch):
    interrupt_validations(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "run", max_steps=2)
    (checkpoint,) = RunFolder(tmp_path / "run").step_paths()
    end = f"stopped by a signal after step 2; the newest checkpoint is {checkpoint}\n"
    assert (tmp_path / "run" / "log.txt").read_text(encoding="utf-8").endswith(end)


def test_ctrl_c_during_a_validation_repeats_it_on_resuming(text, uninterrupted, tmp_path, monkeypatch, capfd):
    interrupt_validations(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "run")
    monkeypatch.undo()
    state = load_checkpoint(RunFolder(tmp_path / "run").step_paths()[-1]).state["run"]
    assert (state["step"], state["validated"]) == (4, 0) and metrics(tmp_path / "run") == []
    run(text, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


def test_a_second_ctrl_c_stops_at_once(text, tmp_path, monkeypatch, capfd):
    def twice(self):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("training continued")

    monkeypatch.setattr(Trainer, "_run_update", twice)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "run")
    assert not RunFolder(tmp_path / "run").step_paths()
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 130
    assert capfd.readouterr().err.endswith("\ninterrupted; continue with --resume\n")


def test_the_same_seed_and_text_give_the_same_run(text, uninterrupted, tmp_path):
    run(text, tmp_path / "same")
    assert outcome(tmp_path / "same") == outcome(uninterrupted)
    for name in ("tokenizer.json", "config.toml", "checkpoints/step-12/model.safetensors"):
        assert (tmp_path / "same" / name).read_bytes() == (uninterrupted / name).read_bytes()
    run(text, tmp_path / "other", seed=2)
    assert outcome(tmp_path / "other")[0] != outcome(uninterrupted)[0]


# ---- updates


@settings(max_examples=10, deadline=None)
@given(cuts=st.sets(st.integers(1, 7), max_size=3), smoothing=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 99))
def test_micro_batches_are_one_batch_of_their_union(text, cuts, smoothing, seed):
    rng = np.random.default_rng(seed)
    pairs = [tuple(rng.integers(4, 20, size=rng.integers(1, 6)).tolist() for _ in range(2)) for _ in range(8)]
    corpus = PairCorpus.from_pairs(pairs)
    batches = Batches(corpus, 1000)
    shape = TransformerConfig(vocab_size=20, d_model=8, d_ff=16, n_heads=2, n_layers=1, dropout=0.0)
    union = batches.batch(np.arange(8))
    parts = [batches.batch(indices) for indices in np.split(np.arange(8), sorted(cuts))]
    total = sum(part.n_targets for part in parts)
    assert total == union.n_targets == sum(len(tgt) + 1 for _, tgt in pairs)
    gradients = []
    for micro in ([union], parts):
        model = Transformer(shape, seed=seed, dtype=np.float64)
        run_config = config(text, label_smoothing=smoothing, precision="float64")
        trainer = Trainer(model, run_config, None, {"train": corpus}, "nowhere", progress=False)
        updater = trainer.updater
        gradients.append((updater.compute_gradient(micro, step=1)[0], updater.flat.flatten_grad().copy()))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-12)
    np.testing.assert_allclose(gradients[1][1], gradients[0][1], rtol=1e-9, atol=1e-14)
    assert np.abs(gradients[0][1]).max() > 1e-3


@pytest.mark.parametrize("gradient_accumulation_steps", [1, 3])
def test_the_schedule_advances_once_per_update(text, tmp_path, monkeypatch, gradient_accumulation_steps):
    rates = []
    step = Adam.step
    monkeypatch.setattr(Adam, "step", lambda self, lr, scale: (rates.append(lr), step(self, lr, scale))[1])
    run(text, tmp_path / "run", gradient_accumulation_steps=gradient_accumulation_steps, lr_scale=0.5)
    schedule = NoamSchedule(8, 6, 0.5)
    assert rates == [schedule(step) for step in range(1, 13)]


def test_float64_stays_float64(text, tmp_path):
    run(text, tmp_path / "run", max_steps=2, precision="float64")
    saved = load_checkpoint(RunFolder(tmp_path / "run").step_paths()[-1])
    assert {array.dtype for array in (saved.weights | saved.optimizer_arrays).values()} == {np.dtype(np.float64)}
    assert all(np.array_equal(v, saved.weights[k]) for k, v in load_model(tmp_path / "run")[0].state_dict().items())


def test_every_pair_is_trained_on_once_per_epoch(text, tmp_path, monkeypatch):
    seen = []
    batch = Batches.batch

    def watched(self, indices):
        if self.seed == 7:  # the batches of the training run, not of the validation
            seen.extend(indices.tolist())
        return batch(self, indices)

    monkeypatch.setattr(Batches, "batch", watched)
    run(text, tmp_path / "run", seed=7, gradient_accumulation_steps=1)
    assert len(seen) > 40 and sorted(seen[:40]) == list(range(40))


def test_ten_sentences_can_be_memorized(tmp_path):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 3)) for _ in range(12)]
    for side in ("en", "de"):  # the sides are independent, so the pairs must be memorized
        rows = [" ".join(rng.choice(words, rng.integers(3, 7))) for _ in range(10)]
        for name in ("train", "valid"):
            (tmp_path / f"{name}.{side}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    changes = {"max_steps": 120, "warmup_steps": 20, "lr_scale": 0.2, "validate_every": 120, "checkpoint_every": 120}
    changed = tables(tmp_path, **changes, batch_tokens=1000, gradient_accumulation_steps=1, label_smoothing=0.0)
    changed["model"] |= {"d_model": 32, "d_ff": 64, "dropout": 0.0}
    summary = train(RunConfig.from_dict(changed), tmp_path / "run", progress=False)
    assert summary.scores["bleu"] == pytest.approx(100.0) and summary.perplexity < 1.1
    model, tokenizer, _ = load_model(tmp_path / "run")
    source, target = ((tmp_path / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    for line, expected in zip(source, target, strict=True):
        best = greedy_search(model, np.array([[*tokenizer.encode(line), 2]]))
        assert tokenizer.decode(best[0].tokens) == expected


# ---- validation, early stopping, output


def test_validation_is_plain_cross_entropy_without_dropout(uninterrupted):
    model, _, run_config = load_model(uninterrupted)
    assert run_config.train.label_smoothing == 0.1
    corpus = PairCorpus.open(uninterrupted / "data" / "valid")
    total, count = 0.0, 0
    for i in range(len(corpus)):
        src, tgt = corpus.pair(i)
        logits = model(np.array([[*src, 2]]), np.array([[1, *tgt]])).data[0].astype(np.float64)
        for row, token in zip(logits, [*tgt, 2], strict=True):
            total += math.log(np.exp(row).sum()) - row[token]
            count += 1
    last = [entry for entry in metrics(uninterrupted) if entry["kind"] == "valid"][-1]
    assert last["step"] == 12 and last["loss"] == pytest.approx(total / count, rel=1e-5)
    assert last["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


def scripted(monkeypatch, losses):
    """Replace the results of validations by these losses, in order."""
    values = iter(losses)

    def measure(self, signals):
        self.last_result = {"loss": next(values), "perplexity": 1.0, "seconds": 0.0}
        return self.last_result

    monkeypatch.setattr(Validator, "measure", measure)


@pytest.mark.parametrize(("perplexity", "shown"), [(1.075, "1.07"), (123456.789, "123456.79"), (1e300, "1e+300")])
def test_a_huge_perplexity_is_logged_with_few_digits(text, tmp_path, monkeypatch, perplexity, shown):
    result = {"loss": 1.0, "perplexity": perplexity, "seconds": 0.0}
    monkeypatch.setattr(Validator, "measure", lambda self, signals: result)
    run(text, tmp_path / "run", max_steps=1)
    assert f"loss 1.0000  perplexity {shown}  " in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("patience", "losses", "stop", "best"),
    [
        (2, [5, 4, 4, 3, 3.5, 3, 1, 1], 6, 4),  # an equal loss is not better
        (1, [5, 6, 1], 2, 1),
        (0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 12, 1),  # never
        (3, [9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 1], 12, 9),
    ],
)
def test_patience_counts_validations_without_a_better_loss(text, tmp_path, monkeypatch, patience, losses, stop, best):
    scripted(monkeypatch, losses)
    summary = run(text, tmp_path / "run", validate_every=1, patience=patience)
    assert (summary.step, summary.best_step) == (stop, best)
    assert summary.stop_reason == ("max_steps" if stop == 12 else "patience")
    assert load_checkpoint(summary.checkpoint).state["step"] == stop


def test_patience_survives_a_stop_and_can_be_changed(text, tmp_path, monkeypatch):
    out = tmp_path / "run"
    scripted(monkeypatch, [5, 6])
    run(text, out, validate_every=1, patience=3, max_steps=2)
    scripted(monkeypatch, [6, 6, 6, 6])
    assert run(text, out, resume=True, validate_every=1, patience=3).step == 4
    scripted(monkeypatch, [4])
    summary = run(text, out, resume=True, validate_every=1, patience=4, max_steps=5)
    assert (summary.step, summary.best_step, summary.stop_reason) == (5, 5, "max_steps")


def test_metrics_and_log_record_the_run(text, uninterrupted):
    entries = [json.loads(line) for line in (uninterrupted / "metrics.jsonl").read_text().splitlines()]
    assert [(e["kind"], e["step"]) for e in entries] == [
        *[("valid", 4), ("train", 5), ("valid", 8), ("train", 10), ("train", 12), ("valid", 12)],
    ]
    schedule = NoamSchedule(8, 6)
    for entry in entries:
        keys = {"train": ["lr", "tokens_per_second", "gradient_norm"], "valid": ["perplexity", "bleu"]}[entry["kind"]]
        assert all(math.isfinite(entry[k]) for k in ["epoch", "loss", "tokens", "seconds", *keys]) and entry["time"]
        if entry["kind"] == "train":
            assert entry["lr"] == schedule(entry["step"])
    assert [e["tokens"] for e in entries] == sorted(e["tokens"] for e in entries)
    log = (uninterrupted / "log.txt").read_text(encoding="utf-8")
    assert "40 pairs read, 40 kept" in log and "0 with an empty side" in log and "validation after step 8" in log


def test_the_logged_loss_is_the_mean_over_the_target_tokens_since_the_last_line(text, tmp_path, monkeypatch):
    gradient = Updater.compute_gradient
    updates = []

    def watched(self, micro, step, share):
        result = gradient(self, micro, step, share)
        updates.append((result[0], sum(batch.n_targets for batch in micro)))
        return result

    monkeypatch.setattr(Updater, "compute_gradient", watched)
    run(text, tmp_path / "run")
    logged = [entry["loss"] for entry in metrics(tmp_path / "run") if entry["kind"] == "train"]
    expected = [
        sum(x * n for x, n in part) / sum(n for _, n in part) for part in (updates[:5], updates[5:10], updates[10:])
    ]
    assert logged == pytest.approx(expected, rel=1e-12)


def test_skipped_pairs_are_in_the_log(text, tmp_path):
    for side in ("en", "de"):
        lines = (text / f"train.{side}").read_text(encoding="utf-8").splitlines()
        lines[3] = "" if side == "en" else lines[3]
        lines[5] = " ".join([lines[5]] * 50) if side == "de" else lines[5]
        (tmp_path / f"train.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (tmp_path / f"valid.{side}").write_bytes((text / f"valid.{side}").read_bytes())
    changed = tables(tmp_path, max_steps=1)
    changed["data"]["max_length"] = 30
    train(RunConfig.from_dict(changed), tmp_path / "run", progress=False)
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert "40 pairs read, 38 kept" in log and "1 with an empty side, 1 longer than 30 tokens" in log


def test_progress_is_plain_lines_without_a_terminal(text, tmp_path, capsys):
    train(config(text, max_steps=5), tmp_path / "run", progress=True)
    shown = capsys.readouterr()
    assert "step 5/5" in shown.err and "tokens/s" in shown.err and " left" in shown.err and "\x1b" not in shown.err
    assert shown.out == ""


def test_a_loss_far_above_that_of_uniform_probabilities_is_reported_once(text, tmp_path, capfd):
    for out, peak_lr in ((tmp_path / "a", 1e5), (tmp_path / "b", 1e-3)):
        run(text, out, peak_lr=peak_lr, warmup_steps=1, log_every=1, clip_norm=0.0, max_steps=8, validate_score=False)
    logs = [(out / "log.txt").read_text() for out in (tmp_path / "a", tmp_path / "b")]
    assert [log.count("times that of uniform probabilities") for log in logs] == [1, 0]
    assert "; try train.peak_lr=0.0056, a larger train.warmup_steps" in logs[0]
    assert "times that of uniform probabilities (5.67); try" in capfd.readouterr().err  # even without progress


def test_a_start_reports_dropped_pairs_and_a_smaller_vocabulary(text, tmp_path, capsys):
    changed = tables(text, max_steps=1)
    changed["data"] |= {"vocab_size": 5000, "valid_src": changed["data"]["train_src"]}
    changed["data"] |= {"valid_tgt": changed["data"]["train_tgt"]}
    for max_length in (2, 3, 9):
        changed["data"]["max_length"] = max_length
        out = tmp_path / str(max_length)
        train(RunConfig.from_dict(changed), out, progress=False)
        kept = PairCorpus.open(out / "data" / "train")
        assert kept.meta["pairs"]["read"] == 40 and (len(kept) < 20) == (max_length == 2)
        log = (out / "log.txt").read_text(encoding="utf-8")
        size = f"{load_model(out)[1].vocab_size:,} subwords"
        assert f"{size} (data.vocab_size = 5,000, but the training text yields no more)" in log
        assert "training text yields" not in capsys.readouterr().err
        warning = (
            f"{text}/train.en, {text}/train.de: {40 - len(kept)} of 40 examples are left out, because they are longer "
            "than data.max_length = 2 tokens; try a larger data.max_length"
        )
        assert log.count(warning) == (2 if max_length == 2 else 0)
