"""Recurrent layers, convolutions and restricted attention, compared with their definitions and with PyTorch's."""

import shutil

import numpy as np
import pytest

import models
import npx
from autograd import Tensor, no_grad
from models.layers.attention import SelfAttention
from models.layers.recurrent import composed_lstm, lstm
from models.layers.restricted_attention import window_mask
from tests.cases import layers

LENGTHS = 3, 0, 5, 1
RNG = np.random.default_rng(5)


def make_layer(*sizes, **options):
    """Return a layer with random parameters in float64."""
    layer = layers.make_layer(*sizes, **options)
    for p in layer.parameters():
        p.data = p.data.astype("float64")
    return layer


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_by_definition(layer, x):
    """Return the outputs of an LSTM for one sentence x (T, D)."""
    n = layer.d_hidden
    h, c, y = np.zeros(n), np.zeros(n), np.empty((len(x), n))
    for t in range(len(x))[:: -1 if layer.reverse else 1]:
        a = x[t] @ layer.input.weight.data + layer.input.bias.data + h @ layer.weight.data
        i, f, o = (sigmoid(a[k * n : (k + 1) * n]) for k in range(3))
        c = f * c + i * np.tanh(a[3 * n :])
        y[t] = h = o * np.tanh(c)
    return y


def gru_by_definition(layer, x):
    """Return the outputs of a GRU for one sentence x (T, D)."""
    n = layer.d_hidden
    h, y = np.zeros(n), np.empty((len(x), n))
    for t in range(len(x))[:: -1 if layer.reverse else 1]:
        z = x[t] @ layer.input.weight.data + layer.input.bias.data
        a = h @ layer.weight.data
        r, s = (sigmoid((z + a)[k * n : (k + 1) * n]) for k in range(2))
        y[t] = h = s * h + (1 - s) * np.tanh(z[2 * n :] + r * (a[2 * n :] + layer.bias.data))
    return y


def convolution_by_definition(layer, x):
    """Return the outputs of a convolution for one sentence x (T, D)."""
    middle = layer.width - 1 if layer.causal else layer.width // 2
    y = np.empty((len(x), layer.mix.weight.shape[1]))
    for t in range(len(x)):
        taps = [t + (tap - middle) * layer.dilation for tap in range(layer.width)]
        values = np.array([x[p] if 0 <= p < len(x) else 0 * x[t] for p in taps])
        if layer.depthwise is not None:
            values = (values * layer.depthwise.data).sum(axis=0)
        y[t] = values.ravel() @ layer.mix.weight.data + layer.mix.bias.data
    return y


def bidirectional_by_definition(layer, x):
    return np.concatenate([lstm_by_definition(layer.ahead, x), lstm_by_definition(layer.back, x)], axis=1)


CAUSAL = [
    (models.LSTM, (3, 4), {}, lstm_by_definition),
    (models.GRU, (3, 4), {}, gru_by_definition),
    (models.Convolution, (3, 4, 3, 2), {"causal": True}, convolution_by_definition),
    (models.Convolution, (3, 4, 2), {"causal": True, "separable": True}, convolution_by_definition),
]
OTHERS = [
    (models.LSTM, (3, 4), {"reverse": True}, lstm_by_definition),
    (models.GRU, (3, 4), {"reverse": True}, gru_by_definition),
    (models.Bidirectional, (models.LSTM, 3, 2), {}, bidirectional_by_definition),
    (models.Convolution, (3, 4, 4), {}, convolution_by_definition),
    (models.Convolution, (3, 4, 3, 3), {"separable": True}, convolution_by_definition),
]


@pytest.mark.parametrize(("layer_class", "sizes", "options", "definition"), CAUSAL + OTHERS)
def test_packed_and_padded_sentences_give_the_values_of_the_definition(layer_class, sizes, options, definition):
    layer = make_layer(layer_class, *sizes, **options)
    sentences = [RNG.normal(size=(n, 3)) for n in LENGTHS]
    expected = np.concatenate([definition(layer, x) for x in sentences])
    packing = npx.Packing.from_lengths(LENGTHS)
    packed = np.concatenate(sentences)
    np.testing.assert_allclose(layer(Tensor(packed), packing).data, expected, rtol=0, atol=1e-12)
    padded = npx.pad_packed(packed, packing)
    padded[3, 1:] = 7.0  # padding has any value
    y = layer(Tensor(padded), None, np.array(LENGTHS)).data
    np.testing.assert_allclose(npx.pack_padded(y, packing), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layer_class", "sizes", "options", "definition"), CAUSAL)
def test_steps_with_a_cache_equal_one_pass(layer_class, sizes, options, definition):
    layer = make_layer(layer_class, *sizes, **options)
    x = RNG.normal(size=(2, 6, 3))
    rows = np.array([1, 1, 0])
    with no_grad():
        full = layer(Tensor(x)).data
        cache = layer.new_cache(2, x.dtype)
        parts = [layer(Tensor(x[:, a:b]), cache=cache).data for a, b in ((0, 1), (1, 4))]
        np.testing.assert_allclose(np.concatenate(parts, axis=1), full[:, :4], rtol=0, atol=1e-12)
        cache.select(rows)
        array, before = cache.array, cache.array.copy()
        rest = layer(Tensor(x[rows, 4:]), cache=cache).data
    np.testing.assert_allclose(rest, full[rows, 4:], rtol=0, atol=1e-12)
    assert np.array_equal(array, before)  # another cache may share it


@pytest.mark.parametrize("window", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_restricted_attention_equals_full_attention_with_a_mask(window, causal):
    layer = make_layer(models.RestrictedSelfAttention, 4, 2, 2, 3, window=window, rotary_base=10.0)
    x = RNG.normal(size=(3, 11, 4))
    lengths = np.array([11, 4, 1])
    mask = npx.mask_bias(window_mask(11, 11, window, causal))
    for spec in (npx.AttentionSpec(causal), npx.AttentionSpec(causal, lengths)):
        full = SelfAttention.forward(layer, Tensor(x), spec._replace(constant_bias=mask)).data
        y = layer(Tensor(x), spec).data
        is_real = np.arange(11) < (lengths if spec.kv_lengths is not None else np.array([11] * 3))[:, None]
        np.testing.assert_allclose(y[is_real], full[is_real], rtol=0, atol=1e-12)
    packing = npx.Packing.from_lengths(lengths)
    packed = layer(Tensor(packing.pack(x)), npx.AttentionSpec(causal, q_packing=packing, kv_packing=packing)).data
    np.testing.assert_allclose(packed, y[is_real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_restricted_attention_of_empty_sequences(shape, causal):
    layer = make_layer(models.RestrictedSelfAttention, 4, 2, window=3, rotary_base=10.0)
    x = Tensor(np.zeros((*shape, 4)), requires_grad=True)
    layer(x, npx.AttentionSpec(causal)).sum().backward()
    assert x.grad.shape == x.shape


def test_restricted_attention_weights_of_packed_sentences():
    layer = make_layer(models.RestrictedSelfAttention, 4, 2, window=2)
    lengths = np.array([5, 7])
    x = RNG.normal(size=(2, 7, 4))
    packing = npx.Packing.from_lengths(lengths)
    packed = layer.attention_weights(Tensor(packing.pack(x)), npx.AttentionSpec(q_packing=packing, kv_packing=packing))
    padded = layer.attention_weights(Tensor(x), npx.AttentionSpec(kv_lengths=lengths))
    for p, q, n in zip(packed, padded, lengths, strict=True):
        np.testing.assert_allclose(p[:, :n, :n], q[:, :n, :n], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_cached", [0, 3])
def test_restricted_attention_rejects_a_bias(n_cached):
    layer = make_layer(models.RestrictedSelfAttention, 4, 2, window=2)
    x = Tensor(RNG.normal(size=(1, 4, 4)))
    spec = npx.AttentionSpec(causal=True, constant_bias=np.zeros((1, 1, 4, 4)))
    cache = layer.new_cache(1, "float64")
    calls = [
        lambda: layer(x, spec),
        lambda: layer.attention_weights(x, spec),
        lambda: layer(x[:, n_cached:], spec, cache),
    ]
    with no_grad():
        layer(x[:, :n_cached], npx.AttentionSpec(causal=True), cache)
        for call in calls:
            with pytest.raises(ValueError, match="restricted attention: a bias is not supported"):
                call()


def test_lstm_equals_its_composition():
    g = RNG.normal(size=(2, 4, 3))
    results = []
    z, w = RNG.normal(size=(2, 4, 12)), RNG.normal(size=(3, 12))
    for function in (lstm, composed_lstm):
        inputs = Tensor(z, requires_grad=True), Tensor(w, requires_grad=True)
        y = function(*inputs)
        y.backward(g)
        results.append([y.data, *(x.grad for x in inputs)])
    for fused, composed in zip(*results, strict=True):
        np.testing.assert_allclose(fused, composed, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++; none found")
@pytest.mark.parametrize(
    ("layer_class", "sizes", "options"),
    [
        (models.LSTM, (3, 4), {"reverse": True}),
        (models.GRU, (3, 4), {}),
        (models.Bidirectional, (models.GRU, 3, 2), {}),
        (models.Convolution, (3, 4, 3), {"causal": True, "separable": True}),
        (models.RestrictedSelfAttention, (3, 1), {"window": 3}),
    ],
)
def test_emulated_cuda_kernels_give_the_same_gradients(layer_class, sizes, options):
    layer = make_layer(layer_class, *sizes, **options)
    packing = npx.Packing.from_lengths(LENGTHS)
    for p in layer.parameters():
        p.data = p.data.astype("float32")
    data = RNG.normal(size=(sum(LENGTHS), 3)).astype("float32")
    attends = layer_class is models.RestrictedSelfAttention
    layout = npx.AttentionSpec(q_packing=packing, kv_packing=packing) if attends else packing
    results = []
    for mode in ("reference", "check", "emulate+check"):
        x = Tensor(data, requires_grad=True)
        for p in layer.parameters():
            p.grad = None
        with npx.kernel_mode(mode):
            y = layer(x, layout)
            y.backward(npx.ones(y.shape, y.dtype))
        results.append([y.data, x.grad, *(p.grad for p in layer.parameters())])
    for expected, *others in zip(*results, strict=True):
        for result in others:
            np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5 * max(1, abs(expected).max()))


def test_memory_of_restricted_attention_is_linear_in_the_length():
    def saved(length):
        blocks = models.layers.restricted_attention.Blocks((1, length), 8, False)
        return blocks.bias(None).size

    assert saved(256) == 2 * saved(128) == 256 * 15  # n (2 r - 1) scores


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.LSTM(0, 4), "LSTM: expected widths of at least 1; got 0 and 4; try 512"),
        (lambda: models.Convolution(3, 4, 0), "convolution: expected a width of at least 1; got 0; try width=3"),
        (lambda: models.Convolution(3, 4, 3, 0), "convolution: expected a dilation of at least 1; got 0; try dilat"),
        (lambda: models.Convolution(3, 4, 3).new_cache(1, "f"), "convolution: expected a causal layer for a cache"),
        (lambda: models.LSTM(3, 4, reverse=True).new_cache(1, "f"), "recurrent: expected a layer that reads forward;"),
        (lambda: models.RestrictedSelfAttention(4, 2, window=0), "attention_window: expected at least 1; got 0; try 8"),
    ],
)
def test_invalid_layers_are_rejected_in_one_line(build, message):
    with npx.keyed(0, 0), pytest.raises(ValueError, match=message.replace("(", r"\(")) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("layer_class", "order"), [(models.LSTM, (0, 1, 3, 2)), (models.GRU, (0, 1, 2))])
def test_values_and_gradients_equal_those_of_torch(layer_class, order):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    layer = make_layer(layer_class, 3, 4)
    x = RNG.normal(size=(2, 5, 3))
    torch_layer = getattr(torch.nn, layer_class.__name__)(3, 4, batch_first=True, dtype=torch.float64)
    reorder_gates = lambda a: np.concatenate([np.split(a, len(order), axis=-1)[k] for k in order], axis=-1).T  # noqa: E731
    pairs = [("weight_ih_l0", layer.input.weight), ("weight_hh_l0", layer.weight), ("bias_ih_l0", layer.input.bias)]
    with torch.no_grad():
        torch_layer.bias_hh_l0.zero_()
        for name, p in pairs:
            getattr(torch_layer, name).copy_(torch.tensor(reorder_gates(p.data).copy()))
        if layer_class is models.GRU:
            torch_layer.bias_hh_l0[8:] = torch.tensor(layer.bias.data)
    y = layer(Tensor(x))
    (expected, _) = torch_layer(torch.tensor(x))
    np.testing.assert_allclose(y.data, expected.detach().numpy(), rtol=0, atol=1e-12)
    g = RNG.normal(size=y.shape)
    y.backward(g)
    expected.backward(torch.tensor(g))
    for name, p in pairs:
        np.testing.assert_allclose(reorder_gates(p.grad), getattr(torch_layer, name).grad.numpy(), rtol=0, atol=1e-11)
