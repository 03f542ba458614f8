"""Token types: a learned vector for each part of a text, which BERT uses to tell two sentences apart."""

import npx
from autograd import Tensor, neural
from models.init import normal
from models.module import Module, Parameter


class TokenTypeEmbedding(Module):
    """A learned vector for each type of token.

    Args:
        n_types: number of types, at least 1.
        d_model: width D.
    """

    def __init__(self, n_types: int, d_model: int) -> None:
        self.weight = Parameter(normal(n_types, d_model, d_model**-0.5))

    def forward(self, x: Tensor, types: npx.Array) -> Tensor:
        """Add to each token's vector in x (..., D) the vector of its type in `types` (...)."""
        return x + neural.embedding(self.weight, types)
