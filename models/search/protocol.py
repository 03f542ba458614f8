"""What search asks of a model, what it gives, and what its kinds share.

All live hypotheses of all sentences are the rows of one flat batch; one step of the model gives every row its
continuations. The probabilities stay on the model's device, where each row is cut down to its best few; those few, and
the bookkeeping over them, are small and are kept on the host.

Dimensions: `B` sentences, `S` source length, `R` live rows, `V` vocabulary, `K` beam.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import npx
from models.cache import State
from npx import host

PENALTIES = ("paper", "length")


class SearchModel(Protocol):
    """What search asks of a model. R rows are hypotheses, one for each source at the start."""

    config: Any  # pad_id, bos_id, eos_id
    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def start(self, src: npx.Array) -> tuple[npx.Array, State]:
        """The tokens (R,) to begin with, NumPy integers, and the state, for source ids (B, S)."""

    def step(self, tokens: npx.Array, state: Any) -> npx.Array:
        """Logits (R, V) of the token after `tokens` (R,); moves the state on by one position."""

    def limits(self, src: npx.Array, max_extra: int) -> npx.Array:
        """The most tokens (B,) that may be found for each source, EOS counted."""


@dataclass
class Hypothesis:
    """One translation. `tokens` has neither BOS nor EOS; `log_probability` is the sum over tokens and EOS (nats)."""

    tokens: list[int]
    score: float  # log_probability / length_penalty(|Y|); what hypotheses are ranked by
    log_probability: float
    finished: bool  # False: cut off at the length limit, and without EOS in its log-probability and in |Y|


def length_penalty(length: Any, alpha: float, penalty: str = "paper") -> Any:
    """What a log-probability is divided by: "paper" ((5 + |Y|) / 6)^alpha, "length" |Y|^alpha (fairseq, Marian).

    `length` is |Y| >= 1, a number or an array, EOS counted (Wu et al. 2016, equation 14; alpha 0.6 in section 6.1).
    """
    return ((5.0 + length) / 6.0) ** alpha if penalty == "paper" else (1.0 * length) ** alpha


def check_search(
    *, beam: int = 4, alpha: float = 0.6, penalty: str = "paper", max_extra: int = 50, n_best: int = 1
) -> None:
    """Raise ValueError, naming the option, for a search that cannot be."""
    for name, value in (("beam", beam), ("max_extra", max_extra), ("n_best", n_best)):
        check_whole(name, value, 1)
    if n_best > beam:
        raise ValueError(f"n_best: expected at most beam, {beam}; got {n_best}; try a beam of {n_best}")
    if not -10 <= alpha <= 10:
        raise ValueError(f"alpha: expected a number between -10 and 10; got {alpha}; the paper has 0.6")
    if penalty not in PENALTIES:
        raise ValueError(f"penalty: expected one of {', '.join(PENALTIES)}; got {penalty!r}")


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError, naming the option, for what is no whole number of at least `least`: 2.0 counts no rows."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}; got {value!r}")


def continuations(logits: npx.Array, k: int, config: Any, position: int) -> tuple[npx.Array, npx.Array]:
    """The k most probable next tokens of every row: log-probabilities (R, k) and ids (R, k), on the host.

    PAD and BOS have their share of the probability and are never chosen.
    Raises FloatingPointError where a row has no next token (NaN in the model's output).
    """
    if logits.dtype.itemsize < 4:
        logits = logits.astype(npx.float32)
    values, ids = npx.top_k(logits, k, (config.pad_id, config.bos_id))
    values = npx.to_host(values).astype(host.float64)
    if not (values[:, 0] > -host.inf).all():
        raise FloatingPointError(f"search: expected finite logits; got NaN or infinity at output position {position}")
    return values, npx.to_host(ids)


def begin(model: SearchModel, src: Any, max_extra: int, **options: Any) -> tuple[npx.Array, npx.Array]:
    """The source ids (B, S) on the host, and the greatest |Y| of each sentence (B,); ValueError for a bad argument."""
    check_search(max_extra=max_extra, **options)
    src = npx.to_host(src)
    if src.ndim != 2 or src.dtype.kind not in "iu":
        raise ValueError(f"search: expected source ids as a matrix (B, S) of integers; got {src.dtype} {src.shape}")
    return src, npx.to_host(model.limits(src, max_extra))
