"""Averaging of checkpoints: float64 means of undamaged checkpoints of one model, under the lock of the run."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.checkpoints import FILES, damage, names, one_line, run, save, tokenizer, weights_of  # noqa: F401, fixtures
from train import UserError, average_checkpoints
from train.run.checkpoint import load_checkpoint, save_checkpoint
from train.run.folder import RunFolder


def test_the_average_of_one_checkpoint_is_itself(run):
    mean = weights_of(average_checkpoints(run, 1))
    newest = weights_of(run / "checkpoints" / "step-10")
    assert mean.keys() == newest.keys()
    assert all(np.array_equal(mean[k], newest[k]) and mean[k].dtype == np.float32 for k in mean)


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 7), seed=st.integers(0, 999))
def test_the_average_of_equal_checkpoints_is_their_weights(count, seed, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    model = {"w": np.random.default_rng(seed).normal(size=50).astype(np.float32) * np.float32(1e3)}
    for step in range(1, count + 1):
        save(run, step, model)
    assert np.array_equal(weights_of(average_checkpoints(run, count))["w"], model["w"])


def test_by_default_the_last_five_checkpoints_or_all_are_averaged(tmp_path):
    for step in range(1, 8):
        save(tmp_path, step)
        if step == 1:
            with pytest.raises(UserError, match="expected 2 checkpoints in .*; got 1; try "):
                average_checkpoints(tmp_path)
        else:
            averaged = load_checkpoint(average_checkpoints(tmp_path)).state["averaged_steps"]
            assert averaged == list(range(max(1, step - 4), step + 1))


@settings(max_examples=15, deadline=None)
@given(count=st.integers(2, 6), last=st.integers(1, 6), seed=st.integers(0, 999))
def test_the_average_is_the_float64_mean_of_the_last(count, last, seed, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(4, 5)).astype(np.float32) for _ in range(count)]
    for step, array in enumerate(arrays, 8):  # 8, 9, 10: ordered by number, not by name
        save(run, step, {"w": array})
    if last > count:
        with pytest.raises(UserError) as error:
            average_checkpoints(run, last)
        assert f"expected {last} checkpoints" in one_line(error) and f"got {count};" in one_line(error)
        assert not (run / "checkpoints" / "averaged").exists()
        return
    path = average_checkpoints(run, last)
    expected = np.mean([a.astype(np.float64) for a in arrays[-last:]], axis=0).astype(np.float32)
    np.testing.assert_allclose(weights_of(path)["w"], expected, rtol=2e-7, atol=0)
    assert load_checkpoint(path).state["averaged_steps"] == list(range(8 + count - last, 8 + count))
    assert len(names(run)) == count


def test_averaging_sums_in_float64(tmp_path):
    for step, value in enumerate([2.0**24, 1.0, 1.0, 2.0**24], 1):  # in float32 the ones would be lost
        save(tmp_path, step, {"w": np.array([value], np.float32)})
    assert weights_of(average_checkpoints(tmp_path, 4))["w"][0] == np.float32((2.0**25 + 2) / 4)


def test_checkpoints_of_different_models_are_not_averaged(tmp_path):
    save(tmp_path, 1)
    other = {"step": 2, "model": {"vocab_size": 8}, "tokenizer_digest": "d" * 64}
    path = save_checkpoint(tmp_path, other, {"w": np.ones(2, np.float32)}, {})
    with pytest.raises(UserError) as error:
        average_checkpoints(tmp_path, 2)
    assert "one run; got a different model" in one_line(error) and path.exists()


@pytest.mark.parametrize("last", [0, 1])
def test_a_folder_without_checkpoints_is_not_averaged(tmp_path, last):
    with pytest.raises(UserError) as error:
        average_checkpoints(tmp_path / "nowhere", last)
    assert "expected a run folder; got a path that does not exist" in one_line(error)
    with pytest.raises(UserError) as error:
        average_checkpoints(tmp_path, last)
    assert "expected a run folder; got another folder; try a folder that `train`" in one_line(error)
    (tmp_path / "config.toml").touch()
    with pytest.raises(UserError) as error:
        average_checkpoints(tmp_path, last)
    assert "got 0; try again after more updates, or a run with a smaller train.checkpoint_every" in one_line(error)


def test_a_damaged_checkpoint_is_not_averaged(run):
    damage(run / "checkpoints" / "step-2" / FILES[0], "changed")
    with pytest.raises(UserError) as error:
        average_checkpoints(run, 2)
    assert "step-2" in one_line(error)
    average_checkpoints(run, 1)  # the damaged one is not among these


def test_a_checkpoint_that_vanishes_before_the_lock_is_not_counted(run, monkeypatch):
    mean = weights_of(average_checkpoints(run, 2))
    lock = RunFolder.lock

    def lock_later(self, program):
        save_removed(run / "checkpoints" / "step-1")
        return lock(self, program)

    def save_removed(path):
        if path.exists():
            path.rename(run / "removed")

    monkeypatch.setattr(RunFolder, "lock", lock_later)
    newest = weights_of(average_checkpoints(run))  # by default, all three
    assert all(np.array_equal(newest[name], mean[name]) for name in mean)
    (run / "removed").rename(run / "checkpoints" / "step-1")
    with pytest.raises(UserError, match="expected 3 checkpoints in .*; got 2; try --last 2"):
        average_checkpoints(run, 3)


def test_averaging_requires_the_lock_of_the_run(run):
    with RunFolder(run).lock("train"):
        caught = []
        thread = threading.Thread(target=lambda: caught.append(pytest.raises(UserError, average_checkpoints, run, 2)))
        thread.start()
        thread.join()
    assert "is in use by train (process" in str(caught[0].value)
    average_checkpoints(run, 2)
