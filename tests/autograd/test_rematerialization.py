"""What is formed again on the way back instead of kept: the same bits, nothing kept twice, nothing formed twice."""

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
def test_an_output_formed_again_has_the_same_bits(name, data):
    arrays, how = draw_case(name, data)
    y = OPERATIONS[name](*[Tensor(a, requires_grad=True) if a.dtype.kind == "f" else a for a in arrays], **how)
    assert y.recompute is None or y.recompute().tobytes() == y.data.tobytes()
    can = name in {"self_attention", "cross_attention"} or (name, how) == ("linear", {"activation": ""})
    assert (y.recompute is not None) == can


def step(keep, **options):
    """Loss, gradients and kept bytes of a step with sentences of several lengths."""
    with npx.keyed(1, 0):
        model = Transformer(TransformerConfig(**SIZES | options))
    random = np.random.default_rng(0)
    src, tgt = random.integers(3, 40, size=(4, 7)), random.integers(3, 40, size=(4, 6))
    src[1, 4:], tgt[2, 3:] = 0, 0
    with npx.keyed(2, 3), npx.saving_all() if keep else nullcontext():
        loss = model.loss(src, tgt)
    kept = sum(arrays.nbytes for arrays in saved_arrays(list(nodes(loss))))
    loss.backward()
    return loss.data.tobytes(), [p.grad.tobytes() for p in model.parameters()], kept


@pytest.mark.parametrize("options", [{}, {"norm": "pre", "attention_bias": True}, {"attention_dropout": 0.3}])
def test_a_step_has_the_same_bits_as_when_all_is_kept_and_keeps_less(options):
    loss, gradients, kept = step(False, **options)
    assert (loss, gradients) == step(True, **options)[:2]
    sources, targets, lengths = 4 + 7 * 3, 5 * 3 + 2, (7, 5)
    outputs = 2 * (sources + 2 * targets) * 16
    weights = 2 * 4 * 2 * (lengths[0] ** 2 + lengths[1] ** 2 + lengths[0] * lengths[1])
    cross = 2 * (targets * 16 + sources * 32)
    dropped = weights if "attention_dropout" in options else 0  # its mask, a byte each
    packed = 2 * 3 * ((sources + 5) + (targets + 5))  # of each attention's blocks, integers of 8 bytes
    assert step(True, **options)[2] - kept == 4 * (outputs + weights + cross) + dropped + 8 * packed


@pytest.mark.parametrize("keep", [True, False])
def test_nothing_is_formed_again_twice(keep, monkeypatch):
    calls = Counter()
    for name in ("attention", "linear"):
        versions, key = npx.KERNELS[name].versions, ("numpy", "float32")
        counted = lambda *args, name=name, version=versions[key]: calls.update([name]) or version(*args)  # noqa: E731
        monkeypatch.setitem(versions, key, counted)
    step(keep)
    assert calls["attention"] == 6 * (1 if keep else 2)
    assert calls["linear"] == 2 * (4 + 7) + (0 if keep else 4)  # queries, and keys and values, of two layers


def test_a_chain_of_projections_keeps_its_first_input_alone():
    with npx.keyed(1, 0):
        layers = [Linear(3, 5), Linear(5, 4), Linear(4, 2)]
    x = Tensor(np.ones((2, 7, 3), npx.float32), requires_grad=True)
    y = x
    for layer in layers:
        y = layer(y)
    kept = {arrays.shape for arrays in saved_arrays(list(nodes(y)))}
    assert not kept & {(14, 5), (14, 4), (2, 7, 5), (2, 7, 4)}
    y.sum().backward()
    whole = layers[0].weight.data @ layers[1].weight.data @ layers[2].weight.data
    assert np.allclose(x.grad, whole.sum(axis=1), rtol=1e-5)


def test_on_a_gpu_and_where_it_is_said_all_is_kept():
    x = Tensor(np.ones((2, 3), npx.float32), requires_grad=True)
    w = Tensor(np.ones((3, 4), npx.float32), requires_grad=True)
    assert (
        npx.should_rematerialize(x.data)
        and neural.linear(x, w).recompute
        and not neural.linear(x, w, None, "relu").recompute
    )
    for block in (npx.saving_all(), npx.kernel_mode("emulate")):
        with block:
            assert not npx.should_rematerialize(x.data) and not neural.linear(x, w).recompute
    assert npx.should_rematerialize(x.data)
