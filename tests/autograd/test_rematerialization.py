"""Rematerialization: recomputed outputs are bit-identical, nothing is saved twice and nothing recomputed twice."""

import math
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from autograd import OPERATIONS, Tensor, neural
from autograd.saved import saved_arrays
from autograd.testing.problem import nodes
from models import Transformer, TransformerConfig
from models.layers.basic import Linear
from tests.autograd.test_neural import NAMES, draw_case

SIZES = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 2}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_recomputed_outputs_are_bit_identical(name, data):
    arrays, options = draw_case(name, data)
    y = OPERATIONS[name](*[Tensor(a, requires_grad=True) if a.dtype.kind == "f" else a for a in arrays], **options)
    assert y.recompute_fn is None or y.recompute_fn().tobytes() == y.data.tobytes()
    is_recomputable = name in {"self_attention", "cross_attention"} or (name, options) == (
        "linear",
        {"activation": None},
    )
    assert (y.recompute_fn is not None) == is_recomputable


def step(save_all, **options):
    """Return loss, gradients and saved bytes of a step with sentences of several lengths."""
    with npx.keyed(1, 0):
        model = Transformer(TransformerConfig(**SIZES | options))
    random = np.random.default_rng(0)
    src = random.integers(3, 40, size=(4, 7))
    tgt = random.integers(3, 40, size=(4, 6))
    src[1, 4:] = tgt[2, 3:] = 0
    with npx.keyed(2, 3), npx.rematerialize_above(math.inf) if save_all else nullcontext():
        loss = model.loss(src, tgt)
    saved = sum(arrays.nbytes for arrays in saved_arrays(list(nodes(loss))))
    loss.backward()
    return loss.data.tobytes(), [p.grad.tobytes() for p in model.parameters()], saved


@pytest.mark.parametrize("options", [{}, {"norm_placement": "pre", "attention_bias": True}, {"attention_dropout": 0.3}])
def test_a_step_is_bit_identical_and_saves_less(options):
    loss, gradients, saved = step(False, **options)
    assert (loss, gradients) == step(True, **options)[:2]
    sources = 4 + 7 * 3
    targets = 5 * 3 + 2
    lengths = (7, 5)
    outputs = 2 * (sources + 2 * targets) * 16
    weights = 2 * 4 * 2 * (lengths[0] ** 2 + lengths[1] ** 2 + lengths[0] * lengths[1])
    cross = 2 * (targets * 16 + sources * 32)
    dropped = weights if "attention_dropout" in options else 0  # dropout mask, one byte each
    packed = 2 * 3 * ((sources + 5) + (targets + 5))  # index arrays of each attention, 8 bytes each
    assert step(True, **options)[2] - saved == 4 * (outputs + weights + cross) + dropped + 8 * packed


@pytest.mark.parametrize("save_all", [True, False])
def test_nothing_is_recomputed_twice(save_all, monkeypatch):
    calls = Counter()
    for name in ("attention", "linear"):
        versions = npx.KERNELS[name].versions
        key = ("numpy", "float32")
        counted = lambda *args, name=name, version=versions[key]: calls.update([name]) or version(*args)  # noqa: E731
        monkeypatch.setitem(versions, key, counted)
    step(save_all)
    assert calls["attention"] == 6 * (1 if save_all else 2)
    assert calls["linear"] == 2 * (4 + 7) + (
        0 if save_all else 4
    )  # two projections of the cross-attention in each of two layers


def test_a_chain_of_projections_saves_only_its_first_input():
    with npx.keyed(1, 0):
        layers = [Linear(3, 5), Linear(5, 4), Linear(4, 2)]
    x = Tensor(np.ones((2, 7, 3), npx.float32), requires_grad=True)
    y = x
    for layer in layers:
        y = layer(y)
    saved = {arrays.shape for arrays in saved_arrays(list(nodes(y)))}
    assert not saved & {(14, 5), (14, 4), (2, 7, 5), (2, 7, 4)}
    y.sum().backward()
    product = layers[0].weight.data @ layers[1].weight.data @ layers[2].weight.data
    assert np.allclose(x.grad, product.sum(axis=1), rtol=1e-5)


def test_small_arrays_are_saved_and_everything_on_a_gpu():
    x = Tensor(np.ones((2, 3), npx.float32), requires_grad=True)
    w = Tensor(np.ones((3, 4), npx.float32), requires_grad=True)
    assert (
        npx.should_rematerialize(x.data)
        and neural.linear(x, w).recompute_fn
        and not neural.linear(x, w, None, "relu").recompute_fn
    )
    for block in (npx.rematerialize_above(24), npx.kernel_mode("emulate")):
        with block:
            assert not npx.should_rematerialize(x.data) and not neural.linear(x, w).recompute_fn
    assert npx.should_rematerialize(x.data)
    with npx.rematerialize_above(23):  # x has 24 bytes
        assert npx.should_rematerialize(x.data) and neural.linear(x, w).recompute_fn
