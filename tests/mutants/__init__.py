"""Deliberately wrong gradients, one per typical bug, that the gradient checker must detect.

`base.py` defines a mutant; each of the other modules contains the bugs that are planted in one kind of code. `python -m
tests.mutants` measures the search for each bug and updates docs/checker-coverage.md.
"""

from tests.mutants import (
    kernels,
    layers,
    models,
    neural,
    operations,
    sources,
    sources_losses,
    sources_products,
    sources_rows,
    state,
)
from tests.mutants.base import KINDS, MUTANTS, Detection, Mutant, find
