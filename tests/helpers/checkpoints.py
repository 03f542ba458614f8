"""Small checkpoints for tests: writing, damaging, reading; the fixtures `tokenizer` and `run`."""

import numpy as np
import pytest

from models import Transformer, TransformerConfig
from train import Tokenizer
from train.run.checkpoint import load_checkpoint, save_checkpoint
from train.run.folder import RunFolder

SHAPE = {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1}
FILES = ["model.safetensors", "optimizer.safetensors", "state.json"]


def save(run, step, model=None, keep_last=0, **more):
    """Write a checkpoint of a few numbers that depend on the step."""
    model = {"w": np.full((2, 3), step, np.float32), "b": np.arange(4, dtype=np.float32)} if model is None else model
    state = {"step": step, "model": {"vocab_size": 7}, "tokenizer_digest": "d" * 64, "run": {"best_loss": None}}
    state |= more
    moments = {"m": np.full(10, step, np.float32), "v": np.ones(10, np.float32)}
    return save_checkpoint(run, state, model, moments, keep_last)


def names(run):
    return [path.name for path in RunFolder(run).step_paths()]


def one_line(error):
    """Return the message of a UserError after checking that it is one line with the problem and what to try."""
    text = str(error.value)
    assert "\n" not in text and ("expected" in text or ": missing; " in text) and "; try " in text
    return text


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text"
    file.write_text("one two three\ntwo three four\n" * 5, encoding="utf-8")
    return Tokenizer.train([file], vocab_size=280)


@pytest.fixture
def run(tmp_path, tokenizer):
    """A run folder with checkpoints of a model at steps 1, 2 and 10, each with different weights."""
    tokenizer.save(tmp_path / "tokenizer.json")
    config = TransformerConfig(vocab_size=tokenizer.vocab_size, **SHAPE)
    for step in (1, 2, 10):
        weights = Transformer(config, seed=step).state_dict()
        state = {"step": step, "model": config.to_dict(), "tokenizer_digest": tokenizer.digest, "run": {}}
        save_checkpoint(tmp_path, state, weights, {"m": np.zeros(3, np.float32), "v": np.zeros(3, np.float32)})
    return tmp_path


def weights_of(path):
    return load_checkpoint(path, with_optimizer=False).weights


def damage(file, kind):
    content = file.read_bytes()
    if kind == "missing":
        file.unlink()
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
