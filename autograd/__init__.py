"""Reverse-mode automatic differentiation over the arrays of `npx`.

- `engine.py`: Tensor, the graph and `backward`. Start reading here.
- `tensor.py`: operators and methods of a Tensor.
- `operations.py`: arithmetic, shapes and reductions.
- `neural.py`: the fused operations of the Transformer, each with its plain composition.
- `contract.py`: checks of operands and of vjps.
- `rematerialize.py`: gradient checkpointing.
- `observe.py`, `memory.py`, `anomaly.py`, `saved.py`: tools that watch a graph.
- `draw/`: pictures of a graph (`python -m autograd.draw "a * b + a"`).
- `testing/`: gradient checks for these operations and for your own.
"""

from autograd import neural, operations
from autograd.anomaly import AnomalyError, anomaly
from autograd.engine import (
    OPERATIONS,
    BackwardEvent,
    Tensor,
    accumulates,
    backward,
    differentiable,
    is_grad_enabled,
    no_grad,
    observing,
)
from autograd.memory import Memory, MemorySample
from autograd.observe import Observer, Recorder, on_gradient
from autograd.rematerialize import checkpoint
from autograd.saved import saved_arrays
from autograd.testing.gradcheck import GradientError, gradcheck
