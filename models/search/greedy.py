"""Greedy search: the most probable token at every step."""

from typing import Any

from models.module import evaluation_mode
from models.search.protocol import Hypothesis, SearchModel, prepare, top_continuations
from npx import host


def greedy_search(model: SearchModel, src_ids: Any, *, max_extra: int = 50) -> list[Hypothesis]:
    """Choose the most probable token at every step, until EOS or the length limit.

    Args:
        model: a Transformer, or any SearchModel.
        src_ids: (B, S), each row tokens, EOS, padding.
        max_extra: |Y|, EOS included, is at most the number of source tokens plus this. Default 50.

    Returns one hypothesis per sentence, whose `score` is its log-probability. Raises ValueError for an invalid argument
    and FloatingPointError for NaN in the logits.
    """
    src_ids, limits = prepare(model, src_ids, max_extra)
    if not len(src_ids):
        return []
    config = model.config
    sentences = host.arange(len(src_ids))  # (R,) the sentence of each row
    output = host.zeros((len(src_ids), limits.max()), host.int64)
    log_probability, finished = host.zeros(len(src_ids)), host.zeros(len(src_ids), bool)
    with evaluation_mode(model):
        tokens, state = model.start(src_ids)
        for length in range(1, limits.max() + 1):
            logits = model.step(tokens, state)  # (R, V)
            values, ids = top_continuations(logits, 1, config, length)
            tokens = output[sentences, length - 1] = ids[:, 0]
            log_probability[sentences] += values[:, 0]
            ended = tokens == config.eos_id
            finished[sentences[ended]] = True
            live = host.flatnonzero(~ended & (limits[sentences] > length))
            if not live.size:
                break
            if live.size < sentences.size:
                sentences, tokens = sentences[live], tokens[live]
                state.select(live)
    ends = host.where(finished, (output == config.eos_id).argmax(axis=1), limits)
    return [
        Hypothesis(tokens[:end].tolist(), float(log_p), float(log_p), bool(done))
        for tokens, end, log_p, done in zip(output, ends, log_probability, finished, strict=True)
    ]
