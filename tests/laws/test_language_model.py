"""Laws of the language model (models/architectures/decoder.py) and of sampling (models/search/sampling.py)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from autograd import no_grad
from models import ARCHITECTURES, FlatParameters, TransformerConfig
from models.search import beam_search, greedy_search, sample
from models.search.sampling import draw_tokens
from tests.helpers.losses import label_smoothed_loss
from train.learn.optimizer import Adam

V = 9
SMALL = {"vocab_size": V, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0, "max_positions": 12}
OPTIONS = {
    "norm_placement": ["post", "pre", "sandwich", "deepnorm"],
    "positions": ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"],
    "relative_buckets": [4],
    "max_relative_distance": [3],
    "n_kv_heads": [None, 1],
    "qk_norm": [False, True],
    "norm_type": ["layer_norm", "rms_norm"],
    "activation": ["relu", "gelu", "swiglu"],
}
SEEDS = st.integers(0, 10**6)


@st.composite
def configs(draw, **fixed):
    chosen = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    return TransformerConfig(**(SMALL | chosen | fixed), architecture="decoder")


def build(config, seed=0, dtype="float64"):
    model = config.build(seed, dtype)
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.data += rng.normal(size=p.shape).astype(dtype) * 0.2
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return build(TransformerConfig(**SMALL, architecture="decoder"), 3)


def log_probabilities(model, ids):
    with no_grad():
        z = model(ids).data
    return z - z.max(-1, keepdims=True) - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))


@given(config=configs(), seed=SEEDS, position=st.integers(0, 5))
def test_a_later_token_never_changes_an_earlier_output(config, seed, position):
    model = build(config, seed)
    ids = np.random.default_rng(seed).integers(0, V, (2, 6))
    changed = ids.copy()
    changed[0, position] = (ids[0, position] + 1) % V
    before, after = model(ids).data, model(changed).data
    assert np.allclose(after[0, :position], before[0, :position], rtol=0, atol=1e-12)
    assert np.allclose(after[1], before[1], rtol=0, atol=1e-12)
    assert not np.allclose(after[0, position], before[0, position], rtol=0, atol=1e-9)


@given(config=configs(), seed=SEEDS, prompt=st.integers(1, 4), data=st.data())
def test_cached_decoding_equals_full_decoding(config, seed, prompt, data):
    model = build(config, seed)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, V, (3, prompt))
    tokens, state = model.start_decoding(ids)
    for _ in range(data.draw(st.integers(1, 5))):
        step = model.step(tokens, state)
        assert np.allclose(step, model(ids).data[:, -1], rtol=0, atol=1e-11) and state.length == ids.shape[1]
        rows = np.array(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=4)))
        state.select(rows)
        tokens = rng.integers(0, V, len(rows))
        ids = np.concatenate([ids[rows], tokens[:, None]], axis=1)


@given(config=configs(), seed=SEEDS)
def test_the_loss_is_that_of_the_logits_without_padding(config, seed):
    model = build(config, seed)
    ids = np.random.default_rng(seed).integers(1, V, (3, 6))
    for smoothing in (0.0, 0.1):
        expected = label_smoothed_loss(model(ids[:, :-1]), ids[:, 1:], smoothing).item()
        assert model.loss(ids, smoothing).item() == pytest.approx(expected, rel=1e-12)
    padded = np.pad(ids, ((0, 0), (0, 3)))
    assert model.loss(padded).item() == pytest.approx(model.loss(ids).item(), rel=1e-12)
    assert model.loss(ids, loss_normalizer=30).item() == pytest.approx(model.loss(ids).item() / 2, rel=1e-12)


@given(config=configs(n_layers=1, norm_eps=1e-2), seed=SEEDS)
def test_gradient_of_a_complete_model(config, seed):
    """The gradient is compared along random directions in the space of all parameters."""
    model = build(config, seed)
    ids = np.random.default_rng(seed).integers(1, V, (2, 5))
    flat = FlatParameters(model)
    model.loss(ids).backward()
    rng = np.random.default_rng(seed)
    step = 1e-5
    for _ in range(2):
        before = flat.data.copy()
        direction = rng.normal(size=flat.data.shape)
        values = []
        for sign in (1, -1):
            flat.data[...] = before + sign * step * direction
            values.append(model.loss(ids).item())
        flat.data[...] = before
        slope = flat.flatten_grad() @ direction
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-6)


@given(config=configs())
def test_counts_of_parameters_and_flops(config):
    model = build(config)
    assert config.n_parameters() == model.n_parameters()
    # A table of positions is looked up, but each of two heads multiplies by Shaw's table of seven vectors per layer.
    table = {"learned": 12 * 8, "t5": 4 * 2, "shaw": -2 * 7 * 4}.get(config.positions, 0)
    weights = sum(p.size for p in model.parameters() if p.ndim == 2) - table
    assert config.training_flops(0, 10, length=0) == 6 * 10 * weights
    assert TransformerConfig.from_dict(config.to_dict()) == config and type(model) is ARCHITECTURES["decoder"]


def test_a_text_is_memorized_and_reproduced():
    text = np.array([[4, 5, 6, 4, 7, 8, 4, 5, 3]])
    config = TransformerConfig(**SMALL | {"d_model": 16, "norm_placement": "pre"}, architecture="decoder")
    model = config.build(seed=1)
    adam = Adam(model)
    for _ in range(150):
        adam.flat.zero_grad()
        loss = model.loss(text)
        loss.backward()
        adam.step(0.01)
    assert loss.item() < 0.05
    assert sample(model, [[4, 5]], 7, temperature=0.0) == [[6, 4, 7, 8, 4, 5, 3]]
    (hypothesis,) = greedy_search(model, text[:, :3], max_extra_tokens=6)
    assert hypothesis.tokens == [4, 7, 8, 4, 5, 3]
    assert beam_search(model, text[:, :3], beam_size=2, max_extra_tokens=6)[0][0].tokens == hypothesis.tokens


def test_dropout_depends_on_the_key_only():
    config = TransformerConfig(**SMALL | {"dropout": 0.3}, architecture="decoder")
    model = config.build(seed=1)
    ids = np.array([[3, 4, 5]])

    def loss(step):
        with npx.keyed(1, step):
            return model.loss(ids).item()

    assert loss(1) == loss(1) != loss(2)


def test_attention_maps_are_causal_and_sum_to_1(model):
    maps = model.attention_maps(np.array([[3, 4, 5, 6]]))
    assert [layer.shape for layer in maps] == [(1, 2, 4, 4)] * 2
    for layer in maps:
        np.testing.assert_allclose(layer.sum(axis=-1), 1, rtol=1e-12)
        assert not np.triu(layer, 1).any()
    assert all(module.hook is None for module in model.modules())


# Sampling


def next_probabilities(model, ids):
    """Return the probabilities (V,) of the next token, without padding, BOS and EOS."""
    p = np.exp(log_probabilities(model, np.array([ids]))[0, -1])
    p[:3] = 0
    return p / p.sum()


@given(
    config=configs(), seed=SEEDS, texts=st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=4), max_size=4)
)
def test_sampling_the_most_probable_token_is_greedy(config, seed, texts):
    model = build(config, seed)
    expected = []
    for prompt in texts:
        ids = list(prompt)
        for _ in range(5):
            ids.append(int(next_probabilities(model, ids).argmax()))
        expected.append(ids[len(prompt) :])
    assert sample(model, texts, 5, top_k=1, seed=seed) == expected
    assert sample(model, texts, 5, temperature=0.0, seed=seed) == expected
    assert sample(model, texts, 5, top_p=1e-9, seed=seed) == expected


def test_a_text_depends_on_its_seed_and_not_on_the_batch_or_length(model):
    texts = [[3], [4, 5, 6], [3]]
    first = sample(model, texts, 6, seed=1)
    assert first == sample(model, texts, 6, seed=1) != sample(model, texts, 6, seed=2)
    assert first[0] != first[2], "each text has its own random numbers"
    assert sample(model, texts[:2], 4, seed=1) == [row[:4] for row in first[:2]]
    model.train()
    sample(model, texts, 2)
    assert model.training
    model.eval()


def test_token_frequencies_match_their_probabilities(model):
    p = next_probabilities(model, [3])
    n = 4000
    frequencies = np.bincount([row[0] for row in sample(model, [[3]] * n, 1, seed=5)], minlength=V) / n
    assert np.abs(frequencies - p).max() < 4 * np.sqrt(0.25 / n)
    assert not frequencies[:3].any() and p[3:].all()
    best = np.argsort(-p)
    for options, candidates in (({"top_k": 3}, best[:3]), ({"top_p": p[best[:2]].sum() - 1e-6}, best[:2])):
        frequencies = np.bincount([row[0] for row in sample(model, [[3]] * n, 1, seed=6, **options)], minlength=V) / n
        assert set(np.flatnonzero(frequencies)) == set(candidates)
        assert np.abs(frequencies[candidates] - p[candidates] / p[candidates].sum()).max() < 4 * np.sqrt(0.25 / n)
    log_p = np.log(np.maximum(p, 1e-300))
    hot, cold = (draw_tokens(log_p[None], np.array([0.99]), t, 0, 1.0)[0] for t in (5.0, 0.05))
    assert cold == best[0] and p[hot] < p[cold]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_full_window_continues_from_its_later_half(positions):
    model = build(TransformerConfig(**SMALL | {"positions": positions}, architecture="decoder"), 3)
    window = None if positions == "learned" else 12
    (text,) = sample(model, [[3, 4]], 40, seed=1, window=window)
    assert len(text) == 40
    ids = [3, 4, *text]
    expected = []
    for n_seen in range(6, 12):  # after 13 tokens, positions 7 to 12 are reread until the window has 12
        end = n_seen + 7
        p = np.maximum(next_probabilities(model, ids[end - n_seen : end]), 1e-300)
        u = npx.random.uniform(npx.Key(1, 0, 0), (40,), np.float64)[end - 2]
        expected.append(int(draw_tokens(np.log(p)[None], np.array([u]), 1.0, 0, 1.0)[0]))
    assert expected == ids[13:19]
    assert len(sample(model, [[3] * 20], 3, window=window)[0]) == 3, "a prompt may be longer than the window"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_tokens": 0}, "n_tokens: expected a whole number >= 1; got 0"),
        ({"n_tokens": 2.0}, "n_tokens: expected a whole number >= 1; got 2.0"),
        ({"temperature": -1}, "temperature: expected a nonnegative number; got -1"),
        ({"top_k": 1.5}, "top_k: expected a whole number >= 0; got 1.5"),
        ({"top_p": 0.0}, "top_p: expected a probability above 0 and at most 1; got 0.0"),
        ({"window": 0}, "window: expected a whole number >= 1"),
        ({"prompts": [[3], []]}, "prompts: expected at least one token each"),
    ],
)
def test_invalid_arguments_are_named_in_one_line(model, change, message):
    with pytest.raises(ValueError) as caught:
        sample(model, **({"prompts": [[3]], "n_tokens": 2} | change))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert sample(model, [], 3) == []


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_a_prompt_that_fills_all_positions_raises(search):
    model = build(TransformerConfig(**SMALL | {"positions": "learned", "max_positions": 6}, architecture="decoder"))
    assert search(model, np.full((1, 6), 4)), "the last prompt token takes the last position"
    with pytest.raises(ValueError, match="prompts: expected at most max_positions = 6 tokens; got 7; try"):
        search(model, np.full((1, 7), 4))
