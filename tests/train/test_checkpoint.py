"""Checkpoints: atomic writes, detection of damage, loading of models."""

import errno
import hashlib
import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.checkpoints import FILES, damage, names, one_line, run, save, tokenizer, weights_of  # noqa: F401, fixtures
from tests.helpers.trainings import rewrite
from train import Tokenizer, UserError, average_checkpoints, load_model
from train.files import WriteError
from train.run import checkpoint as checkpoints
from train.run import folder_swap, storage
from train.run.checkpoint import find_checkpoint, load_checkpoint, load_newest, load_with_origin
from train.run.folder import RunFolder
from train.run.storage import read_state

# ---- written and read


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_arrays_round_trip_bit_for_bit(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    model = {}
    for i in range(data.draw(st.integers(1, 3))):
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = data.draw(st.sampled_from([np.float32, np.float64]))
        array = np.random.default_rng(i).normal(size=shape).astype(dtype)
        model[f"layer.{i}"] = array.T if data.draw(st.booleans()) else array  # including non-contiguous arrays
    path = save(run, 3, model)
    loaded = load_checkpoint(path)
    assert loaded.weights.keys() == model.keys()
    for name, array in model.items():
        assert loaded.weights[name].dtype == array.dtype and np.array_equal(loaded.weights[name], array)
    assert np.array_equal(loaded.optimizer_arrays["m"], np.full(10, 3, np.float32))
    assert loaded.state["step"] == 3 and loaded.state["run"] == {"best_loss": None}


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True), keep=st.integers(0, 4))
def test_pruning_keeps_the_newest_by_step_number(steps, keep, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    steps = sorted(steps)
    for step in steps:
        save(run, step, keep_last=keep)
    assert names(run) == [f"step-{step}" for step in steps[-keep:]]
    assert sorted(os.listdir(run / "checkpoints")) == sorted(names(run))  # no hidden folders remain
    assert float(weights_of(RunFolder(run).step_paths()[-1])["w"][0, 0]) == steps[-1]


def test_the_same_content_gives_the_same_bytes_and_nothing_is_pickled(tmp_path):
    first, second = save(tmp_path / "a", 5), save(tmp_path / "b", 5)
    assert sorted(os.listdir(first)) == FILES
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    save(tmp_path / "a", 5)  # replaces the first one
    assert (first / FILES[0]).read_bytes() == (second / FILES[0]).read_bytes()


# ---- interrupted


@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_any_moment_leaves_the_last_good_checkpoint(tmp_path, monkeypatch, nth, number):
    intact = save(tmp_path, 1)
    calls = []
    fsync = os.fsync

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == nth + 1:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UserError) as error:
        save(tmp_path, 2, keep_last=1)
    assert os.strerror(number) in one_line(error) and "step-2" in str(error.value)
    assert load_checkpoint(intact).state["step"] == 1
    assert {"step-1"} <= set(os.listdir(tmp_path / "checkpoints")) <= {"step-1", "step-2"}  # never a partial folder


def test_a_file_size_limit_is_reported_like_a_full_disk(tmp_path):
    resource = pytest.importorskip("resource")
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError) as error:
            save(tmp_path, 2, {"w": np.zeros(100_000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "space on the disk" in one_line(error) and "then the same command again" in one_line(error)
    assert os.listdir(tmp_path / "checkpoints") == ["step-1"]


def test_other_errors_are_not_reported_as_a_full_disk(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(errno.EBADF, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(WriteError, match="expected a readable and writable path; got 'Bad file descriptor'"):
        save(tmp_path, 2)
    assert os.listdir(tmp_path / "checkpoints") == []


def test_leftovers_of_a_killed_write_are_not_checkpoints_and_are_removed(tmp_path):
    intact = save(tmp_path, 1)
    shutil.copytree(intact, intact.with_name(".step-2.partial"))
    (intact.with_name(".step-2.partial") / FILES[0]).write_bytes(b"half")
    (intact.parent / "step-x").mkdir()
    assert names(tmp_path) == ["step-1"]
    RunFolder(tmp_path).remove_leftovers()
    assert sorted(os.listdir(intact.parent)) == ["step-1", "step-x"]


# ---- damaged


@pytest.mark.parametrize("kind", ["missing", "empty", "cut", "changed"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_an_older_checkpoint_suggested(tmp_path, name, kind):
    old, new = save(tmp_path, 9), save(tmp_path, 10)
    damage(new / name, kind)
    with pytest.raises(UserError) as error:
        load_checkpoint(new)
    assert str(new / name) in one_line(error) and "older" in one_line(error)
    assert load_checkpoint(old).state["step"] == 9
    messages = []
    path, checkpoint = load_newest(RunFolder(tmp_path), messages.append)
    assert path == old and checkpoint.state["step"] == 9 and len(messages) == 1 and str(new / name) in messages[0]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"format": 1, "step": 3, "model": {}, "files": {}}', '{"format": "1"}', "\ud800"]
)
def test_an_invalid_state_is_rejected(tmp_path, text):
    path = save(tmp_path, 3)
    (path / "state.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError) as error:
        load_checkpoint(path)
    assert str(path / "state.json") in one_line(error)


def test_a_configuration_of_a_later_version_is_rejected(run):
    rewrite(run / "checkpoints" / "step-10", lambda state: state["model"].update(n_eyes=3))
    for call in (load_model, lambda run: average_checkpoints(run, 2)):
        with pytest.raises(UserError) as error:
            call(run)
        assert "n_eyes" in one_line(error)


def test_a_later_format_is_rejected(tmp_path):
    path = save(tmp_path, 3)
    rewrite(path, lambda state: state.update(format=storage.FORMATS[-1] + 1))
    with pytest.raises(UserError) as error:
        load_checkpoint(path)
    assert "format" in one_line(error)


# ---- loading a model


def test_a_run_loads_its_average_or_else_its_newest_step(run, tokenizer):
    model, loaded_tokenizer, _ = load_model(run)
    assert loaded_tokenizer.digest == tokenizer.digest and not model.training
    assert all(np.array_equal(v, weights_of(run / "checkpoints" / "step-10")[k]) for k, v in model.state_dict().items())
    averaged = average_checkpoints(run, 3)
    model, _, _ = load_model(run)
    assert all(np.array_equal(v, weights_of(averaged)[k]) for k, v in model.state_dict().items())
    model, _, _ = load_model(run / "checkpoints" / "step-2")
    assert all(np.array_equal(v, weights_of(run / "checkpoints" / "step-2")[k]) for k, v in model.state_dict().items())


def test_a_checkpoint_folder_loads_without_its_run_if_it_has_a_tokenizer(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere") / "model"
    shutil.copytree(run / "checkpoints" / "step-10", folder)
    with pytest.raises(UserError) as error:
        load_model(folder)
    assert "tokenizer.json" in one_line(error)
    shutil.copy(run / "tokenizer.json", folder)
    (folder / "optimizer.safetensors").unlink()  # only training needs it
    src, tgt = np.array([[5, 6, 2]]), np.array([[1, 7]])
    assert np.array_equal(load_model(folder)[0](src, tgt).data, load_model(run)[0](src, tgt).data)


@pytest.mark.parametrize("fewer", [0, 5])
def test_a_tokenizer_that_does_not_fit_is_rejected(run, tokenizer, tmp_path_factory, fewer):
    text = tmp_path_factory.mktemp("other") / "text"
    text.write_text("fifteen sixteen seventeen eighteen nineteen\n" * 9, encoding="utf-8")
    other = Tokenizer.train([text], vocab_size=tokenizer.vocab_size - fewer)
    assert other.vocab_size == tokenizer.vocab_size - fewer  # equal sizes are not enough
    other.save(run / "tokenizer.json")
    with pytest.raises(UserError) as error:
        load_model(run)
    assert str(run / "tokenizer.json") in one_line(error) and f"{other.vocab_size} subwords" in one_line(error)


def test_paths_without_a_run_are_rejected(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        with pytest.raises(UserError) as error:
            load_model(path)
        assert str(path) in one_line(error)


def test_weights_that_do_not_fit_their_configuration_are_rejected(run):
    path = run / "checkpoints" / "step-10"
    rewrite(path, lambda state: state["model"].update(d_ff=17))
    with pytest.raises(UserError) as error:
        load_model(run)
    assert "feed_forward" in one_line(error) or "d_ff" in one_line(error)


def test_the_state_has_checksums_of_the_arrays_and_of_itself(tmp_path):
    path = save(tmp_path, 4)
    state = json.loads((path / "state.json").read_text())
    for name in FILES[:2]:
        assert state["files"][name]["bytes"] == len((path / name).read_bytes())
    b = np.arange(4, dtype=np.float32)
    expected = hashlib.sha256(b"b float32 (4,)\n" + b.tobytes()).hexdigest()
    assert state["files"]["model.safetensors"]["tensors"]["b"] == expected
    seal = state.pop("sha256_of_this")
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    assert seal == hashlib.sha256(canonical.encode()).hexdigest()


@settings(max_examples=60)
@given(data=st.data())
def test_every_flipped_bit_of_a_checkpoint_is_detected(data, tmp_path_factory):
    path = save(tmp_path_factory.mktemp("run"), 4)
    before = load_checkpoint(path)
    file = path / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    try:
        after = load_checkpoint(path)
    except UserError as error:
        assert str(file) in str(error) and "\n" not in str(error)
    else:  # whitespace in JSON
        assert after.state == before.state
        for old, new in ((before.weights, after.weights), (before.optimizer_arrays, after.optimizer_arrays)):
            assert {k: v.tobytes() for k, v in old.items()} == {k: v.tobytes() for k, v in new.items()}


def test_nonfinite_weights_are_neither_written_nor_read(tmp_path):
    intact = save(tmp_path, 1)
    bad = {"w": np.array([[1, np.nan]], np.float32)}
    with pytest.raises(UserError, match="expected finite values in w; got NaN or infinity"):
        save(tmp_path, 2, bad)
    assert os.listdir(intact.parent) == ["step-1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "isfinite", lambda array: np.ones(1, bool))
        path = save(tmp_path, 2, bad)
    with pytest.raises(UserError, match="expected finite values in w; got NaN or infinity"):
        load_checkpoint(path)


def test_files_swapped_between_checkpoints_are_detected(run):
    first, second = (run / "checkpoints" / f"step-{step}" / "model.safetensors" for step in (1, 2))
    first.rename(run / "other")
    second.rename(first)
    (run / "other").rename(second)
    for path in (first, second):
        with pytest.raises(UserError, match="expected the arrays of state.json; got those of another checkpoint"):
            load_checkpoint(path.parent)


def test_a_checkpoint_renamed_to_another_step_is_rejected(tmp_path):
    save(tmp_path, 4).rename(tmp_path / "checkpoints" / "step-9")
    with pytest.raises(UserError, match="expected the state of step-9; got the state of step 4"):
        load_checkpoint(tmp_path / "checkpoints" / "step-9")


def test_checkpoints_of_the_first_format_are_still_read(tmp_path):
    path = save(tmp_path, 4)
    state = json.loads((path / "state.json").read_text())
    for name in FILES[:2]:
        content = (path / name).read_bytes()
        state["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    del state["sha256_of_this"]
    (path / "state.json").write_text(json.dumps(state | {"format": 1}, indent=1))
    assert np.array_equal(load_checkpoint(path).weights["w"], np.full((2, 3), 4, np.float32))
    (path / FILES[1]).write_bytes(content[:-1] + b"!")
    with pytest.raises(UserError, match="optimizer.safetensors: damaged"):
        load_checkpoint(path)


def test_an_extra_checkpoint_of_a_stop_is_pruned_later(tmp_path):
    for step in range(90, 125, 5):
        save(tmp_path, step, keep_last=4, extra=step % 10 > 0)
    assert names(tmp_path) == ["step-90", "step-100", "step-110", "step-120"]
    save(tmp_path, 123, keep_last=4, extra=True)
    assert names(tmp_path) == ["step-100", "step-110", "step-120", "step-123"]


def test_damaged_checkpoints_do_not_count_when_pruning(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "step-2").rename(tmp_path / "checkpoints" / "step-99")
    for step in (4, 5, 6):
        save(tmp_path, step, keep_last=2, extra=step == 4)
    assert names(tmp_path) == ["step-5", "step-6", "step-99"]
    save(tmp_path, 7, keep_last=1)
    assert names(tmp_path) == ["step-7", "step-99"]


def test_an_old_checkpoint_that_cannot_be_read_is_not_pruned_before_keep_last_others_exist(tmp_path):
    """The disk may have returned a temporary error."""
    first = save(tmp_path, 1)
    state = (first / "state.json").rename(tmp_path / "state.json")
    for step in (2, 3, 4):
        save(tmp_path, step, keep_last=3)
        assert ("step-1" in names(tmp_path)) == (step < 4)
    assert names(tmp_path) == ["step-2", "step-3", "step-4"] and state.exists()


def test_a_checkpoint_replaces_one_of_the_same_step(tmp_path):
    save(tmp_path, 5)
    save(tmp_path, 5, {"w": np.zeros(3, np.float32)})
    assert os.listdir(tmp_path / "checkpoints") == ["step-5"]
    assert np.array_equal(weights_of(tmp_path / "checkpoints" / "step-5")["w"], np.zeros(3, np.float32))


@pytest.mark.parametrize("before", range(1, 5))
@pytest.mark.parametrize("name", ["step-5", "averaged"])
def test_a_kill_while_a_checkpoint_is_replaced_leaves_a_complete_one(run, monkeypatch, name, before):
    """After SIGKILL before any call that renames or removes a folder, the old or the new weights are complete."""
    folder = RunFolder(run)
    calls = []
    shutil.copytree(folder.step_path(10), target := folder.checkpoints / name)
    state = {key: storage.read_state(folder.step_path(10))[key] for key in storage.IDENTITY} | {"step": 5}
    new = {key: value + 1 for key, value in weights_of(folder.step_path(10)).items()}
    storage.write_folder(target, {FILES[0]: weights_of(folder.step_path(10))}, state)

    def killing(real):
        def call(path, *args, **options):
            if any(mark in str(path) for mark in (".partial", ".replaced", name)) and os.path.exists(path):
                calls.append(path)
                if len(calls) == before:
                    raise Killed
            return real(path, *args, **options)

        return call

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killing(os.replace))
        patch.setattr(shutil, "rmtree", killing(shutil.rmtree))
        with pytest.raises(Killed):
            storage.write_folder(target, {FILES[0]: new}, state)
    weights = weights_of(folder_swap.existing_folder(target))
    old = weights_of(folder.step_path(10))
    assert all(np.array_equal(weights[key], old[key]) or np.array_equal(weights[key], new[key]) for key in old)
    assert name == "averaged" or [path.name.count("step-5") for path in folder.step_paths()][2] == 1
    assert name != "averaged" or find_checkpoint(run) == folder_swap.existing_folder(target)
    folder.remove_leftovers()
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-1", "step-2", "step-10", name}
    assert all(np.array_equal(weights_of(target)[key], weights[key]) for key in old)
    storage.write_folder(target, {FILES[0]: new}, state)
    assert all(np.array_equal(weights_of(target)[key], new[key]) for key in old)
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-1", "step-2", "step-10", name}


def test_a_pipe_in_place_of_a_file_does_not_block(run):
    for name in FILES[::2]:
        path = run / "checkpoints" / "step-10" / name
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UserError, match="got a pipe"):
            load_checkpoint(path.parent)
        with pytest.warns(UserWarning, match="using the previous checkpoint"):
            assert f"{run.name}/step-2, step 2, " in load_with_origin(run)[3].caption


# ---- loaded while the run is trained


@pytest.mark.parametrize("moment", ["read_state", "read_arrays", "check_siblings"])
@pytest.mark.parametrize("target", ["step", "best"])
def test_a_checkpoint_that_training_replaces_meanwhile_is_loaded(run, monkeypatch, target, moment):
    """A checkpoint replaced before its weights are read is read again; one replaced later is not."""
    folder = RunFolder(run)
    checkpoint = load_checkpoint(folder.step_path(10))
    if target == "best":
        shutil.copytree(folder.step_path(10), folder.best_path)
    chosen, newer = (
        (folder.best_path, folder.best_path) if target == "best" else (folder.step_path(10), folder.step_path(11))
    )
    digests = [hashlib.sha256((chosen / "state.json").read_bytes()).hexdigest()]
    original = getattr(checkpoints, moment)

    def train(*arguments):
        if len(digests) == 1:
            state = {key: value for key, value in checkpoint.state.items() if key != "sha256_of_this"} | {"step": 11}
            storage.write_folder(newer, {FILES[0]: checkpoint.weights, FILES[1]: checkpoint.optimizer_arrays}, state)
            for path in folder.step_paths()[:-1]:
                shutil.rmtree(path)
            digests.append(hashlib.sha256((newer / "state.json").read_bytes()).hexdigest())
        return original(*arguments)

    monkeypatch.setattr(checkpoints, moment, train)
    warnings = []
    origin = load_with_origin(run, "", warnings.append)[3]
    is_loaded = moment == "check_siblings"
    assert origin.digest == digests[not is_loaded] and not warnings
    assert f"step {10 if is_loaded else 11}, SHA-256 of state.json {origin.digest[:12]}" in origin.caption


def test_the_origin_of_a_model_is_inside_the_given_path(run, monkeypatch):
    monkeypatch.chdir(run)
    for path in (".", "checkpoints", f"../{run.name}"):
        assert load_with_origin(path)[3].path == str(find_checkpoint(path))
        assert not os.path.isabs(find_checkpoint(path))


def test_a_checkpoint_that_is_damaged_is_read_once(run, monkeypatch):
    damage(RunFolder(run).step_path(1) / FILES[0], "changed")
    reads = []
    monkeypatch.setattr(checkpoints, "read_state", lambda *arguments: reads.append(1) or read_state(*arguments))
    with pytest.raises(UserError, match="damaged checkpoint"):
        load_model(RunFolder(run).step_path(1))
    assert len(reads) == 1
