"""A parser that can write nothing but trees over the words: a model for search in place of the parser itself.

After each token only those may follow that lead to a tree: a bracket that closes what is open and not empty, a word
where words are left, as a tag that it may have (that of punctuation for that punctuation and nowhere else; of other
words those of a lexicon, where there is one), the end after the last bracket. What the model gives to other tokens is
lost to the hypothesis, not shared out among the rest: so one that went astray, with a word too many, loses to others as
soon as it shows. And not more than IN_A_ROW brackets open with no word between them: one that can go on with no likely
tag would rather open brackets for ever.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import npx
from models.cache import DecodingState
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.linearize import TAGS_OF_PUNCTUATION
from train.tasks.parsing.tokenizer import TreeTokenizer
from train.tasks.parsing.trees import punctuation

IN_A_ROW = 8  # at most 6 in the 3,200 trees of the treebank's sample


class WholeTrees:
    """`model`, kept to trees over `sentences`, the words of each source of the search (see models/search/protocol.py).

    R rows are hypotheses, V the symbols. What is open is a list linked from the innermost outwards: an entry has its
    symbol, the entry around it and the words before it; entry 0 is around all.
    """

    def __init__(
        self, model: Any, tokenizer: TreeTokenizer, sentences: Sequence[Sequence[str]], lexicon: Lexicon | None = None
    ) -> None:
        self.model, self.config = model, model.config
        symbols = tokenizer.symbols(range(tokenizer.n_outputs))
        ids = {symbol: i for i, symbol in enumerate(symbols) if symbol}
        self.opens = np.array([s.startswith("(") for s in symbols])
        self.leaf = np.array([bool(s) and s[0] not in "()" for s in symbols])
        self.closing = np.array([ids.get(f"){s[1:]}", 0) if s.startswith("(") else 0 for s in symbols])  # of each "(X"
        self.lengths = np.array([len(words) for words in sentences])
        self.kinds = np.zeros((len(sentences), max(self.lengths, default=0) + 1), int)
        tags = {s for s, leaf in zip(symbols, self.leaf, strict=True) if leaf}
        kinds: dict[frozenset[str], int] = {frozenset[str](): 0}
        for row, words in zip(self.kinds, sentences, strict=True):
            for i, allowed in enumerate(_tags(words, tags, lexicon) if tokenizer.tags else [tags] * len(words)):
                row[i] = kinds.setdefault(frozenset(allowed), len(kinds))
        self.writes = np.array([[s in allowed for s in symbols] for allowed in kinds])  # (kinds, V)
        self.symbol, self.around, self.before = np.zeros((3, 1024), int)
        self.entries = 1

    @property
    def training(self) -> bool:
        return bool(self.model.training)

    def train(self, mode: bool = True) -> Any:
        return self.model.train(mode)

    def modules(self) -> Any:
        return getattr(self.model, "modules", tuple)()

    def limits(self, src: npx.Array, max_extra: int) -> npx.Array:
        return self.model.limits(src, max_extra)

    def start(self, src: npx.Array) -> tuple[npx.Array, "Written"]:
        tokens, state = self.model.start(src)
        return tokens, Written(state, np.arange(len(tokens)))

    def step(self, tokens: npx.Array, state: "Written") -> npx.Array:
        self.write(npx.to_host(tokens), state)
        logits = npx.to_host(self.model.step(tokens, state.inner)).astype(np.float64)  # (R, V), few
        logits -= logits.max(axis=1, keepdims=True)
        may = self.may_follow(state)
        lost = np.where(may, 0.0, np.exp(logits)).sum(axis=1)
        logits[~may] = -np.inf
        with np.errstate(divide="ignore"):
            logits[:, self.config.pad_id] = np.log(lost)  # which has its share and is never chosen
        return npx.from_host(logits.astype(np.float32))

    def write(self, tokens: npx.Array, state: "Written") -> None:
        """Takes in the last token (R,) of each row; a row whose token is no symbol (the first, an end) stays."""
        new = np.flatnonzero(self.opens[tokens])
        end = self.entries + len(new)
        if end > len(self.symbol):
            self.symbol, self.around, self.before = (
                np.concatenate([x, np.zeros(end, int)]) for x in (self.symbol, self.around, self.before)
            )
        made = np.arange(self.entries, end)
        self.symbol[made], self.around[made], self.before[made] = tokens[new], state.open[new], state.used[new]
        closed = np.flatnonzero((tokens == self.closing[self.symbol[state.open]]) & (state.open > 0))
        state.open[closed] = self.around[state.open[closed]]
        state.open[new] = made
        state.used += self.leaf[tokens]
        state.in_a_row = np.where(self.opens[tokens], state.in_a_row + 1, 0)
        self.entries = end

    def may_follow(self, state: "Written") -> Any:
        """Which symbols (R, V) may come next."""
        left = state.used < self.lengths[state.sentence]
        opens = self.opens & (left & (state.in_a_row < IN_A_ROW))[:, None]
        may = opens | self.writes[self.kinds[state.sentence, state.used]]  # past the last word there is none to write
        inside = np.flatnonzero((state.open > 0) & (self.before[state.open] < state.used))
        may[inside, self.closing[self.symbol[state.open[inside]]]] = True
        may[:, 0] = False  # where a bracket has no closing one among the symbols
        may[:, self.config.eos_id] = ~left & (state.open == 0)
        return may


def _tags(words: Sequence[str], known: set[str], lexicon: Lexicon | None) -> Iterator[set[str]]:
    """Those of the `known` tags that each word may have, never none."""
    others = known - TAGS_OF_PUNCTUATION
    for word, mark in zip(words, punctuation(words), strict=True):
        yield {mark} & known or (others & lexicon.tags(word) if lexicon else set()) or others or known


class Written(DecodingState):
    """What each row has written: its sentence, the words used, the brackets opened since the last of them or the last
    that was closed, the innermost entry that is open; the model's state."""

    def __init__(self, inner: DecodingState, sentence: Any) -> None:
        self.inner, self.sentence = inner, sentence
        self.used, self.in_a_row, self.open = np.zeros((3, len(sentence)), int)

    def select(self, rows: npx.Array) -> None:
        self.inner.select(rows)
        written = (self.sentence, self.used, self.in_a_row, self.open)
        self.sentence, self.used, self.in_a_row, self.open = (x[rows] for x in written)
