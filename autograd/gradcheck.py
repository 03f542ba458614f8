"""Is a gradient right? Compare it with central differences. Uses the engine only from outside.

For a function f and a fixed random c, backward gives the gradient of phi(x) = sum(c * f(x)). Moving one input by +-h
along a direction d must change phi by 2 h (gradient . d), up to O(h^3): float64 leaves about ten digits to compare.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd.engine import Tensor, no_grad

STEP = 1e-5  # near the cube root of float64's rounding error, where truncation and rounding balance


class GradientError(AssertionError):
    """An analytic gradient and the numeric one differ."""


def gradcheck(
    function: Callable[..., Tensor],
    *inputs: Any,
    directions: int | None = None,
    step: float = STEP,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    seed: int = 0,
) -> bool:
    """Check the gradient of `function` at `inputs`: arrays, of which the float64 ones are checked.

    `directions` None: every entry of every input; k: k random directions through all inputs at once, for large ones.
    Returns True; raises GradientError with the analytic and the numeric value side by side, TypeError for inputs
    without a float64 array or a function that returns no Tensor.
    """
    arrays = [npx.to_host(x.data if isinstance(x, Tensor) else x) for x in inputs]
    checked = [i for i, a in enumerate(arrays) if a.dtype == npx.float64]
    if not checked:
        found = ", ".join(str(a.dtype) for a in arrays) or "no inputs"
        raise TypeError(f"gradcheck: expected at least one float64 input; got {found}; try .astype('float64')")

    def evaluate(values: list[Any], grad: bool) -> tuple[Tensor, list[Any]]:
        tensors = [Tensor(npx.from_host(v), requires_grad=grad) if i in checked else v for i, v in enumerate(values)]
        output = function(*tensors)
        if not isinstance(output, Tensor):
            raise TypeError(f"gradcheck: expected the function to return a Tensor; got {type(output).__name__}")
        return output, tensors

    output, tensors = evaluate([a.copy() for a in arrays], grad=True)
    c = npx.random.normal(npx.Key(seed, 0, 0), output.shape, output.dtype)
    output.backward(c)
    gradients = [
        npx.to_host(tensors[i].grad) if tensors[i].grad is not None else npx.zeros_like(arrays[i]) for i in checked
    ]

    def slope(moves: list[Any]) -> float:
        """The central difference of phi along `moves`, one array for each checked input."""
        ends = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            for i, move in zip(checked, moves, strict=True):
                moved[i] += sign * step * move
            with no_grad():
                ends.append(float(npx.sum(evaluate(moved, grad=False)[0].data * c)))
        return (ends[0] - ends[1]) / (2 * step)

    def compare(where: str, analytic: float, numeric: float) -> None:
        if not abs(analytic - numeric) <= atol + rtol * max(abs(analytic), abs(numeric), scale):
            raise GradientError(
                f"gradcheck: {where}: analytic {analytic!r}, numeric {numeric!r}, "
                f"difference {abs(analytic - numeric):.3g} (tolerance atol {atol:g}, rtol {rtol:g})"
            )

    scale = max((float(npx.max(npx.absolute(g))) for g in gradients if g.size), default=0.0)
    if directions is not None:
        for k in range(directions):
            moves = [
                npx.to_host(npx.random.normal(npx.Key(seed, 1 + k, n), arrays[i].shape, npx.float64))
                for n, i in enumerate(checked)
            ]
            analytic = sum(float(npx.sum(g * m)) for g, m in zip(gradients, moves, strict=True))
            compare(f"random direction {k}", analytic, slope(moves))
        return True
    for n, i in enumerate(checked):
        for position in range(arrays[i].size):
            moves = [npx.zeros_like(arrays[j]) for j in checked]
            index = tuple(int(k) for k in npx.unravel_index(position, arrays[i].shape))
            moves[n][index] = 1
            compare(f"input {i} {index}", float(gradients[n][index]), slope(moves))
    return True
