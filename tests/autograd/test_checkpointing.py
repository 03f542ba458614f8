"""Gradient checkpointing (autograd/checkpointing.py): bit-identical gradients with less memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from autograd import Tensor, checkpoint, no_grad
from models import FlatParameters, Transformer, TransformerConfig
from tests import cases
from tests.autograd.test_memory import deep, peak_of
from tests.helpers.expressions import expressions


def leaf(*values):
    return Tensor(np.array(values, float), requires_grad=True)


def gradients(model, batch, gradient_checkpointing):
    model.enable_gradient_checkpointing(gradient_checkpointing)
    flat = FlatParameters(model) if not hasattr(model, "flat") else model.flat
    model.flat = flat
    flat.zero_grad()
    with npx.keyed(7, 3):
        loss = model.loss(*batch, label_smoothing=0.1)
        loss.backward()
    return loss.data.tobytes(), flat.flatten_grad().tobytes()


def test_checkpointed_gradients_are_bit_identical_with_dropout():
    model, ids = deep(12)
    assert gradients(model, [ids], True) == gradients(model, [ids], False)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_checkpointed_gradients_are_bit_identical_in_a_transformer(norm):
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 3, "attention_dropout": 0.1}
    with npx.keyed(1, 0):
        model = Transformer(TransformerConfig(vocab_size=50, norm_placement=norm, **sizes))
    batch = [np.random.default_rng(i).integers(3, 50, size=(4, 9 + i)) for i in range(2)]
    assert gradients(model, batch, True) == gradients(model, batch, False)


def test_checkpointing_at_least_halves_the_memory_of_twelve_layers():
    model, ids = deep(12)
    gradients(model, [ids], False)
    plain = peak_of(lambda: gradients(model, [ids], False))
    checkpointed = peak_of(lambda: gradients(model, [ids], True))
    assert checkpointed <= 0.5 * plain, (checkpointed, plain)


@given(expressions(), st.booleans())
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


@pytest.mark.parametrize("name", sorted(cases.LAYERS))
def test_every_layer_is_recomputed_bit_for_bit(name):
    """Dropout masks, if any, are equal too. Arguments that are not floating arrays are passed on unchanged."""
    call = next(iter(cases.EDGES[f"layer {name}"]()))
    is_float = [getattr(x, "dtype", None) == np.float64 for x in call.inputs]
    dtype = next((p.dtype for _, p in call.layer.named_parameters()), np.float64)

    def run(wrapped):
        floats = [
            Tensor(x.astype(dtype), requires_grad=True) for x, use in zip(call.inputs, is_float, strict=True) if use
        ]
        parameters = [p for _, p in call.layer.named_parameters()]
        for p in parameters:
            p.grad = None

        def function(*tensors):
            rest = iter(tensors)
            return call.layer(*[next(rest) if use else x for x, use in zip(call.inputs, is_float, strict=True)])

        with npx.keyed(0, 1):
            y = wrapped(function)(*floats)
            if y.requires_grad:
                y.backward(np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype))
        gradients = [t.grad for t in (*floats, *parameters)]
        return y.data.tobytes(), [None if g is None else g.tobytes() for g in gradients]

    assert run(lambda f: f) == run(lambda f: lambda *tensors: checkpoint(f, *tensors))


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


@pytest.mark.parametrize("in_forward", [True, False])
def test_another_mode_in_backward_than_in_forward_raises(in_forward):
    """The recomputation would draw other dropout masks than the forward pass did."""
    model, ids = deep(2)
    model.enable_gradient_checkpointing()
    with npx.keyed(7, 3):
        loss = model.train(in_forward).loss(ids)
        with pytest.raises(
            RuntimeError, match=r"random arrays, as in the forward pass; got .*train\(\) and eval\(\) only"
        ):
            model.train(not in_forward)
            loss.backward()


def test_leaves_of_a_graph_with_a_checkpoint_are_not_reported():
    """A checkpoint adds to leaves in a backward pass of its own, at a time that the engine does not know."""
    w, x = leaf([2.0]), leaf([3.0])
    reported = []
    h = checkpoint(lambda a: a * w, x)
    (h * w).sum().backward(on_leaf_done=reported.append)
    assert not reported and w.grad.tolist() == [[12.0]]
