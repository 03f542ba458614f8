"""Sizes of the measurements: on a GPU, and in a rehearsal on the fakes of CuPy and cuBLAS."""

from argparse import Namespace
from dataclasses import dataclass

PRESETS = {
    "base": {"d_model": 512, "heads": 8, "d_ff": 2048, "layers": 6, "vocab": 37000},
    "big": {"d_model": 1024, "heads": 16, "d_ff": 4096, "layers": 6, "vocab": 37000},
    "small": {"d_model": 32, "heads": 2, "d_ff": 64, "layers": 1, "vocab": 97},
}


def shape(preset: str, batch: int, length: int, device: str = "cuda") -> Namespace:
    """Return arguments of benchmarks/train_step.py: a preset and `batch` sentence pairs of `length` tokens each."""
    options = {"precision": "bf16", "device": device, "threads": 1, "worker": None}
    return Namespace(**PRESETS[preset], batch=batch, length=length, **options)


@dataclass(frozen=True)
class Sizes:
    """Sizes of all measurements.

    Attributes:
        shapes: models and batches of the training steps.
        copied: bytes of the copied array.
        square: rows of the largest matmul.
        repeats: calls per measurement.
        steps: consecutive training steps per measurement.
        window: kernels that get events in one step (benchmarks/launches.py).
        rounds: number of times that a step is profiled.
        updates: steps of the short training run.
        model, rows: the configuration and the number of sentences of the tested step.
        precisions: precisions that are compared with and without CUDA graphs.
        torch_device: where PyTorch runs.
    """

    shapes: dict[str, Namespace]
    copied: int
    square: int
    repeats: int
    steps: int
    window: int
    rounds: int
    updates: int
    model: dict[str, int]
    rows: int
    precisions: tuple[str, ...] = ("float32", "bf16", "fp16")
    torch_device: str = "cuda"


GPU = Sizes(
    shapes={
        "base, 25k + 25k": shape("base", 820, 30),
        "base, 4k + 4k": shape("base", 136, 30),
        "big, 25k + 25k": shape("big", 820, 30),
        "big, 4k + 4k": shape("big", 136, 30),
    },
    copied=1 << 30,
    square=8192,
    repeats=20,
    steps=20,
    window=200,
    rounds=3,
    updates=60,
    model={"d_model": 64, "d_ff": 128, "n_heads": 2, "n_layers": 2},
    rows=6,
)
REHEARSAL = Sizes(
    shapes={"base, 25k + 25k": shape("small", 4, 5), "big, 4k + 4k": shape("small", 1, 3)},
    copied=1 << 10,
    square=16,
    repeats=2,
    steps=2,
    window=20,
    rounds=1,
    updates=2,
    model={"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1},
    rows=3,
    precisions=("float32",),
    torch_device="cpu",
)
