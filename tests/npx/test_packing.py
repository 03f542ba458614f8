"""Packing (npx/kernels/packing.py): every version gives packed sentences the results that they have separately."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import npx
from autograd import Tensor, neural
from npx.kernels.attention import attention as kernel

LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4)
DROP = npx.DropoutSpec(0.4, npx.Key(1, 2, 3))


def arrays(rng, queries, keys, heads, d_k, d_v, dtype="float64"):
    """Return packed q, k, v and the gradient of y."""
    shapes = (queries, d_k), (keys, d_k), (keys, d_v), (queries, d_v)
    return [rng.normal(size=(n, heads, d)).astype(dtype) for n, d in shapes]


def packed_spec(lengths, causal, rotary, bias=None):
    """Return the spec for pairs of lengths (queries, keys); if all pairs are equal, both share one packing."""
    queries, keys = (npx.Packing.from_lengths(side) for side in zip(*lengths, strict=True))
    same_lengths = all(t == s for t, s in lengths)
    return npx.AttentionSpec(causal, None, bias, rotary, queries, queries if same_lengths else keys)


def run_attention(arguments, spec, drop=None):
    """Return y and the gradients of q, k and v."""
    *qkv, g = arguments
    y, saved = npx.attention(*qkv, spec, drop)
    return y, *npx.attention_grad(g, saved)


def run_by_sentence(arguments, spec):
    """Run the reference on each sentence and concatenate the results."""
    outputs = [[x[:0]] for x in (arguments[3], *arguments[:3])]
    sizes = spec.q_packing.padded_shape[1], spec.kv_packing.max_length
    bias = (
        None
        if spec.constant_bias is None
        else np.broadcast_to(spec.constant_bias, (len(spec.q_packing.lengths), 1, *sizes))
    )
    for b in range(len(spec.q_packing.lengths)):
        t, s = (slice(p.starts[b], p.starts[b + 1]) for p in (spec.q_packing, spec.kv_packing))
        q, k, v, g = (x[rows][None] for x, rows in zip(arguments, (t, s, s, t), strict=True))
        sentence_bias = None if bias is None else bias[b, :, : q.shape[1], : k.shape[1]]
        sentence_spec = npx.AttentionSpec(spec.causal, None, sentence_bias, spec.rotary_base)
        if not k.size:
            results = [np.zeros_like(x) for x in (g, q, k, v)]
        else:
            y, saved = kernel.reference(q, k, v, sentence_spec)
            results = y, *kernel.grad.reference(g, *saved)
        for parts, result in zip(outputs, results, strict=True):
            parts.append(result[0])
    return [np.concatenate(parts) for parts in outputs]


@given(lengths=LENGTHS, same=st.booleans(), causal=st.booleans(), rotary=st.booleans(), biased=st.booleans(),
       rows=st.sampled_from([None, 1, 2]), seed=st.integers(0, 99))  # fmt: skip
@example([(2, 1), (1, 1), (1, 3), (3, 2)], False, True, True, True, 2, 0)  # two lengths in the second block
@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_packed_attention_equals_that_of_each_sentence(mode, lengths, same, causal, rotary, biased, rows, seed):
    rng = np.random.default_rng(seed)
    lengths = [(t, t) for t, _ in lengths] if same else lengths
    sizes = [max(side) for side in zip(*lengths, strict=True)]
    bias = rng.normal(size=sizes) if biased else None
    spec = packed_spec(lengths, causal, 10.0 if rotary and max(sizes) else None, bias)
    arguments = arrays(rng, *map(sum, zip(*lengths, strict=True)), 2, 4, 3)
    with npx.kernel_mode(mode), npx.small_blocks(rows):
        results = run_attention(arguments, spec)
    for expected, result in zip(run_by_sentence(arguments, spec), results, strict=True):
        assert np.allclose(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [
    [(3, 3), (1, 1), (2, 2)], [(3, 1), (0, 4), (2, 0)], [(2, 3), (2, 3)], [(20, 20), (66, 66)], [(5, 70), (33, 2)],
], ids=str)  # fmt: skip
@pytest.mark.parametrize("drop", [None, DROP], ids=["plain", "dropout"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_cuda_kernels_agree_and_drop_the_same_values(lengths, drop, causal):
    """Check mode compares the kernels with the reference, for sentences of one tile and longer ones."""
    arguments = arrays(np.random.default_rng(0), *map(sum, zip(*lengths, strict=True)), 2, 16, 16, "float32")
    for mode in ("emulate+check", "check"):
        with npx.kernel_mode(mode):
            run_attention(arguments, packed_spec(lengths, causal, 10.0), drop)


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_padding_and_packing_are_inverse(lengths, seed):
    packing = npx.Packing.from_lengths([t for t, _ in lengths])
    x = np.random.default_rng(seed).normal(size=(len(packing.flat_index), 2))
    padded = npx.pad_packed(x, packing)
    assert np.array_equal(npx.pack_padded(padded, packing), x) and padded.shape == (*packing.padded_shape, 2)
    for b, length in enumerate(packing.lengths):
        rows = slice(packing.starts[b], packing.starts[b + 1])
        assert np.array_equal(padded[b, :length], x[rows]) and not padded[b, length:].any()
        assert packing.positions[rows].tolist() == list(range(length))
    assert npx.pad_packed(x, None) is x and npx.pack_padded(x, None) is x


@pytest.mark.parametrize("name", ["self_attention", "cross_attention", "attention"])
def test_operations_equal_their_compositions(name):
    lengths = [(3, 3), (1, 1), (2, 2)] if name == "self_attention" else [(3, 1), (1, 4), (2, 2)]
    spec = packed_spec(lengths, name == "self_attention", 10.0)
    rng = np.random.default_rng(3)
    t, s = map(sum, zip(*lengths, strict=True))
    h, d_k, d_v = 2, 4, 3
    shapes, sizes = {
        "self_attention": ([(t, h * (2 * d_k + d_v))], (h, d_k)),
        "cross_attention": ([(t, h * d_k), (s, h * (d_k + d_v))], (h, d_k)),
        "attention": ([(t, h, d_k), (s, h, d_k), (s, h, d_v)], ()),
    }[name]
    g = rng.normal(size=(t, h * d_v) if sizes else (t, h, d_v))
    results = []
    for function in (getattr(neural, name), neural.COMPOSITIONS[name]):
        inputs = [Tensor(np.random.default_rng(i).normal(size=shape), True) for i, shape in enumerate(shapes)]
        y = function(*inputs, *sizes, spec=spec)
        y.backward(g)
        results.append([y.data, *(x.grad for x in inputs)])
    for fused, composed in zip(*results, strict=True):
        assert np.allclose(fused, composed, rtol=0, atol=1e-12)
