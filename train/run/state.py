"""What a run remembers beside weights and moments, and how it ended."""

import math
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class RunState:
    """Where a run stands; saved as JSON, whose numbers come back bit for bit."""

    step: int = 0  # updates done
    epoch: int = 0  # of the next micro-batch, from 0
    index: int = 0  # of the next micro-batch within its epoch
    in_epoch: int = 0  # epoch of the last micro-batch, from 1, as people count
    tokens: int = 0  # trained on, without padding
    seconds: float = 0.0  # in updates; validation and writing do not count
    validated: int = 0  # step of the last validation
    best_loss: float | None = None  # the least validation loss, or that of the best score
    best_score: float | None = None  # of a task that is judged by one
    best_step: int = 0  # and its step
    worse: int = 0  # validations since then
    window_loss: float = 0.0  # since the last log line: sum of loss x target tokens,
    window_targets: int = 0  # target tokens,
    window_tokens: int = 0  # tokens trained on
    window_seconds: float = 0.0

    def spent(self, seconds: float) -> None:
        """Time went into an update, made or not."""
        self.seconds += seconds
        self.window_seconds += seconds

    def updated(self, loss: float, targets: int, tokens: int) -> None:
        """An update was made: its mean loss over `targets` predictions, from so many tokens."""
        self.step += 1
        self.tokens += tokens
        self.window_loss += loss * targets
        self.window_targets += targets
        self.window_tokens += tokens

    @property
    def loss(self) -> float:
        """Mean since the last log line, in nats a target token."""
        return self.window_loss / self.window_targets

    @property
    def speed(self) -> float:
        """Tokens a second since the last log line."""
        return self.window_tokens / max(self.window_seconds, 1e-9)

    def logged(self) -> None:
        """A log line was written."""
        self.window_loss, self.window_targets, self.window_tokens, self.window_seconds = 0.0, 0, 0, 0.0

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
    """How a run ended, `stopped` by "max_steps" or "patience"; losses in nats a target token, None if not validated."""

    step: int
    stopped: str
    checkpoint: Path
    tokens: int
    seconds: float
    valid_loss: float | None = None
    perplexity: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)  # the task's own, of the last validation
