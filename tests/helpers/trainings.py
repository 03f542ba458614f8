"""Small training runs for tests: text, configuration, results."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from train import RunConfig, Trainer, train
from train.run import storage
from train.run.checkpoint import MODEL, OPTIMIZER, load_checkpoint
from train.run.folder import RunFolder

ENGLISH = "zero one two three four five six seven eight nine".split()
GERMAN = "null eins zwei drei vier fünf sechs sieben acht neun".split()
# Entries that depend on the clock.
CLOCKS = {"seconds", "tokens_per_second", "time", "window_seconds", "network", "window_network"}


def write_pairs(folder, name, count, seed):
    """Write `count` short sentences of number words and their translations."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 10, size=rng.integers(1, 5)) for _ in range(count)]
    for side, words in (("en", ENGLISH), ("de", GERMAN)):
        text = "".join(" ".join(words[i] for i in row) + "\n" for row in rows)
        (folder / f"{name}.{side}").write_text(text, encoding="utf-8")


def write_text(folder):
    """Write 40 training pairs and 5 validation pairs; return the folder."""
    write_pairs(folder, "train", 40, seed=1)
    write_pairs(folder, "valid", 5, seed=2)
    return folder


def tables(folder, **changes):
    """Return the tables of a small run with dropout, micro-batches, clipping, validation and early stopping."""
    return {
        "model": {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1, "dropout": 0.2},
        "data": {
            **{f"{name}_src": str(folder / f"{name}.en") for name in ("train", "valid")},
            **{f"{name}_tgt": str(folder / f"{name}.de") for name in ("train", "valid")},
            "vocab_size": 290,
        },
        "train": {
            **{"batch_tokens": 60, "gradient_accumulation_steps": 2, "max_steps": 12},
            **{"warmup_steps": 6, "clip_norm": 1.0},
            **{"validate_every": 4, "checkpoint_every": 3, "keep_last": 3, "log_every": 5, "patience": 50},
            **changes,
        },
        "search": {"max_extra_tokens": 10},  # an untrained model seldom ends a sentence
    }


def config(folder, **changes):
    return RunConfig.from_dict(tables(folder, **changes))


def run(folder, out, resume=False, debug="", **changes):
    return train(config(folder, **changes), out, resume=resume, progress=False, debug=debug)


def metrics(out, *stops, validate_every=4):
    """Return the entries of metrics.jsonl without those that depend on the clock.

    Validations and log lines that occur only because of a stop, at the steps `stops`, are left out.
    """
    lines = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    every = {"valid": validate_every, "train": 5}
    entries = (
        entry for entry in lines if entry["step"] not in stops or not entry["step"] % every.get(entry["kind"], 1)
    )
    return [{k: v for k, v in entry.items() if k not in CLOCKS} for entry in entries]


def outcome(out, *stops):
    """Return the results of a run for comparison: the bytes of weights and moments, the state, and the metrics."""
    last = load_checkpoint(RunFolder(out).step_paths()[-1])
    arrays = {name: array.tobytes() for name, array in (last.weights | last.optimizer_arrays).items()}
    state = {k: v for k, v in last.state.items() if k not in ("run", "files", "sha256_of_this")}
    state |= {k: v for k, v in last.state["run"].items() if k not in CLOCKS}
    return arrays, state, metrics(out, *stops)


def rewrite(path, change):
    """Change the state of a checkpoint and write it with valid checksums."""
    checkpoint = load_checkpoint(path)
    state = {key: value for key, value in checkpoint.state.items() if key not in ("files", "sha256_of_this")}
    change(state)
    storage.write_folder(path, {MODEL: checkpoint.weights, OPTIMIZER: checkpoint.optimizer_arrays}, state)


def one_line(error):
    """Return the message of a UserError after checking that it is one line with the problem and what to try."""
    text = str(error.value)
    plain = "is not installed", " is in use by ", "lock was removed", ": missing; "  # messages without "expected"
    assert "\n" not in text and any(words in text for words in ("expected", *plain)) and "; try " in text
    return text


class Crash(Exception):
    """Stops a training run in the middle."""


@contextmanager
def crash_after(step):
    """Expect a Crash in this block; training runs raise it after update `step`."""
    after = Trainer._after_update

    def crash(self):
        if self.state.step == step:
            raise Crash
        after(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Trainer, "_after_update", crash)
        yield
