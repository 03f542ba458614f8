"""Plots with matplotlib, which is optional."""

import importlib.util
import sys
from typing import Any

from train.errors import pip_install


def import_pyplot(name: str) -> Any:
    """Return matplotlib.pyplot for writing files. Without matplotlib, report that `name` is skipped; return None."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"{name} is skipped: matplotlib is not installed; try {pip_install('draw')}", file=sys.stderr)
        return None
    import matplotlib

    matplotlib.use("Agg")  # works without a display
    import matplotlib.pyplot as plt

    return plt
