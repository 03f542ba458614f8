"""Learning-rate schedules: the shapes, the peak, the paper's formula unchanged, and the warning about warmup."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.trainings import crash_after, metrics, rewrite, run
from train import NoamSchedule
from train.learn.schedule import Schedule
from train.run.keys import SCHEDULES, TrainSection

steps = st.integers(1, 5000)


def schedule(name="noam", d_model=64, **keys):
    return Schedule(replace(TrainSection(), schedule=name, **keys), d_model)


@given(steps, steps, st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([8, 512]))
def test_without_new_keys_the_schedule_is_the_papers_bit_for_bit(step, warmup, scale, d_model):
    expected = NoamSchedule(d_model, warmup, scale)(step)
    assert schedule(d_model=d_model, warmup_steps=warmup, lr_scale=scale)(step) == expected


@pytest.mark.parametrize("name", SCHEDULES)
@given(peak=st.floats(1e-6, 1.0), warmup=steps, later=steps, data=st.data())
def test_every_schedule_rises_to_its_peak_and_never_rises_again(name, peak, warmup, later, data):
    last = warmup + later
    rate = schedule(name, peak_lr=peak, warmup_steps=warmup, max_steps=last, lr_scale=3.0)
    assert rate(warmup) == pytest.approx(peak, rel=1e-12) and rate.peak == pytest.approx(peak, rel=1e-12)
    step = data.draw(st.integers(1, last - 1))
    if step < warmup:
        assert rate(step) == pytest.approx(peak * step / warmup)
    else:
        assert 0 < rate(step + 1) <= rate(step) * (1 + 1e-12)
    assert rate(last) > 0 and (name != "constant" or rate(last) == pytest.approx(peak))


def test_shapes_halfway():
    rates = {name: schedule(name, peak_lr=1.0, warmup_steps=100, max_steps=299)(200) for name in SCHEDULES}
    sqrt = 0.5**0.5
    expected = {"noam": sqrt, "inverse_sqrt": sqrt, "linear": 0.5, "cosine": 0.5, "constant": 1.0}
    assert rates == pytest.approx(expected, rel=1e-12)


def test_a_training_that_ends_before_its_warmup_is_warned_of_even_if_quiet(text, tmp_path, capsys):
    assert run(text, tmp_path / "run", max_steps=2, warmup_steps=4000, schedule="linear").step == 2
    assert "train.warmup_steps = 4,000" in capsys.readouterr().err
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert "warmup to 0.00559 at step 4,000, then linear decay" in log and "try train.warmup_steps=1 and" in log
    run(text, tmp_path / "run", resume=True, schedule="linear", max_steps=3, warmup_steps=4000, validate_score=False)
    assert "and never decays; try a larger train.max_steps\n" in capsys.readouterr().err
    assert not schedule(warmup_steps=5, max_steps=5).warning() and schedule(warmup_steps=6, max_steps=5).warning()
    assert "never decays" in schedule("cosine", warmup_steps=5, max_steps=5).warning()
    assert not schedule("cosine", warmup_steps=5, max_steps=6).warning()
    assert "try train.warmup_steps=3" in schedule("linear", peak_lr=1.0, warmup_steps=4, max_steps=4).warning()
    assert not schedule("linear", warmup_steps=1, max_steps=1).warning()
    assert "try train.warmup_steps=1 and" in schedule("linear", warmup_steps=4, max_steps=1).warning()


@pytest.mark.parametrize("steps, warmup", [(1, 1), (4, 4), (35, 5), (3000, 300)])
@pytest.mark.parametrize("keys", [{}, {"peak_lr": 0.002}, {"lr_scale": 2.0}])
def test_the_suggested_warmup_is_short_with_the_same_peak(steps, warmup, keys):
    long = schedule(warmup_steps=4000, max_steps=steps, **keys)
    settings = re.findall(r"train\.(\w+)=([0-9.e-]+)", long.warning().partition("; try ")[2])
    changed = keys | {name: (float if name == "peak_lr" else int)(value) for name, value in settings}
    short = schedule(max_steps=steps, **changed)
    assert not short.warning() and short.warmup_steps == warmup
    assert short.peak == pytest.approx(long.peak, rel=0.01)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("keys", [{"lr_scale": 200.0}, {"peak_lr": 2.0}, {"peak_lr": 1e-4}, {}])
@pytest.mark.parametrize("step", [1, 50, 100, 900])
def test_after_a_divergence_a_quarter_of_the_highest_rate_so_far_is_suggested(name, keys, step):
    current = schedule(name, warmup_steps=100, max_steps=1000, **keys)
    peak = float(re.match(r"train\.peak_lr=([0-9.e-]+), ", current.remedies(step))[1])
    lower = schedule(name, warmup_steps=100, max_steps=1000, **keys | {"peak_lr": peak})
    assert max(map(lower, range(1, 1001))) <= max(map(current, range(1, step + 1))) / 3.5
    assert lower.peak <= schedule(warmup_steps=4000).peak * 1.05  # the peak of the paper


def test_after_a_divergence_a_key_that_is_set_is_not_suggested():
    assert schedule().remedies(5).endswith(", a larger train.warmup_steps, or train.clip_norm=1.0")
    assert schedule(clip_norm=0.5).remedies(5).endswith(" or a larger train.warmup_steps")
    assert "clip_norm" in schedule(clip_norm=5.0).remedies(5)


def test_before_the_first_update_the_learning_rate_is_not_blamed():
    for keys, suggestion in (
        ({}, "other keys in [model]"),
        ({"init": "runs/a"}, "the weights of another run"),
        ({"precision": "bf16"}, "train.precision=float32, or other keys in [model]"),
    ):
        assert schedule(**keys).remedies(0) == f"{suggestion}, because no update has changed the initial weights yet"


def test_a_resumed_run_warns_if_another_last_step_changes_the_learning_rate(text, tmp_path, capsys):
    for name, warning in (
        (
            "linear",
            "train.max_steps is now 6 instead of 2: the learning rate of step 3 is",
        ),
        ("noam", ""),
    ):
        changes = {"schedule": name, "warmup_steps": 1, "validate_score": False}
        run(text, tmp_path / name, max_steps=2, **changes)
        run(text, tmp_path / name, resume=True, max_steps=6, **changes)
        error = capsys.readouterr().err
        assert (warning in error) and bool(warning) == ("max_steps" in error)
        run(text, tmp_path / name, resume=True, max_steps=6, **changes)
        assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "warning"),
    [
        ({"peak_lr": 0.1}, {"peak_lr": 0.1, "lr_scale": 2.0}, ""),  # peak_lr replaces lr_scale
        ({}, {"warmup_steps": 2}, ""),  # the warmup is over
        ({}, {"lr_scale": 2.0}, "train.lr_scale is now 2.0 instead of 1.0: the learning rate of step 3 is "),
        (
            {"warmup_steps": 4, "max_steps": 6},
            {"warmup_steps": 4, "schedule": "linear", "max_steps": 8},
            "train.schedule is now linear instead of noam, train.max_steps is now 8 instead of 6: the learning rate",
        ),
    ],
)
def test_a_resumed_run_warns_of_the_keys_that_change_the_learning_rate(text, tmp_path, capsys, before, after, warning):
    quick = {"warmup_steps": 1, "validate_score": False, "max_steps": 4}
    with crash_after(3):
        run(text, tmp_path, checkpoint_every=2, **quick | before)
    capsys.readouterr()
    run(text, tmp_path, resume=True, checkpoint_every=2, **quick | after)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "is now" in line]
    assert len(warnings) == bool(warning) and all(line.startswith(f"warning: {warning}") for line in warnings)


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_resumed_run_may_have_another_learning_rate_which_is_logged(text, tmp_path, is_earlier):
    out = tmp_path / "run"
    quick = {"warmup_steps": 1, "validate_score": False, "log_every": 1}
    run(text, out, max_steps=2, **quick)

    def store_as_earlier_versions(state):  # a resumed run could not change the other keys
        keys = state.pop("learning_rate")
        state["max_steps"] = keys.pop("max_steps")
        state["config"] |= {f"train.{name}": value for name, value in keys.items()}

    if is_earlier:
        rewrite(out / "checkpoints" / "step-2", store_as_earlier_versions)
    run(text, out, resume=True, max_steps=4, peak_lr=0.001, schedule="constant", **quick)
    log = (out / "log.txt").read_text(encoding="utf-8")
    change = "train.schedule is now constant instead of noam, train.peak_lr is now 0.001 instead of 0.0: the learning "
    assert f"warning: {change}rate of step 3 is 0.001 instead of " in log and log.count("warning: train.schedule") == 1
    assert [entry["lr"] for entry in metrics(out) if entry["kind"] == "train"][-1] == pytest.approx(0.001)


def test_the_log_says_that_a_scale_has_no_effect():
    line = "train.lr_scale has no effect, because train.peak_lr is set"
    for changes, is_said in (({}, False), ({"lr_scale": 2.0}, False), ({"peak_lr": 0.1}, False)):
        assert (line in Schedule(TrainSection(**changes), 8).describe()) is is_said
    assert line in Schedule(TrainSection(peak_lr=0.1, lr_scale=2.0), 8).describe()
