"""The thirteen derivations of docs/derivations.md: each line is a function, and neighbors agree to 1e-12.

The first line of each is the definition: for every input entry, by how much sum(g * f) moves, from a step along the
imaginary axis. For a function that is analytic, Im f(x + ih) / h has no difference that could cancel, and h may be
1e-30: so it is right to the last digit. The last line is the kernel, or the operation, of this project.
"""

from tests.derivations import basics, layers, training
from tests.derivations.lines import DERIVATIONS, DRAWN

__all__ = ["DERIVATIONS", "DRAWN", "basics", "layers", "training"]
