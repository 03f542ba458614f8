"""The interface between search and models, and the code that the search algorithms share.

All live hypotheses of all sentences are the rows of one flat batch. One step of the model computes the next-token
logits of every row. The logits stay on the model's device, where each row is reduced to its most probable tokens. These
few values and the bookkeeping of the search are on the host.

Dimensions: `B` sentences, `S` source length, `R` live rows, `V` vocabulary, `K` beam size.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import npx
from autograd.operation_checks import host_ids
from models.cache import DecodingState
from models.config import TransformerConfig
from npx import host  # NumPy, for arrays that stay on the CPU
from npx.ranges import Range, is_inside

LENGTH_PENALTY_TYPES = ("paper", "length")
LENGTH_PENALTY_RANGE = Range(float, "[-10, 10]")  # exponents of the length penalty; negative ones favor short outputs
CANDIDATE_RULES = ("plain", "tensor2tensor", "transformers", "fairseq")


class SearchModel(Protocol):
    """The interface that a model offers to search. The R rows of a state are hypotheses; at first, one per source."""

    config: TransformerConfig

    @property
    def training(self) -> bool: ...

    def train(self, mode: bool = True) -> Any: ...

    def start_decoding(self, src_ids: npx.Array) -> tuple[npx.Array, DecodingState]:
        """Return the first tokens (R,), NumPy integers, and the decoding state, for source ids (B, S)."""

    def step(self, tokens: npx.Array, state: Any) -> npx.Array:
        """Append `tokens` (R,), one per row, to the state; return the logits (R, V) of the next tokens."""

    def length_limits(self, src_ids: npx.Array, max_extra_tokens: int) -> npx.Array:
        """Return the maximum number of tokens (B,), EOS included, that search may generate for each source."""


@dataclass
class Hypothesis:
    """One output sequence.

    Attributes:
        tokens: ids without BOS and EOS.
        log_probability: sum over tokens and EOS, in nats.
        score: log_probability divided by score_divisor(|Y|); hypotheses are ranked by their scores.
        finished: False if the output was cut off at the length limit; EOS then counts neither in log_probability nor in
            |Y|.
        token_log_probabilities: the terms of log_probability.
    """

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool
    token_log_probabilities: list[float]


def score_divisor(length: Any, length_penalty: float, length_penalty_type: str = "paper") -> Any:
    """Return the number by which the log-probability of an output Y is divided to compute its score.

    Args:
        length: |Y| >= 1, EOS included; a number or an array.
        length_penalty: the exponent alpha; 0.6 in section 6.1 of the paper.
        length_penalty_type: "paper" for ((5 + |Y|) / 6)^alpha (Wu et al., 2016, equation 14), or "length" for
            |Y|^alpha (fairseq, Marian).
    """
    base = (5.0 + length) / 6.0 if length_penalty_type == "paper" else 1.0 * length
    return base**length_penalty


def check_search(
    *,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    length_penalty_type: str = "paper",
    max_extra_tokens: int = 50,
    n_best: int = 1,
    candidate_rule: str = "plain",
) -> None:
    """Raise ValueError, naming the option, for invalid options of a search."""
    for name, value in (("beam_size", beam_size), ("max_extra_tokens", max_extra_tokens), ("n_best", n_best)):
        check_integer(name, value, 1)
    if n_best > beam_size:
        raise ValueError(f"n_best: expected at most the beam size, {beam_size}; got {n_best}; try beam_size={n_best}")
    if not is_inside(LENGTH_PENALTY_RANGE.interval, length_penalty):
        expected = LENGTH_PENALTY_RANGE.describe()
        raise ValueError(f"length_penalty: expected {expected}; got {length_penalty}; try 0.6, as in the paper")
    for name, choice, choices in (
        ("length_penalty_type", length_penalty_type, LENGTH_PENALTY_TYPES),
        ("candidate_rule", candidate_rule, CANDIDATE_RULES),
    ):
        if choice not in choices:
            raise ValueError(f"{name}: expected one of {', '.join(choices)}; got {choice!r}; try {choices[0]!r}")


def check_integer(name: str, value: Any, minimum: int) -> None:
    """Raise ValueError, naming the option, unless `value` is an integer (2.0 is not) of at least `minimum`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}: expected a whole number >= {minimum}; got {value!r}")


def excluded_ids(config: TransformerConfig) -> tuple[int, ...]:
    """Return the ids that a search never chooses, each once."""
    return tuple(dict.fromkeys((config.pad_id, config.bos_id, *config.suppressed_ids)))


def top_continuations(
    logits: npx.Array, k: int, config: TransformerConfig, position: int
) -> tuple[npx.Array, npx.Array]:
    """Return the log-probabilities (R, k) and ids (R, k) of the k most probable next tokens of every row, on the host.

    PAD, BOS and `config.suppressed_ids` keep their probability but are never chosen. Raises FloatingPointError for NaN
    or infinite logits.
    """
    if logits.dtype.itemsize < 4:
        logits = logits.astype(npx.float32)
    log_probs, ids = npx.log_softmax_top_k(logits, k, excluded_ids(config))
    log_probs = npx.to_host(log_probs).astype(host.float64)
    if not (log_probs[:, 0] > -host.inf).all():
        raise FloatingPointError(f"search: expected finite logits; got NaN or infinity at output position {position}")
    return log_probs, npx.to_host(ids)


def prepare_search(
    model: SearchModel, src_ids: Any, max_extra_tokens: int, **options: Any
) -> tuple[npx.Array, npx.Array]:
    """Check the options of a search, and return source ids (B, S) and the maximum |Y| of each source (B,), on the host.

    Raises ValueError for invalid options or ids.
    """
    check_search(max_extra_tokens=max_extra_tokens, **options)
    src_ids = host_ids("source ids", src_ids)
    return src_ids, npx.to_host(model.length_limits(src_ids, max_extra_tokens))
