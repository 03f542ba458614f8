"""What a run remembers beside weights and moments, read back with every check, and how it ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from npx.ranges import Range
from train.files import Schema, schema_error

LATER = {"skipped": 0, "all_skipped": 0, "best_score": None, "network": 0.0, "window_network": 0.0}
COUNT, NUMBER, NOT_BELOW_0 = Range(int, "[0, 1e15]"), Range(float), Range(float, "[0, inf)")


def of(kind: Any, default: Any = 0) -> Any:
    """A number of the state and what it may be; (kind, None): or null."""
    return field(default=default, metadata={"kind": kind})


@dataclass
class RunState:
    """Where a run stands; saved as JSON, whose numbers come back bit for bit."""

    step: int = of(COUNT)  # updates done
    epoch: int = of(COUNT)  # of the next micro-batch, from 0
    index: int = of(COUNT)  # of the next micro-batch within its epoch
    in_epoch: int = of(COUNT)  # epoch of the last micro-batch, from 1, as people count
    tokens: int = of(COUNT)  # trained on, without padding
    seconds: float = of(NOT_BELOW_0, 0.0)  # in updates; validation and writing do not count
    network: float = of(NOT_BELOW_0, 0.0)  # of these, seconds in which no rank computed: all waited for the network
    validated: int = of(COUNT)  # step of the last validation
    best_loss: float | None = of((NUMBER, None), None)  # the least validation loss, or that of the best score
    best_score: float | None = of((NUMBER, None), None)  # of a task that is judged by one
    best_step: int = of(COUNT)  # and its step
    worse: int = of(COUNT)  # validations since then
    window_loss: float = of(NUMBER, 0.0)  # since the last log line: sum of loss x target tokens,
    window_targets: int = of(COUNT)  # target tokens,
    window_tokens: int = of(COUNT)  # tokens trained on
    window_seconds: float = of(NOT_BELOW_0, 0.0)
    window_network: float = of(NOT_BELOW_0, 0.0)
    skipped: int = of(COUNT)  # updates in a row, up to now, that were not finite and were not made
    all_skipped: int = of(COUNT)  # and in the whole run

    @classmethod
    def read(cls, content: Any, step: int) -> "RunState":
        """The state of a checkpoint after so many steps; ValueError, one line, for one that cannot be."""
        schema: Schema = {f.name: f.metadata["kind"] for f in fields(cls)}
        if isinstance(content, Mapping):
            content = LATER | dict(content)  # not in earlier ones
        if wrong := schema_error(content, schema):
            raise ValueError(f"run.{wrong}")
        if unknown := content.keys() - schema.keys():
            raise ValueError(f"run: expected {', '.join(schema)}; got {', '.join(sorted(unknown))}")
        state = cls(**content)
        for name, value, most in (
            ("step", state.step, step),
            ("validated", state.validated, step),
            ("best_step", state.best_step, state.validated),
            ("window_tokens", state.window_tokens, state.tokens),
            ("in_epoch", state.in_epoch, state.epoch + 1),
        ):
            if value > most:
                raise ValueError(f"run.{name}: expected at most {most}; got {value}")
        if state.step != step:
            raise ValueError(f"run.step: expected {step}; got {state.step}")
        return state

    def spent(self, seconds: float, network: float = 0.0) -> None:
        """Time went into an update, made or not, some of it the network's."""
        self.seconds += seconds
        self.network += network
        self.window_seconds += seconds
        self.window_network += network

    def updated(self, loss: float, targets: int, tokens: int) -> None:
        """An update was made: its mean loss over `targets` predictions, from so many tokens."""
        self.step += 1
        self.skipped = 0
        self.tokens += tokens
        self.window_loss += loss * targets
        self.window_targets += targets
        self.window_tokens += tokens

    def skip(self) -> None:
        """An update was not finite and was not made."""
        self.skipped += 1
        self.all_skipped += 1

    @property
    def loss(self) -> float:
        """Mean since the last log line, in nats a target token."""
        return self.window_loss / max(1, self.window_targets)

    @property
    def speed(self) -> float:
        """Tokens a second since the last log line."""
        return self.window_tokens / max(self.window_seconds, 1e-9)

    def logged(self) -> None:
        """A log line was written."""
        self.window_loss, self.window_targets, self.window_tokens = 0.0, 0, 0
        self.window_seconds, self.window_network = 0.0, 0.0

    def judged(self, loss: float, score: float | None = None) -> bool:
        """A validation gave this loss, and a score where the task is judged by one; whether it is the best so far."""
        self.validated = self.step
        better = loss < (math.inf if self.best_loss is None else self.best_loss)
        if score is not None:
            better = score > (-math.inf if self.best_score is None else self.best_score)
        if better:
            self.best_loss, self.best_score, self.best_step, self.worse = loss, score, self.step, 0
        else:
            self.worse += 1
        return better


@dataclass
class Summary:
    """How a run ended, `stopped` by "max_steps", "patience" or "max_hours".

    Losses are in nats a target token, None if not validated.
    """

    step: int
    stopped: str
    checkpoint: Path | None  # the newest; None where max_hours ended before the first update
    tokens: int
    seconds: float
    valid_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)  # the task's own, of the last validation
