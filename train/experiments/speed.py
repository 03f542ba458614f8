"""How long a training would take here: tokens a second of a few updates on made-up sentences."""

import time
from dataclasses import replace

import numpy as np

import npx
from models import TransformerConfig
from train.errors import UserError
from train.learn.update import Update
from train.run.config import RunConfig
from train.run.report import RankNotes
from train.tasks import TASKS
from train.text.batches import Stream
from train.text.corpus import Corpus

LENGTH = 30  # tokens of a made-up sentence, the end included
MOST = 2048  # tokens a side of a measured micro-batch, where the configuration has more: they take as long a token


def measure_speed(shape: TransformerConfig, config: RunConfig, updates: int = 3) -> float:
    """Source + target tokens a second of training this model here, the best of `updates` after one that is not counted.

    One micro-batch an update, of at most MOST tokens a side. UserError for a task other than translation.
    """
    task = TASKS["translation"]
    if config.data.task != task.name:
        raise UserError(f"--measure: expected a model of the task translation; got {config.data.task}; try a preset")
    settings = replace(config.train, batch_tokens=max(LENGTH, min(config.train.batch_tokens, MOST)), accumulate=1)
    rng, pairs = np.random.default_rng(0), settings.batch_tokens // LENGTH
    words = rng.integers(4, shape.vocab_size, (2, pairs, LENGTH - 1)).tolist()
    stream = Stream(task.batches(Corpus.from_pairs(zip(*words, strict=True)), settings.batch_tokens, 0))
    model = shape.build(0, npx.use_precision(settings.precision).weight_dtype)
    model.train()
    update, seconds, batch = Update(task, model, settings, RankNotes()), [], stream.batch((0, 0))
    for step in range(1, updates + 2):
        started = time.perf_counter()
        update.gradient([batch], step)
        update.apply(1e-6, 0.0)
        seconds.append(time.perf_counter() - started)
    return batch.n_tokens / min(seconds[1:])


def hours(tokens_per_second: float, config: RunConfig) -> float:
    """What `max_steps` updates take at this speed, every batch being full."""
    t = config.train
    sides = len(TASKS[config.data.task].sides)
    return t.max_steps * t.batch_tokens * t.accumulate * sides / tokens_per_second / 3600
