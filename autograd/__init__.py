"""Reverse-mode automatic differentiation over the arrays of `npx`.

Read in this order: `engine.py` (Tensor, the graph, backward: the heart), `operations.py` (arithmetic, shapes,
reductions), `neural.py` (the fused operations of the Transformer, each beside its plain composition), `testing/`
(gradient checking, for these operations and for yours).
"""

from autograd import neural, operations
from autograd.engine import OPERATIONS, Tensor, backward, differentiable, is_grad_enabled, no_grad
from autograd.testing.gradcheck import GradientError, gradcheck

__all__ = [
    "OPERATIONS",
    "GradientError",
    "Tensor",
    "backward",
    "differentiable",
    "gradcheck",
    "is_grad_enabled",
    "neural",
    "no_grad",
    "operations",
]
