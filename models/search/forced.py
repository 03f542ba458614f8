"""Forced decoding: the log-probabilities of given outputs, in one pass instead of one per token."""

from collections.abc import Sequence
from typing import Any

import npx
from autograd import Tensor
from models.module import evaluation_mode
from models.search.ensemble import Ensemble, log_mean_exp, log_softmax
from npx import Array, host  # NumPy, for arrays that stay on the CPU

MAX_LOGITS = 1 << 23  # maximum number of logits in memory at a time


def forced_log_probabilities(model: Any, src_ids: Any, outputs: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probability (nats) of each token of each output, EOS included, given the source.

    Args:
        model: a Transformer, or an Ensemble of them.
        src_ids: (B, S), each row with tokens, EOS, padding.
        outputs: B lists of ids without BOS and EOS.

    A search that finds the same tokens gives them the same log-probabilities. Raises ValueError for invalid ids and for
    sequences that are too long, and FloatingPointError if a log-probability is NaN.
    """
    config = model.config
    lengths = host.array([len(output) + 1 for output in outputs], host.int64)  # (B,) EOS included
    tgt_ids = host.full((len(outputs), lengths.max(initial=0) + 1), config.pad_id)  # (B, T + 1)
    for row, output in zip(tgt_ids, outputs, strict=True):
        row[: len(output) + 2] = [config.bos_id, *output, config.eos_id]
    inputs = tgt_ids[:, :-1]
    is_target = host.arange(inputs.shape[1]) < lengths[:, None]  # (B, T)
    targets = tgt_ids[:, 1:][is_target]  # (N,)
    members = model.members if isinstance(model, Ensemble) else [model]
    log_probs = log_mean_exp([_target_log_probs(member, src_ids, inputs, is_target, targets) for member in members])
    if host.isnan(log_probs).any():
        raise FloatingPointError("scoring: expected finite logits; got NaN or infinity")
    return [part.tolist() for part in host.split(log_probs, lengths.cumsum()[:-1])] if len(outputs) else []


def _target_log_probs(model: Any, src_ids: Any, inputs: Array, is_target: Array, targets: Array) -> Array:
    """Return one model's log-probabilities (N,) of the targets (N,), on the host in float64."""
    with evaluation_mode(model):
        hidden = model.decode(inputs, *model.encode(src_ids)).data[npx.from_host(is_target)]  # (N, D)
        n_rows = max(1, MAX_LOGITS // model.config.vocab_size)
        log_probs = []
        for start in range(0, len(targets), n_rows):
            log_p = log_softmax(model.logits(Tensor(hidden[start : start + n_rows])).data)
            ids = npx.from_host(targets[start : start + n_rows, None])
            log_probs.append(npx.to_host(npx.take_along_axis(log_p, ids, axis=1))[:, 0].astype(host.float64))
    return host.concatenate(log_probs or [host.zeros(0)])
