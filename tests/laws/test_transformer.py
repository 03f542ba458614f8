"""Laws of the Transformer (models/architectures/encoder_decoder.py), for all options."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import Tensor, gradcheck, neural, no_grad
from autograd import operations as ops
from models import ACTIVATIONS, NORMS, Linear, Parameter, TransformerConfig, sinusoids
from models.layers.norm import Norm
from npx.dispatch import compare
from npx.kernels.cross_entropy import SMOOTHING_CLASSES
from tests.helpers.small_models import (
    EOS,
    FIRST,
    OPTIONS,
    PAD,
    SEEDS,
    SMALL,
    V,
    batch,
    build,
    configs,
    gradient,
    padded,
    sentences,
)


@given(config=configs(), seed=SEEDS, position=st.integers(0, 5))
def test_a_later_target_token_never_changes_an_earlier_output(config, seed, position):
    model = build(config, seed).eval()
    rng = np.random.default_rng(seed)
    src, tgt = rng.integers(FIRST, V, (2, 4)), rng.integers(FIRST, V, (2, 6))
    changed = tgt.copy()
    changed[0, position] = (tgt[0, position] - FIRST + 1) % (V - FIRST) + FIRST
    before, after = model(src, tgt).data, model(src, changed).data
    assert np.allclose(after[0, :position], before[0, :position], rtol=0, atol=1e-12)
    assert np.allclose(after[1], before[1], rtol=0, atol=1e-12)
    assert not np.allclose(after[0, position], before[0, position], rtol=0, atol=1e-9)


@given(config=configs(), seed=SEEDS, n=st.integers(1, 4), extra=st.integers(0, 3))
def test_padding_and_batch_composition_change_nothing(config, seed, n, extra):
    model = build(config, seed).eval()
    rng = np.random.default_rng(seed)
    sources, targets = sentences(rng, n), sentences(rng, n)
    src, tgt = batch(sources, targets, extra)
    logits = model(src, tgt).data
    loss = model.loss(src, tgt, loss_normalizer=1).item()
    total = 0.0
    batch_gradient = gradient(model, (src, tgt), loss_normalizer=1)
    summed_gradient = np.zeros_like(batch_gradient)
    for i in range(n):
        single = batch([sources[i]], [targets[i]])
        assert np.allclose(logits[i, : single[1].shape[1]], model(*single).data[0], rtol=0, atol=1e-11)
        total += model.loss(*single, loss_normalizer=1).item()
        summed_gradient += gradient(model, single, loss_normalizer=1)
    assert loss == pytest.approx(total, rel=1e-12)
    assert np.allclose(batch_gradient, summed_gradient, rtol=0, atol=1e-11 * abs(batch_gradient).max())


@given(config=configs(), seed=SEEDS, data=st.data())
def test_cached_decoding_equals_full_decoding(config, seed, data):
    """Rows are repeated, reordered and dropped; the sources have equal or different numbers of rows."""
    model = build(config, seed).eval()
    rng = np.random.default_rng(seed)
    src = padded([s + [EOS] for s in sentences(rng, 3)])
    _, state = model.start_decoding(src)
    origin = np.arange(3)
    prefix = np.empty((3, 0), int)
    for _ in range(data.draw(st.integers(1, 5))):
        tokens = rng.integers(FIRST, V, len(origin))
        prefix = np.concatenate([prefix, tokens[:, None]], axis=1)
        step = model.step(tokens, state)
        with no_grad():
            full = model(src[origin], prefix).data[:, -1]
        assert type(step) is np.ndarray and step.shape == (len(origin), V) and state.length == prefix.shape[1]
        assert np.allclose(step, full, rtol=0, atol=1e-11)
        kind = data.draw(st.sampled_from(["stay", "beam", "drop", "any"]))
        rows = np.arange(len(origin))
        if kind == "beam":  # the same number of adjacent rows for each source
            rows = np.repeat(np.unique(origin, return_index=True)[1], 2)
        elif kind == "drop":  # finished sentences
            rows = rows[np.isin(origin, origin[: data.draw(st.integers(0, len(origin)))])]
        elif kind == "any":
            rows = np.array(
                data.draw(st.lists(st.sampled_from(rows.tolist()), max_size=6) if len(rows) else st.just([])), int
            )
        state.select(rows)
        origin, prefix = origin[rows], prefix[rows]


def test_hypotheses_share_the_state_of_their_source():
    """A beam of four must not hold the keys and values of the source four times."""
    model = build(TransformerConfig(**SMALL, positions="rotary")).eval()  # the layers run themselves
    _, state = model.start_decoding(np.array([[3, 4, EOS], [5, EOS, PAD]]))
    state.select(np.repeat([0, 1], 4))
    model.step(np.full(8, 3), state)
    assert all(len(cache.keys) == 8 for cache in state.caches) and all(
        len(cache.keys) == 2 for cache in state.source.caches
    )
    state.select(np.array([5, 4, 7, 7]))
    assert all(len(cache.keys) == 4 for cache in state.caches) and all(
        len(cache.keys) == 1 for cache in state.source.caches
    )
    assert np.array_equal(state.source.lengths.array, [2])


@given(config=configs(), seed=SEEDS, n=st.integers(1, 6), k=st.integers(1, 4))
def test_micro_batches_equal_the_batch_of_their_union(config, seed, n, k):
    model = build(config, seed)
    rng = np.random.default_rng(seed)
    sources, targets = sentences(rng, n), sentences(rng, n)
    group = rng.integers(0, k, n)
    members = [[i for i in range(n) if group[i] == g] for g in set(group.tolist())]
    parts = [batch([sources[i] for i in m], [targets[i] for i in m]) for m in members]
    tokens = sum(len(t) + 1 for t in targets)
    union = gradient(model, batch(sources, targets))
    micro = gradient(model, *parts, loss_normalizer=tokens)
    assert np.allclose(micro, union, rtol=0, atol=1e-12 * abs(union).max())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@given(config=configs(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3), seed=SEEDS)
def test_fused_equals_composed_for_a_complete_model(config, dtype, seed):
    model = build(config, seed, dtype)
    rng = np.random.default_rng(seed)
    src, tgt = batch(sentences(rng, 3), sentences(rng, 3))

    def everything():
        with npx.keyed(seed, 1):
            logits = model(src, tgt).data
        with npx.keyed(seed, 1):
            loss = model.loss(src, tgt).data
        with npx.keyed(seed, 1):
            return logits, loss, gradient(model, (src, tgt))

    fused = everything()
    used = set()
    with pytest.MonkeyPatch.context() as patch:
        for name, composition in neural.COMPOSITIONS.items():
            patch.setattr(neural, name, lambda *a, c=composition, n=name, **k: (used.add(n), c(*a, **k))[1])
        composed = everything()
    compare("model", composed, fused)
    has_bias = config.positions in ("alibi", "t5", "shaw")
    attentions = {"attention" if has_bias else "self_attention", "cross_attention"}
    assert used >= {"linear", "embedding", "linear_cross_entropy"} | ({"attention"} if config.qk_norm else attentions)


class Centered(Norm):
    """A norm without a fused operation."""

    def __init__(self, d_model, eps):
        pass

    def forward(self, x):
        return x - x.mean(axis=-1, keepdims=True)


def tanh(d_model, d_ff):
    """An activation without a fused operation."""
    inner = Linear(d_model, d_ff)
    forward = inner.forward
    inner.forward = lambda x: ops.tanh(forward(x))
    return inner


@pytest.mark.parametrize("place", ["post", "pre"])
@pytest.mark.parametrize("norm_type", ["layer_norm", "centered"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_fused_operations_are_used_for_the_default_parts(place, norm_type, activation, monkeypatch):
    monkeypatch.setitem(NORMS, "centered", Centered)
    monkeypatch.setitem(ACTIVATIONS, "tanh", tanh)
    used = Counter()

    def counting(name, operation):
        return lambda *args, **kwargs: (used.update({name: 1, "relu": args[-1] == "relu"}), operation(*args, **kwargs))[
            1
        ]

    for name in ("dropout_residual_norm", "layer_norm", "linear"):
        monkeypatch.setattr(neural, name, counting(name, getattr(neural, name)))
    model = build(
        TransformerConfig(**SMALL | {"norm_placement": place, "norm_type": norm_type, "activation": activation})
    )
    model.loss(*batch([[3, 4, 5]], [[6, 7]])).backward()
    sublayers = 2 * 2 + 2 * 3
    fused = norm_type == "layer_norm" and place == "post"
    assert used["dropout_residual_norm"] == (sublayers if fused else 0)
    assert used["layer_norm"] == (sublayers + 2 if norm_type == "layer_norm" and place == "pre" else 0)
    assert used["relu"] == (4 if activation == "relu" else 0)


@settings(max_examples=8)
@given(config=configs(n_layers=1, norm_eps=1e-2), seed=SEEDS, over=st.sampled_from(SMOOTHING_CLASSES))
def test_gradient_of_a_complete_model(config, seed, over):
    """The gradient is compared along random directions in the space of all parameters."""
    model = build(config, seed)
    rng = np.random.default_rng(seed)
    src, tgt = batch(sentences(rng, 3), sentences(rng, 3))
    names = [name for name, _ in model.named_parameters()]

    def loss(*tensors):
        values = dict(zip(names, tensors, strict=True))
        for module, attribute, name in places:
            setattr(module, attribute, values[name])
        return model.loss(src, tgt, smoothing_classes=over)

    places = []
    for name in names:
        *path, attribute = name.split(".")
        module = model
        for step in path:
            module = module[int(step)] if step.isdigit() else getattr(module, step)
        assert isinstance(getattr(module, attribute), Parameter)
        places.append((module, attribute, name))
    arrays = list(model.state_dict().values())
    gradcheck(loss, *arrays, n_directions=3)


@pytest.mark.parametrize("kind", OPTIONS["positions"])
def test_layers_receive_the_scaled_embedding_plus_positions(kind):
    """table[id] * sqrt(D) + P[pos], with positions from 0 and the same table on both sides."""
    model = build(TransformerConfig(**SMALL | {"positions": kind})).eval()
    src, tgt = batch([[3, 4, 5]], [[6, 7]])
    entered = []
    for layer in (model.encoder[0], model.decoder[0]):
        layer.forward = lambda x, *rest, f=layer.forward: (entered.append(x.data), f(x, *rest))[1]
    model(src, tgt)
    for x, ids, positions in zip(entered, (src, tgt), (model.source_positions, model.target_positions), strict=True):
        none = dict.fromkeys(("rotary", "alibi", "t5", "shaw"), np.zeros((9, 8)))
        table = {"learned": getattr(positions, "weight", Tensor(0.0)).data, **none}.get(kind)
        rows = sinusoids(9, 8, kind != "sinusoidal_halves", "float64") if table is None else table
        expected = model.embedding.weight.data[ids] * 8**0.5 + rows[: ids.shape[1]]
        assert np.allclose(x, expected, rtol=0, atol=1e-14)
