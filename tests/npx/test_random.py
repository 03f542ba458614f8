"""Random numbers (npx/random.py): every sample is a pure function of (seed, step, call, position)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from models import Dropout
from npx.random import bits16

KEYS = st.builds(npx.Key, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**31))
SAMPLERS = {
    "normal": lambda key: npx.random.normal(key, (50,)),
    "uniform": lambda key: npx.random.uniform(key, (50,)),
    "bits16": lambda key: bits16(key, 0, 50),
    "dropout": lambda key: npx.DropoutSpec(0.5, key).keep_mask((200,)),
}


@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
@given(key=KEYS, other=KEYS)
def test_samples_depend_only_on_the_key(sample, key, other):
    global_state = np.random.get_state()[1].copy()
    first = sample(key)
    sample(other)
    assert np.array_equal(sample(key), first)
    assert np.array_equal(np.random.get_state()[1], global_state), "NumPy's global generator was used"
    for part in range(3):
        changed = key._replace(**{key._fields[part]: key[part] ^ 1})
        assert not np.array_equal(sample(changed), first), f"{changed} gives the samples of {key}"


@given(key=KEYS, parts=st.lists(st.integers(0, 100), min_size=1, max_size=6))
def test_parts_of_the_bits_equal_the_full_sequence(key, parts):
    ends = np.cumsum([0, *parts])
    sequence = bits16(key, 0, ends[-1])
    slices = [bits16(key, i, j) for i, j in zip(ends, ends[1:], strict=False)]
    assert sequence.shape == (ends[-1],)
    assert np.array_equal(np.concatenate(slices), sequence)


def test_a_mask_does_not_depend_on_shape_blocks_or_threads(monkeypatch):
    drop = npx.DropoutSpec(0.3, npx.Key(1, 2, 3))
    mask = drop.keep_mask((2**19 + 5,))  # large enough to use several threads
    monkeypatch.setenv("NPX_THREADS", "3")
    assert np.array_equal(drop.keep_mask((2**19 + 5,)), mask)
    assert np.array_equal(drop.keep_mask((10, 30)).reshape(-1), mask[:300])


@given(key=KEYS, rate=st.floats(0, 1, exclude_max=True))
def test_the_fraction_kept_is_one_minus_rate(key, rate):
    size = 20_000
    drop = npx.DropoutSpec(rate, key)
    fraction = drop.keep_mask((size,)).mean()
    assert abs(fraction - (1 - rate)) < 6 * (rate * (1 - rate) / size) ** 0.5 + 1e-4
    assert drop.scale == pytest.approx(1 / (1 - rate), rel=0.01) or rate > 0.99


def test_distributions():
    key = npx.Key(5, 0, 0)
    normal = npx.random.normal(key, (100_000,))
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    uniform = npx.random.uniform(key, (100_000,), low=-2, high=3)
    assert uniform.min() >= -2 and uniform.max() <= 3 and abs(uniform.mean() - 0.5) < 0.02
    for sample in (npx.random.normal, npx.random.uniform):
        assert sample(key, (2,)).dtype == "float32" and sample(key, (2,), "float64").dtype == "float64"


def test_keys_count_calls_and_blocks_nest():
    with npx.keyed(7, 9):
        assert npx.next_key() == (7, 9, 0)
        with npx.keyed(1, 1):
            assert npx.next_key() == (1, 1, 0)
        assert npx.next_key() == (7, 9, 1)
    with npx.keyed(7, 9):
        assert npx.next_key() == (7, 9, 0)


@pytest.mark.parametrize("key", [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_a_seed_and_a_step_have_64_bits(key):
    with pytest.raises(ValueError, match=r"keyed: expected a seed and a step from 0 to 2\*\*64 - 1; got "):
        npx.keyed(*key).__enter__()


def test_without_a_key_the_error_suggests_keyed():
    with pytest.raises(RuntimeError, match=r"no key \(seed, step\) is set.*with npx.keyed\(seed, step\).*eval"):
        npx.next_key()
    with pytest.raises(RuntimeError, match="no key"):
        Dropout(0.1)(np.ones(3))
    with pytest.raises(ZeroDivisionError), npx.keyed(1, 1):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="no key"):  # the block ended despite the error
        npx.next_key()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
def test_uniform_samples_are_below_the_upper_bound_after_rounding(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    with npx.keyed(1, 0):
        x = npx.random.uniform(npx.next_key(), (200_000,), dtype, 0, 2)
    assert x.dtype == dtype and 0 <= x.min() and x.max() < 2
