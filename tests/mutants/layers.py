"""Mistakes in layers (models/layers)."""

from autograd import OPERATIONS, Tensor, neural
from tests.mutants.base import layer

layer("Linear", "bias detached from the graph", lambda self, x: OPERATIONS["linear"](
    x, self.weight, None if self.bias is None else self.bias.detach(), self.activation))
layer("LearnedPositions", "input detached from the graph", lambda self, x, start=0: Tensor(x.data) + (
    self.weight[start : start + x.shape[1]]))
layer("FeedForward", "dropout's scale computed from the data", lambda self, x: self.outer(
    self.inner(x) * (1 + float(x.data.sum()))))
layer("Residual", "sum not taken back to x", lambda self, x, f: neural.layer_norm(
    f(x) + x.detach(), self.norm.gamma, self.norm.beta, self.norm.eps))
layer("LayerNorm", "output written in float32", lambda self, x: neural.layer_norm(
    x, self.gamma, self.beta, self.eps).astype("float32").astype("float64"), "dtype")
