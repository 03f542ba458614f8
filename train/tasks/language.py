"""Language modelling: plain text, each token predicted from those before it; and text that goes on after a prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import npx
from models.fields import key
from models.search import sample
from train.errors import UserError
from train.tasks.task import Task, task
from train.text.plain import KINDS, PlainText, PlainTokenizer, WindowBatches, Windows


@dataclass(frozen=True)
class LanguageKeys:
    """A language model learns one text."""

    # The file may move between a run and its resumption: that it holds the same text is told by SHA-256.
    text: str = key("", "Text a language model learns: UTF-8, of any size. Also --text.", may_change=True)
    valid_text: str = key("", "Text to validate a language model with. Also --valid-text.", may_change=True)


@task
class Language(Task[PlainText, Windows]):
    """One text, each token predicted from at most data.max_length before it."""

    name = "language"
    keys = LanguageKeys
    files = {"train": ("text",), "valid": ("valid_text",)}
    examples = "text"
    tokenizers = KINDS

    def learn_tokenizer(self, data: Any, files: Sequence[str]) -> Any:
        return PlainTokenizer.learn(files, data.tokenizer, data.vocab_size)

    def load_tokenizer(self, path: str | Path) -> Any:
        return PlainTokenizer.load(path)

    def prepare(self, files: Sequence[str], *how: Any) -> PlainText:
        return PlainText.prepare(files[0], *how)

    def batches(self, corpus: PlainText, batch_tokens: int, seed: int) -> WindowBatches:
        return WindowBatches(corpus, batch_tokens, seed)

    def in_order(self, corpus: PlainText, batch_tokens: int) -> Iterator[tuple[Any, Windows]]:
        return WindowBatches(corpus, batch_tokens).in_order()

    def describe_examples(self, corpus: PlainText, examples: Any) -> str:
        return f"{corpus.length + 1} tokens each from token {', '.join(map(str, sorted(examples)))} of the text"

    def sequences(self, batch: Windows) -> tuple[npx.Array, ...]:
        return (batch.ids,)


def continue_text(model: Any, tokenizer: Any, prompt: str, tokens: int, window: int, **options: Any) -> str:
    """What the model writes after `prompt`: `tokens` tokens as text. The options are `models.search.sample`'s.

    `window`: as many tokens as the model learned to look back on. An empty prompt begins as a new line does. UserError
    for a prompt with what the tokenizer does not know, ValueError for a bad option.
    """
    ids = tokenizer.encode(prompt or "\n")
    if unknown := [c for c in dict.fromkeys(prompt) if tokenizer.special.unk_id in tokenizer.encode(c)]:
        raise UserError(
            f"prompt: expected characters of the text that the model learned; got {', '.join(map(repr, unknown[:5]))}; "
            "try another prompt"
        )
    return tokenizer.decode(sample(model, [ids], tokens, window=window, **options)[0])
