"""Labels that a classifier or a tagger predicts for one text, and the model's attention on it."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import npx
from models.module import evaluation_mode
from train.errors import UserError
from train.text.affixes import split_words
from train.text.labeled_text import WordEncoder, encode_texts, split_texts
from train.text.tokenizer import SPECIALS
from train.viewer.inspection import (
    BEGIN,
    SentenceInspection,
    layer_inputs,
    log_softmax,
    logit_lens,
    masks_of,
    max_source_tokens,
    token_texts,
)


class LabeledInspection(NamedTuple):
    """A text with its predicted labels: S tokens, BOS and EOS included, and T labels."""

    inspection: SentenceInspection
    ids: list[int]  # (S,) ids of the tokens
    positions: list[int]  # (T,) index of the token from which each label is predicted
    label_ids: list[int]  # (T,) ids of the predicted labels

    def targets(self, pad_id: int) -> list[int]:
        """Return the targets of the loss: the label of the text, or one id per token, which is a label or padding."""
        if self.positions == [0]:
            return self.label_ids
        label_at = dict(zip(self.positions, self.label_ids, strict=True))
        return [label_at.get(i, pad_id) for i in range(len(self.ids))]


def encode(model: Any, tokenizer: Any, text: str, task: str) -> tuple[list[str], list[int], list[int]]:
    """Return a tagger's words, the ids of all tokens, and the positions from which labels are predicted.

    Two texts are separated by a tab. Raises UserError if the text is empty or too long, or for more than two texts.
    """
    words = split_words(text) if task == "tagging" else []
    if words:
        (ids,), (positions,) = WordEncoder(tokenizer.source)([words])
    else:
        (ids,) = encode_texts(tokenizer.source, [split_texts(text, "text")])
        positions = [0]
    limit = max_source_tokens(model) - 1
    if not 2 <= len(ids) <= limit + 1:
        suggestion = "a shorter text" if ids else "at least one word"
        raise UserError(f"text: expected 1 to {limit} tokens; got {max(0, len(ids) - 1)}; try {suggestion}")
    return words, [*ids, tokenizer.eos_id], positions


def inspect_encoder(model: Any, tokenizer: Any, text: str, task: str) -> SentenceInspection:
    """Return the attention of an encoder over a text, as the kind "text". See `encode`."""
    return inspect_ids(model, tokenizer, encode(model, tokenizer, text, task)[1])


def inspect_ids(model: Any, tokenizer: Any, ids: list[int]) -> SentenceInspection:
    """Return the attention of an encoder over the token ids of a text, as the kind "text"."""
    maps = {"text": np.stack([layer[0] for layer in model.attention_maps(np.array([ids]))])}
    source = [BEGIN, *token_texts(tokenizer, ids[1:], "source")]
    return SentenceInspection(source, [], source, maps, masks_of(model, maps), None, None, None)


def inspect_labels(model: Any, tokenizer: Any, text: str, task: str) -> LabeledInspection:
    """Return the labels that a classifier or a tagger predicts for a text, with its attention. See `encode`.

    Special tokens get probability 0, so the probabilities of the labels sum to 1, as in `classify`.
    """
    words, ids, positions = encode(model, tokenizer, text, task)
    with evaluation_mode(model), layer_inputs(model.layers) as inputs:
        last, _ = model.encode(np.array([ids]))
        outputs = [*(model.norm(x) if model.norm else x for x in inputs[1:]), last]
        layers = []
        for x in outputs:
            states = model.label_states(x, task == "classification")
            logits = npx.to_host(model.logits(states).data)[0, positions]
            logits[:, : len(SPECIALS)] = -np.inf  # special tokens are never labels
            layers.append(log_softmax(logits))
    label_ids = layers[-1].argmax(axis=1).tolist()
    target = token_texts(tokenizer, label_ids)
    if words:
        target = [f"{word}/{tag}" for word, tag in zip(words, target, strict=True)]
    log_probabilities, lens_tokens, lens_p = logit_lens(layers)
    inspection = replace(
        inspect_ids(model, tokenizer, ids),
        target=target, log_probabilities=log_probabilities, lens_tokens=lens_tokens, lens_p=lens_p,
    )  # fmt: skip
    return LabeledInspection(inspection, ids, positions, label_ids)
