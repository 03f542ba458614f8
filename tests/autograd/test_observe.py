"""Observers, memory profiles, anomaly detection, gradient hooks and gradient checkpointing."""

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


def leaf(*values):
    return Tensor(np.array(values, float), requires_grad=True)


def deep(layers=12, **options):
    """Return a language model of so many layers and a batch of text."""
    sizes = {"d_model": 32, "d_ff": 128, "n_heads": 4, "vocab_size": 50, "dropout": 0.1} | options
    with npx.keyed(1, 0):
        model = LanguageModel(TransformerConfig(n_layers=layers, architecture="decoder", **sizes))
    return model, np.random.default_rng(0).integers(3, 50, size=(8, 65))


# Observers


def test_an_observer_is_called_for_each_operation_and_vjp():
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
def test_observers_do_not_change_gradients(expression):
    f, arrays = expression
    results = []
    for observer in (Observer(), Recorder(), Memory(), None):
        leaves = [Tensor(x.copy(), requires_grad=True) for x in arrays]
        with observing(observer):
            f(*leaves).backward()
        results.append([x.grad for x in leaves])
    for other in results[:-1]:
        assert all((a is b is None) or a.tobytes() == b.tobytes() for a, b in zip(other, results[-1], strict=True))


def test_recorder_reports_how_gradients_are_passed_on():
    a = leaf(3.0)
    with observing(Recorder()) as recorder:
        u = a * 2.0
        y = u * u + u + u
        y.backward()
    steps = [step for _, step in sorted(recorder.steps.items())]
    assert [step.name for step in steps] == ["multiply", "multiply", "add", "add"]
    assert [step.handling for step in steps] == [
        ["copied"],
        ["added in place", "added in place"],
        ["borrowed", "sum allocated"],
        ["borrowed", "borrowed"],
    ]
    assert [step.visit for step in steps] == [3, 2, 1, 0] and steps[0].g.tolist() == [14.0]
    assert len(recorder.leaves) == 1 and steps[0].parents == [-1]


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
def test_memory_agrees_with_tracemalloc(gradient_checkpointing):
    model, ids = deep(4)
    flat = FlatParameters(model)

    def step(observer):
        flat.zero_grad()
        with npx.keyed(1, 1), observing(observer):
            model.loss(ids).backward()

    step(None)  # creates tables that later steps reuse
    model.enable_gradient_checkpointing(gradient_checkpointing)
    measured = peak_of(lambda: step(None))
    traced, untraced = [], Memory()
    peak_of(lambda: traced.append(Memory(traced=True)) or step(*traced))
    step(untraced)
    (memory,) = traced
    assert abs(memory.peak.max_live / measured - 1) < 0.1, (memory.peak, measured)
    assert (
        [m.live for m in memory.samples] == [m.live for m in untraced.samples] == [m.max_live for m in untraced.samples]
    )
    if gradient_checkpointing:  # little is saved, so the temporary arrays of kernels matter
        return
    assert abs(untraced.peak.live / measured - 1) < 0.2, (
        untraced.peak,
        measured,
    )  # temporary arrays of recomputed attention
    first, last = memory.samples[0], memory.samples[-1]
    assert first.phase == "forward" and last.phase == "backward" and last.live < 0.1 * memory.peak.live
    layers = memory.by_layer()
    assert {"layers.0.attention", "layers.3.feed_forward_residual.norm"} & layers.keys()
    assert layers["layers.0.attention"] == layers["layers.1.attention"]


def test_traced_memory_needs_tracemalloc():
    with pytest.raises(ValueError, match="Memory: expected tracemalloc to be tracing; got it stopped"):
        Memory(traced=True)


# Anomalies


def transformer():
    with npx.keyed(1, 0):
        config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=4, dropout=0.0)
        return Transformer(config), np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5, 4, 2]])


def test_an_anomaly_is_reported_with_layer_and_line():
    model, src, tgt = transformer()
    inner = model.decoder[2].feed_forward.forward

    def planted(x):
        zero = x - x
        return inner(x) + zero / zero

    model.decoder[2].feed_forward.forward = planted
    with np.errstate(all="ignore"):
        assert np.isnan(model.loss(src, tgt, label_smoothing=0.0).item())
        with pytest.raises(AnomalyError) as caught, anomaly():
            model.loss(src, tgt, label_smoothing=0.0).backward()
    text = str(caught.value)
    assert text.startswith("divide: expected a finite result for finite inputs; got nan at (0, 0)")
    line = planted.__code__.co_firstlineno + 2
    assert "decoder.2" in text and f'test_observe.py", line {line}, in planted' in text


def test_an_anomaly_in_backward_is_reported_with_the_forward_line():
    x = leaf(0.0, 1.0)
    with np.errstate(all="ignore"), pytest.raises(AnomalyError) as caught, anomaly():
        y = ops.sqrt(x)  # finite, but its derivative at 0 is not
        y.sum().backward()
    assert str(caught.value).startswith("backward of sqrt: expected a finite gradient of argument 0; got inf at (0,)")
    assert "test_observe.py" in str(caught.value)


def test_masks_are_not_anomalies_but_bad_parameters_are():
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


def test_on_gradient_receives_the_complete_gradient_and_may_replace_it():
    received = []
    a = leaf(3.0)
    u = on_gradient(a * 2.0, lambda g: received.append(g.tolist()))
    (u * u + u).sum().backward()
    assert received == [[13.0]] and a.grad.tolist() == [26.0]
    b = leaf(3.0)
    on_gradient(b, lambda g: 10 * g).sum().backward()
    assert b.grad.tolist() == [10.0]


# Gradient checkpointing


def gradients(model, batch, gradient_checkpointing):
    model.enable_gradient_checkpointing(gradient_checkpointing)
    flat = FlatParameters(model) if not hasattr(model, "flat") else model.flat
    model.flat = flat
    flat.zero_grad()
    with npx.keyed(7, 3):
        loss = model.loss(*batch, label_smoothing=0.1)
        loss.backward()
    return loss.data.tobytes(), flat.grad.tobytes()


def test_checkpointed_gradients_are_bit_identical_with_dropout():
    model, ids = deep(12)
    assert gradients(model, [ids], True) == gradients(model, [ids], False)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_checkpointed_gradients_are_bit_identical_in_a_transformer(norm):
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3, "attention_dropout": 0.1}
    with npx.keyed(1, 0):
        model = Transformer(TransformerConfig(vocab_size=50, norm=norm, **sizes))
    batch = [np.random.default_rng(i).integers(3, 50, size=(4, 9 + i)) for i in range(2)]
    assert gradients(model, batch, True) == gradients(model, batch, False)


def test_checkpointing_at_least_halves_the_memory_of_twelve_layers():
    model, ids = deep(12)
    gradients(model, [ids], False)
    plain = peak_of(lambda: gradients(model, [ids], False))
    checkpointed = peak_of(lambda: gradients(model, [ids], True))
    assert checkpointed <= 0.5 * plain, (checkpointed, plain)


@given(s.expressions(), st.booleans())
def test_any_expression_can_be_checkpointed(expression, nested):
    f, arrays = expression
    plain, recomputed = ([Tensor(x.copy(), requires_grad=True) for x in arrays] for _ in range(2))
    y = f(*plain)
    z = checkpoint(lambda *xs: checkpoint(f, *xs), *recomputed) if nested else checkpoint(f, *recomputed)
    assert y.data.tobytes() == z.data.tobytes()
    y.backward()
    z.backward()
    for a, b in zip(plain, recomputed, strict=True):
        assert (a.grad is None) == (b.grad is None) and (a.grad is None or a.grad.tobytes() == b.grad.tobytes())


def test_checkpoint_gives_gradients_to_parameters_without_differentiable_inputs():
    w = leaf(2.0)
    checkpoint(lambda x: x * w, Tensor(np.array([5.0]))).sum().backward()
    assert w.grad.tolist() == [5.0]


def test_checkpoint_within_no_grad_and_its_errors():
    w = leaf(2.0)
    with no_grad():
        assert checkpoint(lambda x: x * w, w).node is None
    with pytest.raises(TypeError, match="checkpoint: expected a function that returns a Tensor; got float"):
        checkpoint(lambda x: 1.0, w)
    y = checkpoint(lambda x: x * x, w).sum()
    with no_grad(), pytest.raises(RuntimeError, match="within no_grad"):
        y.backward()
