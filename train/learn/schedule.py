"""The learning rate of each update, from `train.schedule`, `train.peak_lr` and `train.warmup_steps`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from models.fields import fits
from train.learn.optimizer import NoamSchedule
from train.run.config import fields_of
from train.run.keys import SCHEDULES, TrainSection

SCHEDULE_KEYS = ("schedule", "peak_lr", "warmup_steps", "lr_scale", "max_steps")
# For each name, a function that maps progress after warmup (0 to 1) to the learning rate as a fraction of its peak.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda fraction: 1.0 - fraction,
    "cosine": lambda fraction: 0.5 * (1.0 + math.cos(math.pi * fraction)),
    "constant": lambda fraction: 1.0,
}


class Schedule:
    """The learning rate of each update: linear warmup to the peak, then the decay that `train.schedule` names.

    noam and inverse_sqrt follow the paper's formula (NoamSchedule); train.peak_lr scales it to that peak. The
    other schedules have the same warmup and, by default, the same peak. linear and cosine reach 0 one update after
    train.max_steps, so even the last update changes the weights.

    Args:
        settings: the section [train] of the configuration.
        d_model: the model size D, from which the paper derives the peak.
    """

    def __init__(self, settings: TrainSection, d_model: int) -> None:
        scale = settings.peak_lr * math.sqrt(d_model * settings.warmup_steps) if settings.peak_lr else settings.lr_scale
        self.noam = NoamSchedule(d_model, settings.warmup_steps, scale)
        self.name, self.warmup_steps, self.max_steps = settings.schedule, settings.warmup_steps, settings.max_steps
        self.peak = self.noam(settings.warmup_steps)
        self.has_own_peak = bool(settings.peak_lr)
        self.has_init = bool(settings.init)
        self.precision = settings.precision
        self.has_tight_clipping = 0.0 < settings.clip_norm <= 1.0
        self.ignores_scale = self.has_own_peak and settings.lr_scale != 1.0

    def __call__(self, step: int) -> float:
        """Return the learning rate of update `step`. The first update is step 1."""
        if self.name not in DECAYS or step <= self.warmup_steps:
            return self.noam(step)
        fraction = (step - self.warmup_steps) / (self.max_steps + 1 - self.warmup_steps)
        return self.peak * DECAYS[self.name](fraction)

    def describe(self) -> str:
        """Return a log line with the peak, its step and the decay after it."""
        return (
            f"learning rate: linear warmup to {self.peak:.3g} at step {self.warmup_steps:,}, then "
            f"{SCHEDULES[self.name]} ({self.name})"
            f"{'; train.lr_scale has no effect, because train.peak_lr is set' if self.ignores_scale else ''}"
        )

    def remedies(self, n_updates: int) -> str:
        """Return what to try if the loss has diverged after `n_updates` updates.

        This is a quarter of the highest learning rate so far, but at most the paper's peak. If no update was made, the
        learning rate cannot be the cause.
        """
        if not n_updates:
            suggestion = "the weights of another run" if self.has_init else "other keys in [model]"
            suggestion = (
                suggestion if self.precision in ("float32", "float64") else f"train.precision=float32, or {suggestion}"
            )
            return f"{suggestion}, because no update has changed the initial weights yet"
        paper = NoamSchedule(self.noam.d_model)
        peak = min(self(min(n_updates, self.warmup_steps)) / 4, paper(paper.warmup_steps))
        clip = "" if self.has_tight_clipping else ", or train.clip_norm=1.0"
        return f"train.peak_lr={peak:.2g}{',' if clip else ' or'} a larger train.warmup_steps{clip}"

    def warning(self, n_updates: int = 0) -> str:
        """Return a warning if training ends before the warmup or before a linear or cosine decay, or "".

        Before the first update, the warning suggests a warmup of a tenth of the training, but at least 5 updates if
        possible. If the shorter warmup would raise the peak learning rate, the warning also suggests the present peak
        as train.peak_lr. After `n_updates` updates, when the learning rate would jump, it suggests a longer training.
        """
        decays = self.name in ("linear", "cosine")
        if self.warmup_steps + decays <= max(self.max_steps, 2 * decays):  # a single update cannot decay
            return ""
        shorter = max(1, min(self.max_steps - decays, max(5, self.max_steps // 10)))
        same_peak = "" if self.has_own_peak else f" and train.peak_lr={self.peak:.3g}"
        suggestion = "a larger train.max_steps" if n_updates else f"train.warmup_steps={shorter}{same_peak}"
        return (
            f"warning: train.warmup_steps = {self.warmup_steps:,} is not below train.max_steps = {self.max_steps:,}: "
            f"the learning rate rises to {self(self.max_steps):.3g} (the peak would be {self.peak:.3g}) and never "
            f"decays; try {suggestion}"
        )


def schedule_changes(content: Mapping[str, Any], settings: TrainSection, d_model: int) -> list[str]:
    """Return a warning if the learning rate of a resumed run differs from that of its checkpoint, or an empty list.

    `content` is the state.json of the checkpoint.
    """
    step = content["step"] + 1
    if step > settings.max_steps:
        return []
    previous = replace(settings, **schedule_of(content))
    previous = replace(previous, max_steps=max(previous.max_steps, content["step"]))
    steps = (step, max(step, min(settings.max_steps, previous.max_steps)))

    def rates(section: TrainSection) -> list[float]:
        return [*map(Schedule(section, d_model), steps)]

    # A key may have no effect: most schedules do not depend on max_steps, and peak_lr replaces lr_scale.
    words = (
        f"train.{name} is now {getattr(settings, name)} instead of {value}"
        for name in SCHEDULE_KEYS
        if rates(replace(settings, **{name: (value := getattr(previous, name))})) != rates(settings)
    )
    effects = (v for v in zip(steps, rates(settings), rates(previous), strict=True) if v[1] != v[2])
    return [
        f"warning: {', '.join(words)}: the learning rate of step {n:,} is {now:.3g} instead of {before:.3g}"
        for n, now, before in islice(effects, 1)
    ]


def schedule_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid values of SCHEDULE_KEYS in state.json.

    Earlier versions stored max_steps as a key of its own, and the other values in "config".
    """
    config = content.get("config")
    config_values = config if isinstance(config, dict) else {}
    values = {name: config_values.get(f"train.{name}") for name in SCHEDULE_KEYS}
    values["max_steps"] = content.get("max_steps")
    values |= content.get("learning_rate", {})
    return {name: values[name] for name in SCHEDULE_KEYS if fits(fields_of("train")[name], values[name])}
