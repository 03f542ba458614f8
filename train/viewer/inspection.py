"""What a translation model does with one sentence: pieces as text, its translation, all heads, a head switched off.

Here are the numbers; heads.py draws them in a file, page/ shows them in a browser.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import npx
from models.search import Hypothesis, beam_search
from models.search.tree import ForcedPrefix
from train.errors import UserError

LONGEST = 256  # pieces of a sentence that is looked at, with its end
ABOUT = {  # kind of attention -> what its rows and columns are
    "encoder": ("source piece", "source piece that it looks at"),
    "decoder": ("piece that is written", "piece written before that it looks at"),
    "cross": ("piece that is written", "source piece that it looks at"),
}


class Head(NamedTuple):
    """One head, counted from 0: "encoder.0.3"."""

    kind: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


def all_heads(model: Any) -> list[Head]:
    """Every head of a model, those of the encoder first."""
    layers, heads = model.config.n_layers, model.config.n_heads
    return [Head(kind, layer, head) for kind in ABOUT for layer in range(layers) for head in range(heads)]


@contextmanager
def without(model: Any, heads: Iterable[Head]) -> Iterator[None]:
    """The model with these heads switched off for the block: what they give is not taken up by W^O."""
    attentions = model.attentions()
    weights = {id(w): w for w in (attentions[head.kind][head.layer].output.weight for head in heads)}
    before = {key: w.data.copy() for key, w in weights.items()}
    try:
        for kind, layer, head in heads:
            attention = attentions[kind][layer]
            attention.output.weight.data[head * attention.d_v : (head + 1) * attention.d_v] = 0  # (H d_v, D)
        yield
    finally:
        for key, w in weights.items():
            w.data[...] = before[key]


def labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Each piece as text. One that goes on within a word begins with a dot; a dot alone is part of a letter's bytes."""
    front = tokenizer.encode("a")  # what comes after it shows whether it begins a word
    before, *texts = tokenizer.decode_batch([front, *([*front, i] for i in ids)])
    found = []
    for i, text in zip(ids, texts, strict=True):
        piece = text[len(before) :]
        if i == tokenizer.eos_id:
            found.append("end")
        elif "\ufffd" in piece:
            found.append("\u00b7")
        elif not piece.strip():
            found.append("\u2423")  # a space
        else:
            found.append(piece[1:] if piece.startswith(" ") else f"\u00b7{piece}")
    return found


def most_pieces(model: Any) -> int:
    """The pieces of the longest sentence that is looked at, without its end."""
    return min(model.max_length or LONGEST, LONGEST) - 1


def source_ids(model: Any, tokenizer: Any, sentence: str) -> list[int]:
    """The ids of a sentence with its end; UserError where there are none, or more than the model reads."""
    ids = tokenizer.encode(sentence)
    most = most_pieces(model)
    if not 1 <= len(ids) <= most:
        attempt = "a shorter one" if ids else "a word"
        raise UserError(f"sentence: expected 1 to {most} pieces; got {len(ids)}; try {attempt}")
    return [*ids, tokenizer.eos_id]


def translated(
    model: Any,
    src: Sequence[int],
    search: dict[str, Any],
    prefix: Sequence[int] = (),
    observe: Callable[[Any], object] | None = None,
) -> list[Hypothesis]:
    """The translations of one sentence, best first, all of them beginning with `prefix`."""
    searched: Any = ForcedPrefix(model, list(prefix)) if prefix else model
    (found,) = beam_search(searched, np.array([src]), **search, observe=observe)
    return found


@dataclass
class Seen:
    """One sentence and its translation: S source pieces and T of the target, each with its end; L layers, H heads."""

    source: list[str]
    target: list[str]  # what is predicted at each position
    written: list[str]  # what the decoder has read there: the beginning, then the pieces before
    maps: dict[str, Any]  # kind -> weights (L, H, rows, columns)
    log_probabilities: Any  # (T, V) of each next piece
    by_layer: Any  # (L, T) the most probable piece where the layer's output is read off through the tied matrix
    by_layer_p: Any  # (L, T) its probability

    def edges(self, kind: str) -> tuple[list[str], list[str]]:
        """What stands at the rows and at the columns of a kind."""
        rows = self.source if kind == "encoder" else self.target
        return rows, self.written if kind == "decoder" else self.source


def see(model: Any, tokenizer: Any, src: Sequence[int], tokens: Sequence[int]) -> Seen:
    """One pass over a sentence and a translation of it, ids without BOS and EOS."""
    ids = [model.config.bos_id, *tokens][: model.max_length]
    inside = model.inspect(np.array([src]), np.array([ids]))
    layers = [normalised(npx.to_host(model.logits(hidden).data)[0]) for hidden in inside.hidden]
    target = labels(tokenizer, [*tokens, tokenizer.eos_id])[: len(ids)]
    return Seen(
        labels(tokenizer, src),
        target,
        ["begin", *target[:-1]],
        {kind: np.stack([layer[0] for layer in maps]) for kind, maps in inside.maps.items()},
        layers[-1],
        np.stack([layer.argmax(axis=1) for layer in layers]),
        np.stack([np.exp(layer.max(axis=1)) for layer in layers]),
    )


def normalised(logits: Any) -> Any:
    """Log-probabilities (T, V), as float64."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def summary(weights: Any) -> dict[str, float]:
    """Of one head's weights (rows, columns): mean of the greatest weight, of the entropy (bits), of the distance."""
    rows, columns = np.indices(weights.shape)
    bits = -np.where(weights > 0, weights * np.log2(np.maximum(weights, 1e-30)), 0.0)
    return {
        "confidence": float(weights.max(axis=1).mean()),
        "entropy": float(bits.sum(axis=1).mean()),
        "distance": float((weights * np.abs(rows - columns)).sum(axis=1).mean()),
    }
