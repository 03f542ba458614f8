"""The thirteen derivations of docs/derivations.md: each line is a function, and adjacent lines agree to 1e-12.

The first line of each derivation is the definition: the derivative of sum(g * f) with respect to every input entry,
from a step along the imaginary axis. For an analytic function, Im f(x + ih) / h contains no difference in which digits
could cancel, so h may be 1e-30, and the result is correct to the last digit. The last line is the kernel, or the
operation, of this project.
"""

from tests.derivations import basics, layers, training
from tests.derivations.lines import DERIVATIONS, DRAWN

__all__ = ["DERIVATIONS", "DRAWN", "basics", "layers", "training"]
