"""Decoding that extends every row by one chosen token at each step: the loop of greedy search and of sampling."""

from collections.abc import Callable
from typing import Any

from models.module import evaluation_mode
from models.search.protocol import Hypothesis, SearchModel
from npx import Array, host  # NumPy, for arrays that stay on the CPU

# (logits (R, V), the row numbers (R,), output position from 1) -> tokens (R,) and their log-probabilities (R,)
ChooseTokens = Callable[[Array, Array, int], tuple[Array, Array]]


def decode_stepwise(
    model: SearchModel, src_ids: Any, limits: Array, choose: ChooseTokens, rows_per_source: int = 1
) -> list[Hypothesis]:
    """Return `rows_per_source` hypotheses for each source (B, S), choosing each token with `choose`.

    A row ends with EOS or at the length limit (B,) of its source. Row r belongs to source r // rows_per_source. The
    score of a hypothesis is its log-probability.
    """
    limits = host.repeat(limits, rows_per_source)
    rows = host.arange(len(limits))
    output = host.zeros((len(rows), limits.max()), host.int64)
    log_probs = host.zeros((len(rows), limits.max()))
    finished = host.zeros(len(rows), bool)
    with evaluation_mode(model):
        tokens, state = model.start_decoding(src_ids)
        if rows_per_source > 1:
            tokens = host.repeat(tokens, rows_per_source)
            state.select(rows // rows_per_source)
        for length in range(1, limits.max() + 1):
            tokens, log_probs[rows, length - 1] = choose(model.step(tokens, state), rows, length)
            output[rows, length - 1] = tokens
            ended = tokens == model.config.eos_id
            finished[rows[ended]] = True
            live = host.flatnonzero(~ended & (limits[rows] > length))
            if not live.size:
                break
            if live.size < rows.size:
                rows, tokens = rows[live], tokens[live]
                state.select(live)
    ends = host.where(finished, (output == model.config.eos_id).argmax(axis=1), limits)
    hypotheses = []
    for ids, terms, end, has_end in zip(output, log_probs, ends, finished.tolist(), strict=True):
        terms = terms[: end + has_end]
        total = float(terms.cumsum()[-1]) if terms.size else 0.0  # summed in the same order as in beam search
        hypotheses.append(Hypothesis(ids[:end].tolist(), total, total, has_end, terms.tolist()))
    return hypotheses
