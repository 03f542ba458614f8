"""The interfaces between a task and the trainer: tokenizer, configuration, corpus, batches, evaluation and model."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import npx
from autograd import Tensor
from models import TransformerConfig
from models.search import SearchModel
from train.text.tokenizer import SpecialIds

BatchT = TypeVar("BatchT", bound="Batch")


class TextTokenizer(Protocol):
    """Converts text to token ids and back."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def src_vocab_size(self) -> int | None:
        """The size of the source's vocabulary, or None if source and target share one."""

    @property
    def n_outputs(self) -> int:
        """The number of ids that a model may predict: ids 0 to n_outputs - 1."""

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...

    @property
    def special_ids(self) -> SpecialIds: ...

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the tokenizer."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special ids."""

    def save(self, path: Any) -> None: ...


class Configuration(Protocol):
    """The tables of a run's configuration that tasks read. Tasks cannot import `RunConfig`, which imports them."""

    @property
    def data(self) -> Any: ...

    @property
    def train(self) -> Any: ...

    @property
    def search(self) -> Any: ...


class Corpus(Protocol):
    """Prepared text."""

    @property
    def digest(self) -> Any:
        """A JSON value that identifies the text, or None if it cannot be identified."""

    def describe(self) -> str:
        """Return the size of the text and of the part that was left out, for the log."""


class Batch(Protocol):
    """A micro-batch: some examples as arrays of token ids."""

    @property
    def n_targets(self) -> int:
        """The number of predictions that contribute to the loss."""

    @property
    def n_tokens(self) -> int:
        """The number of tokens without padding; throughput counts these."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension of the batch. Batches are compared by shape to find the largest one."""

    def describe(self) -> str:
        """Return the shape in words."""

    def halves(self: BatchT) -> Sequence[BatchT]:
        """Return two batches with half of the examples each, or only this batch if it has one example."""


class BatchSource(Protocol):
    """The batches of every epoch."""

    def epoch_batches(self, epoch: int) -> Sequence[Any]:
        """Return the examples of each batch of an epoch (from 0), in order.

        The examples may have any type that `token_counts` and `batch` accept.
        """

    def token_counts(self, examples: Any) -> tuple[int, int]:
        """Return `n_targets` and `n_tokens` of a batch without building it."""

    def batch(self, examples: Any) -> Batch:
        """Build the batch of these examples."""


class Evaluation(Protocol):
    """Computes a task's scores on a text, in addition to the loss."""

    records: Any  # a list or a dict; the records of several ranks are concatenated or merged

    def add(self, model: Any, examples: npx.Array, batch: Any) -> None:
        """Record the model's outputs for one batch."""

    def result(self) -> dict[str, float]:
        """Return the scores over all records, keyed by the names in `Task.scores`."""


class SourceModel(SearchModel, Protocol):
    """A model that `search_lines` decodes: a sequence-to-sequence model or an ensemble of them."""

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a source, EOS included; None without a maximum."""


class TrainableModel(Protocol):
    """A model with a loss, like every class in `models.ARCHITECTURES`."""

    config: TransformerConfig
    training: bool

    def loss(self, *ids: Any, **options: Any) -> Tensor: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...

    def enable_gradient_checkpointing(self, enabled: bool = True) -> None: ...

    def n_parameters(self) -> int: ...

    def state_dict(self) -> dict[str, npx.Array]: ...

    def load_state_dict(self, state: Mapping[str, npx.Array]) -> None: ...
