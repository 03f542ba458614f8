"""Links in run and data folders, symbolic and hard: nothing is written through them."""

import os
import shutil

import pytest

from tests.helpers.trainings import outcome, run
from train import Trainer, UserError, average_checkpoints
from train.cli import main
from train.experiments.folder import open_table_folder
from train.files import atomic_write, open_for_appending
from train.learn import checkpointer
from train.learn.checkpointer import Checkpointer
from train.run.checkpoint import load_model
from train.run.folder import RunFolder
from train.run.report import RunReport

PRECIOUS = "a file of another user\n"


@pytest.fixture(scope="module")
def foreign(text, tmp_path_factory):
    """A run with the same text and tokenizer, but another seed."""
    out = tmp_path_factory.mktemp("foreign") / "run"
    run(text, out, seed=7)
    return out


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "lock", "config.toml", ".config.toml.partial"])
def test_links_in_a_run_are_never_written_through(copied, text, name):
    victim = copied.parent / "victim"
    victim.write_text(PRECIOUS if name != "config.toml" else (copied / name).read_text())
    before = victim.read_bytes()
    (copied / name).unlink(missing_ok=True)
    (copied / name).symlink_to("../victim")
    try:
        run(text, copied, resume=True, max_steps=13)
    except UserError as error:
        assert f"{copied / name}: expected a regular file to write; got a link; try removing it" in str(error)
    assert victim.read_bytes() == before


@pytest.mark.parametrize("name", [".step-13.partial", ".step-13.replaced", ".step-6.old.partial", "step-13"])
@pytest.mark.parametrize("target", ["victim", "victims"])
def test_links_in_place_of_checkpoint_folders_are_replaced(copied, text, name, target):
    (copied.parent / "victims").mkdir()
    for file in ("victim", "victims/model.safetensors"):
        (copied.parent / file).write_text(PRECIOUS)
    (copied / "checkpoints" / name).symlink_to(copied.parent / target)
    run(text, copied, resume=True, max_steps=13)
    assert RunFolder(copied).step_paths()[-1].name == "step-13" and not (copied / "checkpoints/step-13").is_symlink()
    assert (
        (copied.parent / "victim").read_text() == PRECIOUS == (copied.parent / "victims/model.safetensors").read_text()
    )


HARD_LINKED = ["lock", "log.txt", "metrics.jsonl", "metrics.csv", "config.toml", ".config.toml.partial"]


@pytest.mark.parametrize("name", HARD_LINKED)
def test_hard_links_in_a_run_are_never_written_through(copied, text, name):
    victim = copied.parent / "victim"
    victim.write_text(PRECIOUS if name != "config.toml" else (copied / name).read_text())
    victim.chmod(0o640)
    before = victim.read_bytes()
    (copied / name).unlink(missing_ok=True)
    os.link(victim, copied / name)
    if name == "lock":
        with pytest.raises(UserError, match="expected a lock file that npx-transformer created; got another file"):
            run(text, copied, resume=True, max_steps=13, csv=True)
        (copied / name).unlink()
    run(text, copied, resume=True, max_steps=13, csv=True)
    assert victim.read_bytes() == before and not (copied / "lock").exists()
    assert (copied / "log.txt").read_text().count("done after step 13") == 1
    if name == "log.txt":
        assert (copied / name).read_text().startswith(PRECIOUS) and (copied / name).stat().st_mode & 0o777 == 0o640


def test_a_backup_of_hard_links_stays_unaltered_and_can_continue(copied, text):
    """`cp -al RUN BACKUP` during a training run also links the lock, which its holder keeps."""
    backup = copied.parent / "backup"
    with RunFolder(copied).lock("train"):
        shutil.copytree(copied, backup, copy_function=os.link)
        with pytest.raises(UserError, match="backup is in use by train"):
            run(text, backup, resume=True)
        run(text, copied, resume=True, max_steps=13)
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    run(text, copied, resume=True, max_steps=14)
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before
    run(text, backup, resume=True, max_steps=14)
    assert outcome(backup)[0] == outcome(copied)[0]


def test_a_backup_of_hard_links_during_the_training_stays_unaltered(text, tmp_path, monkeypatch):
    out = tmp_path / "run"
    backup = tmp_path / "backup"
    after = Trainer._after_update
    before = {}

    def copy(self):
        if self.state.step == 5:
            shutil.copytree(out, backup, copy_function=os.link)
            before.update({path: path.read_bytes() for path in backup.rglob("*") if path.is_file()})
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", copy)
    run(text, out, csv=True)
    assert before and {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before
    assert RunFolder(out).metrics()[-1]["step"] == 12
    monkeypatch.undo()
    run(text, backup, resume=True)
    assert outcome(backup)[0] == outcome(out)[0]


@pytest.mark.parametrize("name", ["checkpoints", "data", "data/train", "data/valid", "tensorboard"])
def test_a_link_in_place_of_a_folder_of_the_run_is_rejected(copied, text, name):
    victims = copied.parent / "victims"
    if (copied / name).exists():
        (copied / name).rename(victims)
    for folder in (victims, victims / "step-9"):
        folder.mkdir(exist_ok=True, parents=True)
        for file in (".x.partial", "x.part-1"):
            (folder / file).write_text(PRECIOUS)
    (copied / name).symlink_to(victims)
    before = {path: path.stat().st_mtime_ns for path in victims.rglob("*")}
    for write in (lambda: run(text, copied, resume=True, max_steps=13), lambda: average_checkpoints(copied, 2)):
        with pytest.raises(
            UserError,
            match=f"run/{name}: expected a folder that npx-transformer created; got a symbolic link; try moving",
        ):
            write()
    assert {path: path.stat().st_mtime_ns for path in victims.rglob("*")} == before
    load_model(copied)  # reading is safe


def test_a_link_that_appears_during_the_training_ends_it(text, tmp_path, monkeypatch):
    out = tmp_path / "run"
    after = Trainer._after_update

    def swap(self):
        if self.state.step == 5:
            (out / "checkpoints").rename(tmp_path / "moved")
            (tmp_path / "victims").mkdir()
            (out / "checkpoints").symlink_to(tmp_path / "victims")
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", swap)
    with pytest.raises(
        UserError, match="run/checkpoints: expected a folder that npx-transformer created; got a symbolic link"
    ):
        run(text, out)
    assert not list((tmp_path / "victims").iterdir())


@pytest.mark.parametrize("moment", ["sync", "save_best", "prune"])
def test_a_link_that_appears_just_before_a_checkpoint_is_not_followed(text, tmp_path, monkeypatch, moment):
    """After the check of the lock, another user replaces `checkpoints` with a link to those of another run."""
    out, victims = tmp_path / "run", tmp_path / "victims"
    (victims / "step-1").mkdir(parents=True)
    (victims / "best-1").mkdir()
    owner, name = {
        "sync": (RunReport, "sync"),
        "save_best": (Checkpointer, "_identity"),
        "prune": (checkpointer, "prune"),
    }[moment]
    original = getattr(owner, name)

    def swap(self, *arguments):
        if not (out / "checkpoints").is_symlink() and (out / "checkpoints/step-6").exists():
            (out / "checkpoints").rename(tmp_path / "moved")
            (out / "checkpoints").symlink_to(victims)
            for path in (tmp_path / "moved").iterdir():  # so that they count as checkpoints of this run
                shutil.copytree(path, victims / path.name)
        return original(self, *arguments)

    monkeypatch.setattr(owner, name, swap)
    with pytest.raises(UserError, match="checkpoints: expected a folder that npx-transformer created; got a symbolic"):
        run(text, out, best_metric="loss", keep_best=2, keep_last=1)
    assert {path.name for path in victims.iterdir()} == {"step-1", "best-1"} | set(os.listdir(tmp_path / "moved"))


def test_a_run_behind_a_link_continues(copied, text):
    (copied.parent / "link").symlink_to(copied)
    run(text, copied.parent / "link", resume=True, max_steps=13)
    assert RunFolder(copied).step_paths()[-1].name == "step-13"


@pytest.mark.parametrize("name", ["step-6", "step-9", "averaged"])
def test_a_checkpoint_that_was_replaced_by_a_link_is_pruned_as_a_link(copied, text, name):
    average_checkpoints(copied, 2)
    target = (copied / "checkpoints" / name).rename(copied.parent / "moved")
    (copied / "checkpoints" / name).symlink_to(target)
    before = {path: path.read_bytes() for path in target.iterdir()}
    run(text, copied, resume=True, max_steps=15, keep_last=1)
    average_checkpoints(copied, 1)
    assert {path: path.read_bytes() for path in target.iterdir()} == before
    assert {path.name for path in (copied / "checkpoints").iterdir()} == {"step-15", "averaged"}


def test_a_replaced_file_keeps_its_permissions_without_setuid(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o6751)
    with atomic_write(tmp_path / "file", "t") as file:
        file.write("new")
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o751


def test_links_in_a_data_folder_are_replaced(tmp_path):
    for side in ("src", "tgt"):
        (tmp_path / side).write_text("".join(f"{side} {n} and {n % 7}\n" for n in range(30)))
    command = ["data", "own", "--vocab-size", "270", "--quiet", "--out", str(tmp_path / "out")]
    command += [f"--train-{side}={tmp_path / side}" for side in ("src", "tgt")]
    assert main(command) == 0
    (tmp_path / "victim").write_text(PRECIOUS)
    for name in ("manifest.json", "texts.json", "train.src", "prepared/train/meta.json"):
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).symlink_to(tmp_path / "victim")
    assert main(command) == 0
    assert (tmp_path / "victim").read_text() == PRECIOUS
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("name", ["downloads", "prepared", "prepared/train"])
@pytest.mark.parametrize("kind", ["new", "complete", "broken"])
def test_a_link_in_place_of_a_folder_of_data_is_rejected(tmp_path, capfd, name, kind):
    for side in ("src", "tgt"):
        (tmp_path / side).write_text("".join(f"{side} {n} and {n % 7}\n" for n in range(30)))
    out, victims = tmp_path / "out", tmp_path / "victims"
    command = ["data", "own", "--vocab-size", "270", "--quiet", "--out", str(out)]
    command += [f"--train-{side}={tmp_path / side}" for side in ("src", "tgt")]
    commands = [command]
    if kind != "new" or name == "prepared/train":
        assert main(command) == 0
        shutil.rmtree(out / name)
        sizes = ["--set", "train.max_steps=1", "--set", "model.d_model=16", "--set", "model.n_layers=1"]
        commands += [["train", "tiny", "--data", str(out), "--out", str(tmp_path / "run"), *sizes]] * ("p" in name[:1])
    (out / name).parent.mkdir(exist_ok=True)
    for folder in (victims, victims / "train"):
        folder.mkdir(exist_ok=True)
        for file in ("src.tokens", "meta.json"):
            (folder / file).write_text(PRECIOUS)
    (out / name).symlink_to(victims if kind != "broken" else tmp_path / "nothing")
    before = {path: path.stat().st_mtime_ns for path in victims.rglob("*")}
    for arguments in commands:
        capfd.readouterr()
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert f"out/{name}: expected a folder that npx-transformer created; got a symbolic link; try moving" in err
        assert {path: path.stat().st_mtime_ns for path in victims.rglob("*")} == before
        assert (out / name).is_symlink() and not (tmp_path / "nothing").exists()


def test_a_link_in_place_of_a_row_of_a_table_is_rejected(tmp_path):
    open_table_folder(tmp_path / "out", {})
    (tmp_path / "out" / "base").symlink_to(tmp_path)
    with pytest.raises(
        UserError, match="out/base: expected a folder that npx-transformer created; got a symbolic link"
    ):
        open_table_folder(tmp_path / "out", {})
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "base").unlink()
    open_table_folder(tmp_path / "link", {})


@pytest.mark.parametrize("other", ["link", "folder", "pipe"])
def test_only_a_regular_file_is_opened_for_appending(tmp_path, other):
    path = tmp_path / "log.txt"
    {"link": lambda: path.symlink_to("/dev/null"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[other]()
    with pytest.raises(UserError, match=f"log.txt: expected a regular file to write; got an? .*{other[:4]}"):
        open_for_appending(path)
