"""A pytest plugin for gradients: the fixture `check_gradient` and the marker `gradients`.

    def test_affine(check_gradient):
        check_gradient(affine_forward, affine_backward, x, w, b)

    @pytest.mark.gradients("my_layers")
    def test_gradients(custom_gradient):  # one test for each custom gradient of the module
        custom_gradient.check()

It imports autograd only in tests that use it.
"""

import importlib
from typing import Any

import pytest

MARKER = "gradients(module): one test for each custom gradient of a module, given by its dotted name or itself"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def check_gradient() -> Any:
    """`autograd.testing.check_gradient`: called with a function and, if it is a pair, its backward; then inputs."""
    return importlib.import_module("autograd.testing").check_gradient


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `custom_gradient` the custom gradients of the modules that the marker names."""
    if "custom_gradient" not in metafunc.fixturenames:
        return
    modules = [module for marker in metafunc.definition.iter_markers("gradients") for module in marker.args]
    if not modules:
        raise pytest.UsageError(
            f'{metafunc.definition.nodeid}: expected the marker gradients; try @pytest.mark.gradients("my_module")'
        )
    discover = importlib.import_module("autograd.testing.adapters.discover")
    modules = [importlib.import_module(m) if isinstance(m, str) else m for m in modules]
    found = [one for module in modules for one in discover.custom_gradients(module)]
    metafunc.parametrize("custom_gradient", found, ids=[one.name for one in found])
