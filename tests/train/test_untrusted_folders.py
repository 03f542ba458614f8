"""Run and data folders that have been changed by another user, by another program or by mistake."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.helpers.trainings import one_line, outcome, run
from train import RunConfig, Trainer, UserError, average_checkpoints
from train.cli import main
from train.files import WriteError, atomic_write, open_for_appending
from train.json_files import parse_json
from train.run.checkpoint import load_model
from train.run.folder import RunFolder
from train.run.state import RunState

PRECIOUS = "a file of another user\n"


@pytest.fixture
def copied(uninterrupted, tmp_path):
    return Path(shutil.copytree(uninterrupted, tmp_path / "run"))


@pytest.fixture(scope="module")
def foreign(text, tmp_path_factory):
    """A run with the same text and tokenizer, but another seed."""
    out = tmp_path_factory.mktemp("foreign") / "run"
    run(text, out, seed=7)
    return out


# ---- links


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
    assert RunFolder(copied).steps()[-1].name == "step-13" and not (copied / "checkpoints/step-13").is_symlink()
    assert (
        (copied.parent / "victim").read_text() == PRECIOUS == (copied.parent / "victims/model.safetensors").read_text()
    )


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


@pytest.mark.parametrize("other", ["link", "folder", "pipe"])
def test_only_a_regular_file_is_opened_for_appending(tmp_path, other):
    path = tmp_path / "log.txt"
    {"link": lambda: path.symlink_to("/dev/null"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[other]()
    with pytest.raises(UserError, match=f"log.txt: expected a regular file to write; got an? .*{other[:4]}"):
        open_for_appending(path)


# ---- the lock


def test_a_training_whose_lock_was_removed_stops_without_writing(text, tmp_path, monkeypatch):
    """The second training continues to the same result; the first one ends with a one-line error."""
    out, after, second = tmp_path / "run", Trainer._after_update, threading.Event()
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
    assert len(errors) == 1 and (RunFolder(out).steps()[-1].name, (out / "lock").exists()) == ("step-12", False)


def test_a_removed_lock_stops_an_average(copied, monkeypatch):
    from train.run import average

    read = average.read_arrays

    def remove_lock(*arguments):
        (copied / "lock").unlink(missing_ok=True)
        (copied / "lock").write_text("another")
        return read(*arguments)

    monkeypatch.setattr(average, "read_arrays", remove_lock)
    with pytest.raises(UserError, match="this program's lock was replaced by that of another"):
        average_checkpoints(copied, 2)
    assert not (copied / "checkpoints/averaged").exists() and (copied / "lock").exists()


# ---- checkpoints of another run


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
    file.write_text(file.read_text().replace("beam = 4", "beam = 2"))
    assert load_model(copied)[2].search.beam == 2


# ---- config.toml


@pytest.mark.parametrize("fraction", [0.02, 0.3, 0.9, 0.99])
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
    expected = RunFolder(copied).metrics()
    with (copied / "metrics.jsonl").open("a") as file:
        file.write(f'{{"kind": "train", "step": 13, "loss": {number}}}\n')
    assert RunFolder(copied).metrics() == expected


def test_a_clock_that_is_set_back_leaves_a_state_that_can_be_read():
    state = RunState(step=1)
    state.add_time(-863_998.0, -1.0)
    state.add_time(2.0, 1.0)
    assert (state.seconds, state.network, state.window_seconds) == (2.0, 1.0, 2.0)
    assert RunState.read(json.loads(json.dumps(vars(state))), 1) == state


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
    picture, out = copied / "curves.svg", copied.parent / "out"
    own = ["data", "own", "--quiet", "--out", str(out), f"--train-src={text}/train.en", f"--train-tgt={text}/train.de"]
    draw = ["draw", str(copied), "curves", "--out", str(picture)]
    assert main(draw if command == "draw" else own) == 2
    err = capfd.readouterr().err
    name = picture if command == "draw" else out / "downloads"
    assert err.count("\n") == 1 and f"npx-transformer: {name}" in err and "space on the disk" in err
