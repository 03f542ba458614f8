"""AttentionSpec (npx/kernels/attention_spec.py): every version of attention follows each field's definition."""

import shutil

import numpy as np
import pytest

import npx
from autograd import Tensor, neural
from npx import AttentionSpec
from npx.kernels.attention_spec import rotate

B, T, S, H, D = 2, 3, 5, 2, 4
gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++; none found")
modes = pytest.mark.parametrize("mode", ["reference", "fast", pytest.param("emulate", marks=gxx)])


def heads(length, seed, rows=B):
    return np.random.default_rng(seed).normal(size=(rows, length, H, D)).astype("float32")


Q, K, V = heads(T, 0), heads(S, 1), heads(S, 2)


def attend(spec, mode, q=Q, k=K, v=V):
    """Return the output and the three gradients."""
    tensors = [Tensor(x, requires_grad=True) for x in (q, k, v)]
    with npx.kernel_mode(mode):
        y = neural.attention(*tensors, spec)
        y.backward(np.cos(np.arange(y.size, dtype="float32")).reshape(y.shape))
    return [y.data, *(t.grad for t in tensors)]


def equal(a, b, tolerance=2e-6):
    return all(np.allclose(x, y, atol=tolerance) for x, y in zip(a, b, strict=True))


@modes
def test_causal_and_lengths_are_masks(mode):
    position = np.arange(S)
    causal = position <= np.arange(S - T, S)[:, None]  # the last query is at the position of the last key
    lengths = np.array([2, S])
    real = (position < lengths[:, None])[:, None, None]
    for spec, mask in (
        (AttentionSpec(causal=True), causal),
        (AttentionSpec(kv_lengths=lengths), real),
        (AttentionSpec(causal=True, kv_lengths=lengths.astype("int32")), causal & real),
    ):
        masked = AttentionSpec(constant_bias=npx.mask_bias(mask))
        assert equal(attend(spec, mode), attend(masked, mode))
        p = npx.attention_weights(Q, K, spec)
        assert np.allclose(p.sum(axis=-1), 1) and not p[~np.broadcast_to(mask, p.shape)].any()


@modes
def test_kv_lengths_have_no_effect_on_packed_inputs(mode):
    packing = npx.Packing.from_lengths([3, 1])
    rows = [packing.pack(x) for x in (Q, heads(T, 1), heads(T, 2))]
    plain = AttentionSpec(q_packing=packing, kv_packing=packing)
    assert equal(attend(plain, mode, *rows), attend(plain._replace(kv_lengths=np.array([1, 1])), mode, *rows))


@modes
def test_a_bias_is_added_after_scaling(mode):
    bias = np.random.default_rng(3).normal(size=(H, T, S)).astype("float32")
    z = np.einsum("bthd,bshd->bhts", Q, K) / 2 + bias
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    assert np.allclose(npx.attention_weights(Q, K, AttentionSpec(constant_bias=bias)), p, atol=1e-6)
    assert np.allclose(
        attend(AttentionSpec(constant_bias=bias), mode)[0], np.einsum("bhts,bshd->bthd", p, V), atol=1e-5
    )


@modes
def test_fully_masked_queries_give_zeros(mode):
    for result in attend(AttentionSpec(kv_lengths=np.array([0, S])), mode):
        assert not result[0].any() and result[1].any()
    # the first S - T queries come before every key
    longer = attend(AttentionSpec(causal=True), mode, heads(S, 4), heads(T, 5), heads(T, 6))
    assert not longer[0][:, : S - T].any() and longer[0][:, S - T :].any() and not longer[1][:, : S - T].any()


@modes
def test_rotary_positions_are_relative(mode):
    """Masked keys at the front shift all positions without changing the result."""
    spec = AttentionSpec(rotary_base=100.0)
    prefix = heads(7, 7)
    masked = np.arange(7 + S) >= 7
    shifted = AttentionSpec(constant_bias=npx.mask_bias(masked), rotary_base=100.0)
    y, gq, gk, gv = attend(spec, mode)
    y2, gq2, gk2, gv2 = attend(shifted, mode, Q, *(np.concatenate([prefix, x], axis=1) for x in (K, V)))
    assert equal((y, gq, gk, gv), (y2, gq2, gk2[:, 7:], gv2[:, 7:]), 1e-5)
    assert not np.allclose(y, attend(AttentionSpec(), mode)[0], atol=1e-3)


def test_rotation_is_that_of_the_paper_and_invertible():
    x = heads(6, 8).astype("float64")
    y = rotate(x, -2, 10000.0)
    angle = (np.arange(-2, 4)[:, None] * 10000.0 ** (-np.array([0, 2]) / D))[:, None]
    assert np.allclose(y[..., ::2] + 1j * y[..., 1::2], (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angle))
    assert np.allclose(rotate(y, -2, 10000.0, inverse=True), x) and rotate(x, 0, None) is x
    with pytest.raises(ValueError, match="rotary positions: expected an even d_k; got 3; try d_k = 4"):
        rotate(x[..., :3], 0, 10000.0)


@modes
def test_new_queries_over_a_cache_equal_the_last_rows_of_the_full_sequence(mode):
    q, k, v = heads(S, 9), K, V
    spec = AttentionSpec(causal=True, rotary_base=100.0, constant_bias=np.linspace(0, 1, S, dtype="float32"))
    full = attend(spec, mode, q, k, v)[0]
    assert np.allclose(attend(spec, mode, q[:, S - 2 :], k, v)[0], full[:, S - 2 :], atol=1e-6)
