"""The decoder-only architecture: a language model, which predicts each token of a text from the tokens before it."""

from typing import Any

import npx
from autograd import Tensor, no_grad
from models.architectures.base import SequenceModel, checked_normalizer
from models.architectures.layers import EncoderLayer, causal_spec, make_final_norm, make_layers, record_attention
from models.cache import DecodingState, KeyValueCache
from models.config import TransformerConfig
from models.layers.attention import Attention
from models.module import evaluation_mode
from models.registry import architecture
from npx import host  # NumPy, for arrays that stay on the CPU


@architecture("decoder")
class LanguageModel(SequenceModel):
    """Causal self-attention and feed-forward layers (Radford et al., 2018). `model(ids)`: (B, T) -> (B, T, V)."""

    data_kind = "text"
    causal_kinds: tuple[str, ...] = ("text",)

    def build(self, config: TransformerConfig) -> None:
        self.text_positions = self.make_positions()
        self.layers = make_layers(lambda: EncoderLayer(config, causal=True), config)
        self.norm = make_final_norm(config)

    def forward(self, ids: Any) -> Tensor:
        """Return logits (B, T, V) of the token after each of the ids (B, T)."""
        return self.logits(self.hidden_states(npx.from_host(self.checked_ids("text ids", ids))))

    def loss(
        self,
        ids: Any,
        label_smoothing: float = 0.0,
        smoothing_classes: str = "all",
        loss_normalizer: float | None = None,
        rdrop_weight: float = 0.0,
    ) -> Tensor:
        """Return the label-smoothed cross entropy () of the tokens, each predicted from the tokens before it.

        Args:
            ids: (B, T+1). The first token of each row is not predicted.
            label_smoothing: as for `Transformer.loss`. Default 0.

        Other arguments: see `Transformer.loss`.
        """
        (ids,) = self.checked_loss_inputs(ids)
        return self.loss_on_device(
            npx.from_host(ids),
            label_smoothing=label_smoothing,
            smoothing_classes=smoothing_classes,
            loss_normalizer=checked_normalizer(loss_normalizer, ids[:, 1:], self.config.pad_id),
            rdrop_weight=rdrop_weight,
        )

    def checked_loss_inputs(self, ids: Any) -> tuple[npx.Array, ...]:
        """Check ids and return the host arrays that `loss_on_device` takes: only the ids."""
        return (self.checked_ids("text ids", ids),)

    def loss_on_device(self, ids: npx.Array, **options: Any) -> Tensor:
        """Compute `loss` from checked ids on the device; options as for `regularized_loss`.

        The ids are not copied to the host, so a CUDA graph can contain this method (train/learn/cuda_graphs.py).
        """
        return self.regularized_loss(lambda: self.hidden_states(ids[:, :-1]), ids[:, 1:], **options)

    def hidden_states(self, ids: npx.Array, state: "TextState | None" = None) -> Tensor:
        """Return the last layer's output (B, T, D) for checked ids on the device.

        Args:
            state: the keys and values of the positions before `ids`. Default None: `ids` are complete texts.
        """
        start = state.length if state else 0
        x = self.embed(self.text_positions, self.embedding, ids, start)  # (B, T, D)
        for i, layer in enumerate(self.layers):
            # Padding needs no mask: it follows the tokens, so causality hides it from them.
            x = layer(x, causal_spec(x), state.caches[i] if state else None)
        return self.norm(x) if self.norm else x

    def attention_layers(self) -> dict[str, list[Attention]]:
        """Return the attention layers, under the key "text"."""
        return {"text": [layer.attention for layer in self.layers]}

    def attention_maps(self, ids: Any) -> list[npx.Array]:
        """Return the attention weights (B, H, T, T) of each layer, on the host, for ids (B, T)."""
        with evaluation_mode(self), record_attention(self.attention_layers()) as maps:
            self.hidden_states(npx.from_host(self.checked_ids("text ids", ids)))
        return maps["text"]

    # Decoding (models/search/protocol.py)

    def start_decoding(self, prompts: Any) -> tuple[npx.Array, "TextState"]:
        """Read the prompts (B, T), T >= 1, except their last tokens; return these tokens (B,) and the state."""
        ids = self.checked_ids("text ids", prompts)
        if not ids.shape[1]:
            raise ValueError(
                "text ids: expected prompts of at least one token; got empty prompts; try starting with bos_id"
            )
        with no_grad():
            dtype = self.embedding.weight.dtype
            state = TextState([layer.attention.new_cache(len(ids), dtype) for layer in self.layers])
            if ids.shape[1] > 1:
                self.hidden_states(npx.from_host(ids[:, :-1]), state)
        return ids[:, -1], state

    def length_limits(self, prompts: npx.Array, max_extra_tokens: int) -> npx.Array:
        """Return the maximum number of tokens (B,) that may follow prompts (B, T).

        This is `max_extra_tokens` or the number of positions left, if that is smaller. Raises ValueError if there are
        no positions left.
        """
        positions_left = max_extra_tokens if self.max_length is None else self.max_length - prompts.shape[1] + 1
        if positions_left < 1:
            raise ValueError(
                f"prompts: expected at most max_positions = {self.max_length} tokens; got {prompts.shape[1]}; "
                "try their last tokens, or `sample`, which continues prompts of any length"
            )
        return host.full(len(prompts), min(max_extra_tokens, positions_left))


class TextState(DecodingState):
    """The state after reading a text: the keys and values of each layer."""

    def __init__(self, caches: list[KeyValueCache]) -> None:
        self.caches = caches

    @property
    def length(self) -> int:
        """Number of positions read so far."""
        return self.caches[0].length
