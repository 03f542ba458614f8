"""Recomputation: a part of the graph that is not kept, but formed again on the way back (Chen et al., 2016).

    x = checkpoint(layer, x)

keeps the inputs and the output of `layer` and nothing of what lies between. Backward runs the layer once more, with the
same random numbers, and goes back through that: a third more computation, for memory that grows by one array a layer.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd.engine import Node, Tensor, backward, is_grad_enabled, leave, moment, no_grad, reachable
from npx import Array
from npx.random import record_keys, replay_keys


def checkpoint(function: Callable[..., Tensor], *args: Any, **named: Any) -> Tensor:
    """function(*args, **named), of which nothing is kept but inputs and output.

    The gradients of the inputs and of every parameter that `function` knows are, bit for bit, those without it, where
    `function` alone uses an input (else sums may be rounded in another order). `function` has to do the same when it is
    called again: random numbers have keys (npx.keyed), which are given out once more.
    TypeError where it does not return a Tensor; RuntimeError, on the way back, where it uses what was computed from
    other Tensors and is no input.
    """
    if not is_grad_enabled():
        return function(*args, **named)
    inputs = (*args, *named.values())

    def computed(values: list[Any]) -> Tensor:
        return function(*values[: len(args)], **dict(zip(named, values[len(args) :], strict=True)))

    plain = [Tensor(x.data) if isinstance(x, Tensor) else x for x in inputs]
    with no_grad(), record_keys() as keys:
        output = computed(plain)
    if not isinstance(output, Tensor):
        raise TypeError(f"checkpoint: expected a function that returns a Tensor; got {type(output).__name__}")

    def vjp(g: Array) -> tuple[Array | None, ...]:
        if not is_grad_enabled():
            raise RuntimeError("checkpoint: expected backward with gradients enabled; got it within no_grad")
        caught: dict[int, Array] = {}
        begun = moment()
        again = list(plain)
        for i, x in enumerate(inputs):
            if isinstance(x, Tensor) and x.requires_grad:
                again[i] = caught_in(caught, i, plain[i].data)
        with replay_keys(keys), npx.no_rematerialization():
            result = computed(again)
        if result.node and (first := reachable(result.node)[0]).number < begun:
            raise RuntimeError(
                "checkpoint: expected a function of its inputs and of parameters; "
                f"got one that uses what {first.name!r} gave outside of it; try giving that as an input"
            )
        if result.requires_grad:
            backward(result, g)
        return tuple(caught.get(i) for i in range(len(inputs)))

    return leave("checkpoint", output.data, vjp, inputs, True)  # also where no input wants one: its parameters may


def caught_in(caught: dict[int, Array], i: int, data: Array) -> Tensor:
    """A Tensor whose whole gradient is put into caught[i]: summed as that of any node is."""

    def catch(g: Array) -> tuple[Array | None, ...]:
        caught[i] = npx.asarray(g)
        return ()

    tensor = Tensor(data)
    tensor.node, tensor.requires_grad = Node("input", data, catch, ()), True
    return tensor
