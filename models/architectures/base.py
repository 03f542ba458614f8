"""The base class of the architectures: embeddings, output projection, losses, and a step of decoding."""

from collections.abc import Callable
from typing import Any

import npx
from autograd import Tensor, checkpoint, neural, no_grad
from autograd import operations as ops
from autograd.operation_checks import host_ids
from autograd.operations import concatenate
from models.architectures.layers import Layer
from models.config import TransformerConfig
from models.init import constant, use_scheme
from models.layers.basic import Dropout, Embedding
from models.layers.experts import collect_balance_losses
from models.layers.positions import Positions, SinusoidalPositions, StartOrPacking
from models.module import Module, Parameter
from models.registry import POSITIONS

DIVERGENCE_CHUNK = 1 << 22  # maximum number of logits in each array that R-Drop's divergence uses


def checked_normalizer(loss_normalizer: float | None, targets: npx.Array, pad_id: int) -> float:
    """Return `loss_normalizer` or, if it is None, the number of targets that are not padding, at least 1.

    Raises ValueError unless the normalizer is positive and finite.
    """
    if loss_normalizer is None:
        loss_normalizer = max(1, int((targets != pad_id).sum()))
    if not 0 < loss_normalizer < float("inf"):
        got = f"got {loss_normalizer}; try the number of target tokens"
        raise ValueError(f"loss: expected a finite normalizer above 0; {got}")
    return loss_normalizer


class SequenceModel(Module):
    """Base class of the architectures.

    By default, the embedding and the output projection share one matrix (paper section 3.4).

    Ids are NumPy integer arrays. Sequences are padded at their end with `config.pad_id`.

    The losses of an architecture build on each other:

    - `loss`, defined by subclasses, checks and packs ids, and copies them to the device.
    - `loss_on_device`, defined by subclasses, runs the layers. CUDA graphs capture this method.
    - `regularized_loss` adds R-Drop and the balance losses of experts.
    - `token_loss` applies the output projection and is the label-smoothed cross entropy.

    Subclasses also define `data_kind`, the kind of data that `loss` takes: "pairs" of sequences, "text", or texts with
    "labels". The method `build(config)` creates the layers, and `hidden_states(ids, state)` returns the last layer's
    output (B, T, D) for the next ids of a decoding state.
    """

    data_kind: str
    build: Callable[[TransformerConfig], None]
    hidden_states: Callable[[npx.Array, Any], Tensor]

    def __init__(self, config: TransformerConfig, seed: int = 0, dtype: Any = npx.float32) -> None:
        self.config = config
        self.dropout = Dropout(config.dropout)
        with npx.keyed(seed, 0):
            self.embedding = self.make_embedding(config.vocab_size)
            self.projection = None if config.tying != "none" else self.make_embedding(config.vocab_size).weight
            self.output_bias = Parameter(constant((config.vocab_size,), 0)) if config.output_bias else None
            with use_scheme(config.matrix_init):
                self.build(config)
        for p in self.parameters():
            p.data = p.data.astype(dtype, copy=False)

    def make_embedding(self, vocab_size: int) -> Embedding:
        """Build an embedding with `vocab_size` rows and the options of the configuration."""
        c = self.config
        return Embedding(vocab_size, c.d_model, c.pad_id, c.embedding_init, c.scale_embedding)

    def make_positions(self) -> Positions:
        """Build the positional encoding of the configuration."""
        positions: Positions = POSITIONS[self.config.positions](self.config.d_model, self.config.max_positions)
        if isinstance(positions, SinusoidalPositions):
            positions.rate_scheme = self.config.position_rates
        return positions

    @property
    def max_length(self) -> int | None:
        """The maximum number of positions of a sequence; None for no limit."""
        return min(
            (m.max_positions for m in self.modules() if isinstance(m, Positions) and m.max_positions), default=None
        )

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
    def output_projection(self) -> Tensor:
        """The output projection (V, D), with one row per token; only the first `config.n_outputs` rows, if set."""
        rows = self.embedding.weight if self.projection is None else self.projection
        n_outputs = self.config.n_outputs
        return rows if n_outputs is None else rows[:n_outputs]

    def vocabulary_parameters(self) -> list[str]:
        """Return the names of the parameters that have a row for each token of a vocabulary."""
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
        start: StartOrPacking,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the input of the first layer for ids on the device, (B, T) or packed (R,).

        Args:
            start: the first position of ids (B, T), or the packing of packed ids.
            transform: a function that is applied to the embeddings before positions are added.
        """
        ids = self.drop_words(ids)
        if transform is None:
            return positions.embed(embedding, ids, start, self.dropout)
        return self.dropout(positions(transform(embedding(ids)), start))

    def drop_words(self, ids: npx.Array) -> npx.Array:
        """In training mode, replace random ids, except the special ones, with `config.unk_id` (word dropout)."""
        c = self.config
        if not (self.training and c.word_dropout):
            return ids
        mask, _ = npx.dropout(npx.ones(ids.shape), npx.DropoutSpec(c.word_dropout, npx.next_key()))
        is_special = (ids == c.pad_id) | (ids == c.bos_id) | (ids == c.eos_id)
        return npx.where(is_special | (mask > 0), ids, npx.full(ids.shape, c.unk_id, ids.dtype))

    def logits(self, hidden: Tensor, projection_t: Tensor | None = None) -> Tensor:
        """Project hidden states (..., D) to logits (..., V).

        Args:
            projection_t: a copy (D, V) of the transposed `output_projection`, which makes repeated calls faster.
        """
        bias = None if self.output_bias is None else self.output_bias[: self.config.n_outputs]
        return neural.linear(hidden, self.output_projection.transpose() if projection_t is None else projection_t, bias)

    def step(self, tokens: npx.Array, state: Any) -> npx.Array:
        """Append `tokens` (R,), one per row, to the state; return the array of logits (R, V) of the next tokens."""
        ids = npx.from_host(self.checked_ids("last ids", tokens[:, None]))
        if state.projection_t is None:
            state.projection_t = self.output_projection.data.T.copy()
        with no_grad():
            hidden = Tensor(self.hidden_states(ids, state).data[:, -1])
            return self.logits(hidden, Tensor(state.projection_t)).data

    def token_loss(
        self, hidden: Tensor, tgt_ids: npx.Array, label_smoothing: float, smoothing_classes: str, loss_normalizer: float
    ) -> Tensor:
        """Return the label-smoothed cross entropy (), summed over the targets and divided by `loss_normalizer`.

        The output projection is fused with the loss, so the logits of a complete batch are never in memory.

        Args:
            hidden: the last layer's output (B, T, D), or packed (R, D).
            tgt_ids: the targets (B, T), or packed (R,). Padding does not count.
        """
        smoothing = npx.LabelSmoothing(label_smoothing, smoothing_classes, self.config.pad_id)
        rows = self.output_projection
        if self.output_bias is not None:  # append the bias to the rows as a column, and a 1 to every hidden state
            rows = concatenate(rows, self.output_bias[: len(rows)].reshape((-1, 1)), axis=1)  # (V, D + 1)
            ones = Tensor(npx.ones((*hidden.shape[:-1], 1), hidden.dtype))
            hidden = concatenate(hidden, ones, axis=-1)
        total = neural.linear_cross_entropy(hidden, rows, tgt_ids, smoothing)
        return total * (1 / float(loss_normalizer))

    def regularized_loss(
        self,
        compute_hidden: Callable[[], Tensor],
        tgt_ids: npx.Array,
        label_smoothing: float,
        smoothing_classes: str,
        loss_normalizer: float,
        rdrop_weight: float = 0.0,
    ) -> Tensor:
        """Return the `token_loss` of the output of `compute_hidden` or, with `rdrop_weight` > 0, the loss of R-Drop:

            1/2 (CE_1 + CE_2) + rdrop_weight / 4 (KL(P_1 | P_2) + KL(P_2 | P_1))

        The indices 1 and 2 denote two calls with different dropout masks (Liang et al., 2021; their loss is twice this
        one). Like CE, the divergence is summed over targets, without padding, and divided by `loss_normalizer`.

        In training mode, the loss also contains the balance losses of the experts, multiplied by
        `config.balance_loss_weight` and by n / N. Here n is the number of targets in this call, and N =
        `loss_normalizer` is the number of targets in the complete update.
        """
        options = tgt_ids, label_smoothing, smoothing_classes, loss_normalizer
        with collect_balance_losses() as balance_losses:
            hidden = compute_hidden()
            loss = self.token_loss(hidden, *options)
            if rdrop_weight:
                other_hidden = compute_hidden()
                loss = (loss + self.token_loss(other_hidden, *options)) * 0.5
                loss = loss + self.divergence(hidden, other_hidden, tgt_ids) * (
                    rdrop_weight / 4 / float(loss_normalizer)
                )
        if not balance_losses or not self.config.balance_loss_weight:
            return loss
        factor = self.config.balance_loss_weight / (2 if rdrop_weight else 1) / float(loss_normalizer)
        n_targets = (tgt_ids != self.config.pad_id).sum().astype(loss.dtype)
        return loss + ops.stack(*balance_losses).sum().astype(loss.dtype) * (n_targets * loss.dtype.type(factor))

    def divergence(self, hidden: Tensor, other_hidden: Tensor, tgt_ids: npx.Array) -> Tensor:
        """Return KL(P | Q) + KL(Q | P) (), summed over targets (...).

        P and Q are the predictions from `hidden` (..., D) and `other_hidden` (..., D).

        The divergence is computed in chunks of rows, which are recomputed in backward, so the logits of a complete
        batch are never in memory.
        """
        hidden, other_hidden = (x.reshape((-1, x.shape[-1])) for x in (hidden, other_hidden))
        is_target = (tgt_ids != self.config.pad_id).reshape(-1)
        chunk_rows = max(1, DIVERGENCE_CHUNK // len(self.output_projection))
        total = None
        for start in range(0, len(hidden), chunk_rows):
            part = slice(start, start + chunk_rows)
            chunk = checkpoint(self._chunk_divergence, hidden[part], other_hidden[part], is_target[part])
            total = chunk if total is None else total + chunk
        assert total is not None
        return total

    def _chunk_divergence(self, hidden: Tensor, other_hidden: Tensor, is_target: npx.Array) -> Tensor:
        """Return the sum, over the rows (R, D) that are targets, of sum_k (p_k - q_k) (log p_k - log q_k).

        Logits can stand for log p and log q, because sum_k (p_k - q_k) = 0 cancels their normalizers.
        """
        dtype = npx.accumulation_dtype(hidden.dtype)
        x, y = (self.logits(h).astype(dtype) for h in (hidden, other_hidden))  # (R, V)
        terms = (neural.softmax(x) - neural.softmax(y)) * (x - y)
        return (terms.sum(axis=-1) * is_target.astype(dtype)).sum()

    def checked_ids(self, name: str, ids: Any, vocab_size: int | None = None) -> npx.Array:
        """Return `ids` (B, T) on the host. Raises ValueError unless `ids` is a matrix of valid token ids."""
        return host_ids(name, ids, vocab_size or self.config.vocab_size)
