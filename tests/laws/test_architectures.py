"""Laws of the encoder-decoders with other layers (rnn, convs2s, bytenet) and of restricted self-attention."""

import numpy as np
import pytest

import npx
from autograd import no_grad
from models import FlatParameters, TransformerConfig
from models.search import align, beam_search, forced_log_probabilities, greedy_search
from tests.helpers.small_models import EOS, FIRST, SMALL, V, batch, gradient, padded, sentences
from train.learn.optimizer import Adam

KINDS = [
    {"attention_window": 2},
    {"architecture": "rnn"},
    {"architecture": "rnn", "cell": "gru", "n_layers": 1},
    {"architecture": "convs2s"},
    {"architecture": "bytenet", "kernel_width": 2},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


def build(kind, dtype="float64", **options):
    """Return a model of a kind with noise on every parameter."""
    model = TransformerConfig(**SMALL | kind | options).build(0, dtype)
    rng = np.random.default_rng(1)
    for p in model.parameters():
        p.data = p.data + 0.2 * rng.normal(size=p.shape).astype(dtype)
    return model


@every_kind
def test_cached_decoding_equals_full_decoding(kind):
    model = build(kind).eval()
    rng = np.random.default_rng(2)
    src = padded([s + [EOS] for s in sentences(rng, 3)])
    _, state = model.start_decoding(src)
    origin = np.arange(3)
    prefix = np.empty((3, 0), int)
    for rows in ([0, 0, 1, 1, 2, 2], [1, 0, 3, 2, 4, 5], [5, 0, 3], [2, 1, 0], [1]):
        tokens = rng.integers(FIRST, V, len(origin))
        prefix = np.concatenate([prefix, tokens[:, None]], axis=1)
        step = model.step(tokens, state)
        with no_grad():
            full = model(src[origin], prefix).data[:, -1]
        assert state.length == prefix.shape[1]
        np.testing.assert_allclose(step, full, rtol=0, atol=1e-11)
        state.select(np.array(rows))
        origin, prefix = origin[rows], prefix[rows]


@every_kind
def test_a_later_target_token_never_changes_an_earlier_output(kind):
    model = build(kind).eval()
    rng = np.random.default_rng(3)
    src, tgt = rng.integers(FIRST, V, (2, 4)), rng.integers(FIRST, V, (2, 6))
    for position in range(6):
        changed = tgt.copy()
        changed[0, position] = (tgt[0, position] - FIRST + 1) % (V - FIRST) + FIRST
        before, after = model(src, tgt).data, model(src, changed).data
        np.testing.assert_allclose(after[0, :position], before[0, :position], rtol=0, atol=1e-12)
        np.testing.assert_allclose(after[1], before[1], rtol=0, atol=1e-12)
        assert abs(after[0, position] - before[0, position]).max() > 1e-9


def padded_batch_and_its_pairs():
    """Return a batch of three sentence pairs with extra padding, and a list of batches with one of the pairs each."""
    rng = np.random.default_rng(4)
    sources, targets = sentences(rng, 3), sentences(rng, 3)
    pairs = [batch([source], [target]) for source, target in zip(sources, targets, strict=True)]
    return batch(sources, targets, extra=2), pairs


@every_kind
def test_the_loss_of_a_batch_is_the_sum_over_its_pairs_packed_or_padded(kind):
    model = build(kind).eval()
    padded_batch, pairs = padded_batch_and_its_pairs()
    expected = sum(model.loss(*pair, loss_normalizer=1).item() for pair in pairs)
    assert model.loss(*padded_batch, loss_normalizer=1).item() == pytest.approx(expected, rel=1e-12)
    options = {"label_smoothing": 0.1, "smoothing_classes": "all", "loss_normalizer": 1.0}
    loss = model.loss_on_device(*model.checked_loss_inputs(*padded_batch), **options)  # does not pack the sentences
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@every_kind
def test_the_gradient_of_a_batch_is_the_sum_over_its_pairs(kind):
    model = build(kind).eval()
    padded_batch, pairs = padded_batch_and_its_pairs()
    expected = sum(gradient(model, pair, loss_normalizer=1) for pair in pairs)
    result = gradient(model, padded_batch, loss_normalizer=1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-11 * abs(expected).max())


@pytest.mark.slow
@every_kind
def test_ten_sentences_are_memorized(kind):
    kind = {name: value for name, value in kind.items() if name != "kernel_width"}
    kind |= {"d_model": 32, "d_ff": 64, "n_layers": 2}
    model = TransformerConfig(**SMALL | kind).build()
    rng = np.random.default_rng(0)
    sources, targets = sentences(rng, 10), sentences(rng, 10)
    src, tgt = batch(sources, targets)
    flat = FlatParameters(model)
    adam = Adam(flat)
    for step in range(1, 161):
        flat.zero_grad()
        model.loss(src, tgt, label_smoothing=0.0).backward()
        adam.step(3e-3)
        if step % 20 == 0 and [h.tokens for h in greedy_search(model, src)] == targets:
            break
    assert [h.tokens for h in greedy_search(model, src)] == targets


@every_kind
def test_search_scores_equal_forced_scores(kind):
    model = build(kind)
    rng = np.random.default_rng(6)
    src = padded([s + [EOS] for s in sentences(rng, 3)])
    best = [hypotheses[0] for hypotheses in beam_search(model, src, beam_size=2, max_extra_tokens=3)]
    forced = forced_log_probabilities(model, src, [h.tokens for h in best])
    for h, values in zip(best, forced, strict=True):
        np.testing.assert_allclose(h.token_log_probabilities, values[: len(h.token_log_probabilities)], atol=1e-9)


@every_kind
def test_gradient_checkpointing_changes_no_gradient(kind):
    model = build(kind, dropout=0.3)
    pair = batch([[3, 4, 5], [6]], [[5, 4], [3, 3, 3]])
    with npx.keyed(0, 1):
        expected = gradient(model, pair)
    model.enable_gradient_checkpointing()
    with npx.keyed(0, 1):
        np.testing.assert_allclose(gradient(model, pair), expected, rtol=0, atol=1e-12)


def test_alignments_follow_the_attention_and_need_one():
    src = np.array([[4, 5, EOS]])
    for kind in KINDS[:4]:
        assert [len(row) for row in align(build(kind), src, [[6, 7, 8]])] == [3]
    with pytest.raises(
        ValueError, match="expected cross-attention to the source; got the architecture bytenet, which has none; try"
    ):
        align(build(KINDS[4]), src, [[6]])


def test_flops_count_every_matrix_once_for_each_token():
    for kind in KINDS:
        config = TransformerConfig(**SMALL | kind)
        model = config.build()
        forward = config.training_flops(10, 0, 0) / 6
        extra = 1.2 if kind.get("architecture") == "bytenet" else 1
        cross = [a.key_value for a in model.attention_layers()["cross"]]
        weights = sum(p.size for part in (*model.encoder, *cross) for p in part.parameters() if p.ndim == 2)
        assert forward == 10 * extra * weights
    narrow, wide = (TransformerConfig(**SMALL, attention_window=r).training_flops(5, 5, 100) for r in (4, 200))
    assert narrow < wide == TransformerConfig(**SMALL).training_flops(5, 5, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_window": 0}, "attention_window: expected a whole number from 1 to 1048576; got 0"),
        (
            {"attention_window": 2, "qk_norm": True},
            "attention_window = 2 cannot be combined with qk_norm; try removing one of the two",
        ),
        (
            {"attention_window": 2, "positions": "alibi"},
            "attention_window = 2 cannot be combined with positions = alibi",
        ),
        ({"kernel_width": 0}, "kernel_width: expected a whole number from 1 to 1024; got 0"),
        ({"kernel_width": 2}, "kernel_width: expected the default unless architecture = convs2s or bytenet; got 2"),
        ({"architecture": "rnn", "n_experts": 2}, "n_experts: expected the default unless architecture = encoder_dec"),
        ({"architecture": "bytenet", "qk_norm": True}, "qk_norm: expected the default unless .*got True"),
        ({"architecture": "convs2s", "positions": "rotary"}, "positions: expected sinusoidal or .*; got rotary"),
        ({"cell": "lstn"}, 'cell: expected one of "lstm", "gru"; got'),
        ({"architecture": "bytenet", "d_model": 7, "n_heads": 1}, "d_model: expected an even number for bytenet, some"),
        (
            {"architecture": "rnn", "n_heads": 3},
            "n_heads = 3; got 8; try n_heads = 2, d_model = 6, or set",
        ),
    ],
)
def test_invalid_configurations_are_rejected_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        TransformerConfig(**SMALL | options)
    assert "\n" not in str(error.value)
