"""The encoder-only architecture: it reads a text in both directions and predicts labels of tokens or of the text."""

from typing import Any, NamedTuple

import npx
from autograd import Tensor, no_grad
from autograd import operations as ops
from autograd.operation_checks import host_ids
from models.architectures.base import SequenceModel, checked_normalizer
from models.architectures.encoder_decoder import checked_lengths
from models.architectures.layers import EncoderLayer, make_final_norm, make_layers, record_attention
from models.config import TransformerConfig
from models.layers.attention import Attention
from models.layers.basic import Linear
from models.layers.positions import Positions
from models.layers.token_types import TokenTypeEmbedding
from models.module import Module, evaluation_mode
from models.registry import ACTIVATIONS, NORMS, architecture
from npx import host  # NumPy, for arrays that stay on the CPU

POOLINGS = ("mean", "first")


class Pooler(Module):
    """tanh(x W + b), which BERT applies to the first token of a text. (..., D) -> (..., D)."""

    def __init__(self, d_model: int) -> None:
        self.linear = Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(self.linear(x))


class OutputTransform(Module):
    """Norm(activation(x W + b)), which BERT applies to a token before the output projection. (..., D) -> (..., D)."""

    def __init__(self, config: TransformerConfig) -> None:
        self.inner: Module = ACTIVATIONS[config.activation](config.d_model, config.d_model)
        self.norm = NORMS[config.norm_type](config.d_model, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(x))


class PackedTexts(NamedTuple):
    """Texts and their labels, on the device and without padding.

    Attributes:
        ids, token_types: (R,).
        packing: the packing of the R tokens.
        rows: the indices (n,) of the tokens that have a label or, with one label per text, of the texts.
        targets: the labels (n,) of these rows.
        one_label_per_text: whether labels belong to texts and not to tokens.
    """

    ids: npx.Array
    token_types: npx.Array
    packing: npx.Packing
    rows: npx.Array
    targets: npx.Array
    one_label_per_text: bool


@architecture("encoder")
class Encoder(SequenceModel):
    """The encoder of the Transformer with an output projection (Devlin et al., 2019). `model(ids)` returns (B, S, V).

    Each row of ids (B, S) has BOS, tokens and EOS, then optionally a second text with its own EOS, then padding. Labels
    are ids of the output vocabulary. The text has the same vocabulary unless `config.src_vocab_size` is set.
    `config.pad_id` marks a token without a label. By default, a token's type is the number of EOS tokens before it.

    Args:
        config: a TransformerConfig.
        seed: seed of the initialization. Default 0.
        dtype: dtype of the parameters. Default float32.

    Raises ValueError for anything that is not a matrix of ids.
    """

    data_kind = "labels"
    causal_kinds: tuple[str, ...] = ()

    def build(self, config: TransformerConfig) -> None:
        if config.src_vocab_size is not None:  # the text and the labels have different vocabularies
            self.projection = self.embedding.weight
            self.embedding = self.make_embedding(config.src_vocab_size)
        self.text_positions: Positions = self.make_positions()
        self.token_types = TokenTypeEmbedding(config.token_types, config.d_model) if config.token_types else None
        norm = NORMS[config.norm_type]
        self.embedding_norm = norm(config.d_model, config.norm_eps) if config.embedding_norm else None
        self.layers = make_layers(lambda: EncoderLayer(config), config)
        self.norm = make_final_norm(config)
        self.pooler = Pooler(config.d_model) if config.pooler else None
        predicts_tokens = config.output_transform and config.src_vocab_size is None
        self.output_transform = OutputTransform(config) if predicts_tokens else None

    def vocabulary_parameters(self) -> list[str]:
        return [name for name in super().vocabulary_parameters() if name not in self.label_parameters()]

    def label_parameters(self) -> list[str]:
        return [] if self.config.src_vocab_size is None else ["projection", "output_bias", "output_transform"]

    def forward(self, ids: Any, token_types: Any = None) -> Tensor:
        """Return the logits (B, S, V) from which labels are predicted for ids (B, S)."""
        return self.logits(self._transform(self.encode(ids, token_types)[0]))

    def encode(self, ids: Any, token_types: Any = None) -> tuple[Tensor, npx.Array]:
        """Return the last layer's output (B, S, D) for ids (B, S), and the lengths (B,) of the rows without padding.

        Args:
            token_types: integers (B, S) below `config.token_types`. Default: the number of EOS tokens before each
                token.
        """
        ids, lengths, types = map(npx.from_host, self.checked_text(ids, token_types))
        hidden = self._embed_and_encode(ids, types, npx.AttentionSpec(kv_lengths=lengths))
        return hidden, lengths

    def text_vectors(self, ids: Any, pooling: str = "mean", token_types: Any = None) -> Tensor:
        """Return one vector (B, D) for each row of ids (B, S).

        Args:
            pooling: "mean" (default), the mean of the last layer's output over the tokens, BOS and EOS included; or
                "first", the output for the first token, through the pooler if the model has one.
        """
        if pooling not in POOLINGS:
            raise ValueError(f"pooling: expected {' or '.join(POOLINGS)}; got {pooling!r}; try {POOLINGS[0]}")
        hidden, lengths = self.encode(ids, token_types)
        if pooling == "first":
            return self._pool(hidden[:, 0])
        is_token = npx.arange(hidden.shape[1]) < lengths[:, None]  # (B, S)
        weights = (is_token / npx.maximum(lengths, 1)[:, None]).astype(hidden.dtype)
        return (hidden * weights[..., None]).sum(axis=1)

    def label_logits(self, ids: Any, labels: Any) -> tuple[npx.Array, npx.Array]:
        """Return the labels (n,) that are not padding, in row order, and the logits (n, V) that predict them.

        Both are on the host. No graph is recorded.

        Args:
            labels: the labels (B, S) of the tokens or (B, 1) of the texts, as for `loss`.
        """
        with no_grad():
            packed = self._pack(ids, labels)
            logits = self.logits(self._packed_label_states(packed))
            return npx.to_host(packed.targets), npx.to_host(logits.data)

    def loss(
        self,
        ids: Any,
        labels: Any,
        label_smoothing: float = 0.0,
        smoothing_classes: str = "all",
        loss_normalizer: float | None = None,
        rdrop_weight: float = 0.0,
    ) -> Tensor:
        """Return the label-smoothed cross entropy () of the labels.

        Args:
            ids: (B, S).
            labels: (B, S), one for each token; or (B, 1), one for each text, predicted from the first token (through
                the pooler, if there is one). Padding marks tokens and texts without a label.
            label_smoothing: as for `Transformer.loss`. Default 0.

        Other arguments: see `Transformer.loss`.
        """
        packed = self._pack(ids, labels)
        return self.regularized_loss(
            lambda: self._packed_label_states(packed),
            packed.targets,
            label_smoothing,
            smoothing_classes,
            checked_normalizer(loss_normalizer, packed.targets, self.config.pad_id),
            rdrop_weight,
        )

    def checked_loss_inputs(self, ids: Any, labels: Any) -> tuple[npx.Array, ...]:
        """Check ids and return the host arrays that `loss_on_device` takes: ids, lengths, token types, labels."""
        labels = host_ids("labels", labels, self.config.vocab_size)
        ids, lengths, types = self.checked_text(ids)
        b, s = ids.shape
        if len(labels) != b or labels.shape[1] not in (1, s):
            raise ValueError(
                f"labels: expected shape {b, s} (a label per token) or {b, 1} (a label per text); got {labels.shape}"
            )
        return ids, lengths, types, labels

    def loss_on_device(
        self,
        ids: npx.Array,
        lengths: npx.Array,
        token_types: npx.Array,
        labels: npx.Array,
        **options: Any,
    ) -> Tensor:
        """Compute `loss` from checked, padded arrays on the device.

        No value of these arrays is copied to the host, so a CUDA graph can contain this method
        (train/learn/cuda_graphs.py).

        Args:
            options: as for `regularized_loss`.
        """

        def compute_hidden() -> Tensor:
            x = self._embed_and_encode(ids, token_types, npx.AttentionSpec(kv_lengths=lengths))
            return self.label_states(x, labels.shape[1] == 1)

        return self.regularized_loss(compute_hidden, labels, **options)

    def label_states(self, x: Tensor, one_label_per_text: bool) -> Tensor:
        """Return the vectors from which labels are predicted, for the last layer's output x (B, S, D).

        Args:
            one_label_per_text: whether each text has one label. If so, the result is (B, 1, D), otherwise (B, S, D).
        """
        return self._pool(x[:, :1]) if one_label_per_text else self._transform(x)

    def _pack(self, ids: Any, labels: Any) -> PackedTexts:
        """Check ids and labels, and pack them on the device."""
        ids, lengths, types, labels = self.checked_loss_inputs(ids, labels)
        packing = npx.Packing.from_lengths(lengths)
        one_label_per_text = labels.shape[1] == 1
        labels = labels.reshape(-1) if one_label_per_text else packing.pack(labels)
        rows = host.flatnonzero(labels != self.config.pad_id)
        return PackedTexts(
            ids=npx.from_host(packing.pack(ids)),
            token_types=npx.from_host(packing.pack(types)),
            packing=packing.to_device(),
            rows=npx.from_host(rows),
            targets=npx.from_host(labels[rows]),
            one_label_per_text=one_label_per_text,
        )

    def _packed_label_states(self, texts: PackedTexts) -> Tensor:
        """Return the vectors (n, D) from which the targets are predicted.

        The other vectors do not reach the output projection, which saves time: a masked language model predicts only
        about one token in seven.
        """
        spec = npx.AttentionSpec(q_packing=texts.packing, kv_packing=texts.packing)
        hidden = self._embed_and_encode(texts.ids, texts.token_types, spec)  # (R, D)
        if texts.one_label_per_text:
            first_rows = texts.packing.starts[:-1]  # (B,)
            return self._pool(hidden[first_rows[texts.rows]])
        return self._transform(hidden[texts.rows])

    def checked_text(self, ids: Any, token_types: Any = None) -> tuple[npx.Array, npx.Array, npx.Array]:
        """Return checked ids (B, S), the lengths (B,) of the rows and token types (B, S), on the host.

        Raises ValueError for padding within a row and for token types that the model does not have.
        """
        c = self.config
        ids = self.checked_ids("text ids", ids, c.src_vocab_size)
        lengths = checked_lengths("text ids", ids, c.pad_id)
        if token_types is None:
            is_eos = ids == c.eos_id
            types = host.minimum(is_eos.cumsum(axis=1) - is_eos, max(0, c.token_types - 1))
        else:
            types = host_ids("token types", token_types, max(1, c.token_types))
        return ids, lengths, types

    def _embed_and_encode(self, ids: npx.Array, token_types: npx.Array, spec: npx.AttentionSpec) -> Tensor:
        """Return the last layer's output for checked ids on the device, (B, S) or packed (R,)."""
        start = spec.q_packing or 0
        if self.token_types is None and self.embedding_norm is None:
            x = self.embed(self.text_positions, self.embedding, ids, start)
        else:
            x = self.embedding(self.drop_words(ids))
            if self.token_types:
                x = self.token_types(x, token_types)
            x = self.text_positions(x, start)
            x = self.dropout(self.embedding_norm(x) if self.embedding_norm else x)
        for layer in self.layers:
            x = layer(x, spec)
        return self.norm(x) if self.norm else x

    def _pool(self, x: Tensor) -> Tensor:
        return self.pooler(x) if self.pooler else x

    def _transform(self, x: Tensor) -> Tensor:
        return self.output_transform(x) if self.output_transform else x

    def attention_layers(self) -> dict[str, list[Attention]]:
        """Return the attention layers, under the key "text"."""
        return {"text": [layer.attention for layer in self.layers]}

    def attention_maps(self, ids: Any) -> list[npx.Array]:
        """Return the attention weights (B, H, S, S) of each layer, on the host, for ids (B, S)."""
        with evaluation_mode(self), record_attention(self.attention_layers()) as maps:
            self.encode(ids)
        return maps["text"]
