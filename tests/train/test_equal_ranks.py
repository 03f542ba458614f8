"""Ranks that are started with different inputs are named, and only rank 0 writes into a run."""

import re
import shutil
import time

import pytest

import npx
from tests.helpers import trainings
from tests.helpers.command_line import files_of
from tests.train.test_distributed import run_ranks
from train import UserError, train
from train.cli import main
from train.learn.parallel.join import check_equal_inputs
from train.learn.training import prepare_corpora, prepare_tokenizer
from train.progress import Display
from train.run.folder import RunFolder
from train.tasks import TASKS


def error_of(call, *arguments, **options):
    """Return the message of the UserError that a call raises, or ""."""
    try:
        call(*arguments, **options)
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"peak_lr": 0.02}, "train.peak_lr: expected 0.01 as on rank 0; got 0.02"),
        ({"validate_every": 3}, "train.validate_every: expected 4 as on rank 0; got 3"),
        ({"resume": True}, "resume: expected false as on rank 0; got true"),
        ({"text": "other"}, 'data.valid_src: expected "a text with SHA-256 .*" as on rank 0; got "a text with SHA'),
        ({"text": "copy"}, ""),  # the same content under another path
    ],
)
def test_ranks_with_different_inputs_are_named(text, tmp_path, changes, got):
    keys = {name: value for name, value in changes.items() if name not in ("text", "resume")}
    folder = shutil.copytree(text, tmp_path / "text") if "text" in changes else text
    if changes.get("text") == "other":
        (folder / "valid.en").write_text("zero\n" * 5)
    first = trainings.config(text, peak_lr=0.01)
    other = trainings.config(folder, **{"peak_lr": 0.01, **keys})

    def check(world):
        config = other if world.rank == 2 else first
        files = [path for paths in TASKS["translation"].text_files(config.data).values() for path in paths]
        return error_of(check_equal_inputs, config, files, resume=world.rank == 2 and "resume" in changes)

    messages = run_ranks(3, check)
    assert messages[0] == messages[1] == messages[2]
    assert re.match(f"rank 2: {got}.*; try the same command and files on every rank$" if got else "$", messages[0])


class DifferingWorld(npx.distributed.World):
    """Rank 0 of two ranks, of which the other one has a different value for one key."""

    size = 2

    def __init__(self, key):
        self.key = key

    def all_gather_object(self, value):
        return [value, {**value, self.key: "other"} if isinstance(value, dict) and self.key in value else value]


def differ(monkeypatch, key):
    world = DifferingWorld(key)
    for name in ("initialize", "world"):
        monkeypatch.setattr(npx.distributed, name, lambda: world)


@pytest.mark.parametrize(
    "key", ["max_hours", *(f"--out, {name}" for name in ("config.toml", "checkpoints/step-12/state.json", "step"))]
)
def test_ranks_that_resume_different_runs_are_named(text, copied, monkeypatch, key):
    before = files_of(copied)
    differ(monkeypatch, key)
    error = error_of(train, trainings.config(text, max_steps=13), copied, resume=True, progress=False)
    assert error.startswith(f"rank 1: {key}: expected ") and 'as on rank 0; got "other"; try the same' in error
    assert before.keys() == files_of(copied).keys() and (copied / "checkpoints/step-12").exists()


@pytest.mark.parametrize("key", ["command", "--out, config.toml", "weights, embedding.weight"])
def test_ranks_that_begin_different_runs_are_named(text, uninterrupted, tmp_path, monkeypatch, key):
    differ(monkeypatch, key)
    tokenizer = str(uninterrupted / "tokenizer.json")
    tables = trainings.tables(text, init=str(uninterrupted))
    tables["data"] |= {"tokenizer": tokenizer}
    error = error_of(train, trainings.RunConfig.from_dict(tables), tmp_path / "new", progress=False)
    assert error.startswith(f"rank 1: {key}: expected ") and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "key", ["command", "--model", "--prefixes", "--alignments", "beam_size", "max_extra_tokens", "batch_tokens"]
)
def test_ranks_that_translate_differently_are_named(text, uninterrupted, tmp_path, monkeypatch, capfd, key):
    differ(monkeypatch, key)
    options = ["--input", str(text / "valid.en"), "--output", str(tmp_path / "output")]
    assert main(["translate", "--model", str(uninterrupted), *options]) == 2
    assert re.match(f"npx-transformer: .*{key}: expected .* as on rank 0; got", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_before_it_joins_is_named(tmp_path, monkeypatch, capfd, rank):
    """If all ranks fail, only rank 0 prints the error: the others wait first, and mpirun kills them."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 2
    name = "rank 1 of 2: " if rank else ""
    assert capfd.readouterr().err.startswith(f"npx-transformer: {name}{tmp_path}/run: expected a run folder to resume")
    assert waits == [2] * rank


def test_only_rank_0_writes_into_a_run(text, tmp_path, copied):
    """The folder of another rank may not be shared, or a file in it may have changed."""
    config = trainings.config(text)
    task = TASKS["translation"]
    tokenizer = task.load_tokenizer(copied / "tokenizer.json")
    texts = task.text_files(config.data)
    (copied / "data/train/src.tokens").write_bytes(b"")
    (copied / "tokenizer.json").unlink()
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}

    def write(world):
        if world.rank == 0:
            return []
        runs = [RunFolder(copied), RunFolder(tmp_path / "not-shared")]
        display = Display(False)
        errors = [error_of(prepare_tokenizer, run, config, texts, None, True, display) for run in runs]
        return errors + [error_of(prepare_corpora, run, config, texts, tokenizer, display) for run in runs]

    errors = run_ranks(2, write)[1]
    assert all("tokenizer.json: expected " in error and "; got a path that does" in error for error in errors[:2])
    assert all("expected the token arrays that rank 0 wrote; got missing or" in error for error in errors[2:])
    assert not (tmp_path / "not-shared").exists()
    assert before == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
