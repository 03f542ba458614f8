"""A small float32 Transformer with ids, a batch and an Updater, for tests of devices and memory."""

from pathlib import Path

import numpy as np

from models import Transformer, TransformerConfig
from tests.helpers.trainings import config
from train.learn.update import Updater
from train.tasks import TASKS
from train.text.batches import Batches
from train.text.corpus import PairCorpus

SRC = np.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [5, 2, 0, 0, 0]], np.int32)
TGT = np.array([[1, 5, 6, 2], [1, 9, 2, 0], [1, 2, 0, 0]], np.int32)


def model(dropout=0.1, seed=3, **changes):
    shape = {"vocab_size": 20, "d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 2, "dropout": dropout}
    return Transformer(TransformerConfig(**(shape | changes)), seed=seed)


def updater_of(trained_model, journal, **changes):
    precision = next(p.weights.dtype.name for _, p in trained_model.named_parameters())
    settings = config(Path(), batch_tokens=20, precision=precision, **changes).train
    return Updater(TASKS["translation"], trained_model, settings, journal)


def batch():
    pairs = [(row[row > 2].tolist(), out[out > 2].tolist()) for row, out in zip(SRC, TGT, strict=True)]
    return Batches(PairCorpus.from_pairs(pairs), 100).batch(np.arange(3))
