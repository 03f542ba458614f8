"""Tasks of the encoder-only architecture: masked language modeling, text classification and token tagging."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

import npx
from models import Encoder
from train.errors import UserError, plural
from train.metrics.classification import IntArray, LabelScores
from train.tasks.language import LanguageKeys
from train.tasks.protocols import Configuration
from train.tasks.task import T, Task, file_key, list_lines, task
from train.text.affixes import AFFIXES, WordTokenizer, affix_spec, split_words
from train.text.bpe_dropout import EpochExamples
from train.text.corpus import prepare_pairs
from train.text.labeled_text import (
    MAX_LISTED,
    MAX_SHOWN,
    LabeledBatch,
    LabeledBatches,
    LabeledExample,
    LabeledText,
    LabelIds,
    WordEncoder,
    check_tag_lines,
    encode_texts,
    label_names,
    make_label_tokenizer,
    read_labeled,
    read_parallel_tags,
    read_tagged,
    unseen_labels_error,
)
from train.text.lines import chunks_of, read_lines
from train.text.masked import MaskedBatches, MaskedText
from train.text.pair_tokenizer import PairTokenizer, load_tokenizer
from train.text.tokenizer import DEFAULT_IDS, KINDS, SPECIALS

CHUNK = 1024  # number of examples encoded together
TYPICAL_LENGTH = 30  # typical number of tokens of a text, for estimating FLOPs
C = TypeVar("C", LabeledText, MaskedText)
OnBytes = Callable[[bytes], object]


class EncoderTask(Task[T, C, LabeledBatch], Generic[T, C]):
    """Base class of tasks that predict labels of a text or of its tokens."""

    data_kind = "labels"
    tokenizers = (*KINDS, AFFIXES)

    def train_text_tokenizer(self, data: Any, lines: Iterable[list[str]]) -> WordTokenizer:
        """Train a tokenizer of the kind `data.tokenizer` on text; `lines` yields lists of lines."""
        if data.tokenizer == AFFIXES:
            sentences = (split_words(line) for chunk in lines for line in chunk)
            return WordTokenizer(affix_spec(sentences, SPECIALS, data.vocab_size))
        return WordTokenizer(WordTokenizer.train_spec(lines, data.tokenizer, data.vocab_size, data.pretokenizer))

    def load_tokenizer(self, path: str | Path) -> T:
        return cast(T, load_tokenizer(path, WordTokenizer))

    def loss_inputs(self, batch: LabeledBatch) -> tuple[npx.Array, ...]:
        return batch.ids, batch.labels

    def describe_examples(self, corpus: C, examples: Any) -> str:
        return f"texts {list_lines(corpus.pairs, examples)}"


# ---- masked language model


@dataclass(frozen=True)
class MaskingKeys(LanguageKeys):
    """A masked language model is trained on one text, one sentence per line."""


@task
class MaskedLanguageModeling(EncoderTask[WordTokenizer, MaskedText]):
    """Predict randomly masked tokens of a text from the tokens on both sides."""

    name = "masking"
    model_kind = "a masked language model"
    command = "embed"
    key_class = MaskingKeys
    file_keys = {"train": ("train_text",), "valid": ("valid_text",)}
    scores = {"accuracy": "accuracy"}

    def train_tokenizer(self, data: Any, files: Sequence[str]) -> WordTokenizer:
        return self.train_text_tokenizer(data, read_lines(files[0]))

    def adapt_tokenizer(
        self, tokenizer: WordTokenizer | PairTokenizer, data: Any, files: Sequence[str]
    ) -> WordTokenizer:
        if isinstance(source := tokenizer.source, WordTokenizer) and any(source.word_starts()):
            return source
        found = "one whose tokens do not" if isinstance(source, WordTokenizer) else "a SentencePiece tokenizer"
        raise UserError(
            "data.tokenizer: expected a Hugging Face tokenizer.json, whose tokens show where words begin; got "
            f"{found}; try {' or '.join(self.tokenizers)} to train a tokenizer"
        )

    def prepare(self, files: Sequence[str], tokenizer: WordTokenizer, *args: Any) -> MaskedText:
        def encode(on_bytes: Callable[[bytes], object]) -> Iterator[tuple[list[list[int]], ...]]:
            for lines in read_lines(files[0], on_bytes=on_bytes):
                ids = encode_texts(tokenizer, [[line] for line in lines])
                yield ids, ids

        return MaskedText(prepare_pairs({"text": files[0]}, encode, tokenizer, *args), tokenizer.word_starts())

    def training_batches(
        self, corpus: MaskedText, config: Configuration, tokenizer: WordTokenizer, order_version: int
    ) -> MaskedBatches:
        t = config.train
        return MaskedBatches(corpus, t.batch_tokens, t.seed, t.mask_rate, order_version)

    def validation_batches(self, corpus: MaskedText, batch_tokens: int) -> Iterator[tuple[npx.Array, LabeledBatch]]:
        batches = MaskedBatches(corpus, max(int(corpus.pairs.src_lengths.max()), batch_tokens), seed=0)
        for indices in batches.batches.by_length():
            yield indices, batches.batch(EpochExamples(0, indices))

    def n_targets(self, tokens: int, config: Configuration) -> int:
        return round(config.train.mask_rate * tokens)

    def evaluation(
        self, config: Configuration, tokenizer: WordTokenizer, corpus: MaskedText
    ) -> "MaskedAccuracy | None":
        return MaskedAccuracy() if config.train.validate_score else None


class MaskedAccuracy:
    """The percentage of masked tokens that are predicted correctly."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []  # for each batch, (number correct, number predicted)

    def add(self, model: Encoder, examples: npx.Array, batch: LabeledBatch) -> None:
        gold, logits = model.label_logits(batch.ids, batch.labels)
        self.records.append((int((logits.argmax(axis=1) == gold).sum()), len(gold)))

    def result(self) -> dict[str, float]:
        correct, total = map(sum, zip(*self.records, strict=True))
        return {"accuracy": 100 * correct / max(1, total)}


# ---- labels of a file


class LabeledTask(EncoderTask[PairTokenizer, LabeledText]):
    """Predict labels read from a file. Subclasses define how the file is read and encoded."""

    scores = {"accuracy": "accuracy", "macro_f1": "macro F1"}
    selection_metric = "accuracy"
    one_label_per_text: bool  # whether a text has one label; otherwise each word has one

    def read(self, *files: str, on_bytes: Sequence[OnBytes] = ()) -> Iterator[LabeledExample]:
        """Yield the examples of one or more files. Raises UserError for an invalid line.

        `on_bytes` contains one function per file; the function receives all bytes of the file.
        """
        raise NotImplementedError

    def encode(
        self, tokenizer: PairTokenizer, label_ids: LabelIds
    ) -> Callable[[list[LabeledExample]], tuple[list[list[int]], ...]]:
        """Return a function that maps examples to two lists: the token ids and the label ids of each example."""
        raise NotImplementedError

    def has_separate_vocabularies(self, data: Any) -> bool:
        return True

    def train_tokenizer(self, data: Any, files: Sequence[str]) -> PairTokenizer:
        lines = ([" ".join(example.texts) for example in chunk] for chunk in self.chunks(files))
        return self.adapt_tokenizer(self.train_text_tokenizer(data, lines), data, files)

    def adapt_tokenizer(
        self, tokenizer: WordTokenizer | PairTokenizer, data: Any, files: Sequence[str]
    ) -> PairTokenizer:
        if (ids := tokenizer.source.special_ids) != DEFAULT_IDS:
            raise UserError(
                f"data.tokenizer: expected the special ids {tuple(DEFAULT_IDS)} of the labels; got "
                f"{tuple(ids)}; try {' or '.join(self.tokenizers)} to train a tokenizer"
            )
        labels = (label for example in self.read(*files) for label in example.labels)
        return PairTokenizer(tokenizer.source, make_label_tokenizer(files[-1], labels))

    def chunks(self, files: Sequence[str], on_bytes: Sequence[OnBytes] = ()) -> Iterator[list[LabeledExample]]:
        """Yield lists of the examples in the files."""
        examples = self.read(*files, on_bytes=on_bytes)
        return chunks_of(examples, CHUNK, lambda example: sum(map(len, example.texts)))

    def prepare(self, files: Sequence[str], tokenizer: PairTokenizer, *args: Any) -> LabeledText:
        label_ids = LabelIds(files[-1], tokenizer)
        encode_chunk = self.encode(tokenizer, label_ids)

        def encode(*on_bytes: OnBytes) -> Iterator[tuple[list[list[int]], ...]]:
            return map(encode_chunk, self.chunks(files, on_bytes))

        sources = dict(zip(("labeled", "tags"), files, strict=False))
        pairs = prepare_pairs(sources, encode, tokenizer, *args, unseen_labels=label_ids.unseen)
        text = LabeledText(pairs, self.one_label_per_text)
        if not text.n_targets:
            raise unseen_labels_error(files[-1], text.unseen)
        return text

    def warnings(self, corpus: LabeledText, files: Sequence[str]) -> list[str]:
        if not (counts := corpus.count_unseen()):
            return []
        listed = ", ".join(f"{name[:MAX_SHOWN]} {count:,}" for name, count in islice(counts.items(), MAX_LISTED))
        more = f" and {len(counts) - MAX_LISTED:,} more" if len(counts) > MAX_LISTED else ""
        return [
            f"warning: {files[-1]}: the training text lacks {plural(len(counts), 'label')}; in "
            f"{plural(sum(counts.values()), 'place')}, predictions therefore count as errors and are left out of the "
            f"loss: {listed}{more}"
        ]

    def training_batches(
        self, corpus: LabeledText, config: Configuration, tokenizer: PairTokenizer, order_version: int
    ) -> LabeledBatches:
        if corpus.unseen:  # the text has changed since the tokenizer was made
            raise UserError(
                f"training text: expected only labels that the tokenizer of the run has; got {corpus.unseen[0]!r}; "
                "try a new run with --out"
            )
        return LabeledBatches(corpus, config.train.batch_tokens, config.train.seed, order_version)

    def validation_batches(self, corpus: LabeledText, batch_tokens: int) -> Iterator[tuple[npx.Array, LabeledBatch]]:
        batches = LabeledBatches(corpus, max(int(corpus.pairs.src_lengths.max()), batch_tokens))
        return ((indices, batches.batch(indices)) for indices in batches.by_length())

    def evaluation(
        self, config: Configuration, tokenizer: PairTokenizer, corpus: LabeledText
    ) -> "LabelEvaluation | None":
        return LabelEvaluation(tokenizer, corpus) if config.train.validate_score else None


class LabelEvaluation:
    """Accuracy and F1 of the most probable labels."""

    def __init__(self, tokenizer: PairTokenizer, text: LabeledText) -> None:
        self.text = text
        self.names = [*label_names(tokenizer), *text.unseen]
        self.records: list[tuple[IntArray, IntArray]] = []  # gold and predicted labels of each batch

    def add(self, model: Encoder, examples: npx.Array, batch: LabeledBatch) -> None:
        first_label = len(SPECIALS)
        labels = self.text.labels(examples)  # `batch.labels` lacks the labels in `self.text.unseen`
        is_labeled = labels != batch.pad_id
        _, logits = model.label_logits(batch.ids, np.where(is_labeled, first_label, batch.pad_id))
        self.records.append((labels[is_labeled] - first_label, logits[:, first_label:].argmax(axis=1)))

    def scores(self) -> LabelScores:
        """Return the scores of all records."""
        gold, predicted = (np.concatenate(side) for side in zip(*self.records, strict=True))
        return LabelScores.of(self.names, gold, predicted)

    def result(self) -> dict[str, float]:
        scores = self.scores()
        return {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}


@dataclass(frozen=True)
class ClassificationKeys:
    """A classifier is trained on lines that contain a label and one or two texts, separated by tabs."""

    train_labeled: str = file_key(
        "Training text of a classifier: a label, a tab and a text per line. Option: --train-labeled."
    )
    valid_labeled: str = file_key("Validation text of a classifier; empty: none. Option: --valid-labeled.")


@task
class Classification(LabeledTask):
    """Predict the label of a text, or of a pair of texts, from the encoder's output at the first token."""

    name = "classification"
    model_kind = "a classifier"
    command = "classify"
    key_class = ClassificationKeys
    file_keys = {"train": ("train_labeled",), "valid": ("valid_labeled",)}
    one_label_per_text = True

    def n_targets(self, tokens: int, config: Configuration) -> int:
        return tokens // TYPICAL_LENGTH

    def read(self, *files: str, on_bytes: Sequence[OnBytes] = ()) -> Iterator[LabeledExample]:
        return read_labeled(files[0], on_bytes[0] if on_bytes else None)

    def encode(
        self, tokenizer: PairTokenizer, label_ids: LabelIds
    ) -> Callable[[list[LabeledExample]], tuple[list[list[int]], ...]]:
        def encode_chunk(examples: list[LabeledExample]) -> tuple[list[list[int]], ...]:
            labels = [label_ids(example) for example in examples]
            return encode_texts(tokenizer.source, [example.texts for example in examples]), labels

        return encode_chunk


@dataclass(frozen=True)
class TaggingKeys:
    """A tagger is trained on lines that contain a word, a tab and the word's tag; an empty line ends a sentence."""

    train_tagged: str = file_key(
        "Training text of a tagger: a word, a tab and the word's tag per line; with train_tags, a sentence per line."
        " Option: --train-tagged."
    )
    train_tags: str = file_key(
        "Tags of the sentences in train_tagged, one line per sentence; empty: train_tagged contains the tags."
        " Option: --train-tags."
    )
    valid_tagged: str = file_key("Validation text of a tagger; empty: none. Option: --valid-tagged.")
    valid_tags: str = file_key("Tags of the sentences in valid_tagged, like train_tags. Option: --valid-tags.")


@task
class Tagging(LabeledTask):
    """Predict the tag of each word of a sentence from its first subword."""

    name = "tagging"
    model_kind = "a tagger"
    command = "classify"
    key_class = TaggingKeys
    file_keys = {"train": ("train_tagged",), "valid": ("valid_tagged",)}
    one_label_per_text = False

    def keys_in_use(self, data: Any) -> dict[str, tuple[str, ...]]:
        optional = {part: f"{part}_tags" for part in self.file_keys}
        return {part: (*keys, optional[part]) if getattr(data, optional[part]) else keys
                for part, keys in self.file_keys.items()}  # fmt: skip

    def text_files(self, data: Any) -> dict[str, tuple[str, ...]]:
        text_files = super().text_files(data)
        for words, *tags in text_files.values():
            if tags:
                check_tag_lines(words, tags[0])
        return text_files

    def read(self, *files: str, on_bytes: Sequence[OnBytes] = ()) -> Iterator[LabeledExample]:
        words, *tags = files
        if tags:
            return read_parallel_tags(words, tags[0], on_bytes)
        return read_tagged(words, on_bytes[0] if on_bytes else None)

    def encode(
        self, tokenizer: PairTokenizer, label_ids: LabelIds
    ) -> Callable[[list[LabeledExample]], tuple[list[list[int]], ...]]:
        encode_words = WordEncoder(tokenizer.source)
        no_label = tokenizer.pad_id

        def encode_chunk(examples: list[LabeledExample]) -> tuple[list[list[int]], ...]:
            tags = [label_ids(example) for example in examples]
            sentences, firsts = encode_words([example.texts for example in examples])
            labels = [[no_label] * len(ids) for ids in sentences]
            for row, positions, ids in zip(labels, firsts, tags, strict=True):
                for position, tag in zip(positions, ids, strict=True):
                    row[position] = tag
            return sentences, labels

        return encode_chunk
