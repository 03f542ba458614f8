"""The Transformer: encoder, decoder, and the model that ties them together (paper section 3)."""

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import npx
from autograd import Tensor, no_grad
from models.architectures.blocks import DecoderLayer, EncoderLayer, SequenceModel, divisor, last_norm, matrices
from models.cache import KeysValues, Rows, Shared, State
from models.config import TransformerConfig
from models.layers.attention import Attention
from models.modes import evaluating
from models.registry import architecture
from npx import host

KINDS = ("encoder", "decoder", "cross")  # of attention


class Inside(NamedTuple):
    """What happens inside of one pass: weights by kind and layer, (B, H, T, S) on the host; what each layer gives.

    `hidden`: of each decoder layer its output (B, T, D), normed as the last one's is: `model.logits` reads it off.
    """

    maps: dict[str, list[npx.Array]]
    hidden: list[Tensor]


@architecture("encoder_decoder")
class Transformer(SequenceModel):
    """The encoder-decoder of the paper. `model(src_ids, tgt_ids)`: (B, S), (B, T) integers -> logits (B, T, V)."""

    examples = "pairs"

    def build(self, c: TransformerConfig) -> None:
        self.source_positions, self.target_positions = self.positions(), self.positions()
        self.encoder = [EncoderLayer(c) for _ in range(c.n_layers)]
        self.decoder = [DecoderLayer(c) for _ in range(c.n_layers)]
        self.encoder_norm, self.decoder_norm = last_norm(c), last_norm(c)

    def forward(self, src: Any, tgt: Any) -> Tensor:
        """Logits (B, T, V) for source ids (B, S) and decoder input ids (B, T), which begin with BOS."""
        return self.logits(self.decode(tgt, *self.encode(src)))

    def loss(
        self, src: Any, tgt: Any, smoothing: float = 0.1, smoothing_over: str = "all", normalizer: float | None = None
    ) -> Tensor:
        """The label-smoothed cross entropy () of target ids tgt (B, T+1), BOS ... EOS, given source ids src (B, S).

        Summed over the target tokens that are not padding and divided by `normalizer`: their number, or that of a whole
        update of which this batch is a part.
        """
        source, lengths, before, after = self.inputs(src, tgt)
        real = after != self.config.pad_id
        tokens = divisor(normalizer, real)
        sources, targets = npx.pack(lengths), npx.pack(lengths_of(real))
        inputs = map(npx.from_host, (sources.rows(source), lengths, targets.rows(before), targets.rows(after)))
        packing = sources.to_device(), targets.to_device()
        return self.loss_of(*inputs, smoothing=smoothing, over=smoothing_over, tokens=tokens, packing=packing)

    def inputs(self, src: Any, tgt: Any) -> tuple[npx.Array, ...]:
        """All arrays that `loss_of` takes, on the host: source ids, their lengths (B,), decoder input ids, targets."""
        tgt = self.checked("target", tgt)
        return *self._source(src), tgt[:, :-1], tgt[:, 1:]

    def loss_of(
        self,
        src: npx.Array,
        lengths: npx.Array,
        before: npx.Array,
        after: npx.Array,
        *,
        smoothing: float,
        over: str,
        tokens: float,
        packing: tuple[npx.Packing | None, npx.Packing | None] = (None, None),
    ) -> Tensor:
        """`loss` from arrays on the device, of which the host need know no number but how both sides are `packing`.

        None: not at all, which needs their shapes alone (train/learn/graphs.py).
        """
        sources, targets = packing
        spec = (
            npx.AttentionSpec(q_packing=sources, kv_packing=sources)
            if sources
            else npx.AttentionSpec(kv_lengths=lengths)
        )
        memory, source = self._encode(src, spec)
        hidden = self._decode(before, memory, source._replace(q_packing=targets))  # (B, T, D) or (N, D)
        return self.cross_entropy(hidden, after, smoothing, over, tokens)

    def encode(self, src: Any) -> tuple[Tensor, npx.AttentionSpec]:
        """Memory (B, S, D) for source ids (B, S), and what of it may be attended to: the positions before padding."""
        ids, lengths = map(npx.from_host, self._source(src))
        return self._encode(ids, npx.AttentionSpec(kv_lengths=lengths))

    def _source(self, src: Any) -> tuple[npx.Array, npx.Array]:
        """Source ids (B, S) and their lengths (B,), on the host."""
        ids = self.checked("source", src)
        real = ids != self.config.pad_id
        lengths = lengths_of(real)
        if lengths.sum() != real.sum():
            raise ValueError(
                f"source ids: expected padding ({self.config.pad_id}) at the end of a row only; "
                f"got row {(lengths != real.sum(axis=1)).argmax()} with padding before its end; try moving it"
            )
        return ids, lengths

    def _encode(self, ids: npx.Array, spec: npx.AttentionSpec) -> tuple[Tensor, npx.AttentionSpec]:
        """`encode` for ids that are checked and on the device, (B, S), or packed, (N,)."""
        x = self.source_positions.embedded(self.embedding, ids, spec.q_packing or 0, self.dropout)
        for layer in self.encoder:
            x = layer(x, spec)
        return (self.encoder_norm(x) if self.encoder_norm else x), spec

    def decode(self, tgt: Any, memory: Tensor, source: npx.AttentionSpec) -> Tensor:
        """The decoder's output (B, T, D) for decoder input ids (B, T)."""
        return self._decode(npx.from_host(self.checked("target", tgt)), memory, source)

    def _decode(
        self, tgt: npx.Array, memory: Tensor | None, source: npx.AttentionSpec, state: "DecoderState | None" = None
    ) -> Tensor:
        """`decode` for ids that are checked and on the device; `state` has the positions before, and the memory.

        ids and result are packed where `source` says so: (N,) and (N, D).
        """
        if memory is not None:
            rows = source.q_packing.shape[0] if source.q_packing else len(tgt)
            sources = source.kv_packing.shape[0] if source.kv_packing else len(memory)
            if rows != sources:
                raise ValueError(f"target ids: expected {sources} rows, one for each source; got {rows}")
        start = state.length if state else source.q_packing or 0
        x = self.target_positions.embedded(self.embedding, tgt, start, self.dropout)
        for i, layer in enumerate(self.decoder):
            # Padding follows the real tokens, so that it is later than every one of them, which causality hides.
            x = layer(x, memory, source, *((state.own[i], state.source.layers[i]) if state else ()))
        return self.decoder_norm(x) if self.decoder_norm else x

    # Decoding, as search asks for it

    def start(self, src: Any) -> tuple[npx.Array, "DecoderState"]:
        """The first tokens (B,) and the state of decoding source ids (B, S): its keys and values, computed once."""
        with no_grad():
            memory, source = self.encode(src)
            own = [layer.attention.start(len(memory), memory.dtype) for layer in self.decoder]
            cross = [layer.cross_attention.start(memory) for layer in self.decoder]
        assert source.kv_lengths is not None
        return host.full(len(memory), self.config.bos_id), DecoderState(own, SourceState(source.kv_lengths, cross))

    def following(self, ids: npx.Array, state: "DecoderState") -> Tensor:
        return self._decode(ids, None, npx.AttentionSpec(kv_lengths=state.source.lengths.array), state)

    def limits(self, src: npx.Array, max_extra: int) -> npx.Array:
        """The most tokens (B,), EOS counted, that may be found for source ids (B, S): the source's and `max_extra`."""
        limits = ((src != self.config.pad_id) & (src != self.config.eos_id)).sum(axis=1) + max_extra
        return limits if self.longest is None else host.minimum(limits, self.longest)

    def attention_maps(self, src: Any, tgt: Any, kind: str = "cross") -> list[npx.Array]:
        """Attention weights (B, H, T, S) of each layer, for decoder input ids tgt (B, T), on the host.

        kind "cross": of the decoder to the source; "encoder" and "decoder": of a side to itself.
        """
        attentions = self.attentions()
        if kind not in attentions:
            raise ValueError(f"attention_maps: expected kind {', '.join(attentions)}; got {kind!r}")
        return self.inside(src, tgt, (kind,)).maps[kind]

    def attentions(self) -> dict[str, list[Attention]]:
        """The attention of each layer, by kind."""
        return {
            "cross": [layer.cross_attention for layer in self.decoder],
            "encoder": [layer.attention for layer in self.encoder],
            "decoder": [layer.attention for layer in self.decoder],
        }

    def inside(self, src: Any, tgt: Any, kinds: Iterable[str] = KINDS) -> "Inside":
        """What one pass without dropout and a graph does inside, for source ids (B, S) and decoder input ids (B, T).

        Hooks of one's own are not called by it.
        """
        attentions = {kind: self.attentions()[kind] for kind in kinds}
        maps: dict[str, list[npx.Array]] = {kind: [] for kind in attentions}
        entered: list[Tensor] = []
        watched = [*chain(*attentions.values()), *self.decoder]
        hooks = [module.hook for module in watched]
        for kind, layers in attentions.items():
            for layer in layers:
                layer.hook = lambda *args, kind=kind, layer=layer: maps[kind].append(npx.to_host(layer.weights(*args)))
        for block in self.decoder:
            block.hook = lambda x, *args: entered.append(x)
        try:
            with evaluating(self):
                last = self.decode(tgt, *self.encode(src))
        finally:
            for module, hook in zip(watched, hooks, strict=True):
                module.hook = hook
        norm = self.decoder_norm or (lambda x: x)
        with no_grad():
            hidden = [*(norm(x) for x in entered[1:]), last]
        return Inside(maps, hidden)

    def products(self, source_tokens: int, target_tokens: int, length: int) -> float:
        """Multiplications of one forward pass, `length` being the tokens of a typical sentence."""
        c = self.config
        attended = c.n_layers * c.n_heads * (c.key_size + c.value_size) * length  # of one attention in each layer
        of_source = matrices(*(layer.cross_attention.key_value for layer in self.decoder))  # made once a source token
        source = matrices(*self.encoder) + of_source + attended
        target = matrices(*self.decoder) + self.outputs.size - of_source + 2 * attended
        return source_tokens * source + target_tokens * target


def lengths_of(real: npx.Array) -> npx.Array:
    """Positions (B,) of each row of real (B, T) up to the last that is True."""
    return (real * host.arange(1, real.shape[1] + 1)).max(axis=1, initial=0)


class SourceState(Shared):
    """What decoding needs of the source sentences: their lengths, and for each layer their keys and values."""

    def __init__(self, lengths: npx.Array, layers: list[KeysValues]) -> None:
        super().__init__(len(lengths))
        self.lengths, self.layers = Rows(lengths), layers


class DecoderState(State):
    """What decoding remembers: for each layer its own keys and values, and the source."""

    def __init__(self, own: list[KeysValues], source: SourceState) -> None:
        self.own, self.source = own, source

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.own[0].length
