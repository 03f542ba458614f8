"""Random numbers keyed by (seed, step, call): a pure function, no hidden state.

The generator is Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), which maps a key
and a counter to random bits. The key is (seed, step); of the counter's four words the first and lowest is the position,
the third the call. So the same draw can be made again at any time, in any order, by any number of threads, for a part
of an array alone, and resuming a training needs no saved generator.

    with npx.keyed(seed=1, step=7):
        key = npx.next_key()            # Key(seed=1, step=7, call=0)
        x = npx.random.normal(key, (2, 3))
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, from_host
from npx.scoped import Scoped

WORDS_PER_COUNT = 16  # 16-bit words that one value of the Philox counter yields (4 x 64 bits)


class Key(NamedTuple):
    """Names one draw: the run's seed, the training step, and the number of the draw within the step."""

    seed: int
    step: int
    call: int

    @property
    def moment(self) -> Array | None:
        """None, or an array on the device (2,), uint64, of what is added to step and call by whatever kernel draws."""
        return None


class LaterKey(Key):
    """A key whose step and call only the device will know, by its `moment`."""

    moment: Array | None = None

    def __new__(cls, seed: int, step: int, call: int, moment: Array) -> "LaterKey":
        key = super().__new__(cls, seed, step, call)
        key.moment = moment
        return key


_keys: Scoped[Iterator[Key] | None] = Scoped(None)  # those of the innermost block


@contextmanager
def keyed(seed: int, step: int, moment: Array | None = None, first: int = 0) -> Iterator[None]:
    """Within the block `next_key` counts the calls of (seed, step) from `first`."""
    calls = count(first)
    keys = (Key(seed, step, call) if moment is None else LaterKey(seed, step, call, moment) for call in calls)
    with _keys.set(keys):
        yield


@contextmanager
def replay_keys(calls: list[Key]) -> Iterator[None]:
    """Within the block `next_key` gives the keys of a list, in order."""
    with _keys.set(iter(calls)):
        yield


@contextmanager
def record_keys() -> Iterator[list[Key]]:
    """Within the block the keys that `next_key` gives are noted in the list, for `replay_keys`."""
    noted: list[Key] = []
    outer = _keys.get()

    def note() -> Iterator[Key]:
        while outer is not None:
            noted.append(next(outer))
            yield noted[-1]

    if outer is None:
        yield noted  # nobody draws
        return
    with _keys.set(note()):
        yield noted


def next_key() -> Key:
    """The next key of the innermost `keyed` block; RuntimeError outside of one."""
    keys = _keys.get()
    if keys is None:
        raise RuntimeError(
            "random numbers: expected a key (seed, step); got none; "
            "try `with npx.keyed(seed, step):` around the call (a new layer draws its weights, dropout what it drops), "
            "or model.eval() to switch dropout off"
        )
    return next(keys)


def _philox(key: Key, position: int = 0) -> np.random.Philox:
    if key.moment is not None:
        raise RuntimeError("random numbers: expected a kernel of a GPU to draw; the host does not know the step")
    return np.random.Philox(key=[key.seed, key.step], counter=[position, 0, key.call, 0])


def bits16(key: Key, start: int, stop: int) -> np.ndarray:
    """Words `start` to `stop` of the key's endless row of random 16-bit words (uint16, on the host)."""
    first = start // WORDS_PER_COUNT
    words = stop - first * WORDS_PER_COUNT
    raw = _philox(key, first).random_raw(-(-words // 4))
    return raw.view(np.uint16)[start - first * WORDS_PER_COUNT : words]


def normal(key: Key, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Standard normal numbers on the current device."""
    return from_host(np.random.Generator(_philox(key)).standard_normal(shape).astype(dtype))


def uniform(key: Key, shape: tuple[int, ...], dtype: Any = np.float32, low: float = 0.0, high: float = 1.0) -> Array:
    """Uniform numbers in [low, high) on the current device."""
    return from_host(np.random.Generator(_philox(key)).uniform(low, high, shape).astype(dtype))
