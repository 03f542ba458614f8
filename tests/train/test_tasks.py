"""Tasks: their declarations, and a user-defined task that works with trainer, configuration and commands."""

import os
from dataclasses import dataclass, fields

import numpy as np
import pytest

from models import ARCHITECTURES
from models.fields import key
from tests.helpers.trainings import tables, write_pairs
from train import RunConfig, UserError, load_model, train
from train.cli import main
from train.cli.train import task_options
from train.run.checkpoint import load_checkpoint
from train.run.keys import SECTIONS, data_section
from train.tasks import TASKS, Task
from train.tasks.task import option, task
from train.text.lines import read_lines


@pytest.mark.parametrize("name", TASKS)
def test_a_task_declares_its_keys_files_and_models(name):
    declared = TASKS[name]
    keys = {f.name: f for f in fields(declared.key_class)}
    assert declared.name == name and declared.key_class.__doc__ and declared.tokenizers
    assert any(kind.data_kind == declared.data_kind for kind in ARCHITECTURES.values())
    assert {"train", "valid"} == declared.file_keys.keys()
    assert {n for names in declared.file_keys.values() for n in names} <= keys.keys()
    assert all(len(f.metadata["help"]) > 15 and option(n) in f.metadata["help"] for n, f in keys.items())
    assert {f.name for f in fields(RunConfig().data)} > keys.keys()
    assert {p.name for p in task_options()} >= keys.keys()


def test_a_task_name_cannot_be_registered_twice():
    with pytest.raises(
        ValueError, match="task: expected an unused name; got 'translation', which is already registered"
    ):
        task(type("Again", (Task,), {"name": "translation"}))


@dataclass(frozen=True)
class CopyKeys:
    """Copy a line."""

    copied: str = key("", "Training text: a sentence a line. Option: --copied.", may_change=True)
    valid_copied: str = key("", "Validation text. Option: --valid-copied.", may_change=True)


@dataclass
class CopyBatch:
    """Padded rows of ids with BOS and EOS."""

    ids: np.ndarray

    @property
    def n_targets(self):
        return int((self.ids[:, 1:] != 0).sum())

    n_tokens = n_targets

    @property
    def shape(self):
        return self.ids.shape

    def describe(self):
        return "{} lines of {} tokens".format(*self.ids.shape)

    def halves(self):
        return [self]


class CopyCorpus(list):
    """Lines of ids."""

    digest = None

    def describe(self):
        return f"{len(self)} lines"


class CopyBatches:
    """One batch per line, in order."""

    def __init__(self, corpus):
        self.corpus = corpus

    def epoch_batches(self, epoch):
        return [np.array([i]) for i in range(len(self.corpus))]

    def token_counts(self, indices):
        return self.batch(indices).n_targets, self.batch(indices).n_tokens

    def batch(self, indices):
        return CopyBatch(np.array([[1, *self.corpus[i], 2] for i in indices], np.int32))


class Copying(Task):
    """A task with one side, as a user would add it."""

    name = "copying"
    key_class = CopyKeys
    data_kind = "pairs"
    file_keys = {"train": ("copied",), "valid": ("valid_copied",)}
    scores = {"lines": "lines"}

    def prepare(self, files, tokenizer, out_dir, max_length, on_progress):
        return CopyCorpus(tokenizer.encode(line) for chunk in read_lines(*files) for line in chunk)

    def training_batches(self, corpus, config, tokenizer, order_version):
        return CopyBatches(corpus)

    def validation_batches(self, corpus, batch_tokens):
        batches = CopyBatches(corpus)
        return ((indices, batches.batch(indices)) for indices in batches.epoch_batches(0))

    def loss_inputs(self, batch):
        return batch.ids[:, 1:], batch.ids

    def evaluation(self, config, tokenizer, corpus):
        return Lines()


class Lines:
    def __init__(self):
        self.seen = []

    def add(self, model, indices, batch):
        assert not model.training
        self.seen += indices.tolist()

    def result(self):
        return {"lines": len(self.seen)}


def test_a_user_defined_task_is_trained_saved_and_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TASKS, "copying", Copying())
    monkeypatch.setitem(SECTIONS, "data", data_section())
    assert {"copied", "valid_copied", "train_src"} <= {p.name for p in task_options()}
    write_pairs(tmp_path, "train", 9, seed=1)
    write_pairs(tmp_path, "valid", 3, seed=2)
    values = tables(tmp_path, max_steps=4, validate_every=2)
    texts = {"copied": str(tmp_path / "train.en"), "valid_copied": str(tmp_path / "valid.en")}
    values["data"] = {"task": "copying", "vocab_size": 290}
    with pytest.raises(UserError, match="data.copied: expected a text file; got an empty name; try --copied FILE"):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    values["data"] |= texts
    config = RunConfig.from_dict(values)
    summary = train(config, tmp_path / "run", progress=False)
    assert summary.step == 4 and summary.scores == {"lines": 3} and np.isfinite(summary.valid_loss)
    assert "lines 3.00" in (tmp_path / "run" / "log.txt").read_text()
    state = load_checkpoint(summary.checkpoint).state
    assert state["task"] == "copying" and state["text_sha256"] is None
    assert load_model(tmp_path / "run", "copying")[2] == config
    with pytest.raises(UserError, match="expected a translation model; got a model of the task copying"):
        load_model(tmp_path / "run", "translation")
    assert main(["info", str(tmp_path / "run")]) == 0
    assert "120 text tokens" in (out := capsys.readouterr().out) and "perplexity  lines" in out
    assert train(config, tmp_path / "run", resume=True, progress=False).valid_loss == summary.valid_loss
    monkeypatch.delitem(TASKS, "copying")
    with pytest.raises(UserError, match="expected one of translation, .*; got a checkpoint of the task 'copying'"):
        load_model(tmp_path / "run")


def test_an_architecture_that_does_not_fit_the_task_is_rejected(tmp_path, monkeypatch):
    values = tables(tmp_path)
    values["model"]["architecture"] = "decoder"
    with pytest.raises(UserError, match="model.architecture: expected encoder_decoder .* the task translation; got d"):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_text_is_read_only_for_tokenizer_arrays_and_shared_sources(tmp_path, monkeypatch):
    write_pairs(tmp_path, "train", 40, seed=1)
    write_pairs(tmp_path, "valid", 5, seed=2)
    opened = []
    real = os.open

    def watched(path, *how, **named):
        opened.append(os.path.basename(path))
        return real(path, *how, **named)

    monkeypatch.setattr(os, "open", watched)
    train(RunConfig.from_dict(tables(tmp_path, max_steps=1)), tmp_path / "run", progress=False)
    times = {name: opened.count(name) for name in ("train.en", "train.de", "valid.en", "valid.de")}
    # Once only for the first line, and once to compare the numbers of lines.
    # The sources are read once more to count those of the validation text that occur in the training text.
    assert times == {"train.en": 5, "train.de": 4, "valid.en": 4, "valid.de": 3}
