"""The encoder and decoder layers of the Transformer, and functions that build their parts from a configuration."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import npx
from autograd import Tensor
from models.cache import KeyValueCache
from models.config import TransformerConfig
from models.init import scale_gain
from models.layers.attention import Attention, CrossAttention, SelfAttention
from models.layers.experts import Experts
from models.layers.feed_forward import FeedForward
from models.layers.norm import Norm, Residual, deep_norm_factors
from models.layers.restricted_attention import RestrictedSelfAttention
from models.module import Module
from models.registry import NORMS, POSITIONS

A = TypeVar("A", bound=Attention)
L = TypeVar("L", bound="EncoderLayer | DecoderLayer")


class Layer(Module):
    """Base class of the layers of a stack. Gradient checkpointing recomputes one layer at a time."""


class EncoderLayer(Layer):
    """Self-attention and a feed-forward network, each in a residual connection.

    Args:
        causal: whether the layer is used with a causal mask. The relative positions of T5 depend on it.
    """

    def __init__(self, config: TransformerConfig, causal: bool = False) -> None:
        stack = "encoder" if config.architecture == "encoder_decoder" else "single"
        self.attention = make_self_attention(config, stack, causal)
        self.attention_residual = make_residual(config, stack)
        self.feed_forward = make_feed_forward(config, stack)
        self.feed_forward_residual = make_residual(config, stack)

    def forward(self, x: Tensor, spec: npx.AttentionSpec, cache: KeyValueCache | None = None) -> Tensor:
        """Apply the layer to x (B, S, D), or packed x (R, D). The result has the shape of x.

        Args:
            spec: the mask and the packing of self-attention.
            cache: the keys and values of earlier positions, if any.
        """
        x = self.attention_residual(x, lambda y: self.attention(y, spec, cache))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention and a feed-forward network, each in a residual connection."""

    def __init__(self, config: TransformerConfig) -> None:
        stack = "decoder"
        self.attention = make_self_attention(config, stack, causal=True)
        self.attention_residual = make_residual(config, stack)
        self.cross_attention = make_attention(CrossAttention, config, stack)
        self.cross_attention_residual = make_residual(config, stack)
        self.feed_forward = make_feed_forward(config, stack)
        self.feed_forward_residual = make_residual(config, stack)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        cross_spec: npx.AttentionSpec,
        cache: KeyValueCache | None = None,
        source_cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Apply the layer to x (B, T, D), or packed x (R, D). The result has the shape of x.

        Args:
            memory: the encoder's output (B, S, D), or packed; may be None with `source_cache`.
            cross_spec: the spec of cross-attention, with the packing of x as `q_packing`.
            cache: the keys and values of earlier positions, for self-attention.
            source_cache: the keys and values of the memory, for cross-attention.
        """
        x = self.attention_residual(x, lambda y: self.attention(y, causal_spec(y, cross_spec.q_packing), cache))
        x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, memory, cross_spec, source_cache))
        return self.feed_forward_residual(x, self.feed_forward)

    def new_cache(self, n_rows: int, dtype: Any) -> KeyValueCache:
        """Return an empty cache of target positions for `n_rows` sequences."""
        return self.attention.new_cache(n_rows, dtype)

    def new_source_cache(self, memory: Tensor) -> KeyValueCache:
        """Return a cache with the keys and values of the memory (B, S, D)."""
        return self.cross_attention.new_cache(memory)


def causal_spec(x: Tensor, packing: npx.Packing | None = None) -> npx.AttentionSpec:
    """Return the spec of causal self-attention over x (B, T, D), or packed (R, D). For T = 1 it has no mask."""
    return npx.AttentionSpec(causal=bool(packing) or x.shape[1] > 1, q_packing=packing, kv_packing=packing)


# The functions below build the parts of a layer from the configuration. Their argument `stack` says in which stack the
# layer is: "encoder", "decoder" or "single" (`deep_norm_factors`).


def norm_factors(config: TransformerConfig, stack: str) -> tuple[float, float]:
    """Return DeepNorm's factors on residual connections and on initial weights, or (1, 1) for other norm placements."""
    return deep_norm_factors(stack, config.n_layers) if config.norm_placement == "deepnorm" else (1.0, 1.0)


def make_attention(cls: type[A], config: TransformerConfig, stack: str, **options: Any) -> A:
    """Build an attention layer.

    Args:
        options: the layer's `rotary_base`, `score_bias` and `window`, if any.
    """
    return cls(
        config.d_model,
        config.n_heads,
        config.d_k,
        config.d_v,
        projection_bias=config.attention_bias,
        dropout=config.attention_dropout,
        gain=config.attention_gain,
        n_kv_heads=config.n_kv_heads,
        qk_norm_type=config.norm_type if config.qk_norm else None,
        eps=config.norm_eps,
        deepnorm_beta=norm_factors(config, stack)[1],
        **options,
    )


def make_self_attention(config: TransformerConfig, stack: str, causal: bool) -> SelfAttention:
    """Build a self-attention layer with its relative positions, if any."""
    positions = POSITIONS[config.positions]
    options = {"rotary_base": positions.rotary_base, "score_bias": positions.make_score_bias(config, causal)}
    if config.attention_window is not None:
        return make_attention(RestrictedSelfAttention, config, stack, window=config.attention_window, **options)
    return make_attention(SelfAttention, config, stack, **options)


def make_feed_forward(config: TransformerConfig, stack: str) -> Module:
    """Build a feed-forward network or, if the configuration has experts, a mixture of several networks."""

    def make_expert() -> FeedForward:
        with scale_gain(norm_factors(config, stack)[1]):
            return FeedForward(config.d_model, config.d_ff, config.activation_dropout, config.activation)

    if not config.n_experts:
        return make_expert()
    return Experts(config.d_model, config.n_experts, config.experts_per_token, make_expert)


def make_residual(config: TransformerConfig, stack: str) -> Residual:
    """Build the residual connection around a sub-layer."""
    alpha, _ = norm_factors(config, stack)
    eps, norm_type = config.norm_eps, config.norm_type
    return Residual(config.d_model, config.dropout, config.norm_placement, eps, norm_type, alpha)


def make_layers(make_layer: Callable[[], L], config: TransformerConfig) -> list[L]:
    """Build the layers of a stack, set their skip probabilities, and share relative positions among them if configured.

    The sub-layers of layer l = 1 to N are skipped with probability l/N times `config.stochastic_depth` (Huang et al.,
    2016, equation 4).
    """
    layers = [make_layer() for _ in range(config.n_layers)]
    for depth, layer in enumerate(layers, 1):
        if layer.attention.score_bias and layer.attention.score_bias.is_shared:
            layer.attention.score_bias = layers[0].attention.score_bias
        for module in layer.modules():
            if isinstance(module, Residual):
                module.stochastic_depth.rate = config.stochastic_depth * depth / config.n_layers
    return layers


@contextmanager
def record_attention(attention_layers: Mapping[str, Sequence[Attention]]) -> Iterator[dict[str, list[npx.Array]]]:
    """Yield a dict that records, by kind of attention, the weights (B, H, T, S) of every call within the block.

    The weights are on the host. Hooks that the layers already have are not called within the block, and are restored at
    its end.
    """
    maps: dict[str, list[npx.Array]] = {kind: [] for kind in attention_layers}
    previous_hooks = [(layer, layer.hook) for layers in attention_layers.values() for layer in layers]
    for kind, layers in attention_layers.items():
        for layer in layers:

            def record(*args: Any, kind: str = kind, layer: Any = layer) -> None:
                inputs = [x for x in args if x is not None and not isinstance(x, KeyValueCache)]
                maps[kind].append(npx.to_host(layer.attention_weights(*inputs)))

            layer.hook = record
    try:
        yield maps
    finally:
        for layer, hook in previous_hooks:
            layer.hook = hook


def make_final_norm(config: TransformerConfig) -> Norm | None:
    """Build the norm after the last layer.

    Pre-norm and sandwich norm need one, because their last sum is not normalized.
    """
    return (
        NORMS[config.norm_type](config.d_model, config.norm_eps)
        if config.norm_placement in ("pre", "sandwich")
        else None
    )
