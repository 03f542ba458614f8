"""The Transformer: encoder, decoder, and the model that connects them (paper section 3)."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import npx
from autograd import Tensor, no_grad
from models.architectures.base import SequenceModel, checked_normalizer
from models.architectures.fast_decoder import GroupedCache, decode_step, supports_decode_step
from models.architectures.layers import DecoderLayer, EncoderLayer, make_final_norm, make_layers, record_attention
from models.cache import DecodingState, RowArray, SharedState
from models.config import TransformerConfig
from models.init import uniform
from models.layers.attention import Attention
from models.layers.norm import Norm
from models.module import Module, Parameter, evaluation_mode
from models.registry import architecture
from npx import host  # NumPy, for arrays that stay on the CPU

ATTENTION_KINDS = ("encoder", "decoder", "cross")


class Inspection(NamedTuple):
    """The internals of one pass of a Transformer.

    Attributes:
        maps: for each kind of attention, the weights (B, H, T, S) of each layer, on the host.
        hidden: the output (B, T, D) of each decoder layer, normalized like the last one, so that `model.logits` can be
            applied to each.
    """

    maps: dict[str, list[npx.Array]]
    hidden: list[Tensor]


class TargetSpaceEmbedding(Module):
    """Adds a learned vector to source embeddings, (..., D) -> (..., D), as tensor2tensor does.

    tensor2tensor trains one model for several kinds of targets, its target spaces, such as German or French text. The
    vector is the row of a table (32, D) for the kind of the target. Our models have one kind of target, so one row.
    """

    def __init__(self, d_model: int) -> None:
        self.weight = Parameter(uniform(32, d_model)[0])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class EncoderDecoder(SequenceModel):
    """Base class of encoder-decoders, with the arguments, inputs and result of `Transformer`.

    Subclasses define `make_encoder(config)` and `make_decoder(config)`, which create the layers. These layers take the
    arguments of `EncoderLayer` and `DecoderLayer` (layers.py); a decoder layer also has the methods `new_cache` and
    `new_source_cache`. A subclass whose layers are connected or called in another way overrides `apply_encoder_layers`
    or `apply_decoder_layers`.
    """

    data_kind = "pairs"
    causal_kinds: tuple[str, ...] = ("decoder",)  # the kinds (keys of `attention_layers`) that are causal
    expansion = 1.0  # encoder positions per source token; above 1 only for ByteNet
    make_encoder: Callable[[TransformerConfig], list[Any]]
    make_decoder: Callable[[TransformerConfig], list[Any]]

    def build(self, config: TransformerConfig) -> None:
        n_source = config.src_vocab_size or config.vocab_size
        self.source_embedding = None if config.shares_source else self.make_embedding(n_source)
        self.source_positions = self.make_positions()
        self.target_positions = self.make_positions()
        self.encoder = self.make_encoder(config)
        self.decoder = self.make_decoder(config)
        self.encoder_norm = self.make_final_norm(config)
        self.decoder_norm = self.make_final_norm(config)
        self.target_space = TargetSpaceEmbedding(config.d_model) if config.target_space else None

    def make_final_norm(self, config: TransformerConfig) -> Norm | None:
        """Build the norm after the last layer of a stack, or return None (the default) if there is no such norm."""
        return None

    def forward(self, src_ids: Any, tgt_ids: Any) -> Tensor:
        """Return logits (B, T, V) for source ids (B, S) and decoder input ids (B, T), which begin with BOS."""
        return self.logits(self.decode(tgt_ids, *self.encode(src_ids)))

    def loss(
        self,
        src_ids: Any,
        tgt_ids: Any,
        label_smoothing: float = 0.1,
        smoothing_classes: str = "all",
        loss_normalizer: float | None = None,
        rdrop_weight: float = 0.0,
    ) -> Tensor:
        """Return the label-smoothed cross entropy () of the target tokens.

        Args:
            src_ids: (B, S).
            tgt_ids: (B, T+1), each row with BOS, tokens, EOS, padding.
            label_smoothing: probability moved from the target to other classes, in [0, 1). Default 0.1.
            smoothing_classes: the classes that receive this probability: "all" (default), "others" or
                "others_without_pad".
            loss_normalizer: divisor of the sum over target tokens. Default: the number of target tokens, without
                padding. For a micro-batch, pass the number of target tokens of the complete update.
            rdrop_weight: weight of R-Drop's divergence between two passes with different dropout (`regularized_loss`).
                Default 0: a single pass.
        """
        src_ids, src_lengths, tgt_inputs, targets = self.checked_loss_inputs(src_ids, tgt_ids)
        src_packing = npx.Packing.from_lengths(src_lengths)
        tgt_packing = npx.Packing.from_lengths(row_lengths(targets != self.config.pad_id))
        return self.loss_on_device(
            npx.from_host(src_packing.pack(src_ids)),
            npx.from_host(src_lengths),
            npx.from_host(tgt_packing.pack(tgt_inputs)),
            npx.from_host(tgt_packing.pack(targets)),
            label_smoothing=label_smoothing,
            smoothing_classes=smoothing_classes,
            loss_normalizer=checked_normalizer(loss_normalizer, targets, self.config.pad_id),
            rdrop_weight=rdrop_weight,
            packing=(src_packing.to_device(), tgt_packing.to_device()),
        )

    def checked_loss_inputs(self, src_ids: Any, tgt_ids: Any) -> tuple[npx.Array, ...]:
        """Check ids and return the host arrays that `loss_on_device` takes: source ids, lengths, inputs, targets."""
        tgt_ids = self.checked_ids("target ids", tgt_ids)
        return *self._checked_source(src_ids), tgt_ids[:, :-1], tgt_ids[:, 1:]

    def loss_on_device(
        self,
        src_ids: npx.Array,
        src_lengths: npx.Array,
        tgt_inputs: npx.Array,
        targets: npx.Array,
        *,
        packing: tuple[npx.Packing | None, npx.Packing | None] = (None, None),
        **options: Any,
    ) -> Tensor:
        """Compute `loss` from checked arrays on the device.

        No value of these arrays is copied to the host, so a CUDA graph can contain this method
        (train/learn/cuda_graphs.py).

        Args:
            packing: the packing of source and target; None if the arrays are padded, as CUDA graphs require.
            options: as for `regularized_loss`.
        """
        src_packing, tgt_packing = packing
        if src_packing:
            spec = npx.AttentionSpec(q_packing=src_packing, kv_packing=src_packing)
        else:
            spec = npx.AttentionSpec(kv_lengths=src_lengths)

        def compute_hidden() -> Tensor:  # (B, T, D) or (R, D)
            memory, cross_spec = self._embed_and_encode(src_ids, spec)
            return self._embed_and_decode(tgt_inputs, memory, cross_spec._replace(q_packing=tgt_packing))

        return self.regularized_loss(compute_hidden, targets, **options)

    def encode(self, src_ids: Any) -> tuple[Tensor, npx.AttentionSpec]:
        """Return the memory (B, S, D) of source ids (B, S), and the spec that masks its padding."""
        ids, lengths = map(npx.from_host, self._checked_source(src_ids))
        return self._embed_and_encode(ids, npx.AttentionSpec(kv_lengths=lengths))

    def _checked_source(self, src_ids: Any) -> tuple[npx.Array, npx.Array]:
        """Return source ids (B, S) and their lengths (B,), on the host. Raises ValueError for padding within a row."""
        ids = self.checked_ids("source ids", src_ids, self.config.src_vocab_size)
        return ids, checked_lengths("source ids", ids, self.config.pad_id)

    def _embed_and_encode(self, src_ids: npx.Array, spec: npx.AttentionSpec) -> tuple[Tensor, npx.AttentionSpec]:
        """Return the memory for checked ids on the device, (B, S) or packed (R,), and the spec for cross-attention."""
        embedding = self.source_embedding or self.embedding
        x = self.embed(self.source_positions, embedding, src_ids, spec.q_packing or 0, self.target_space)
        return self.apply_encoder_layers(x, spec), spec

    def apply_encoder_layers(self, x: Tensor, spec: npx.AttentionSpec) -> Tensor:
        """Return the memory for embedded sources x, (B, S, D) or packed (R, D). It has the shape of x."""
        for layer in self.encoder:
            x = layer(x, spec)
        return self.encoder_norm(x) if self.encoder_norm else x

    def decode(self, tgt_ids: Any, memory: Tensor, cross_spec: npx.AttentionSpec) -> Tensor:
        """Return the decoder's output (B, T, D) for decoder input ids (B, T) and the result of `encode`."""
        return self._embed_and_decode(npx.from_host(self.checked_ids("target ids", tgt_ids)), memory, cross_spec)

    def _embed_and_decode(
        self,
        tgt_ids: npx.Array,
        memory: Tensor | None,
        cross_spec: npx.AttentionSpec,
        state: "EncoderDecoderState | None" = None,
    ) -> Tensor:
        """Decode checked ids on the device, (B, T) -> (B, T, D), or packed, (R,) -> (R, D).

        Args:
            cross_spec: the spec of cross-attention; its `q_packing` is the packing of the ids.
            state: the decoding state, which holds keys and values of the memory; `memory` is then None.
        """
        q_packing = cross_spec.q_packing
        kv_packing = cross_spec.kv_packing
        if memory is not None:
            n_rows = q_packing.padded_shape[0] if q_packing else len(tgt_ids)
            n_sources = kv_packing.padded_shape[0] if kv_packing else len(memory)
            if n_rows != n_sources:
                raise ValueError(f"target ids: expected {n_sources} rows, one per source; got {n_rows}")
        start = state.length if state else q_packing or 0
        zero_bos = None
        if self.config.decoder_start == "pad":
            tgt_ids = npx.where(tgt_ids == self.config.bos_id, self.config.pad_id, tgt_ids)
        elif self.config.decoder_start == "zeros":
            is_token = (tgt_ids != self.config.bos_id)[..., None]
            zero_bos = lambda x: x * is_token.astype(x.dtype)  # noqa: E731
        x = self.embed(self.target_positions, self.embedding, tgt_ids, start, zero_bos)
        x = self.apply_decoder_layers(x, memory, cross_spec, state)
        if state:
            state.length += tgt_ids.shape[1]
        return x

    def apply_decoder_layers(
        self, x: Tensor, memory: Tensor | None, cross_spec: npx.AttentionSpec, state: "EncoderDecoderState | None"
    ) -> Tensor:
        """Return the decoder's output for embedded targets x. It has the shape of x.

        Other arguments: see `_embed_and_decode`.
        """
        for i, layer in enumerate(self.decoder):
            # Padding needs no mask: it follows the tokens, so the causal mask hides it from them.
            x = layer(x, memory, cross_spec, *(state.layer_caches(i) if state else ()))
        return self.decoder_norm(x) if self.decoder_norm else x

    # Decoding (models/search/protocol.py)

    def start_decoding(self, src_ids: Any) -> tuple[npx.Array, "EncoderDecoderState"]:
        """Return the first tokens (B,), all BOS, and the decoding state of source ids (B, S)."""
        with no_grad():
            memory, spec = self.encode(src_ids)
            caches = self.new_caches(memory)
            source_caches = self.new_source_caches(memory)
        assert spec.kv_lengths is not None
        state = EncoderDecoderState(caches, SourceState(spec.kv_lengths, source_caches))
        return host.full(len(memory), self.config.bos_id), state

    def new_caches(self, memory: Tensor) -> list[Any]:
        """Return an empty cache of target positions for each layer."""
        return [layer.new_cache(len(memory), memory.dtype) for layer in self.decoder]

    def new_source_caches(self, memory: Tensor) -> list[DecodingState]:
        """Return the caches computed from the memory (B, S, D): by default, its keys and values for each layer."""
        return [layer.new_source_cache(memory) for layer in self.decoder]

    def hidden_states(self, ids: npx.Array, state: "EncoderDecoderState") -> Tensor:
        """Return the decoder's output (R, T, D) for the next ids (R, T) of a state."""
        return self._embed_and_decode(ids, None, npx.AttentionSpec(kv_lengths=state.source.lengths.array), state)

    def length_limits(self, src_ids: npx.Array, max_extra_tokens: int) -> npx.Array:
        """Return the maximum target lengths (B,), EOS included: the number of source tokens plus `max_extra_tokens`."""
        is_token = (src_ids != self.config.pad_id) & (src_ids != self.config.eos_id)
        limits = is_token.sum(axis=1) + max_extra_tokens
        return limits if self.max_length is None else host.minimum(limits, self.max_length)

    # Inspection

    def attention_maps(self, src_ids: Any, tgt_ids: Any, kind: str = "cross") -> list[npx.Array]:
        """Return the attention weights (B, H, T, S) of each layer, on the host, for decoder input ids (B, T).

        Args:
            kind: "cross" (decoder to source), "encoder" or "decoder" (self-attention).

        Raises ValueError for any other kind.
        """
        layers = self.attention_layers()
        if kind not in layers:
            raise ValueError(f"attention_maps: expected one of {', '.join(layers)}; got {kind!r}")
        return self.inspect(src_ids, tgt_ids, (kind,)).maps[kind]

    def attention_layers(self) -> dict[str, list[Attention]]:
        """Return the attention layers by kind ("encoder", "decoder", "cross"), skipping layers without attention."""
        locations = {
            "cross": ("cross_attention", self.decoder),
            "encoder": ("attention", self.encoder),
            "decoder": ("attention", self.decoder),
        }
        return {
            kind: [getattr(layer, name) for layer in layers if hasattr(layer, name)]
            for kind, (name, layers) in locations.items()
        }

    def inspect(self, src_ids: Any, tgt_ids: Any, kinds: Iterable[str] = ATTENTION_KINDS) -> Inspection:
        """Run one pass in evaluation mode and return its attention weights and hidden states.

        Hooks that the layers already have are not called.

        Args:
            src_ids: (B, S).
            tgt_ids: decoder input ids (B, T).
            kinds: the kinds of attention whose weights to return.
        """
        layer_inputs: list[Tensor] = []
        previous_hooks = [layer.hook for layer in self.decoder]
        for layer in self.decoder:
            layer.hook = lambda x, *args: layer_inputs.append(x)
        try:
            layers = self.attention_layers()
            with evaluation_mode(self), record_attention({kind: layers[kind] for kind in kinds}) as maps:
                last = self.decode(tgt_ids, *self.encode(src_ids))
        finally:
            for layer, hook in zip(self.decoder, previous_hooks, strict=True):
                layer.hook = hook
        norm = self.decoder_norm or (lambda x: x)
        with no_grad():
            hidden = [*(norm(x) for x in layer_inputs[1:]), last]
        return Inspection(maps, hidden)


def checked_lengths(name: str, ids: npx.Array, pad_id: int) -> npx.Array:
    """Return the lengths (B,) of rows of ids (B, T). Raises ValueError for padding within a row."""
    mask = ids != pad_id
    lengths = row_lengths(mask)
    if lengths.sum() != mask.sum():
        row = (lengths != mask.sum(axis=1)).argmax()
        raise ValueError(
            f"{name}: expected padding ({pad_id}) at the end of a row only; got row {row} with padding before a token; "
            "try moving the padding to the end"
        )
    return lengths


def row_lengths(mask: npx.Array) -> npx.Array:
    """Return, for each row of mask (B, T), the number of positions (B,) up to and including its last True."""
    return (mask * host.arange(1, mask.shape[1] + 1)).max(axis=1, initial=0)


@architecture("encoder_decoder")
class Transformer(EncoderDecoder):
    """The encoder-decoder of the paper. `model(src_ids, tgt_ids)` returns logits (B, T, V).

    Args:
        config: a TransformerConfig.
        seed: seed of the initialization. Default 0.
        dtype: dtype of the parameters. Default float32.

    Ids are integer arrays: `src_ids` (B, S), each row with tokens, EOS, padding; `tgt_ids` (B, T), each row beginning
    with BOS. Anything else raises ValueError.
    """

    def make_encoder(self, config: TransformerConfig) -> list[EncoderLayer]:
        return make_layers(lambda: EncoderLayer(config), config)

    def make_decoder(self, config: TransformerConfig) -> list[DecoderLayer]:
        return make_layers(lambda: DecoderLayer(config), config)

    def make_final_norm(self, config: TransformerConfig) -> Norm | None:
        return make_final_norm(config)

    def new_caches(self, memory: Tensor) -> list[Any]:
        """Return one cache for all layers if `decode_step` (fast_decoder.py) supports them, otherwise one per layer."""
        if supports_decode_step(self.decoder, memory.data):
            return [GroupedCache(self.decoder, len(memory), memory.dtype)]
        return super().new_caches(memory)

    def apply_decoder_layers(
        self, x: Tensor, memory: Tensor | None, cross_spec: npx.AttentionSpec, state: "EncoderDecoderState | None"
    ) -> Tensor:
        if state and isinstance(state.caches[0], GroupedCache):
            positions = x.data.swapaxes(0, 1)  # (T, R, D)
            steps = [decode_step(self.decoder, y, state.caches[0], state.source) for y in positions]
            y = Tensor(host.stack(steps, axis=1))
            return self.decoder_norm(y) if self.decoder_norm else y
        return super().apply_decoder_layers(x, memory, cross_spec, state)


class SourceState(SharedState):
    """The encoded sources during decoding: their lengths, and the caches that the layers computed from the memory."""

    def __init__(self, lengths: npx.Array, caches: list[Any]) -> None:
        super().__init__(len(lengths))
        self.lengths = RowArray(lengths)
        self.caches = caches


class EncoderDecoderState(DecodingState):
    """The decoding state: the number of decoded positions (`length`), the cache of each layer, and the source."""

    def __init__(self, caches: list[Any], source: SourceState) -> None:
        self.caches, self.source = caches, source
        self.length = 0

    def layer_caches(self, i: int) -> tuple[Any, Any]:
        """Return the two caches of layer i: one for the target positions and one for the source."""
        return self.caches[i], self.source.caches[i]
