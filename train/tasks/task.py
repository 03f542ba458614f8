"""The interface of a task: its text, tokenizer, batches and scores. tasks/translation.py is an example.

The trainer, the validation, the configuration and the command line depend on tasks only through `Task` and
tasks/protocols.py. A new task is a file with a subclass of `Task`, decorated with `@task`, and a line in
tasks/__init__.py.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import npx
from models.fields import key
from npx.registry import Registry
from train.errors import UserError, plural
from train.files import MISSING, describe_base
from train.tasks.protocols import Batch, BatchSource, Configuration, Corpus, Evaluation, TextTokenizer
from train.text.lines import decoded_chunks, line_pieces
from train.text.tokenizer import KINDS, Tokenizer

T = TypeVar("T", bound=TextTokenizer)
C = TypeVar("C", bound=Corpus)
B = TypeVar("B", bound=Batch)

TASKS: Registry["Task[Any, Any, Any]"] = Registry("task")
MAX_LISTED = 10  # number of lines that a message lists


def file_key(help: str) -> Any:
    """Declare a key of [data] that names a text file; the default "" means no file.

    A resumed run may change the path, because a SHA-256 identifies the content.
    """
    return key("", help, may_change=True, is_path=True)


class Task(Generic[T, C, B]):
    """A stateless description of one task, for tokenizers of type T, corpora of type C and batches of type B.

    In the methods, `data` is the [data] table of a run, untyped because it contains the keys of all tasks.
    """

    name: ClassVar[str]
    model_kind: ClassVar[str] = ""  # the name of a trained model in messages, such as "a parser"
    command: ClassVar[str] = ""  # the command that applies a trained model
    # A dataclass with the task's own keys of [data] (see models/fields.py). `train` has an option for each key.
    key_class: ClassVar[type]
    file_keys: ClassVar[Mapping[str, tuple[str, ...]]]  # maps "train" and "valid" to the keys that name their files
    # "pairs", "text" or "labels"; the task works with every architecture of the same `data_kind`
    data_kind: ClassVar[str]
    # The kinds of tokenizer that the task can train; any other value of data.tokenizer is a path.
    tokenizers: ClassVar[tuple[str, ...]] = KINDS
    sides: ClassVar[tuple[str, ...]] = ("text",)  # sides of an example; train.batch_tokens limits each side
    scores: ClassVar[Mapping[str, str]] = {}  # maps the name of a score in metrics.jsonl to its name in the log
    lower_is_better: ClassVar[tuple[str, ...]] = ()  # scores for which lower is better; they cannot select a checkpoint
    # The score that selects the best checkpoint (the highest one wins) if train.best_metric is unset; "": no best
    # checkpoint is saved.
    selection_metric: ClassVar[str] = ""

    def keys_in_use(self, data: Any) -> Mapping[str, tuple[str, ...]]:
        """Return `file_keys`, with the keys of optional files that `data` names."""
        return self.file_keys

    def text_files(self, data: Any) -> dict[str, tuple[str, ...]]:
        """Return the files of "train" and, if given, "valid". Raises UserError for a missing or unreadable file."""
        keys = self.keys_in_use(data)
        text_files = {part: tuple(getattr(data, name) for name in names) for part, names in keys.items()}
        if not any(text_files["valid"]):
            del text_files["valid"]
        named = {name: file for part in text_files for name, file in zip(keys[part], text_files[part], strict=True)}
        for name, file in named.items():
            if not file:
                raise UserError(f"data.{name}: expected a text file; got an empty name; try {option(name)} FILE")
        if missing := {name: file for name, file in named.items() if not os.path.exists(file)}:
            raise missing_texts_error(missing, data.prepared)
        for file in (file for files in text_files.values() for file in files):
            with closing(decoded_chunks(file, line_pieces, 1)) as lines:
                next(lines)
        return text_files

    def check_texts(self, text_files: Mapping[str, tuple[str, ...]]) -> None:
        """Raise UserError for unsuitable texts. Called before a tokenizer is trained, because that may take minutes."""

    def train_tokenizer(self, data: Any, files: Sequence[str]) -> T:
        """Train a tokenizer of the kind `data.tokenizer` on the training text; by default a `Tokenizer`."""
        is_parallel = len(files) > 1
        return cast(T, Tokenizer.train(files, data.tokenizer, data.vocab_size, data.pretokenizer, is_parallel))

    def adapt_tokenizer(self, tokenizer: T, data: Any, files: Sequence[str]) -> T:
        """Adapt an existing tokenizer, named in the configuration of a new run, to the training text."""
        return tokenizer

    def has_separate_vocabularies(self, data: Any) -> bool:
        """Return whether source and target have separate vocabularies."""
        return False

    def load_tokenizer(self, path: str | Path) -> T:
        """Load a tokenizer from a file; by default a `Tokenizer`."""
        return cast(T, Tokenizer.load(path))

    def prepare(
        self,
        files: Sequence[str],
        tokenizer: T,
        folder: Path,
        max_length: int,
        on_progress: Callable[[int], object] = lambda n_read: None,
        /,
    ) -> C:
        """Tokenize the text and store its arrays in `folder`.

        Examples longer than `max_length` tokens are left out. `on_progress` receives the number of
        examples read so far.
        """
        raise NotImplementedError

    def warnings(self, corpus: C, files: Sequence[str]) -> list[str]:
        """Return warnings about the text in `files` and the prepared `corpus`; each warning is a line of the log."""
        return []

    def training_batches(self, corpus: C, config: Configuration, tokenizer: T, order_version: int) -> BatchSource:
        """Return the shuffled batches that a run trains on, each with at most `train.batch_tokens` tokens per side.

        `order_version` is the version of the batch order that the run started with.
        """
        raise NotImplementedError

    def validation_batches(self, corpus: C, batch_tokens: int) -> Iterable[tuple[npx.Array, B]]:
        """Yield (examples, batch) with each example once, in a fixed order, for validation."""
        raise NotImplementedError

    def loss_inputs(self, batch: B) -> tuple[npx.Array, ...]:
        """Return the id arrays (B, length) that are arguments of the model's loss; the model predicts the last one."""
        raise NotImplementedError

    def describe_examples(self, corpus: C, examples: Any) -> str:
        """Describe, for a message, where the examples of a batch are in the text.

        `examples` is an element of the result of `BatchSource.epoch_batches`.
        """
        return plural(len(examples), "example")

    def n_targets(self, tokens: int, config: Configuration) -> int:
        """Return the number of tokens or labels that an update predicts, for the computation of its FLOPs.

        `tokens` is the number of tokens in the update on each side.
        """
        return tokens

    def evaluation(self, config: Configuration, tokenizer: T, corpus: C) -> Evaluation | None:
        """Return a new evaluation for one validation, or None if the loss is the only measure."""
        return None


def task(cls: type[Task[T, C, B]]) -> type[Task[T, C, B]]:
    """Register a subclass of `Task` under its name."""
    TASKS.add(cls.name, cls())
    return cls


def list_lines(corpus: Any, examples: Any) -> str:
    """Describe, for a message, which lines of the text contain the examples of a batch of pairs."""
    numbers = corpus.line_numbers(getattr(examples, "indices", examples))
    n_more = len(numbers) - MAX_LISTED
    listed = ", ".join(map(str, numbers[:MAX_LISTED])) + (f" and {n_more} more" if n_more > 0 else "")
    return f"{listed} of the text (numbered from 1)"


def missing_texts_error(files: Mapping[str, str], prepared: str) -> UserError:
    """Return the error for text files that do not exist: `files` maps keys to paths, `prepared` is data.prepared."""
    first, *others = files
    base = describe_base(files[first])
    suggestion = f"{option(first)} with another path{base}"
    if others:
        base = base.replace("this path is", "these paths are")
        suggestion = f"{' '.join(f'{option(name)} F' for name in files)} with other paths{base}"
    if prepared and {os.path.dirname(os.path.abspath(file)) for file in files.values()} == {os.path.dirname(prepared)}:
        suggestion = f"--data with the new path of {os.path.dirname(prepared)}"  # the texts were written by `data`
    elif "train_src" in files and all(
        os.path.isabs(file) and os.path.basename(file) == name.replace("_", ".") for name, file in files.items()
    ):  # a run stores absolute paths
        suggestion += f", or --data with the new path of {os.path.dirname(files['train_src'])}"
    expected = "text files; got paths that do not exist" if others else f"a text file; got {MISSING}"
    return UserError(f"{', '.join(files.values())}: expected {expected}; try {suggestion}")


class TaskError(UserError):
    """Raised if the model at `path` was trained for `task` instead of one of the tasks `expected`."""

    def __init__(self, path: object, expected: Sequence[str], task: Task[Any, Any, Any], suggestion: str = "") -> None:
        self.path, self.expected, self.task = path, expected, task
        suggestion = suggestion or (f"`npx-transformer {task.command}`" if task.command else "")
        got = f"{describe_model(task.name)}{suggestion and f'; try {suggestion}'}"
        super().__init__(f"{path}: expected {describe_model(*expected)}; got {got}")


def describe_model(*tasks: str) -> str:
    """Describe a model of one of these tasks, for a message."""
    return " or ".join(TASKS[name].model_kind or f"a model of the task {name}" for name in tasks)


def option(name: str) -> str:
    """Return the command-line option of a key of [data]."""
    return "--" + name.replace("_", "-")
