"""The parts that architectures share: encoder and decoder layers, and the base class with its tied embedding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import npx
from autograd import Tensor, checkpoint, neural, no_grad
from autograd import operations as ops
from autograd.contract import check_ids
from autograd.operations import concatenate
from models.cache import KeyValueCache
from models.config import TransformerConfig
from models.init import full, scaled, scheme
from models.layers.attention import Attention, CrossAttention, SelfAttention
from models.layers.basic import Dropout, Embedding
from models.layers.experts import Experts, collect_balance_losses
from models.layers.feed_forward import FeedForward
from models.layers.norm import Norm, Residual, deep_norm_factors
from models.layers.positions import Positions, Sinusoids, Start
from models.layers.restricted_attention import RestrictedSelfAttention
from models.module import Module, Parameter
from models.registry import NORMS, POSITIONS

A = TypeVar("A", bound=Attention)
L = TypeVar("L", bound="EncoderLayer | DecoderLayer")
DIVERGENCE_CHUNK = 1 << 22  # maximum number of logits in memory at a time, in each array of R-Drop's divergence


class Layer(Module):
    """Base class of the layers of a stack: the unit of gradient checkpointing."""


class EncoderLayer(Layer):
    """Self-attention and feed-forward network, each in a residual connection. (B, S, D) -> (B, S, D), or packed (R, D).

    `forward(x, spec, cache)`: `spec` defines the mask and the packing; `cache` holds earlier positions, if any.

    Args:
        causal: whether the layer is used with a causal mask, on which the relative positions depend.
    """

    def __init__(self, c: TransformerConfig, causal: bool = False) -> None:
        stack = "encoder" if c.architecture == "encoder_decoder" else "single"
        self.attention = make_self_attention(c, stack, causal)
        self.attention_residual = make_residual(c, stack)
        self.feed_forward = make_feed_forward(c, stack)
        self.feed_forward_residual = make_residual(c, stack)

    def forward(self, x: Tensor, spec: npx.AttentionSpec, cache: KeyValueCache | None = None) -> Tensor:
        x = self.attention_residual(x, lambda y: self.attention(y, spec, cache))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention, feed-forward network. (B, T, D) -> (B, T, D), or packed (R, D).

    `forward(x, memory, spec, self_cache, cross_cache)`: `spec` defines the mask of the memory and the packing of x.
    `memory` may be None if `cross_cache` holds its keys and values.
    """

    def __init__(self, c: TransformerConfig) -> None:
        stack = "decoder"
        self.attention = make_self_attention(c, stack, causal=True)
        self.attention_residual = make_residual(c, stack)
        self.cross_attention = make_attention(CrossAttention, c, stack)
        self.cross_attention_residual = make_residual(c, stack)
        self.feed_forward = make_feed_forward(c, stack)
        self.feed_forward_residual = make_residual(c, stack)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        spec: npx.AttentionSpec,
        self_cache: KeyValueCache | None = None,
        cross_cache: KeyValueCache | None = None,
    ) -> Tensor:
        x = self.attention_residual(x, lambda y: self.attention(y, causal_spec(y, spec.q_packing), self_cache))
        x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, memory, spec, cross_cache))
        return self.feed_forward_residual(x, self.feed_forward)

    def new_cache(self, rows: int, dtype: Any) -> KeyValueCache:
        """Return an empty cache of target positions for `rows` sequences."""
        return self.attention.new_cache(rows, dtype)

    def new_source_cache(self, memory: Tensor) -> KeyValueCache:
        """Return the keys and values of the memory (B, S, D)."""
        return self.cross_attention.new_cache(memory)


def causal_spec(x: Tensor, packing: npx.Packing | None = None) -> npx.AttentionSpec:
    """Return the spec of causal self-attention over x (B, T, D), or packed (R, D); with T = 1 it needs no mask."""
    return npx.AttentionSpec(causal=bool(packing) or x.shape[1] > 1, q_packing=packing, kv_packing=packing)


# The functions below build the parts of a layer from the configuration. `stack`: see `deep_norm_factors`.


def norm_factors(c: TransformerConfig, stack: str) -> tuple[float, float]:
    """Return two factors: one for residual connections and one for the initialization of sub-layers."""
    return deep_norm_factors(stack, c.n_layers) if c.norm == "deepnorm" else (1.0, 1.0)


def make_attention(cls: type[A], c: TransformerConfig, stack: str, **options: Any) -> A:
    """Build an attention layer.

    Args:
        options: the layer's `rotary_base`, `score_bias` and `window`, if any.
    """
    return cls(
        *(c.d_model, c.n_heads, c.d_k, c.d_v),
        bias=c.attention_bias,
        dropout=c.attention_dropout,
        gain=c.attention_gain,
        n_kv_heads=c.n_kv_heads,
        qk_norm=c.normalization if c.qk_norm else None,
        eps=c.layer_norm_eps,
        value_gain=norm_factors(c, stack)[1],
        **options,
    )


def make_self_attention(c: TransformerConfig, stack: str, causal: bool) -> SelfAttention:
    """Build a self-attention layer with its relative positions, if any."""
    positions = POSITIONS[c.positions]
    options = {"rotary_base": positions.rotary_base, "score_bias": positions.make_score_bias(c, causal)}
    if c.attention_window is not None:
        return make_attention(RestrictedSelfAttention, c, stack, window=c.attention_window, **options)
    return make_attention(SelfAttention, c, stack, **options)


def make_feed_forward(c: TransformerConfig, stack: str) -> Module:
    """Build a feed-forward network, or a mixture of several."""

    def make_expert() -> FeedForward:
        with scaled(norm_factors(c, stack)[1]):
            return FeedForward(c.d_model, c.d_ff, c.activation_dropout, c.activation)

    return Experts(c.d_model, c.n_experts, c.experts_per_token, make_expert) if c.n_experts else make_expert()


def make_residual(c: TransformerConfig, stack: str) -> Residual:
    """Build a residual connection."""
    alpha, _ = norm_factors(c, stack)
    return Residual(c.d_model, c.dropout, c.norm, c.layer_norm_eps, c.normalization, alpha)


def make_layers(make_layer: Callable[[], L], c: TransformerConfig) -> list[L]:
    """Build the layers of a stack, set their skip probabilities, and share relative positions among them if configured.

    The sub-layers of layer l = 1 to N are skipped with probability l/N times `c.stochastic_depth` (Huang et al., 2016,
    equation 4).
    """
    layers = [make_layer() for _ in range(c.n_layers)]
    for depth, layer in enumerate(layers, 1):
        if layer.attention.score_bias and layer.attention.score_bias.is_shared:
            layer.attention.score_bias = layers[0].attention.score_bias
        for module in layer.modules():
            if isinstance(module, Residual):
                module.skip.rate = c.stochastic_depth * depth / c.n_layers
    return layers


@contextmanager
def record_weights(attentions: Mapping[str, Sequence[Attention]]) -> Iterator[dict[str, list[npx.Array]]]:
    """Record on the host, by kind of attention, the attention weights (B, H, T, S) of every call within the block.

    The layers' own hooks are not called; they are restored at the end.
    """
    maps: dict[str, list[npx.Array]] = {kind: [] for kind in attentions}
    previous_hooks = [(layer, layer.hook) for layers in attentions.values() for layer in layers]
    for kind, layers in attentions.items():
        for layer in layers:

            def record(*args: Any, kind: str = kind, layer: Any = layer) -> None:
                inputs = [x for x in args if x is not None and not isinstance(x, KeyValueCache)]
                maps[kind].append(npx.to_host(layer.weights(*inputs)))

            layer.hook = record
    try:
        yield maps
    finally:
        for layer, hook in previous_hooks:
            layer.hook = hook


def make_final_norm(c: TransformerConfig) -> Norm | None:
    """Build the norm after the last layer.

    Pre-norm and sandwich norm need one, because their last sum is not normalized.
    """
    return NORMS[c.normalization](c.d_model, c.layer_norm_eps) if c.norm in ("pre", "sandwich") else None


def checked_normalizer(given: float | None, targets: npx.Array, pad_id: int) -> float:
    """Return the given normalizer of a loss or, if it is None, the number of targets without padding, at least 1.

    Raises ValueError unless it is positive and finite.
    """
    normalizer = max(1, int((targets != pad_id).sum())) if given is None else given
    if not 0 < normalizer < float("inf"):
        got = f"got {normalizer}; try the number of target tokens"
        raise ValueError(f"loss: expected a finite normalizer above 0; {got}")
    return normalizer


class SequenceModel(Module):
    """Base class of the architectures.

    By default, the embedding and the output projection share one matrix (paper section 3.4).

    Ids are NumPy integer arrays. Sequences are padded at their end with `config.pad_id`. Subclasses define `examples`,
    the kind of data that `loss` takes: "pairs" of sequences, or "text". The method `build(config)` creates the layers,
    and `hidden_states(ids, state)` returns the last layer's output (B, T, D) for the next ids of a decoding state.
    """

    examples: str
    build: Callable[[TransformerConfig], None]
    hidden_states: Callable[[npx.Array, Any], Tensor]

    def __init__(self, config: TransformerConfig, seed: int = 0, dtype: Any = npx.float32) -> None:
        self.config, self.dropout = config, Dropout(config.dropout)
        with npx.keyed(seed, 0):
            self.embedding = self.make_embedding(config.vocab_size)
            self.projection = None if config.tying != "none" else self.make_embedding(config.vocab_size).weight
            self.output_bias = Parameter(full(0, config.vocab_size)) if config.output_bias else None
            with scheme(config.initialization):
                self.build(config)
        for p in self.parameters():
            p.data = p.data.astype(dtype, copy=False)

    def make_embedding(self, vocab_size: int) -> Embedding:
        """Build an embedding as configured."""
        c = self.config
        return Embedding(vocab_size, c.d_model, c.pad_id, c.embedding_init, c.scale_embedding)

    def make_positions(self) -> Positions:
        """Build a positional encoding as configured."""
        positions: Positions = POSITIONS[self.config.positions](self.config.d_model, self.config.max_positions)
        if isinstance(positions, Sinusoids):
            positions.rates = self.config.position_rates
        return positions

    @property
    def max_length(self) -> int | None:
        """The maximum number of positions of a sequence; None for no limit."""
        return min((m.max_length for m in self.modules() if isinstance(m, Positions) and m.max_length), default=None)

    def enable_gradient_checkpointing(self, enabled: bool = True) -> None:
        """Save only the inputs and outputs of each layer and recompute the rest in backward; False saves everything.

        Raises ValueError for a model with experts, whose balance losses are not outputs of a layer.
        """
        if enabled and self.config.n_experts:
            raise ValueError(
                f"gradient checkpointing does not support experts (n_experts = {self.config.n_experts}); "
                "try smaller batches"
            )
        for module in self.modules():
            if isinstance(module, Layer):
                module.gradient_checkpointing = enabled

    @property
    def output_embedding(self) -> Tensor:
        """The rows (V, D) of the output projection for all tokens, or for the first `config.n_outputs`."""
        n, rows = self.config.n_outputs, self.embedding.weight if self.projection is None else self.projection
        return rows if n is None else rows[:n]

    def vocabulary_parameters(self) -> list[str]:
        """Return the names of the parameters with a row for each token of a vocabulary."""
        names = ("embedding.weight", "source_embedding.weight", "projection", "output_bias")
        return [name for name, _ in self.named_parameters() if name in names]

    def label_parameters(self) -> list[str]:
        """Return the names of the parameters and modules that predict labels; empty if labels are tokens."""
        return []

    def embed(
        self,
        positions: Positions,
        embedding: Embedding,
        ids: npx.Array,
        start: Start,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the input of the first layer for ids on the device, (B, T) or packed (R,), from `start` on.

        Args:
            change: a function applied to the embedding before positions are added.
        """
        ids = self.drop_words(ids)
        if change is None:
            return positions.embed(embedding, ids, start, self.dropout)
        return self.dropout(positions(change(embedding(ids)), start))

    def drop_words(self, ids: npx.Array) -> npx.Array:
        """In training mode, replace random ids, except the special ones, with `config.unk_id` (word dropout)."""
        c = self.config
        if not (self.training and c.word_dropout):
            return ids
        mask, _ = npx.dropout(npx.ones(ids.shape), npx.DropoutSpec(c.word_dropout, npx.next_key()))
        is_special = (ids == c.pad_id) | (ids == c.bos_id) | (ids == c.eos_id)
        return npx.where(is_special | (mask > 0), ids, npx.full(ids.shape, c.unk_id, ids.dtype))

    def logits(self, hidden: Tensor, projection: Tensor | None = None) -> Tensor:
        """Project (..., D) to logits (..., V); `projection` is a copy of the transposed `output_embedding` (D, V)."""
        bias = None if self.output_bias is None else self.output_bias[: self.config.n_outputs]
        return neural.linear(hidden, self.output_embedding.transpose() if projection is None else projection, bias)

    def step(self, tokens: npx.Array, state: Any) -> npx.Array:
        """Return the array of logits (R, V) of the token after `tokens` (R,), and advance the state by one position."""
        ids = npx.from_host(self.check_ids("last ids", tokens[:, None]))
        if state.projection is None:
            state.projection = self.output_embedding.data.T.copy()
        with no_grad():
            hidden = Tensor(self.hidden_states(ids, state).data[:, -1])
            return self.logits(hidden, Tensor(state.projection)).data

    def cross_entropy(
        self, hidden: Tensor, tgt_ids: npx.Array, label_smoothing: float, smoothing_classes: str, loss_normalizer: float
    ) -> Tensor:
        """Return the label-smoothed cross entropy (), summed over the targets and divided by `loss_normalizer`.

        Args:
            hidden: the last layer's output (B, T, D), or packed (R, D).
            tgt_ids: the targets (B, T), or packed (R,). Padding does not count.
        """
        smoothing = npx.LabelSmoothing(label_smoothing, smoothing_classes, self.config.pad_id)
        rows = self.output_embedding
        if self.output_bias is not None:  # the bias is the last column of the weights; inputs end with a 1
            rows = concatenate(rows, self.output_bias[: len(rows)].reshape((-1, 1)), axis=1)  # (V, D + 1)
            ones = Tensor(npx.ones((*hidden.shape[:-1], 1), hidden.dtype))
            hidden = concatenate(hidden, ones, axis=-1)
        total = neural.linear_cross_entropy(hidden, rows, tgt_ids, smoothing)
        return total * (1 / float(loss_normalizer))

    def training_loss(
        self,
        compute_hidden: Callable[[], Tensor],
        tgt_ids: npx.Array,
        label_smoothing: float,
        smoothing_classes: str,
        loss_normalizer: float,
        rdrop: float = 0.0,
    ) -> Tensor:
        """Return the `cross_entropy` of the output of `compute_hidden`, or, with `rdrop` > 0, the loss of R-Drop.

            1/2 (CE_1 + CE_2) + rdrop / 4 (KL(P_1 | P_2) + KL(P_2 | P_1))

        The indices 1 and 2 denote two calls with different dropout masks (Liang et al., 2021; their loss is twice this
        one). Like CE, the divergence is summed over targets, without padding, and divided by `loss_normalizer`.

        In training mode, the balance losses of the experts are added. They are multiplied by `config.balance_loss` and
        by the number of targets of this call divided by `loss_normalizer`.
        """
        options = tgt_ids, label_smoothing, smoothing_classes, loss_normalizer
        with collect_balance_losses() as balance_losses:
            hidden = compute_hidden()
            loss = self.cross_entropy(hidden, *options)
            if rdrop:
                other = compute_hidden()
                loss = (loss + self.cross_entropy(other, *options)) * 0.5
                loss = loss + self.divergence(hidden, other, tgt_ids) * (rdrop / 4 / float(loss_normalizer))
        if not balance_losses or not self.config.balance_loss:
            return loss
        factor = self.config.balance_loss / (2 if rdrop else 1) / float(loss_normalizer)
        n_targets = (tgt_ids != self.config.pad_id).sum().astype(loss.dtype)
        return loss + ops.stack(*balance_losses).sum().astype(loss.dtype) * (n_targets * loss.dtype.type(factor))

    def divergence(self, hidden: Tensor, other: Tensor, tgt_ids: npx.Array) -> Tensor:
        """Return KL(P | Q) + KL(Q | P) () of the predictions for two outputs (..., D), summed over targets (...).

        The divergence is computed in chunks of rows, which are recomputed in backward, so the logits of a complete
        batch are never in memory.
        """
        hidden, other = (x.reshape((-1, x.shape[-1])) for x in (hidden, other))
        is_target = (tgt_ids != self.config.pad_id).reshape(-1)
        rows, total = max(1, DIVERGENCE_CHUNK // len(self.output_embedding)), None
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            chunk = checkpoint(self._chunk_divergence, hidden[part], other[part], is_target[part])
            total = chunk if total is None else total + chunk
        assert total is not None
        return total

    def _chunk_divergence(self, hidden: Tensor, other: Tensor, is_target: npx.Array) -> Tensor:
        """Return the scalar sum_k (p_k - q_k) (log p_k - log q_k), from logits: the log-normalizers cancel."""
        dtype = npx.accumulation_dtype(hidden.dtype)
        x, y = (self.logits(h).astype(dtype) for h in (hidden, other))  # (rows, V)
        terms = (neural.softmax(x) - neural.softmax(y)) * (x - y)
        return (terms.sum(axis=-1) * is_target.astype(dtype)).sum()

    def check_ids(self, name: str, ids: Any, vocab_size: int | None = None) -> npx.Array:
        """Return ids (B, T) on the host. Raises ValueError unless they are a matrix of ids of the vocabulary."""
        ids = npx.to_host(ids)
        check_ids(name, ids, vocab_size or self.config.vocab_size, ndim=2)
        return ids
