"""Convolutional encoder-decoders: ConvS2S (Gehring et al., 2017) and ByteNet (Kalchbrenner et al., 2016)."""

from typing import Any

import npx
from autograd import Tensor, differentiable
from autograd import operations as ops
from models.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderState
from models.architectures.layers import Layer, make_attention
from models.cache import DecodingState, KeyValueCache, RowArray
from models.config import TransformerConfig
from models.layers.attention import CrossAttention
from models.layers.basic import Dropout, Linear
from models.layers.convolution import Convolution, glu
from models.layers.norm import Norm
from models.layers.positions import IdentityPositions, Positions
from models.registry import NORMS, architecture
from npx import host  # NumPy, for arrays that stay on the CPU

SQRT_HALF = 0.5**0.5  # a sum of two terms, multiplied by this, has the variance of one term


# ConvS2S


class ConvS2SEncoderLayer(Layer):
    """An encoder layer of ConvS2S: a gated convolution with a residual connection.

    The weights are initialized with variance 4 / (width D) to compensate for the gates, which are 1/2 on average.
    """

    causal = False

    def __init__(self, config: TransformerConfig) -> None:
        d, width = config.d_model, config.kernel_width
        # Xavier's variance is gain^2 * 2 / (n_in + n_out); n_in = width D and n_out = 2 D.
        gain = (4 / (width * d) * (width * d + 2 * d) / 2) ** 0.5
        self.convolution = Convolution(d, 2 * d, width, causal=self.causal, gain=gain)
        self.dropout = Dropout(config.dropout)

    def convolve(
        self,
        x: Tensor,
        packing: npx.Packing | None,
        lengths: npx.Array | None = None,
        cache: RowArray | None = None,
    ) -> Tensor:
        """Return glu(convolution(x)), with dropout on x."""
        y: Tensor = glu(self.convolution(self.dropout(x), packing, lengths, cache))
        return y

    def forward(self, x: Tensor, spec: npx.AttentionSpec) -> Tensor:
        """Return (x + glu(convolution(x))) / sqrt(2) for x (B, S, D), or packed x (R, D).

        Args:
            spec: the lengths of the sentences of padded x, or the packing of packed x.
        """
        return (x + self.convolve(x, spec.q_packing, spec.kv_lengths)) * SQRT_HALF


class ConvS2SDecoderLayer(ConvS2SEncoderLayer):
    """A decoder layer of ConvS2S: a causal gated convolution, followed by attention to the memory."""

    causal = True

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.cross_attention = make_attention(CrossAttention, config, "decoder")

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None,
        cross_spec: npx.AttentionSpec,
        target_embeddings: Tensor,
        cache: RowArray | None = None,
        source_cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Apply the layer to x (B, T, D), or packed x (R, D). The result has the shape of x.

        Args:
            target_embeddings: the input of the first decoder layer, which is added to the queries of the attention.
            cache: the earlier positions, for the convolution.
            source_cache: the keys and values of the memory.

        Other arguments: see `DecoderLayer.forward`.
        """
        y = self.convolve(x, cross_spec.q_packing, cache=cache)
        context = self.cross_attention((y + target_embeddings) * SQRT_HALF, memory, cross_spec, source_cache)
        y = (y + context) * SQRT_HALF
        return (x + y) * SQRT_HALF

    def new_cache(self, n_rows: int, dtype: Any) -> RowArray:
        """Return the initial cache of `n_rows` sequences: zeros for the positions before the first target."""
        return self.convolution.new_cache(n_rows, dtype)

    def new_source_cache(self, memory: Tensor) -> KeyValueCache:
        """Return a cache with the keys and values of the memory (B, S, D)."""
        return self.cross_attention.new_cache(memory)


@architecture("convs2s")
class ConvS2S(EncoderDecoder):
    """Gated convolutions with attention in every decoder layer. `model(src_ids, tgt_ids)` returns logits (B, T, V).

    The attention is that of the Transformer: W^K and W^V project the memory, which is the encoder's output plus the
    source embedding. The original has one head and no W^K, adds the embedding only to the values, and uses weight
    normalization.
    """

    def make_encoder(self, config: TransformerConfig) -> list[ConvS2SEncoderLayer]:
        return [ConvS2SEncoderLayer(config) for _ in range(config.n_layers)]

    def make_decoder(self, config: TransformerConfig) -> list[ConvS2SDecoderLayer]:
        return [ConvS2SDecoderLayer(config) for _ in range(config.n_layers)]

    def apply_encoder_layers(self, x: Tensor, spec: npx.AttentionSpec) -> Tensor:
        return (x + super().apply_encoder_layers(x, spec)) * SQRT_HALF

    def apply_decoder_layers(
        self, x: Tensor, memory: Tensor | None, cross_spec: npx.AttentionSpec, state: EncoderDecoderState | None
    ) -> Tensor:
        target_embeddings = x
        for i, layer in enumerate(self.decoder):
            x = layer(x, memory, cross_spec, target_embeddings, *(state.layer_caches(i) if state else ()))
        return x


# ByteNet

N_DILATIONS = 5  # dilations 1, 2, 4, 8, 16, then 1 again


class ByteNetLayer(Layer):
    """Layer i of ByteNet: a dilated convolution of D / 2 features between two projections, in a residual connection."""

    def __init__(self, config: TransformerConfig, i: int, causal: bool) -> None:
        d, half = config.d_model, config.d_model // 2
        norm = NORMS[config.norm_type]
        dilation = 2 ** (i % N_DILATIONS)
        self.norms = [norm(width, config.norm_eps) for width in (d, half, half)]
        self.lower, self.upper = Linear(d, half), Linear(half, d)
        self.convolution = Convolution(half, half, config.kernel_width, dilation, causal)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, spec: npx.AttentionSpec, cache: RowArray | None = None) -> Tensor:
        """Return x + W_2 relu(norm(convolution(relu(norm(W_1 relu(norm(x))))))) for x (B, S, D), or packed x (R, D).

        Args:
            spec: the packing of x, or, for an encoder layer, the lengths of the sentences of padded x.
            cache: earlier positions.
        """
        lengths = None if self.convolution.causal else spec.kv_lengths  # in a decoder, kv_lengths refers to the memory
        y = self.lower(ops.relu(self.norms[0](x)))
        y = self.convolution(ops.relu(self.norms[1](y)), spec.q_packing, lengths, cache)
        return x + self.dropout(self.upper(ops.relu(self.norms[2](y))))

    def new_cache(self, n_rows: int, dtype: Any) -> RowArray:
        """Return the initial cache of `n_rows` sequences: zeros for the positions before the first target."""
        return self.convolution.new_cache(n_rows, dtype)


@differentiable
def take_rows(x, index):
    """Return the rows x[index] (M, D) of x (R, D), with zeros where the index is -1.

    No row may be selected more than once.
    """
    rows = npx.concatenate([x, npx.zeros((1, x.shape[1]), x.dtype)])

    def vjp(g):
        gx = npx.zeros((n_rows + 1, g.shape[1]), g.dtype)
        gx[index] = g
        return (gx[:n_rows],)

    n_rows = len(x)
    return rows[index], vjp


@architecture("bytenet")
class ByteNet(EncoderDecoder):
    """Dilated convolutions; the decoder reads the memory position by position. `model(src_ids, tgt_ids)`: (B, T, V).

    ByteNet has no attention. The source is extended by padding, so that the memory has `expansion` times as many
    positions as the source has tokens. Target position t reads position t of the memory, if it exists.
    """

    expansion = 1.2  # the paper's value for English to German

    def make_encoder(self, config: TransformerConfig) -> list[ByteNetLayer]:
        return [ByteNetLayer(config, i, causal=False) for i in range(config.n_layers)]

    def make_decoder(self, config: TransformerConfig) -> list[ByteNetLayer]:
        return [ByteNetLayer(config, i, causal=True) for i in range(config.n_layers)]

    def make_final_norm(self, config: TransformerConfig) -> Norm:
        norm: Norm = NORMS[config.norm_type](config.d_model, config.norm_eps)
        return norm

    def make_positions(self) -> Positions:
        """Return an encoding that adds nothing: the convolutions already depend on the order of the tokens."""
        return IdentityPositions(self.config.d_model)

    def _checked_source(self, src_ids: Any) -> tuple[npx.Array, npx.Array]:
        """Return source ids (B, S), extended by padding that the encoder reads, and their extended lengths (B,)."""
        ids, lengths = super()._checked_source(src_ids)
        lengths = host.ceil(self.expansion * lengths).astype(lengths.dtype)
        extra = max(0, int(lengths.max(initial=0)) - ids.shape[1])
        return host.pad(ids, ((0, 0), (0, extra)), constant_values=self.config.pad_id), lengths

    def new_source_caches(self, memory: Tensor) -> list[DecodingState]:
        return [RowArray(memory.data)]

    def apply_decoder_layers(
        self, x: Tensor, memory: Tensor | None, cross_spec: npx.AttentionSpec, state: EncoderDecoderState | None
    ) -> Tensor:
        packing = cross_spec.q_packing
        batch, length = packing.padded_shape if packing else x.shape[:2]
        flat = packing.flat_index if packing else npx.arange(batch * length)
        sentence, position = flat // max(1, length), flat % max(1, length)
        if state:
            sentence = npx.from_host(state.source.sources)[sentence]
            position = position + state.length
            memory = Tensor(state.source.caches[0].array)
        assert memory is not None
        kv_packing = cross_spec.kv_packing
        lengths: Any = kv_packing.lengths if kv_packing else cross_spec.kv_lengths
        starts = kv_packing.starts if kv_packing else npx.arange(len(memory)) * memory.shape[1]
        index = npx.where(position < lengths[sentence], starts[sentence] + position, -1)
        aligned = take_rows(memory.reshape((-1, memory.shape[-1])), index).reshape(x.shape)
        x = x + aligned
        for i, layer in enumerate(self.decoder):
            x = layer(x, cross_spec, state.caches[i] if state else None)
        assert self.decoder_norm is not None
        return self.decoder_norm(x)
