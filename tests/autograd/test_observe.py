"""Watching the engine: what it does with gradients, memory over a step, anomalies by name, hooks, recomputation."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from autograd import (
    AnomalyError,
    Memory,
    Observer,
    Recorder,
    Tensor,
    anomaly,
    backward,
    checkpoint,
    neural,
    no_grad,
    observing,
    on_gradient,
)
from autograd import operations as ops
from autograd.testing import strategies as s
from models import FlatParameters, Transformer, TransformerConfig
from models.architectures.decoder import LanguageModel


def leaf(*numbers):
    return Tensor(np.array(numbers, float), requires_grad=True)


def deep(layers=12, **options):
    """A language model of some layers and a batch of text."""
    sizes = {"d_model": 32, "d_ff": 128, "n_heads": 4, "vocab_size": 50, "dropout": 0.1} | options
    with npx.keyed(1, 0):
        model = LanguageModel(TransformerConfig(n_layers=layers, architecture="decoder", **sizes))
    return model, np.random.default_rng(0).integers(3, 50, size=(8, 65))


# The observer


def test_without_an_observer_nothing_is_told_and_with_one_everything():
    calls = []

    class Log(Observer):
        def on_forward(self, name, args, result):
            calls.append(("forward", name))

        def on_backward(self, event):
            calls.append(("backward", event.node.name))

    a = leaf(2.0)
    with observing(Log()):
        y = (a * a + a).sum()
        backward(y)
    (a * a).sum().backward()
    assert calls == [
        ("forward", "multiply"),
        ("forward", "add"),
        ("forward", "sum"),
        ("backward", "sum"),
        ("backward", "add"),
        ("backward", "multiply"),
    ]


@given(s.expressions())
def test_watching_changes_no_bit(drawn):
    f, arrays = drawn
    results = []
    for watch in (Observer(), Recorder(), Memory(), None):
        leaves = [Tensor(x.copy(), requires_grad=True) for x in arrays]
        with observing(watch):
            f(*leaves).backward()
        results.append([x.grad for x in leaves])
    for other in results[:-1]:
        assert all((a is b is None) or a.tobytes() == b.tobytes() for a, b in zip(other, results[-1], strict=True))


def test_how_gradients_are_passed_on():
    a = leaf(3.0)
    with observing(Recorder()) as seen:
        u = a * 2.0
        y = u * u + u + u
        y.backward()
    steps = [step for _, step in sorted(seen.steps.items())]
    assert [step.name for step in steps] == ["multiply", "multiply", "add", "add"]
    assert [step.handling for step in steps] == [
        ["copied"],
        ["added in place", "added in place"],
        ["borrowed", "sum allocated"],
        ["borrowed", "borrowed"],
    ]
    assert [step.visit for step in steps] == [3, 2, 1, 0] and steps[0].g.tolist() == [14.0]
    assert len(seen.leaves) == 1 and steps[0].parents == [-1]


# Memory


def peak_of(run):
    gc.collect()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_memory_over_a_step_has_the_peak_of_tracemalloc(gradient_checkpointing):
    model, ids = deep(4)
    flat = FlatParameters(model)

    def step(watch):
        flat.zero_grad()
        with npx.keyed(1, 1), observing(watch):
            model.loss(ids).backward()

    step(None)  # tables that are made once
    model.enable_gradient_checkpointing(gradient_checkpointing)
    measured = peak_of(lambda: step(None))
    traced, alone = [], Memory()
    peak_of(lambda: traced.append(Memory(traced=True)) or step(*traced))
    step(alone)
    (memory,) = traced
    assert abs(memory.peak.max_live / measured - 1) < 0.1, (memory.peak, measured)
    assert [m.live for m in memory.samples] == [m.live for m in alone.samples] == [m.max_live for m in alone.samples]
    if gradient_checkpointing:  # where little is kept, what a kernel needs for itself is a good part
        return
    assert abs(alone.peak.live / measured - 1) < 0.2, (alone.peak, measured)  # attention's own, when it is formed again
    first, last = memory.samples[0], memory.samples[-1]
    assert first.phase == "forward" and last.phase == "backward" and last.live < 0.1 * memory.peak.live
    layers = memory.by_layer()
    assert {"layers.0.attention", "layers.3.feed_forward_residual.norm"} & layers.keys()
    assert layers["layers.0.attention"] == layers["layers.1.attention"]


def test_memory_asks_tracemalloc_only_where_it_traces():
    with pytest.raises(ValueError, match="Memory: expected tracemalloc to be tracing; got it stopped"):
        Memory(traced=True)


# Anomalies


def transformer():
    with npx.keyed(1, 0):
        config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=4, dropout=0.0)
        return Transformer(config), np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5, 4, 2]])


def test_a_division_of_nothing_by_nothing_is_named_with_its_layer_and_line():
    model, src, tgt = transformer()
    inner = model.decoder[2].feed_forward.forward

    def planted(x):
        nothing = x - x
        return inner(x) + nothing / nothing  # the planted one

    model.decoder[2].feed_forward.forward = planted
    with np.errstate(all="ignore"):
        assert np.isnan(model.loss(src, tgt, label_smoothing=0.0).item())
        with pytest.raises(AnomalyError) as caught, anomaly():
            model.loss(src, tgt, label_smoothing=0.0).backward()
    text = str(caught.value)
    assert text.startswith("divide: expected a finite result for finite inputs; got nan at (0, 0)")
    line = planted.__code__.co_firstlineno + 2
    assert "decoder.2" in text and f'test_observe.py", line {line}, in planted' in text


def test_an_anomaly_on_the_way_back_is_named_with_the_line_that_went_forward():
    x = leaf(0.0, 1.0)
    with np.errstate(all="ignore"), pytest.raises(AnomalyError) as caught, anomaly():
        y = ops.sqrt(x)  # finite, with no slope at 0
        y.sum().backward()
    assert str(caught.value).startswith("backward of sqrt: expected a finite gradient of argument 0; got inf at (0,)")
    assert "test_observe.py" in str(caught.value)


def test_masks_are_no_anomaly_and_bad_parameters_are():
    with anomaly():
        x = leaf(1.0, 2.0)
        neural.COMPOSITIONS["softmax"](x, np.array([True, False])).sum().backward()
        model, src, tgt = transformer()
        model.loss(src, tgt, label_smoothing=0.1).backward()
    with (
        pytest.raises(
            AnomalyError, match=r"multiply: expected finite parameters; got nan at \(0,\), 1 of 1 in argument 1"
        ),
        anomaly(),
    ):
        leaf(2.0) * leaf(np.nan)
    with pytest.raises(AnomalyError, match="backward: expected a finite gradient for sum; got inf"), anomaly():
        (x * 2.0).sum().backward(np.asarray(np.inf))


# Hooks


def test_a_hook_sees_the_whole_gradient_and_may_change_it():
    seen = []
    a = leaf(3.0)
    u = on_gradient(a * 2.0, lambda g: seen.append(g.tolist()))
    (u * u + u).sum().backward()
    assert seen == [[13.0]] and a.grad.tolist() == [26.0]
    b = leaf(3.0)
    on_gradient(b, lambda g: 10 * g).sum().backward()
    assert b.grad.tolist() == [10.0]


# Recomputation


def gradients(model, batch, gradient_checkpointing):
    model.enable_gradient_checkpointing(gradient_checkpointing)
    flat = FlatParameters(model) if not hasattr(model, "flat") else model.flat
    model.flat = flat
    flat.zero_grad()
    with npx.keyed(7, 3):
        loss = model.loss(*batch, label_smoothing=0.1)
        loss.backward()
    return loss.data.tobytes(), flat.grad.tobytes()


def test_recomputed_gradients_are_the_same_bits_dropout_included():
    model, ids = deep(12)
    assert gradients(model, [ids], True) == gradients(model, [ids], False)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_so_they_are_where_layers_share_the_encoders_output(norm):
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3, "attention_dropout": 0.1}
    with npx.keyed(1, 0):
        model = Transformer(TransformerConfig(vocab_size=50, norm=norm, **sizes))
    batch = [np.random.default_rng(i).integers(3, 50, size=(4, 9 + i)) for i in range(2)]
    assert gradients(model, batch, True) == gradients(model, batch, False)


def test_a_step_of_twelve_layers_needs_half_of_the_memory_at_most():
    model, ids = deep(12)
    gradients(model, [ids], False)
    plain = peak_of(lambda: gradients(model, [ids], False))
    less = peak_of(lambda: gradients(model, [ids], True))
    assert less <= 0.5 * plain, (less, plain)


@given(s.expressions(), st.booleans())
def test_any_expression_can_be_recomputed(drawn, twice):
    f, arrays = drawn
    plain, again = ([Tensor(x.copy(), requires_grad=True) for x in arrays] for _ in range(2))
    y = f(*plain)
    z = checkpoint(lambda *xs: checkpoint(f, *xs), *again) if twice else checkpoint(f, *again)
    assert y.data.tobytes() == z.data.tobytes()
    y.backward()
    z.backward()
    for a, b in zip(plain, again, strict=True):
        assert (a.grad is None) == (b.grad is None) and (a.grad is None or a.grad.tobytes() == b.grad.tobytes())


def test_a_recomputed_function_may_know_parameters_while_its_inputs_want_nothing():
    w = leaf(2.0)
    checkpoint(lambda x: x * w, Tensor(np.array([5.0]))).sum().backward()
    assert w.grad.tolist() == [5.0]


def test_recomputation_without_gradients_and_bad_use():
    w = leaf(2.0)
    with no_grad():
        assert checkpoint(lambda x: x * w, w).node is None
    with pytest.raises(TypeError, match="checkpoint: expected a function that returns a Tensor; got float"):
        checkpoint(lambda x: 1.0, w)
    y = checkpoint(lambda x: x * x, w).sum()
    with no_grad(), pytest.raises(RuntimeError, match="within no_grad"):
        y.backward()
