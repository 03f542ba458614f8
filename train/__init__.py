"""Training and its surroundings: text to tokens to batches, the loss, Adam, the loop, checkpoints, scores.

Its rooms import only those before them: text, scores, tasks, run, learn, show, experiments, cli (errors.py and files.py
stand before all). The names below are loaded on first use, so that `import train` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.errors import UserError as UserError
    from train.learn.loss import label_smoothed_loss as label_smoothed_loss
    from train.learn.optimizer import Adam as Adam
    from train.learn.optimizer import NoamSchedule as NoamSchedule
    from train.learn.trainer import Trainer as Trainer
    from train.learn.training import train as train
    from train.run.checkpoint import average_checkpoints as average_checkpoints
    from train.run.checkpoint import load_model as load_model
    from train.run.config import RunConfig as RunConfig
    from train.text.tokenizer import Tokenizer as Tokenizer

_HOME = {
    "Adam": "learn.optimizer",
    "NoamSchedule": "learn.optimizer",
    "RunConfig": "run.config",
    "Tokenizer": "text.tokenizer",
    "Trainer": "learn.trainer",
    "UserError": "errors",
    "average_checkpoints": "run.checkpoint",
    "label_smoothed_loss": "learn.loss",
    "load_model": "run.checkpoint",
    "train": "learn.training",
}
__all__ = [*_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'train' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"train.{_HOME[name]}"), name)
    globals()[name] = value
    return value
