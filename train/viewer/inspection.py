"""Inspect a model on one sentence: tokens as text, the output, all attention heads, ablated heads.

This module computes the numbers; heads.py draws them to a file and page/ shows them in a browser.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import npx
from autograd import Tensor
from models.layers.restricted_attention import window_mask
from models.module import evaluation_mode
from models.search import Hypothesis, PrefixConstrainedModel, beam_search
from train.errors import UserError
from train.tasks.parsing.constrained import ConstrainedParser
from train.tasks.parsing.linearize import tree_from_tokens
from train.tasks.parsing.tokenizer import TreeTokenizer
from train.tasks.parsing.trees import escape_brackets, write_tree
from train.text.affixes import split_words
from train.text.labeled_text import is_label_tokenizer
from train.text.pair_tokenizer import PairTokenizer
from train.text.plain import PlainTokenizer

MAX_TOKENS = 256  # maximum tokens of an inspected sentence, end of sentence included
AXES = {  # maps a kind of attention to the meaning of its rows (queries) and columns (keys)
    "encoder": ("source token", "attended source token"),
    "decoder": ("generated token", "attended previous token"),
    "cross": ("generated token", "attended source token"),
}
TEXT_AXES = {"text": ("token", "attended token")}  # the attention of a language model or an encoder
BEGIN = "<s>"  # label of the position before the first token
WHITESPACE = str.maketrans({" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"})


class Head(NamedTuple):
    """An attention head; layers and heads count from 0, as in "encoder.0.3"."""

    kind: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


def all_heads(model: Any) -> list[Head]:
    """Return every head of a model, the encoder's first."""
    layers, heads = model.config.n_layers, model.config.n_heads
    kinds = AXES if model.data_kind == "pairs" else TEXT_AXES
    return [Head(kind, layer, head) for kind in kinds for layer in range(layers) for head in range(heads)]


def check_heads(model: Any, kinds: Iterable[str] = AXES) -> None:
    """Raise UserError if an encoder-decoder lacks attention of one of these kinds."""
    if missing := [kind for kind in kinds if not model.attention_layers()[kind]]:
        got = f"the architecture {model.config.architecture}, which has no such attention"
        raise UserError(f"expected a model with {missing[0]} attention; got {got}; try encoder_decoder")


@contextmanager
def ablate_heads(model: Any, heads: Iterable[Head]) -> Iterator[None]:
    """Ablate these heads in a `with` block: set their rows of W^O to zero, which removes their output."""
    attention_layers = model.attention_layers()
    weights = {id(w): w for w in (attention_layers[head.kind][head.layer].output.weight for head in heads)}
    originals = {key: w.data.copy() for key, w in weights.items()}
    try:
        for kind, layer, head in heads:
            attention = attention_layers[kind][layer]
            attention.output.weight.data[head * attention.d_v : (head + 1) * attention.d_v] = 0  # (H d_v, D)
        yield
    finally:
        for key, w in weights.items():
            w.data[...] = originals[key]


def is_parser(tokenizer: Any) -> bool:
    """Return whether the model of this tokenizer predicts trees."""
    return isinstance(tokenizer, TreeTokenizer)


def token_texts(tokenizer: Any, ids: Sequence[int], side: str = "target") -> list[str]:
    """Return each token of the source or the target as text; different tokens have different texts.

    A token that continues a word begins with a dot. Whitespace is shown as visible symbols, a special token by its
    name, and the bytes of an incomplete character in hexadecimal, as in <0xC3>. In a language model's text, which keeps
    its whitespace, no token begins with a dot.
    """
    if isinstance(tokenizer, PlainTokenizer):
        texts = [text.translate(WHITESPACE) for text in tokenizer.decode_batch([[i] for i in ids])]
        return [text if is_readable(text) else tokenizer.spelling(i) for i, text in zip(ids, texts, strict=True)]
    if isinstance(tokenizer, PairTokenizer):
        tokenizer = getattr(tokenizer, side)
    if is_label_tokenizer(tokenizer):
        return [tokenizer.spelling(i) for i in ids]
    context = tokenizer.encode("a")  # decoding a token after another one shows whether it begins a word
    prefix, *texts = tokenizer.decode_batch([context, *([*context, i] for i in ids)])
    # a vocabulary without "a" gives no context
    starts = tokenizer.word_starts() if not prefix and hasattr(tokenizer, "word_starts") else []
    symbols = tokenizer.symbols(ids) if is_parser(tokenizer) else [""] * len(ids)
    names = []
    for i, text, symbol in zip(ids, texts, symbols, strict=True):
        token = text[len(prefix) :]
        if symbol or not is_readable(token.strip()):
            names.append(symbol or tokenizer.spelling(i))
        else:
            is_start = token.startswith(" ") or bool(starts and starts[i])
            names.append(token.removeprefix(" ") if is_start else f"\u00b7{token}")
    return names


def is_readable(text: str) -> bool:
    """Return whether the text is readable: not empty, and without bytes of an incomplete character."""
    return text != "" and text.isprintable() and "\ufffd" not in text


def max_source_tokens(model: Any) -> int:
    """Return the maximum number of source tokens, end of sentence excluded."""
    return min(model.max_length or MAX_TOKENS, MAX_TOKENS) - 1


def source_ids(model: Any, tokenizer: Any, sentence: str) -> list[int]:
    """Return the token ids of a sentence, EOS included. Raises UserError if the sentence is empty or too long."""
    ids = tokenizer.encode(escape_brackets(sentence) if is_parser(tokenizer) else sentence)
    limit = max_source_tokens(model)
    if not 1 <= len(ids) <= limit:
        name = "text" if model.data_kind == "text" else "sentence"
        suggestion = f"a shorter {name}" if ids else "at least one word"
        raise UserError(f"{name}: expected 1 to {limit} tokens; got {len(ids)}; try {suggestion}")
    return [*ids, tokenizer.eos_id]


def translate(
    model: Any,
    src: Sequence[int],
    search: dict[str, Any],
    prefix: Sequence[int] = (),
    observe: Callable[[Any], object] | None = None,
) -> list[Hypothesis]:
    """Return the hypotheses for one sentence, best first; each begins with the token ids `prefix`."""
    constrained: Any = PrefixConstrainedModel(model, [prefix]) if prefix else model
    (hypotheses,) = beam_search(constrained, np.array([src]), **search, observe=observe)
    return hypotheses


def constrained_model(model: Any, tokenizer: Any, sentence: str) -> Any:
    """Return the model to search with: a parser is constrained to trees over the words of the sentence."""
    if not is_parser(tokenizer):
        return model
    return ConstrainedParser(model, tokenizer, [split_words(escape_brackets(sentence))], tokenizer.lexicon)


def output_text(tokenizer: Any, sentence: str, tokens: Sequence[int]) -> str:
    """Return the translation, or the parser's tree over the words of the sentence."""
    if not is_parser(tokenizer):
        return str(tokenizer.decode(tokens))
    words = split_words(escape_brackets(sentence))
    return write_tree(tree_from_tokens(tokenizer.symbols(tokens), words)[0])


@dataclass
class SentenceInspection:
    """A sentence, its translation, and the values that the model computes for them.

    In shapes, L is the number of layers, H of heads, and T of target tokens, end of sentence included.
    """

    source: list[str]
    target: list[str]  # the token predicted at each position
    decoder_input: list[str]  # the token the decoder reads at each position, beginning of sentence first
    maps: dict[str, Any]  # maps a kind to weights (L, H, rows, columns)
    masks: dict[str, Any]  # maps a kind to (rows, columns), true where a weight is visible, or None
    log_probabilities: Any  # (T, V), for the next token
    lens_tokens: Any  # (L, T) most probable token if the layer's output is projected to the vocabulary (logit lens)
    lens_p: Any  # (L, T) the probability of that token

    def axis_labels(self, kind: str) -> tuple[list[str], list[str]]:
        """Return the labels of the rows and columns of a kind of attention."""
        rows = self.source if kind in ("encoder", "text") else self.target
        return rows, self.decoder_input if kind == "decoder" else self.source


def mask_of(model: Any, kind: str, length: int) -> tuple[Any, str]:
    """Return the mask (T, T) of one kind of attention, and a description of the hidden tokens.

    The mask is true where a key is visible. Without a mask, returns None and "".
    """
    causal = kind in model.causal_kinds
    window = getattr(model.attention_layers()[kind][0], "window", None)
    if kind == "cross" or (window is None and not causal):
        return None, ""
    mask = npx.to_host(window_mask(length, length, window or max(1, length), causal))
    hidden = ["later tokens"] * causal + [f"tokens outside a window of {window}"] * bool(window)
    return mask, f"The mask hides {' and '.join(hidden)}: their scores become −∞, their weights 0."


def masks_of(model: Any, maps: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask of the weights (L, H, rows, columns) of each kind of attention, or None if all are visible."""
    return {kind: mask_of(model, kind, weights.shape[2])[0] for kind, weights in maps.items()}


def inspect(
    model: Any, tokenizer: Any, src: Sequence[int], tokens: Sequence[int], finished: bool = True
) -> SentenceInspection:
    """Run the model once on a sentence and its translation `tokens` (ids without BOS and EOS).

    `finished` is False if the output was cut off (`Hypothesis.finished`); the target then has no EOS.
    """
    target_ids = [*tokens, *[tokenizer.eos_id] * finished]
    ids = [model.config.bos_id, *target_ids[:-1]][: model.max_length]
    internals = model.inspect(np.array([src]), np.array([ids]))
    layers = [log_softmax(npx.to_host(model.logits(hidden).data)[0]) for hidden in internals.hidden]
    target = token_texts(tokenizer, target_ids)[: len(ids)]
    maps = {kind: np.stack([layer[0] for layer in weights]) for kind, weights in internals.maps.items() if weights}
    source = token_texts(tokenizer, src, "source")
    decoder_input = [BEGIN, *target[:-1]]
    return SentenceInspection(source, target, decoder_input, maps, masks_of(model, maps), *logit_lens(layers))


def logit_lens(layers: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return the last layer's log-probabilities (T, V), and each layer's most probable tokens with probabilities."""
    best = np.stack([layer.argmax(axis=1) for layer in layers])
    return layers[-1], best, np.stack([np.exp(layer.max(axis=1)) for layer in layers])


def inspect_text(model: Any, tokenizer: Any, text: str) -> SentenceInspection:
    """Run a language model once on a text; the kind of its attention is "text". Raises UserError for a long text.

    Entry t of `target` and of the predictions concerns the token after token t. The last token has no entry.
    """
    ids = source_ids(model, tokenizer, text)[:-1]
    maps = {"text": np.stack([layer[0] for layer in model.attention_maps(np.array([ids]))])}
    with evaluation_mode(model), layer_inputs(model.layers) as inputs:
        last = model.hidden_states(npx.from_host(np.array([ids])))
        below = [model.norm(x) if model.norm else x for x in inputs[1:]]  # the outputs of all layers but the last
        layers = [log_softmax(npx.to_host(model.logits(x).data)[0]) for x in (*below, last)]
    tokens = token_texts(tokenizer, ids)
    lens = logit_lens([layer[:-1] for layer in layers])
    return SentenceInspection(tokens, tokens[1:], tokens[:-1], maps, masks_of(model, maps), *lens)


@contextmanager
def layer_inputs(layers: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Yield a list to which the input of each layer is appended when the layer runs."""
    inputs: list[Tensor] = []
    hooks = [(layer, layer.hook) for layer in layers]
    for layer in layers:
        layer.hook = lambda x, *args: inputs.append(x)
    try:
        yield inputs
    finally:
        for layer, hook in hooks:
            layer.hook = hook


def log_softmax(logits: Any) -> Any:
    """Return log-probabilities (T, V) in float64. Raises FloatingPointError for NaN and infinity."""
    logits = logits.astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise FloatingPointError("expected finite logits; got NaN or infinity")
    logits -= largest
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def summary(weights: Any) -> dict[str, float]:
    """Return the maximum weight, the entropy (bits) and the distance to attended tokens, averaged over the rows."""
    rows, columns = np.indices(weights.shape)
    bits = -np.where(weights > 0, weights * np.log2(np.maximum(weights, 1e-30)), 0.0)
    return {
        "confidence": float(weights.max(axis=1).mean()),
        "entropy": float(bits.sum(axis=1).mean()),
        "distance": float((weights * np.abs(rows - columns)).sum(axis=1).mean()),
    }
