"""Search (models/search/), checked against exhaustive enumeration on a tiny model, and on a Transformer."""

import re
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import no_grad
from models import DecodingState, Transformer, TransformerConfig
from models.search import CANDIDATE_RULES, beam_search, check_search, greedy_search, score_divisor
from models.search.tree import SearchTree

PAD, BOS, EOS, FIRST = 0, 1, 2, 3


class MarkovModel:
    """A model whose next token depends on the source without padding, the position and the last two tokens.

    Its logits come from a table, so a row never depends on the rest of the batch. `coarse` logits are multiples of 0.5,
    which makes ties common.
    """

    def __init__(self, vocab_size: int, seed: int = 0, coarse: bool = False, end_bias: float = 0.0):
        special_ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS, "suppressed_ids": ()}
        self.config = SimpleNamespace(vocab_size=vocab_size, resolved_n_outputs=vocab_size, **special_ids)
        rng = np.random.default_rng(seed)
        self.table = rng.normal(size=(7, vocab_size, vocab_size, vocab_size)) * 1.5
        self.by_source = rng.normal(size=(11, vocab_size))
        self.table[..., EOS] += end_bias
        if coarse:
            self.table = np.round(self.table * 2) / 2
            self.by_source = np.round(self.by_source * 2) / 2
        self.training, self.max_length = True, 1000
        self.rows_run = 0  # rows computed in all steps

    def train(self, mode: bool = True) -> None:
        self.training = mode

    def length_limits(self, src, max_extra_tokens):
        return np.minimum((src > EOS).sum(axis=1) + max_extra_tokens, self.max_length)

    def start_decoding(self, src):
        assert not self.training
        source = (src * np.arange(1, src.shape[1] + 1)).sum(axis=1) % 11
        begin = np.full(len(src), BOS)
        return begin, MarkovState(source, begin)

    def step(self, tokens, state):
        assert tokens.shape == state.source.shape
        assert state.position == 0 or (tokens != EOS).all(), "a finished hypothesis is still in the batch"
        self.rows_run += len(tokens)
        logits = self.table[state.position % 7, state.last, tokens] + self.by_source[state.source]
        state.last = tokens.copy()
        state.position = state.position + 1
        return logits.astype(np.float32)


@dataclass
class MarkovState(DecodingState):
    source: np.ndarray
    last: np.ndarray
    position: int = 0

    def select(self, rows):
        self.source = self.source[rows]
        self.last = self.last[rows]


def sources(rng, n: int, longest: int, vocab_size: int) -> np.ndarray:
    src = np.zeros((n, longest + 1), np.int32)
    for row in src:
        length = rng.integers(0, longest + 1)
        row[:length] = rng.integers(FIRST, vocab_size, length)
        row[length] = EOS
    return src


def log_probability(model, src_row, tokens, finished=True) -> float:
    """Compute the log-probability of a hypothesis prefix by prefix, with log-softmax in float64."""
    model.train(False)
    _, state = model.start_decoding(src_row[None])
    total = 0.0
    for last, token in zip([BOS, *tokens], [*tokens, EOS] if finished else tokens, strict=False):
        logits = model.step(np.array([last]), state)[0].astype(np.float64)
        total += logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return total


def source_length(row) -> int:
    return int(((row != PAD) & (row != EOS)).sum())


seeds = st.integers(0, 2**32 - 1)
length_penalties = st.sampled_from([-3.0, -1.0, 0.0, 0.3, 0.6, 1.0, 2.0])
length_penalty_types = st.sampled_from(["paper", "length"])


@given(seeds, length_penalties, length_penalty_types, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_beam_as_wide_as_the_search_space_finds_the_optimum(seed, length_penalty, length_penalty_type, n_best):
    vocab_size, max_extra_tokens = 6, 3
    rng = np.random.default_rng(seed)
    model = MarkovModel(vocab_size, seed)
    src = sources(rng, 2, 1, vocab_size)
    results = beam_search(
        model,
        src,
        beam_size=81,
        length_penalty=length_penalty,
        length_penalty_type=length_penalty_type,
        max_extra_tokens=max_extra_tokens,
        n_best=n_best,
    )
    for row, hypotheses in zip(src, results, strict=True):
        limit = source_length(row) + max_extra_tokens
        texts = [list(t) for n in range(limit) for t in product(range(FIRST, vocab_size), repeat=n)]
        score = {
            tuple(t): log_probability(model, row, t) / score_divisor(len(t) + 1, length_penalty, length_penalty_type)
            for t in texts
        }
        best = sorted(score, key=score.__getitem__, reverse=True)[:n_best]
        assert [tuple(h.tokens) for h in hypotheses] == best
        np.testing.assert_allclose([h.score for h in hypotheses], [score[t] for t in best], rtol=1e-5, atol=1e-5)


def search_with_lists(model, row, beam_size, length_penalty, length_penalty_type, limit, candidate_rule):
    """Return the best tokens by a rule of `beam_search`, using lists, up to the limit."""
    width = beam_size if candidate_rule == "plain" else 2 * beam_size
    live = [([], 0.0)]
    finished = []
    for length in range(1, limit + 1):
        grown = []
        for tokens, _ in live:
            for token in [EOS, *range(FIRST, model.config.vocab_size)]:
                is_end = token == EOS
                total = log_probability(model, row, tokens if is_end else [*tokens, token], is_end)
                grown.append(([*tokens, token], total))
        grown = sorted(grown, key=lambda pair: -pair[1])[:width]
        divisor = score_divisor(length, length_penalty, length_penalty_type)
        ranked = grown if candidate_rule == "tensor2tensor" else grown[:beam_size]
        finished += [(tokens[:-1], total / divisor) for tokens, total in ranked if tokens[-1] == EOS]
        live = [pair for pair in grown if pair[0][-1] != EOS][:beam_size]
        if candidate_rule == "fairseq" and len(finished) >= beam_size:
            break
    return max(finished, key=lambda pair: pair[1])[0] if finished else live[0][0]


@given(
    seeds,
    length_penalties,
    length_penalty_types,
    st.integers(1, 4),
    st.sampled_from([-1.0, 0.0, 3.0]),
    st.sampled_from(CANDIDATE_RULES),
)
@settings(max_examples=60, deadline=None)
def test_each_rule_equals_a_search_with_lists(
    seed, length_penalty, length_penalty_type, beam_size, end_bias, candidate_rule
):
    rng = np.random.default_rng(seed)
    model = MarkovModel(7, seed, end_bias=end_bias)
    src = sources(rng, 3, 2, 7)
    options = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_penalty_type": length_penalty_type,
        "candidate_rule": candidate_rule,
    }
    options["max_extra_tokens"] = 3
    for stop_when_decided in (True, False):
        results = beam_search(model, src, stop_when_decided=stop_when_decided, **options)
        for row, (best, *_) in zip(src, results, strict=True):
            limit = source_length(row) + 3
            assert best.tokens == search_with_lists(
                model, row, beam_size, length_penalty, length_penalty_type, limit, candidate_rule
            )


@pytest.mark.parametrize(
    ("end_bias", "options", "reason"),
    [
        (2.5, {"candidate_rule": "fairseq", "length_penalty": 3.0}, "the limit of 2 finished hypotheses is reached"),
        (9.0, {}, "no live hypothesis can score above -X, and one has finished with -X"),
        *((-30.0, {"length_penalty": a}, "the length limit of 4 tokens is reached") for a in (0.6, 0.0, -1.0)),
        *((-30.0, {"length_penalty": a, "n_best": 2}, "the length limit of 4 tokens is reached") for a in (0.6, -1.0)),
    ],
)
def test_the_tree_says_why_the_search_ended(end_bias, options, reason):
    tree, steps = SearchTree(), []
    src = np.array([[5, 6, 7, EOS]])
    options = {"beam_size": 2, "max_extra_tokens": 50 if "fairseq" in options.values() else 1} | options
    (best,) = beam_search(
        MarkovModel(9, 3, end_bias=end_bias), src, observe=lambda step: (tree(step), steps.append(step)), **options
    )
    assert re.sub(r"\d+\.\d+", "X", tree.stop_reason) == reason
    n_best = options.get("n_best", 1)
    for length, step in enumerate(steps, 1):
        finished = sorted(c.score for c in tree.candidates if c.fate == "finished" and c.length <= length)
        assert step.score_to_beat[0] == (finished[-n_best] if len(finished) >= n_best else -np.inf)
    assert best[-1].finished == (end_bias > 0)


def test_a_full_beam_keeps_its_size_and_the_tree_says_what_was_dropped():
    model = MarkovModel(9, 3, end_bias=2.0)
    tree = SearchTree()
    sizes = []

    def observe(step):
        tree(step)
        sizes.append((step.node[0] >= 0).sum())

    beam_search(
        model,
        np.array([[5, 6, 7, EOS]]),
        beam_size=3,
        max_extra_tokens=4,
        candidate_rule="tensor2tensor",
        observe=observe,
    )
    assert len(sizes) > 1 and set(sizes) == {3}
    for length in range(1, len(sizes) + 1):
        fates = [(c.token == EOS, c.fate) for c in tree.candidates if c.length == length][:6]
        assert {fate for is_end, fate in fates if is_end} <= {"finished"}
        others = [fate for is_end, fate in fates if not is_end]
        assert set(others[:3]) <= {"kept", "cut off"} and set(others[3:]) <= {"dropped"}


@given(seeds, st.booleans(), length_penalties)
@settings(max_examples=60, deadline=None)
def test_beam_1_is_greedy(seed, coarse, length_penalty):
    rng = np.random.default_rng(seed)
    model = MarkovModel(9, seed, coarse)
    src = sources(rng, int(rng.integers(1, 7)), 5, 9)
    greedy = greedy_search(model, src, max_extra_tokens=4)
    beams = beam_search(model, src, beam_size=1, length_penalty=length_penalty, max_extra_tokens=4)
    for a, (b,) in zip(greedy, beams, strict=True):
        assert (a.tokens, a.finished) == (b.tokens, b.finished)
        assert a.log_probability == b.log_probability == a.score


@given(seeds, st.booleans(), length_penalties, length_penalty_types, st.integers(1, 5), st.data())
@settings(max_examples=60, deadline=None)
def test_batched_equals_one_by_one_and_padding_changes_nothing(
    seed, coarse, length_penalty, length_penalty_type, beam_size, data
):
    n_best = data.draw(st.integers(1, beam_size))
    rng = np.random.default_rng(seed)
    model = MarkovModel(8, seed, coarse)
    src = sources(rng, 6, 6, 8)
    options = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_penalty_type": length_penalty_type,
        "max_extra_tokens": 5,
        "n_best": n_best,
    }
    together = beam_search(model, src, **options)
    for row, expected in zip(src, together, strict=True):
        single = row[None, : source_length(row) + 1]
        assert beam_search(model, single, **options) == [expected]
    assert greedy_search(model, src) == [greedy_search(model, row[None])[0] for row in src]


@given(
    seeds,
    st.booleans(),
    length_penalties,
    length_penalty_types,
    st.integers(1, 5),
    st.sampled_from([0.0, 3.0]),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_stopping_when_the_result_is_decided_does_not_change_it(
    seed, coarse, length_penalty, length_penalty_type, beam_size, end_bias, data
):
    n_best = data.draw(st.integers(1, beam_size))
    rng = np.random.default_rng(seed)
    model = MarkovModel(8, seed, coarse, end_bias)
    src = sources(rng, 5, 5, 8)
    options = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_penalty_type": length_penalty_type,
        "max_extra_tokens": 8,
        "n_best": n_best,
    }
    assert beam_search(model, src, **options) == beam_search(model, src, **options, stop_when_decided=False)


def test_stopping_when_decided_saves_work_and_finished_sentences_leave_the_batch():
    model = MarkovModel(8, 1, end_bias=4.0)
    src = sources(np.random.default_rng(1), 20, 5, 8)
    beam_search(model, src, beam_size=4, max_extra_tokens=30)
    early, model.rows_run = model.rows_run, 0
    beam_search(model, src, beam_size=4, max_extra_tokens=30, stop_when_decided=False)
    assert early < model.rows_run / 3
    assert model.rows_run <= sum(4 * (source_length(row) + 30) for row in src)


def test_a_longer_hypothesis_may_win_after_the_beam_has_finished():
    """Stopping when `beam_size` hypotheses have finished is wrong, because the penalty can favor a live one."""
    model = MarkovModel(5, 0)
    a, b = 3, 4
    model.by_source[:] = 0
    model.table[:] = -50
    model.table[0, BOS, BOS, [EOS, a]] = np.log([0.5, 0.5])  # EOS at once, with log 0.5 ...
    model.table[1:, :, :, b] = 0  # ... or five more tokens with probability 1
    model.table[6, :, :, :] = -50
    model.table[6, :, :, EOS] = 0
    src = np.array([[EOS]])
    ((best,),) = beam_search(model, src, beam_size=2, length_penalty=1.0, max_extra_tokens=10)
    assert best.tokens == [a, b, b, b, b, b]
    assert best.score == pytest.approx(np.log(0.5) / 2)  # (5 + 7) / 6
    ((best,),) = beam_search(model, src, beam_size=2, length_penalty=0.0, max_extra_tokens=10)
    assert best.tokens == []


@given(
    seeds,
    st.booleans(),
    length_penalties,
    length_penalty_types,
    st.integers(1, 6),
    st.sampled_from([-4.0, 0.0, 2.0]),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_hypotheses_are_sorted_distinct_within_the_limit_and_scored_correctly(
    seed, coarse, length_penalty, length_penalty_type, beam_size, end_bias, data
):
    n_best = data.draw(st.integers(1, beam_size))
    rng = np.random.default_rng(seed)
    model = MarkovModel(9, seed, coarse, end_bias)
    src = sources(rng, 4, 4, 9)
    results = beam_search(
        model,
        src,
        beam_size=beam_size,
        length_penalty=length_penalty,
        length_penalty_type=length_penalty_type,
        max_extra_tokens=2,
        n_best=n_best,
    )
    for row, hypotheses in zip(src, results, strict=True):
        limit = source_length(row) + 2
        assert len(hypotheses) == n_best
        assert len({tuple(h.tokens) for h in hypotheses}) == n_best
        order = [(not h.finished, -h.score) for h in hypotheses]
        assert order == sorted(order)
        for h in hypotheses:
            assert not {PAD, BOS, EOS} & set(h.tokens)
            assert len(h.tokens) <= limit - 1 if h.finished else len(h.tokens) == limit
            expected = log_probability(model, row, h.tokens, h.finished)
            assert h.log_probability == pytest.approx(expected, abs=1e-4)
            assert h.score == h.log_probability / score_divisor(
                len(h.tokens) + h.finished, length_penalty, length_penalty_type
            )


def test_cut_off_hypotheses_come_last_and_only_fill_gaps():
    model = MarkovModel(12)
    model.table[:], model.by_source[:] = 0, 0
    model.table[..., EOS] = -30
    model.table[1, :, 3, EOS] = 30  # only after the token 3 at the start
    src = np.array([[3, EOS]])
    (hypotheses,) = beam_search(model, src, beam_size=4, n_best=4, max_extra_tokens=3)
    assert [h.tokens for h in hypotheses] == [[3], [4, 3, 3, 3], [4, 3, 3, 4], [4, 3, 3, 5]]
    assert [h.finished for h in hypotheses] == [True, False, False, False]
    (best,) = beam_search(model, src, beam_size=4, n_best=1, max_extra_tokens=3)
    assert best == hypotheses[:1]


def test_fewer_hypotheses_only_if_no_more_exist():
    model = MarkovModel(4, 0)  # EOS and one more token: within the limit of 2 there are "", "a" and, cut off, "a a"
    (hypotheses,) = beam_search(model, np.array([[EOS]]), beam_size=8, n_best=8, max_extra_tokens=2)
    assert sorted(h.tokens for h in hypotheses) == [[], [3], [3, 3]]
    assert hypotheses[-1].tokens == [3, 3] and not hypotheses[-1].finished


def test_ties_go_to_the_earlier_beam_then_the_lower_token():
    model = MarkovModel(7, 0)
    model.table[:] = 0
    model.by_source[:] = 0
    model.table[:, :, :, EOS] = -30
    model.table[1, :, :, EOS] = 30
    (hypotheses,) = beam_search(model, np.array([[EOS]]), beam_size=3, n_best=3, max_extra_tokens=4)
    assert [h.tokens for h in hypotheses] == [[3], [4], [5]]


def test_the_mode_of_the_model_is_restored():
    model = MarkovModel(6, 0)
    for mode in (True, False):
        model.train(mode)
        beam_search(model, np.array([[3, EOS]]))
        greedy_search(model, np.array([[3, EOS]]))
        assert model.training is mode


def test_an_empty_batch_gives_an_empty_list():
    model = MarkovModel(6, 0)
    assert beam_search(model, np.zeros((0, 4), np.int32)) == []
    assert greedy_search(model, np.zeros((0, 4), np.int32)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size: expected a whole number"),
        ({"beam_size": 1.5}, "beam_size: expected a whole number"),
        ({"beam_size": 2, "n_best": 3}, "n_best: expected at most the beam size, 2; got 3"),
        ({"beam_size": 2.0}, "beam_size: expected a whole number >= 1; got 2.0"),
        ({"beam_size": float("inf")}, "beam_size: expected a whole number"),
        ({"beam_size": True}, "beam_size: expected a whole number"),
        ({"n_best": 0}, "n_best: expected"),
        ({"max_extra_tokens": 2.0}, "max_extra_tokens: expected a whole number"),
        ({"max_extra_tokens": 0}, "max_extra_tokens: expected"),
        ({"length_penalty": float("nan")}, "length_penalty: expected"),
        ({"length_penalty": 1e9}, "length_penalty: expected"),
        ({"length_penalty_type": "google"}, "length_penalty_type: expected one of paper, length; got 'google'"),
    ],
)
def test_invalid_arguments_are_named_in_one_line(changes, message):
    for check in (lambda: check_search(**changes), lambda: beam_search(MarkovModel(6), np.array([[EOS]]), **changes)):
        with pytest.raises(ValueError) as error:
            check()
        assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("src", [np.array([3, EOS]), np.array([[3.0, 2.0]])])
def test_a_source_that_is_not_a_matrix_of_ids_raises(src):
    with pytest.raises(ValueError, match="source ids: expected a 2-D array of integer ids"):
        beam_search(MarkovModel(6), src)


def test_source_rows_of_different_lengths_raise():
    with pytest.raises(ValueError) as error:
        beam_search(MarkovModel(6), [[3, 4, EOS], [4, EOS]])
    assert str(error.value) == (
        "source ids: expected rows of equal length; got rows of different lengths; "
        "try appending the padding id (0 by default) to the shorter rows"
    )


def test_nan_logits_raise():
    model = MarkovModel(6, 0)
    model.table[1] = np.nan
    for search in (beam_search, greedy_search):
        with pytest.raises(FloatingPointError, match="output position 2"):
            search(model, np.array([[3, 3, 4, EOS]]))


def test_the_model_limits_the_length():
    model = MarkovModel(12, 0, end_bias=-40)
    model.max_length = 7
    src = np.array([[3, 4, EOS]])
    assert len(greedy_search(model, src)[0].tokens) == len(beam_search(model, src)[0][0].tokens) == 7


@given(seeds, st.integers(1, 6), st.sampled_from([5, 256, 3 * 256, 2000, 4096, 6161]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_top_k_equals_a_stable_sort(seed, k, n_columns, coarse):
    x = np.random.default_rng(seed).normal(size=(3, n_columns)).astype(np.float32)
    if coarse:
        x = np.round(x)
    x[0, : n_columns // 2] = -np.inf
    x[1, 3:] = -np.inf
    x[2, -1] = 9
    before = x.copy()
    values, columns = npx.log_softmax_top_k(x, k)
    expected = np.argsort(-x, axis=1, kind="stable")[:, :k]
    log_p = x - np.log(np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(values, np.take_along_axis(log_p, expected, axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(columns[values > -np.inf], expected[values > -np.inf])
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_probabilities_are_at_most_0(dtype):
    logits = np.random.default_rng(0).normal(-200, 1, (2000, 400)).astype(dtype)
    logits[:, 7] = np.linspace(-49, 49, 2000)  # certain in each row
    assert (npx.log_softmax_top_k(logits, 3)[0] <= 0).all()


@given(st.floats(-10, 10), length_penalty_types)
def test_the_length_penalty_is_monotonic(length_penalty, length_penalty_type):
    steps = np.diff(score_divisor(np.arange(1.0, 40), length_penalty, length_penalty_type))
    assert (steps >= 0).all() or (steps <= 0).all()


def test_the_papers_length_penalty():
    assert score_divisor(1, 0.6) == 1
    assert score_divisor(25, 0.6) == pytest.approx(5**0.6)
    assert score_divisor(25, 0.6, "length") == pytest.approx(25**0.6)


@pytest.fixture(scope="module")
def transformer():
    config = TransformerConfig(vocab_size=13, d_model=16, d_ff=32, n_heads=2, n_layers=2, dropout=0.3)
    model = Transformer(config, seed=3, dtype=np.float64)  # float64, so that rounding does not decide ties
    for name, parameter in model.named_parameters():
        if "weight" in name:
            parameter.data *= 3  # sharper than initially, so that hypotheses differ
    return model


@given(seeds, length_penalties, st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_scores_of_a_transformer_equal_full_decoding(transformer, seed, length_penalty, beam_size):
    src = sources(np.random.default_rng(seed), 5, 6, 13)
    results = beam_search(
        transformer, src, beam_size=beam_size, length_penalty=length_penalty, max_extra_tokens=4, n_best=beam_size
    )
    transformer.eval()
    for row, hypotheses in zip(src, results, strict=True):
        for h in hypotheses:
            tgt = np.array([[BOS, *h.tokens, *[EOS] * h.finished]])
            with no_grad():
                logits = transformer(row[None], tgt[:, :-1]).data[0].astype(np.float64)
            shifted = logits - logits.max(axis=1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            expected = np.take_along_axis(log_p, tgt[0, 1:, None], axis=1).sum()
            assert h.log_probability == pytest.approx(expected, abs=1e-9)


@given(seeds, st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_batched_search_of_a_transformer_equals_one_by_one(transformer, seed, beam_size):
    src = sources(np.random.default_rng(seed), 6, 6, 13)
    transformer.train()
    together = beam_search(transformer, src, beam_size=beam_size, max_extra_tokens=4)
    greedy = greedy_search(transformer, src, max_extra_tokens=4)
    for row, expected, expected_greedy in zip(src, together, greedy, strict=True):
        single = row[None, : source_length(row) + 1]
        ((result,),) = beam_search(transformer, single, beam_size=beam_size, max_extra_tokens=4)
        (greedy_result,) = greedy_search(transformer, single, max_extra_tokens=4)
        for a, b in ((result, expected[0]), (greedy_result, expected_greedy)):
            assert a.tokens == b.tokens
            assert a.score == pytest.approx(b.score, abs=1e-9)


def test_a_search_restores_the_mode_of_each_module():
    """A module in evaluation mode during training, here encoder[0], must stay in it after a validation."""
    model = Transformer(TransformerConfig(9, d_model=8, d_ff=8, n_heads=2, n_layers=2))
    model.train().encoder[0].eval()
    before = [module.training for module in model.modules()]
    greedy_search(model, np.array([[4, 5, EOS]]), max_extra_tokens=1)
    assert [module.training for module in model.modules()] == before
    plain_model = MarkovModel(5)  # not a Module
    greedy_search(plain_model, np.array([[4, EOS]]), max_extra_tokens=1)
    assert plain_model.training
