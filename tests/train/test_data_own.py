"""`data own` for a folder that exists: the same texts under other paths, changes, refusals and interruptions."""

import errno
import gzip
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.helpers.data_own import SIDES, contents, prepare
from train.cli import main
from train.errors import UserError
from train.files import WriteError
from train.json_files import sealed_json
from train.lock import lock_folder
from train.text.download import prepare as preparing
from train.text.download.manifest import data_keys


def test_a_complete_folder_is_not_replaced_by_other_texts_or_settings(text, tmp_path, capfd):
    out = tmp_path / "out"
    assert prepare(text, out) == 0
    before = contents(out)
    for options, change in (
        ({"part": "valid"}, f"text ({text}/train.en)"),
        ({"valid": "train"}, f"text ({text}/valid.en)"),
        ({"valid": ""}, f"text ({text}/valid.en)"),
    ):
        assert prepare(text, out, **options) == 2
        err = capfd.readouterr().err
        assert f"with a different {change}, and runs" in err
        assert f"; repeat the command in {out / 'manifest.json'}, choose another --out, or" in err
    for option, change in (
        ("--vocab-size=266", "--vocab-size"),
        ("--max-length=20", "--max-length"),
        ("--max-ratio=2", "--max-ratio"),
        ("--keep-non-latin", "--keep-non-latin"),
        ("--tokenizer-lines=3", "--tokenizer-lines"),
    ):
        assert prepare(text, out, option) == 2
        err = capfd.readouterr().err
        assert f"{out} was prepared with a different {change}, and runs" in err and err.count("\n") == 1
    assert contents(out) == before
    (out / "manifest.json").unlink()  # as after an interruption: nothing trains on it
    assert prepare(text, out, "--vocab-size=266") == 0


@pytest.mark.parametrize("record", [None, "", "{}"])
def test_a_manifest_without_a_record_protects_its_folder(text, tmp_path, capfd, record):
    out = tmp_path / "out"
    assert prepare(text, out) == 0
    before = contents(out)
    (out / "texts.json").unlink() if record is None else (out / "texts.json").write_text(record)
    changed = contents(out)
    for options, words, change in (
        (["--vocab-size=266"], {}, "--vocab-size"),
        ([], {"part": "valid"}, f"text ({text}/train.en)"),
        ([], {"valid": ""}, f"text ({text}/valid.en)"),
    ):
        assert prepare(text, out, *options, **words) == 2
        assert f"{out} was prepared with a different {change}, and runs" in capfd.readouterr().err
        assert contents(out) == changed
    assert prepare(text, out) == 0 and contents(out) == before


def test_two_commands_do_not_write_one_folder(text, tmp_path, capfd):
    out = tmp_path / "out"
    out.mkdir()
    locked, done = threading.Event(), threading.Event()

    def hold():
        with lock_folder(out, "data"):
            locked.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    try:
        assert prepare(text, out) == 2 and [path.name for path in out.iterdir()] == ["lock"]
        assert f"{out} is in use by data (process " in capfd.readouterr().err
    finally:
        done.set()
        thread.join()
    (out / "lock").touch()  # a killed command leaves its lock behind
    assert prepare(text, out) == 0 and not (out / "lock").exists()


def test_a_text_that_changes_while_it_is_read_is_refused(text, tmp_path, monkeypatch, capfd):
    user_folder, out = tmp_path / "mine", tmp_path / "out"
    shutil.copytree(text, user_folder)
    read_pairs = preparing.read_pairs

    def change_and_read(pair, folder):
        for language in ("en", "de"):
            with open(user_folder / f"train.{language}", "a") as file:
                file.write("another line\n")
        return read_pairs(pair, folder)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "read_pairs", change_and_read)
        assert prepare(user_folder, out) == 2
    assert "train.en: the text changed while it was being read; try the same command again\n" in capfd.readouterr().err
    assert not out.exists() and prepare(user_folder, out) == 0


def test_a_new_folder_in_place_of_a_moved_one_is_kept(text, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def move(*arguments):
        out.rename(tmp_path / "moved")
        out.mkdir()
        (out / "tokenizer.json").write_text("mine")
        raise UserError("no text")

    monkeypatch.setattr(preparing, "write_texts", move)
    assert prepare(text, out) == 2
    assert os.listdir(out) == ["tokenizer.json"]


def test_changed_moved_and_added_texts_are_prepared_again(text, tmp_path, capfd):
    user_folder, out = tmp_path / "mine", tmp_path / "out"
    shutil.copytree(text, user_folder)
    assert prepare(user_folder, out, valid="") == 0
    before = contents(out / "prepared")
    assert prepare(user_folder, out) == 0 and (out / "prepared" / "valid").is_dir()
    assert prepare(text, out) == 0  # from another folder
    assert {path: content for path, content in contents(out / "prepared").items() if path in before} == before


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"one\ntwo\n", b"eins\nzwei\ndrei\n", "expected equal numbers of lines"),
        (b"one\n", b"\xff\n", "expected UTF-8 text"),
        (b"\n", b"\n", "expected at least one pair of lines with text"),
        (b"one " * 300, b"eins", "expected at least one pair; got 0 pairs with an empty side and 1 over max_length"),
    ],
)
def test_an_unsuitable_validation_text_leaves_a_complete_folder(text, tmp_path, capfd, source, target, message):
    out = tmp_path / "out"
    assert prepare(text, out, valid="") == 0
    manifest = (out / "manifest.json").read_bytes()
    for language, content in (("en", source), ("de", target)):
        (tmp_path / f"valid.{language}.gz").write_bytes(gzip.compress(content))
    valid = [f"--valid-{side}={tmp_path / f'valid.{language}.gz'}" for side, language in SIDES]
    assert prepare(text, out, *valid, valid="") == 2 and message in capfd.readouterr().err
    assert (out / "manifest.json").read_bytes() == manifest and data_keys(out)["train_src"] == f"{out / 'train.src'}"
    assert prepare(text, out, part="valid", valid="") == 2, "other texts"
    assert "was prepared with a different text" in capfd.readouterr().err
    assert prepare(text, out) == 0 and data_keys(out)["valid_src"] == f"{out / 'valid.src'}"


@pytest.mark.parametrize("folder", [".", "./../mine", "moved"])
def test_texts_under_another_path_are_up_to_date(text, tmp_path, monkeypatch, capfd, folder):
    user_folder, out = tmp_path / "mine", tmp_path / "out"
    shutil.copytree(text, user_folder)
    shutil.copytree(text, user_folder / "moved")
    assert prepare(user_folder, out) == 0
    before = {path: path.stat().st_mtime_ns for path in contents(out)}
    monkeypatch.chdir(user_folder)
    capfd.readouterr()
    assert prepare(folder, out) == 0
    assert "have changed" not in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in contents(out)} == before
    source = Path(json.loads((out / "manifest.json").read_text())["sources"][0]["file"])
    assert source.samefile(user_folder / folder / "train.en")


def test_a_pipe_in_place_of_a_text_is_answered_with_a_file(text, tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe")
    files = ["--train-src", str(tmp_path / "pipe"), "--train-tgt", str(text / "train.de")]
    assert main(["data", "own", *files, "--out", str(tmp_path / "out")]) == 2
    assert capfd.readouterr().err.endswith(
        "expected a text file; got a pipe; try writing its content to a file first\n"
    )


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    "options", [["--vocab-size=9000"], ["--max-length=2"], ["--hold-out=99", "--valid-src=", "--valid-tgt="]]
)
def test_a_refused_command_leaves_nothing(text, tmp_path, exists, options):
    out = tmp_path / "new" / "out"
    if exists:
        (out / "downloads").mkdir(parents=True)
        (out / "downloads" / "mine").touch()
    assert prepare(text, out, *options) == 2
    assert [*tmp_path.rglob("*")] == [out.parent, out, out / "downloads", out / "downloads" / "mine"] * exists
    assert prepare(text, out) == 0


def test_a_refused_command_removes_only_what_it_wrote(text, tmp_path, monkeypatch):
    """Another program writes into the folder while the tokenizer is trained."""
    out = tmp_path / "out"
    train = preparing.train_tokenizer

    def write_and_train(*arguments):
        (out / "mydir").mkdir()
        for name in ("mydir/x", "notes.txt", ".report.partial"):
            (out / name).write_text("mine")
        return train(*arguments)

    monkeypatch.setattr(preparing, "train_tokenizer", write_and_train)
    assert prepare(text, out, "--vocab-size=16777216") == 2
    assert {path.name for path in out.rglob("*") if path.is_file()} == {"x", "notes.txt", ".report.partial"}


@pytest.mark.parametrize(
    ("line", "options", "removed", "remedy"),
    [
        ("Это дом", (), "0 length ratio, 1 not Latin", "--keep-non-latin"),
        ("one two", ("--max-words=1",), "1 too long, 0 length ratio", "--max-words 0"),
        ("one or two", ("--max-ratio=1",), "1 length ratio, 0 not Latin", "--max-ratio 0"),
        ("Это дом", ("--hold-out=1",), "0 length ratio, 1 not Latin", "--keep-non-latin"),
    ],
)
def test_a_text_that_is_empty_after_cleaning_is_refused(tmp_path, capfd, line, options, removed, remedy):
    for name, text in (("src", f"{line}\n"), ("tgt", "two\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [f"--train-{side}={tmp_path / side}" for side in ("src", "tgt")]
    assert main(["data", "own", *files, *options, f"--out={tmp_path / 'out'}"]) == 2
    err = capfd.readouterr().err.splitlines()[-1]
    assert "train: expected at least one pair; got 0 of 1 after cleaning, which removed 0 empty, " in err
    assert removed in err and err.endswith(f"; try {remedy}")


def test_a_validation_text_of_empty_lines_is_refused(text, tmp_path, capfd):
    for side in ("en", "de"):
        (tmp_path / f"empty.{side}").write_text("\n\n", encoding="utf-8")
    files = [f"--train-src={text / 'train.en'}", f"--train-tgt={text / 'train.de'}"]
    files += [f"--valid-src={tmp_path / 'empty.en'}", f"--valid-tgt={tmp_path / 'empty.de'}"]
    assert main(["data", "own", *files, f"--out={tmp_path / 'out'}"]) == 2
    err = capfd.readouterr().err.splitlines()[-1]
    expected = "valid (valid.src, valid.tgt): expected at least one pair of lines with text; got 0; try other files"
    assert err.endswith(expected), err


def test_a_small_text_is_answered_with_a_vocabulary_size_that_fits(tmp_path, capfd):
    files = [f"--train-{side}={tmp_path / side}" for side in ("src", "tgt")]
    for side in ("src", "tgt"):
        (tmp_path / side).write_text("one two\none two three\n")
    assert main(["data", "own", *files, f"--out={tmp_path / 'out'}", "--vocab-size=37000"]) == 2
    assert "; try --vocab-size 260, because with close to " in capfd.readouterr().err
    assert main(["data", "own", *files, f"--out={tmp_path / 'default'}"]) == 0
    err = capfd.readouterr().err
    assert "warning: vocabulary: expected enough text for 37,000 tokens; got enough for " in err
    assert "; try --vocab-size 260 and another --out, because with close to " in err
    train = ["train", "tiny", f"--data={tmp_path / 'default'}", f"--out={tmp_path / 'run'}", "--set=train.max_steps=1"]
    assert main(train) == 0
    assert main(["data", "own", *files, f"--out={tmp_path / 'out'}", "--vocab-size=260"]) == 0


@pytest.mark.parametrize("name", ["begun.json", ".begun.json.partial", "notes/train.en"])
def test_a_text_inside_the_folder_to_write_is_refused(text, tmp_path, capfd, name):
    user_folder = tmp_path / "out" / "downloads" / name
    user_folder.parent.mkdir(parents=True)
    shutil.copy(text / "train.en", user_folder)
    files = [f"--train-src={user_folder}", f"--train-tgt={text / 'train.de'}"]
    assert main(["data", "own", *files, "--vocab-size=265", f"--out={tmp_path / 'out'}"]) == 2
    assert (
        f"{user_folder}: expected a text outside the output folder; got {user_folder}; try another --out"
        in capfd.readouterr().err
    )
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [user_folder]


def test_copied_downloads_do_not_mark_a_folder(text, tmp_path, capfd):
    out, user_folder = tmp_path / "out", tmp_path / "mine"
    assert prepare(text, out) == 0
    shutil.copytree(out / "downloads", user_folder / "downloads")
    (user_folder / "train.src").write_text("mine")
    before = contents(user_folder)
    assert prepare(text, user_folder) == 2 and contents(user_folder) == before
    assert "got a folder with other files" in capfd.readouterr().err
    (user_folder / "train.src").unlink()
    assert prepare(text, user_folder) == 0


@pytest.mark.parametrize("name", ["manifest.json", "begun.json", "texts.json", "prepared/train/meta.json"])
def test_an_unreadable_file_does_not_count_as_damaged(text, tmp_path, monkeypatch, capfd, name):
    out = tmp_path / "out"
    open_ = os.open
    assert prepare(text, out) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}

    def refuse(path, *args, **options):
        if str(path) == str(out / name):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return open_(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert prepare(text, out) == 2 and "Input/output error" in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_in_place_of_the_manifest_is_an_error(text, tmp_path, capfd):
    out = tmp_path / "out"
    assert prepare(text, out) == 0
    (out / "manifest.json").unlink()
    (out / "manifest.json").mkdir()
    before = contents(out)
    for record in (True, False):
        assert prepare(text, out, "--max-length=20") == 2 and contents(out) == before
        assert f"{out / 'manifest.json'}: expected the manifest of `data`; got a folder" in capfd.readouterr().err
        if record:
            (out / "texts.json").unlink()
            before = contents(out)


def test_an_interrupted_command_says_how_to_continue(text, tmp_path, monkeypatch, capfd):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "train_tokenizer", interrupt)
        assert prepare(text, tmp_path / "out") == 130
    assert capfd.readouterr().err.endswith("interrupted; run the same command again to continue\n")
    assert prepare(text, tmp_path / "out") == 0 and "cleaned" not in capfd.readouterr().err
    assert main(["train", str(tmp_path / "out"), "--out", str(tmp_path / "run")]) == 2
    assert f"got a folder; try a preset, such as tiny, with --data {tmp_path / 'out'}\n" in capfd.readouterr().err


def test_a_full_disk_leaves_the_work_that_is_done(text, tmp_path, monkeypatch):
    def fail(*_):
        raise WriteError("x: expected space on the disk")

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "train_tokenizer", fail)
        assert prepare(text, tmp_path / "out") == 2
    assert (tmp_path / "out" / "texts.json").exists()
    assert prepare(text, tmp_path / "out") == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(parts=[]),
        lambda record: record.update(parts={}),
        lambda record: record.update(how=5),
        lambda record: record.update(how=[5, 5]),
        lambda record: record.update(how=[{"train": 5}, [5]]),  # other texts
        lambda record: record["parts"].update(train={}),
        lambda record: record["parts"]["train"].update(lines="x"),
        lambda record: record["parts"]["train"].update(counts={}),
        lambda record: record["parts"]["train"].update(sha256={}),
        lambda record: record["parts"]["valid"].update(sha256={"src": 5}),
    ],
)
def test_a_forged_record_of_the_texts_is_damage(text, tmp_path, change):
    out = tmp_path / "out"
    assert prepare(text, out) == 0
    before = contents(out)
    record = json.loads((out / "texts.json").read_text())
    del record["sha256_of_this"]
    change(record)
    (out / "texts.json").write_text(sealed_json(record))
    forged = contents(out)
    status = prepare(text, out)
    assert status in (0, 2) and contents(out) == (forged if status else before)
