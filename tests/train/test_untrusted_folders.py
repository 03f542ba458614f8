"""Run and data folders that have been changed by another user, by another program or by mistake."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.helpers.trainings import one_line, outcome, run
from train import RunConfig, Trainer, UserError, average_checkpoints, files
from train.cli import main
from train.experiments import demo
from train.files import WriteError, atomic_write
from train.json_files import parse_json, sealed_json
from train.run import average
from train.run.checkpoint import load_model
from train.run.folder import RunFolder
from train.run.state import RunState

PanicException = type("PanicException", (BaseException,), {})  # as the tokenizers library raises


@pytest.fixture(scope="module")
def foreign(text, tmp_path_factory):
    """A run with the same text and tokenizer, but another seed."""
    out = tmp_path_factory.mktemp("foreign") / "run"
    run(text, out, seed=7)
    return out


# ---- the lock


def test_a_training_whose_lock_was_removed_stops_without_writing(text, tmp_path, monkeypatch):
    """The second training run reaches the same result; the first one ends with a one-line error."""
    out = tmp_path / "run"
    after = Trainer._after_update
    second = threading.Event()
    errors = []

    def remove_lock(self):
        if self.state.step == 5 and not second.is_set():
            second.set()
            (out / "lock").unlink()
            thread = threading.Thread(target=lambda: errors.append(run(text, out, resume=True)))
            thread.start()
            thread.join()
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", remove_lock)
    with pytest.raises(UserError) as error:
        run(text, out)
    assert f"{out / 'lock'}: this program's lock was removed" in one_line(error)
    assert len(errors) == 1 and (RunFolder(out).step_paths()[-1].name, (out / "lock").exists()) == ("step-12", False)


def test_a_removed_lock_stops_an_average(copied, monkeypatch):
    read = average.read_arrays

    def remove_lock(*arguments):
        (copied / "lock").unlink(missing_ok=True)
        (copied / "lock").write_text("another")
        return read(*arguments)

    monkeypatch.setattr(average, "read_arrays", remove_lock)
    with pytest.raises(UserError, match="this program's lock was replaced by that of another"):
        average_checkpoints(copied, 2)
    assert not (copied / "checkpoints/averaged").exists() and (copied / "lock").exists()


@pytest.mark.parametrize("error", [FileNotFoundError, NotADirectoryError, "I/O error: No such file (os error 2)"])
def test_a_run_folder_that_vanishes_during_a_save_gives_one_line(copied, text, error, monkeypatch):
    from safetensors import SafetensorError

    from train.run import storage

    def vanish(*arguments, **options):
        copied.rename(copied.parent / "moved")
        raise SafetensorError(error) if isinstance(error, str) else error(error().errno or 2, "gone", "state.json")

    monkeypatch.setattr(storage, "save_file", vanish)
    with pytest.raises(UserError, match="was moved or deleted while this program was using it"):
        run(text, copied, resume=True, max_steps=15)
    assert not copied.exists()


def test_removed_log_files_are_reported_once_and_written_again(text, tmp_path, monkeypatch, capfd):
    out = tmp_path / "run"
    after = Trainer._after_update

    def remove(self):
        if self.state.step == 5:
            for name in ("log.txt", "metrics.jsonl"):
                (out / name).unlink()
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", remove)
    run(text, out)
    err = capfd.readouterr().err
    for name in ("log.txt", "metrics.jsonl"):
        assert err.count(f"{out / name} was removed or replaced; its earlier lines are lost") == 1
    assert "done after step 12" in (out / "log.txt").read_text() and RunFolder(out).metrics()[-1]["step"] == 12


# ---- checkpoints of another run


@pytest.mark.parametrize("name", ["step-12", "step-9", "averaged"])
def test_a_checkpoint_of_a_run_on_another_text_is_rejected(copied, text, name):
    """The two runs have the same model, vocabulary and configuration."""
    average_checkpoints(copied, 2)
    if name != "averaged":
        shutil.rmtree(copied / "checkpoints/averaged")
    other = copied / "checkpoints" / name
    state = json.loads((other / "state.json").read_text())
    del state["sha256_of_this"]
    state["text_sha256"] = {"src": state["text_sha256"]["tgt"], "tgt": state["text_sha256"]["src"]}
    (other / "state.json").write_text(sealed_json(state))
    load_model(copied / "checkpoints/step-12") if name == "averaged" else None
    for load in (lambda: load_model(copied), lambda: load_model(other),
                 lambda: run(text, copied.parent / "new", init=str(other))):  # fmt: skip
        with pytest.raises(UserError) as error:
            load()
        assert f"checkpoints of one run; got a different text_sha256 in {other} and " in one_line(error).replace(
            f"{copied / 'checkpoints/step-12'} and {other}", f"{other} and "
        )


def test_a_checkpoint_of_another_run_is_rejected(copied, foreign):
    for last in (2, 3):
        shutil.rmtree(copied / "checkpoints/step-12", ignore_errors=True)
        shutil.copytree(foreign / "checkpoints/step-12", copied / "checkpoints/step-12")
        with pytest.raises(UserError, match="average: expected checkpoints of one run; got a different train.seed in"):
            average_checkpoints(copied, last)
    for path in (copied, copied / "checkpoints/step-12"):
        with pytest.raises(UserError) as error:
            load_model(path)
        assert "train.seed: expected 7 as in" in one_line(error) and "config.toml: " in str(error.value)
    average_checkpoints(foreign, 2)
    shutil.copytree(foreign / "checkpoints/averaged", copied / "checkpoints/averaged")
    with pytest.raises(UserError, match="train.seed: expected 7"):
        load_model(copied)


def test_a_run_may_change_what_resuming_may_change(copied, text):
    run(text, copied, resume=True, max_steps=15, log_every=2)
    average_checkpoints(copied, 2)
    file = copied / "config.toml"
    file.write_text(file.read_text().replace("beam_size = 4", "beam_size = 2"))
    assert load_model(copied)[2].search.beam_size == 2


# ---- config.toml


@pytest.mark.parametrize("fraction", [0, 0.02, 0.3, 0.9, 0.99])
def test_a_truncated_configuration_is_rejected(copied, fraction, capfd):
    file = copied / "config.toml"
    content = file.read_text()
    lines = content.split("\n")
    file.write_text("\n".join(lines[: int(fraction * len(lines))]))
    out = str(copied)
    for command in (["translate", "--model", out, "--input", "/dev/null"], ["info", out],
                    ["train", "--resume", "--out", out]):  # fmt: skip
        assert main(command) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and "config.toml: expected the complete configuration of a run" in err


def test_a_configuration_of_an_earlier_version_needs_all_tables(tmp_path):
    file = tmp_path / "config.toml"
    old = (Path(__file__).parent / "run_0_2/config.toml").read_text()
    file.write_text(old)
    assert RunFolder(tmp_path).load_config() == RunConfig.load(file)
    file.write_text(old[: old.index("[search]")])
    with pytest.raises(UserError, match="the tables model, data, train, search; got a truncated file"):
        RunFolder(tmp_path).load_config()


@pytest.mark.parametrize(
    "content", ["a." * 20_000 + "b = 1", "".join(f"[{n}]\n" for n in range(20_000)), "# comment\n" * 2**13],
    ids=["dotted key", "tables", "comments"],
)  # fmt: skip
def test_a_large_toml_text_is_rejected_by_its_size(tmp_path, content):
    (tmp_path / "large.toml").write_text(content)
    with pytest.raises(UserError, match=r"large.toml(:1)?: expected .* got .*(more|larger)"):
        RunConfig.load(tmp_path / "large.toml")
    with pytest.raises(UserError, match="--set: train.seed: expected"):
        RunConfig.from_dict({}, [f"train.seed={content}"])


# ---- numbers and clocks


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 4000, "1e400", "NaN", "-Infinity"])
def test_numbers_that_no_float_can_hold_are_damage(copied, number):
    with pytest.raises(ValueError, match="which is not a finite number"):
        parse_json(f'{{"loss": [{number}]}}')
    assert_damage(copied, f'{{"kind": "train", "step": 13, "loss": {number}}}')


@pytest.mark.parametrize(
    ("step", "bleu"), [("1" + "0" * 25, "1"), (str(2**63), "1"), ("13", "1" + "0" * 25), ("13", '"\\ud800"')]
)
def test_numbers_and_text_that_no_copy_can_hold_are_damage(copied, text, step, bleu):
    assert_damage(copied, f'{{"kind": "valid", "step": {step}, "loss": 1, "bleu": {bleu}}}')
    assert main(["draw", str(copied), "curves", "--out", str(copied.parent / "curves.svg")]) == 0
    run(text, copied, resume=True, max_steps=13, csv=True)


def assert_damage(folder, line):
    """Assert that a line of metrics.jsonl is skipped."""
    expected = RunFolder(folder).metrics()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert RunFolder(folder).metrics() == expected


def test_a_clock_that_is_set_back_leaves_a_state_that_can_be_read():
    state = RunState(step=1)
    state.add_time(-863_998.0, -1.0)
    state.add_time(2.0, 1.0)
    assert (state.seconds, state.network_seconds, state.window_seconds) == (2.0, 1.0, 2.0)
    assert RunState.read(json.loads(json.dumps(state.to_json())), 1) == state


def test_a_training_continues_after_its_clock_was_set_back(text, uninterrupted, tmp_path, monkeypatch):
    from train.learn.parallel import sync

    ticks = iter(range(10**6, 0, -1000))
    monkeypatch.setattr(sync.time, "perf_counter", lambda: float(next(ticks)))
    run(text, tmp_path / "run", max_steps=6)
    run(text, tmp_path / "run", resume=True, max_steps=12)
    assert outcome(tmp_path / "run")[0] == outcome(uninterrupted)[0]


# ---- a full disk


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    with pytest.raises(WriteError, match="name.json: expected space on the disk; got 'No space left on device'"):
        with atomic_write(tmp_path / "name.json", "t"):
            raise OSError(28, os.strerror(28))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [pytest.param("draw", marks=pytest.mark.slow), "data"])
def test_a_command_on_a_full_disk_names_the_file(copied, text, command, monkeypatch, capfd):
    def full(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    picture, out = copied.parent / "curves.svg", copied.parent / "out"
    data = ["data", "own", "--quiet", "--out", str(out), f"--train-src={text}/train.en", f"--train-tgt={text}/train.de"]
    draw = ["draw", str(copied), "curves", "--out", str(picture)]
    assert main(draw if command == "draw" else data) == 2
    err = capfd.readouterr().err
    name = picture if command == "draw" else out
    assert err.count("\n") == 1 and f"npx-transformer: {name}" in err and "space on the disk" in err


@pytest.mark.parametrize("name", ["test.de", "train.en", "run/config.toml"])
def test_a_demo_on_a_full_disk_names_the_file_and_can_be_repeated(tmp_path, monkeypatch, capfd, name):
    pytest.importorskip("num2words")
    pytest.importorskip("matplotlib")
    out = tmp_path / "demo"
    replace = os.replace

    def full(source, target):
        if Path(target) == out / name:
            raise OSError(28, os.strerror(28))
        replace(source, target)

    monkeypatch.setattr(demo, "sample_numbers", lambda *_: {"test": [1, 2], "valid": [3], "train": [4, 5]})
    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        assert main(["demo", "--out", str(out)]) == 2
        err = capfd.readouterr().err.splitlines()[-1]
        assert f"{out / name}: expected space on the disk" in err and not list(out.iterdir())


# ---- memory and descriptors


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (SystemError("error return without exception set"), "out of memory; try"),
        (ImportError("x.so: failed to map segment from shared object"), "out of memory; try"),
        (PanicException("ThreadPoolBuildError { kind: IOError(Os { code: 11"), "out of memory; try"),
        (PanicException("index out of bounds"), "internal error; please report"),
        (OSError(errno.EMFILE, "Too many open files"), "got 'Too many open files'; try a higher ulimit -n"),
        (OSError(errno.EMFILE, "Too many open files", "x"), "x: expected free file descriptors"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "x: expected permission to read and write"),
    ],
)
def test_errors_of_the_system_give_one_line(copied, monkeypatch, capfd, error, got):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(average, "read_state", fail)
    assert main(["average", str(copied), "--last", "2"]) == (1 if "internal" in got else 2)
    assert got in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_a_file_that_cannot_be_opened_now_is_not_to_be_removed(copied, monkeypatch, number):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "open", fail)
    with pytest.raises(UserError, match="try (a higher ulimit -n|changing the permissions)"):
        RunFolder(copied).metrics()
