"""`train --debug anomaly` reports the first operation and source line of a non-finite loss or gradient."""

import re
import threading
import warnings
from functools import partial

import numpy as np
import pytest

import npx
from autograd import operations as ops
from models import Transformer
from models.layers.feed_forward import FeedForward
from tests.helpers.trainings import config, metrics, one_line, outcome, run
from train import UserError
from train.cli.main import main
from train.learn import anomaly, trainer, update, validation
from train.learn.parallel import reducer
from train.run.state import RunState


@pytest.fixture(autouse=True, scope="module")
def first_batch_order():
    """Train with version 1 of the order of batches, in which line 28 is alone in a batch of update 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "RunState", partial(RunState, batch_order=1))
        yield


LONG = 15  # tokens; only line 28 of the text has more


def plant(monkeypatch, make, training=True):
    """Make feed-forward layers add make(0) in batches longer than LONG; return the list of those inputs."""
    forward = FeedForward.forward
    loss_on_device = Transformer.loss_on_device
    planted_inputs = []
    longest = {}

    def measured(self, *inputs, packing, **options):
        longest.update(
            {len(side.flat_index): side.max_length for side in packing}
        )  # rows of a side -> its longest sentence
        return loss_on_device(self, *inputs, packing=packing, **options)

    def planted(self, x):
        if self.training is not training or (training and longest[len(x.data)] <= LONG):
            return forward(self, x)
        planted_inputs.append(x.data.tobytes())
        return forward(self, x) + make(x - x)

    monkeypatch.setattr(Transformer, "loss_on_device", measured)
    monkeypatch.setattr(FeedForward, "forward", planted)
    return planted_inputs


def zero_by_zero(zero):
    return zero / zero


def root(zero):
    return ops.sqrt(zero)  # 0, with an infinite derivative


@pytest.mark.parametrize(
    ("make", "quantity", "pattern"),
    [
        (zero_by_zero, "loss", r"divide: expected a finite result for finite inputs; got nan at \(0, 0\)"),
        (root, "gradient norm", r"backward of sqrt: expected a finite gradient of argument 0; got \S+ at"),
    ],
)
def test_training_reports_operation_text_lines_and_source_line(
    text, tmp_path, monkeypatch, capfd, make, quantity, pattern
):
    inputs = plant(monkeypatch, make)
    file = tmp_path / "config.toml"
    file.write_text(config(text).dump(), encoding="utf-8")
    command = ["train", str(file), "--quiet", "--debug", "anomaly", "--set", "train.max_skipped_updates=0", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 2
    origin = rf"it comes from lines 28 of the text.*; first operation: {pattern}.*\((en|de)coder\.0\.feed_forward, "
    err = capfd.readouterr().err
    line = make.__code__.co_firstlineno + 1
    assert re.search(rf'step 2: expected a finite {quantity}; got .*{origin}File "{__file__}", line {line}, in', err)
    *warnings, error = err.splitlines()
    assert all(line.startswith("warning: ") for line in warnings)
    assert error.removeprefix("npx-transformer: ") in (tmp_path / "run" / "log.txt").read_text()
    (entry,) = [entry for entry in metrics(tmp_path / "run") if entry["kind"] == "skipped"]
    assert entry["anomaly"] in err and entry["examples"].startswith("lines 28 ")
    assert inputs and sorted(inputs) == sorted(2 * list({*inputs})), "the repetition is exact, dropout included"


def test_anomaly_mode_skips_the_same_updates(text, tmp_path, monkeypatch):
    plant(monkeypatch, zero_by_zero)
    for name, debug in (("plain", ""), ("looked", "anomaly")):
        run(text, tmp_path / name, debug=debug, max_steps=3)
    plain, debugged = outcome(tmp_path / "plain"), outcome(tmp_path / "looked")
    assert plain[:2] == debugged[:2]
    assert plain[2] == [{k: v for k, v in entry.items() if k != "anomaly"} for entry in debugged[2]] != debugged[2]


def test_nothing_is_checked_while_all_values_are_finite(text, tmp_path, monkeypatch):
    run(text, tmp_path / "plain")
    for module in (update, validation):
        monkeypatch.setattr(module, "first_anomaly", None)
    run(text, tmp_path / "debugged", debug="anomaly")
    assert outcome(tmp_path / "debugged") == outcome(tmp_path / "plain")


def test_validation_reports_text_lines_and_operation(text, tmp_path, monkeypatch):
    plant(monkeypatch, zero_by_zero, training=False)
    for debug, words in (("", "; --debug anomaly names the operation"), ("anomaly", "; first operation: divide: ")):
        with pytest.raises(UserError, match="step 4: expected a finite validation loss; got nan") as error:
            run(text, tmp_path / f"run{debug}", debug=debug)
        assert words in one_line(error) and "it comes from lines " in one_line(error)


def test_a_norm_that_overflows_without_an_operation_is_reported(text, tmp_path, monkeypatch):
    monkeypatch.setattr(reducer, "squared_norm", lambda flat: flat.data.dtype.type("inf"))
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", debug="anomaly", max_skipped_updates=0)
    assert "expected a finite gradient norm; got inf" in one_line(error) and anomaly.NO_OPERATION in one_line(error)


def test_nonfinite_halves_are_reported_with_the_lines_of_their_micro_batch(text, tmp_path, monkeypatch):
    inputs = plant(monkeypatch, zero_by_zero)
    gradient = update.Updater._compute_gradient
    failures_left = [1]

    def once(self, micro, targets, step):
        if step == 2 and failures_left and failures_left.pop():
            raise MemoryError
        return gradient(self, micro, targets, step)

    monkeypatch.setattr(update.Updater, "_compute_gradient", once)
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", max_skipped_updates=0)
    assert inputs and one_line(error).count(" of the text (numbered from 1)") == 1


def test_concurrent_updates_do_not_change_warning_filters():
    """Filters belong to the process. The first thread to start is the first to end and would restore the wrong ones."""
    before = list(warnings.filters)
    first_began = threading.Event()
    first_ended = threading.Event()
    large = np.full(4, 1e30)

    def first():
        with anomaly.ignore_nonfinite_warnings():
            first_began.set()
            second_began.wait(60)
        first_ended.set()

    second_began = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    first_began.wait(60)
    with anomaly.ignore_nonfinite_warnings():
        second_began.set()
        first_ended.wait(60)
        with npx.small_blocks(1, threads=2):  # in row workers too
            assert np.isinf(npx.elementwise(lambda x: x**20, large)).all()
    thread.join()
    assert list(warnings.filters) == before
    with pytest.warns(RuntimeWarning, match="overflow"):
        large**20


def test_a_diverged_training_lists_few_lines_once_and_shows_the_error_once(text, tmp_path, capfd):
    options = ["--train-src", f"{text}/train.en", "--train-tgt", f"{text}/train.de", "--out", str(tmp_path / "run")]
    file = tmp_path / "config.toml"
    file.write_text(config(text, peak_lr=1e9, warmup_steps=1, max_skipped_updates=2).dump(), encoding="utf-8")
    assert main(["train", str(file), *options]) == 2
    err = capfd.readouterr().err
    assert err.count("update skipped") == 2 and err.count("there is no checkpoint yet") == 1
    listed = re.findall("it comes from lines (.*?) of the text", err)  # by the first update, and by the error
    assert len(listed) == 2 and all(len(lines.split(", ")) <= 10 for lines in listed)
    assert "(3 updates in a row)" in (tmp_path / "run" / "log.txt").read_text()
