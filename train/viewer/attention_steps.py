"""The steps of one attention head, recomputed with elementary operations: their values and gradients."""

from typing import Any

import numpy as np

import npx
from autograd import Tensor, observing
from autograd.compositions import composed_rotation
from autograd.neural import softmax
from train.viewer.trace import Operation, OperationRecorder, Trace, on_host


def head_inputs(trace: Trace, operation: Operation, attention: Any, head: int) -> tuple[Any, Any, Any] | None:
    """Return q (T, d_k), k (S, d_k) and v (S, d_v) of a head; None if `operation` takes other inputs."""
    # The inputs, one array or two, contain the columns of all heads.
    inputs = [trace.operations[number].y for number in operation.inputs if number is not None]
    h, n_kv, d_k, d_v = attention.n_heads, attention.n_kv_heads, attention.d_k, attention.d_v
    if any(x.ndim != 2 for x in inputs) or sum(x.shape[1] for x in inputs) != h * d_k + n_kv * (d_k + d_v):
        return None
    q, *rest = np.split(inputs[0], [h * d_k], axis=1)
    k, v = np.split(inputs[1] if len(inputs) == 2 else rest[0], [n_kv * d_k], axis=1)
    shared = head * n_kv // h  # the key and value head of a group of query heads
    return q[:, head * d_k :][:, :d_k], k[:, shared * d_k :][:, :d_k], v[:, shared * d_v :][:, :d_v]


def attention_head(q: Any, k: Any, v: Any, rotary_base: float | None, mask: Any, g: Any) -> dict[str, tuple[Any, Any]]:
    """Return the value and the gradient of each step of one head, given the gradient g of the head's output.

    Args:
        mask: (T, S), true where a key is visible, or None.
    """
    q, k, v = (Tensor(npx.asarray(x), requires_grad=True) for x in (q, k, v))
    with observing(OperationRecorder()) as recorder:
        queries, keys = q, k
        if rotary_base is not None:
            queries, keys = (
                composed_rotation(x.reshape(len(x), 1, -1), 0, rotary_base).reshape(x.shape) for x in (q, k)
            )
        scores = queries @ keys.transpose()  # (T, S)
        scaled = scores * q.shape[1] ** -0.5
        weights = softmax(scaled, None if mask is None else npx.asarray(mask))
        output = weights @ v  # (T, d_v)
        output.backward(npx.asarray(np.ascontiguousarray(g)))
    steps = {"scores": scores, "scaled": scaled, "weights": weights, "output": output}
    gradients = {name: recorder.operations[x.node.number].g for name, x in steps.items() if x.node}
    leaves = {name: (on_host(x.data), on_host(x.grad)) for name, x in (("q", q), ("k", k), ("v", v))}
    return leaves | {name: (on_host(x.data), gradients[name]) for name, x in steps.items()}
