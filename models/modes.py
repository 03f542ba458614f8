"""A pass that changes nothing: without dropout and without a graph, and every module is left in its mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autograd import no_grad


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout and without a graph; the model's mode is put back, and that of each of its `modules`, if any.

    A model that only search knows has `training` and `train`, and no modules (models/search/protocol.py).
    """
    training = model.training
    modes = [(module, module.training) for module in getattr(model, "modules", tuple)()]
    model.train(False)
    try:
        with no_grad():
            yield
    finally:
        model.train(training)
        for module, mode in modes:
            module.training = mode
