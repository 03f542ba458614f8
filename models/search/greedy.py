"""Greedy search: the most probable token at every step."""

from typing import Any

from models.modes import evaluating
from models.search.protocol import Hypothesis, SearchModel, begin, continuations
from npx import host


def greedy_search(model: SearchModel, src: Any, *, max_extra: int = 50) -> list[Hypothesis]:
    """The most probable token at every step, until EOS or the length limit.

    `src` (B, S) are source ids, each row tokens, EOS, padding. |Y|, EOS counted, is at most the number of source
    tokens + `max_extra`. `score` is the log-probability. Raises ValueError for a bad argument.
    """
    src, limits = begin(model, src, max_extra)
    if not len(src):
        return []
    config = model.config
    rows = host.arange(len(src))  # which sentence a row of the batch belongs to
    output = host.zeros((len(src), limits.max()), host.int64)
    log_probability, finished = host.zeros(len(src)), host.zeros(len(src), bool)
    with evaluating(model):
        tokens, state = model.start(src)
        for length in range(1, limits.max() + 1):
            logits = model.step(tokens, state)  # (R, V)
            values, ids = continuations(logits, 1, config, length)
            tokens = output[rows, length - 1] = ids[:, 0]
            log_probability[rows] += values[:, 0]
            ended = tokens == config.eos_id
            finished[rows[ended]] = True
            stay = host.flatnonzero(~ended & (limits[rows] > length))
            if not stay.size:
                break
            if stay.size < rows.size:
                rows, tokens = rows[stay], tokens[stay]
                state.select(stay)
    ends = host.where(finished, (output == config.eos_id).argmax(axis=1), limits)
    return [
        Hypothesis(tokens[:end].tolist(), float(log_p), float(log_p), bool(done))
        for tokens, end, log_p, done in zip(output, ends, log_probability, finished, strict=True)
    ]
