"""What the paper says of its models by name (Table 3): how each was trained, and the figures published for it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Published:
    """Settings of [train] that differ, and figures: params_millions; ppl and bleu on newstest2013."""

    train: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, float] = field(default_factory=dict)


def _row(bleu: float, ppl: float, params: float = 65, **train: Any) -> Published:
    settings = {"label_smoothing": 0.1, "max_steps": 100_000} | train
    return Published(settings, {"ppl": ppl, "bleu": bleu, "params_millions": params})


PUBLISHED = {
    "base": _row(25.8, 4.92),
    "big": _row(26.4, 4.33, 213, max_steps=300_000),
    "big-enfr": _row(26.4, 4.33, 213, max_steps=300_000),
    "A-h1": _row(24.9, 5.29),
    "A-h4": _row(25.5, 5.00),
    "A-h16": _row(25.8, 4.91),
    "A-h32": _row(25.4, 5.01),
    "B-dk16": _row(25.1, 5.16, 58),
    "B-dk32": _row(25.4, 5.01, 60),
    "C-N2": _row(23.7, 6.11, 36),
    "C-N4": _row(25.3, 5.19, 50),
    "C-N8": _row(25.5, 4.88, 80),
    "C-d256": _row(24.5, 5.75, 28),
    "C-d1024": _row(26.0, 4.66, 168),
    "C-ff1024": _row(25.4, 5.12, 53),
    "C-ff4096": _row(26.2, 4.75, 90),
    "D-drop0.0": _row(24.6, 5.77),
    "D-drop0.2": _row(25.5, 4.95),
    "D-ls0.0": _row(25.3, 4.67, label_smoothing=0.0),
    "D-ls0.2": _row(25.7, 5.47, label_smoothing=0.2),
    "E-learned": _row(25.7, 4.92),
    "tiny": Published({"label_smoothing": 0.1, "max_steps": 8000}),
}
