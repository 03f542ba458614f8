"""Measure the speed and the memory of training on this machine with a few updates on random sentences."""

import time
from dataclasses import replace

import numpy as np

import npx
from autograd import MemoryProfiler, observing
from models import TransformerConfig
from train.errors import UserError
from train.learn.update import Updater
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.report import SilentReport
from train.tasks import TASKS
from train.tasks.task import describe_model
from train.text.batches import Batches, BatchLoader, PairBatch
from train.text.corpus import PairCorpus
from train.text.tokenizer import SpecialIds

SENTENCE_LENGTH = 30  # length of a random sentence in tokens, including EOS
MAX_BATCH_TOKENS = 2048  # tokens per side; larger micro-batches take about the same time per token


def measure_speed(model_config: TransformerConfig, config: RunConfig, updates: int = 3) -> float:
    """Return the speed of the fastest of `updates` updates in source + target tokens/s, after a warmup update.

    An update has one micro-batch of at most MAX_BATCH_TOKENS tokens per side. Raises UserError for a task other than
    translation.
    """
    updater, batch = build_updater(model_config, config)
    seconds = []
    for step in range(1, updates + 2):
        started = time.perf_counter()
        updater.compute_gradient([batch], step)
        updater.apply_gradient(1e-6, 0.0)
        seconds.append(time.perf_counter() - started)
    return batch.n_tokens / min(seconds[1:])


def measure_activations(model_config: TransformerConfig, config: RunConfig) -> float:
    """Return an estimate of the memory in bytes that an update takes in addition to weights, gradients and moments.

    The estimate is the peak during a micro-batch of `measure_speed`. Some memory does not depend on the batch, so for a
    larger train.batch_tokens, the estimate is extrapolated from the peaks of this micro-batch and of its first half.
    The true peak may be lower, because a large batch recomputes more intermediates. The memory that a kernel needs
    while it runs is not included. Raises UserError for a task other than translation.
    """
    updater, batch = build_updater(model_config, config)

    def peak(batch: PairBatch) -> int:
        with observing(MemoryProfiler()) as memory:
            updater.compute_gradient([batch], 1)
        return memory.peak.live

    measured = peak(batch)
    half = batch.halves()[0]
    if (
        missing := 2 * config.train.batch_tokens - batch.n_tokens
    ) < 2 * SENTENCE_LENGTH or half.n_tokens == batch.n_tokens:
        return measured
    return measured + missing * (measured - peak(half)) / (batch.n_tokens - half.n_tokens)


def build_updater(model_config: TransformerConfig, config: RunConfig) -> tuple[Updater, PairBatch]:
    """Return an `Updater` for a new model, and a micro-batch of random sentences."""
    task = TASKS["translation"]
    if config.data.task != task.name:
        raise UserError(
            f"--measure: expected a translation model; got {describe_model(config.data.task)}; try a preset"
        )
    settings = replace(
        config.train,
        batch_tokens=max(SENTENCE_LENGTH, min(config.train.batch_tokens, MAX_BATCH_TOKENS)),
        gradient_accumulation_steps=1,
    )
    c = model_config
    model = c.build(0, npx.use_precision(settings.precision).weight_dtype)
    model.train()
    rng = np.random.default_rng(0)
    length = min(SENTENCE_LENGTH, model.max_length or SENTENCE_LENGTH)
    special_ids = SpecialIds(c.pad_id, c.bos_id, c.eos_id, c.unk_id)
    sizes = c.src_vocab_size or c.vocab_size, c.resolved_n_outputs
    words = (np.setdiff1d(np.arange(size), [*special_ids, *c.suppressed_ids]) for size in sizes)
    ids = (rng.choice(side, (settings.batch_tokens // length, length - 1)).tolist() for side in words)
    corpus = PairCorpus.from_pairs(zip(*ids, strict=True), special_ids)
    loader = BatchLoader(Batches(corpus, settings.batch_tokens, 0))
    return Updater(task, model, settings, SilentReport(RunFolder(""), 1)), loader.batch((0, 0))


def training_hours(tokens_per_second: float, config: RunConfig) -> float:
    """Return the hours that `max_steps` updates take at this speed, with full batches."""
    settings = config.train
    sides = len(TASKS[config.data.task].sides)
    tokens_per_update = settings.batch_tokens * settings.gradient_accumulation_steps * sides
    return settings.max_steps * tokens_per_update / tokens_per_second / 3600
