"""The Transformer: encoder, decoder, and the model that ties them together (paper section 3). Next: `search.py`."""

from typing import Any

import npx
from autograd import Tensor, neural, no_grad
from models.attention import AttentionCache, MultiHeadAttention
from models.config import TransformerConfig
from models.layers import Dropout, Embedding, FeedForward, LayerNorm, Positions, Residual
from models.module import Module


class EncoderLayer(Module):
    """Self-attention and feed-forward, each inside a residual connection. (B, S, D) -> (B, S, D)."""

    def __init__(self, c: TransformerConfig) -> None:
        self.attention = new_attention(c)
        self.attention_residual = new_residual(c)
        self.feed_forward = FeedForward(c.d_model, c.d_ff, c.activation_dropout)
        self.feed_forward_residual = new_residual(c)

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        x = self.attention_residual(x, lambda y: self.attention(y, mask=mask))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(Module):
    """Masked self-attention, attention to the encoder's output, feed-forward. (B, T, D) -> (B, T, D)."""

    def __init__(self, c: TransformerConfig) -> None:
        self.attention = new_attention(c)
        self.attention_residual = new_residual(c)
        self.cross_attention = new_attention(c, cross=True)
        self.cross_attention_residual = new_residual(c)
        self.feed_forward = FeedForward(c.d_model, c.d_ff, c.activation_dropout)
        self.feed_forward_residual = new_residual(c)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Any, causal_mask: Any) -> Tensor:
        x = self.attention_residual(x, lambda y: self.attention(y, mask=causal_mask))
        x = self.cross_attention_residual(x, lambda y: self.cross_attention(y, memory, source_mask))
        return self.feed_forward_residual(x, self.feed_forward)

    def step(self, x: Tensor, caches: tuple[AttentionCache, AttentionCache], source_mask: Any) -> Tensor:
        """One position (R, 1, D) -> (R, 1, D), with the caches of both attentions."""
        own, cross = caches
        x = self.attention_residual(x, lambda y: self.attention.step(y, own))
        x = self.cross_attention_residual(x, lambda y: self.cross_attention.step(y, cross, source_mask))
        return self.feed_forward_residual(x, self.feed_forward)


def new_attention(c: TransformerConfig, cross: bool = False) -> MultiHeadAttention:
    """An attention as the configuration says."""
    return MultiHeadAttention(
        c.d_model, c.n_heads, c.d_k, c.d_v, cross=cross, bias=c.attention_bias, dropout=c.attention_dropout
    )


def new_residual(c: TransformerConfig) -> Residual:
    """A residual connection as the configuration says."""
    return Residual(c.d_model, c.dropout, c.norm, c.layer_norm_eps)


class Transformer(Module):
    """The encoder-decoder of the paper. `model(src_ids, tgt_ids)`: (B, S), (B, T) integers -> logits (B, T, V).

    One matrix serves as source embedding, target embedding and output projection (paper section 3.4). Ids are NumPy
    integer arrays; sequences are padded at their end with `config.pad_id`. ValueError for ids that are none.
    """

    def __init__(self, config: TransformerConfig, seed: int = 0, dtype: Any = npx.float32) -> None:
        self.config = c = config
        with npx.keyed(seed, 0):
            self.embedding = Embedding(c.vocab_size, c.d_model, c.pad_id, c.embedding_init)
            self.source_positions = Positions(c.d_model, c.positions, c.max_positions)
            self.target_positions = Positions(c.d_model, c.positions, c.max_positions)
            self.dropout = Dropout(c.dropout)
            self.encoder = [EncoderLayer(c) for _ in range(c.n_layers)]
            self.decoder = [DecoderLayer(c) for _ in range(c.n_layers)]
        # Pre-norm leaves the last layer's sum unnormalised, so each stack ends in a norm of its own.
        self.encoder_norm = LayerNorm(c.d_model, c.layer_norm_eps) if c.norm == "pre" else None
        self.decoder_norm = LayerNorm(c.d_model, c.layer_norm_eps) if c.norm == "pre" else None
        for p in self.parameters():
            p.data = p.data.astype(dtype, copy=False)

    def forward(self, src: Any, tgt: Any) -> Tensor:
        """Logits (B, T, V) for source ids (B, S) and decoder input ids (B, T), which begin with BOS."""
        memory, source_mask = self._encode(self._ids("source", src))
        hidden = self._decode(self._ids("target", tgt), memory, source_mask)
        return neural.linear(hidden, self.embedding.weight.transpose())  # (B, T, V)

    def loss(
        self,
        src: Any,
        tgt: Any,
        smoothing: float = 0.1,
        smoothing_over: str = "all",
        normalizer: float | None = None,
    ) -> Tensor:
        """The label-smoothed cross entropy () of target ids tgt (B, T+1), BOS ... EOS, given source ids src (B, S).

        Summed over the target tokens that are not padding and divided by `normalizer`: their number, or that of a whole
        update of which this batch is a part.
        """
        ids = self._checked("target", tgt)
        tokens = normalizer or int((ids[:, 1:] != self.config.pad_id).sum()) or 1
        memory, source_mask = self._encode(self._ids("source", src))
        tgt = npx.from_host(ids)
        hidden = self._decode(tgt[:, :-1], memory, source_mask)  # (B, T, D)
        targets = tgt[:, 1:]
        total = neural.linear_cross_entropy(
            hidden, self.embedding.weight, targets, smoothing, smoothing_over, self.config.pad_id
        )
        return total * (1 / float(tokens))

    def encode(self, src: Any) -> tuple[Tensor, Any]:
        """Memory (B, S, D), and the mask (B, 1, 1, S) that is True at source tokens, for source ids (B, S)."""
        return self._encode(self._ids("source", src))

    def _encode(self, src: Any) -> tuple[Tensor, Any]:
        """`encode` for ids that are checked and on the device."""
        mask = (src != self.config.pad_id)[:, None, None, :]
        x = self.dropout(self.source_positions(self.embedding(src)))  # (B, S, D)
        for layer in self.encoder:
            x = layer(x, mask)
        return (self.encoder_norm(x) if self.encoder_norm else x), mask

    def decode(self, tgt: Any, memory: Tensor, source_mask: Any) -> Tensor:
        """The decoder's output (B, T, D) for decoder input ids (B, T)."""
        return self._decode(self._ids("target", tgt), memory, source_mask)

    def _decode(self, tgt: Any, memory: Tensor, source_mask: Any) -> Tensor:
        """`decode` for ids that are checked and on the device."""
        if len(tgt) != len(memory):
            raise ValueError(f"target ids: expected {len(memory)} rows, one for each source; got {len(tgt)}")
        x = self.dropout(self.target_positions(self.embedding(tgt)))  # (B, T, D)
        # Padding follows the real tokens, so a mask of later positions hides it from every one of them.
        causal = npx.tril(npx.ones((tgt.shape[1], tgt.shape[1]), npx.bool_))
        for layer in self.decoder:
            x = layer(x, memory, source_mask, causal)
        return self.decoder_norm(x) if self.decoder_norm else x

    def start_cache(self, memory: Tensor, source_mask: Any) -> "DecoderCache":
        """The state of decoding at its start: keys and values of `memory` are computed here, once."""
        with no_grad():
            return DecoderCache(
                [(layer.attention.start(memory), layer.cross_attention.start(memory)) for layer in self.decoder],
                source_mask,
            )

    def decode_step(self, tokens: Any, cache: "DecoderCache") -> Any:
        """Logits (R, V), an array, of the token that follows `tokens` (R,); moves the cache on by one position."""
        with no_grad():
            x = self.target_positions(self.embedding(self._ids("target", tokens[:, None])), start=cache.length)
            x = self.dropout(x)  # (R, 1, D)
            for layer, caches in zip(self.decoder, cache.layers, strict=True):
                x = layer.step(x, caches, cache.source_mask)
            x = self.decoder_norm(x) if self.decoder_norm else x
            return npx.linear(x.data[:, 0], self.embedding.weight.data.T)[0]  # (R, V)

    def attention_maps(self, src: Any, tgt: Any) -> list[Any]:
        """Encoder-decoder attention weights (B, H, T, S) of each decoder layer, for decoder input ids tgt (B, T)."""
        attentions = [layer.cross_attention for layer in self.decoder]
        for attention in attentions:
            attention.keep_weights = True
        try:
            with no_grad():
                self.decode(tgt, *self.encode(src))
            return [npx.to_host(attention.weights) for attention in attentions]
        finally:
            for attention in attentions:
                attention.keep_weights, attention.weights = False, None

    def _ids(self, side: str, ids: Any) -> Any:
        """Ids checked and on the device: this is where a batch is uploaded."""
        return npx.from_host(self._checked(side, ids))

    def _checked(self, side: str, ids: Any) -> Any:
        """Ids on the host, where checking them makes nobody wait."""
        ids = npx.to_host(ids)
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise ValueError(f"{side} ids: expected a 2-D integer array; got {ids.ndim}-D {ids.dtype}")
        if ids.size and not (0 <= ids.min() and ids.max() < self.config.vocab_size):
            raise ValueError(
                f"{side} ids: expected numbers from 0 to {self.config.vocab_size - 1}; "
                f"got {ids.min()} to {ids.max()}; try the tokenizer that belongs to the model"
            )
        return ids


class DecoderCache:
    """What decoding remembers: for each layer its own keys and values, and those of the source sentence.

    Rows are hypotheses. Neighbouring rows with the same source share its keys and values where every source has
    equally many rows, which is how beam search keeps them. Which row has which source is kept on the host.
    """

    def __init__(self, layers: list[tuple[AttentionCache, AttentionCache]], source_mask: Any) -> None:
        self.layers, self.source_mask = layers, source_mask
        self.sources = npx.host.arange(len(source_mask))  # (R,) the source of each row

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.layers[0][0].length

    def select(self, rows: Any) -> None:
        """Keep, repeat or reorder rows (NumPy integers), in place: beams that win, sentences that are done."""
        on_device = npx.from_host(rows)
        for own, _ in self.layers:
            own.select(on_device)
        self.sources = self.sources[rows]
        kept, sources = npx.unique(self.sources, return_inverse=True)
        shared = len(sources) // max(1, len(kept))
        if not npx.array_equal(sources, npx.repeat(npx.host.arange(len(kept)), shared)):
            kept, sources = self.sources, npx.host.arange(len(rows))  # rows in no such order: one copy for each
        if not npx.array_equal(kept, npx.host.arange(len(self.source_mask))):
            on_device = npx.from_host(kept)
            for _, cross in self.layers:
                cross.select(on_device)
            self.source_mask = self.source_mask[on_device]
        self.sources = sources
