"""Training and its surroundings: text to tokens to batches, the loss, Adam, the loop, checkpoints, scores.

Read errors.py, tokenizer.py, data.py, then trainer.py, which puts everything together. The names below are loaded on
first use, so that `import train` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.checkpoint import average_checkpoints as average_checkpoints
    from train.checkpoint import load_model as load_model
    from train.config import RunConfig as RunConfig
    from train.errors import UserError as UserError
    from train.loss import label_smoothed_loss as label_smoothed_loss
    from train.optim import Adam as Adam
    from train.optim import NoamSchedule as NoamSchedule
    from train.run import train as train
    from train.tokenizer import Tokenizer as Tokenizer
    from train.trainer import Trainer as Trainer

_HOME = {
    "Adam": "optim",
    "NoamSchedule": "optim",
    "RunConfig": "config",
    "Tokenizer": "tokenizer",
    "Trainer": "trainer",
    "UserError": "errors",
    "average_checkpoints": "checkpoint",
    "label_smoothed_loss": "loss",
    "load_model": "checkpoint",
    "train": "run",
}
__all__ = [
    "Adam",
    "NoamSchedule",
    "RunConfig",
    "Tokenizer",
    "Trainer",
    "UserError",
    "average_checkpoints",
    "label_smoothed_loss",
    "load_model",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'train' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"train.{_HOME[name]}"), name)
    globals()[name] = value
    return value
