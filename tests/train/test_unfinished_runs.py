"""Run folders without a checkpoint or with foreign files, in which training starts over, resumes or is refused."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.command_line import files_of
from tests.helpers.trainings import Crash, config, crash_after, one_line, outcome, run, tables
from train import RunConfig, Trainer, UserError, average_checkpoints, train
from train.learn import checkpointer, training
from train.run import checkpoint, folder, storage
from train.run.checkpoint import find_checkpoint, load_checkpoint
from train.run.config import END
from train.run.folder import RUN_HEADER, RunFolder, edit_config
from train.run.folder_swap import original_name, remove_partial


@pytest.mark.parametrize(
    "leftover", [".config.toml.partial", "config.toml", "tokenizer.json", "data/train/", "data/train/src.tokens.part-1"]
)
def test_an_unfinished_folder_can_be_started_over(text, uninterrupted, tmp_path, leftover):
    out = tmp_path / "run"
    (out / leftover).parent.mkdir(parents=True)
    if leftover != ".config.toml.partial":
        RunFolder(out).write_config(config(text))  # a run writes it first, and atomically
    if leftover != "config.toml":
        (out / leftover).mkdir() if leftover.endswith("/") else (out / leftover).write_text("# Configuration o")
    run(text, out)
    assert outcome(out) == outcome(uninterrupted)
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in uninterrupted.iterdir())


@pytest.mark.parametrize("content", [b"\0" * 512 + b"\nseed = 1\n", b"# Configuration" + b"\0" * 600, b""])
def test_a_folder_with_a_torn_first_file_can_be_started_over(tmp_path, content):
    """A power loss may leave null bytes in place of a block."""
    (tmp_path / ".config.toml.partial").write_bytes(content)
    RunFolder(tmp_path).check(resume=False)


def test_leftovers_of_text_preparation_are_removed(text, copied, uninterrupted):
    (copied / "data" / "train" / "src.tokens.part-1234").write_text("x")
    (copied / "data" / "train" / ".tgt.tokens.partial").write_text("x")
    run(text, copied, resume=True)
    assert sorted(map(str, copied.rglob("*"))) == sorted(
        str(copied / path.relative_to(uninterrupted)) for path in uninterrupted.rglob("*")
    )


def test_a_refused_resume_writes_nothing(text, copied, tmp_path):
    """Token arrays of other texts are kept, and config.toml is not written if a log cannot be written."""
    before = files_of(copied)
    (mine := tmp_path / "mine").mkdir()
    for file in text.iterdir():
        (mine / file.name).write_bytes(file.read_bytes() + b"one\n" * (file.suffix in (".en", ".de")))
    for part, word in (("train", "training"), ("valid", "validation")):
        changed = tables(text, max_steps=13)
        for side in ("src", "tgt"):
            changed["data"][f"{part}_{side}"] = changed["data"][f"{part}_{side}"].replace(str(text), str(mine))
        with pytest.raises(UserError, match=f"expected the {word} text of"):
            train(RunConfig.from_dict(changed), copied, resume=True, progress=False)
        assert files_of(copied) == before
    (copied / "log.txt").rename(tmp_path / "log.txt")
    (copied / "log.txt").symlink_to(tmp_path / "log.txt")
    with pytest.raises(UserError, match="got a link; try removing it"):
        run(text, copied, resume=True, max_steps=13)
    assert files_of(copied) == before


def test_resuming_keeps_the_comments_in_the_configuration(text, copied):
    file = copied / "config.toml"
    file.write_text("# my notes\n" + file.read_text())
    shutil.rmtree(copied / "checkpoints" / "step-12")
    assert run(text, copied, resume=True).step == 12
    assert file.read_text().startswith("# my notes\n")
    commented = re.sub("(?m)^max_steps = .*", r"\g<0>  # enough", file.read_text())
    file.write_text(commented)
    run(text, copied, resume=True, max_steps=13)
    assert file.read_text() == commented.replace("max_steps = 12 ", "max_steps = 13 ")
    same = re.sub("(?m)^batch_tokens = .*", "batch_tokens = 1024", file.read_text())  # in [train] and in [search]
    file.write_text(same)
    stored = RunFolder(copied).load_config().dump(RUN_HEADER)
    head, search = stored.split("[search]")
    edited = edit_config(file, stored, f"{head}[search]{search.replace('batch_tokens = 1024', 'batch_tokens = 512')}")
    assert edited.count("batch_tokens = 512") == 1 and "# enough" in edited
    file.write_text(commented.replace("max_steps = 12", "max_steps=12"))  # reformatted: written again
    run(text, copied, resume=True, max_steps=14)
    assert RunFolder(copied).load_config().train.max_steps == 14 and "# enough" not in file.read_text()


EDITS = {
    "a comment at the beginning": lambda text: f"# my notes\n{text}",
    "a comment at the end": lambda text: f"{text}\n# my notes\n",
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "an earlier version": lambda text: text.replace(" Written by a training run.", ""),
    "version 0.2": lambda text: text.partition("\n")[2].replace(END, ""),
    "nothing": str,
    "moved": lambda text: "",
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_run_killed_before_its_first_checkpoint_continues_beside_other_files(text, uninterrupted, tmp_path, edit):
    """The user's comments in config.toml are kept, and foreign files are not touched."""
    out = tmp_path / "run"
    others = {".nfs0001": "", "slurm.out": "log", "notes.txt": "mine"}
    run(text, out)
    for name in ("checkpoints", "metrics.jsonl"):
        (shutil.rmtree if name == "checkpoints" else os.unlink)(out / name)
    if content := EDITS[edit]((out / "config.toml").read_text()):
        (out / "config.toml").write_bytes(content.encode())
    else:
        (out / "config.toml").rename(tmp_path / "config.toml")
    for reason in ["a folder with a config.toml that was edited"] * (edit not in ("nothing", "moved")) + [
        "a folder with .nfs0001"
    ]:
        if reason.endswith(".nfs0001"):
            for name, content in others.items():
                (out / name).write_text(content)
        before = files_of(out)
        suggestion = "a new --out" if edit == "moved" else "--resume to continue the run in it, or a new --out"
        with pytest.raises(UserError, match=f"expected a new run folder; got {reason}.*; try {suggestion}"):
            run(text, out)
        assert files_of(out) == before
    run(text, out, resume=True)
    for name in ("config.toml",) * (edit != "moved") + ("tokenizer.json", *others):
        assert (out / name).read_bytes() == before[out / name]
    assert outcome(out) == outcome(uninterrupted)


def test_what_a_resumed_run_reads_is_not_replaced(text, tmp_path):
    """A folder without a usable config.toml cannot be resumed, and the message names the file."""
    problems = {
        "tokenizer.json": "tokenizer.json: expected ", "config.toml": "config.toml:1: expected TOML; got",
        "diary.txt": "expected a run to resume; got a folder with diary.txt; try the --out of a run, or no --resume",
        "data/x": "expected a run to resume; got a folder with data; try the --out of a run, or no --resume",
    }  # fmt: skip
    for name, message in problems.items():
        file = tmp_path / name.partition(".")[0] / name
        file.parent.mkdir(parents=True)
        if name == "tokenizer.json":
            (file.parent / "config.toml").write_text(config(text).dump())  # as `info --config` prints it
        file.write_text("mine")
        before = files_of(tmp_path)
        with pytest.raises(UserError) as error:
            run(text, tmp_path / name.partition(".")[0], resume=True)
        assert message in one_line(error)
        with pytest.raises(UserError, match="expected a new run folder; got a folder with "):
            run(text, tmp_path / name.partition(".")[0])
        assert files_of(tmp_path) == before


@pytest.mark.parametrize("at", range(1, 5))
def test_a_second_interrupt_leaves_a_run_that_continues(text, uninterrupted, tmp_path, monkeypatch, at):
    """The second interrupt comes while the first one is removing what the run has written."""
    out = tmp_path / "run"
    removed = []

    def remove(path):
        removed.append(path)
        if len(removed) == at:
            raise KeyboardInterrupt
        remove_partial(path)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(folder, "remove_partial", remove)
        patch.setattr(training, "check_memory", interrupt)
        run(text, out)
    run(text, out, resume=not RunFolder(out).is_new())
    assert outcome(out) == outcome(uninterrupted)


@pytest.mark.parametrize("name", ["checkpoints/step-12", "checkpoints/step-12/model.safetensors", "checkpoints"])
def test_an_unreadable_checkpoint_does_not_count_as_damaged(text, copied, monkeypatch, name):
    """The newest checkpoint may be intact, so training neither continues from an older one nor starts over."""
    before = files_of(copied)
    open_ = os.open
    iterdir = Path.iterdir

    def refuse(path):
        if str(path).startswith(str(copied / name)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda path, *args, **options: (refuse(path), open_(path, *args, **options))[1])
        patch.setattr(Path, "iterdir", lambda path: (refuse(path), iterdir(path))[1])
        with pytest.raises(UserError, match="Permission denied.*; try changing the permissions"):
            run(text, copied, resume=True, max_steps=13)
    assert files_of(copied) == before


def test_too_many_open_files_are_not_damage(copied, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(storage, "safe_open", refuse)
    with pytest.raises(UserError, match="cannot be read .*Too many open files") as error:
        load_checkpoint(copied / "checkpoints" / "step-12")
    assert not isinstance(error.value, storage.DamagedCheckpoint)


def test_a_text_named_like_a_file_of_a_run_is_not_removed(text, tmp_path):
    shutil.copy(text / "train.en", mine := tmp_path / ".config.toml.partial")
    changed = tables(text)
    changed["data"]["train_src"] = str(mine)
    with pytest.raises(UserError, match=r"got a folder with \.config\.toml\.partial; try a new --out"):
        train(RunConfig.from_dict(changed), tmp_path, progress=False)
    assert mine.read_bytes() == (text / "train.en").read_bytes()


def test_shared_arrays_do_not_replace_other_files(text, tmp_path):
    (shared := tmp_path / "shared" / "train").mkdir(parents=True)
    for name in ("src.tokens", "meta.json"):
        (shared / name).write_text("mine")
    changed = tables(text)
    changed["data"]["prepared"] = str(shared.parent)
    with pytest.raises(UserError, match="got a folder with other files; try another folder"):
        train(RunConfig.from_dict(changed), tmp_path / "run", progress=False)
    assert {path.read_text() for path in shared.iterdir()} == {"mine"} and not (tmp_path / "run").exists()


def test_a_failing_start_leaves_an_existing_empty_folder(text, tmp_path):
    out = tmp_path / "run"
    changed = tables(text)
    changed["data"]["max_length"] = 2  # shorter than every pair
    for existing in (False, True):
        with pytest.raises(UserError):
            train(RunConfig.from_dict(changed), out, progress=False)
        assert out.exists() == existing and not (existing and any(out.iterdir()))
        out.mkdir(exist_ok=True)


def test_a_folder_with_other_files_is_rejected(text, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for resume in (False, True):
        with pytest.raises(
            UserError, match=r"got a folder with thesis\.tex; try (a new --out|the --out of a run, or no --resume)$"
        ):
            run(text, tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "name",
    [
        *("data/corpus/train.part-01", "data/train/train.part-01", "data/valid/.mine.partial", "metrics.csv"),
        *("tokenizer.json", "log.txt", "metrics.jsonl", "checkpoints/best/model.pt", "checkpoints/best-7/model.pt"),
        *("tensorboard/notes", ".mine.partial", "config.toml"),
    ],
)
def test_only_what_a_run_wrote_is_replaced_or_removed(text, tmp_path, name):
    """A config.toml with comments, or one that is not as this program writes it, does not mark a run either."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config(text).dump().replace("# ", "# mine: ", 1))
    before = files_of(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match="got a folder with |lost its checkpoints step-N"):
            run(text, tmp_path, csv=True)
        assert files_of(tmp_path) == before
        (tmp_path / "config.toml").write_text("" if name == "config.toml" else "[model]\n")  # incomplete
        before = files_of(tmp_path)


@pytest.mark.parametrize(
    "names", [["best", "best-4", "best-8"], ["best"], ["best-8"], [".best.replaced"], ["averaged"]]
)
def test_best_weights_without_checkpoints_are_not_deleted(text, tmp_path, names):
    """The folders step-N have been moved, or removed to save space."""
    out = tmp_path / "run"
    run(text, out, max_steps=9, best_metric="loss", keep_best=2)
    average_checkpoints(out, 2)
    for path in [*(out / "checkpoints").iterdir()]:
        if path.name not in [name.removeprefix(".").removesuffix(".replaced") for name in names]:
            shutil.rmtree(path)
        elif path.name not in names:
            path.rename(path.with_name(names[0]))
    before = files_of(out)
    reason = rf"lost its checkpoints step-N \(.*{names[-1]} has no optimizer .* moving step-N back, or --init"
    for resume in (False, True):
        with pytest.raises(UserError, match=reason):
            run(text, out, resume=resume)
    with pytest.raises(UserError, match=reason):
        Trainer(None, config(text), None, {"train": None}, out)
    assert files_of(out) == before
    assert original_name(find_checkpoint(out)) == names[0].removeprefix(".").removesuffix(".replaced")


@pytest.mark.parametrize("module, write", [(checkpoint, "save_checkpoint"), (checkpointer, "write_folder")])
def test_a_run_killed_before_its_first_scheduled_checkpoint_resumes(text, tmp_path, monkeypatch, module, write):
    """The run has written a checkpoint before the first best weights."""
    settings = {"max_steps": 10, "validate_every": 2, "checkpoint_every": 9, "best_metric": "loss", "keep_best": 2}
    run(text, tmp_path / "uninterrupted", **settings)

    def crash(*arguments):
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(module, write, crash)
        run(text, tmp_path / "run", **settings)
    steps = [path.name for path in RunFolder(tmp_path / "run").step_paths()]
    assert steps == ([] if write == "save_checkpoint" else ["step-2"])
    run(text, tmp_path / "run", resume=True, **settings)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")
    names = [
        sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("run", "uninterrupted")
    ]
    assert names[0] == names[1] == [*names[0][:3], "step-10", "step-9"]


def test_a_run_without_a_checkpoint_resumes_with_the_tokenizer_of_a_changed_text(text, tmp_path):
    shutil.copytree(text, mine := tmp_path / "mine")
    with crash_after(2):
        run(mine, tmp_path / "run", max_steps=3)
    (mine / "train.de").write_text((mine / "train.de").read_text().upper())
    run(mine, tmp_path / "new", max_steps=3)
    run(mine, tmp_path / "run", resume=True, max_steps=3)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "new")


def test_a_lost_config_is_replaced_by_the_given_one(text, copied, uninterrupted):
    (copied / "config.toml").unlink()
    run(text, copied, resume=True)
    assert (copied / "config.toml").read_text() == (uninterrupted / "config.toml").read_text()
