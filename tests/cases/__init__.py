"""One case for every registered operation, kernel, layer and model: a hypothesis strategy for calls to it.

A new entry of a registry needs a case here, which test_registry_checks.py runs: a function `operation_NAME` or
`layer_NAME` that draws a `Call`; for a kernel a function of its name in `kernels.py`, which returns calls of small, odd
and large sizes.
"""

from tests.cases import (
    activations,
    encoder,
    kernels,
    layers,
    models,
    neural,
    operations,
    relative_positions,
    rms_norm,
    sequences,
)
from tests.cases.base import (
    CASES,
    EDGES,
    ENTRIES,
    LAYERS,
    REGISTRY_NAMES,
    Call,
    case_settings,
    check,
    check_drawn,
    check_registration,
)
