"""Encode each word as two tokens.

The first is the word itself if the vocabulary contains it, otherwise its shape. The second is the ending of the word.

In a small text, most subwords of a rare word are rare as well, but its shape and its ending are not.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import decoders, pre_tokenizers

from train.errors import UserError
from train.text.tokenizer import SPACE, SPECIALS, Tokenizer, tokenizer_spec

AFFIXES = "affixes"
ENDING_LENGTH = 3  # number of characters of an ending
ENDING_MARK = "~"
MIN_AFFIXES = 100
# ASCII whitespace, as in EVALB, which uses C's isspace: U+00A0 is part of a word.
_SPACES = re.compile(r"[ \t\n\v\f\r]+")


class WordTokenizer(Tokenizer):
    """Encodes text whose words are separated by spaces, as affixes if `spec` has affixes and otherwise as subwords."""

    def __init__(self, spec: dict[str, Any], name: str = "tokenizer.json") -> None:
        super().__init__(spec, name)
        self._affixes = spec["model"]["vocab"] if has_affixes(spec) else {}

    def word_starts(self) -> list[bool]:
        """Return, for each id, whether its token begins a word."""
        vocabulary: dict[str, int] = self._engine.get_vocab(with_added_tokens=True)
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        if prefix := self.spec["model"].get("continuing_subword_prefix"):  # in BERT's tokenizers
            return [not token.startswith(prefix) for token in tokens]
        if self._affixes:
            return [not token.startswith(ENDING_MARK) for token in tokens]
        # Byte-level tokenizers write a space as U+0120, and those that follow SentencePiece as SPACE.
        return [token.startswith(("\u0120", SPACE, " ")) for token in tokens]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not self._affixes:
            return super().encode_batch(texts)
        ids = self._affixes
        unknown = self.special_ids.unk_id
        return [[ids.get(affix, unknown) for affix in affixes(split_words(text), ids)] for text in texts]


def affix_spec(sentences: Iterable[Sequence[str]], symbols: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """Return the content of a tokenizer.json with at most `vocab_size` tokens.

    The tokens are `symbols`, then endings and shapes, then words. Endings, shapes and words must occur at least twice,
    and are sorted by frequency.
    """
    counts: Counter[str] = Counter()
    for words in sentences:
        for word in words:
            counts.update((f" {word}", word_shape(word), word_ending(word)))
    n_affixes = vocab_size - len(symbols)
    repeated = sorted((p for p, n in counts.items() if n > 1), key=lambda p: (p[0] == " ", -counts[p], p))
    if n_affixes < MIN_AFFIXES:
        raise UserError(
            f"data.vocab_size: expected at least {len(symbols) + MIN_AFFIXES} ({len(symbols)} special symbols "
            f"and {MIN_AFFIXES} affixes); got {vocab_size}; try 8000"
        )
    vocabulary = {token: i for i, token in enumerate([*symbols, *repeated[:n_affixes]])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[3]}
    return tokenizer_spec(model, None, pre_tokenizers.WhitespaceSplit(), decoders.Fuse())


def has_affixes(spec: Mapping[str, Any]) -> bool:
    """Return whether the content of a tokenizer.json has the vocabulary of `affix_spec`, which only WordTokenizer uses.

    Vocabularies of words that other programs trained have the same type, but other tokens.
    """
    model, pretokenizer = spec["model"], spec.get("pre_tokenizer")
    if model.get("type") != "WordLevel" or (pretokenizer or {}).get("type") != "WhitespaceSplit":
        return False
    symbols = {token["content"] for token in spec.get("added_tokens") or ()}
    return all(token.startswith((" ", "?", ENDING_MARK)) for token in model["vocab"] if token not in symbols)


def affixes(words: Iterable[str], vocabulary: dict[str, int]) -> Iterator[str]:
    """Yield two tokens for each word: the word or its shape, and its ending."""
    for word in words:
        yield f" {word}" if f" {word}" in vocabulary else word_shape(word)
        yield word_ending(word)


def word_shape(word: str) -> str:
    """Return the character classes of a word, such as ?Aa, ?aa-aa or ?00; two characters stand for any longer run."""
    classes = re.sub(r"[^\W\d_]", lambda m: "A" if m[0].isupper() else "a", re.sub(r"\d", "0", word))
    return "?" + re.sub(r"(.)\1+", r"\1\1", classes)[:8]


def word_ending(word: str) -> str:
    """Return the last ENDING_LENGTH characters of a word in lower case, marked as an ending."""
    return f"{ENDING_MARK}{word[-ENDING_LENGTH:].lower()}"


def split_words(line: str) -> list[str]:
    """Return the words of a sentence; ASCII whitespace separates words."""
    return [word for word in _SPACES.split(line) if word]
