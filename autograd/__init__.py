"""Reverse-mode automatic differentiation over the arrays of `npx`.

- `engine.py`: Tensor, the graph and `backward`. Start reading this package here.
- `tensor.py`: operators and methods of a Tensor.
- `operations.py`: arithmetic, shapes and reductions.
- `neural.py`, `losses.py`: the fused operations of the Transformer, each next to an equivalent composition of small
  operations. `compositions.py` lists the compositions.
- `operation_checks.py`: checks of operands and of vjps.
- `rematerialization.py`, `checkpointing.py`: these let backward recompute single outputs, or complete layers, instead
  of saving them.
- `observe.py`, `memory.py`, `anomaly.py`, `saved.py`: tools that observe a graph.
- `draw/`: pictures of a graph (`python -m autograd.draw "a * b + a"`).
- `testing/`: gradient checks for these operations and for your own; imported only when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autograd import neural, operations
from autograd.anomaly import AnomalyError, detect_anomaly
from autograd.checkpointing import checkpoint
from autograd.engine import (
    OPERATIONS,
    BackwardEvent,
    Tensor,
    adds_in_place,
    backward,
    differentiable,
    is_grad_enabled,
    no_grad,
    observing,
)
from autograd.memory import MemoryProfiler, MemorySample
from autograd.observe import Observer, Recorder, hook_gradient
from autograd.saved import saved_arrays

if TYPE_CHECKING:
    from autograd import testing as testing
    from autograd.testing.gradcheck import GradientError as GradientError
    from autograd.testing.gradcheck import gradcheck as gradcheck

__all__ = [
    "OPERATIONS",
    "AnomalyError",
    "BackwardEvent",
    "GradientError",
    "MemoryProfiler",
    "MemorySample",
    "Observer",
    "Recorder",
    "Tensor",
    "adds_in_place",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "differentiable",
    "gradcheck",
    "is_grad_enabled",
    "neural",
    "no_grad",
    "observing",
    "hook_gradient",
    "operations",
    "saved_arrays",
    "testing",
]

_TESTING = ("GradientError", "gradcheck")


def __getattr__(name: str) -> Any:
    """Import the gradient checker on first use."""
    if name != "testing" and name not in _TESTING:
        raise AttributeError(f"module 'autograd' has no attribute {name!r}")
    testing = importlib.import_module("autograd.testing")
    return testing if name == "testing" else getattr(testing, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
