"""Alignments of output tokens to source tokens, from cross-attention."""

from collections.abc import Sequence
from typing import Any

from models.search.ensemble import Ensemble
from npx import host


def align(model: Any, src_ids: Any, outputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each token of each output, the position of the source token that it is aligned to.

    A token is aligned to the source token with the greatest cross-attention weight, EOS excluded, in the mean over the
    heads of one layer (`alignment_layer`).

    Args:
        model: a Transformer, or an Ensemble of them, whose mean weights count.
        src_ids: (B, S), each row at least one token, EOS, padding.
        outputs: B lists of ids without BOS and EOS.
    """
    config = model.config
    src_ids = host.asarray(src_ids)
    inputs = host.full((len(outputs), max(map(len, outputs), default=0) + 1), config.pad_id)
    for row, output in zip(inputs, outputs, strict=True):
        row[: len(output) + 1] = [config.bos_id, *output]
    members = model.members if isinstance(model, Ensemble) else [model]
    weights = sum(cross_attention(member, src_ids, inputs) for member in members)  # (B, T + 1, S)
    is_token = (src_ids != config.pad_id) & (src_ids != config.eos_id)
    best = host.where(is_token[:, None], weights, -host.inf).argmax(axis=2)
    return [row[1 : len(output) + 1].tolist() for row, output in zip(best, outputs, strict=True)]


def cross_attention(model: Any, src_ids: Any, inputs: Any) -> Any:
    """Return the cross-attention weights (B, T, S) of the alignment layer, averaged over its heads, on the host."""
    maps = model.inspect(src_ids, inputs, ("cross",)).maps["cross"]
    return maps[alignment_layer(len(maps))].mean(axis=1)


def alignment_layer(n_layers: int) -> int:
    """Return the layer whose cross-attention is used: the one in the middle."""
    return (n_layers - 1) // 2
