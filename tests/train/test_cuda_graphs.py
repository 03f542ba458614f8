"""CUDA graphs on the strict fake (strict_graphs.py): captured steps are exact, and invalid captures fail."""

import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest

import npx
from models import Transformer, TransformerConfig
from models.architectures import LanguageModel
from npx.cuda import blas, graphs
from npx.cuda.graphs import CudaGraph
from tests.fakes import strict_graphs
from tests.fakes.strict_cupy import device
from tests.fakes.strict_graphs import STATE
from tests.helpers.trainings import config
from train.learn.update import Updater
from train.tasks import TASKS
from train.text.batches import PairBatch

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are emulated by g++; none found")
MODEL = {"vocab_size": 20, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}


class Journal:
    def __init__(self):
        self.lines = []

    def write_line(self, text):
        self.lines.append(text)


def batches(number, seed=0):
    """Return `number` batches of different sentences; every second one has another shape."""
    rng = np.random.default_rng(seed)
    result = []
    for i in range(number):
        rows, *lengths = (2, 3, 7) if i % 2 else (3, 5, 4)
        src, tgt = (rng.integers(4, 20, (rows, length)).astype(np.int32) for length in lengths)
        cut = rng.integers(1, 3)
        src[0, -cut:], tgt[1, -cut:], tgt[:, 0] = 0, 0, 1
        result.append(PairBatch(src, tgt, 0))
    return result


def updated(
    graphs,
    micro,
    precision="bf16",
    gradient_accumulation_steps=1,
    model_changes=None,
    model=Transformer,
    task="translation",
    **changes,
):
    """Return the weights after updates, the losses and norms, the log lines and the Updater."""
    made = model(
        TransformerConfig(**MODEL | (model_changes or {})), seed=3, dtype=npx.precision_named(precision).weight_dtype
    )
    settings = config(Path(), batch_tokens=20, precision=precision, cuda_graphs=True, **changes).train
    journal = Journal()
    figures = []
    updater = Updater(TASKS[task], made, settings, journal)
    if updater.graphed_loss:
        updater.graphed_loss.can_capture = graphs
    for step in range(0, len(micro), gradient_accumulation_steps):
        loss, norm = updater.compute_gradient(micro[step : step + gradient_accumulation_steps], step + 1)
        figures.append((loss, norm))
        updater.apply_gradient(0.01, norm)
    return npx.to_host(updater.flat.data), figures, journal.lines, updater


EVERY_DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}


@pytest.mark.parametrize(
    ("precision", "gradient_accumulation_steps", "model_changes"),
    [
        ("bf16", 1, EVERY_DROPOUT),
        pytest.param("fp16", 2, {"norm_placement": "pre", "positions": "learned"}, marks=pytest.mark.slow),
        pytest.param("float32", 3, EVERY_DROPOUT, marks=pytest.mark.slow),
    ],
)
def test_a_step_with_graphs_equals_the_step_without_bit_for_bit(precision, gradient_accumulation_steps, model_changes):
    micro = batches(4)
    with device(cuda=True):
        expected = updated(False, micro, precision, gradient_accumulation_steps, model_changes)
        assert STATE.launches == 0
        result = updated(True, micro, precision, gradient_accumulation_steps, model_changes)
    assert STATE.launches == len(micro) - 2  # the first batch of each of two shapes is not captured
    assert result[0].tobytes() == expected[0].tobytes()
    assert result[1] == expected[1] and result[2] == []


@pytest.mark.slow
def test_regularization_and_frozen_parameters_are_exact_with_graphs_too():
    micro = batches(4)
    model_changes = {"word_dropout": 0.3, "tying": "none", "target_space": True, "decoder_start": "zeros"}
    options = {
        "model_changes": EVERY_DROPOUT | model_changes,
        "rdrop_weight": 2.0,
        "ema_decay": 0.5,
        "freeze": "source_embedding.*,encoder.*",
    }
    with device(cuda=True):
        expected = updated(False, micro, **options)
        result = updated(True, micro, **options)
        without = updated(False, micro[:1], **options | {"rdrop_weight": 0.0})
    assert STATE.launches == len(micro) - 2 and result[2] == []
    assert result[0].tobytes() == expected[0].tobytes() and result[1] == expected[1]
    assert without[1][0] != result[1][0]


def test_a_language_model_step_with_graphs_is_exact_too():
    rng = np.random.default_rng(1)
    micro = [TextBatch(rng.integers(4, 20, (3, 8)).astype(np.int32)) for _ in range(4)]
    options = {"model": LanguageModel, "task": "language", "model_changes": EVERY_DROPOUT | {"architecture": "decoder"}}
    with device(cuda=True):
        expected = updated(False, micro, **options)
        result = updated(True, micro, **options)
    assert STATE.launches == 3 and result[0].tobytes() == expected[0].tobytes() and result[1] == expected[1]


class TextBatch:
    def __init__(self, ids):
        self.ids = ids
        self.n_targets = int((ids[:, 1:] != 0).sum())


@pytest.mark.slow
def test_replaced_arrays_live_as_long_as_the_graphs_that_read_them():
    """The position table grows with the longest sentence, while the first graph still reads the smaller one."""
    short = batches(1) * 2
    rng = np.random.default_rng(2)
    long = PairBatch(rng.integers(4, 20, (2, 80)).astype(np.int32), rng.integers(4, 20, (2, 5)).astype(np.int32), 0)
    micro = [*short, long, *short]
    with device(cuda=True):
        expected = updated(False, micro)
        result = updated(True, micro)
        assert STATE.launches == 3 and result[0].tobytes() == expected[0].tobytes()


def waited_for(loss):
    float(loss.data)
    return loss


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (waited_for, "got 'cudaErrorStreamCapture"),
        # a list as an index is uploaded within CuPy
        (lambda loss: loss[None][[0]][0], "got an upload from the host'; continuing without"),
    ],
)
def test_a_failed_capture_warns_once_and_runs_kernel_by_kernel(change, message, monkeypatch):
    """The host waits for the loss, or uploads from memory that is reused before the graph runs."""
    micro = batches(4)
    with device(cuda=True):
        expected = updated(False, micro, model_changes={"dropout": 0.0})
        real = Transformer.loss_on_device
        monkeypatch.setattr(
            Transformer, "loss_on_device", lambda self, *inputs, **options: change(real(self, *inputs, **options))
        )
        result = updated(True, micro, model_changes={"dropout": 0.0})
        assert STATE.pinned is strict_graphs.pinned
    assert STATE.launches == 0 and result[0].tobytes() == expected[0].tobytes()
    (line,) = result[2]
    assert (
        line.startswith("train.cuda_graphs: expected kernels that a CUDA graph can capture; got '") and message in line
    )


def test_the_memory_of_graphs_counts_towards_the_pool_limit():
    """CuPy's pool frees unreferenced blocks when memory is short, although graphs still write to them."""
    with device(cuda=True) as cupy:
        others = cupy.get_default_memory_pool()
        others.set_limit(size=5 << 30)
        graphs.pool.cache_clear()
        malloc = graphs.pool(cupy).allocator
        alive = []
        others.free_all_blocks()  # 3 GiB are in use
        for size in (1 << 30, 1 << 29):
            alive.append(weakref.ref(malloc(size).mem))
        assert all(memory() is not None for memory in alive) and others.get_limit() == (5 << 30) - (3 << 29)
        with pytest.raises(MemoryError, match="expected 1.000 GiB of free GPU memory; got 0.500 GiB"):
            malloc(1 << 30)
    graphs.pool.cache_clear()


def test_there_are_no_graphs_on_a_cpu():
    assert updated(True, batches(1), "float32")[3].graphed_loss is None


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_without_capture_it_computes_the_gradient_of_the_loss(precision):
    """The gradient equals that of an update without train.cuda_graphs, up to rounding.

    That update packs its sentences, so its dropout masks would differ; dropout is therefore disabled.
    """
    results = []
    with device(cuda=True):
        for graphs in (True, False):
            made = Transformer(TransformerConfig(**MODEL | {"dropout": 0.0}), seed=3)
            settings = config(Path(), batch_tokens=20, precision=precision, cuda_graphs=graphs).train
            updater = Updater(TASKS["translation"], made, settings, Journal())
            loss, norm = updater.compute_gradient(batches(3), 1)
            results.append(np.array([*npx.to_host(updater.flat.flatten_grad()), loss, norm]))
    np.testing.assert_allclose(*results, rtol=0, atol=1e-6 if precision == "float32" else 2e-2)


# ---- invalid captures, on the fake as on a GPU


def refused(function, error, match):
    x = np.arange(4, dtype=np.float32)
    with device(cuda=True) as cupy, pytest.raises(error, match=match):
        buffers = [npx.ones(4)]
        graph = CudaGraph(lambda given: function(cupy, given, buffers[0]), [x])
        buffers.clear()
        graph([x])


def test_a_capture_rejects_what_a_gpu_rejects():
    refused(lambda cupy, x, buffer: x * float(x.sum()), RuntimeError, "StreamCapture")
    refused(lambda cupy, x, buffer: npx.to_host(x), RuntimeError, "StreamCapture")
    refused(lambda cupy, x, buffer: x + npx.asarray([1.0, 2, 3, 4], "float32"), RuntimeError, "an upload from the host")
    later = npx.random.DeviceKey
    refused(lambda cupy, x, buffer: npx.random.normal(later(1, 0, 0, x), (4,)), RuntimeError, "only the device knows")
    product = lambda cupy, x, buffer: blas._cupy_gemm_ex(cupy)(*[0] * 18)  # noqa: E731
    refused(product, NotImplementedError, "cuBLAS API during stream capture")


def test_the_fake_rejects_what_a_gpu_computes_incorrectly():
    refused(lambda cupy, x, buffer: x + cupy.asarray(np.ones(4, "float32")), AssertionError, "an upload")
    refused(lambda cupy, x, buffer: x + buffer, AssertionError, "memory that was freed")


def test_a_graph_repeats_the_captured_calls():
    with device(cuda=True):
        total = npx.zeros(3)
        factor = npx.arange(3.0).astype("float32")

        def function(x, n):
            nonlocal total
            y = x * factor
            total += y
            return y.sum() + n

        graph = CudaGraph(function, [np.ones(3, np.float32), np.zeros((), np.int64)])
        assert npx.to_host(total).tolist() == [0, 0, 0]  # a capture computes nothing
        outputs = [graph([np.full(3, x, np.float32), np.array(n)]) for x, n in ((1, 5), (2, 6))]
        assert outputs[0] is outputs[1] and npx.to_host(outputs[1]) == 12 and npx.to_host(total).tolist() == [0, 3, 6]
        other = CudaGraph(lambda x: x + 1, [np.ones(3, np.float32)])
        other([np.ones(3, np.float32)])
        assert np.isnan(npx.to_host(outputs[1]))  # graphs share their memory
