"""The progress of a run, saved in its checkpoints and validated when read, and the summary of a finished run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from npx.ranges import Range
from train.errors import one_line
from train.json_files import Schema, schema_error
from train.text.batches import ORDER_VERSION

# Keys that are missing in checkpoints of earlier versions.
ADDED_KEYS: dict[str, Any] = {
    "skipped": 0, "all_skipped": 0, "best_score": None, "ranking": {}, "network": 0.0, "window_network": 0.0,
    "batch_order": 1,
}  # fmt: skip
COUNT, NUMBER, NONNEGATIVE = Range(int, "[0, 1e15]"), Range(float), Range(float, "[0, inf)")


def checked_field(kind: Any, default: Any = 0, key: str = "") -> Any:
    """Return a dataclass field whose value must fit `kind`; (kind, None) also allows null.

    `key` is the name in state.json, if it differs from that of the field.
    """
    return field(default=default, metadata={"kind": kind, "key": key})


@dataclass
class RunState:
    """A run's position in the text, and its running totals, saved as JSON without loss of precision.

    The `window_` totals cover the updates since the last log line.
    """

    step: int = checked_field(COUNT)  # number of updates
    epoch: int = checked_field(COUNT)  # epoch of the next micro-batch, counted from 0
    index: int = checked_field(COUNT)  # index of the next micro-batch within its epoch
    # version of the order of batches (text/batches.py)
    batch_order: int = checked_field(Range(int, f"[1, {ORDER_VERSION}]"), ORDER_VERSION)
    logged_epoch: int = checked_field(COUNT, key="in_epoch")  # epoch of the last micro-batch, counted from 1
    tokens: int = checked_field(COUNT)  # tokens trained on, without padding
    seconds: float = checked_field(NONNEGATIVE, 0.0)  # seconds in updates, without validation and writing
    # the part of `seconds` in which all ranks waited for the network
    network_seconds: float = checked_field(NONNEGATIVE, 0.0, key="network")
    valid_step: int = checked_field(COUNT, key="validated")  # step of the last validation
    # the lowest validation loss, or the loss of the validation with the best score
    best_loss: float | None = checked_field((NUMBER, None), None)
    best_score: float | None = checked_field((NUMBER, None), None)  # best score, for tasks with a selection metric
    best_step: int = checked_field(COUNT)
    stale_validations: int = checked_field(COUNT, key="worse")  # number of validations since the best one
    # Step -> [loss, score] of the retained checkpoints/best-N, best first; the steps are strings, like all JSON keys.
    ranking: dict[str, list[Any]] = field(default_factory=dict, metadata={"kind": dict, "key": ""})
    window_loss: float = checked_field(NUMBER, 0.0)  # sum of loss x target tokens
    window_targets: int = checked_field(COUNT)
    window_tokens: int = checked_field(COUNT)
    window_seconds: float = checked_field(NONNEGATIVE, 0.0)
    window_network_seconds: float = checked_field(NONNEGATIVE, 0.0, key="window_network")
    # The number of consecutive updates, up to now, that were skipped because of a non-finite loss or gradient.
    consecutive_skipped: int = checked_field(COUNT, key="skipped")
    total_skipped: int = checked_field(COUNT, key="all_skipped")  # number of skipped updates since the start of the run

    @classmethod
    def read(cls, content: Any, step: int) -> "RunState":
        """Return the state in `content`, written at `step`. Raises ValueError, with one line, for invalid content."""
        by_key = {f.metadata["key"] or f.name: f for f in fields(cls)}
        schema: Schema = {key: f.metadata["kind"] for key, f in by_key.items()}
        if isinstance(content, Mapping):
            content = ADDED_KEYS | dict(content)
        if problem := schema_error(content, schema):
            raise ValueError(f"run.{problem}")
        if unknown := content.keys() - schema.keys():
            raise ValueError(f"run: expected the keys {', '.join(schema)}; got {', '.join(sorted(unknown))}")
        state = cls(**{by_key[key].name: value for key, value in content.items()})
        for name, value, limit in (
            ("validated", state.valid_step, step),
            ("best_step", state.best_step, state.valid_step),
            ("window_tokens", state.window_tokens, state.tokens),
            ("in_epoch", state.logged_epoch, state.epoch + 1),
        ):
            if value > limit:
                raise ValueError(f"run.{name}: expected at most {limit}; got {value}")
        # Earlier versions stored only the loss or score that selected the checkpoint.
        state.ranking = {key: value if isinstance(value, list) else [value] * 2 for key, value in state.ranking.items()}
        for key, values in state.ranking.items():
            is_validated = key.isdecimal() and len(key) < 16 and int(key) <= state.valid_step
            if not is_validated or [*map(type, values)] not in ([float, float], [float, type(None)]):
                got = one_line(repr({key: values}))[:60]
                raise ValueError(f"run.ranking: expected validated steps and their values; got {got}")
        if state.step != step:
            raise ValueError(f"run.step: expected {step}; got {state.step}")
        return state

    def to_json(self) -> dict[str, Any]:
        """Return the content of state.json from which `read` restores this state."""
        return {f.metadata["key"] or f.name: getattr(self, f.name) for f in fields(self)}

    def add_time(self, seconds: float, network_seconds: float = 0.0) -> None:
        """Count the time of an attempted update; `network_seconds` is the part spent waiting for the network.

        Negative seconds, which occur if the clock is set back, count as 0.
        """
        seconds, network_seconds = max(seconds, 0.0), max(network_seconds, 0.0)
        self.seconds += seconds
        self.network_seconds += network_seconds
        self.window_seconds += seconds
        self.window_network_seconds += network_seconds

    def add_update(self, loss: float, targets: int, tokens: int) -> None:
        """Count an update: its mean loss over `targets` predictions, and its tokens without padding."""
        self.step += 1
        self.consecutive_skipped = 0
        self.tokens += tokens
        self.window_loss += loss * targets
        self.window_targets += targets
        self.window_tokens += tokens

    def add_skipped(self) -> None:
        """Count an update that was skipped because of a non-finite loss or gradient."""
        self.consecutive_skipped += 1
        self.total_skipped += 1

    @property
    def loss(self) -> float:
        """Mean loss since the last log line, in nats per target token."""
        return self.window_loss / max(1, self.window_targets)

    @property
    def speed(self) -> float:
        """Tokens per second since the last log line."""
        return self.window_tokens / max(self.window_seconds, 1e-9)

    def reset_window(self) -> None:
        """Start a new window, after a log line."""
        self.window_loss, self.window_targets, self.window_tokens = 0.0, 0, 0
        self.window_seconds, self.window_network_seconds = 0.0, 0.0

    def add_validation(self, loss: float, score: float | None = None) -> bool:
        """Record a validation and return whether it is the best; `score` is None for a task without a metric."""
        self.valid_step = self.step
        best_score = None if score is None else self.best_score
        better = self.best_loss is None or quality(loss, score) > quality(self.best_loss, best_score)
        if better:
            self.best_loss, self.best_score = loss, score
            self.best_step = self.step
            self.stale_validations = 0
        else:
            self.stale_validations += 1
        return better

    def insert_into_ranking(self, loss: float, score: float | None, keep: int) -> bool:
        """Insert this step into `ranking`, which holds at most `keep` steps; return whether it was inserted.

        The other arguments are those of `add_validation`.
        """
        self.ranking = self.ranking | {str(self.step): [loss, score]}
        self.sort_ranking(score is None, keep)
        return str(self.step) in self.ranking

    def sort_ranking(self, by_loss: bool, keep: int) -> None:
        """Sort `ranking`, and keep only its best `keep` steps. If two results are equal, the earlier step is better."""
        in_order = sorted(self.ranking.items(), key=lambda item: int(item[0]))
        in_order.sort(key=lambda item: quality(item[1][0], None if by_loss else item[1][1]), reverse=True)
        self.ranking = dict(in_order[:keep])


def quality(loss: float, score: float | None) -> tuple[float, float]:
    """Return the quality of a validation, for comparisons: its score or, if it has none, its negative loss.

    Of two validations with a score of 0, as at the start of training, the one with the lower loss is better.
    """
    if score is None:
        return -loss, 0.0
    return score, 0.0 if score else -loss


@dataclass
class TrainingSummary:
    """The result of `Trainer.run`. Losses are in nats per target token, or None without validation.

    `stop_reason` is "max_steps", "patience" or "max_hours".
    """

    step: int
    stop_reason: str
    checkpoint: Path | None  # the newest checkpoint; None if max_hours ended before the first update
    tokens: int
    seconds: float
    valid_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)  # scores of the last validation
