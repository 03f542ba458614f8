"""R-Drop, word dropout, and models whose embeddings and output projection are not one matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import Tensor
from models import TransformerConfig
from models.architectures import base
from tests.helpers.small_models import BOS, EOS, FIRST, PAD, SEEDS, SMALL, V, batch, build, gradient, sentences

UNK = 3


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def model_and_batch(seed, **changes):
    rng = np.random.default_rng(seed)
    model = build(TransformerConfig(**(SMALL | {"dropout": 0.3} | changes)), seed)
    return model, *batch(sentences(rng, 3), sentences(rng, 3))


@given(SEEDS, st.sampled_from([1, 7, 1 << 22]), st.sampled_from([0.0, 0.1]), st.sampled_from([None, 7]))
@settings(max_examples=8, deadline=None)
def test_rdrop_adds_the_symmetric_divergence_of_two_passes(seed, chunk, smoothing, n_outputs):
    """The loss is compared with a plain computation from the logits of the two passes."""
    model, src, tgt = model_and_batch(seed, n_outputs=n_outputs)
    tgt[tgt >= 7] = 5  # ids that every model predicts
    with npx.keyed(1, 2):
        losses = [model.loss(src, tgt, smoothing, loss_normalizer=2.0).item() for _ in range(2)]
    hidden = []
    token_loss = model.token_loss

    def record_hidden(h, *args):
        hidden.append(h)
        return token_loss(h, *args)

    model.token_loss = record_hidden
    with pytest.MonkeyPatch.context() as patch, npx.keyed(1, 2):
        patch.setattr(base, "DIVERGENCE_CHUNK", chunk)
        loss = model.loss(src, tgt, smoothing, loss_normalizer=2.0, rdrop_weight=3.0).item()
    p, q = (log_softmax(model.logits(h).data) for h in hidden)
    divergence = ((np.exp(p) - np.exp(q)) * (p - q)).sum()
    assert divergence > 0
    assert loss == pytest.approx(sum(losses) / 2 + 3.0 / 4 * divergence / 2.0, rel=1e-12)


@pytest.mark.parametrize("changes", [{}, {"word_dropout": 0.4, "dropout": 0.0}, {"tying": "none"}])
def test_the_gradient_of_rdrop_equals_a_finite_difference(changes, monkeypatch):
    monkeypatch.setattr(base, "DIVERGENCE_CHUNK", 40)  # several chunks
    model, src, tgt = model_and_batch(3, **changes)
    model.enable_gradient_checkpointing()

    def loss():
        with npx.keyed(5, 1):
            return model.loss(src, tgt, rdrop_weight=2.0)

    loss().backward()
    rng = np.random.default_rng(0)
    step = 1e-6
    directions = [(p, rng.normal(size=p.shape)) for p in model.parameters()]
    derivative = sum((p.grad * direction).sum() for p, direction in directions)
    values = []
    for move in (step, -2 * step):
        for p, direction in directions:
            p.data += move * direction
        values.append(loss().item())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(derivative, rel=1e-6)


def test_rdrop_without_dropout_or_in_evaluation_changes_nothing():
    model, src, tgt = model_and_batch(1, dropout=0.0)
    assert model.loss(src, tgt, rdrop_weight=5.0).item() == pytest.approx(model.loss(src, tgt).item(), rel=1e-14)
    with_rdrop = gradient(model, (src, tgt), rdrop_weight=5.0, loss_normalizer=1.0)
    np.testing.assert_allclose(with_rdrop, gradient(model, (src, tgt), loss_normalizer=1.0), atol=1e-12)


@given(SEEDS, st.sampled_from([0.0, 0.3, 0.9]))
@settings(max_examples=20, deadline=None)
def test_word_dropout_replaces_ordinary_tokens_of_the_input_by_unk(seed, rate):
    model = build(TransformerConfig(**(SMALL | {"word_dropout": rate})), seed)
    ids = np.random.default_rng(seed).integers(0, V, (40, 25))
    with npx.keyed(seed, 1):
        dropped, other = model.drop_words(ids), model.drop_words(ids)
    ordinary = ~np.isin(ids, [PAD, BOS, EOS])
    assert np.array_equal(dropped[~ordinary], ids[~ordinary])
    assert np.isin(dropped[dropped != ids], UNK).all()
    fraction = (dropped != ids)[ordinary & (ids != UNK)].mean()
    assert fraction == pytest.approx(rate, abs=0.08) and (rate == 0 or not np.array_equal(dropped, other))
    with npx.keyed(seed, 1):
        assert np.array_equal(model.drop_words(ids), dropped)
    assert model.eval().drop_words(ids) is ids


def test_word_dropout_leaves_the_targets_alone():
    model, src, tgt = model_and_batch(2, dropout=0.0, word_dropout=0.999)
    unknown_words = [np.where(np.isin(x, [PAD, BOS, EOS]), x, UNK) for x in (src, tgt[:, :-1])]
    with npx.keyed(1, 1):
        loss = model.loss(src, tgt, 0.0, loss_normalizer=1.0).item()
    log_p = log_softmax(model.eval()(*unknown_words).data)
    targets = tgt[:, 1:]
    expected = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0][targets != PAD].sum()
    assert loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tying", ["auto", "all", "output", "none"])
@pytest.mark.parametrize("src_vocab_size", [None, V + 4])
def test_tying_decides_which_matrices_are_one(tying, src_vocab_size):
    if tying == "all" and src_vocab_size:
        with pytest.raises(ValueError, match='tying: expected output or none .*; got "all"; try "output", or a shared'):
            TransformerConfig(**SMALL, tying=tying, src_vocab_size=src_vocab_size)
        return
    config = TransformerConfig(**SMALL, tying=tying, src_vocab_size=src_vocab_size)
    shared = tying == "all" or (tying == "auto" and not src_vocab_size)
    names = ["embedding.weight"] + ["source_embedding.weight"] * (not shared) + ["projection"] * (tying == "none")
    model = build(config)
    assert sorted(model.vocabulary_parameters()) == sorted(names)
    tied = TransformerConfig(**SMALL).n_parameters()
    extra = (not shared) * (src_vocab_size or V) + (tying == "none") * V
    assert config.n_parameters() == model.n_parameters() == tied + extra * config.d_model
    src, tgt = batch([[FIRST, V + 2 if src_vocab_size else 4]], [[4, 5]])
    model.loss(src, tgt).backward()
    assert all(p.grad is not None for p in model.parameters())
    if src_vocab_size:
        with pytest.raises(ValueError, match="source ids"):
            model.loss(np.array([[V + 4, EOS]]), tgt)
        with pytest.raises(ValueError, match="target ids"):
            model.loss(src, np.array([[BOS, V, EOS]]))


def test_padding_does_not_diverge():
    model = build(TransformerConfig(**SMALL))
    rng = np.random.default_rng(0)
    targets = np.array([[4, 5, EOS], [6, EOS, PAD]])
    hidden, other = (Tensor(rng.normal(size=(2, 3, SMALL["d_model"]))) for _ in range(2))
    expected = model.divergence(hidden, other, targets).item()
    other.data[1, 2] += 1
    assert model.divergence(hidden, other, targets).item() == expected > 0
    assert model.divergence(hidden, hidden, targets).item() == 0
