"""Floating-point operations of a training update, counted from the shapes of a model.

Each token that passes through a weight matrix costs one multiplication and one addition (a MAC, multiply-accumulate)
per weight in the forward pass, and twice as many in the backward pass. Attention adds the matmuls q k^T and p v, whose
cost per query grows with the number of keys. Softmax, norms, activations and the optimizer are not counted.
"""

from collections.abc import Callable, Iterable
from typing import Any

from models.layers.experts import Experts
from models.layers.score_bias import ScoreBias
from models.module import Module

FLOPS_PER_MAC = 6.0  # a multiplication and an addition: once in the forward pass, twice in the backward pass


def training_flops(model: Any, source_tokens: int, target_tokens: int, length: int) -> float:
    """Return the number of floating-point operations of one update.

    Args:
        model: a model; its parameters need no values (`TransformerConfig.build_abstract`).
        source_tokens, target_tokens: the numbers of tokens or, for an encoder, of text tokens and labels.
        length: number of tokens in a typical sequence, for attention.

    Raises ValueError for an architecture without a formula.
    """
    architecture = model.config.architecture
    if architecture not in FORMULAS:
        raise ValueError(f"training_flops: expected architecture {', '.join(FORMULAS)}; got {architecture!r}")
    return FLOPS_PER_MAC * FORMULAS[architecture](model, source_tokens, target_tokens, length)


def weight_macs(*modules: Module) -> int:
    """Return the number of MACs per token in the matrices and score biases of `modules`."""
    biases = [part for module in modules for part in module.modules() if isinstance(part, ScoreBias)]
    tables = sum(p.size for bias in biases for p in bias.parameters())  # embeddings are looked up, not multiplied
    matrices = sum(p.size for module in modules for p in module.parameters() if p.ndim == 2)
    for mixture in (part for module in modules for part in module.modules() if isinstance(part, Experts)):
        n = len(mixture.experts)
        matrices -= weight_macs(*mixture.experts) * (n - mixture.experts_per_token) // n
    return matrices - tables + sum(bias.macs for bias in biases)


def attention_macs(layers: Iterable[Any], length: int) -> int:
    """Return the number of MACs per query in q k^T and p v, summed over these attention layers."""
    return sum(a.n_heads * (a.d_k + a.d_v) * min(length, getattr(a, "window", length)) for a in layers)


def encoder_decoder_macs(model: Any, source_tokens: int, target_tokens: int, length: int) -> int:
    """Return the number of MACs in a forward pass of an encoder-decoder."""
    layers = model.attention_layers()
    memory_projections = weight_macs(*(a.key_value for a in layers["cross"]))  # applied to source tokens
    source = weight_macs(*model.encoder) + memory_projections + attention_macs(layers["encoder"], length)
    target = weight_macs(*model.decoder) + model.output_projection.size - memory_projections
    target += attention_macs([*layers["decoder"], *layers["cross"]], length)
    return round(source_tokens * model.expansion) * source + target_tokens * target


def decoder_macs(model: Any, source_tokens: int, target_tokens: int, length: int) -> int:
    """Return the number of MACs in a forward pass of a language model."""
    weights = weight_macs(*model.layers, model.embedding)
    attention = attention_macs([layer.attention for layer in model.layers], length)
    return (source_tokens + target_tokens) * (weights + attention)


def encoder_macs(model: Any, source_tokens: int, target_tokens: int, length: int) -> int:
    """Return the number of MACs in a forward pass of an encoder.

    Only predicted positions reach the output projection. The pooler, which reads one token of a text, is not counted.
    """
    attention = attention_macs([layer.attention for layer in model.layers], length)
    output = model.output_projection.size + (weight_macs(model.output_transform) if model.output_transform else 0)
    return source_tokens * (weight_macs(*model.layers) + attention) + target_tokens * output


FORMULAS: dict[str, Callable[[Any, int, int, int], int]] = {
    **dict.fromkeys(("encoder_decoder", "rnn", "convs2s", "bytenet"), encoder_decoder_macs),
    "decoder": decoder_macs,
    "encoder": encoder_macs,
}
