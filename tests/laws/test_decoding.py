"""Laws of decoding beyond plain search: forced outputs, prefixes, ensembles and samples (models/search/)."""

import copy
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Transformer, TransformerConfig
from models.search import (
    Ensemble,
    PrefixConstrainedModel,
    align,
    beam_search,
    forced_log_probabilities,
    greedy_search,
    sample_outputs,
    score_divisor,
)
from tests.laws.test_search import (
    BOS,
    EOS,
    FIRST,
    PAD,
    MarkovModel,
    length_penalties,
    length_penalty_types,
    log_probability,
    seeds,
    source_length,
    sources,
)

V = 11


def small_transformer(seed, **changes):
    """Return a model in float64, so that rounding does not decide ties, with sharp predictions."""
    sizes = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.3}
    model = Transformer(TransformerConfig(V, **(sizes | changes)), seed, np.float64)
    rng = np.random.default_rng(seed)
    for parameter in model.parameters():
        parameter.data += rng.normal(size=parameter.shape) * 0.5
    return model


@pytest.fixture(scope="module")
def members():
    """Three models of different sizes that share a vocabulary."""
    return [
        small_transformer(1),
        small_transformer(2, n_layers=2),
        small_transformer(3, d_model=12, norm_placement="pre"),
    ]


def decoders(members, prefixes):
    """Return the models that the laws hold for: one, an ensemble, and both with forced prefixes."""
    ensemble = Ensemble(members[:2])
    constrained = [PrefixConstrainedModel(model, prefixes) for model in (members[0], ensemble)]
    return members[0], ensemble, *constrained


def random_prefixes(rng, n):
    return [rng.integers(FIRST, V, rng.integers(0, 4)).tolist() for _ in range(n)]


def assert_same(a, b):
    """Compare hypotheses up to rounding."""
    assert [(h.tokens, h.finished) for h in a] == [(h.tokens, h.finished) for h in b]
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.token_log_probabilities, y.token_log_probabilities, rtol=0, atol=1e-9)
        np.testing.assert_allclose((x.score, x.log_probability), (y.score, y.log_probability), rtol=0, atol=1e-9)


@given(seeds, length_penalties, length_penalty_types, st.integers(1, 3), st.data())
@settings(max_examples=25, deadline=None)
def test_a_constrained_search_equals_a_filtered_exhaustive_search(
    seed, length_penalty, length_penalty_type, n_best, data
):
    vocab_size, max_extra_tokens = 6, 3
    model = MarkovModel(vocab_size, seed)
    src = sources(np.random.default_rng(seed), 3, 1, vocab_size)
    prefixes = data.draw(st.lists(st.lists(st.integers(FIRST, vocab_size - 1), max_size=3), min_size=3, max_size=3))
    options = {
        "beam_size": 81,
        "length_penalty": length_penalty,
        "length_penalty_type": length_penalty_type,
        "max_extra_tokens": max_extra_tokens,
        "n_best": n_best,
    }
    results = beam_search(PrefixConstrainedModel(model, prefixes), src, **options)
    for row, prefix, hypotheses in zip(src, prefixes, results, strict=True):
        limit = max(source_length(row) + max_extra_tokens, len(prefix) + 1)
        texts = [list(t) for n in range(limit) for t in product(range(FIRST, vocab_size), repeat=n)]
        allowed = [t for t in texts if t[: len(prefix)] == prefix]
        score = {
            tuple(t): log_probability(model, row, t) / score_divisor(len(t) + 1, length_penalty, length_penalty_type)
            for t in allowed
        }
        best = sorted(score, key=score.__getitem__, reverse=True)[:n_best]
        finished = [h for h in hypotheses if h.finished]
        assert [tuple(h.tokens) for h in finished] == best
        np.testing.assert_allclose([h.score for h in finished], [score[t] for t in best], rtol=1e-5, atol=1e-5)
        assert all(h.tokens[: len(prefix)] == prefix for h in hypotheses)


@given(seeds)
@settings(max_examples=2, deadline=None)
def test_scores_of_hypotheses_equal_forced_scores(members, seed):
    rng = np.random.default_rng(seed)
    src = sources(rng, 4, 5, V)
    prefixes = random_prefixes(rng, 4)
    for model in decoders(members, prefixes):
        scorer = model.model if isinstance(model, PrefixConstrainedModel) else model
        best = beam_search(model, src, beam_size=3, n_best=3, max_extra_tokens=3)
        samples = sample_outputs(model, src, 2, seed=seed % 97, max_extra_tokens=3)
        greedy = [[h] for h in greedy_search(model, src, max_extra_tokens=3)]
        for hypotheses in (best, samples, greedy):
            rows = [i for i, sentence in enumerate(hypotheses) for _ in sentence]
            flat = [h for sentence in hypotheses for h in sentence]
            forced = forced_log_probabilities(scorer, src[rows], [h.tokens for h in flat])
            for h, values in zip(flat, forced, strict=True):
                assert len(values) == len(h.tokens) + 1  # plus one for EOS
                expected = values if h.finished else values[:-1]
                np.testing.assert_allclose(h.token_log_probabilities, expected, rtol=0, atol=1e-9)
                assert h.log_probability == pytest.approx(sum(expected), abs=1e-9)


def test_forced_scores_do_not_depend_on_the_batch_or_on_blocks(members, monkeypatch):
    rng = np.random.default_rng(1)
    src = sources(rng, 6, 5, V)
    outputs = [*random_prefixes(rng, 5), []]
    together = forced_log_probabilities(members[0], src, outputs)
    monkeypatch.setattr("models.search.forced.MAX_LOGITS", 2 * V)
    for row, output, expected in zip(src, outputs, together, strict=True):
        (single,) = forced_log_probabilities(members[0], row[None, : source_length(row) + 1], [output])
        np.testing.assert_allclose(single, expected, rtol=0, atol=1e-12)
    assert members[0].training, "the mode is restored"
    broken = copy.deepcopy(members[0])
    broken.embedding.weight.data[...] = np.nan
    with pytest.raises(FloatingPointError, match="scoring: expected finite logits"):
        forced_log_probabilities(broken, src, outputs)
    assert forced_log_probabilities(members[0], np.zeros((0, 1), int), []) == []


@given(seeds)
@settings(max_examples=3, deadline=None)
def test_an_ensemble_averages_probabilities_in_any_order(members, seed):
    src = sources(np.random.default_rng(seed), 3, 5, V)
    options = {"beam_size": 3, "n_best": 3, "max_extra_tokens": 3}
    forward, backward = (beam_search(Ensemble(order), src, **options) for order in (members, members[::-1]))
    for a, b in zip(forward, backward, strict=True):
        assert_same(a, b)
    single = beam_search(members[1], src, **options)
    for a, b in zip(single, beam_search(Ensemble([members[1]] * 3), src, **options), strict=True):
        assert_same(a, b)
    logits = [m.eval()(src, np.full((3, 1), BOS)).data[:, 0] for m in members]
    p = np.mean([np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) for z in logits], axis=0)
    ensemble = Ensemble(members)
    np.testing.assert_allclose(np.exp(ensemble.step(*ensemble.start_decoding(src))), p, rtol=1e-12)


def test_an_ensemble_needs_one_vocabulary_and_has_the_smallest_limits(members):
    with pytest.raises(ValueError, match="expected models with the same vocabulary; got 2 vocabularies; try"):
        Ensemble([members[0], Transformer(TransformerConfig(V + 1, d_model=8, d_ff=8, n_heads=2, n_layers=1))])
    with pytest.raises(ValueError, match="got no model"):
        Ensemble([])
    short = small_transformer(4, positions="learned", max_positions=7)
    assert Ensemble([members[0], short]).max_length == 7 and Ensemble(members).max_length is None
    src = np.array([[4, 5, 6, EOS]])
    assert Ensemble([members[0], short]).length_limits(src, 50).tolist() == [7]
    (sources,) = align(short, src, [[4, 5, 6, 7, 8, 9, 10]])
    (nothing,) = align(short, src, [[]])
    assert len(sources) == 7 and set(sources) <= {0, 1, 2} and nothing == []


def test_an_ensemble_never_chooses_a_token_that_a_member_suppresses(members):
    allowed = Ensemble(members[:2])
    src = np.array([[4, 5, 6, EOS]])
    token = beam_search(allowed, src)[0][0].tokens[0]
    other = small_transformer(2, n_layers=2, suppressed_ids=(token,))
    assert allowed.config.suppressed_ids == ()
    for order in ([members[0], other], [other, members[0]], [other, small_transformer(1, n_outputs=V)]):
        (hypotheses,) = beam_search(Ensemble(order), src, n_best=4)
        assert all(token not in h.tokens for h in hypotheses)


@pytest.mark.parametrize("token", [PAD, BOS, EOS, 5, -1, V - 1])
def test_a_prefix_has_only_tokens_that_a_search_can_choose(token):
    model = small_transformer(1, suppressed_ids=(5,), n_outputs=V - 1)
    with pytest.raises(ValueError, match=f"prefixes: expected ids that a search can choose, .*; got {token}; try"):
        PrefixConstrainedModel(model, [[4], [4, token, 6]])
    ((best,),) = beam_search(PrefixConstrainedModel(model, [[4, EOS]]), np.array([[4, EOS]]))
    assert best.tokens == [4] and best.finished


@given(seeds, st.integers(1, 3))
@settings(max_examples=2, deadline=None)
def test_batched_equals_one_by_one(members, seed, beam_size):
    rng = np.random.default_rng(seed)
    src = sources(rng, 4, 5, V)
    prefixes = random_prefixes(rng, 4)
    together = [
        beam_search(model, src, beam_size=beam_size, max_extra_tokens=3) for model in decoders(members, prefixes)
    ]
    samples = [
        sample_outputs(model, src, beam_size, seed=3, max_extra_tokens=3) for model in decoders(members, prefixes)
    ]
    for i, row in enumerate(src):
        single = row[None, : source_length(row) + 1]
        for j, model in enumerate(decoders(members, prefixes[i : i + 1])):
            assert_same(beam_search(model, single, beam_size=beam_size, max_extra_tokens=3)[0], together[j][i])
            assert_same(
                sample_outputs(model, single, beam_size, seed=3, source_numbers=[i], max_extra_tokens=3)[0],
                samples[j][i],
            )


@given(seeds, st.booleans(), length_penalties, st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_token_log_probabilities_are_the_terms_of_the_log_probability(seed, coarse, length_penalty, beam_size):
    model = MarkovModel(8, seed, coarse)
    src = sources(np.random.default_rng(seed), 4, 4, 8)
    hypotheses = [
        h
        for hs in beam_search(
            model, src, beam_size=beam_size, n_best=beam_size, length_penalty=length_penalty, max_extra_tokens=3
        )
        for h in hs
    ]
    for h in [*hypotheses, *greedy_search(model, src, max_extra_tokens=3)]:
        assert len(h.token_log_probabilities) == len(h.tokens) + h.finished
        assert h.log_probability == pytest.approx(sum(h.token_log_probabilities), abs=1e-12)


# Sampling


@given(seeds, st.booleans())
@settings(max_examples=20, deadline=None)
def test_sampling_the_most_probable_token_is_greedy(seed, coarse):
    model = MarkovModel(9, seed, coarse)
    src = sources(np.random.default_rng(seed), 4, 5, 9)
    greedy = [[h] * 2 for h in greedy_search(model, src, max_extra_tokens=4)]
    for options in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}):
        samples = sample_outputs(model, src, 2, **options, max_extra_tokens=4)
        assert [[h.tokens for h in hs] for hs in samples] == [[h.tokens for h in hs] for hs in greedy]
        for a, b in zip(samples, greedy, strict=True):
            np.testing.assert_allclose([h.score for h in a], [h.score for h in b], atol=1e-5)


def test_frequencies_of_samples_match_their_probabilities():
    model = MarkovModel(6, 4, end_bias=1.0)
    n = 4000
    model.table[..., [PAD, BOS]] = -40  # they keep their probability, but are never sampled
    src = np.array([[3, EOS]])
    (samples,) = sample_outputs(model, src, n, seed=5, max_extra_tokens=2)
    outputs = [(tuple(h.tokens), h.finished) for h in samples]
    total = 0.0
    for tokens, finished in set(outputs):
        p = np.exp(log_probability(model, src[0], list(tokens), finished))
        total += p
        assert abs(outputs.count((tokens, finished)) / n - p) < 5 * np.sqrt(p / n) + 1e-3
    assert 0.98 < total <= 1 + 1e-6
    hot, cold = (sample_outputs(model, src, 200, temperature=t, max_extra_tokens=2)[0] for t in (3.0, 0.3))
    assert len({tuple(h.tokens) for h in cold}) < len({tuple(h.tokens) for h in hot})


def test_invalid_sampling_options_are_named():
    src = np.array([[3, EOS]])
    for options, name in (
        ({"samples": 0}, "samples"),
        ({"top_p": 2.0}, "top_p"),
        ({"max_extra_tokens": 0}, "max_extra_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            sample_outputs(MarkovModel(6), src, **options)
    model = MarkovModel(6)
    model.table[1] = np.nan
    with pytest.raises(FloatingPointError, match="output position 2"):
        sample_outputs(model, np.array([[3, 3, 4, EOS]]), temperature=0.0)
    assert sample_outputs(MarkovModel(6), np.zeros((0, 4), np.int32)) == []
