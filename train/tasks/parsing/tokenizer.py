"""The vocabulary of a parser: the symbols of linearized trees, followed by subwords.

    <pad> <s> </s> <unk>   <(S> <)S> <(NP> <)NP> <XX> ...   subwords

The symbols come first, so the decoder only needs to score the first `n_outputs` ids. If words are written as their
tags, the file also has a `lexicon` from the same trees: the tags that each word can have. Sentences are already
tokenized, with spaces between words. The data.tokenizer key chooses how words are encoded: as subwords, as for
translation (`bpe`, `wordpiece`), or as two tokens each (`affixes`, text/affixes.py).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from train.errors import UserError, check_choice, one_line
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.linearize import linearize
from train.tasks.parsing.trees import UNTAGGED, Tree
from train.text.affixes import AFFIXES, WordTokenizer, affix_spec
from train.text.tokenizer import ALPHABET, MIN_VOCAB_SIZE, SPECIALS, Tokenizer
from train.text.tokenizer import KINDS as SUBWORDS

KINDS = (*SUBWORDS, AFFIXES)
LEXICON = "tags"  # key of the counts (tag -> word -> count) in the model of a tokenizer.json


class TreeTokenizer(WordTokenizer):
    """Encodes sentences (`encode_batch`) and trees (`encode_trees`); `symbols` maps ids back to tokens of trees."""

    def __init__(self, spec: dict[str, Any], name: str = "tokenizer.json") -> None:
        super().__init__(spec, name)
        added = sorted((t["id"], t["content"]) for t in spec["added_tokens"])[len(SPECIALS) :]
        self._symbols = [symbol[1:-1] for _, symbol in added]
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols, len(SPECIALS))}
        self.n_outputs: int = len(SPECIALS) + len(self._symbols)
        if [i for i, _ in added] != list(range(len(SPECIALS), self.n_outputs)) or not added:
            raise UserError(
                f"{name}: expected tree symbols after the {len(SPECIALS)} special tokens; got {len(added)} symbols "
                "at other ids; try a tokenizer that this program trained for parsing"
            )
        counts = spec["model"].get(LEXICON)
        if counts is not None and not _is_valid(counts):
            raise UserError(
                f"{name}: expected counts of words by tag in model.{LEXICON}; "
                f"got {one_line(repr(counts))[:60]}; try training the tokenizer again"
            )
        self.lexicon = Lexicon(counts) if counts else None  # None if words are written as XX, or if the file is old
        self.uses_tags = self.lexicon is not None or UNTAGGED not in self._ids

    @classmethod
    def from_trees(cls, trees: Sequence[Tree], kind: str, vocab_size: int, uses_tags: bool) -> "TreeTokenizer":
        """Train on clean trees, with at most `vocab_size` tokens; `uses_tags` writes a word as its tag, not as XX."""
        check_choice("tokenizer", kind, KINDS)
        tree_tokens = sorted({token for tree in trees for token in linearize(tree, uses_tags)})
        symbols = [*SPECIALS, *(f"<{token}>" for token in tree_tokens)]
        if reserved := [token for token in tree_tokens if f"<{token}>" in SPECIALS]:
            raise UserError(
                f"training trees: expected tags other than {', '.join(token[1:-1] for token in SPECIALS)}; "
                f'got {", ".join(reserved)}; try other names, or data.tree_leaves = "XX"'
            )
        sentences = [tree.words() for tree in trees]
        if kind in SUBWORDS:
            if vocab_size < (minimum := len(tree_tokens) + MIN_VOCAB_SIZE):
                raise UserError(
                    f"data.vocab_size: expected at least {minimum} ({len(symbols)} special symbols and "
                    f"{len(ALPHABET)} bytes); got {vocab_size}; try {minimum + 4000} or more"
                )
            lines = [" ".join(words) for words in sentences]
            spec = Tokenizer.train_spec([lines], kind, vocab_size - len(tree_tokens), "whitespace")
            vocabulary = spec["model"]["vocab"]
            subwords = sorted(vocabulary, key=vocabulary.__getitem__)[len(SPECIALS) :]
            spec["model"]["vocab"] = {token: i for i, token in enumerate([*symbols, *subwords])}
        else:
            spec = affix_spec(sentences, symbols, vocab_size)
        if uses_tags:
            spec["model"][LEXICON] = Lexicon.from_trees(trees).counts
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        spec["added_tokens"] = [{"id": i, "content": symbol, **flags} for i, symbol in enumerate(symbols)]
        return cls(spec)

    def encode_trees(self, trees: Iterable[Tree]) -> list[list[int]]:
        """Return the ids of clean trees, without special ids; a symbol outside the vocabulary is `<unk>`."""
        unknown = self.special_ids.unk_id
        return [[self._ids.get(token, unknown) for token in linearize(tree, self.uses_tags)] for tree in trees]

    def symbols(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of a linearized tree; "" for an id that is not a tree symbol."""
        first = len(SPECIALS)
        return [self._symbols[i - first] if first <= i < self.n_outputs else "" for i in ids]


def _is_valid(counts: Any) -> bool:
    """Return whether `counts` has the form tag -> word -> positive integer."""
    if not isinstance(counts, dict) or not all(isinstance(words, dict) for words in counts.values()):
        return False
    return all(type(n) is int and n > 0 for words in counts.values() for n in words.values())
