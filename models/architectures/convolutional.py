"""Convolutional encoder-decoders: ConvS2S (Gehring et al., 2017) and ByteNet (Kalchbrenner et al., 2016)."""

from typing import Any

import npx
from autograd import Tensor, differentiable
from autograd import operations as ops
from models.architectures.blocks import Layer, make_attention
from models.architectures.encoder_decoder import DecoderState, EncoderDecoder
from models.cache import DecodingState, KeyValueCache, RowArray
from models.config import TransformerConfig
from models.layers.attention import CrossAttention
from models.layers.basic import Dropout, Linear
from models.layers.convolution import Convolution, glu
from models.layers.norm import Norm
from models.layers.positions import Positions, RotaryPositions
from models.registry import NORMS, architecture
from npx import host

SQRT_HALF = 0.5**0.5  # preserves the variance of a sum of two terms


# ConvS2S


class GatedConvolution(Layer):
    """x -> (x + glu(convolution(x))) / sqrt(2). (B, S, D) -> (B, S, D), or packed (R, D): an encoder layer of ConvS2S.

    The weights are initialized with variance 4 / (width D) to compensate for the gates, which are 1/2 on average.
    """

    causal = False

    def __init__(self, c: TransformerConfig) -> None:
        d, width = c.d_model, c.kernel_width
        gain = (4 / (width * d) * (width * d + 2 * d) / 2) ** 0.5
        self.convolution = Convolution(d, 2 * d, width, causal=self.causal, gain=gain)
        self.dropout = Dropout(c.dropout)

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
        return (x + self.convolve(x, spec.q_packing, spec.kv_lengths)) * SQRT_HALF


class AttendingConvolution(GatedConvolution):
    """A decoder layer of ConvS2S: a causal gated convolution, whose output plus `embedded` attends to the memory.

    `forward(x, memory, spec, cache, source_cache, embedded=)`: (B, T, D) -> (B, T, D), or packed (R, D). `embedded` is
    the decoder's input; the other arguments are those of `DecoderLayer`.
    """

    causal = True

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__(c)
        self.cross_attention = make_attention(CrossAttention, c, "decoder")

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None,
        spec: npx.AttentionSpec,
        embedded: Tensor,
        cache: RowArray | None = None,
        source_cache: KeyValueCache | None = None,
    ) -> Tensor:
        y = self.convolve(x, spec.q_packing, cache=cache)
        y = (y + self.cross_attention((y + embedded) * SQRT_HALF, memory, spec, source_cache)) * SQRT_HALF
        return (x + y) * SQRT_HALF

    def new_cache(self, rows: int, dtype: Any) -> RowArray:
        """Return the initial cache of `rows` sequences: zeros for the positions before the first target."""
        return self.convolution.new_cache(rows, dtype)

    def new_source_cache(self, memory: Tensor) -> KeyValueCache:
        """Return the keys and values of the memory (B, S, D)."""
        return self.cross_attention.new_cache(memory)


@architecture("convs2s")
class ConvS2S(EncoderDecoder):
    """Gated convolutions with attention in every decoder layer. `model(src_ids, tgt_ids)` returns logits (B, T, V).

    Its attention is the Transformer's: W^K and W^V project the memory, which is the encoder's output plus the source
    embedding. In the original, which has one head and no W^K, the keys do not contain the embedding. Unlike the
    original, this model has no weight normalization.
    """

    def make_encoder(self, c: TransformerConfig) -> list[GatedConvolution]:
        return [GatedConvolution(c) for _ in range(c.n_layers)]

    def make_decoder(self, c: TransformerConfig) -> list[AttendingConvolution]:
        return [AttendingConvolution(c) for _ in range(c.n_layers)]

    def run_encoder(self, x: Tensor, spec: npx.AttentionSpec) -> Tensor:
        return (x + super().run_encoder(x, spec)) * SQRT_HALF

    def run_decoder(
        self, x: Tensor, memory: Tensor | None, spec: npx.AttentionSpec, state: DecoderState | None
    ) -> Tensor:
        embedded = x
        for i, layer in enumerate(self.decoder):
            x = layer(x, memory, spec, embedded, *(state.caches(i) if state else ()))
        return x


# ByteNet

N_DILATIONS = 5  # dilations 1, 2, 4, 8, 16, then 1 again


class ResidualConvolution(Layer):
    """The residual block of ByteNet: a dilated convolution of width D / 2 between two projections.

    x -> x + W_2 relu(norm(convolution(relu(norm(W_1 relu(norm(x))))))). (B, S, D) -> (B, S, D), or packed (R, D).
    """

    def __init__(self, c: TransformerConfig, i: int, causal: bool) -> None:
        d, half, norm = c.d_model, c.d_model // 2, NORMS[c.normalization]
        dilation = 2 ** (i % N_DILATIONS)
        self.norms = [norm(d, c.layer_norm_eps), norm(half, c.layer_norm_eps), norm(half, c.layer_norm_eps)]
        self.lower, self.upper = Linear(d, half), Linear(half, d)
        self.convolution = Convolution(half, half, c.kernel_width, dilation, causal)
        self.dropout = Dropout(c.dropout)

    def forward(self, x: Tensor, spec: npx.AttentionSpec, cache: RowArray | None = None) -> Tensor:
        """Convolve x.

        Args:
            spec: the packing of x, or, if the block is not causal, the lengths of its sentences.
            cache: earlier positions.
        """
        lengths = None if self.convolution.causal else spec.kv_lengths  # a decoder's kv_lengths are those of the memory
        y = self.lower(ops.relu(self.norms[0](x)))
        y = self.convolution(ops.relu(self.norms[1](y)), spec.q_packing, lengths, cache)
        return x + self.dropout(self.upper(ops.relu(self.norms[2](y))))

    def new_cache(self, rows: int, dtype: Any) -> RowArray:
        """Return the initial cache of `rows` sequences: zeros for the positions before the first target."""
        return self.convolution.new_cache(rows, dtype)


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

    ByteNet has no attention. The memory has `expansion` times as many positions as the source. Target position t reads
    position t of the memory, if it exists.
    """

    expansion = 1.2  # as in the paper, for English to German

    def make_encoder(self, c: TransformerConfig) -> list[ResidualConvolution]:
        return [ResidualConvolution(c, i, causal=False) for i in range(c.n_layers)]

    def make_decoder(self, c: TransformerConfig) -> list[ResidualConvolution]:
        return [ResidualConvolution(c, i, causal=True) for i in range(c.n_layers)]

    def make_final_norm(self, c: TransformerConfig) -> Norm:
        norm: Norm = NORMS[c.normalization](c.d_model, c.layer_norm_eps)
        return norm

    def make_positions(self) -> Positions:
        """Return an encoding that adds nothing: the convolutions already depend on the order."""
        return RotaryPositions(self.config.d_model)

    def _check_source(self, src_ids: Any) -> tuple[npx.Array, npx.Array]:
        """Return source ids (B, S), extended by padding that the encoder reads, and their extended lengths (B,)."""
        ids, lengths = super()._check_source(src_ids)
        lengths = host.ceil(self.expansion * lengths).astype(lengths.dtype)
        extra = max(0, int(lengths.max(initial=0)) - ids.shape[1])
        return host.pad(ids, ((0, 0), (0, extra)), constant_values=self.config.pad_id), lengths

    def new_source_caches(self, memory: Tensor) -> list[DecodingState]:
        return [RowArray(memory.data)]

    def run_decoder(
        self, x: Tensor, memory: Tensor | None, spec: npx.AttentionSpec, state: DecoderState | None
    ) -> Tensor:
        packing = spec.q_packing
        batch, length = packing.shape if packing else x.shape[:2]
        flat = packing.flat_index if packing else npx.arange(batch * length)
        sentence, position = flat // max(1, length), flat % max(1, length)
        if state:
            sentence, position = npx.from_host(state.source.sources)[sentence], position + state.length
            memory = Tensor(state.source.layers[0].array)
        assert memory is not None
        source = spec.kv_packing
        lengths: Any = source.counts if source else spec.kv_lengths
        starts = source.starts if source else npx.arange(len(memory)) * memory.shape[1]
        index = npx.where(position < lengths[sentence], starts[sentence] + position, -1)
        aligned = take_rows(memory.reshape((-1, memory.shape[-1])), index).reshape(x.shape)
        x = x + aligned
        for i, layer in enumerate(self.decoder):
            x = layer(x, spec, state.layers[i] if state else None)
        assert self.decoder_norm is not None
        return self.decoder_norm(x)
