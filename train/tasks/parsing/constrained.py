"""Constrained decoding for parsing: a model wrapper that allows only trees over the given words.

After each token, only tokens that can lead to a tree are allowed: a closing bracket for the innermost open constituent
if that is not empty; the next word, if words remain, with a possible tag; and EOS after the last bracket. A punctuation
mark has its own tag, which no other word has; other words have the tags of a lexicon, if there is one. The probability
of disallowed tokens is not redistributed to the allowed ones. A hypothesis with an error, such as a surplus leaf,
therefore loses probability as soon as the model prefers a disallowed token. At most MAX_OPEN_RUN brackets may be opened
without a word in between; otherwise a hypothesis without a likely tag would open brackets forever.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import npx
from models.cache import DecodingState
from train.errors import UserError
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.linearize import TAGS_OF_PUNCTUATION
from train.tasks.parsing.tokenizer import TreeTokenizer
from train.tasks.parsing.trees import punctuation_tags

MAX_OPEN_RUN = 8  # the 3,200 trees in the treebank's public sample open at most 6 brackets in a row


class ConstrainedParser:
    """A SearchModel that restricts `model` to trees over `sentences`, the words of each source.

    In shapes, R is the number of hypotheses and V the number of symbols. The open constituents of all hypotheses form
    linked lists from the innermost outwards: an entry has a symbol, the index of the enclosing entry and the number of
    words before the constituent. Entry 0 is the root.
    """

    def __init__(
        self, model: Any, tokenizer: TreeTokenizer, sentences: Sequence[Sequence[str]], lexicon: Lexicon | None = None
    ) -> None:
        self.model, self.config = model, model.config
        symbols = tokenizer.symbols(range(tokenizer.n_outputs))
        ids = {symbol: i for i, symbol in enumerate(symbols) if symbol}
        self.is_open = np.array([s.startswith("(") for s in symbols])
        self.is_leaf = np.array([bool(s) and s[0] not in "()" for s in symbols])
        # The closing symbol of each "(X".
        self.closing_symbol = np.array([ids.get(f"){s[1:]}", 0) if s.startswith("(") else 0 for s in symbols])
        self.lengths = np.array([len(words) for words in sentences])
        # The index of each word's tag set in `allowed_leaves`.
        self.tag_sets = np.zeros((len(sentences), max(self.lengths, default=0) + 1), int)
        all_tags = {s for s, is_leaf in zip(symbols, self.is_leaf, strict=True) if is_leaf}
        numbers: dict[frozenset[str], int] = {frozenset[str](): 0}
        for row, words in zip(self.tag_sets, sentences, strict=True):
            sets = _possible_tags(words, all_tags, lexicon) if tokenizer.uses_tags else [all_tags] * len(words)
            for i, tags in enumerate(sets):
                row[i] = numbers.setdefault(frozenset(tags), len(numbers))
        self.allowed_leaves = np.array([[s in tags for s in symbols] for tags in numbers])  # (tag sets, V)
        self.symbol, self.parent, self.words_before = np.zeros((3, 1024), int)
        self.n_entries = 1

    @property
    def training(self) -> bool:
        return bool(self.model.training)

    def train(self, mode: bool = True) -> Any:
        return self.model.train(mode)

    def modules(self) -> Any:
        return getattr(self.model, "modules", tuple)()

    def length_limits(self, src: npx.Array, max_extra_tokens: int) -> npx.Array:
        return self.model.length_limits(src, max_extra_tokens)

    def start_decoding(self, src: npx.Array) -> tuple[npx.Array, "ParserState"]:
        tokens, state = self.model.start_decoding(src)
        return tokens, ParserState(state, np.arange(len(tokens)))

    def step(self, tokens: npx.Array, state: "ParserState") -> npx.Array:
        self.advance(npx.to_host(tokens), state)
        logits = npx.to_host(self.model.step(tokens, state.inner)).astype(np.float64)  # (R, V), a small array
        logits -= logits.max(axis=1, keepdims=True)
        allowed = self.allowed(state)
        disallowed_mass = np.where(allowed, 0.0, np.exp(logits)).sum(axis=1)
        logits[~allowed] = -np.inf
        with np.errstate(divide="ignore"):
            logits[:, self.config.pad_id] = np.log(disallowed_mass)  # the search never chooses padding
        return npx.from_host(logits.astype(np.float32))

    def advance(self, tokens: npx.Array, state: "ParserState") -> None:
        """Update the state with the last token (R,) of each row; beginning and end tokens change nothing."""
        new = np.flatnonzero(self.is_open[tokens])
        end = self.n_entries + len(new)
        if end > len(self.symbol):
            self.symbol, self.parent, self.words_before = (
                np.concatenate([x, np.zeros(end, int)]) for x in (self.symbol, self.parent, self.words_before)
            )
        entries = np.arange(self.n_entries, end)
        self.symbol[entries] = tokens[new]
        self.parent[entries] = state.innermost[new]
        self.words_before[entries] = state.n_used[new]
        closed = np.flatnonzero((tokens == self.closing_symbol[self.symbol[state.innermost]]) & (state.innermost > 0))
        state.innermost[closed] = self.parent[state.innermost[closed]]
        state.innermost[new] = entries
        state.n_used += self.is_leaf[tokens]
        state.open_run = np.where(self.is_open[tokens], state.open_run + 1, 0)
        self.n_entries = end

    def allowed(self, state: "ParserState") -> Any:
        """Return a mask (R, V) of the symbols that may come next."""
        has_words = state.n_used < self.lengths[state.sentence]
        opens = self.is_open & (has_words & (state.open_run < MAX_OPEN_RUN))[:, None]
        # after the last word, the tag set is set 0, which is empty
        allowed = opens | self.allowed_leaves[self.tag_sets[state.sentence, state.n_used]]
        non_empty = np.flatnonzero((state.innermost > 0) & (self.words_before[state.innermost] < state.n_used))
        allowed[non_empty, self.closing_symbol[self.symbol[state.innermost[non_empty]]]] = True
        allowed[:, 0] = False  # `closing_symbol` is 0 for a bracket without a closing symbol
        allowed[:, self.config.eos_id] = ~has_words & (state.innermost == 0)
        return allowed

    def check_prefix(self, prefix: Sequence[int]) -> None:
        """Raise UserError unless `prefix` is the beginning of an allowed output for the first sentence."""
        if not all(mask[i] for i, mask in zip(prefix, self.allowed_masks(prefix), strict=True)):
            expected = "the beginning of a tree over the words of the sentence"
            raise UserError(f"prefix: expected {expected}; got other symbols; try parsing the sentence again")

    def allowed_masks(self, tokens: Sequence[int]) -> Iterator[Any]:
        """For each of `tokens`, an output for the first sentence, yield a mask (V,) of the symbols allowed there."""
        state = ParserState(DecodingState(), np.zeros(1, int))
        for token in tokens:
            yield self.allowed(state)[0]
            self.advance(np.array([token]), state)


def _possible_tags(words: Sequence[str], all_tags: set[str], lexicon: Lexicon | None) -> Iterator[set[str]]:
    """Yield the non-empty set of tags that each word can have."""
    word_tags = all_tags - TAGS_OF_PUNCTUATION
    for word, mark in zip(words, punctuation_tags(words), strict=True):
        yield {mark} & all_tags or (word_tags & lexicon.tags(word) if lexicon else set()) or word_tags or all_tags


class ParserState(DecodingState):
    """The state of the model, and of each row.

    A row has its sentence, the words used, the brackets opened since the last word or closing bracket, and the
    innermost open entry.
    """

    def __init__(self, inner: DecodingState, sentence: Any) -> None:
        self.inner, self.sentence = inner, sentence
        self.n_used, self.open_run, self.innermost = np.zeros((3, len(sentence)), int)

    def select(self, rows: npx.Array) -> None:
        self.inner.select(rows)
        arrays = (self.sentence, self.n_used, self.open_run, self.innermost)
        self.sentence, self.n_used, self.open_run, self.innermost = (x[rows] for x in arrays)
