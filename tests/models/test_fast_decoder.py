"""The fast decoder step computes what the decoder's layers compute, for every option, beam and order of rows."""

import numpy as np
import pytest

import npx
from autograd import no_grad
from models import TransformerConfig
from models.architectures import encoder_decoder
from models.architectures.fast_decoder import MAX_SHARED_ROWS, GroupedCache
from models.cache import INITIAL_CAPACITY
from models.search import beam_search, greedy_search, sample_outputs
from tests.helpers.small_models import EOS, FIRST, PAD, SMALL, V, build

SOURCES = np.array([[3, 4, 5, EOS], [5, 4, EOS, PAD], [3, EOS, PAD, PAD]])
ENDING = {9: [2, 1], 20: [0]}  # the sentences that remain after a step, by their position
SUPPORTED = (
    {}, {"norm_placement": "pre"}, {"norm_placement": "sandwich"}, {"norm_placement": "deepnorm"},
    {"norm_type": "rms_norm"}, {"attention_bias": True}, {"activation": "gelu"}, {"activation": "swiglu"},
    {"n_experts": 3}, {"positions": "learned"}, {"d_k": 3, "d_v": 5}, {"dropout": 0.5},
)  # fmt: skip
UNSUPPORTED = ({"positions": "rotary"}, {"positions": "t5"}, {"qk_norm": True}, {"n_kv_heads": 1})


def disable_fast_decoder(monkeypatch):
    """Make models run their decoder layers."""
    monkeypatch.setattr(encoder_decoder, "supports_decode_step", lambda *args: False)


@pytest.mark.parametrize("options", SUPPORTED, ids=str)
def test_search_equals_search_with_the_layers(options, monkeypatch):
    model = build(TransformerConfig(**SMALL | options), seed=1).eval()

    def search():
        results = [
            beam_search(
                model, SOURCES, beam_size=beam_size, candidate_rule="tensor2tensor", n_best=2, length_penalty=2.0
            )
            for beam_size in (2, 5)
        ]
        return [*sum(results, []), greedy_search(model, SOURCES), sample_outputs(model, SOURCES, samples=3)[0]]

    fast = search()
    assert isinstance(model.start_decoding(SOURCES)[1].caches[0], GroupedCache)
    disable_fast_decoder(monkeypatch)
    for hypotheses, expected in zip(fast, search(), strict=True):
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        np.testing.assert_allclose([h.score for h in hypotheses], [h.score for h in expected], rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows_per_source", [1, 4, MAX_SHARED_ROWS, MAX_SHARED_ROWS + 1])
def test_steps_equal_full_decoding_beyond_the_first_capacity(rows_per_source):
    """Hypotheses are reordered within their sentence, sentences end, and the columns are dropped and grow."""
    # The rows of a source are adjacent and form a group. With two rows per source, the sources of the rows are:
    #   step 0          [0]   [1]   [2]
    #   steps 1 to 9    [0 0] [1 1] [2 2]   before each step, a row is replaced by a random row of its group
    #   steps 10 to 20  [2 2] [1 1]         source 0 has ended, and the other groups have changed places
    #   steps 21 to 35  [2 2]               source 1 has ended
    # With more than MAX_SHARED_ROWS rows per source, each row is a group of its own in the caches.
    model = build(TransformerConfig(**SMALL)).eval()
    rng = np.random.default_rng(rows_per_source)
    _, state = model.start_decoding(SOURCES)
    caches = state.caches[0]
    origin = np.arange(3)
    prefix = np.empty((3, 0), int)
    for step in range(INITIAL_CAPACITY + 4):
        tokens = rng.integers(FIRST, V, len(origin))
        prefix = np.concatenate([prefix, tokens[:, None]], axis=1)
        logits = model.step(tokens, state)
        if step % 5 == 4 or step < 3:
            with no_grad():
                full = model(SOURCES[origin], prefix).data[:, -1]
            np.testing.assert_allclose(logits, full, rtol=0, atol=1e-11)
        remaining = ENDING.get(step, range(len(np.unique(origin))))
        old_rows = len(origin) // len(np.unique(origin))  # per source
        rows = np.concatenate([i * old_rows + rng.integers(0, old_rows, rows_per_source) for i in remaining])
        state.select(rows)
        origin, prefix = origin[rows], prefix[rows]
    shared = rows_per_source <= MAX_SHARED_ROWS
    assert len(caches.keys[0]) == (1 if shared else rows_per_source)
    if shared and rows_per_source > 1:
        assert caches.n_columns < rows_per_source * INITIAL_CAPACITY


@pytest.mark.parametrize("options", UNSUPPORTED, ids=str)
def test_other_models_run_their_layers(options):
    model = build(TransformerConfig(**SMALL | options)).eval()
    assert not isinstance(model.start_decoding(SOURCES)[1].caches[0], GroupedCache)


def test_a_hook_or_dropout_makes_the_layers_run():
    model = build(TransformerConfig(**SMALL)).eval()
    calls = []
    model.decoder[0].cross_attention.hook = lambda *args: calls.append(args)
    beam_search(model, SOURCES, max_extra_tokens=2)
    assert calls
    model = build(TransformerConfig(**SMALL))  # in training mode
    assert not isinstance(model.start_decoding(SOURCES)[1].caches[0], GroupedCache)


def test_several_new_positions_and_no_rows():
    model = build(TransformerConfig(**SMALL)).eval()
    ids = np.array([[1, 3, 4], [1, 4, 4], [1, 5, 3]])
    _, state = model.start_decoding(SOURCES)
    with no_grad():
        expected = model.decode(ids, *model.encode(SOURCES)).data
        np.testing.assert_allclose(model.hidden_states(ids, state).data, expected, rtol=0, atol=1e-11)
    state.select(np.array([], int))
    assert model.step(np.array([], int), state).shape == (0, V)
    state.select(np.array([], int))


@pytest.mark.parametrize("mode", ["reference", "check", "emulate"])
def test_every_kernel_mode(mode):
    model = build(TransformerConfig(**SMALL)).eval()
    expected = beam_search(model, SOURCES)
    with npx.kernel_mode(mode):
        assert [h[0].tokens for h in beam_search(model, SOURCES)] == [h[0].tokens for h in expected]
