"""Deliberately wrong gradients, one for each mistake that is easily made, which the kit has to find.

`base.py`: what a mutant is; then the mistakes, by what they are planted in. `python -m tests.mutants` says what each
took to find, and writes docs/mutants.md.
"""

from tests.mutants import kernels, layers, models, neural, operations, sources, state
from tests.mutants.base import KINDS, MUTANTS, Found, Mutant, find
