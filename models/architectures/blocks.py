"""What architectures are stacked from: blocks whose parts the configuration names, between one matrix at both ends."""

from collections.abc import Callable
from typing import Any, TypeVar

import npx
from autograd import Tensor, neural, no_grad
from models.cache import KeysValues
from models.config import TransformerConfig
from models.layers.attention import Attention, CrossAttention, SelfAttention
from models.layers.basic import Dropout, Embedding
from models.layers.feed_forward import FeedForward
from models.layers.norm import Norm, Residual
from models.layers.positions import Positions
from models.module import Module
from models.registry import NORMS, POSITIONS

A = TypeVar("A", bound=Attention)


class Layer(Module):
    """Base of what architectures stack: the part that is recomputed as a whole (`SequenceModel.recompute`)."""


class EncoderLayer(Layer):
    """Self-attention and feed-forward, each inside a residual connection. (B, S, D) -> (B, S, D), or packed (N, D)."""

    def __init__(self, c: TransformerConfig) -> None:
        self.attention = attention(SelfAttention, c, POSITIONS[c.positions].rotary)
        self.attention_residual = residual(c)
        self.feed_forward = FeedForward(c.d_model, c.d_ff, c.activation_dropout, c.activation)
        self.feed_forward_residual = residual(c)

    def forward(self, x: Tensor, spec: npx.AttentionSpec, state: KeysValues | None = None) -> Tensor:
        x = self.attention_residual(x, lambda y: self.attention(y, spec, state))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(Layer):
    """Causal self-attention, attention to the encoder's output, feed-forward. (B, T, D) -> (B, T, D), or (N, D)."""

    def __init__(self, c: TransformerConfig) -> None:
        self.attention = attention(SelfAttention, c, POSITIONS[c.positions].rotary)
        self.attention_residual = residual(c)
        self.cross_attention = attention(CrossAttention, c)
        self.cross_attention_residual = residual(c)
        self.feed_forward = FeedForward(c.d_model, c.d_ff, c.activation_dropout, c.activation)
        self.feed_forward_residual = residual(c)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        source: npx.AttentionSpec,
        own: KeysValues | None = None,
        cross: KeysValues | None = None,
    ) -> Tensor:
        """source: what of the memory may be attended to, and how x is packed; own, cross: the attentions' states."""
        x = self.attention_residual(x, lambda y: self.attention(y, causal(y, source.q_packing), own))
        x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, memory, source, cross))
        return self.feed_forward_residual(x, self.feed_forward)


def causal(x: Tensor, packing: npx.Packing | None = None) -> npx.AttentionSpec:
    """No position of x (B, T, D), or packed (N, D), attends to a later one; where T is 1 there is none."""
    return npx.AttentionSpec(causal=bool(packing) or x.shape[1] > 1, q_packing=packing, kv_packing=packing)


def attention(kind: type[A], c: TransformerConfig, rotary: float | None = None) -> A:
    """An attention as the configuration says."""
    sizes = c.d_model, c.n_heads, c.d_k, c.d_v
    return kind(*sizes, bias=c.attention_bias, dropout=c.attention_dropout, rotary=rotary, gain=c.attention_gain)


def residual(c: TransformerConfig) -> Residual:
    """A residual connection as the configuration says."""
    return Residual(c.d_model, c.dropout, c.norm, c.layer_norm_eps, c.normalization)


def last_norm(c: TransformerConfig) -> Norm | None:
    """Pre-norm leaves the last layer's sum unnormalised, so a stack ends in a norm of its own."""
    return NORMS[c.normalization](c.d_model, c.layer_norm_eps) if c.norm == "pre" else None


def matrices(*modules: Module) -> int:
    """Numbers in the matrices of `modules`: multiplications for each position that passes them."""
    return sum(p.size for module in modules for p in module.parameters() if p.ndim == 2)


def divisor(normalizer: float | None, real: npx.Array) -> float:
    """What a loss summed over the targets that are `real` is divided by: their number, at least 1, unless given.

    ValueError for one that is not above 0.
    """
    if normalizer is None:
        return max(1, int(real.sum()))
    if not 0 < normalizer < float("inf"):
        raise ValueError(f"loss: expected a normalizer above 0; got {normalizer}; try the number of target tokens")
    return normalizer


class SequenceModel(Module):
    """Base of the architectures, in which one matrix is embedding and output projection (paper section 3.4).

    Ids are NumPy integer arrays; sequences are padded at their end with `config.pad_id`. ValueError for ids that are
    none. `examples`: what its `loss` learns from, "pairs" of sequences or "text" alone. Subclasses define
    `build(config)`, which makes the layers, and `following(ids, state)`: the last layer's output for the next ids.
    """

    examples: str
    build: Callable[[TransformerConfig], None]
    following: Callable[[npx.Array, Any], Tensor]

    def __init__(self, config: TransformerConfig, seed: int = 0, dtype: Any = npx.float32) -> None:
        self.config, self.dropout = config, Dropout(config.dropout)
        with npx.keyed(seed, 0):
            self.embedding = Embedding(config.vocab_size, config.d_model, config.pad_id, config.embedding_init)
            self.build(config)
        for p in self.parameters():
            p.data = p.data.astype(dtype, copy=False)

    def positions(self) -> Positions:
        """Positions as the configuration says."""
        return POSITIONS[self.config.positions](self.config.d_model, self.config.max_positions)

    @property
    def longest(self) -> int | None:
        """The most positions a sequence may have; None: no limit."""
        return min((m.longest for m in self.modules() if isinstance(m, Positions) and m.longest), default=None)

    def recompute(self, layers: bool = True) -> None:
        """Keep of each layer only what goes in and out, and form the rest again on the way back."""
        for module in self.modules():
            if isinstance(module, Layer):
                module.gradient_checkpointing = layers

    @property
    def outputs(self) -> Tensor:
        """The rows (V, D) of the embedding that a model writes: all, or the first `config.n_outputs`."""
        n, rows = self.config.n_outputs, self.embedding.weight
        return rows if n is None else rows[:n]

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return neural.linear(hidden, self.outputs.transpose())

    def step(self, tokens: npx.Array, state: Any) -> npx.Array:
        """Logits (R, V), an array, of the token that follows `tokens` (R,); moves the state on by one position."""
        ids = npx.from_host(self.checked("last", tokens[:, None]))
        with no_grad():
            return self.logits(Tensor(self.following(ids, state).data[:, -1])).data

    def cross_entropy(self, hidden: Tensor, targets: npx.Array, smoothing: float, over: str, tokens: float) -> Tensor:
        """The label-smoothed cross entropy () of targets (B, T) that are not padding, divided by `tokens`."""
        how = npx.LabelSmoothing(smoothing, over, self.config.pad_id)
        return neural.linear_cross_entropy(hidden, self.outputs, targets, how) * (1 / float(tokens))

    def checked(self, side: str, ids: Any) -> npx.Array:
        """Ids (B, T) on the host, where checking them makes nobody wait."""
        ids = npx.to_host(ids)
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise ValueError(f"{side} ids: expected a 2-D integer array; got {ids.ndim}-D {ids.dtype}")
        if ids.size and not (0 <= ids.min() and ids.max() < self.config.vocab_size):
            raise ValueError(
                f"{side} ids: expected numbers from 0 to {self.config.vocab_size - 1}; "
                f"got {ids.min()} to {ids.max()}; try the tokenizer that belongs to the model"
            )
        return ids
