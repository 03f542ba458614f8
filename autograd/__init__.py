"""Reverse-mode automatic differentiation over the arrays of `npx`.

`engine.py` (Tensor, the graph, backward: the heart), `operations.py` (arithmetic, shapes, reductions), `tensor.py` (the
operators of a Tensor), `neural.py` (the fused operations of the Transformer, each beside its plain composition),
`graph.py` (what a graph keeps), `observe.py` (what happens, seen from outside; anomalies), `recompute.py` (a part that
is formed again instead of kept), `draw.py`, `layout.py` (pictures: `python -m autograd.draw "a * b + a"`), `testing/`
(gradient checking, for these operations and for yours).
"""

from autograd import neural, operations, tensor
from autograd.engine import (
    OPERATIONS,
    Tensor,
    accumulates,
    backward,
    differentiable,
    is_grad_enabled,
    no_grad,
    observing,
)
from autograd.observe import AnomalyError, Memory, Observer, Recorder, anomaly, on_gradient
from autograd.rematerialize import checkpoint
from autograd.saved import saved_arrays
from autograd.testing.gradcheck import GradientError, gradcheck
