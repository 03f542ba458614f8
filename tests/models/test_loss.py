"""The loss of a Transformer, dropout and dtypes in training, memorization, and attention maps."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import Tensor, gradcheck, neural
from models import Transformer, TransformerConfig
from models.search import greedy_search
from npx.kernels.cross_entropy import SMOOTHING_CLASSES
from tests.helpers.losses import label_smoothed_loss
from tests.helpers.small_models import EOS, FIRST, PAD, SEEDS, SMALL, V, batch, build, configs, sentences
from train.learn.optimizer import Adam

# The loss


TABLE = {  # for 5 classes with padding 0, target 2 and label smoothing 0.1
    "all": [0.02, 0.02, 0.92, 0.02, 0.02],
    "others": [0.025, 0.025, 0.9, 0.025, 0.025],
    "others_without_pad": [0.0, 0.1 / 3, 0.9, 0.1 / 3, 0.1 / 3],
}
LOSSES = {
    "cross_entropy": lambda z, t, *options: neural.cross_entropy(z, t, npx.LabelSmoothing(*options)),
    "composed_cross_entropy": lambda z, t, *options: neural.composed_cross_entropy(z, t, npx.LabelSmoothing(*options)),
    "linear_cross_entropy": lambda z, t, *options: neural.linear_cross_entropy(
        z, Tensor(np.eye(z.shape[-1])), t, npx.LabelSmoothing(*options)
    ),
    "label_smoothed_loss": lambda z, t, s, classes: label_smoothed_loss(
        z.reshape(1, *z.shape), t[None], s, classes, 0, 1
    ),
}


@pytest.mark.parametrize("classes", TABLE)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_smoothed_targets_equal_those_by_hand(loss, classes):
    z = np.random.default_rng(0).normal(size=(3, 5))
    logits = Tensor(z, requires_grad=True)
    value = loss(logits, np.array([2, 0, 2]), 0.1, classes)
    value.backward()
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    q = np.array([TABLE[classes], [0] * 5, TABLE[classes]])
    assert value.item() == pytest.approx(-(q * np.log(p)).sum(), rel=1e-12)
    assert np.allclose(p[[0, 2]] - logits.grad[[0, 2]], q[[0, 2]], rtol=0, atol=1e-12) and not logits.grad[1].any()


@pytest.mark.parametrize("classes", SMOOTHING_CLASSES)
@given(config=configs(n_layers=1), seed=SEEDS)
def test_smoothing_zero_is_plain_cross_entropy_per_real_token(config, classes, seed):
    model = build(config, seed).eval()
    rng = np.random.default_rng(seed)
    sources, targets = sentences(rng, 3), sentences(rng, 3)
    src, tgt = batch(sources, targets)
    logits = model(src, tgt[:, :-1])
    log_p = np.log(neural.softmax(logits).data)
    picked = [log_p[b, t, token] for b, row in enumerate(targets) for t, token in enumerate([*row, EOS])]
    assert model.loss(src, tgt, 0.0, classes).item() == pytest.approx(-np.mean(picked), rel=1e-10)
    assert label_smoothed_loss(logits, tgt[:, 1:], 0.0, classes).item() == pytest.approx(-np.mean(picked), rel=1e-10)
    for smoothing in (0.1, 0.5):
        expected = label_smoothed_loss(logits, tgt[:, 1:], smoothing, classes).item()
        assert model.loss(src, tgt, smoothing, classes).item() == pytest.approx(expected, rel=1e-12)


def test_loss_normalizer_and_batches_without_tokens():
    model = build(TransformerConfig(**SMALL)).eval()
    src, tgt = batch([[3, 4], [5]], [[6], [7, 8, 9]])
    assert model.loss(src, tgt).item() == pytest.approx(model.loss(src, tgt, loss_normalizer=3).item() * 3 / 6)
    assert model.loss(src, tgt, loss_normalizer=np.int64(6)).dtype == "float64"
    assert Transformer(TransformerConfig(**SMALL)).eval().loss(src, tgt, loss_normalizer=np.int64(6)).dtype == "float32"
    for empty in (tgt[:, :1], np.full((2, 3), PAD), tgt[:0]):
        loss = model.loss(src[: len(empty)], empty)
        loss.backward()
        assert loss.item() == 0
    assert all(np.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def loss_by_loops(logits, targets, smoothing, classes, pad):
    """Return the loss of section 5.4 by plain loops: the sum over target tokens, and their number."""
    total, count = 0.0, 0
    n_classes = logits.shape[-1]
    n_smoothed = {"all": n_classes, "others": n_classes - 1, "others_without_pad": n_classes - 2}[classes]
    for z, t in zip(logits.reshape(-1, n_classes), targets.reshape(-1), strict=True):
        if t == pad:
            continue
        log_p = z - math.log(np.exp(z).sum())
        for k in range(n_classes):
            q = (1 - smoothing) * (k == t)
            if classes == "all" or (k != t and not (classes == "others_without_pad" and k == pad)):
                q += smoothing / n_smoothed
            total -= q * log_p[k]
        count += 1
    return total, count


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    classes=st.sampled_from(SMOOTHING_CLASSES),
    normalizer=st.sampled_from([None, 1.0, 7.5]),
)
def test_loss_is_the_smoothed_cross_entropy(seed, smoothing, classes, normalizer):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, 3, 5))
    targets = rng.integers(0, 5, size=(2, 3))
    total, count = loss_by_loops(logits, targets, smoothing, classes, pad=0)
    expected = total / (max(1, count) if normalizer is None else normalizer)
    loss = label_smoothed_loss(Tensor(logits), targets, smoothing, classes, normalizer=normalizer)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("classes", SMOOTHING_CLASSES)
def test_loss_gradient(classes):
    targets = np.array([[1, 4, 0], [2, 0, 0]])
    logits = Tensor(np.random.default_rng(5).normal(size=(2, 3, 5)), requires_grad=True)
    gradcheck(lambda z: label_smoothed_loss(z, targets, 0.1, classes), logits)


def test_loss_rejects_invalid_arguments():
    logits = Tensor(np.zeros((2, 3, 5)))
    with pytest.raises(ValueError, match="shape"):
        label_smoothed_loss(logits, np.ones((2, 4), int))
    with pytest.raises(ValueError, match="smoothing"):
        label_smoothed_loss(logits, np.ones((2, 3), int), smoothing=1.0)
    with pytest.raises(ValueError, match="smoothing_classes"):
        label_smoothed_loss(logits, np.ones((2, 3), int), classes="some")


@pytest.mark.parametrize("normalizer", [0, -1, math.nan, math.inf])
def test_an_invalid_normalizer_gives_a_one_line_error(normalizer):
    targets = np.array([[3, 2]])
    pairs = Transformer(TransformerConfig(**SMALL))
    text = TransformerConfig(**SMALL, architecture="decoder").build()
    losses = (
        lambda: text.loss(targets, loss_normalizer=normalizer),
        lambda: pairs.loss(targets, targets, loss_normalizer=normalizer),
    )
    for loss in losses:
        with pytest.raises(ValueError, match=f"loss: expected a finite normalizer above 0; got {normalizer}; try"):
            loss()


# Training and evaluation


def test_the_seed_determines_the_weights():
    a, b, c = (Transformer(TransformerConfig(**SMALL), seed).state_dict() for seed in (1, 1, 2))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not any(np.array_equal(a[name], c[name]) for name in a if name.endswith("weight"))


@pytest.mark.parametrize("rate_key", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_depends_on_the_key_and_is_off_in_evaluation(rate_key, norm):
    model = build(TransformerConfig(**SMALL | {rate_key: 0.3, "norm_placement": norm}))
    src, tgt = batch([[3, 4, 5]], [[6, 7]])

    def loss(seed, step):
        with npx.keyed(seed, step):
            return model.loss(src, tgt).item()

    assert loss(1, 1) == loss(1, 1) and len({loss(1, 1), loss(1, 2), loss(2, 1)}) == 3
    with pytest.raises(RuntimeError, match="with npx.keyed"):
        model.loss(src, tgt)
    model.eval()
    assert model.loss(src, tgt).item() == loss(1, 1) == loss(2, 2)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_applied_where_the_paper_applies_it(norm, monkeypatch):
    """Dropout applies to the embeddings of both sides and to each sub-layer's output: 2 + 2 N + 3 N masks."""
    model = Transformer(TransformerConfig(**SMALL | {"dropout": 0.1, "norm_placement": norm}))
    shapes = []
    keep_mask = npx.DropoutSpec.keep_mask

    def record_shape(drop, shape):
        shapes.append(shape)
        return keep_mask(drop, shape)

    monkeypatch.setattr(npx.DropoutSpec, "keep_mask", record_shape)
    with npx.keyed(1, 1):
        model.loss(*batch([[3, 4, 5]], [[6, 7]]))
    assert shapes == [(4, 8)] * 5 + [(3, 8)] * 7
    shapes.clear()
    model = Transformer(TransformerConfig(**SMALL | {"attention_dropout": 0.1, "activation_dropout": 0.1}))
    with npx.keyed(1, 1):
        model.loss(*batch([[3, 4, 5]], [[6, 7]]))
    encoder, decoder = [(1, 2, 4, 4), (4, 12)], [(1, 2, 3, 3), (1, 2, 3, 4), (3, 12)]
    assert shapes == encoder * 2 + decoder * 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dtype_is_preserved_from_weights_to_gradients(dtype, norm):
    config = TransformerConfig(
        **SMALL | {"dropout": 0.1, "norm_placement": norm, "attention_bias": True, "positions": "learned"}
    )
    model = Transformer(config, dtype=dtype)
    src, tgt = batch([[3, 4, 5]], [[6, 7]])
    with npx.keyed(1, 1):
        loss = model.loss(src, tgt)
    loss.backward()
    assert loss.dtype == dtype and {p.grad.dtype.name for p in model.parameters()} == {dtype}
    model.eval()
    assert model(src, tgt).dtype == dtype
    assert model.step(*model.start_decoding(src)).dtype == dtype


@pytest.mark.parametrize(
    "change",
    [
        {"norm_placement": "post"},
        {"norm_placement": "pre", "positions": "shaw", "n_kv_heads": 2, "n_experts": 3},
    ],
    ids=str,
)
def test_ten_sentences_are_memorized(change):
    rng = np.random.default_rng(1)
    sources, targets = sentences(rng, 10), sentences(rng, 10)
    sources = [[FIRST + i % 8, FIRST + i // 8, *s] for i, s in enumerate(sources)]  # all different
    src, tgt = batch(sources, targets)
    config = TransformerConfig(V, d_model=32, d_ff=64, n_heads=4, n_layers=1, dropout=0.0, **change)
    model = Transformer(config, seed=1)
    adam = Adam(model)
    for step in range(1, 201):
        adam.flat.zero_grad()
        with npx.keyed(1, step):
            loss = model.loss(src, tgt, label_smoothing=0.0)
        loss.backward()
        # With a constant rate of 0.01, rounding, which depends on the processor, decides whether training ends on a
        # plateau.
        adam.step(0.005 * min(1, step / 20, (201 - step) / 100))
    assert loss.item() < 0.05
    model.eval()
    assert [h.tokens for h in greedy_search(model, src)] == targets


@given(config=configs(dropout=0.2), seed=SEEDS)
def test_attention_maps_are_distributions_over_the_source(config, seed):
    model = build(config, seed).eval()
    rng = np.random.default_rng(seed)
    sources = sentences(rng, 3)
    src, tgt = batch(sources, sentences(rng, 3))
    maps = model.attention_maps(src, tgt[:, :-1])
    assert len(maps) == config.n_layers
    for weights in maps:
        assert weights.shape == (3, config.n_heads, tgt.shape[1] - 1, src.shape[1])
        assert np.allclose(weights.sum(axis=-1), 1) and (weights >= 0).all()
        for i, source in enumerate(sources):
            assert (weights[i, ..., : len(source) + 1] > 0).all() and not weights[i, ..., len(source) + 1 :].any()
    assert not any("forward" in vars(module) for module in model.modules()), "hooks must be removed"


@given(config=configs(), seed=SEEDS)
def test_attention_maps_of_a_side_to_itself(config, seed):
    model = build(config, seed).eval()
    rng = np.random.default_rng(seed)
    src, tgt = batch(sentences(rng, 3), sentences(rng, 3))
    for kind, ids, hidden in (
        ("encoder", src, (src == PAD)[:, None, None, :]),
        ("decoder", tgt, np.triu(np.ones((tgt.shape[1],) * 2, bool), 1)),
    ):
        for weights in model.attention_maps(src, tgt, kind=kind):
            assert weights.shape == (3, config.n_heads, ids.shape[1], ids.shape[1])
            assert np.allclose(weights.sum(axis=-1), 1) and np.array_equal(
                weights == 0, np.broadcast_to(hidden, weights.shape)
            )
    with pytest.raises(ValueError, match="attention_maps: expected one of cross, encoder, decoder; got 'self'"):
        model.attention_maps(src, tgt, kind="self")


def test_inspect_has_no_dropout_and_restores_modes_and_hooks():
    model = build(TransformerConfig(**SMALL | {"dropout": 0.5}))
    src, tgt = batch([[3, 4]], [[5, 6, 7]])
    expected = model.eval().inspect(src, tgt)
    called = []
    model.train().encoder[0].eval()
    model.decoder[1].hook = model.encoder[0].attention.hook = lambda *args: called.append(args)
    hooks, modes = ([getattr(m, name) for m in model.modules()] for name in ("hook", "training"))
    inspection = model.inspect(src, tgt)  # outside of `keyed`, so dropout would raise
    assert np.array_equal(inspection.hidden[-1].data, expected.hidden[-1].data)
    assert all(np.array_equal(inspection.maps[kind], expected.maps[kind]) for kind in inspection.maps)
    assert not called
    assert hooks == [m.hook for m in model.modules()] and modes == [m.training for m in model.modules()]
