"""An ensemble of models, which the search treats as a single model that predicts the mean of their probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import npx
from models.cache import DecodingState


class Ensemble:
    """A SearchModel whose probability of each token is the mean of its members' probabilities.

    p(y) = (1 / M) sum_m p_m(y), computed from log-probabilities.

    Args:
        members: one or more encoder-decoder models with the same vocabulary, of any sizes.

    Raises ValueError without a model, or for models with different vocabularies.
    """

    def __init__(self, members: Sequence[Any]) -> None:
        configs = [member.config for member in members]
        vocabularies = {(c.vocab_size, c.resolved_n_outputs, c.pad_id, c.bos_id, c.eos_id) for c in configs}
        if len(vocabularies) != 1:
            got = f"{len(vocabularies)} vocabularies" if members else "no model"
            raise ValueError(
                f"ensemble: expected models with the same vocabulary; got {got}; try runs with the same tokenizer"
            )
        self.members = list(members)
        suppressed_ids = tuple(sorted({i for c in configs for i in c.suppressed_ids}))  # by any member
        self.config = replace(configs[0], suppressed_ids=suppressed_ids)

    @property
    def training(self) -> bool:
        return any(member.training for member in self.members)

    @property
    def max_length(self) -> int | None:
        """The number of positions that every member supports; None for no limit."""
        return min((member.max_length for member in self.members if member.max_length), default=None)

    def train(self, mode: bool = True) -> "Ensemble":
        for member in self.members:
            member.train(mode)
        return self

    def modules(self) -> Iterator[Any]:
        return chain.from_iterable(member.modules() for member in self.members)

    def length_limits(self, src_ids: npx.Array, max_extra_tokens: int) -> npx.Array:
        return npx.host.min([member.length_limits(src_ids, max_extra_tokens) for member in self.members], axis=0)

    def start_decoding(self, src_ids: npx.Array) -> tuple[npx.Array, "EnsembleState"]:
        tokens, states = zip(*(member.start_decoding(src_ids) for member in self.members), strict=True)
        return tokens[0], EnsembleState(list(states))

    def step(self, tokens: npx.Array, state: "EnsembleState") -> npx.Array:
        """Return the log of the mean probabilities (R, V)."""
        pairs = zip(self.members, state.states, strict=True)
        return log_mean_exp([log_softmax(member.step(tokens, member_state)) for member, member_state in pairs])


class EnsembleState(DecodingState):
    """The state of each member."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states

    def select(self, rows: npx.Array) -> None:
        for state in self.states:
            state.select(rows)


def log_softmax(logits: npx.Array) -> npx.Array:
    """Return log-probabilities (R, V) in float32 or wider."""
    z = logits.astype(npx.result_type(logits.dtype, npx.float32))
    z -= z.max(axis=1, keepdims=True)
    z -= npx.log(npx.exp(z).sum(axis=1, keepdims=True))
    return z


def log_mean_exp(terms: Sequence[npx.Array]) -> npx.Array:
    """Return log((1 / M) sum_m exp(terms[m])) elementwise."""
    peak = terms[0]
    for term in terms[1:]:
        peak = npx.maximum(peak, term)
    return peak + npx.log(sum(npx.exp(term - peak) for term in terms) / len(terms))
