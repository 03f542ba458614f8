"""`train --data`: training on a folder that `data` has written."""

import json
import shlex
import shutil

import pytest

from tests.helpers import trainings
from train.cli import main
from train.run.folder import RunFolder

text = trainings.text
SIDES = (("src", "en"), ("tgt", "de"))
SMALL = ["--set=model.d_model=8", "--set=model.d_ff=16", "--set=model.n_heads=2", "--set=model.n_layers=1"]
SHORT = ["--set=train.max_steps=1", "--set=train.batch_tokens=100", "--set=train.warmup_steps=1"]


@pytest.fixture(scope="module")
def own(text, tmp_path_factory):
    """A folder written by `data own`."""
    out = tmp_path_factory.mktemp("data") / "own folder"
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    assert main(["data", "own", *texts, "--vocab-size=270", "--keep-duplicates", f"--out={out}"]) == 0
    return out


def train(folder, out, *options):
    return main(["train", "tiny", "--data", str(folder), "--out", str(out), *SMALL, *SHORT, *options])


def test_the_command_that_data_prints_trains_with_its_tokens(own, text, tmp_path, capfd):
    before = {path: path.stat().st_mtime_ns for path in own.rglob("*")}
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    arguments = ["data", "own", *texts, "--vocab-size=270", "--keep-duplicates", f"--out={own}"]
    assert main(arguments) == 0  # everything is up to date
    printed = capfd.readouterr().out
    command = shlex.split(next(line for line in printed.splitlines() if "npx-transformer train" in line))
    start = command.index("train", command.index("npx-transformer"))
    assert command[start:-1] == ["train", "tiny", "--data", str(own), "--out"]
    assert main([*command[start:-1], str(tmp_path / "run"), *SMALL, *SHORT]) == 0
    err = capfd.readouterr().err
    assert err.count("up to date") == 2 and not (tmp_path / "run" / "data").exists()
    counts = [line for line in printed.splitlines() if line.startswith("train: ")][0].split()
    assert f"({counts[3]} + {counts[6]} tokens)" in err  # `data` and `train` count alike
    now = {path: path.stat().st_mtime_ns for path in own.rglob("*") if path.name != "manifest.json"}
    assert now == {path: time for path, time in before.items() if path in now}


def test_other_lengths_leave_the_token_arrays_of_the_folder_alone(own, tmp_path, capfd):
    before = (own / "prepared" / "train" / "meta.json").read_bytes()
    assert train(own, tmp_path / "run", "--set=data.max_length=20") == 0
    assert (own / "prepared" / "train" / "meta.json").read_bytes() == before
    assert (RunFolder(tmp_path / "run").data("train") / "meta.json").exists()


@pytest.mark.parametrize("change", [(), ("--set=data.max_length=20",)])
def test_another_run_encodes_the_folder_with_its_own_tokenizer(own, text, tmp_path, change):
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    first = ["train", "tiny", *texts, "--set=data.vocab_size=290", "--out", str(tmp_path / "first"), *SMALL, *SHORT]
    assert main(first) == 0
    before = (own / "prepared" / "train" / "meta.json").read_bytes()
    assert train(own, tmp_path / "fine", "--init", str(tmp_path / "first"), *change) == 0
    assert (own / "prepared" / "train" / "meta.json").read_bytes() == before
    runs = RunFolder(tmp_path / "fine"), RunFolder(tmp_path / "first")
    assert len({run.tokenizer_file.read_bytes() for run in runs}) == 1


def test_token_arrays_of_another_tokenizer_are_not_overwritten(own, text, tmp_path, capfd):
    """A run cannot replace the arrays of a folder that was made again from other text."""
    folder, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(own, folder)
    assert train(folder, out) == 0
    texts = [f"--train-{side}={text}/valid.{language}" for side, language in SIDES]
    shutil.rmtree(folder)
    assert main(["data", "own", *texts, "--vocab-size=265", "--keep-duplicates", f"--out={folder}"]) == 0
    before = {path: path.read_bytes() for path in (folder / "prepared").rglob("*") if path.is_file()}
    capfd.readouterr()
    resume = [
        "--resume",
        "--out",
        str(out),
        "--set=train.max_steps=2",
        "--set=data.valid_src=",
        "--set=data.valid_tgt=",
    ]
    assert main(["train", *resume]) == 2
    assert "data.prepared: expected token arrays of the run's tokenizer" in capfd.readouterr().err
    assert {path: path.read_bytes() for path in (folder / "prepared").rglob("*") if path.is_file()} == before


def test_a_folder_without_validation_text(own, text, tmp_path, capfd):
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["texts"]["valid"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert train(folder, tmp_path / "a") == 0
    assert "there is no validation text" in capfd.readouterr().err
    valid = [f"--valid-{side}={text}/valid.{language}" for side, language in SIDES]
    assert train(folder, tmp_path / "b", *valid) == 0
    assert "validation after step 1" in capfd.readouterr().err


def truncate(folder):
    (folder / "valid.tgt").write_bytes(b"shorter\n")


def edit_tokenizer(folder):
    with open(folder / "tokenizer.json", "a") as file:
        file.write("\n")


@pytest.mark.parametrize(
    ("damage", "options", "part"),
    [
        (lambda folder: shutil.rmtree(folder), [], "got nothing; try npx-transformer data own"),
        (lambda folder: (folder / "manifest.json").unlink(), [], "an unfinished one; try the same `data` command"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), [], "settings: missing"),
        (truncate, [], "valid.tgt: expected the text of"),
        (lambda folder: (folder / "train.src").unlink(), [], "train.src: expected the text of"),
        (edit_tokenizer, [], "tokenizer.json: expected the tokenizer of"),
        (lambda folder: None, ["--train-src=x"], "--data: expected"),
        (lambda folder: None, ["--set=data.task=language"], "expected the task translation; got language"),
    ],
)
def test_bad_folders_are_rejected_on_one_line(own, tmp_path, capfd, damage, options, part):
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    damage(folder)
    capfd.readouterr()
    assert train(folder, tmp_path / "run", *options) == 2
    err = capfd.readouterr().err
    assert part in err and err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_unequal_files_are_reported_before_a_vocabulary_is_learned(text, tmp_path, capfd):
    (tmp_path / "short").write_text("one line\n")
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    assert main(["train", "tiny", *texts, f"--valid-src={tmp_path / 'short'}", f"--out={tmp_path / 'run'}"]) == 2
    err = capfd.readouterr().err
    assert "expected equal numbers of lines" in err and "got 1 and 5" in err and "training a" not in err
