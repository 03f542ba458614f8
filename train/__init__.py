"""Training: tokenization, batches, Adam, the training loop, checkpoints, metrics and the command line.

Each package imports only packages to its left in this list: text, metrics, tasks, run, learn, formats, viewer,
experiments, cli. Every package may import the modules directly in `train/`. The names below are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train.errors import UserError as UserError
    from train.learn.optimizer import Adam as Adam
    from train.learn.optimizer import NoamSchedule as NoamSchedule
    from train.learn.trainer import Trainer as Trainer
    from train.learn.training import train as train
    from train.run.average import average_checkpoints as average_checkpoints
    from train.run.checkpoint import load_model as load_model
    from train.run.config import RunConfig as RunConfig
    from train.text.tokenizer import Tokenizer as Tokenizer

_MODULES = {
    "Adam": "learn.optimizer",
    "NoamSchedule": "learn.optimizer",
    "RunConfig": "run.config",
    "Tokenizer": "text.tokenizer",
    "Trainer": "learn.trainer",
    "UserError": "errors",
    "average_checkpoints": "run.average",
    "load_model": "run.checkpoint",
    "train": "learn.training",
}
__all__ = [*_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'train' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"train.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
