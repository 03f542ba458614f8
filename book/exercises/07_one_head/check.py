"""Attention is two products with a softmax in between. Go backward step by step: p v, the softmax, q k^T."""

import numpy as np

import npx
from book.exercise import draw, gradient_check, operation


def right(q, k, v, allowed):
    scale = q.shape[1] ** -0.5
    p, saved = npx.softmax.reference(q @ k.T * scale, allowed)

    def vjp(g):
        z = npx.softmax_grad.reference(g @ v.T, saved) * scale
        return z @ k, z.T @ q, p.T @ g

    return p @ v, vjp


ALL, FIRST = np.array([[True, True]]), np.array([[True, False]])


def edges(seed):
    yield np.array([[1.0]]), np.array([[2.0], [1.0]]), np.array([[1.0], [0.0]]), ALL
    yield np.array([[2.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 0.5]]), np.array([[1.0], [0.0]]), ALL
    yield np.array([[1.0]]), np.array([[2.0], [1.0]]), np.array([[1.0], [4.0]]), FIRST
    both = np.array([[1.0], [0.0]]), np.array([[2.0], [1.0]]), np.array([[1.0], [4.0]])
    yield *both, np.array([[True, True], [True, False]])
    yield np.array([[1000.0]]), np.array([[2.0], [1.0]]), np.array([[1.0], [4.0]]), ALL
    yield np.array([[1000.0], [0.0]]), np.array([[2.0], [1.0]]), np.array([[1.0], [4.0]]), np.ones((2, 2), bool)
    yield np.array([[1e6]]), np.array([[-1e6], [0.0]]), np.array([[1.0], [4.0]]), FIRST  # an allowed score of -1e12


def drawn(seed):
    random = np.random.default_rng(seed)
    for t, s, d, m in ((1, 2, 2, 1), (2, 2, 1, 2), (2, 3, 2, 1), (3, 3, 2, 3), (2, 4, 3, 2)):
        allowed = random.random((t, s)) < 0.6
        allowed[:, 0] = True
        yield draw(seed, t, d), draw(seed + 1, s, d), draw(seed + 2, s, m), allowed


STAGES = operation("attention", right, edges, drawn, differentiated=3)
GRADIENT_CHECK = gradient_check(
    "attention", draw(1, 2, 3), draw(2, 4, 3), draw(3, 4, 2), np.tri(2, 4, 1) > 0,
    accepts=lambda q, k, v, allowed: bool(allowed.any(axis=-1).all()),
)  # fmt: skip
NAMES = {
    "scale": "1 / sqrt(d)",
    "p": "the weights",
    "saved": "what softmax saved",
    "to_p": "the gradient of the weights",
    "to_scores": "the gradient of q k^T",
    "y": "the output",
    "root": "sqrt(d)",
    "scores": "the scores",
    "e": "the exponentials",
    "weights": "the output of the softmax",
    "gs": "the gradient of q k^T",
    "gw": "the gradient of the weights",
    "gv": "the gradient of v",
    "scaled": "q / sqrt(d)",
    "columns": "the transposed scores",
    "back": "the gradient of the scores",
}
AFTER = """\
The real one (npx/kernels/attention.py) takes all heads of a few sentences at a time, so that their scores stay in the
cache between the two products. Masks come as a description (npx/kernels/attention_spec.py), never as an array."""
