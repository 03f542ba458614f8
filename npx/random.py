"""Random numbers as pure functions of (seed, step, call); within `keyed`, `next_key` counts the calls.

The generator is Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), which maps a key and
a counter of four words to random bits. Philox's key is (seed, step). The counter's first (lowest) word is the position
and its third word the call. The same numbers can therefore be regenerated at any time, in any order, by any number of
threads and for part of an array. Resuming a run needs no saved generator state.

    with npx.keyed(seed=1, step=7):
        key = npx.next_key()            # Key(seed=1, step=7, call=0)
        x = npx.random.normal(key, (2, 3))
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, ceil_div, from_host
from npx.scoped import ScopedValue

WORDS_PER_COUNT = 16  # 16-bit words generated per value of the Philox counter (4 x 64 bits)


class Key(NamedTuple):
    """The key of one random array: the run's seed, the training step and the number of the call within the step."""

    seed: int
    step: int
    call: int

    @property
    def device_counter(self) -> Array | None:
        """None, or a uint64 array (2,) on the device; CUDA kernels add its elements to `step` and `call`."""
        return None


class DeviceKey(Key):
    """A key whose step and call are known only on the device, from `device_counter`, as in a CUDA graph."""

    device_counter: Array | None = None

    def __new__(cls, seed: int, step: int, call: int, device_counter: Array) -> "DeviceKey":
        key = super().__new__(cls, seed, step, call)
        key.device_counter = device_counter
        return key


_keys: ScopedValue[Iterator[Key] | None] = ScopedValue(None)  # the keys of the innermost block


@contextmanager
def keyed(seed: int, step: int, device_counter: Array | None = None, first_call: int = 0) -> Iterator[None]:
    """Make `next_key` return the keys (seed, step, first_call), (seed, step, first_call + 1), ... within the block.

    Args:
        device_counter: a uint64 array (2,) on the GPU. CUDA kernels add its first value to the step of each key, and
            its second value to the call.
    """
    if min(seed, step) < 0 or max(seed, step) >= 2**64:
        raise ValueError(f"keyed: expected a seed and a step from 0 to 2**64 - 1; got {seed} and {step}")
    calls = count(first_call)
    if device_counter is None:
        keys = (Key(seed, step, call) for call in calls)
    else:
        keys = (DeviceKey(seed, step, call, device_counter) for call in calls)
    with _keys.override(keys):
        yield


@contextmanager
def replay_keys(keys: list[Key]) -> Iterator[None]:
    """Make `next_key` return the given keys, in order, within the block.

    Raises RuntimeError unless the block uses all of them and no more.
    """
    remaining = iter(keys)

    def replay() -> Iterator[Key]:
        yield from remaining
        reject("more")

    def reject(got: object) -> None:
        raise RuntimeError(
            f"random numbers: expected {len(keys)} random arrays, as in the forward pass; got {got}; "
            "try calling train() and eval() only after backward, and creating parameters before the call"
        )

    with _keys.override(replay()):
        yield
    if n_unused := len([*remaining]):
        reject(len(keys) - n_unused)


@contextmanager
def record_keys() -> Iterator[list[Key]]:
    """Yield a list that collects the keys that `next_key` returns within the block, for `replay_keys`."""
    recorded: list[Key] = []
    outer = _keys.get()

    def record() -> Iterator[Key]:
        while outer is not None:
            recorded.append(next(outer))
            yield recorded[-1]

    if outer is None:
        yield recorded  # outside `keyed` there is nothing to record
        return
    with _keys.override(record()):
        yield recorded


def next_key() -> Key:
    """Return the next key of the innermost `keyed` block. Raises RuntimeError outside any block."""
    keys = _keys.get()
    if keys is None:
        raise RuntimeError(
            "random numbers: no key (seed, step) is set; try `with npx.keyed(seed, step):` around the call "
            "(initialization and dropout need random numbers), or model.eval() to disable dropout"
        )
    return next(keys)


def _philox(key: Key, position: int = 0) -> "np.random.Philox":  # numpy.random is imported on first use
    if key.device_counter is not None:
        raise RuntimeError(
            "random numbers: a DeviceKey works only in GPU kernels, because only the device knows the step"
        )
    return np.random.Philox(key=np.array([key.seed, key.step], np.uint64), counter=[position, 0, key.call, 0])


def bits16(key: Key, start: int, stop: int) -> np.ndarray:
    """Return words start to stop - 1 of the key's infinite sequence of random 16-bit words, as uint16 on the host."""
    first = start // WORDS_PER_COUNT
    words = stop - first * WORDS_PER_COUNT
    raw = _philox(key, first).random_raw(ceil_div(words, 4))
    return raw.view(np.uint16)[start - first * WORDS_PER_COUNT : words]


def normal(key: Key, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Return standard normal samples on the current device."""
    return from_host(np.random.Generator(_philox(key)).standard_normal(shape).astype(dtype))


def uniform(key: Key, shape: tuple[int, ...], dtype: Any = np.float32, low: float = 0.0, high: float = 1.0) -> Array:
    """Return uniform samples from [low, high) on the current device."""
    x = np.random.Generator(_philox(key)).uniform(low, high, shape).astype(dtype)
    if x.dtype.kind not in "iub":  # rounding may give `high`
        x = np.minimum(x, np.nextafter(x.dtype.type(high), x.dtype.type(low)))
    return from_host(x)
