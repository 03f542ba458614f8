"""Language modeling on plain text, and the continuation of a prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import npx
from models.search import sample
from train.errors import UserError
from train.tasks.protocols import Configuration
from train.tasks.task import Task, file_key, task
from train.text.plain import KINDS, PlainText, PlainTokenizer, WindowBatch, WindowBatches

WHITESPACE_SAMPLE = "a  b\n\n\tc\n"


@dataclass(frozen=True)
class LanguageKeys:
    """A language model is trained on one text."""

    train_text: str = file_key("Training text of a language model: UTF-8, of any size. Option: --train-text.")
    valid_text: str = file_key("Validation text of a language model; empty: none. Option: --valid-text.")


@task
class LanguageModeling(Task[PlainTokenizer, PlainText, WindowBatch]):
    """Predict each token of a text from at most data.max_length tokens before it."""

    name = "language"
    model_kind = "a language model"
    command = "generate"
    key_class = LanguageKeys
    file_keys = {"train": ("train_text",), "valid": ("valid_text",)}
    data_kind = "text"
    tokenizers = KINDS

    def train_tokenizer(self, data: Any, files: Sequence[str]) -> PlainTokenizer:
        return PlainTokenizer.from_files(files, data.tokenizer, data.vocab_size)

    def load_tokenizer(self, path: str | Path) -> PlainTokenizer:
        return PlainTokenizer.load(path)

    def adapt_tokenizer(self, tokenizer: PlainTokenizer, data: Any, files: Sequence[str]) -> PlainTokenizer:
        # A vocabulary of characters has only those of its training text, which always include the line feed.
        unk_id = tokenizer.special_ids.unk_id
        # `not in`, because a tokenizer may add another token, such as a space, before the unknown one
        text = "".join(c for c in WHITESPACE_SAMPLE if unk_id not in tokenizer.encode(c))
        if "\n" not in text or text not in tokenizer.decode(tokenizer.encode(text)):
            raise UserError(
                "data.tokenizer: expected a tokenizer that preserves spaces and line feeds; got one that loses them; "
                f"try {' or '.join(self.tokenizers)} to train a tokenizer"
            )
        return tokenizer

    def prepare(self, files: Sequence[str], tokenizer: PlainTokenizer, *args: Any) -> PlainText:
        return PlainText.prepare(files[0], tokenizer, *args)

    def training_batches(
        self, corpus: PlainText, config: Configuration, tokenizer: PlainTokenizer, order_version: int
    ) -> WindowBatches:
        return WindowBatches(corpus, config.train.batch_tokens, config.train.seed)

    def validation_batches(self, corpus: PlainText, batch_tokens: int) -> Iterator[tuple[Any, WindowBatch]]:
        return WindowBatches(corpus, batch_tokens).validation_batches()

    def describe_examples(self, corpus: PlainText, examples: Any) -> str:
        starts = ", ".join(map(str, sorted(examples)))
        return f"{corpus.window_length + 1} tokens each, starting at token {starts} of the text"

    def loss_inputs(self, batch: WindowBatch) -> tuple[npx.Array, ...]:
        return (batch.ids,)


def continue_text(
    model: Any, tokenizer: PlainTokenizer, prompt: str, n_tokens: int, window: int, **options: Any
) -> str:
    """Sample a continuation of `prompt` from a language model.

    Args:
        model: the language model.
        tokenizer: the model's tokenizer.
        prompt: beginning of the text; empty to start at a new line.
        n_tokens: number of tokens to generate.
        window: context length in tokens, data.max_length of the run.
        options: temperature, top_k, top_p and seed, as for `models.search.sample`.

    Raises UserError for a prompt with unknown characters and ValueError for an invalid option.
    """
    ids = tokenizer.encode(prompt or "\n")
    if unknown := [c for c in dict.fromkeys(prompt) if tokenizer.special_ids.unk_id in tokenizer.encode(c)]:
        raise UserError(
            f"prompt: expected only characters of the training text; got {', '.join(map(repr, unknown[:5]))}; "
            "try leaving them out"
        )
    return tokenizer.decode(sample(model, [ids], n_tokens, window=window, **options)[0])
