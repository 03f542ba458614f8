"""`train --data`: training on a folder that `data` has written."""

import bz2
import hashlib
import json
import os
import re
import shlex
import shutil
from importlib.util import find_spec

import pytest

from tests.helpers.data_own import SIDES, contents, prepare
from train import RunConfig, files
from train.cli import main
from train.run.checkpoint import load_model
from train.run.folder import RunFolder

SMALL = ["--set=model.d_model=8", "--set=model.d_ff=16", "--set=model.n_heads=2", "--set=model.n_layers=1"]
SHORT = ["--set=train.max_steps=1", "--set=train.batch_tokens=100", "--set=train.warmup_steps=1"]


@pytest.fixture(scope="module")
def data_folder(text, tmp_path_factory):
    """A folder written by `data own`."""
    out = tmp_path_factory.mktemp("data") / "own folder"
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    assert main(["data", "own", *texts, "--vocab-size=270", "--keep-duplicates", f"--out={out}"]) == 0
    return out


def train(folder, out, *options):
    return main(["train", "tiny", "--data", str(folder), "--out", str(out), *SMALL, *SHORT, *options])


def test_the_command_that_data_prints_trains_with_its_tokens(data_folder, text, tmp_path, capfd):
    before = {path: path.stat().st_mtime_ns for path in data_folder.rglob("*")}
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    arguments = ["data", "own", *texts, "--vocab-size=270", "--keep-duplicates", f"--out={data_folder}"]
    assert main(arguments) == 0  # everything is up to date
    printed = capfd.readouterr().out
    command = shlex.split(next(line for line in printed.splitlines() if "npx-transformer train" in line))
    start = command.index("train", command.index("npx-transformer"))
    assert command[start:-1] == ["train", "tiny", "--data", str(data_folder), "--out"]
    assert main([*command[start:-1], str(tmp_path / "run"), *SMALL, *SHORT]) == 0
    err = capfd.readouterr().err
    assert err.count("up to date") == 2 and not (tmp_path / "run" / "data").exists()
    counts = [line for line in printed.splitlines() if line.startswith("train: ")][0].split()
    assert f"({counts[3]} + {counts[6]} tokens)" in err  # `data` and `train` count the same way
    now = {path: path.stat().st_mtime_ns for path in data_folder.rglob("*") if path.name != "manifest.json"}
    assert now == {path: time for path, time in before.items() if path in now}


def test_a_data_folder_is_no_run(data_folder, uninterrupted, tmp_path, capfd):
    for expected, *arguments in (
        ("a run folder or a checkpoint folder; got another folder; try", "translate", "--model", data_folder),
        ("a run folder; got another folder; try", "average", data_folder),
        (
            "a run folder; got another",
            "draw",
            uninterrupted,
            "curves",
            "--also",
            data_folder,
            "--out",
            tmp_path / "a.svg",
        ),
        (
            "a run folder to resume; got a folder that is not empty; try a folder that `train` has written",
            "train",
            "--resume",
            "--out",
            data_folder,
        ),
    ):
        assert main([*map(str, arguments)]) == 2 and f"{data_folder}: expected {expected}" in capfd.readouterr().err


def test_a_training_reads_the_texts_of_a_folder_once_for_their_hashes(data_folder, tmp_path, monkeypatch, capfd):
    """A text that has just changed is read again."""
    names = []
    file_digest = hashlib.file_digest

    def record(file, *arguments):
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{file.fileno()}")))
        return file_digest(file, *arguments)

    monkeypatch.setattr(hashlib, "file_digest", record)
    for settled, count in ((0, 1), (10**18, 3)):
        monkeypatch.setattr(files, "SETTLING_NANOSECONDS", settled)
        monkeypatch.setattr(files, "_digests", {})
        names.clear()
        assert train(data_folder, tmp_path / f"run-{count}", "--quiet") == 0
        assert [names.count(f"{part}.{side}") for part in ("train", "valid") for side in ("src", "tgt")] == 4 * [count]


def test_a_resumed_run_does_not_prepare_its_texts(data_folder, tmp_path, capfd):
    for resume in ([], ["--resume", "--set=train.max_steps=2"]):
        assert train(data_folder, tmp_path / "run", "--set=data.max_length=20", *resume) == 0
        assert capfd.readouterr().err.count("preparing the") == (0 if resume else 2)


def test_a_moved_folder_is_named(data_folder, tmp_path, capfd, monkeypatch):
    folder, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(data_folder, folder)
    assert train(folder, out) == 0
    folder.rename(tmp_path / "moved")
    capfd.readouterr()
    assert main(["train", "--resume", "--out", str(out), "--set=train.max_steps=2"]) == 2
    error = capfd.readouterr().err
    assert error.endswith(f"do not exist; try --data with the new path of {folder}\n") and error.count("\n") == 1
    assert main(["train", "--init", str(out), "--out", str(tmp_path / "new")]) == 2
    assert capfd.readouterr().err.endswith(f"with other paths, or --data with the new path of {folder}\n")
    if find_spec("matplotlib"):
        assert main(["draw", str(out), "roles", "--out", str(tmp_path / "a.svg")]) == 2
        suggestion = "try its new path in data.prepared (in config.toml of the run) if it was moved\n"
        assert capfd.readouterr().err.endswith(f"got a path that does not exist; {suggestion}")
    monkeypatch.chdir(tmp_path)
    for train_src, others in (("train.src", ["--train-tgt=train.tgt"]), (f"{folder}/valid.src", [])):
        assert main(["train", "tiny", f"--train-src={train_src}", *others, "--out", str(tmp_path / "other")]) == 2
        assert "--data" not in capfd.readouterr().err
    assert main(["train", "--resume", "--out", str(out), "--data=moved"]) == 0  # no step is left
    assert f'prepared = "{tmp_path}/moved/' in (out / "config.toml").read_text(encoding="utf-8")
    assert main(["train", "--resume", "--out", str(out), "--set=train.max_steps=2"]) == 0
    load_model(out)  # although the checkpoint names the former path of the tokenizer
    assert "up to date" in capfd.readouterr().err
    config = (out / "config.toml").read_text(encoding="utf-8")
    assert str(folder) not in config and f'tokenizer = "{tmp_path}/moved/tokenizer.json"' in config
    assert main(["train", str(out / "config.toml"), "--out", str(tmp_path / "other")]) == 0
    assert main(["train", "--resume", "--out", str(out), "--set=train.max_steps=3"]) == 0
    assert main(["average", str(out), "--last", "3"]) == 0  # steps from before and after
    (tmp_path / "moved" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    capfd.readouterr()
    assert main(["train", str(out / "config.toml"), "--out", str(tmp_path / "new")]) == 2
    expected = (
        "expected an existing tokenizer.json, or bpe or wordpiece to train a tokenizer; got a path that does not exist"
        "; try --set data."
    )
    assert f"moved/tokenizer.json: {expected}tokenizer=F with another path, or --data DIR" in capfd.readouterr().err


@pytest.mark.parametrize("given", ["own-folder", ".", "own folder/prepared"])
def test_the_folder_that_is_meant_is_suggested(data_folder, capfd, monkeypatch, given):
    monkeypatch.chdir(data_folder.parent)
    assert train(given, "run") == 2
    assert capfd.readouterr().err.endswith("; try 'own folder'\n") and not os.path.exists("run")


def test_all_missing_texts_are_named(text, tmp_path, capfd):
    texts = [f"--{part}-{side}=no.{part}.{side}" for part in ("train", "valid") for side in ("src", "tgt")]
    assert main(["train", "tiny", f"--out={tmp_path / 'run'}", *texts]) == 2
    error = capfd.readouterr().err
    assert "no.train.src, no.train.tgt, no.valid.src, no.valid.tgt: expected text files; got paths that do" in error
    assert "; try --train-src F --train-tgt F --valid-src F --valid-tgt F with other paths (these paths are" in error


def test_other_lengths_leave_the_token_arrays_of_the_folder_alone(data_folder, tmp_path, capfd):
    before = (data_folder / "prepared" / "train" / "meta.json").read_bytes()
    assert train(data_folder, tmp_path / "run", "--set=data.max_length=20") == 0
    assert (data_folder / "prepared" / "train" / "meta.json").read_bytes() == before
    assert (RunFolder(tmp_path / "run").data_path("train") / "meta.json").exists()


@pytest.mark.parametrize("change", [(), ("--set=data.max_length=20",)])
def test_another_run_encodes_the_folder_with_its_own_tokenizer(data_folder, text, tmp_path, change, capfd):
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    first = ["train", "tiny", *texts, "--set=data.vocab_size=290", "--out", str(tmp_path / "first"), *SMALL, *SHORT]
    assert main(first) == 0
    before = (data_folder / "prepared" / "train" / "meta.json").read_bytes()
    assert train(data_folder, tmp_path / "fine", "--init", str(tmp_path / "first"), *change) == 0
    assert (data_folder / "prepared" / "train" / "meta.json").read_bytes() == before
    runs = RunFolder(tmp_path / "fine"), RunFolder(tmp_path / "first")
    note = f"{data_folder}: {runs[1].tokenizer_file} is used instead of the tokenizer in this folder\n"
    assert note in capfd.readouterr().err
    assert len({run.tokenizer_file.read_bytes() for run in runs}) == 1


def test_a_configuration_for_another_folder_does_not_keep_its_arrays_with_init(data_folder, text, tmp_path, capfd):
    assert train(data_folder, tmp_path / "first") == 0
    assert prepare(text, tmp_path / "other", "--vocab-size=265") == 0
    capfd.readouterr()
    assert main(["info", "tiny", "--config", f"--data={data_folder}", *SMALL]) == 0
    (tmp_path / "my.toml").write_text(capfd.readouterr().out)
    command = ["train", str(tmp_path / "my.toml"), f"--init={tmp_path / 'first'}", f"--data={tmp_path / 'other'}"]
    assert main([*command, f"--out={tmp_path / 'fine'}", *SHORT]) == 0
    assert f"{data_folder}/tokenizer.json is used instead of the tokenizer in this folder\n" in capfd.readouterr().err
    assert RunFolder(tmp_path / "fine").load_config().data.prepared == ""


def test_another_run_with_the_tokenizer_of_the_folder_uses_its_arrays(data_folder, tmp_path, capfd):
    assert train(data_folder, tmp_path / "first") == 0
    capfd.readouterr()
    assert train(data_folder, tmp_path / "second", "--init", str(tmp_path / "first")) == 0
    error = capfd.readouterr().err
    assert error.count("up to date") == 2 and not (tmp_path / "second" / "data").exists()
    assert "instead of the one of this folder" not in error


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_configuration_for_other_text_resumes_a_run_on_a_folder(data_folder, tmp_path, capfd, is_complete):
    """It names no text, so the run keeps its tokenizer and its limits, and empty values set nothing."""
    file = tmp_path / "my.toml"
    if is_complete:
        assert main(["info", "tiny", "--config", *SMALL]) == 0
        file.write_text(capfd.readouterr().out)
    else:
        sizes = "\n".join(setting.partition("=model.")[2] for setting in SMALL if "=model." in setting)
        file.write_text(f"[model]\npreset = 'tiny'\n{sizes}\n[data]\nvocab_size = 400\nmax_length = 128\n")
    assert main(["train", str(file), f"--data={data_folder}", f"--out={tmp_path / 'run'}", *SHORT]) == 0
    before = RunFolder(tmp_path / "run").load_config()
    resume = ["train", str(file), "--resume", f"--out={tmp_path / 'run'}", *SHORT[1:], "--set=train.max_steps=2"]
    assert main(resume) == 0
    assert RunFolder(tmp_path / "run").load_config().data == before.data
    config = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "run" / "config.toml").write_text(config.replace("patience = 0", "patience = -1"))
    assert main(resume) == 2 and "patience" in capfd.readouterr().err
    (tmp_path / "run" / "config.toml").write_text(config[:900])
    capfd.readouterr()
    assert main([*resume, f"--data={data_folder}", "--set=train.max_steps=3"]) == 0
    assert "keys that CONFIG does not name get their defaults" in capfd.readouterr().err


def test_a_resumed_run_with_another_folder_is_led_to_its_own(data_folder, text, tmp_path, capfd):
    """Its weights do not fit the tokenizer of the other folder, so --init is not suggested."""
    assert train(data_folder, tmp_path / "run") == 0
    assert prepare(text, tmp_path / "other", "--vocab-size=265") == 0
    capfd.readouterr()
    assert main(["train", "--resume", f"--out={tmp_path / 'run'}", f"--data={tmp_path / 'other'}"]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.endswith(f"; try --data {shlex.quote(str(data_folder))}, or a new run (--out NEW)")


def test_token_arrays_of_another_tokenizer_are_not_overwritten(data_folder, text, tmp_path, capfd):
    """A run cannot replace the arrays in a folder that was prepared again from other text."""
    folder, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(data_folder, folder)
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
    assert f"resume: expected the training text of {out}/checkpoints/step-1; got" in capfd.readouterr().err
    assert {path: path.read_bytes() for path in (folder / "prepared").rglob("*") if path.is_file()} == before


def test_a_configuration_for_a_folder_trains_on_another_text(data_folder, text, tmp_path, capfd):
    """The message about the token arrays also names the tokenizer, which is that of the folder's text."""
    assert main(["info", "tiny", f"--data={data_folder}", "--config", *SMALL]) == 0
    (tmp_path / "my.toml").write_text(capfd.readouterr().out)
    texts = [f"--train-{side}={text}/valid.{language}" for side, language in SIDES]
    command = ["train", f"{tmp_path}/my.toml", f"--out={tmp_path / 'run'}", *texts, *SHORT, "--set=data.vocab_size=265"]
    assert main(command) == 2
    file = data_folder / "tokenizer.json"
    end = f"run folder; data.tokenizer = {file} stays, and --set data.tokenizer=bpe trains a new tokenizer\n"
    assert capfd.readouterr().err.endswith(end)
    assert main([*command, "--set=data.prepared=", "--set=data.tokenizer=bpe"]) == 0
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() != file.read_bytes()


def test_token_arrays_of_another_text_are_not_overwritten(data_folder, tmp_path, capfd):
    folder, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(data_folder, folder)
    assert train(folder, out) == 0
    change_letter(folder / "train.src")
    before = contents(folder)
    capfd.readouterr()
    assert main(["train", "--resume", "--out", str(out), "--set=train.max_steps=2"]) == 2
    error = capfd.readouterr().err
    assert f"resume: expected the training text of {out}/checkpoints/step-1; got a text with a different SHA" in error
    assert "; try the original files, or a new run" in error and contents(folder) == before


def test_a_resumed_run_with_another_text_is_led_to_its_own(data_folder, text, tmp_path, capfd):
    assert train(data_folder, out := tmp_path / "run") == 0
    before = contents(data_folder)
    capfd.readouterr()
    texts = [f"--train-{side}={text}/train.{language}" for side, language in SIDES]
    shutil.copy(text / "train.en", tmp_path)
    change_letter(tmp_path / "train.en")
    texts[0] = f"--train-src={tmp_path}/train.en"
    command = ["train", "--resume", f"--out={out}", "--set=train.max_steps=2"]
    assert main([*command, *texts]) == 2
    files_of_run = ", ".join(shlex.quote(f"{data_folder}/train.{side}") for side, _ in SIDES)
    advice = f"; try the files of the run ({files_of_run}), which it uses if you name none, or a new run"
    assert advice in capfd.readouterr().err and contents(data_folder) == before
    assert main([*command, "--set=train.log_every=7"]) == 0
    assert "changed since the last start: train.max_steps = 2, train.log_every = 7\n" in capfd.readouterr().err


def test_an_edited_maximum_length_is_answered_with_the_original_one(data_folder, text, tmp_path, capfd):
    """Training would skip the longer pairs, and would overwrite token arrays that other runs use."""
    folder, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(data_folder, folder)
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"max_length": 256', '"max_length": 6'))
    before = contents(folder)
    texts = [f"--{part}-{side}={text}/{part}.{language}" for part in ("train", "valid") for side, language in SIDES]
    data = ["data", "own", *texts, "--vocab-size=270", "--keep-duplicates", f"--out={folder}"]
    command = ["train", "tiny", f"--data={folder}", f"--out={out}", *SMALL, *SHORT]
    for arguments in (command, data):
        capfd.readouterr()
        assert main(arguments) == 2
        error = f"{folder / 'manifest.json'}: expected settings.max_length = 256, as in {folder / 'prepared'};"
        assert f"{error} got 6; try changing it back to 256, or" in capfd.readouterr().err
        assert contents(folder) == before and not out.exists()
    (folder / "manifest.json").write_text(manifest)
    assert main(data) == 0 and main(command) == 0


def test_token_arrays_of_another_maximum_length_are_not_overwritten(data_folder, tmp_path, capfd):
    folder = tmp_path / "copy"
    shutil.copytree(data_folder, folder)
    before = contents(folder)
    texts = [
        f"--set=data.{part}_{side}={folder / part}.{side}" for part in ("train", "valid") for side in ("src", "tgt")
    ]
    shared = [f"--set=data.tokenizer={folder / 'tokenizer.json'}", f"--set=data.prepared={folder / 'prepared'}"]
    command = ["train", "tiny", f"--out={tmp_path / 'run'}", *texts, *shared, *SMALL, *SHORT]
    assert main([*command, "--set=data.max_length=6"]) == 2
    assert "made with a different max_length; try --set data.prepared=, which" in capfd.readouterr().err
    assert contents(folder) == before
    assert main(command) == 0


def test_a_folder_without_validation_text(data_folder, text, tmp_path, capfd):
    folder = tmp_path / "copy"
    shutil.copytree(data_folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["texts"]["valid"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert train(folder, tmp_path / "a") == 0
    assert "there is no validation text" in capfd.readouterr().err
    valid = [f"--valid-{side}={text}/valid.{language}" for side, language in SIDES]
    assert train(folder, tmp_path / "b", *valid) == 0
    assert "validation after step 1" in capfd.readouterr().err


def test_a_given_validation_text_replaces_that_of_the_folder(data_folder, text, tmp_path, capfd):
    valid = [f"--valid-{side}={text}/train.{language}" for side, language in SIDES]
    assert train(data_folder, tmp_path / "a", *valid) == 0
    err = capfd.readouterr().err
    assert f"preparing the valid text: {text}/train.en, {text}/train.de" in err and "up to date" not in err
    assert train(data_folder, tmp_path / "b", valid[0]) == 2
    assert "data.valid_tgt: expected a text file; got an empty name; try --valid-tgt" in capfd.readouterr().err


def truncate(folder):
    (folder / "valid.tgt").write_bytes(b"shorter\n")


def change_letter(file):
    """Change one letter; the size stays the same."""
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def edit_tokenizer(folder):
    with open(folder / "tokenizer.json", "a") as file:
        file.write("\n")


def edit_texts(*keys, value):
    """Return a function that changes one value of the texts in manifest.json."""

    def edit(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        texts = manifest["texts"]
        for key in keys[:-1]:
            texts = texts[key]
        texts[keys[-1]] = value
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return edit


@pytest.mark.parametrize(
    ("damage", "options", "part"),
    [
        (edit_texts("valid", value=[]), [], ": texts.valid: expected keys and values; got list"),
        (edit_texts("valid", "sha256", value=[1, 2]), [], ": texts.valid.sha256: expected keys and values"),
        (edit_texts("valid", "sha256", value={}), [], ": texts.valid.sha256.src: missing"),
        (edit_texts("train", "sha256", "src", value=5), [], ": texts.train.sha256.src: expected str; got 5"),
        (edit_texts("train", "sha256", value={}), [], ": texts.train.sha256: expected two languages"),
        (edit_texts("more", value=5), [], ": texts.more: expected keys and values; got int"),
        (lambda folder: shutil.rmtree(folder), [], "got a path that does not exist; try `npx-transformer data own"),
        (lambda folder: (folder / "manifest.json").unlink(), [], "an unfinished folder; try the same `data` command"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), [], "settings: missing"),
        (truncate, [], "valid.tgt: expected the text of"),
        (lambda folder: (folder / "train.src").unlink(), [], "train.src: expected the text of"),
        (lambda folder: change_letter(folder / "train.src"), [], "got a changed file; try the `data` command again"),
        (lambda folder: change_letter(folder / "valid.tgt"), [], "valid.tgt: expected the text of"),
        (edit_tokenizer, [], "tokenizer.json: expected the tokenizer of"),
        (lambda folder: None, ["--train-src=x"], "cannot be combined with"),
        (lambda folder: None, ["--set=data.task=language"], "only to the task translation, not to language"),
    ],
)
def test_bad_folders_are_rejected_on_one_line(data_folder, tmp_path, capfd, damage, options, part):
    folder = tmp_path / "copy"
    shutil.copytree(data_folder, folder)
    damage(folder)
    before = contents(folder)
    capfd.readouterr()
    assert train(folder, tmp_path / "run", *options) == 2
    err = capfd.readouterr().err
    assert contents(folder) == before
    assert part in err and err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_unequal_files_are_reported_before_a_vocabulary_is_learned(text, tmp_path, capfd):
    (tmp_path / "short").write_text("one line\n")
    texts = [f"--train-src={text}/train.en", f"--train-tgt={text}/train.de", f"--valid-tgt={text}/valid.de"]
    assert main(["train", "tiny", *texts, f"--valid-src={tmp_path / 'short'}", f"--out={tmp_path / 'run'}"]) == 2
    err = capfd.readouterr().err
    assert "expected equal numbers of lines" in err and "got 1 and 5" in err and "training a" not in err


def test_a_file_that_is_not_text_is_reported_as_such(text, tmp_path, capfd):
    (tmp_path / "train.bz2").write_bytes(bz2.compress((text / "train.en").read_bytes()))
    assert main(["data", "own", f"--train-src={tmp_path}/train.bz2", f"--train-tgt={text}/train.de",
                 f"--out={tmp_path / 'out'}"]) == 2  # fmt: skip
    err = capfd.readouterr().err
    assert "train.bz2, line 1: expected UTF-8 text; got 0x" in err and err.count("\n") == 1


def test_a_changed_text_is_rejected_and_a_missing_file_is_written_again(text, tmp_path, capfd):
    """Runs that were trained on the folder could not be resumed."""
    mine, out = tmp_path / "mine", tmp_path / "out"
    shutil.copytree(text, mine)
    assert prepare(mine, out) == 0
    before = contents(out)
    (out / "train.src").unlink()
    capfd.readouterr()
    assert prepare(mine, out) == 0
    assert f"{out}: texts are missing, changed or new; preparing them again" in capfd.readouterr().err
    assert contents(out) == before
    for part in ("train", "valid"):
        original = (mine / f"{part}.en").read_bytes()
        change_letter(mine / f"{part}.en")
        assert prepare(mine, out) == 2
        message = f"was prepared with a different text ({mine}/{part}.en), and runs may use it; repeat the command in "
        assert message in capfd.readouterr().err and contents(out) == before
        (mine / f"{part}.en").write_bytes(original)
    shutil.move(mine, tmp_path / "moved")
    assert prepare(tmp_path / "moved", out) == 0 and train(out, tmp_path / "run") == 0


# ---- the configuration of a run and that of the folder


def test_separate_vocabularies_are_trained_on_the_text_of_a_folder(data_folder, tmp_path, capfd):
    before = contents(data_folder)
    assert train(data_folder, tmp_path / "run", "--vocabularies=separate") == 0
    assert len(json.loads(RunFolder(tmp_path / "run").tokenizer_file.read_text()).keys() & {"source", "target"}) == 2
    error = capfd.readouterr().err
    assert re.search(r"training two bpe tokenizers, each with at most [\d,]+ subwords", error)
    assert re.search(r"trained two tokenizers with \d+ source and \d+ target subwords in ", error)
    assert re.search(r"parameters, \d+ source and \d+ target subwords", error)
    assert contents(data_folder) == before
    for resumed in ([], ["--data", str(data_folder)]):
        options = ["--resume", "--out", str(tmp_path / "run"), *resumed, "--set=train.max_steps=2"]
        assert main(["train", *options]) == 0


def test_separate_vocabularies_and_one_tokenizer_conflict(data_folder, text, tmp_path, capfd):
    files = [f"--train-{side}={text}/train.{language}" for side, language in SIDES]
    options = ["--vocabularies=separate", f"--set=data.tokenizer={data_folder / 'tokenizer.json'}"]
    assert main(["train", "tiny", *files, *options, "--out", str(tmp_path / "run")]) == 2
    assert 'or data.tokenizer = "bpe", which trains a new tokenizer' in capfd.readouterr().err


def test_a_configuration_without_texts_resumes_a_run_on_a_folder(data_folder, tmp_path, capfd):
    file, out = tmp_path / "my.toml", tmp_path / "run"
    named = [option.removeprefix("--set=") for option in (*SMALL, *SHORT)]
    file.write_text(RunConfig.from_dict({}, ["model.preset=tiny", *named]).dump())
    assert main(["train", str(file), "--data", str(data_folder), "--out", str(out)]) == 0
    for steps in (2, 3):
        assert main(["train", str(file), "--resume", "--out", str(out), f"--set=train.max_steps={steps}"]) == 0
        assert RunFolder(out).step_paths()[-1].name == f"step-{steps}"
    assert RunFolder(out).load_config().data.prepared == str(data_folder / "prepared")
    capfd.readouterr()
    assert main(["train", str(file), "--resume", "--out", str(out), "--set=train.seed=9"]) == 2
    assert "train.seed" in capfd.readouterr().err


def test_values_that_the_folder_replaces_are_named(data_folder, tmp_path, capfd):
    named = ["model.preset=tiny", "data.vocab_size=4000", "data.max_length=99"]
    config = RunConfig.from_dict({}, named)
    (tmp_path / "my.toml").write_text(config.dump())
    options = ["--data", str(data_folder), "--out", str(tmp_path / "run"), *SMALL, *SHORT]
    assert main(["train", str(tmp_path / "my.toml"), *options]) == 0
    err = capfd.readouterr().err
    assert f"{data_folder}: data.vocab_size is 270, as in this folder, not 4,000 as configured\n" in err
    assert f"{data_folder}: data.max_length is 256, as in this folder, not 99 as configured\n" in err
    assert train(data_folder, tmp_path / "b") == 0 and "as configured" not in capfd.readouterr().err
    assert train(data_folder, tmp_path / "c", "--set=data.vocab_size=300") == 2
    assert (
        f"data.vocab_size: expected 270, the size of the tokenizer in {data_folder}; got 300; try"
        in capfd.readouterr().err
    )


# ---- held-out text


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_validation_sources_in_the_training_text_are_counted(data_folder, text, tmp_path, capfd):
    """`data own` and `train` count them; `train` gives a warning, also in the log."""
    words = [f"w{i} w{i % 7}" for i in range(60)]
    train_text = [write_lines(tmp_path / f"train.{side}", words) for side in ("en", "de")]
    spaced = [words[0], words[1].replace(" ", " \u00a0"), f" {words[2]} "]
    for n, valid in ((3, [*spaced, "new", "other new"]), (0, ["new", "other new"])):
        valid_text = [write_lines(tmp_path / f"valid.{side}", valid) for side in ("en", "de")]
        options = [
            f"--{part}-{side}={path}"
            for part, paths in (("train", train_text), ("valid", valid_text))
            for side, path in zip(("src", "tgt"), paths, strict=True)
        ]
        assert main(["data", "own", *options, "--vocab-size=265", f"--out={tmp_path / f'data{n}'}", "--quiet"]) == 0
        expected = f"valid: {n} of {len(valid)} sources also occur in the training text"
        more = ", so validation scores will overestimate the quality on new text; try --hold-out" if n else ""
        assert f"{expected}{more}\n" in capfd.readouterr().out
        out = tmp_path / f"run{n}"
        sizes = [*SMALL, *SHORT, "--set=data.vocab_size=290"]
        assert main(["train", "tiny", *options, "--out", str(out), "--quiet", *sizes]) == 0
        warning = f"warning: {n} of {len(valid)} validation sources also occur in the training text"
        assert (warning in capfd.readouterr().err) == (warning in (out / "log.txt").read_text()) == bool(n)


@pytest.mark.parametrize("name", ["train.en", "copy"])
def test_a_target_that_is_a_copy_of_the_source_is_reported(text, tmp_path, capfd, name):
    shutil.copy(text / "train.en", tmp_path / "copy")
    target = (text if name == "train.en" else tmp_path) / name
    files = [f"--train-src={text / 'train.en'}", f"--train-tgt={target}"]
    sizes = [*SMALL, *SHORT, "--set=data.vocab_size=270", "--quiet"]
    expected = f"warning: the two sides of the train text are equal ({text / 'train.en'}, {target}); try"
    for resume, counts in (([], [1, 1]), (["--resume", "--set=train.max_steps=2"], [0, 1])):
        assert main(["train", "tiny", *files, f"--out={tmp_path / 'run'}", *sizes, *resume]) == 0
        log = (tmp_path / "run" / "log.txt").read_text()
        assert [capfd.readouterr().err.count(expected), log.count(expected)] == counts


def test_hold_out_takes_distinct_sources_out_of_the_training_text(tmp_path, capfd):
    sources = [f"word{i % 50} of {i % 50}" for i in range(120)]  # each occurs two or three times
    targets = [f"Wort{i} von {i}" for i in range(120)]
    outputs = []
    for order in (1, -1):
        options = [
            f"--train-{side}={write_lines(tmp_path / f'{side}{order}', lines[::order])}"
            for side, lines in (("src", sources), ("tgt", targets))
        ]
        out = tmp_path / f"data{order}"
        command = ["data", "own", *options, "--vocab-size=270", f"--out={out}", "--quiet"]
        assert main([*command, "--hold-out", "10"]) == 0
        printed = capfd.readouterr().out
        valid, train_lines = ((out / f"{part}.src").read_text().splitlines() for part in ("valid", "train"))
        assert len(valid) == len(set(valid)) == 10 and not set(valid) & set(train_lines)
        assert len(set(train_lines)) == 40 and len(train_lines) == sum(source not in valid for source in sources)
        assert f"120 kept ({120 - len(train_lines)} of them held out, with 10 different sources)" in printed
        assert "valid: 0 of 10 sources also occur in the training text\n" in printed
        outputs.append(set(valid))
        assert main([*command, "--hold-out", "10"]) == 0  # up to date
        assert main([*command, "--hold-out", "11"]) == 2 and "different --hold-out" in capfd.readouterr().err
        assert main([*command]) == 2 and "different --hold-out" in capfd.readouterr().err
    assert outputs[0] == outputs[1]
    other = [*command[:-2], f"--out={tmp_path / 'other'}", "--quiet"]
    assert main([*other, "--hold-out", "50"]) == 2
    assert "got 50 of 50 distinct sources; try --hold-out 5\n" in capfd.readouterr().err
    valid = [f"--valid-src={out / 'valid.src'}", f"--valid-tgt={out / 'valid.tgt'}"]
    assert main([*other, *valid, "--hold-out", "5"]) == 2
    assert "--hold-out cannot be combined with --valid-src; try" in capfd.readouterr().err
    assert main(["data", "multi30k", "--out", str(tmp_path / "m"), "--hold-out", "5"]) == 2
    assert "data multi30k: --hold-out applies only to `data own`" in capfd.readouterr().err
