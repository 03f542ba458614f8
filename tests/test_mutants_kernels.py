"""check_kernel finds every mistake of mutants_kernels.py by the edges of its kernel alone, with any seed."""

import numpy as np
import pytest

from autograd.testing import check_kernel
from npx.registry import KERNELS, KernelMismatch
from tests.cases.kernels import edge_calls
from tests.mutants_kernels import PLANTED


def broken_rule(entry, seed=0):
    """The rule by which the edges of a kernel find what is planted in it; None if they do not."""
    name = entry.removeprefix("kernel ")
    for dtype in ("float64", "float32"):
        for call in edge_calls(name, dtype):
            try:
                check_kernel(KERNELS[name], *call.inputs, gradient=call.gradient, seed=seed, **call.options)
            except KernelMismatch as error:
                return error.rule
    return None


@pytest.mark.parametrize("name, family, kind, entry, plant", PLANTED, ids=[planted[0] for planted in PLANTED])
def test_found(name, family, kind, entry, plant, monkeypatch):
    plant(monkeypatch)
    with np.errstate(all="ignore"):
        rules = {broken_rule(entry, seed) for seed in (0, 1)}
    assert None not in rules, f"{name}: {entry} passed all its edges"
