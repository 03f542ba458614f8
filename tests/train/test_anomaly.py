"""`train --debug anomaly`: a loss or gradient that is not finite is told with its first operation and line of code."""

import re
import threading
import warnings

import numpy as np
import pytest

import npx
from autograd import operations as ops
from models import Transformer
from models.layers.feed_forward import FeedForward
from tests.helpers import trainings
from tests.helpers.trainings import config, metrics, one_line, outcome, run
from train import UserError
from train.cli.main import main
from train.learn import anomaly, update, validation
from train.learn.parallel import reducer

text, uninterrupted = trainings.text, trainings.uninterrupted
LONG = 15  # tokens; one line of the text alone has more: 28


def plant(monkeypatch, make, training=True):
    """The feed-forward layers add make(0) where a batch is longer than LONG; returns what they were given there."""
    forward, loss_of, given, longest = FeedForward.forward, Transformer.loss_of, [], {}

    def measured(self, *inputs, packing, **how):
        longest.update({len(side.flat_index): side.max_length for side in packing})  # by the rows of a side
        return loss_of(self, *inputs, packing=packing, **how)

    def planted(self, x):
        if self.training is not training or (training and longest[len(x.data)] <= LONG):
            return forward(self, x)
        given.append(x.data.tobytes())
        return forward(self, x) + make(x - x)

    monkeypatch.setattr(Transformer, "loss_of", measured)
    monkeypatch.setattr(FeedForward, "forward", planted)
    return given


def nothing_by_nothing(zero):
    return zero / zero


def root(zero):
    return ops.sqrt(zero)  # 0, with a slope that is infinite


@pytest.mark.parametrize(
    ("make", "what", "told"),
    [
        (nothing_by_nothing, "loss", r"divide: expected finite numbers from finite ones; gave nan at \(0, 0\)"),
        (root, "gradient norm", r"sqrt, on the way back: expected a finite gradient of argument 0; gave \S+ at"),
    ],
)
def test_a_training_names_the_operation_the_lines_of_text_and_the_line_of_code(
    text, tmp_path, monkeypatch, capfd, make, what, told
):
    given = plant(monkeypatch, make)
    file = tmp_path / "config.toml"
    file.write_text(config(text).dump(), encoding="utf-8")
    command = ["train", str(file), "--quiet", "--debug", "anomaly", "--set", "train.max_skipped=0", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 2
    where = rf"it comes from lines 28 of the text.*; first operation: {told}.*\((en|de)coder\.0\.feed_forward, "
    found, line = capfd.readouterr().err, make.__code__.co_firstlineno + 1
    assert re.search(rf'step 2: expected a finite {what}; got .*{where}File "{__file__}", line {line}, in', found)
    assert found.count("\n") == 1
    assert found.strip().removeprefix("npx-transformer: ") in (tmp_path / "run" / "log.txt").read_text()
    (entry,) = [entry for entry in metrics(tmp_path / "run") if entry["kind"] == "skipped"]
    assert entry["anomaly"] in found and entry["examples"].startswith("lines 28 ")
    assert given and sorted(given) == sorted(2 * list({*given})), "the second time is the first, dropout and all"


def test_what_is_skipped_is_the_same_with_and_without(text, tmp_path, monkeypatch):
    plant(monkeypatch, nothing_by_nothing)
    for name, debug in (("plain", ""), ("looked", "anomaly")):
        run(text, tmp_path / name, debug=debug, max_steps=3)
    plain, looked = outcome(tmp_path / "plain"), outcome(tmp_path / "looked")
    assert plain[:2] == looked[:2]
    assert plain[2] == [{k: v for k, v in entry.items() if k != "anomaly"} for entry in looked[2]] != looked[2]


def test_nothing_is_looked_at_while_all_is_finite(text, tmp_path, monkeypatch, uninterrupted):
    for module in (update, validation):
        monkeypatch.setattr(module, "first_anomaly", None)
    run(text, tmp_path / "run", debug="anomaly")
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


def test_a_validation_names_its_lines_and_the_operation(text, tmp_path, monkeypatch):
    plant(monkeypatch, nothing_by_nothing, training=False)
    for debug, told in (("", "; --debug anomaly names the operation"), ("anomaly", "; first operation: divide: ")):
        with pytest.raises(UserError, match="step 4: expected a finite validation loss; got nan") as error:
            run(text, tmp_path / f"run{debug}", debug=debug)
        assert told in one_line(error) and "it comes from lines " in one_line(error)


def test_a_sum_that_alone_is_beyond_the_numbers_is_said_to_be(text, tmp_path, monkeypatch):
    monkeypatch.setattr(reducer, "squared_norm", lambda flat: flat.data.dtype.type("inf"))
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", debug="anomaly", max_skipped=0)
    assert "expected a finite gradient norm; got inf" in one_line(error) and anomaly.NO_OPERATION in one_line(error)


def test_halves_that_are_not_finite_are_told_with_the_lines_of_their_micro_batch(text, tmp_path, monkeypatch):
    given, gradient, left = plant(monkeypatch, nothing_by_nothing), update.Update._gradient, [1]

    def once(self, micro, targets, step):
        if step == 2 and left and left.pop():
            raise MemoryError
        return gradient(self, micro, targets, step)

    monkeypatch.setattr(update.Update, "_gradient", once)
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", max_skipped=0)
    assert given and one_line(error).count(" of the text, counted from 1") == 1


def test_two_updates_at_once_leave_the_filters_of_warnings_alone():
    """The first to begin is the first to end. Filters belong to the process: either would put the other's back."""
    before, begun, ended, large = list(warnings.filters), threading.Event(), threading.Event(), np.full(4, 1e30)

    def first():
        with anomaly.ignore_nonfinite_warnings():
            begun.set()
            second_began.wait(60)
        ended.set()

    second_began, thread = threading.Event(), threading.Thread(target=first)
    thread.start()
    begun.wait(60)
    with anomaly.ignore_nonfinite_warnings():
        second_began.set()
        ended.wait(60)
        with npx.small_blocks(1, threads=2):  # in threads that walk over rows, too
            assert np.isinf(npx.elementwise(lambda x: x**20, large)).all()
    thread.join()
    assert list(warnings.filters) == before
    with pytest.warns(RuntimeWarning, match="overflow"):
        large**20
