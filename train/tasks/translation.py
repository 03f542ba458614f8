"""Translation of sentences: the task, with BLEU and chrF as validation scores, and the translation of text.

`translate_lines` translates a list of lines; `translate_stream` translates input of any size as it arrives (see
decoding.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import npx
from models.fields import key
from models.search import SearchModel, greedy_search
from train.errors import UserError
from train.tasks.decoding import decode_stream
from train.tasks.pairs import PairTask
from train.tasks.protocols import Configuration, SourceModel
from train.tasks.task import file_key, task
from train.text.affixes import has_affixes
from train.text.batches import PairBatch
from train.text.corpus import PairCorpus, prepare
from train.text.labeled_text import is_label_tokenizer
from train.text.lines import check_parallel
from train.text.pair_tokenizer import TranslationTokenizer, load_tokenizer, train_pair_tokenizer
from train.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TranslationKeys:
    """A translation model is trained on two files; line i of the target translates line i of the source."""

    train_src: str = file_key("Training text, source language: UTF-8, one sentence per line. Option: --train-src.")
    train_tgt: str = file_key("Training text, target language. Option: --train-tgt.")
    vocabularies: str = key(
        "shared",
        "Vocabularies of source and target: one for both, as in the paper (shared), or two, each with at most"
        " vocab_size tokens (separate). Option: --vocabularies.",
        choices=("shared", "separate"),
    )
    valid_src: str = file_key("Validation text, source language; empty: none. Option: --valid-src.")
    valid_tgt: str = file_key("Validation text, target language. Option: --valid-tgt.")


@task
class Translation(PairTask[TranslationTokenizer]):
    """Predict the second sentence of a pair from the first."""

    name = "translation"
    model_kind = "a translation model"
    command = "translate"
    key_class = TranslationKeys
    file_keys = {"train": ("train_src", "train_tgt"), "valid": ("valid_src", "valid_tgt")}
    scores = {"bleu": "BLEU", "chrf": "chrF"}

    def check_texts(self, text_files: Mapping[str, tuple[str, ...]]) -> None:
        for files in text_files.values():
            check_parallel(*files)

    def has_separate_vocabularies(self, data: Any) -> bool:
        return bool(data.vocabularies == "separate")

    def train_tokenizer(self, data: Any, files: Sequence[str]) -> TranslationTokenizer:
        if self.has_separate_vocabularies(data):
            return train_pair_tokenizer(files, data.tokenizer, data.vocab_size, data.pretokenizer)
        return super().train_tokenizer(data, files)

    def load_tokenizer(self, path: str | Path) -> TranslationTokenizer:
        return load_tokenizer(path)

    def adapt_tokenizer(self, tokenizer: TranslationTokenizer, data: Any, files: Sequence[str]) -> TranslationTokenizer:
        for side in (tokenizer.source, tokenizer.target):
            if has_affixes(side.spec) or is_label_tokenizer(side):
                got = "labels" if is_label_tokenizer(side) else "affixes"
                raise UserError(
                    f"data.tokenizer: expected a tokenizer whose tokens can be joined into text; got {got}; "
                    f"try {' or '.join(self.tokenizers)} to train a tokenizer"
                )
        return tokenizer

    def prepare(self, files: Sequence[str], tokenizer: TranslationTokenizer, *args: Any) -> PairCorpus:
        src, tgt = files
        return prepare(src, tgt, tokenizer, *args)

    def side_tokenizers(self, tokenizer: TranslationTokenizer) -> tuple[Tokenizer, Tokenizer]:
        return tokenizer.source, tokenizer.target

    def describe_examples(self, corpus: PairCorpus, examples: Any) -> str:
        return super().describe_examples(corpus, examples).replace("pairs", "lines", 1)

    def evaluation(
        self, config: Configuration, tokenizer: TranslationTokenizer, corpus: PairCorpus
    ) -> "GreedyScores | None":
        if not config.train.validate_score:
            return None
        tokenize = "none" if config.data.pretokenizer == "whitespace" else "13a"  # "none" because the text is tokenized
        return GreedyScores(tokenizer, corpus, config.search.max_extra_tokens, tokenize)


class GreedyScores:
    """BLEU and chrF of greedy search on the validation text."""

    def __init__(
        self, tokenizer: TranslationTokenizer, corpus: PairCorpus, max_extra_tokens: int, tokenize: str
    ) -> None:
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.max_extra_tokens = max_extra_tokens
        self.tokenize = tokenize
        self.records: dict[int, list[int]] = {}  # maps a pair to token ids

    def add(self, model: SearchModel, indices: npx.Array, batch: PairBatch) -> None:
        best = greedy_search(model, batch.src, max_extra_tokens=self.max_extra_tokens)
        self.records |= {int(i): hypothesis.tokens for i, hypothesis in zip(indices, best, strict=True)}

    def result(self) -> dict[str, float]:
        from train.metrics.bleu import corpus_bleu_for_validation, corpus_chrf

        hypotheses = self.tokenizer.decode_batch(list(self.records.values()))
        references = self.tokenizer.decode_batch([self.corpus.pair(i)[1] for i in self.records])
        score = corpus_bleu_for_validation(hypotheses, references, tokenize=self.tokenize)
        return {"bleu": score, "chrf": corpus_chrf(hypotheses, references)}


# ---- translation of text


def translate_lines(
    model: SourceModel, tokenizer: TranslationTokenizer, lines: Iterable[str], **options: Any
) -> list[list[tuple[str, float]]]:
    """Translate lines of text.

    Args:
        model: a translation model, in eval mode.
        tokenizer: the model's tokenizer.
        lines: sentences, one per line.
        options: keyword arguments of `decode_stream`: beam_size, length_penalty, n_best, batch_tokens, ...

    Returns, for each line, its `n_best` translations as (text, score), best first; [("", 0.0)] for an empty line.
    Raises ValueError for an invalid option and TypeError for an unknown one.
    """
    return list(translate_stream(model, tokenizer, lines, **options))


def best_translations(
    model: SourceModel, tokenizer: TranslationTokenizer, lines: Iterable[str], **options: Any
) -> list[str]:
    """Return the best translation of each line of a list.

    The options are those of `translate_lines`: beam_size, length_penalty, ...
    """
    return [translations[0][0] for translations in translate_stream(model, tokenizer, lines, **options)]


def translate_stream(
    model: SourceModel, tokenizer: TranslationTokenizer, lines: Iterable[str | None], **options: Any
) -> Iterator[list[tuple[str, float]]]:
    """Yield the translations of each line, as `translate_lines` returns them; None in `lines` marks a pause.

    The options are checked immediately, before the first line is read.
    """

    results = decode_stream(model, tokenizer, lines, **options)
    return ([(t.text, t.hypothesis.score) for t in translations] for translations in results)
