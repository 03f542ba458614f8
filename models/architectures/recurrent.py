"""The recurrent encoder-decoder: LSTM or GRU layers with residual connections and attention (after Wu et al., 2016).

As in GNMT, the first layer of the encoder reads in both directions, and the output of the first layer of the decoder
attends to the source; all later layers read the resulting context. There are four differences from GNMT:

- The first decoder layer does not read the context of the previous position, so training computes the input projections
  and the attention of all positions at once.
- Attention has several heads, as in the Transformer.
- Residual connections begin at the second layer.
- The context is added to the output, so even a decoder of one layer uses it.
"""

from typing import Any

import npx
from autograd import Tensor
from autograd import operations as ops
from models.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderState
from models.architectures.layers import Layer, make_attention
from models.cache import DecodingState, RowArray
from models.config import TransformerConfig
from models.layers.attention import CrossAttention
from models.layers.basic import Dropout
from models.layers.positions import IdentityPositions, Positions
from models.layers.recurrent import Bidirectional, Recurrent
from models.registry import CELLS, architecture


class RecurrentEncoderLayer(Layer):
    """A recurrent encoder layer. The first one reads in both directions; the others have residual connections."""

    def __init__(self, config: TransformerConfig, i: int) -> None:
        cell: type[Recurrent] = CELLS[config.cell]
        d = config.d_model
        self.recurrent = cell(d, d) if i else Bidirectional(cell, d, d // 2)
        self.dropout = Dropout(config.dropout)
        self.has_residual = i > 0

    def forward(self, x: Tensor, spec: npx.AttentionSpec) -> Tensor:
        """Apply the layer to x (B, S, D), or packed x (R, D). The result has the shape of x.

        Args:
            spec: the lengths of the sentences of padded x, or the packing of packed x.
        """
        y = self.recurrent(self.dropout(x), spec.q_packing, spec.kv_lengths)
        return x + y if self.has_residual else y


class RecurrentDecoderLayer(Layer):
    """A recurrent decoder layer. The first one also has cross-attention; the others read the resulting context."""

    def __init__(self, config: TransformerConfig, i: int) -> None:
        self.recurrent: Recurrent = CELLS[config.cell]((2 if i else 1) * config.d_model, config.d_model)
        self.dropout = Dropout(config.dropout)
        if i == 0:
            self.cross_attention = make_attention(CrossAttention, config, "decoder")

    def forward(
        self, x: Tensor, context: Tensor | None, packing: npx.Packing | None, cache: RowArray | None = None
    ) -> Tensor:
        """Apply the layer to x (B, T, D), or packed x (R, D). The result has the shape of x.

        Args:
            context: the context, in the shape of x; None for the first layer.
            packing: the packing of x, if x is packed.
            cache: the recurrent states from which to continue.
        """
        if context is None:
            return self.recurrent(self.dropout(x), packing, cache=cache)
        return x + self.recurrent(self.dropout(ops.concatenate(x, context, axis=-1)), packing, cache=cache)

    def new_cache(self, n_rows: int, dtype: Any) -> RowArray:
        """Return the initial recurrent state of `n_rows` sequences."""
        return self.recurrent.new_cache(n_rows, dtype)


@architecture("rnn")
class RecurrentModel(EncoderDecoder):
    """A recurrent encoder-decoder with attention. `model(src_ids, tgt_ids)` returns logits (B, T, V)."""

    def make_encoder(self, config: TransformerConfig) -> list[RecurrentEncoderLayer]:
        return [RecurrentEncoderLayer(config, i) for i in range(config.n_layers)]

    def make_decoder(self, config: TransformerConfig) -> list[RecurrentDecoderLayer]:
        return [RecurrentDecoderLayer(config, i) for i in range(config.n_layers)]

    def make_positions(self) -> Positions:
        """Return an encoding that adds nothing: the recurrence already depends on the order of the tokens."""
        return IdentityPositions(self.config.d_model)

    def new_source_caches(self, memory: Tensor) -> list[DecodingState]:
        return [self.decoder[0].cross_attention.new_cache(memory)]

    def apply_decoder_layers(
        self, x: Tensor, memory: Tensor | None, cross_spec: npx.AttentionSpec, state: EncoderDecoderState | None
    ) -> Tensor:
        context = None
        source_cache = state.source.caches[0] if state else None
        for i, layer in enumerate(self.decoder):
            x = layer(x, context, cross_spec.q_packing, state.caches[i] if state else None)
            if context is None:
                context = layer.cross_attention(x, memory, cross_spec, source_cache)
        assert context is not None
        return x + context
