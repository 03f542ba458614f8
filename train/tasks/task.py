"""What a task is: a kind of text to learn from, its batches, its loss, its scores. The first is tasks/translation.py.

The trainer, an update, a validation, the configuration and the command line know no task but by this page. A new one is
a file with a class below `Task`, decorated with `@task`, and a line in tasks/__init__.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import npx
from autograd import Tensor
from train.errors import UserError
from train.text.lines import read_lines
from train.text.tokenizer import KINDS, Tokenizer

TASKS: dict[str, "Task"] = {}


class Task:
    """One task; it keeps nothing. `data`, `config`: the [data] table and the whole configuration of a run.

    A corpus, prepared text, has
        digest             what tells this text from another, in JSON; None where there is nothing
        describe()         how much there is, and what was left out
    Batches, those of every epoch, have
        epoch(n)           what stands for each batch of epoch n, in order, and of one of these
        batch(it)          the batch, and
        sizes(it)          its n_target_tokens and n_tokens, without making it
    A batch, some examples as arrays of ids, has
        n_target_tokens    predictions that the loss counts
        n_tokens           tokens it trains on, without padding: what a speed is counted in
        shape              sizes, of which the greatest batch has the greatest
        describe()         the shape in words
        halves()           batches of half of the examples each; the batch alone where it has only one
    An evaluation, scores of a model on a text beside the loss, has
        add(model, examples, batch)   takes in the examples that `batch` holds
        found              what it has taken in, a list or a dictionary: that of several ranks is put together
        result()           the scores by the names of `scores`
    """

    name: ClassVar[str]
    keys: ClassVar[type]  # a dataclass of its own keys of [data], see models/fields.py; `train` has an option for each
    files: ClassVar[Mapping[str, tuple[str, ...]]]  # "train" and "valid" -> the keys that name their files
    examples: ClassVar[str]  # in its batches, "pairs" or "text": it trains the architectures that learn from these
    tokenizers: ClassVar[tuple[str, ...]] = KINDS  # kinds it can learn; any other data.tokenizer is a file's path
    sides: ClassVar[tuple[str, ...]] = ("text",)  # of an example, each of at most train.batch_tokens in a batch
    scores: ClassVar[Mapping[str, str]] = {}  # of its evaluation: name in metrics.jsonl -> name for people
    selection_metric: ClassVar[str] = ""  # the score whose greatest value marks the best checkpoint; "": the least loss

    def texts(self, data: Any) -> dict[str, tuple[str, ...]]:
        """The files of "train" and, if any is given, "valid"; UserError where one is not given or cannot be read."""
        texts = {part: tuple(getattr(data, name) for name in names) for part, names in self.files.items()}
        if not any(texts["valid"]):
            del texts["valid"]
        for part, files in texts.items():
            for name, file in zip(self.files[part], files, strict=True):
                if not file:
                    raise UserError(f"data.{name}: expected a text file; got none; try {option(name)} FILE")
        for file in (file for files in texts.values() for file in files):
            with closing(read_lines(file, chunk_lines=1)) as lines:
                next(lines)
        return texts

    def learn_tokenizer(self, data: Any, files: Sequence[str]) -> Any:
        """A tokenizer of the kind `data.tokenizer`, learned on the training text."""
        return Tokenizer.train(files, data.tokenizer, data.vocab_size, data.pretokenizer, parallel=len(files) > 1)

    def load_tokenizer(self, path: str | Path) -> Any:
        """The tokenizer of a file."""
        return Tokenizer.load(path)

    def prepare(self, files: Sequence[str], *how: Any) -> Any:
        """The text as a corpus. `how`: the tokenizer; the folder where its arrays lie; the longest example in tokens;
        a function that is told the examples read so far.
        """
        raise NotImplementedError

    def batches(self, corpus: Any, batch_tokens: int, seed: int) -> Any:
        """The batches of every epoch, each of at most `batch_tokens`."""
        raise NotImplementedError

    def in_order(self, corpus: Any, batch_tokens: int) -> Iterable[tuple[npx.Array, Any]]:
        """(examples, batch): each example once, the same every time, for validation."""
        raise NotImplementedError

    def sequences(self, batch: Any) -> tuple[npx.Array, ...]:
        """The ids (B, length) of a batch that the loss of its models takes; the last are what is predicted."""
        raise NotImplementedError

    def loss(self, model: Any, batch: Any, **how: Any) -> Tensor:
        """`model.loss` () of a batch; `how`: its smoothing, smoothing_over and normalizer."""
        return model.loss(*self.sequences(batch), **how)

    def where(self, corpus: Any, examples: Any) -> str:
        """Where the `examples` of a batch (what its epoch has for it) stand in the text, in words."""
        return f"{len(examples):,} examples"

    def evaluation(self, config: Any, tokenizer: Any, corpus: Any) -> Any:
        """The evaluation for one validation; None where the loss says it all."""
        return None


def task(cls: type[Task]) -> type[Task]:
    """Enters a class below `Task` under its name."""
    if cls.name in TASKS:
        raise ValueError(f"task: expected a new name; got {cls.name!r} again; try another")
    TASKS[cls.name] = cls()
    return cls


def option(name: str) -> str:
    """A key of [data] as an option of the command line."""
    return "--" + name.replace("_", "-")
