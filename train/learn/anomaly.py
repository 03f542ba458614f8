"""Locate the origin of a NaN or infinity by repeating the computation with every result checked.

In normal training no result is checked, so training is not slowed down. The repetition is exact, because dropout is
keyed by (seed, step) and the weights have not changed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import npx
from autograd import AnomalyError, anomaly
from train.errors import one_line

NO_OPERATION = "none; only the sum of finite values overflows"


def ignore_nonfinite_warnings() -> AbstractContextManager[None]:
    """Disable NumPy's floating-point warnings in this thread and its row workers.

    Losses and norms are checked where they are read. Warning filters would not work: they belong to the process, and
    two threads that train at the same time would overwrite each other's filters.
    """
    return npx.host.errstate(all="ignore")


def first_anomaly(compute: Callable[[], object]) -> str:
    """Return the first operation of `compute` whose result is not finite, with its layer and source line, or ""."""
    try:
        with anomaly():
            compute()
    except AnomalyError as error:
        operation, _, location = str(error).partition("\n")
        return one_line(f"{operation} ({location})")
    except MemoryError:
        return "unknown; there is too little memory to repeat the computation"
    return ""
