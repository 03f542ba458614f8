"""The run folder: nothing is lost to a concurrent program, a failing start or the leftovers of a kill."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.helpers import trainings
from tests.helpers.command_line import files_of
from tests.helpers.trainings import Crash, config, metrics, one_line, outcome, run
from train import RunConfig, Trainer, UserError, average_checkpoints, files, train
from train.files import WriteError, atomic_write, write_text
from train.json_files import read_sealed, write_sealed
from train.learn import checkpointer
from train.run import checkpoint, storage
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder, similar_run
from train.run.report import LineFile
from train.run.state import RunState


def in_a_thread(call):
    """Return the message of the UserError that a call raises in another thread, as in another program."""
    caught = []
    thread = threading.Thread(target=lambda: caught.append(pytest.raises(UserError, call)))
    thread.start()
    thread.join()
    return one_line(caught[0])


# ---- the lock


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_in_a_folder_fails_without_disturbing_the_first(text, tmp_path, monkeypatch, resume):
    out = tmp_path / "run"
    after = Trainer._after_update
    errors = []

    def second(self):
        after(self)
        if self.state.step == 7:
            before = files_of(out)
            errors.append(in_a_thread(lambda: run(text, out, resume=resume)))
            errors.append(in_a_thread(lambda: average_checkpoints(out, 1)))
            assert files_of(out) == before

    monkeypatch.setattr(Trainer, "_after_update", second)
    run(text, out)
    if resume:
        assert all(f"in use by train (process {os.getpid()} on " in line for line in errors)
    assert len(errors) == 2 and not (out / "lock").exists()
    monkeypatch.undo()
    average_checkpoints(out, 2)


def test_of_two_concurrent_starts_one_fails_and_removes_nothing(text, tmp_path, monkeypatch):
    """The second start has already checked the folder when the first one begins."""
    out = tmp_path / "run"
    check = RunFolder.check
    checks = []

    def between(self, resume):
        check(self, resume)
        if not checks:
            checks.append("")
            thread = threading.Thread(target=lambda: run(text, out, max_steps=3))
            thread.start()
            thread.join()

    monkeypatch.setattr(RunFolder, "check", between)
    with pytest.raises(UserError, match="got an existing run folder"):
        run(text, out)
    assert load_checkpoint(out / "checkpoints" / "step-3").state["step"] == 3
    assert (out / "tokenizer.json").exists() and metrics(out)


@pytest.mark.parametrize("child_holds_it", [False, True])
def test_a_killed_process_holds_no_lock(text, tmp_path, child_holds_it):
    """The lock is free even if a forked child of the process still has the lock file open for a moment."""
    (tmp_path / "run").mkdir()
    program = "import os, sys, time; from train.lock import lock_folder; from pathlib import Path\n"
    program += "with lock_folder(Path(sys.argv[1]), 'test'):\n"
    if child_holds_it:
        program += "    os.fork() or time.sleep(1.5) or os._exit(0)\n"
    program += "    print('held', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program, tmp_path / "run"], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match=f"in use by test .process {child.pid} on "):
        run(text, tmp_path / "run", max_steps=1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert run(text, tmp_path / "run", max_steps=1).step == 1


def test_a_lock_whose_file_was_just_removed_is_taken_again(tmp_path, monkeypatch):
    """The holder ends and removes the file after this program has opened the file and before it locks it."""
    try_lock = files.try_lock
    removed = []

    def end_of_the_holder(descriptor):
        if not removed:
            removed.append((tmp_path / "lock").unlink())
        return try_lock(descriptor)

    monkeypatch.setattr(files, "try_lock", end_of_the_holder)
    with RunFolder(tmp_path).lock("train") as lock:
        lock.check()
    assert removed and not (tmp_path / "lock").exists()


@pytest.mark.parametrize("folder", ["", "checkpoints", "data/train", "data/valid"])
def test_what_a_killed_process_only_partially_wrote_is_removed(tmp_path, folder):
    written = [".config.toml.partial", ".step-4.partial", "..best.replaced.old.partial", ".src.tokens.partial"]
    for name in (*written, ".x.partial", "train.part-1", "x", ".y"):
        (tmp_path / folder / name).mkdir(parents=True)
    RunFolder(tmp_path).remove_leftovers()
    assert {*os.listdir(tmp_path / folder)} == {".x.partial", "train.part-1", ".y", "x"}


def test_a_moved_run_folder_is_an_error_and_not_recreated(text, tmp_path, monkeypatch):
    after = Trainer._after_update
    out = tmp_path / "run"

    def move(self):
        if self.state.step == 7:
            out.rename(tmp_path / "elsewhere")
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", move)
    with pytest.raises(UserError, match="was moved or deleted while"):
        run(text, out)
    monkeypatch.undo()
    assert not out.exists()
    assert run(text, tmp_path / "elsewhere", resume=True).step == 12


@pytest.mark.parametrize("content", ["my door codes", "{}", '{"program"'])
def test_a_lock_of_another_program_is_not_touched(text, tmp_path, content):
    (tmp_path / "lock").write_text(content)
    if content == '{"program"':  # a full disk may truncate the text of a lock
        assert run(text, tmp_path, max_steps=1).step == 1
        return
    with pytest.raises(UserError, match="lock: expected a lock file that npx-transformer created; got another file"):
        run(text, tmp_path)
    assert (tmp_path / "lock").read_text() == content and os.listdir(tmp_path) == ["lock"]


# ---- validation when resuming


def test_an_edited_config_is_rejected_with_the_key(text, copied):
    file = copied / "config.toml"
    file.write_text(file.read_text().replace("weight_decay = 0.0", "weight_decay = 2.0"))
    with pytest.raises(UserError, match=r"resume: train.weight_decay: expected 0.0 as in .*step-12; got 2.0.*--init"):
        train(RunConfig.load(file, ["train.max_steps=13"]), copied, resume=True, progress=False)


def test_changed_token_arrays_are_prepared_again(text, copied, uninterrupted):
    for name in ("src.tokens", "tgt.offsets", "meta.json"):
        file = copied / "data" / "train" / name
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        run(text, copied, resume=True)
        assert file.read_bytes() == (uninterrupted / "data" / "train" / name).read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        *({"step": 59}, {"step": -1}, {"tokens": -5}, {"index": "x"}, {"index": 10**6}, {"epoch": 1.5}, {"extra": 1}),
        *({"validated": 10**9}, {"best_loss": "nan"}, {"seconds": -1.0}, {"window_loss": None}, {"epoch": True}),
    ],
)
def test_an_invalid_state_with_a_valid_checksum_is_rejected(text, copied, change):
    trainings.rewrite(RunFolder(copied).step_paths()[-1], lambda state: state["run"].update(change))
    with pytest.raises(UserError) as error:
        run(text, copied, resume=True, max_steps=13)
    key = [*change][0]
    words = f"this checkpoint does not fit its run (run{'' if key == 'extra' else f'.{key}'}: expected "
    assert words in one_line(error)


def test_the_state_is_read_from_the_keys_that_it_is_written_to():
    state = RunState(step=7, epoch=2, logged_epoch=2, valid_step=6, best_step=4, stale_validations=1)
    content = state.to_json()
    assert (content["in_epoch"], content["validated"], content["worse"]) == (2, 6, 1)  # as in version 0.2
    assert RunState.read(content, 7) == state


@pytest.mark.parametrize("name", ["adam_steps", "loss_scale", "run", "tokenizer_digest"])
@pytest.mark.parametrize("value", [None, "x", {}, 10**30])
def test_no_value_in_a_state_causes_a_traceback(text, copied, uninterrupted, name, value):
    trainings.rewrite(RunFolder(copied).step_paths()[-1], lambda state: state.update({name: value}))
    try:
        run(text, copied, resume=True)
    except UserError as error:
        assert "\n" not in str(error)
    else:  # from the previous checkpoint
        assert name == "tokenizer_digest" and outcome(copied) == outcome(uninterrupted)


def test_invalid_lines_of_metrics_are_skipped(copied, text, uninterrupted):
    before = RunFolder(copied).metrics()
    with open(copied / "metrics.jsonl", "ab") as file:
        file.write(b'\n[1]\n{"kind": 3}\n\xff\x00\n' + b"[" * 10**5 + b'\n{"kind": "train", "st')
    assert RunFolder(copied).metrics() == before
    run(text, copied, resume=True)
    assert outcome(copied) == outcome(uninterrupted)
    (copied / "metrics.jsonl").unlink()
    (copied / "metrics.jsonl").mkdir()
    with pytest.raises(UserError) as error:
        run(text, copied, resume=True)
    assert "expected a regular file to write; got an empty folder; try removing it" in one_line(error)


# ---- a full disk, a time limit, a kill


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_failed_checkpoint_is_retried(text, uninterrupted, tmp_path, monkeypatch, number):
    sealed_json = storage.sealed_json
    tries = []

    def full(content):
        tries.append(content["step"])
        if content["step"] in (6, 7):
            raise OSError(number, os.strerror(number))
        return sealed_json(content)

    monkeypatch.setattr(storage, "sealed_json", full)
    monkeypatch.setattr(checkpointer, "RETRY_SECONDS", -1)
    run(text, tmp_path / "run")
    assert tries == [3, 6, 7, 8, 9, 12]
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert log.count(os.strerror(number)) == 2 and "training continues; the next attempt" in log
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


def test_log_lines_are_buffered_while_the_disk_is_full(text, tmp_path, monkeypatch):
    write = LineFile._write
    calls = []

    def full(self):
        calls.append(self.path.name)
        if 4 < len(calls) < 9:
            raise WriteError("full")
        write(self)

    monkeypatch.setattr(LineFile, "_write", full)
    run(text, tmp_path / "run")
    monkeypatch.undo()
    run(text, tmp_path / "other")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "other")


def test_max_hours_stops_in_time_and_resume_is_exact(text, uninterrupted, tmp_path, monkeypatch):
    monotonic = time.monotonic
    update = Trainer._run_update
    spent = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + spent[0])

    def slow(self):
        spent[0] += 1000.0
        return update(self)

    monkeypatch.setattr(Trainer, "_run_update", slow)
    summary = train(config(text), tmp_path / "run", progress=False, max_hours=4900 / 3600)
    assert summary.stop_reason == "max_hours" and summary.step == 5 and summary.checkpoint.name == "step-5"
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert log.endswith("/checkpoints/step-5; continue with --resume\n")
    monkeypatch.undo()
    run(text, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(uninterrupted)
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == sorted(os.listdir(uninterrupted / "checkpoints"))


def test_a_kill_before_pruning_leaves_the_same_checkpoints_after_resuming(text, uninterrupted, tmp_path, monkeypatch):
    out = tmp_path / "run"
    remove = checkpoint.remove_folder

    def crash(path):
        raise Crash

    monkeypatch.setattr(checkpoint, "remove_folder", crash)
    with pytest.raises(Crash):
        run(text, out)
    monkeypatch.setattr(checkpoint, "remove_folder", remove)
    run(text, out, resume=True)
    assert outcome(out) == outcome(uninterrupted)
    assert sorted(os.listdir(out / "checkpoints")) == sorted(os.listdir(uninterrupted / "checkpoints"))


def test_a_link_without_a_target_is_named(text, tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UserError, match="link: expected a new run folder; got a broken link; try"):
        run(text, tmp_path / "link")


# ---- writing files


def test_an_output_that_the_user_named_follows_links_and_keeps_its_permissions(tmp_path):
    def write(name):
        with atomic_write(tmp_path / name, "t", follow_links=True) as file:
            file.write("after")

    (tmp_path / "file").write_text("before")
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("file")
    write("link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "after"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="a cycle of links"):
        write("loop")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "loop"]


def test_follow_links_writes_into_devices_and_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for path in ("/dev/null", tmp_path / "pipe"):
        with atomic_write(path, "t", follow_links=True) as file:
            file.write("through")
    assert os.read(reader, 99) == b"through"
    os.close(reader)
    assert not os.path.isfile("/dev/null") and not os.path.isfile(tmp_path / "pipe")
    write_text(tmp_path / "pipe", "instead")  # without follow_links a pipe is replaced by a file
    assert (tmp_path / "pipe").read_text() == "instead"
    os.mkfifo(tmp_path / "log.txt")
    with pytest.raises(UserError, match="a regular file to write; got a pipe"):
        with LineFile(tmp_path / "log.txt"):
            pass


def test_a_second_writer_of_a_file_is_rejected(tmp_path):
    with atomic_write(tmp_path / "file", "t") as file:
        with pytest.raises(UserError, match="another program is writing this file"):
            write_text(tmp_path / "file", "second")
        file.write("first")
    assert (tmp_path / "file").read_text() == "first"
    assert json.loads('["nothing else"]') and [path.name for path in tmp_path.iterdir()] == ["file"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(st.text(), JSON), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@example(content={"n": 10**60}, at=0.3, bit=0)  # changes a digit
def test_a_damaged_sealed_file_is_never_read(tmp_path, content, at, bit):
    note = tmp_path / "note.json"
    write_sealed(note, content)
    assert read_sealed(note) == content
    raw = bytearray(note.read_bytes())
    raw[int(at * len(raw))] ^= 1 << bit
    note.write_bytes(raw)
    assert read_sealed(note) in (None, content)  # whitespace may change
    note.write_bytes(raw[: int(at * len(raw))])
    assert read_sealed(note) in (None, content) and read_sealed(tmp_path / "none") is None


# ---- a new folder that the user moves


@pytest.mark.parametrize("content", [None, "tokenizer.json"])
def test_a_new_folder_in_place_of_a_moved_run_is_not_removed(tmp_path, content):
    """The program ends before the first update, and the user has created another folder under the same name."""
    out = tmp_path / "run"
    with pytest.raises(KeyError), RunFolder(out).creating(resume=False):
        (out / "config.toml").write_text("")
        out.rename(tmp_path / "moved")
        out.mkdir()
        if content:
            (out / content).write_text("")
        raise KeyError
    assert os.listdir(out) == [content] * bool(content) and "config.toml" in os.listdir(tmp_path / "moved")


def test_a_new_folder_in_place_of_a_moved_run_that_is_trained_is_not_removed(text, tmp_path, monkeypatch):
    after = Trainer._after_update
    out = tmp_path / "run"

    def move(self):
        if self.state.step == 7:
            out.rename(tmp_path / "moved")
            out.mkdir()
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", move)
    with pytest.raises(UserError, match="was moved or deleted while"):
        run(text, out)
    assert out.is_dir()


def test_moved_checkpoints_are_reported(text, tmp_path, monkeypatch, capfd):
    out = tmp_path / "run"
    after = Trainer._after_update

    def move(self):
        if self.state.step == 7:
            (out / "checkpoints").rename(tmp_path / "moved")
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", move)
    run(text, out)
    message = f"warning: {out / 'checkpoints/step-6'} was moved or removed; training continues with a new checkpoint\n"
    assert capfd.readouterr().err.count(message) == 1 and message in (out / "log.txt").read_text()
    assert [path.name for path in RunFolder(out).step_paths()] == ["step-9", "step-12"]


def test_only_a_readable_run_with_a_misspelled_name_is_suggested(tmp_path, monkeypatch):
    for name in ("base-1", "data"):
        (tmp_path / name / "checkpoints" / "step-3").mkdir(parents=True)
    (tmp_path / "bose-1").mkdir()
    assert similar_run(tmp_path / "bsae-1") == str(tmp_path / "base-1")
    assert (
        similar_run(tmp_path / "base-2") == similar_run(tmp_path / "other") == similar_run(tmp_path / "x" / "y") == ""
    )

    def refuse(run):
        raise WriteError(f"{run.path}: no permission", "")

    monkeypatch.setattr(RunFolder, "step_paths", refuse)
    assert similar_run(tmp_path / "bsae-1") == ""
