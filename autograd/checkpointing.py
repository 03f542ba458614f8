"""Gradient checkpointing: parts of the graph are recomputed in backward instead of saved (Chen et al., 2016).

    x = checkpoint(layer, x)

saves the inputs and the output of `layer` and nothing in between. Backward runs the layer once more, with the same
random numbers, and backpropagates through the resulting graph. This costs a third more computation, but each layer adds
only one array to the memory that a step needs.
"""

import math
from collections.abc import Callable
from typing import Any

import npx
from autograd import operation_checks
from autograd.engine import Node, Tensor, backward, is_grad_enabled, next_number, no_grad, record_node, toposort
from npx import Array
from npx.random import record_keys, replay_keys
from npx.scoped import ScopedValue

_computed_at: ScopedValue[int | None] = ScopedValue(None)  # during a recomputation: when the output was first computed


def checkpoint(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Return function(*args, **kwargs), saving only its inputs and its output for backward.

    Args:
        function: returns a Tensor computed from its arguments and from parameters. A second call must return the same
            values; random numbers from `npx.keyed` are the same in both calls.
        args, kwargs: the arguments of `function`, including each result of an operation that `function` uses.

    The gradients of the inputs and of every parameter are bitwise equal to those without `checkpoint`, provided that
    no other operation uses the inputs; otherwise, gradients may be summed in another order and round differently.

    Raises TypeError if `function` does not return a Tensor. Backward raises RuntimeError if `function` uses the result
    of an outside operation that was not passed to it as an argument, a weight that has changed since, or other random
    numbers, for example because model.eval() was called in between.
    """
    if not is_grad_enabled():
        return function(*args, **kwargs)
    inputs = (*args, *kwargs.values())

    def call(values: list[Any]) -> Tensor:
        return function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

    detached = [Tensor(x.data) if isinstance(x, Tensor) else x for x in inputs]
    with no_grad(), record_keys() as keys:
        output = call(detached)
    computed_at = next_number() if (first := _computed_at.get()) is None else first
    if not isinstance(output, Tensor):
        raise TypeError(f"checkpoint: expected a function that returns a Tensor; got {type(output).__name__}")

    def vjp(g: Array) -> tuple[Array | None, ...]:
        if not is_grad_enabled():
            raise RuntimeError(
                "checkpoint: expected gradients to be enabled during backward; got a backward pass within no_grad; "
                "try calling backward after the no_grad block"
            )
        gradients: dict[int, Array] = {}
        start = next_number()
        recomputed_inputs = list(detached)
        for i, x in enumerate(inputs):
            if isinstance(x, Tensor) and x.requires_grad:
                recomputed_inputs[i] = gradient_collector(gradients, i, detached[i].data)
        with replay_keys(keys), npx.rematerialize_above(math.inf), _computed_at.override(computed_at):
            result = call(recomputed_inputs)
        nodes = toposort(result.node) if result.node else []
        if nodes and nodes[0].number < start:
            raise RuntimeError(
                "checkpoint: expected a function that uses only its arguments and parameters; "
                f"got a function that also uses a result of {nodes[0].name!r}; try passing this result as an argument"
            )
        leaves = [result, *(parent for node in nodes for parent in node.parents if isinstance(parent, Tensor))]
        if any(leaf.changed_at > computed_at for leaf in leaves):
            operation_checks.reject_changed_weights("checkpoint")
        if result.requires_grad:
            backward(result, g)
        return tuple(gradients.get(i) for i in range(len(inputs)))

    vjp.runs_backward = True  # type: ignore[attr-defined]  # `backward` then does not report finished leaves
    # A node is recorded even if no input requires a gradient, because the parameters of `function` may require one.
    return record_node("checkpoint", output.data, vjp, inputs, True)


def gradient_collector(gradients: dict[int, Array], i: int, data: Array) -> Tensor:
    """Return a Tensor with this data; the backward pass stores its complete gradient in gradients[i]."""

    def collect(g: Array) -> tuple[Array | None, ...]:
        gradients[i] = npx.asarray(g)
        return ()

    tensor = Tensor(data)
    tensor.node = Node("input", data, collect, ())
    tensor.requires_grad = True
    return tensor
