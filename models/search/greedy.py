"""Greedy search: the most probable token at every step."""

from typing import Any

import npx
from models.search.protocol import Hypothesis, SearchModel, prepare_search, top_continuations
from models.search.stepwise import decode_stepwise


def greedy_search(model: SearchModel, src_ids: Any, *, max_extra_tokens: int = 50) -> list[Hypothesis]:
    """Choose the most probable token at every step, until EOS or the length limit.

    Args:
        model: a Transformer, or any SearchModel.
        src_ids: (B, S), each row with tokens, EOS, padding.
        max_extra_tokens: an output has at most this many tokens, EOS included, more than its source. Default 50.

    Returns one hypothesis per source, whose `score` is its log-probability. Raises ValueError for an invalid argument
    and FloatingPointError for NaN in the logits.
    """
    src_ids, limits = prepare_search(model, src_ids, max_extra_tokens)
    if not len(src_ids):
        return []

    def choose(logits: npx.Array, rows: npx.Array, position: int) -> tuple[npx.Array, npx.Array]:
        log_probs, ids = top_continuations(logits, 1, model.config, position)
        return ids[:, 0], log_probs[:, 0]

    return decode_stepwise(model, src_ids, limits, choose)
