"""CUDA graphs on the strict stand-in (strict_graphs.py): a captured step is the step, and what may not be captured."""

import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest

import npx
from models import Transformer, TransformerConfig
from models.architectures import LanguageModel
from npx.cuda import blas, graphs
from npx.cuda.graphs import Graph
from tests.fakes import strict_graphs
from tests.fakes.strict_cupy import device
from tests.fakes.strict_graphs import STATE
from tests.helpers.trainings import config
from train.learn.update import Update
from train.tasks import TASKS
from train.text.batches import Batch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are emulated by g++; none found")
SHAPE = {"vocab_size": 20, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}


class Journal:
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def batches(number, seed=0):
    """As many as `number`, of other sentences each, every third one of another shape."""
    rng, found = np.random.default_rng(seed), []
    for i in range(number):
        rows, *lengths = (2, 3, 7) if i % 3 == 2 else (3, 5, 4)
        src, tgt = (rng.integers(4, 20, (rows, length)).astype(np.int32) for length in lengths)
        cut = rng.integers(1, 3)
        src[0, -cut:], tgt[1, -cut:], tgt[:, 0] = 0, 0, 1
        found.append(Batch(src, tgt, 0))
    return found


def updated(graphs, micro, precision="bf16", accumulate=1, shape=None, model=Transformer, task="translation"):
    """The weights after updates, losses and norms, what was said; the Update. `graphs`: or the same call by call."""
    made = model(TransformerConfig(**SHAPE | (shape or {})), seed=3, dtype=npx.precision_named(precision).weight_dtype)
    settings = config(Path(), batch_tokens=20, precision=precision, graphs=True).train
    journal, found = Journal(), []
    update = Update(TASKS[task], made, settings, journal)
    if update.graphs:
        update.graphs.possible = graphs
    for step in range(0, len(micro), accumulate):
        loss, norm = update.gradient(micro[step : step + accumulate], step + 1)
        found.append((loss, norm))
        update.apply(0.01, norm)
    return npx.to_host(update.flat.data), found, journal.lines, update


EVERY_DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}


@pytest.mark.parametrize(
    ("precision", "accumulate", "shape"),
    [("bf16", 1, EVERY_DROPOUT), ("fp16", 2, {"norm": "pre", "positions": "learned"}), ("float32", 3, EVERY_DROPOUT)],
)
def test_a_step_by_graphs_is_the_step_bit_for_bit(precision, accumulate, shape):
    micro = batches(12)
    with device(cuda=True):
        expected = updated(False, micro, precision, accumulate, shape)
        assert STATE.launches == 0
        found = updated(True, micro, precision, accumulate, shape)
    assert STATE.launches == len(micro) - 2  # each of two shapes is computed once call by call
    assert found[0].tobytes() == expected[0].tobytes()
    assert found[1] == expected[1] and found[2] == []


def test_a_language_model_too():
    rng = np.random.default_rng(1)
    micro = [TextBatch(rng.integers(4, 20, (3, 8)).astype(np.int32)) for _ in range(4)]
    how = {"model": LanguageModel, "task": "language", "shape": EVERY_DROPOUT | {"architecture": "decoder"}}
    with device(cuda=True):
        expected = updated(False, micro, **how)
        found = updated(True, micro, **how)
    assert STATE.launches == 3 and found[0].tobytes() == expected[0].tobytes() and found[1] == expected[1]


class TextBatch:
    def __init__(self, ids):
        self.ids, self.n_target_tokens = ids, int((ids[:, 1:] != 0).sum())


def test_arrays_that_are_replaced_outlive_the_graphs_that_read_them():
    """The table of positions grows with the longest sentence, and the first graph goes on reading the smaller one."""
    short, rng = batches(2)[:2], np.random.default_rng(2)
    long = Batch(rng.integers(4, 20, (2, 80)).astype(np.int32), rng.integers(4, 20, (2, 5)).astype(np.int32), 0)
    micro = [*short, long, *short]
    with device(cuda=True):
        expected = updated(False, micro)
        found = updated(True, micro)
        assert STATE.launches == 3 and found[0].tobytes() == expected[0].tobytes()


def waited_for(loss):
    float(loss.data)
    return loss


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (waited_for, "got 'cudaErrorStreamCapture"),
        # a list as an index is uploaded within CuPy
        (lambda loss: loss[None][[0]][0], "got one that uploads data from the host'; on without"),
    ],
)
def test_what_cannot_be_captured_is_told_once_and_computed_call_by_call(change, said, monkeypatch):
    """A host that waits for the loss, and one whose memory a graph would read when it is another's."""
    micro = batches(6)
    with device(cuda=True):
        expected = updated(False, micro, shape={"dropout": 0.0})
        real = Transformer.loss_of
        monkeypatch.setattr(Transformer, "loss_of", lambda self, *inputs, **how: change(real(self, *inputs, **how)))
        found = updated(True, micro, shape={"dropout": 0.0})
        assert STATE.pinned is strict_graphs.pinned
    assert STATE.launches == 0 and found[0].tobytes() == expected[0].tobytes()
    (line,) = found[2]
    assert line.startswith("train.graphs: expected kernels that a CUDA graph can hold; got '") and said in line


def test_memory_that_graphs_write_to_is_kept_within_the_limit_of_all():
    """CuPy's pool gives back what no array holds where memory is short: graphs still write there."""
    with device(cuda=True) as cupy:
        others = cupy.get_default_memory_pool()
        others.set_limit(size=5 << 30)
        graphs.pool.cache_clear()
        malloc, alive = graphs.pool(cupy).allocator, []
        others.free_all_blocks()  # 3 GiB are in use
        for size in (1 << 30, 1 << 29):
            alive.append(weakref.ref(malloc(size).mem))
        assert all(memory() is not None for memory in alive) and others.get_limit() == (5 << 30) - (3 << 29)
        with pytest.raises(MemoryError, match="got a limit of .* in use"):
            malloc(1 << 30)
    graphs.pool.cache_clear()


def test_on_a_cpu_there_are_none():
    assert updated(True, batches(1), "float32")[3].graphs is None


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_call_by_call_it_is_the_gradient_of_the_loss(precision):
    """As an update without train.graphs forms it, but for rounding: that one packs, and so dropout draws otherwise."""
    found = []
    with device(cuda=True):
        for graphs in (True, False):
            made = Transformer(TransformerConfig(**SHAPE | {"dropout": 0.0}), seed=3)
            settings = config(Path(), batch_tokens=20, precision=precision, graphs=graphs).train
            update = Update(TASKS["translation"], made, settings, Journal())
            loss, norm = update.gradient(batches(3), 1)
            found.append(np.array([*npx.to_host(update.flat.grad), loss, norm]))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6 if precision == "float32" else 2e-2)


# ---- what a graph may not do, on the stand-in as on a GPU


def refused(function, error, match):
    x = np.arange(4, dtype=np.float32)
    with device(cuda=True) as cupy, pytest.raises(error, match=match):
        kept = [npx.ones(4)]
        graph = Graph(lambda given: function(cupy, given, kept[0]), [x])
        kept.clear()
        graph([x])


def test_a_capture_refuses_what_a_gpu_refuses():
    refused(lambda cupy, x, kept: x * float(x.sum()), RuntimeError, "StreamCapture")
    refused(lambda cupy, x, kept: npx.to_host(x), RuntimeError, "StreamCapture")
    refused(lambda cupy, x, kept: x + npx.asarray([1.0, 2, 3, 4], "float32"), RuntimeError, "uploads")
    later = npx.random.DeviceKey
    refused(lambda cupy, x, kept: npx.random.normal(later(1, 0, 0, x), (4,)), RuntimeError, "the host does not know")
    product = lambda cupy, x, kept: blas._cupy_gemm_ex(cupy)(*[0] * 18)  # noqa: E731
    refused(product, NotImplementedError, "cuBLAS API during stream capture")


def test_the_stand_in_refuses_what_a_gpu_computes_wrong():
    refused(lambda cupy, x, kept: x + cupy.asarray(np.ones(4, "float32")), AssertionError, "an upload")
    refused(lambda cupy, x, kept: x + kept, AssertionError, "memory that was freed")


def test_a_graph_computes_again_what_it_was_made_of():
    with device(cuda=True):
        total, kept = npx.zeros(3), npx.arange(3.0).astype("float32")

        def function(x, n):
            nonlocal total
            y = x * kept
            total += y
            return y.sum() + n

        graph = Graph(function, [np.ones(3, np.float32), np.zeros((), np.int64)])
        assert npx.to_host(total).tolist() == [0, 0, 0]  # nothing is computed while it is made
        found = [graph([np.full(3, x, np.float32), np.array(n)]) for x, n in ((1, 5), (2, 6))]
        assert found[0] is found[1] and npx.to_host(found[1]) == 12 and npx.to_host(total).tolist() == [0, 3, 6]
        other = Graph(lambda x: x + 1, [np.ones(3, np.float32)])
        other([np.ones(3, np.float32)])
        assert np.isnan(npx.to_host(found[1]))  # graphs share their memory
