"""The vocabulary of a parser: the symbols that trees are written in, then pieces of words.

    <pad> <s> </s> <unk>   <(S> <)S> <(NP> <)NP> <XX> ...   pieces

The symbols come first, so that a decoder that writes nothing else need score no more than those (`n_outputs`). Where
words are written as their tags it holds a `lexicon`, learned on the same trees: the tags that each word may have.
Sentences are tokenised already: words with spaces between them. Words become, as `tokenizer` says, sub-words (`bpe`,
`wordpiece`: those of translation), or two pieces each (`affixes`): the word, where it occurs at least twice, else its
shape; and its ending.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import decoders, pre_tokenizers

from train.errors import UserError, one_line
from train.tasks.parsing.lexicon import Lexicon, ending, shape
from train.tasks.parsing.linearize import linearize
from train.tasks.parsing.trees import UNTAGGED, Tree, split_words
from train.text.tokenizer import KINDS as SUBWORDS
from train.text.tokenizer import SPECIALS, Tokenizer, choice, tokenizer_spec

KINDS = (*SUBWORDS, "affixes")
LEXICON = "tags"  # in the model of a tokenizer.json: tag -> word -> how often


class TreeTokenizer(Tokenizer):
    """Sentences to ids with `encode_batch`; trees to ids with `encode_trees`, and `symbols` of ids."""

    def __init__(self, spec: dict[str, Any], name: str = "tokenizer.json") -> None:
        super().__init__(spec, name)
        added = sorted((t["id"], t["content"]) for t in spec["added_tokens"])[len(SPECIALS) :]
        self._symbols = [symbol[1:-1] for _, symbol in added]
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols, len(SPECIALS))}
        self.n_outputs: int = len(SPECIALS) + len(self._symbols)
        self.tags = UNTAGGED not in self._ids
        if [i for i, _ in added] != list(range(len(SPECIALS), self.n_outputs)) or not added:
            raise UserError(
                f"{name}: expected the symbols of trees after the {len(SPECIALS)} special tokens; got {len(added)} "
                "in other places; try one trained for parsing by this program"
            )
        self._affixes = spec["model"]["vocab"] if spec["model"]["type"] == "WordLevel" else {}
        counts = spec["model"].get(LEXICON)
        if counts is not None and not _counts(counts):
            raise UserError(
                f"{name}: expected how often each word has which tag in model.{LEXICON}; "
                f"got {one_line(repr(counts))[:60]}; try training the tokenizer again"
            )
        self.lexicon = Lexicon(counts) if counts else None  # None: leaves are XX, or an older version's

    @classmethod
    def learn(cls, trees: Sequence[Tree], kind: str, vocab_size: int, tags: bool) -> "TreeTokenizer":
        """Learn from cleaned trees at most `vocab_size` types; `tags`: a word is written as its tag, not as XX."""
        choice("tokenizer", kind, KINDS)
        found = sorted({token for tree in trees for token in linearize(tree, tags)})
        symbols = [*SPECIALS, *(f"<{symbol}>" for symbol in found)]
        sentences = [tree.words() for tree in trees]
        if kind in SUBWORDS:
            lines = [" ".join(words) for words in sentences]
            room = vocab_size - len(found)
            spec = Tokenizer.learned([lines], kind, room, "whitespace")
            before = spec["model"]["vocab"]
            pieces = sorted(before, key=before.__getitem__)[len(SPECIALS) :]
            spec["model"]["vocab"] = {piece: i for i, piece in enumerate([*symbols, *pieces])}
        else:
            spec = _affixes(sentences, symbols, vocab_size)
        if tags:
            spec["model"][LEXICON] = Lexicon.learn(trees).counts
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        spec["added_tokens"] = [{"id": i, "content": symbol, **flags} for i, symbol in enumerate(symbols)]
        return cls(spec)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if not self._affixes:
            return super().encode_batch(texts)
        known, unknown = self._affixes, self.special.unk_id
        return [[known.get(piece, unknown) for piece in _pieces(split_words(text), known)] for text in texts]

    def encode_trees(self, trees: Iterable[Tree]) -> list[list[int]]:
        """Ids of cleaned trees, without special ids; a symbol that was not learned is `<unk>`."""
        unknown = self.special.unk_id
        return [[self._ids.get(token, unknown) for token in linearize(tree, self.tags)] for tree in trees]

    def symbols(self, ids: Sequence[int]) -> list[str]:
        """The tokens of a linearised tree; "" for an id that is none."""
        first = len(SPECIALS)
        return [self._symbols[i - first] if first <= i < self.n_outputs else "" for i in ids]


def _counts(found: Any) -> bool:
    """Whether this is tag -> word -> a count."""
    if not isinstance(found, dict) or not all(isinstance(words, dict) for words in found.values()):
        return False
    return all(type(n) is int and n > 0 for words in found.values() for n in words.values())


def _affixes(sentences: Iterable[Sequence[str]], symbols: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """The tokenizer.json of words, shapes and endings: the most frequent of each as far as there is room."""
    counts: Counter[str] = Counter()
    for words in sentences:
        for word in words:
            counts.update((f" {word}", shape(word), ending(word)))
    room = vocab_size - len(symbols)
    often = sorted((p for p, n in counts.items() if n > 1), key=lambda p: (p[0] == " ", -counts[p], p))
    if room < 100:
        raise UserError(
            f"data.vocab_size: expected at least {len(symbols) + 100}, {len(symbols)} symbols of trees and 100 pieces; "
            f"got {vocab_size}; try 8000"
        )
    vocabulary = {piece: i for i, piece in enumerate([*symbols, *often[:room]])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[3]}
    return tokenizer_spec(model, None, pre_tokenizers.WhitespaceSplit(), decoders.Fuse())


def _pieces(words: Iterable[str], known: dict[str, int]) -> Iterator[str]:
    """Two pieces for each word."""
    for word in words:
        yield f" {word}" if f" {word}" in known else shape(word)
        yield ending(word)
