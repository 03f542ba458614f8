"""Search for the best outputs that begin with given tokens."""

from collections.abc import Sequence
from typing import Any

from models.cache import DecodingState
from models.search.protocol import SearchModel, excluded_ids
from npx import Array, from_host, host, to_host  # host is NumPy, for arrays that stay on the CPU


class PrefixConstrainedModel:
    """A SearchModel that makes the hypotheses of `model` begin with the token ids `prefixes`, one list for each source.

    The log-probabilities are the model's own: forcing a token does not raise its probability to 1. A source with an
    empty prefix is unconstrained. The length limit leaves room for one token after the prefix.

    Raises ValueError for an id that a search never chooses, and for EOS before the end of a prefix.
    """

    def __init__(self, model: Any, prefixes: Sequence[Sequence[int]]) -> None:
        self.model: SearchModel = model
        self.config = model.config
        self.lengths = host.array([len(prefix) for prefix in prefixes], host.int64)  # (B,)
        self.prefixes = host.zeros((len(prefixes), self.lengths.max(initial=0)), host.int64)
        excluded = {*excluded_ids(self.config)}
        for row, prefix in zip(self.prefixes, prefixes, strict=True):
            for i, token in enumerate(prefix, 1):
                is_early_end = token == self.config.eos_id and i < len(prefix)
                if token in excluded or is_early_end or not 0 <= token < self.config.resolved_n_outputs:
                    expected = "ids that a search can choose, with EOS only at the end"
                    raise ValueError(f"prefixes: expected {expected}; got {token}; try other tokens")
            row[: len(prefix)] = prefix

    @property
    def training(self) -> bool:
        return self.model.training

    def train(self, mode: bool = True) -> Any:
        return self.model.train(mode)

    def modules(self) -> Any:
        return getattr(self.model, "modules", tuple)()

    def length_limits(self, src_ids: Array, max_extra_tokens: int) -> Array:
        return host.maximum(self.model.length_limits(src_ids, max_extra_tokens), self.lengths + 1)

    def start_decoding(self, src_ids: Array) -> tuple[Array, "PrefixState"]:
        tokens, state = self.model.start_decoding(src_ids)
        return tokens, PrefixState(state, host.arange(len(tokens)))

    def step(self, tokens: Array, state: "PrefixState") -> Array:
        logits = self.model.step(tokens, state.inner)
        position = state.length
        state.length += 1
        rows = host.flatnonzero(self.lengths[state.sources] > position)
        if not rows.size:
            return logits
        token = self.prefixes[state.sources[rows], position]
        logits = to_host(logits).astype(host.result_type(logits.dtype, host.float32))  # (R, V), a copy
        z = logits[rows].astype(host.float64)
        z -= z.max(axis=1, keepdims=True)
        forced = host.take_along_axis(z, token[:, None], axis=1)[:, 0]
        others = host.exp(z).sum(axis=1) - host.exp(forced)
        logits[rows] = -host.inf
        logits[rows, token] = forced
        with host.errstate(divide="ignore"):
            # The probability of all other tokens goes to padding, which a search never chooses.
            logits[rows, self.config.pad_id] = host.log(host.maximum(others, 0))
        return from_host(logits)


class PrefixState(DecodingState):
    """The state `inner` of the model, the source of each row, and the number `length` of tokens so far."""

    def __init__(self, inner: Any, sources: Any) -> None:
        self.inner, self.sources = inner, sources
        self.length = 0

    def select(self, rows: Array) -> None:
        self.inner.select(rows)
        self.sources = self.sources[rows]
