"""The decoder alone: a language model, which gives each token of a text its probability from those before it."""

from typing import Any

import npx
from autograd import Tensor, no_grad
from models.architectures.blocks import EncoderLayer, SequenceModel, causal, divisor, last_norm, matrices
from models.cache import KeysValues, State
from models.config import TransformerConfig
from models.registry import architecture
from npx import host


@architecture("decoder")
class LanguageModel(SequenceModel):
    """Causal self-attention and feed-forward layers (Radford et al., 2018). `model(ids)`: (B, T) -> (B, T, V)."""

    examples = "text"

    def build(self, c: TransformerConfig) -> None:
        self.text_positions = self.positions()
        self.layers = [EncoderLayer(c) for _ in range(c.n_layers)]
        self.norm = last_norm(c)

    def forward(self, ids: Any) -> Tensor:
        """Logits (B, T, V) of what follows each of the ids (B, T)."""
        return self.logits(self.following(npx.from_host(self.checked("text", ids))))

    def loss(
        self, ids: Any, smoothing: float = 0.0, smoothing_over: str = "all", normalizer: float | None = None
    ) -> Tensor:
        """The label-smoothed cross entropy () of ids (B, T+1), each after the first given those before it.

        Summed over those that are not padding and divided by `normalizer`: their number, or that of a whole update of
        which this batch is a part.
        """
        (ids,) = self.inputs(ids)
        tokens = divisor(normalizer, ids[:, 1:] != self.config.pad_id)
        return self.loss_of(npx.from_host(ids), smoothing=smoothing, over=smoothing_over, tokens=tokens)

    def inputs(self, ids: Any) -> tuple[npx.Array, ...]:
        """All that `loss_of` takes of a batch, still on the host."""
        return (self.checked("text", ids),)

    def loss_of(self, ids: npx.Array, *, smoothing: float, over: str, tokens: float) -> Tensor:
        """`loss` from ids on the device, of which the host need know none."""
        return self.cross_entropy(self.following(ids[:, :-1]), ids[:, 1:], smoothing, over, tokens)

    def following(self, ids: npx.Array, state: "TextState | None" = None) -> Tensor:
        """The last layer's output (B, T, D) for ids that are checked and on the device; `state` has those before."""
        start = state.length if state else 0
        x = self.text_positions.embedded(self.embedding, ids, start, self.dropout)  # (B, T, D)
        for i, layer in enumerate(self.layers):
            # Padding follows the real tokens, so that it is later than every one of them, which causality hides.
            x = layer(x, causal(x), state.layers[i] if state else None)
        return self.norm(x) if self.norm else x

    # Going on with a text, as search and sampling ask for it

    def start(self, prompts: Any) -> tuple[npx.Array, "TextState"]:
        """The last tokens (B,) of prompts (B, T), T >= 1, and the state of having read those before them."""
        ids = self.checked("text", prompts)
        if not ids.shape[1]:
            raise ValueError("text ids: expected prompts of at least one token; got none; try beginning with bos_id")
        with no_grad():
            dtype = self.embedding.weight.dtype
            state = TextState([layer.attention.start(len(ids), dtype) for layer in self.layers])
            if ids.shape[1] > 1:
                self.following(npx.from_host(ids[:, :-1]), state)
        return ids[:, -1], state

    def limits(self, prompts: npx.Array, max_extra: int) -> npx.Array:
        """The most tokens (B,) that may follow prompts (B, T): `max_extra`, or as many as there are positions for.

        ValueError where there is none for any.
        """
        room = max_extra if self.longest is None else self.longest - prompts.shape[1] + 1
        if room < 1:
            raise ValueError(
                f"prompts: expected at most max_positions = {self.longest} tokens; got {prompts.shape[1]}; "
                "try their last ones, or `sample`, which goes on with any"
            )
        return host.full(len(prompts), min(max_extra, room))

    def products(self, source_tokens: int, target_tokens: int, length: int) -> float:
        """Multiplications of one forward pass, `length` being the tokens of a typical text."""
        c = self.config
        attended = c.n_layers * c.n_heads * (c.key_size + c.value_size) * length
        return (source_tokens + target_tokens) * (matrices(*self.layers, self.embedding) + attended)


class TextState(State):
    """What reading a text has left: the keys and values of each layer."""

    def __init__(self, layers: list[KeysValues]) -> None:
        self.layers = layers

    @property
    def length(self) -> int:
        """Positions read so far."""
        return self.layers[0].length
