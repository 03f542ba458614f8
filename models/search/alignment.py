"""Alignments of output tokens to source tokens, from cross-attention."""

from collections.abc import Sequence
from typing import Any

from models.search.ensemble import Ensemble
from npx import host  # NumPy, for arrays that stay on the CPU


def align(model: Any, src_ids: Any, outputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each token of each output, the position of the source token to which it is aligned.

    A token is aligned to the source token, other than EOS, that has the greatest cross-attention weight in the step
    that predicts the token. Weights are averaged over the heads of the last layer.

    Args:
        model: a Transformer or an Ensemble; the attention weights of an ensemble's members are averaged.
        src_ids: (B, S), each row with at least one token, EOS, padding.
        outputs: B lists of ids without BOS and EOS.
    """
    config = model.config
    src_ids = host.asarray(src_ids)
    inputs = host.full((len(outputs), max([1, *map(len, outputs)])), config.pad_id)  # (B, T)
    for row, output in zip(inputs, outputs, strict=True):
        row[: max(1, len(output))] = [config.bos_id, *output[:-1]]
    check_alignable(model)
    members = model.members if isinstance(model, Ensemble) else [model]
    maps = [member.inspect(src_ids, inputs, ("cross",)).maps["cross"][-1] for member in members]  # (B, H, T, S) each
    weights = sum(last_layer.mean(axis=1) for last_layer in maps)  # (B, T, S)
    is_token = (src_ids != config.pad_id) & (src_ids != config.eos_id)
    best = host.where(is_token[:, None], weights, -host.inf).argmax(axis=2)
    return [row[: len(output)].tolist() for row, output in zip(best, outputs, strict=True)]


def check_alignable(model: Any) -> None:
    """Raise ValueError for a model, or a member of an Ensemble, without attention to the source."""
    for member in model.members if isinstance(model, Ensemble) else [model]:
        if not member.attention_layers()["cross"]:
            got = f"the architecture {member.config.architecture}, which has none"
            raise ValueError(f"alignments: expected cross-attention to the source; got {got}; try without alignments")
