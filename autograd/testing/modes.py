"""Rules for layers with a training and an evaluation mode: one mode must not use values computed in the other."""

from collections.abc import Callable, Sequence
from typing import Any

import npx
from autograd.testing.baseline import Baseline
from autograd.testing.problem import Problem
from autograd.testing.report import REJECTIONS, CheckError
from npx import Array

Action = Callable[[], Any]


def check_backward_in_other_mode(baseline: Baseline, leave: Action, enter: Action) -> None:
    """Check that backward uses the mode of the forward call, even if the layer has since changed its mode."""
    output, leaves = baseline.problem.output_and_leaves()
    leave()
    try:
        gradients = baseline.problem.protected_gradients(output, leaves, baseline.c)
        baseline.compare("layer mode", "if the layer changes its mode before backward", None, gradients)
    finally:
        enter()


def check_return_to_mode(baseline: Baseline, others: Sequence[tuple[Action, Baseline | None]], enter: Action) -> None:
    """Check that a layer that returns to a mode gives the same results as before.

    Args:
        others: pairs of a function that enters another mode, and the results of a problem to call then, or None.
    """
    enter()
    baseline.problem.output_and_leaves([npx.from_host(npx.to_host(a).copy()) for a in baseline.problem.arrays])
    for enter_other, other in others:
        enter_other()
        if other:
            other.problem.output_and_leaves()
    enter()
    y, gradients = baseline.problem.output_and_gradients(baseline.c)
    baseline.compare("layer mode", "after the layer has been switched to its other mode and back", y, gradients)


def check_mode_after_update(
    baseline: Baseline, others: Sequence[Problem], restore_buffers: Action, leave: Action, enter: Action
) -> None:
    """Check that a layer that enters a mode after a parameter update uses the new parameters.

    Args:
        others: problems with other parameters; the first that the layer accepts is used.
    """

    def evaluate_in_mode(problem: Problem) -> tuple[Array, list[Array]]:
        leave()
        for parameter, array in zip(problem.parameter_tensors, problem.parameters.values(), strict=True):
            parameter.data = npx.from_host(npx.to_host(array).copy())
        enter()
        return problem.output_and_gradients(baseline.c)

    for other in others:
        restore_buffers()
        try:
            y, gradients = evaluate_in_mode(other)
        except (CheckError, *REJECTIONS):
            continue
        restore_buffers()
        evaluate_in_mode(baseline.problem)
        updated = evaluate_in_mode(other)
        condition = "regardless of whether the mode is entered before or after the parameter update"
        Baseline(other, y, baseline.c, gradients).compare("layer mode", condition, *updated)
        return
