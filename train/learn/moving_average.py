"""The exponential moving average of the weights (`train.ema_decay`)."""

from collections.abc import Iterator
from contextlib import contextmanager

from models import FlatParameters
from train.learn.parallel.reducer import LocalReducer

CHUNK = 1 << 17  # number of elements per step, so that temporary arrays stay in the cache


class MovingAverage:
    """The exponential moving average of the weights, an array like `flat.data`.

        average = d * average + (1 - d) * weights,    d = min(decay, (1 + n) / (10 + n)) after update n

    As in TensorFlow, d is smaller in the first updates, so that the average quickly forgets the initialization.

    Args:
        flat: the weights.
        reducer: sends the weights of each shard to the other ranks.
        decay: the decay, in (0, 1).
    """

    def __init__(self, flat: FlatParameters, reducer: LocalReducer, decay: float) -> None:
        self.flat, self.reducer, self.decay = flat, reducer, decay
        self.values = flat.data.copy()  # (P,)

    def update(self, n: int) -> None:
        """Include the weights after update `n` in the average; the first update has n = 1."""
        d = min(self.decay, (1 + n) / (10 + n))
        for part in self._chunks():
            self.values[part] += (1.0 - d) * (self.flat.data[part] - self.values[part])

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """Replace the weights with their average during this block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        weights = self.flat.data
        for part in self._chunks():
            values = weights[part].copy()
            weights[part] = self.values[part]
            self.values[part] = values
        self.flat.mark_updated()
        self.flat.round_weights()
        self.reducer.all_gather_weights()

    def _chunks(self) -> Iterator[slice]:
        return (slice(i, i + CHUNK) for i in range(0, self.values.size, CHUNK))
