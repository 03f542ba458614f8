"""Deliberately wrong gradients, one per typical bug, that the gradient checker must detect.

`base.py` defines a mutant; the other modules contain the bugs, by what they are planted in. `python -m tests.mutants`
measures the search for each and updates docs/mutants.md.
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
