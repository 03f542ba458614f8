"""Checkpoints with valid checksums but with arrays that no training run has written."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from train import average_checkpoints
from train.cli import main
from train.run import storage
from train.run.checkpoint import MODEL, OPTIMIZER, load_checkpoint
from train.run.folder import RunFolder
from train.run.storage import DamagedCheckpoint

NAME = "decoder.0.attention.query_key_value.weight"  # (D, 3 D)


def forge(folder, change):
    """Change the weights of a checkpoint and write them with valid checksums."""
    checkpoint = load_checkpoint(folder)
    state = {key: value for key, value in checkpoint.state.items() if key not in ("files", "sha256_of_this")}
    change(weights := dict(checkpoint.weights))
    storage.write_folder(folder, {MODEL: weights, OPTIMIZER: checkpoint.optimizer_arrays}, state)


def transpose(weights):
    weights[NAME] = np.ascontiguousarray(weights[NAME].T)


def overflow(weights):
    weights.update({name: np.where(np.arange(w.size) % 2, 3e38, -3e38).astype("f").reshape(w.shape)
                    for name, w in weights.items()})  # fmt: skip


def add_empty_arrays(weights):
    weights.update({f"empty.{n}": np.zeros(0, np.float32) for n in range(400)})


def cast(dtype):
    return lambda weights: weights.update({name: w.astype(dtype) for name, w in weights.items()})


FORGERIES = {
    "transposed": (
        transpose,
        f"the arrays of .*step-9; got {NAME} of shape",
        f"got {NAME} of shape .24, 8. instead of .8, 24.",
    ),
    "missing": (lambda weights: weights.pop(NAME), f"the arrays of .*; got a file without {NAME}", f"got no {NAME}"),
    "extra": (
        lambda weights: weights.update(w=np.ones(1, "f")),
        "got w of shape",
        "got w, which this model does not have",
    ),
    "empty": (add_empty_arrays, "a header of at most 16,384 bytes; got", "a header of at most"),
    "int32": (cast(np.int32), "expected float32 or float64 in .*; got int32", "got int32"),
    "float16": (cast(np.float16), "expected float32 or float64 in .*; got float16", "got float16"),
    "overflowing": (overflow, None, "expected finite logits; got NaN or infinity"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_checkpoint_gives_one_line(uninterrupted, tmp_path, forgery, capfd, monkeypatch):
    monkeypatch.setattr(storage, "MAX_HEADER", 1 << 14)
    out = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    change, when_averaged, when_loaded = FORGERIES[forgery]
    forge(RunFolder(out).step_paths()[-1], change)
    (tmp_path / "input").write_text("one two\n")
    if when_averaged:
        with pytest.raises(DamagedCheckpoint, match=when_averaged):
            average_checkpoints(out, 2)
    else:
        average_checkpoints(out, 2)
        shutil.rmtree(out / "checkpoints/averaged")
    assert main(["translate", "--model", str(out / "checkpoints/step-12"), "--input", str(tmp_path / "input")]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert re.search(when_loaded, captured.err)
