"""Decoding caches: selected rows keep their contents, in any order and number."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.cache import INITIAL_CAPACITY, KeyValueCache, SharedState


@given(st.integers(0, 10**6), st.integers(0, INITIAL_CAPACITY + 9), st.integers(1, 5))
def test_selected_rows_keep_their_contents(seed, length, rows):
    rng = np.random.default_rng(seed)

    def random_keys_and_values(n, t):
        return rng.normal(size=(n, t, 2, 3)), rng.normal(size=(n, t, 2, 1))

    keys, values = random_keys_and_values(rows, length)
    cache = KeyValueCache(keys.copy(), values.copy(), length)
    expected = keys, values
    for _ in range(rng.integers(1, 12)):
        n = len(expected[0])
        if rng.random() < 0.5:
            new = random_keys_and_values(n, int(rng.integers(1, INITIAL_CAPACITY)))
            result = cache.append(*new)
            expected = tuple(np.concatenate(pair, axis=1) for pair in zip(expected, new, strict=True))
            assert all(np.array_equal(x, y) for x, y in zip(result, expected, strict=True))
        chosen = rng.integers(0, n, rng.integers(1, 2 * n + 1))  # fewer rows, the same number, more
        cache.select(chosen)
        expected = tuple(x[chosen] for x in expected)
        contents = [x[:, : cache.length] for x in (cache.keys, cache.values)]
        assert all(np.array_equal(x, y) for x, y in zip(contents, expected, strict=True))


def test_a_source_is_dropped_with_its_last_row():
    class Source(SharedState):
        def __init__(self, keys):
            super().__init__(len(keys))
            self.caches = [KeyValueCache(keys, keys.copy(), keys.shape[1])]

    keys = np.arange(12.0).reshape(3, 4, 1, 1)
    state = Source(keys.copy())
    state.select(np.array([0, 0, 1, 1, 2, 2]))
    assert len(state.caches[0].keys) == 3  # six rows of three sources
    state.select(np.array([4, 4, 2, 3]))  # in another order, with one row twice
    assert np.array_equal(state.caches[0].keys, keys[[2, 1]]) and state.sources.tolist() == [0, 0, 1, 1]
    state.select(np.array([0, 2, 1, 3]))  # not adjacent: each row has a copy of its source
    assert np.array_equal(state.caches[0].keys, keys[[2, 1, 2, 1]]) and state.sources.tolist() == [0, 1, 2, 3]
