"""System calls that fail: a file system that cannot sync folders can hold runs, and any other error is one line."""

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.helpers.trainings import outcome, run
from train import UserError, average_checkpoints
from train.cli import main
from train.files import WriteError, write_text
from train.json_files import write_sealed
from train.run.folder import RunFolder

UNSUPPORTED = [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP]


def fail(monkeypatch, module, name, number, is_affected=lambda *arguments: True):
    """Let a function of a module fail with an error for the arguments that `is_affected` accepts."""
    original = getattr(module, name)

    def failing(*arguments):
        if is_affected(*arguments):
            raise OSError(number, os.strerror(number))
        return original(*arguments)

    monkeypatch.setattr(module, name, failing)


def is_folder(descriptor):
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


@pytest.mark.parametrize("number", UNSUPPORTED)
def test_a_file_system_that_cannot_sync_folders_can_hold_runs(text, uninterrupted, tmp_path, monkeypatch, number):
    fail(monkeypatch, os, "fsync", number, is_folder)
    run(text, tmp_path / "run", max_steps=7)
    run(text, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run", 7) == outcome(uninterrupted)
    assert average_checkpoints(tmp_path / "run", 2).is_dir()


@pytest.mark.parametrize(
    ("module", "name", "number", "is_affected"),
    [
        *((os, "fsync", number, lambda descriptor: not is_folder(descriptor)) for number in UNSUPPORTED),
        (os, "fsync", errno.EBADF, is_folder),
        *((fcntl, "flock", number, lambda *arguments: True) for number in (errno.EDEADLK, errno.ENOTTY)),
        (os, "fchmod", errno.ENOSYS, lambda *arguments: True),
    ],
)
def test_any_other_error_ends_in_one_line(
    text, copied, tmp_path, monkeypatch, capsys, module, name, number, is_affected
):
    (tmp_path / "file").write_text("earlier")
    before = {path: path.read_bytes() for path in (copied / "checkpoints").rglob("*") if path.is_file()}
    fail(monkeypatch, module, name, number, is_affected)
    for write in (write_text, lambda path, content: write_sealed(path, {"content": content})):
        with pytest.raises(WriteError, match=f"got '{os.strerror(number)}'; earlier files are intact; try"):
            write(tmp_path / "file", "new")
    if name != "fchmod":
        assert main(["average", str(copied), "--last", "2"]) == 2
        assert main(["train", "--resume", "--out", str(copied), "--set", "train.max_steps=13", "--quiet"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2 and all(os.strerror(number) in line and "internal" not in line for line in lines), lines
    monkeypatch.undo()
    assert is_affected is is_folder or (tmp_path / "file").read_text() == "earlier"
    assert (
        before.items()
        <= {path: path.read_bytes() for path in (copied / "checkpoints").rglob("*") if path.is_file()}.items()
    )
    assert run(text, copied, resume=True, max_steps=13).step == 13


@pytest.mark.parametrize("folder", ["", "checkpoints"])
def test_an_unreadable_run_is_named_instead_of_the_output(text, copied, tmp_path, monkeypatch, capsys, folder):
    original = Path.stat
    closed = copied / folder

    def stat_outside(path, **options):
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, **options)

    monkeypatch.setattr(Path, "stat", stat_outside)
    files = [f"--input={text / 'valid.en'}", f"--output={tmp_path / 'output'}"]
    assert main(["translate", f"--model={copied}", *files]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"npx-transformer: {copied}") and err.count("\n") == 1
    assert "expected permission to read and write; got 'Permission denied'" in err and "output" not in err
    assert not (tmp_path / "output").exists()


def test_a_leftover_that_cannot_be_removed_is_named(copied, monkeypatch):
    leftover = copied / "checkpoints/.averaged.partial"
    leftover.mkdir()
    fail(monkeypatch, shutil, "rmtree", errno.EBUSY, lambda path, *rest: str(path) == str(leftover))  # a mount
    with pytest.raises(
        UserError, match=f"^{leftover}: expected a leftover .*; got 'Device or resource busy'; .* removing"
    ):
        average_checkpoints(copied, 2)
    assert not RunFolder(copied).averaged_path.exists()
