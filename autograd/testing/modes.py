"""The rules of a layer that has modes: what is kept for one of them does not reach another."""

from collections.abc import Callable, Sequence
from typing import Any

import npx
from autograd.testing.problem import REFUSALS, Problem
from autograd.testing.rules import CheckError, Truth, back, run
from npx import Array

Call = Callable[[], Any]


def mode(truth: Truth, leave: Call, enter: Call) -> None:
    """The gradient is that of the mode the output was computed in, whatever the layer's mode is by then."""
    output, leaves = truth.problem.run()
    leave()
    try:
        truth.compare("mode", "once the layer is in its other mode", None, back(truth, output, leaves, truth.c))
    finally:
        enter()


def again(truth: Truth, others: Sequence[tuple[Call, Truth | None]], enter: Call) -> None:
    """A mode that is entered again gives what it gave: nothing stays from the modes in between, and calls in them.

    `others`: how each is entered, and what is called in it, or None.
    """
    enter()
    truth.problem.run([npx.from_host(npx.to_host(a).copy()) for a in truth.problem.arrays])
    for enter_other, other in others:
        enter_other()
        if other:
            other.problem.run()
    enter()
    y, gradients = run(truth, truth.problem, truth.c)
    truth.compare("mode", "once the layer has been in its other mode, and is back", y, gradients)


def renewed(truth: Truth, others: Sequence[Problem], set_back: Call, leave: Call, enter: Call) -> None:
    """A mode that is entered after an update is of the parameters as they are then, not as it knew them before.

    `others`: problems with other parameters, of which the first is taken that can be run. `set_back`: to buffers as
    they were at first.
    """

    def entered(problem: Problem) -> tuple[Array, list[Array]]:
        leave()
        for own, array in zip(problem.own, problem.parameters.values(), strict=True):
            own.data = npx.from_host(npx.to_host(array).copy())
        enter()
        return run(truth, problem, truth.c)

    for other in others:
        set_back()
        try:
            y, gradients = entered(other)
        except (CheckError, *REFUSALS):
            continue
        set_back()
        entered(truth.problem)
        found = entered(other)
        what = "whether or not its mode was entered before the parameters changed"
        Truth(other, y, truth.c, gradients).compare("mode", what, *found)
        return
