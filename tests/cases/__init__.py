"""One case for every operation, kernel and layer: a hypothesis strategy for a call of it (test_registry_checks.py).

A new entry of a registry needs a case here: a function `operation_NAME` or `layer_NAME` that draws a `Call`; for a
kernel a function of its name in `kernels.py`, which gives small, odd and large calls.
"""

from tests.cases import activations, kernels, layers, models, neural, operations, rms_norm
from tests.cases.base import CASES, EDGES, ENTRIES, LAYERS, OURS, Call, check, check_drawn, thoroughly
