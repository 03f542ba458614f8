"""Settings for all tests: hypothesis profiles, the device, and the order of the tests.

HYPOTHESIS_PROFILE (or pytest's --hypothesis-profile): "ci", the default, always tries the same examples; "dev" tries
new ones in each run; "thorough" tries many; "few" tries few, for the GPU check, which has little time. No profile has a
deadline, so no test depends on the speed of the machine.

NPX_TEST_ENGINE: "numpy", the default; "cupy", a GPU, as in `make gpu-check`; "strict", the fake of CuPy in
tests/fakes/strict_cupy.py; "emulated", the same fake with the CUDA kernels in the emulator.
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
settings.register_profile("few", max_examples=2, derandomize=True, database=None, **ALWAYS)
settings.register_profile("thorough", max_examples=500, **ALWAYS)
npx.configure_process()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores Ctrl-C in background jobs; tests send it
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Tests of more than about 5 s on one core. They start first, so that the workers finish at the same time.
LONG = (
    *("test_entry[model encoder_decoder", "test_entry[model decoder", "test_entry[layer DecoderLayer"),
    *("tests/test_gpu_check.py", "test_every_kernel_compiles[attention", "test_several_ranks_train_like_one_process"),
    *("test_a_lossy_network", "test_two_seeds", "test_some_cases_of_each_part_are_right[commands"),
)


@pytest.hookimpl(trylast=True)  # after deselection
def pytest_collection_modifyitems(items):
    """Move the long tests to the start of each half, because `--dist worksteal` gives each of two workers one half."""
    is_long = [any(name in item.nodeid for name in LONG) for item in items]
    long = [item for item, flag in zip(items, is_long, strict=True) if flag]
    short = [item for item, flag in zip(items, is_long, strict=True) if not flag]
    middle = len(items) // 2 - len(long[::2])
    items[:] = [*long[::2], *short[:middle], *long[1::2], *short[middle:]]


@pytest.fixture(scope="session", autouse=True)
def rematerialization():
    """Force the rematerialization that large models use, although the arrays of the tests are small."""
    with npx.rematerialize_above(-1):
        yield


@pytest.fixture
def registry():
    """Restore the registry after a test that defines operations."""
    before = dict(OPERATIONS)
    yield
    OPERATIONS.clear()
    OPERATIONS.update(before)


@pytest.fixture(scope="session", autouse=True)
def computing_device():
    """Select the device of this process."""
    engine = os.environ.get("NPX_TEST_ENGINE", "numpy")
    if engine in ("strict", "emulated"):
        from tests.fakes.strict_cupy import device

        with device(cuda=engine == "emulated"):
            yield
    else:
        npx.use_device("cuda" if engine == "cupy" else "cpu")
        yield
        npx.use_device("cpu")
