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

MARKER = "gradients(*modules): run one test per custom gradient of the modules, given as dotted names or as modules"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def check_gradient() -> Any:
    """Return `autograd.testing.check_gradient`, which takes a function, its backward if it is a pair, and inputs."""
    return importlib.import_module("autograd.testing").check_gradient


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `custom_gradient` the custom gradients of the modules that the marker names."""
    if "custom_gradient" not in metafunc.fixturenames:
        return
    markers = [*metafunc.definition.iter_markers("gradients")]
    modules = [module for marker in markers for module in marker.args]
    keywords = [keyword for marker in markers for keyword in marker.kwargs]
    if keywords or not modules:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: expected modules as positional arguments of the marker gradients; "
            f'got {", ".join(keywords) or "none"}; try @pytest.mark.gradients("my_module")'
        )
    discover = importlib.import_module("autograd.testing.adapters.discover")
    modules = [importlib.import_module(m) if isinstance(m, str) else m for m in modules]
    gradients = []
    for module in modules:
        module_gradients = [*discover.custom_gradients(module)]
        if not module_gradients:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: expected custom gradients in {module.__name__}; found none; "
                "try functions named f_forward and f_backward"
            )
        gradients += module_gradients
    metafunc.parametrize("custom_gradient", gradients, ids=[gradient.name for gradient in gradients])
