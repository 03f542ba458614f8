"""Mixture of experts: several feed-forward networks, of which a router selects one or two for each token.

Top-1 routing follows Fedus et al. ("Switch Transformers", 2022), and top-2 routing follows Lepikhin et al. ("GShard",
2021). Unlike in these papers, an expert has no capacity limit: no token is dropped, and the output for a token does not
depend on other tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import npx
from autograd import Tensor, neural
from autograd import operations as ops
from models.layers.basic import Linear
from models.module import Module
from npx import host  # NumPy, for arrays that stay on the CPU
from npx.scoped import ScopedValue

_balance_losses: ScopedValue[list[Tensor] | None] = ScopedValue(None)


@contextmanager
def collect_balance_losses() -> Iterator[list[Tensor]]:
    """Collect the balance losses of all `Experts` that are called in training mode within the block."""
    losses: list[Tensor] = []
    with _balance_losses.override(losses):
        yield losses


class Experts(Module):
    """E experts, and a router that selects k of them for each token.

    The balance loss is E sum_i P_i c_i, where P_i is the mean of p_i over tokens and c_i the fraction of tokens whose
    first choice is expert i (Fedus et al., equation 4). The loss is 1 if each expert gets equally many tokens.

    Args:
        d_model: width D.
        n_experts: number E of experts.
        experts_per_token: number k of experts for each token.
        make_expert: returns a new expert, a module (R, D) -> (R, D).
    """

    def __init__(self, d_model: int, n_experts: int, experts_per_token: int, make_expert: Callable[[], Module]) -> None:
        self.router = Linear(d_model, n_experts, bias=False)
        self.experts = [make_expert() for _ in range(n_experts)]
        self.experts_per_token = experts_per_token

    def forward(self, x: Tensor) -> Tensor:
        """Return sum_i g_i f_i(x) (..., D) for x (..., D).

        The sum is over the k experts f_i with the highest probabilities p = softmax(x W). With k = 1, g_i = p_i;
        otherwise, g_i is p_i divided by the sum of the selected probabilities.
        """
        d_model = x.shape[-1]
        k = self.experts_per_token
        n_experts = len(self.experts)
        n = x.size // d_model
        rows = x.reshape((n, d_model))
        p = neural.softmax(self.router(rows).astype(npx.accumulation_dtype(x.dtype)))  # (R, E)
        selected = host.argsort(-npx.to_host(p.data), axis=1, kind="stable")[:, :k]  # (R, k)
        order = host.argsort(selected.reshape(-1), kind="stable")  # sorts the (token, expert) pairs by expert
        ends = host.cumsum(host.bincount(selected.reshape(-1), minlength=n_experts)).tolist()
        dispatched = rows[npx.from_host(order // k)]  # (R k, D)
        outputs = [
            expert(dispatched[start:end]) for expert, start, end in zip(self.experts, [0, *ends], ends, strict=False)
        ]
        y = ops.concatenate(*outputs, axis=0)[npx.from_host(host.argsort(order))].reshape((n, k, d_model))
        gates = p[npx.arange(n)[:, None], npx.from_host(selected)]  # (R, k)
        if k > 1:
            gates = gates / gates.sum(axis=1, keepdims=True)
        self.record_balance_loss(p, selected[:, 0])
        return (y * gates.astype(x.dtype).reshape((n, k, 1))).sum(axis=1).reshape(x.shape)

    def record_balance_loss(self, p: Tensor, first: npx.Array) -> None:
        """Compute the balance loss from p (R, E) and the first choices (R,), for `collect_balance_losses`."""
        losses = _balance_losses.get()
        if losses is not None and self.training and len(first):
            fractions = host.bincount(first, minlength=len(self.experts)) / len(first)
            weights = npx.asarray(len(self.experts) * fractions, p.dtype)
            losses.append((p.mean(axis=0) * weights).sum())
