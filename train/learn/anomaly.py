"""Where a number that is not finite comes from: the work that gave it is done once more, with every result looked at.

Nothing is looked at while all goes well, so it costs nothing until then: dropout is keyed by (seed, step), and the
weights have not moved, so that the second time is the first.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import npx
from autograd import AnomalyError, anomaly
from train.errors import one_line

SUM_ALONE = "no operation; it is beyond the range of numbers as a sum alone"  # where none is found


def unwarned() -> AbstractContextManager[None]:
    """Without NumPy's warnings of numbers that are not finite: they are told where they are read.

    In this thread and those that walk over rows for it: filters of warnings belong to the process, and two threads that
    train at once would put back each other's.
    """
    return npx.host.errstate(all="ignore")


def first_anomaly(work: Callable[[], object]) -> str:
    """The first operation of `work` that makes such a number, with its layer and line of code; "" for none."""
    try:
        with anomaly():
            work()
    except AnomalyError as error:
        what, _, where = str(error).partition("\n")
        return one_line(f"{what} ({where})")
    except MemoryError:
        return "too little memory to look at it once more"
    return ""


def made_from(where: str, first: str) -> str:
    """What is told of a number that is not finite: the text, and the first operation where it was looked for."""
    return f"; it was made from {where}{f'; first of all by {first}' if first else ''}"
