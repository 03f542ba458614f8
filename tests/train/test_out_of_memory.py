"""Running out of memory: descriptions of saved arrays, updates repeated with halves, messages."""

import gc
import json

import numpy as np
import pytest

import npx
from autograd import Tensor, saved_arrays
from autograd import operations as ops
from models import Transformer
from tests.fakes.strict_cupy import device, kernels_by_reference
from tests.helpers.small_updates import SRC, TGT, batch, model, updater_of
from tests.helpers.trainings import metrics, run
from train import UserError
from train.text.batches import Batches
from train.text.corpus import PairCorpus


def test_saved_arrays_are_described_by_operation_and_size():
    gc.collect()
    before = len(saved_arrays())
    x = Tensor(np.ones((50, 40), "float32"), requires_grad=True)
    y = ops.exp(x)  # saves its output
    z = y * y  # saves the same array
    saved = [array for array in saved_arrays() if array.shape == (50, 40)]
    assert [(array.operation, array.n_arrays, array.dtype, array.nbytes) for array in saved] == [
        ("exp", 1, "float32", 8000)
    ]
    assert str(saved[0]) == "exp 1 x (50, 40) float32, 0.0 MiB"
    z.sum().backward()
    assert len(saved_arrays()) == before


def test_saved_arrays_of_a_model_are_sorted_and_exclude_parameters():
    network = model()
    with npx.keyed(1, 1):
        loss = network.loss(SRC, TGT)
    saved = saved_arrays()
    assert [array.nbytes for array in saved] == sorted((array.nbytes for array in saved), reverse=True)
    assert {"dropout_residual_norm", "self_attention", "linear"} <= {array.operation for array in saved}
    shapes = {tuple(p.shape) for p in network.parameters()} - {(8,), (16,)}
    assert not [array for array in saved if array.shape in shapes and array.operation != "linear_cross_entropy"]
    loss.backward()


def limit_memory(monkeypatch, max_rows, where="forward"):
    """Make `model.loss` raise MemoryError for more than `max_rows` rows, in forward or backward.

    Return a list to which each call appends its number of rows.
    """
    loss = Transformer.loss
    batch_sizes = []

    def raise_memory_error(g):
        raise MemoryError

    def limited_loss(self, src, tgt, *args, **kwargs):
        batch_sizes.append(len(src))
        value = loss(self, src, tgt, *args, **kwargs)
        if len(src) > max_rows and where == "forward":
            raise MemoryError("Unable to allocate 1.00 TiB")
        if len(src) > max_rows:
            value.node.vjp = raise_memory_error
        return value

    monkeypatch.setattr(Transformer, "loss", limited_loss)
    return batch_sizes


class Journal:
    """Records the output of an update."""

    def __init__(self):
        self.entries, self.lines = [], []
        self.write_metrics, self.write_line = self.entries.append, self.lines.append


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_update_that_does_not_fit_is_repeated_with_halves(monkeypatch, where):
    pairs = [((4 + i % 9, 5, 6), (7, 8 + i % 5)) for i in range(7)]
    batches = Batches(PairCorpus.from_pairs(pairs), 1000)
    micro = [batches.batch(np.arange(7)), batches.batch(np.arange(2))]
    gradients = []
    for max_rows in (7, 4):
        journal = Journal()
        network = model(dropout=0.0)
        for p in network.parameters():
            p.data = p.data.astype("float64")
        updater = updater_of(network, journal)
        with monkeypatch.context() as patch:
            batch_sizes = limit_memory(patch, max_rows, where)
            result = updater.compute_gradient(micro, 5)
        gradients.append((*result, updater.flat.flatten_grad().copy()))
    assert batch_sizes == [7, 3, 4, 1, 1]
    assert gradients[0][:2] == pytest.approx(gradients[1][:2], rel=1e-12)
    np.testing.assert_allclose(gradients[1][2], gradients[0][2], rtol=1e-9, atol=1e-14)
    assert journal.entries == [{"kind": "halved", "step": 5, "micro_batches": 4}]
    memory, message = journal.lines
    assert "largest micro-batch: 7 pairs of" in memory and len(message) < 250
    assert "train.batch_tokens = 10 with train.gradient_accumulation_steps = 4" in message and "4 halves" in message


def test_running_out_of_memory_twice_gives_a_one_line_error(text, tmp_path, monkeypatch):
    limit_memory(monkeypatch, max_rows=0)
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run")
    message = str(error.value)
    for part in ("step 1", "train.batch_tokens = 60", "try train.batch_tokens = 30", "gradient_accumulation_steps = 4"):
        assert part in message
    assert "\n" not in message and len(message) < 200
    memory = (tmp_path / "run" / "log.txt").read_text("utf-8").splitlines()[-1]
    assert "step 1: memory ran out: " in memory and "pairs of" in memory and "MiB" in memory
    assert any(name in memory for name in ("linear", "attention", "dropout_residual_norm"))
    assert metrics(tmp_path / "run") == [{"kind": "halved", "step": 1, "micro_batches": 4}]


def test_a_single_pair_that_does_not_fit_is_not_retried(monkeypatch):
    batch_sizes = limit_memory(monkeypatch, max_rows=0)
    journal = Journal()
    updater = updater_of(model(), journal)
    one = Batches(PairCorpus.from_pairs([((4, 5), (6,))]), 100).batch(np.arange(1))
    with pytest.raises(UserError, match="step 1: out of memory with train.batch_tokens"):
        updater.compute_gradient([one], 1)
    assert batch_sizes == [1] and not journal.entries and "1 pair of 3 + 2 tokens" in journal.lines[0]


def test_the_message_on_a_gpu_has_its_memory_use():
    with kernels_by_reference(), device():
        updater = updater_of(model(), None)
        assert "3.0 of the GPU's 8.0 GiB in arrays" in updater.describe_memory([batch()])
        assert npx.memory_use().free == 1 << 30
        npx.free_memory()
    assert npx.memory_use() is None


def test_a_run_continues_with_halves_and_logs_it(text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        limit_memory(patch, max_rows=8)
        summary = run(text, tmp_path / "run")
    assert summary.step == 12 and np.isfinite(summary.valid_loss)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    halved = [entry for entry in map(json.loads, lines) if entry["kind"] == "halved"]
    assert halved and all(entry["micro_batches"] > 2 and entry["time"] for entry in halved)
    assert "halves" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")


def test_the_halves_contain_the_whole_batch():
    full = batch()
    first, second = full.halves()
    assert np.array_equal(np.concatenate([first.src, second.src]), full.src)
    assert first.n_targets + second.n_targets == full.n_targets
    assert first.halves() == [first] and len(first.src) == 1
