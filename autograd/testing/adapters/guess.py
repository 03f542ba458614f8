"""Guess inputs for a function: try arrays of common shapes until the function and its backward pass accept them."""

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing.problem import floating_point_warnings_ignored, is_float

np = npx.host
SHAPES = ((4, 6), (6, 5), (5,), (6,), (4,), (2, 3, 6), (2, 3, 6, 6), (3, 3, 3, 3), (3,), (6, 6), (2, 3, 3), ())
NUMBERS = (0.5, 2, 1)
INTEGER_NAMES = re.compile(r"ids?|idx|ind(ex|ices)|labels?|targets?|y|tokens?|class(es)?|t", re.IGNORECASE)
NUMBER_NAMES = re.compile(r"eps\w*|p|rate|alpha|beta\d|lambd\w*|n|k|axis|dim|stride|pad\w*|scale|size|kernel_size|bits")
MAX_TRIED = 1500


def guess_inputs(operation: Any, seed: int = 0) -> list[Any]:
    """Return inputs that an operation accepts. Raises ValueError if all attempts are rejected.

    The i-th argument is `np.random.default_rng(seed + i).normal(size=shape)`, or its absolute values.
    """
    names = required_names(operation)
    accepted_forward: list[Any] | None = None
    for positive in (False, True):
        candidates = [[*candidate_values(name, seed + i, positive)] for i, name in enumerate(names)]
        candidates[0] = [x for x in candidates[0] if hasattr(x, "dtype")]  # numbers are never the first argument
        for inputs in islice(combinations_by_rank(candidates), MAX_TRIED):
            if not any(map(is_float, inputs)):
                continue
            result = accepts(operation, inputs)
            if result == "gradients":
                return inputs
            if result == "output" and accepted_forward is None:
                accepted_forward = inputs
    if accepted_forward is None:
        raise ValueError(
            f"expected a function that accepts arrays of common shapes; got one that rejects every shape tried for "
            f"{', '.join(names) or 'its arguments'}; try --input SHAPE for each argument"
        )
    return accepted_forward


def required_names(operation: Any) -> list[str]:
    """Return the names of the positional arguments without a default."""
    function = getattr(operation, "functions", [operation])[0]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and hasattr(owner, "forward"):  # for example, MyFunction.apply of PyTorch
        function = owner.forward
        is_new_style = "setup_context" in vars(owner)
        skipped = 0 if is_new_style else 1
    else:
        skipped = 1 if hasattr(operation, "named_parameters") else 0  # self
    try:
        parameters = [*inspect.signature(function).parameters.values()][skipped:]
    except (TypeError, ValueError):
        return ["x"]
    names = [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return names or ["x"]


def candidate_values(name: str, seed: int, positive: bool) -> Iterator[Any]:
    """Yield values for an argument, the most likely first."""
    rng = np.random.default_rng(seed)
    integers = [rng.integers(0, 3, size=shape) for shape in ((4,), (2, 3), (4, 6))]
    masks = [np.arange(24).reshape(4, 6) % 3 > 0]
    floats = [np.random.default_rng(seed).normal(size=shape) for shape in SHAPES]
    if positive:
        floats = [np.abs(x) for x in floats]
    if name.lower().endswith("mask"):
        yield from (*masks, *floats, *integers)
    elif INTEGER_NAMES.fullmatch(name):
        yield from (*integers[:1], *floats, *integers[1:])
    elif NUMBER_NAMES.fullmatch(name):
        yield from (*NUMBERS, *floats, *integers)
    else:
        yield from (*floats, *integers, *NUMBERS, *masks)


def combinations_by_rank(candidates: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield combinations of one candidate per argument, ordered by the sum of the candidates' positions."""

    def with_sum(position: int, total: int) -> Iterator[list[Any]]:
        if position == len(candidates):
            if total == 0:
                yield []
            return
        for rank in range(min(total, len(candidates[position]) - 1) + 1):
            for rest in with_sum(position + 1, total - rank):
                yield [candidates[position][rank], *rest]

    for total in range(sum(len(c) - 1 for c in candidates) + 1):
        yield from with_sum(0, total)


def accepts(operation: Callable[..., Tensor], inputs: list[Any]) -> str:
    """Return "gradients" if forward and backward accept the inputs, "output" if only forward does, else ""."""
    arguments = [Tensor(x.copy(), requires_grad=True) if is_float(x) else x for x in inputs]
    reached = ""
    try:
        with floating_point_warnings_ignored():
            y = operation(*arguments)
            if not isinstance(y, Tensor):
                return ""
            if not npx.isfinite(y.data).all() or not y.data.size:
                return ""
            reached = "output"
            y.backward(npx.ones_like(y.data))
    except Exception:  # a function may raise anything for arguments that it does not expect
        return reached
    return "gradients"
