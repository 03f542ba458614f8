"""Reverse-mode automatic differentiation over the arrays of `npx`.

`engine.py` (Tensor, the graph, backward: the heart), `operations.py` (arithmetic, shapes, reductions), `tensor.py` (the
operators of a Tensor), `neural.py` (the fused operations of the Transformer, each beside its plain composition),
`graph.py` (what a graph keeps), `testing/` (gradient checking, for these operations and for yours).
"""

from autograd import neural, operations, tensor
from autograd.engine import OPERATIONS, Tensor, adding, backward, differentiable, is_grad_enabled, no_grad
from autograd.graph import kept_arrays
from autograd.testing.gradcheck import GradientError, gradcheck
