"""Text with labels: files of labeled texts and of tagged words, prepared token arrays, and their batches.

A labeled text is a line of the form `label<TAB>text` or, for a pair, `label<TAB>text<TAB>text`. Tagged words are either
lines of the form `word<TAB>tag`, with an empty line after each sentence, or two files, one of sentences and one of
their tags. A prepared text consists of BOS, tokens and EOS; each text of a pair has an EOS. A text has one label id, or
one per token; the padding id then marks tokens without a label. Labels that the training text lacks have ids after
those of the training text; they do not contribute to the loss, and every prediction for them counts as an error.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, decoders, pre_tokenizers

from train.errors import UserError, plural
from train.text.affixes import split_words
from train.text.batches import ORDER_VERSION, Batches
from train.text.corpus import IntArray, PairCorpus
from train.text.lines import count_lines, numbered_lines, read_parallel
from train.text.tokenizer import DEFAULT_IDS, SPECIALS, Tokenizer, tokenizer_spec

MAX_LABELS = 10_000
MAX_SHOWN = 60  # number of characters of a line that a message shows
MAX_LISTED = 10  # number of labels that a message lists


class LabeledExample(NamedTuple):
    """An example in a file: the number of its first line, the texts or words, and its labels.

    There is one label for the text, or one for each word.
    """

    line: int
    texts: list[str]
    labels: list[str]


# ---- files


def read_labeled(
    path: str | PathLike[str], on_bytes: Callable[[bytes], object] | None = None
) -> Iterator[LabeledExample]:
    """Yield the examples of a file with lines label<TAB>text. Raises UserError for any other line."""
    for number, line in numbered_lines(path, on_bytes):
        label, *texts = (field.strip() for field in line.split("\t"))
        if not label or not 1 <= len(texts) <= 2 or not all(texts):
            got = repr(line[:MAX_SHOWN]) if line.strip() else "an empty line"
            raise UserError(
                f"{path}, line {number}: expected label<TAB>text, or label<TAB>text<TAB>text; got {got}; "
                "try `paste labels.txt texts.txt`"
            )
        yield LabeledExample(number, texts, [label])


def read_tagged(
    path: str | PathLike[str], on_bytes: Callable[[bytes], object] | None = None
) -> Iterator[LabeledExample]:
    """Yield the sentences of a file whose lines have the form word<TAB>tag. Raises UserError for any other line."""
    sentence = LabeledExample(1, [], [])
    is_empty = True
    for number, line in numbered_lines(path, on_bytes):
        if not line.strip():
            if sentence.texts:
                yield sentence
            sentence = LabeledExample(number + 1, [], [])
            continue
        fields = [split_words(field) for field in line.split("\t")]
        if [*map(len, fields)] != [1, 1]:
            raise UserError(
                f"{path}, line {number}: expected word<TAB>tag, one word per line; got {line[:MAX_SHOWN]!r}; "
                "try a tag for each word, and an empty line between sentences"
            )
        (word,), (tag,) = fields
        sentence.texts.append(word)
        sentence.labels.append(tag)
        is_empty = False
    if sentence.texts:
        yield sentence
    if is_empty:
        raise UserError(f"{path}: expected lines word<TAB>tag; got only empty lines; try another file")


def read_parallel_tags(
    words_path: str | PathLike[str],
    tags_path: str | PathLike[str],
    on_bytes: Sequence[Callable[[bytes], object]] = (),
) -> Iterator[LabeledExample]:
    """Yield the sentences of a file of words, one sentence per line, with the tags in a parallel file.

    Raises UserError, with the line number, unless each word has a tag. Lines that are empty in both files are skipped.
    """
    is_empty = True
    chunks = read_parallel(words_path, tags_path, on_bytes=on_bytes)
    lines = chain.from_iterable(zip(*chunk, strict=True) for chunk in chunks)
    for number, (line, tag_line) in enumerate(lines, 1):
        words = split_words(line)
        tags = tag_line.split()
        if len(words) != len(tags):
            raise UserError(
                f"{tags_path}, line {number}: expected {plural(len(words), 'tag')}, one for each word of "
                f"{words_path}; got {len(tags)}; try the same tokenization in both files"
            )
        if words:
            yield LabeledExample(number, words, tags)
            is_empty = False
    if is_empty:
        raise UserError(f"{words_path}: expected a sentence of words per line; got only empty lines; try another file")


def check_tag_lines(words_path: str, tags_path: str) -> None:
    """Raise UserError unless the files of words and of tags have equal numbers of lines."""
    counts = count_lines(words_path), count_lines(tags_path)
    if counts[0] != counts[1]:
        raise UserError(
            f"{tags_path}: expected {plural(counts[0], 'line')}, one for each sentence of {words_path}; got "
            f"{counts[1]:,}; try the file with the tags of these words, or no file of tags if {words_path} "
            "contains the tags"
        )


# ---- labels


def make_label_tokenizer(path: object, labels: Iterable[str]) -> Tokenizer:
    """Return a tokenizer that encodes each label as one id, in alphabetical order after the special ids.

    Raises UserError for fewer than two labels, for too many labels, and for a label with the name of a special token.
    `path`, the file with the labels, is named in messages.
    """
    names: set[str] = set()
    for label in labels:
        names.add(label)
        if len(names) > MAX_LABELS:
            got = f"more, among them {label[:MAX_SHOWN]!r}"
            raise UserError(
                f"{path}: expected at most {MAX_LABELS:,} labels; got {got}; try label<TAB>text in each line"
            )
    if reserved := names & {*SPECIALS}:
        got = ", ".join(sorted(reserved))
        raise UserError(f"{path}: expected labels other than {', '.join(SPECIALS)}; got {got}; try other names")
    if len(names) < 2:
        got = f"only {next(iter(names))!r}" if names else "no label"
        raise UserError(f"{path}: expected at least two different labels; got {got}; try a file with more labels")
    vocabulary = {token: i for i, token in enumerate((*SPECIALS, *sorted(names)))}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[DEFAULT_IDS.unk_id]}
    return Tokenizer(tokenizer_spec(model, None, pre_tokenizers.Split(Regex(r"[\s\S]+"), "isolated"), decoders.Fuse()))


def is_label_tokenizer(tokenizer: Any) -> bool:
    """Return whether a tokenizer encodes labels (`make_label_tokenizer`)."""
    spec: Mapping[str, Any] = getattr(tokenizer, "spec", {})
    return (spec.get("pre_tokenizer") or {}).get("pattern") == {"Regex": r"[\s\S]+"}


def label_names(tokenizer: Any) -> list[str]:
    """Return the labels in the order of their ids."""
    vocabulary: Mapping[str, int] = tokenizer.target.spec["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.__getitem__)[len(SPECIALS) :]


class LabelIds:
    """The ids of labels.

    Args:
        path: the file with the labels, named in messages.
        tokenizer: the tokenizer with the labels of the training text.

    Attributes:
        unseen: maps labels that the training text lacks to their ids; `__call__` adds entries.
    """

    def __init__(self, path: object, tokenizer: Any) -> None:
        self.path = path
        self.ids = {name: i for i, name in enumerate(label_names(tokenizer), len(SPECIALS))}
        self.unseen = dict[str, int]()
        self.n_known = len(self.ids)

    def __call__(self, example: LabeledExample) -> list[int]:
        """Return the ids of the labels of an example. Raises UserError for too many labels."""
        for label in example.labels:
            if label not in self.ids:
                self.ids[label] = self.unseen[label] = len(SPECIALS) + len(self.ids)
                if len(self.unseen) > MAX_LABELS:
                    raise unseen_labels_error(self.path, self.unseen)
        return [self.ids[label] for label in example.labels]


def unseen_labels_error(path: object, labels: Iterable[str]) -> UserError:
    """Return the error for a file whose labels are all, or nearly all, missing from the training text."""
    listed = ", ".join(repr(label[:MAX_SHOWN]) for label in islice(labels, MAX_LISTED))
    return UserError(
        f"{path}: expected labels that the training text has; got {listed}; try a file with the labels of the "
        "training text"
    )


# ---- tokens


def split_texts(line: str, place: str) -> list[str]:
    """Return the text of a line, or its two texts, separated by a tab.

    Raises UserError for more texts; `place` is the name of the line in the message.
    """
    texts = line.split("\t")
    if len(texts) > 2:
        expected = "one text, or two texts separated by a tab"
        raise UserError(f"{place}: expected {expected}; got {len(texts)} texts; try spaces in place of tabs")
    return texts


def encode_texts(tokenizer: Any, examples: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return BOS and the tokens of each example, without the last EOS; [] for an example without tokens."""
    special_ids = tokenizer.special_ids
    encoded = iter(tokenizer.encode_batch([text for texts in examples for text in texts]))
    results: list[list[int]] = []
    for texts in examples:
        first, *others = (next(encoded) for _ in texts)
        ids = [special_ids.bos_id, *first]
        for part in others:
            ids += [special_ids.eos_id, *part]
        results.append(ids if first and all(others) else [])
    return results


class WordEncoder:
    """Encodes sentences word by word, so that no subword spans two words, and caches the encoded words."""

    MAX_WORDS = 1 << 20

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.words = dict[str, list[int]]()

    def __call__(self, sentences: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of each sentence (BOS, then all tokens), and the position of the first token of each word."""
        if len(self.words) > self.MAX_WORDS:
            self.words.clear()
        unseen = list(dict.fromkeys(word for words in sentences for word in words if word not in self.words))
        unknown = [self.tokenizer.special_ids.unk_id]  # for a word without visible characters
        self.words |= {
            word: ids or unknown for word, ids in zip(unseen, self.tokenizer.encode_batch(unseen), strict=True)
        }
        results: tuple[list[list[int]], list[list[int]]] = [], []
        for words in sentences:
            ids = [self.tokenizer.special_ids.bos_id]
            firsts = []
            for word in words:
                firsts.append(len(ids))
                ids += self.words[word]
            results[0].append(ids)
            results[1].append(firsts)
        return results


# ---- batches


@dataclass(frozen=True, slots=True)
class LabeledBatch:
    """Token ids of texts and their labels, padded with `pad_id`."""

    ids: NDArray[np.int32]  # (B, S)
    labels: NDArray[np.int32]  # (B, S), or (B, 1) for labels of texts
    pad_id: int

    @property
    def n_targets(self) -> int:
        """Number of labels."""
        return int((self.labels != self.pad_id).sum())

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the texts, without padding."""
        return int((self.ids != self.pad_id).sum())

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, S)."""
        return self.ids.shape

    def describe(self) -> str:
        """Return the shape as text."""
        return "{} texts of {} tokens".format(*self.shape)

    def halves(self) -> list["LabeledBatch"]:
        """Return the two halves of the batch, or the batch itself if it has only one text."""
        middle = len(self.ids) // 2
        halves = (slice(None, middle), slice(middle, None))
        return [LabeledBatch(self.ids[h], self.labels[h], self.pad_id) for h in halves] if middle else [self]


class PreparedText:
    """Prepared texts for which a model predicts labels or masked tokens; `pairs` holds the token arrays."""

    def __init__(self, pairs: PairCorpus) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def digest(self) -> Any:
        """SHA-256 of the text."""
        return self.pairs.digest


class LabeledText(PreparedText):
    """Prepared texts with labels. The sides of `pairs` are the tokens and the labels.

    Args:
        pairs: the token arrays.
        one_label_per_text: whether each text has one label; otherwise its tokens have labels.

    Attributes:
        unseen: the names of the labels that the training text lacks, in the order of their ids.
        n_labels: the number of labels of each text, not counting labels in `unseen`.
    """

    def __init__(self, pairs: PairCorpus, one_label_per_text: bool) -> None:
        super().__init__(pairs)
        self.one_label_per_text = one_label_per_text
        unseen: Mapping[str, int] = pairs.meta.get("unseen_labels", {})
        self.unseen = sorted(unseen, key=unseen.__getitem__)
        self._first_unseen = min(unseen.values(), default=pairs.special_ids.pad_id)
        labels, offsets = pairs.flat_tokens(1, 0, len(pairs))
        is_label = self._mask_unseen(labels) != pairs.special_ids.pad_id
        self.n_labels = np.add.reduceat(is_label, offsets[:-1], dtype=np.int64)

    @property
    def n_targets(self) -> int:
        """Number of labels."""
        return int(self.n_labels.sum())

    def count_unseen(self) -> dict[str, int]:
        """Count each label that the training text lacks; the most frequent label comes first."""
        labels, _ = self.pairs.flat_tokens(1, 0, len(self.pairs))
        counts = Counter((labels[labels != self._mask_unseen(labels)] - self._first_unseen).tolist())
        return {self.unseen[i]: count for i, count in counts.most_common()}

    def _mask_unseen(self, labels: IntArray) -> IntArray:
        """Return the label ids, with the padding id in place of labels that the training text lacks."""
        return np.where(labels < self._first_unseen, labels, self.pairs.special_ids.pad_id) if self.unseen else labels

    def describe(self) -> str:
        """Return the numbers of texts, tokens, labels and skipped texts."""
        return describe_texts(self.pairs, self.n_targets)

    def batch(self, indices: IntArray) -> LabeledBatch:
        """Build the batch of the texts `indices` (B,), in that order."""
        labels = self._mask_unseen(self.labels(indices)).astype(np.int32)
        return LabeledBatch(self.pairs.pad_rows(0, indices), labels, self.pairs.special_ids.pad_id)

    def labels(self, indices: IntArray) -> NDArray[np.int32]:
        """Return the padded labels (B, S) or (B, 1) of the texts `indices` (B,), including labels in `unseen`."""
        labels = self.pairs.pad_rows(1, indices)
        if self.one_label_per_text:
            return labels[:, :1]
        return np.where(labels == self.pairs.special_ids.eos_id, self.pairs.special_ids.pad_id, labels)


def describe_texts(pairs: PairCorpus, n_labels: int = 0) -> str:
    """Return the numbers of texts, tokens, labels and skipped texts as text."""
    sizes = f"{int(pairs.src_lengths.sum()):,} tokens{f', {n_labels:,} labels' if n_labels else ''}"
    if (counts := pairs.meta.get("pairs")) is None:
        return f"{len(pairs):,} texts ({sizes})"
    return (
        f"{counts['read']:,} texts read, {counts['kept']:,} kept ({sizes}); skipped: {counts['empty']:,} empty, "
        f"{counts['too_long']:,} longer than {pairs.meta['max_length']} tokens"
    )


class LabeledBatches(Batches):
    """Batches of labeled texts of similar length, made in the same way as `Batches` of pairs."""

    def __init__(self, text: LabeledText, batch_tokens: int, seed: int = 1, order_version: int = ORDER_VERSION) -> None:
        super().__init__(text.pairs, batch_tokens, seed, order_version)
        self.text = text

    def token_counts(self, indices: IntArray) -> tuple[int, int]:
        return int(self.text.n_labels[indices].sum()), int(self.corpus.src_lengths[indices].sum(dtype=np.int64))

    def batch(self, indices: IntArray) -> LabeledBatch:  # type: ignore[override]
        return self.text.batch(indices)
