"""The state that decoding carries from step to step. Each row belongs to a hypothesis, and the search selects rows.

With a cache, a layer computes only new positions: `layer(x, spec, cache)` takes the next positions, attends to the
earlier ones in the cache, and appends its own keys and values. States and caches hold arrays, without a graph.
"""

import npx
from npx import host  # NumPy, for arrays that stay on the CPU

INITIAL_CAPACITY = 32  # capacity of a new cache, in positions


class DecodingState:
    """Base class of decoding states.

    A state may contain other states, as attributes or in lists with one state per layer.

    Attributes:
        projection_t: None before the first step, then a transposed copy (D, V) of the output projection. Without the
            copy, a matmul with few rows would be slow, because it would read columns of the original.
    """

    projection_t: npx.Array | None = None

    def select(self, rows: npx.Array) -> None:
        """Keep, repeat or reorder rows in place.

        Args:
            rows: a NumPy array with the index of the old row for each new row.
        """
        for value in vars(self).values():
            if isinstance(value, DecodingState):
                value.select(rows)
            elif isinstance(value, list):
                device_rows = npx.from_host(rows)  # copied once for all layers
                for part in value:
                    part.select(device_rows)


class RowArray(DecodingState):
    """An array with one row for each hypothesis."""

    def __init__(self, array: npx.Array) -> None:
        self.array = array

    def select(self, rows: npx.Array) -> None:
        self.array = self.array[npx.from_host(rows)]


class KeyValueCache(DecodingState):
    """Keys (R, capacity, H, d_k) and values (R, capacity, H, d_v) of the `length` positions so far.

    Hypotheses with a common prefix have equal keys and values at the positions of this prefix. On the host, `select`
    therefore copies only the positions after the common prefix; in long hypotheses, these are few. `stamps` (R, length)
    identifies prefixes: two rows with equal stamps at a position are equal up to and including that position. On a GPU
    `stamps` is None, because copying everything is faster than finding the prefixes.
    """

    def __init__(self, keys: npx.Array, values: npx.Array, length: int) -> None:
        self.keys, self.values, self.length = keys, values, length
        self.stamps: npx.Array | None = None
        self.next_stamp = 0
        if isinstance(keys, host.ndarray):
            self.stamps = host.zeros((len(keys), 0), host.int64)
            self._stamp(length)

    def _stamp(self, n_positions: int) -> None:
        """Append a new stamp to each row, at all of the `n_positions` new positions."""
        assert self.stamps is not None
        new = host.arange(self.next_stamp, self.next_stamp + len(self.stamps))
        self.stamps = host.concatenate([self.stamps, host.repeat(new[:, None], n_positions, axis=1)], axis=1)
        self.next_stamp += len(new)

    def append(self, k: npx.Array, v: npx.Array) -> tuple[npx.Array, npx.Array]:
        """Append positions (R, T, H, d) and return the keys and values of all positions.

        The capacity doubles when the cache is full.
        """
        start = self.length
        self.length += k.shape[1]
        if self.length > self.keys.shape[1]:
            extra = max(self.length - start, self.keys.shape[1])
            self.keys, self.values = (
                npx.concatenate([x, npx.empty((len(x), extra, *x.shape[2:]), x.dtype)], axis=1)
                for x in (self.keys, self.values)
            )
        self.keys[:, start : self.length] = k
        self.values[:, start : self.length] = v
        if self.stamps is not None:
            self._stamp(k.shape[1])
        return self.keys[:, : self.length], self.values[:, : self.length]

    def select(self, rows: npx.Array) -> None:
        rows = npx.from_host(rows)
        old_stamps = self.stamps
        if old_stamps is not None:
            self.stamps = old_stamps[rows]
        if old_stamps is not None and len(rows) <= len(old_stamps):
            differs = self.stamps != old_stamps[: len(rows)]  # (R, T)
            end = host.ones((len(rows), 1), bool)  # so that argmax finds a difference in every row
            prefix = host.concatenate([differs, end], axis=1).argmax(axis=1)  # (R,) length of the common prefix
            row, position = host.nonzero(host.arange(self.length) >= prefix[:, None])
            for x in (self.keys, self.values):
                x[row, position] = x[rows[row], position]
            self.keys, self.values = self.keys[: len(rows)], self.values[: len(rows)]
            return
        for name in ("keys", "values"):
            x = getattr(self, name)
            selected = npx.empty((len(rows), *x.shape[1:]), x.dtype)
            selected[:, : self.length] = x[rows, : self.length]  # the unused capacity is not copied
            setattr(self, name, selected)


def equal_runs(values: npx.Array) -> tuple[npx.Array, int]:
    """Return the value of each run of equal values, and the common length of the runs.

    If the lengths differ, each value counts as a run: the result is (values, 1).
    """
    length = max(1, len(values) // (1 + int((values[1:] != values[:-1]).sum())))
    runs = values[::length]
    return (runs, length) if host.array_equal(values, host.repeat(runs, length)) else (values, 1)


class SharedState(DecodingState):
    """Base class of a state with one row for each source, shared by the hypotheses of that source.

    Sharing requires that the hypotheses of a source are adjacent and that every source has the same number of them, as
    in beam search. Otherwise, each hypothesis gets its own copy.

    Attributes:
        sources: the source of each hypothesis (R,), on the host.
    """

    def __init__(self, n_sources: int) -> None:
        self.n_sources = n_sources
        self.sources = host.arange(n_sources)

    def select(self, rows: npx.Array) -> None:
        selected, rows_per_source = equal_runs(self.sources[rows])
        if not host.array_equal(selected, host.arange(self.n_sources)):
            super().select(selected)
        self.sources = host.repeat(host.arange(len(selected)), rows_per_source)
        self.n_sources = len(selected)
