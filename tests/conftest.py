"""What every test shares: how hard hypothesis tries, and where the tests compute.

HYPOTHESIS_PROFILE (or pytest's --hypothesis-profile): "ci", the default, always tries the same examples; "dev" tries
new ones at each run; "thorough" tries many; "few" tries few, where the check of a GPU has little time. No profile has a
deadline: a test never depends on how fast a machine is.

NPX_TEST_ENGINE: "numpy", the default; "cupy": what `make gpu-check` runs computes on a GPU; "strict": the same on the
stand-in of strict_cupy.py; "emulated": there too, its CUDA kernels in the emulator. Try both before a GPU.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

import npx
from autograd import OPERATIONS

ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=20, derandomize=True, database=None, **ALWAYS)
settings.register_profile("dev", max_examples=20, **ALWAYS)
settings.register_profile("few", max_examples=5, derandomize=True, database=None, **ALWAYS)
settings.register_profile("thorough", max_examples=500, **ALWAYS)
npx.configure_process()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores Ctrl-C, which tests send
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def registry():
    """For tests that define operations: afterwards the registry is as it was."""
    before = dict(OPERATIONS)
    yield
    OPERATIONS.clear()
    OPERATIONS.update(before)


@pytest.fixture(scope="session", autouse=True)
def computing_device():
    """Where the tests of this process compute."""
    engine = os.environ.get("NPX_TEST_ENGINE", "numpy")
    if engine in ("strict", "emulated"):
        from tests.fakes.strict_cupy import device

        with device(cuda=engine == "emulated"):
            yield
    else:
        npx.use_device("cuda" if engine == "cupy" else "cpu")
        yield
        npx.use_device("cpu")
