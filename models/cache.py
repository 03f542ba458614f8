"""What a model remembers from one step of decoding to the next. Its rows are hypotheses, which search selects among.

A layer with a state is the same layer: `layer(x, state=s)` takes the next positions, uses what `s` holds of those
before, and adds these. States hold arrays, without a graph.
"""

import npx
from npx import host


class State:
    """Base of the kinds of states. Its parts are the States among its attributes, and those in lists, one a layer."""

    def select(self, rows: npx.Array) -> None:
        """Keep, repeat or reorder rows (NumPy integers), in place: beams that win, sentences that are done."""
        for value in vars(self).values():
            if isinstance(value, State):
                value.select(rows)
            elif isinstance(value, list):
                there = npx.from_host(rows)  # once for all layers
                for part in value:
                    part.select(there)


class Rows(State):
    """Any array with a row for each hypothesis."""

    def __init__(self, array: npx.Array) -> None:
        self.array = array

    def select(self, rows: npx.Array) -> None:
        self.array = self.array[npx.from_host(rows)]


BLOCK = 16  # positions that move together


class KeysValues(State):
    """Keys (R, capacity, H, d_k) and values (R, capacity, H, d_v) of the `length` positions seen so far.

    Rows that were one row once are alike up to where they parted: on the host only what comes after is copied from one
    to the other, which for many long hypotheses is far less than all. `stamps` (R, length) tells: two rows whose
    numbers are equal at a position are alike up to there. On a GPU, which copies sooner than it is told what, None.
    """

    def __init__(self, keys: npx.Array, values: npx.Array, length: int) -> None:
        self.keys, self.values, self.length = keys, values, length
        self.stamps: npx.Array | None = None
        self.last_stamp = 0
        if isinstance(keys, host.ndarray):
            self.stamps = host.zeros((len(keys), 0), host.int64)
            self._stamp(length)

    def _stamp(self, positions: int) -> None:
        """Note that every row has got so many positions of its own."""
        assert self.stamps is not None
        new = host.arange(self.last_stamp, self.last_stamp + len(self.stamps))
        self.stamps = host.concatenate([self.stamps, host.repeat(new[:, None], positions, axis=1)], axis=1)
        self.last_stamp += len(new)

    def extend(self, k: npx.Array, v: npx.Array) -> tuple[npx.Array, npx.Array]:
        """Add positions (R, T, H, d); returns those of all positions. The room doubles when it is full."""
        start, self.length = self.length, self.length + k.shape[1]
        if self.length > self.keys.shape[1]:
            room = max(self.length - start, self.keys.shape[1])
            self.keys, self.values = (
                npx.concatenate([x, npx.empty((len(x), room, *x.shape[2:]), x.dtype)], axis=1)
                for x in (self.keys, self.values)
            )
        self.keys[:, start : self.length], self.values[:, start : self.length] = k, v
        if self.stamps is not None:
            self._stamp(k.shape[1])
        return self.keys[:, : self.length], self.values[:, : self.length]

    def select(self, rows: npx.Array) -> None:
        rows = npx.from_host(rows)
        before = self.stamps
        if before is not None:
            self.stamps = before[rows]
        if before is not None and len(rows) <= len(before):
            others = self.stamps != before[: len(rows)]  # (R, T)
            parted = host.concatenate([others, host.ones((len(rows), 1), bool)], axis=1).argmax(axis=1)  # (R,)
            for start in range(0, self.length, BLOCK):
                end = min(start + BLOCK, self.length)
                to = host.flatnonzero(parted < end)
                for x in (self.keys, self.values):
                    x[to, start:end] = x[rows[to], start:end]
            self.keys, self.values = self.keys[: len(rows)], self.values[: len(rows)]
            return
        for name in ("keys", "values"):
            x = getattr(self, name)
            after = npx.empty((len(rows), *x.shape[1:]), x.dtype)
            after[:, : self.length] = x[rows, : self.length]  # the room for later positions is not copied
            setattr(self, name, after)


class Shared(State):
    """Base of a state whose parts have one row for a source, of which several hypotheses have the same.

    Neighbouring rows with the same source share its row where every source has equally many rows, which is how beam
    search keeps them. Which row has which source is kept on the host.
    """

    def __init__(self, n_sources: int) -> None:
        self.n_sources = n_sources
        self.sources = host.arange(n_sources)  # (R,) the source of each row

    def select(self, rows: npx.Array) -> None:
        self.sources = self.sources[rows]
        kept, sources = host.unique(self.sources, return_inverse=True)
        each = len(sources) // max(1, len(kept))
        if not host.array_equal(sources, host.repeat(host.arange(len(kept)), each)):
            kept, sources = self.sources, host.arange(len(rows))  # rows in no such order: one copy for each
        if not host.array_equal(kept, host.arange(self.n_sources)):
            super().select(kept)
        self.sources, self.n_sources = sources, len(kept)
