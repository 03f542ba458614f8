"""Locate the origin of a NaN or infinity: repeat the computation and check every result.

Training itself does not check its results, because that would slow it down. The repetition is exact, because dropout
is keyed by (seed, step) and the weights have not changed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import npx
from autograd import AnomalyError, detect_anomaly
from train.errors import one_line

NO_OPERATION = "none; only the sum of finite values overflows"


def ignore_nonfinite_warnings() -> AbstractContextManager[None]:
    """Return a context in which NumPy does not warn of NaN and infinity, in this thread and its row workers.

    Losses and norms are checked where they are read. Python's warning filters would not work: they belong to the
    process, and two threads that train at the same time would overwrite each other's filters.
    """
    return npx.host.errstate(all="ignore")


def first_anomaly(compute: Callable[[], object]) -> str:
    """Return the first operation of `compute` whose result is not finite, with its layer and source line, or ""."""
    try:
        with detect_anomaly():
            compute()
    except AnomalyError as error:
        operation, _, location = str(error).partition("\n")
        return one_line(f"{operation} ({location})")
    except MemoryError:
        return "unknown; there is too little memory to repeat the computation"
    return ""
