"""Run pytest with the source of one module replaced by a mutant. runner.py starts this file as a script.

    python -P autograd/testing/mutation/planted.py TASK.json [pytest arguments]

It imports neither autograd nor NumPy: the replaced module may be autograd/operations.py, which all packages import, so
the import hook must be installed before any of them is loaded. The task is a JSON object: `file`, the path of the
module; `text`, the source to run instead; `skipped`, ids of tests not to run; `order`, ids of tests to run first, in
order; `limit`, seconds of CPU time, or null; `result`, the file for the result: whether the module was loaded, which
tests reached which places, and the first failure.
"""

import importlib.machinery
import json
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, cast

import pytest  # pytest loads its plugins, which may import NumPy, later


class planted:
    """Mutations that need more than a changed expression; the name `planted` is defined in the mutated module."""

    last_vjp: Callable[..., Any]
    previous: Any = None
    test = ""  # id of the running test; "" outside of tests (COLLECTION in runner.py)
    reached_by: dict[int, set[str]] = {}  # index of a place -> ids of the tests that reach it
    can_change: set[int] = set()  # indices of places where the mutant differs from the original

    @staticmethod
    def changed(gradients: Any, change: Callable[[Any], Any], i: int | None = None) -> Any:
        """Apply `change` to a gradient or, if i is given, to the i-th gradient of a tuple. None stays None."""
        if i is None or not isinstance(gradients, (tuple, list)):
            return gradients if gradients is None or i else change(gradients)
        return tuple(planted.changed(gx, change) if k == i else gx for k, gx in enumerate(gradients))

    @staticmethod
    def swapped(gradients: Any, i: int) -> Any:
        """Return the gradients with the i-th and the next one swapped."""
        if not isinstance(gradients, (tuple, list)):
            return gradients
        gradients = list(gradients)
        gradients[i : i + 2] = gradients[i : i + 2][::-1]
        return tuple(gradients)

    @staticmethod
    def rounded(gx: Any, dtype: str) -> Any:
        """Round an array to a narrower dtype, and convert it back."""
        if "torch" in sys.modules and isinstance(gx, sys.modules["torch"].Tensor):
            return gx.to(getattr(sys.modules["torch"], dtype)).to(gx.dtype)
        return gx.astype(dtype).astype(gx.dtype) if hasattr(gx, "astype") else gx

    @staticmethod
    def overwritten(g: Any, gx: Any) -> Any:
        """Store the result in the incoming gradient g if their shapes and dtypes agree."""
        if not fits(gx, g):
            return gx
        g[...] = gx
        return g

    @staticmethod
    def vjp_of_last_call(vjp: Callable[..., Any]) -> Callable[..., Any]:
        """Return a vjp that uses the values saved by the latest call to the operation."""
        planted.last_vjp = vjp
        return wraps(vjp)(lambda *args: planted.last_vjp(*args))

    @staticmethod
    def of_call_before(gradients: Any) -> Any:
        """Return the previous call's result if the shapes agree, as if a shared workspace were filled too late."""
        previous = planted.previous
        planted.previous = gradients
        return previous if shapes(previous) == shapes(gradients) else gradients

    @staticmethod
    def reached(value: Any, *places: tuple[int, int | None, Any]) -> Any:
        """Record that the running test reaches these places, and which of their mutants would change anything.

        A place is a tuple: the index of the mutant; the index of the mutated gradient if the value is a tuple, else
        None; and the incoming gradient if the mutant overwrites it, else None.
        """
        for number, i, g in places:
            planted.reached_by.setdefault(number, set()).add(planted.test)
            several = isinstance(value, (tuple, list))
            gx = value if i is None else dict(enumerate(value if several else [value])).get(i)
            if gx is not None and (g is None or fits(gx, g)):
                planted.can_change.add(number)
        return value


def fits(gx: Any, g: Any) -> bool:
    """Return whether gx can be stored in g; JAX arrays cannot be written to."""
    if not getattr(g, "ndim", 0) or type(g).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return False
    return (g.shape, g.dtype) == (getattr(gx, "shape", None), gx.dtype)


def shapes(gradients: Any) -> Any:
    if isinstance(gradients, (tuple, list)):
        return [shapes(gx) for gx in gradients]
    return type(gradients), getattr(gradients, "shape", None)


class Loader(importlib.machinery.SourceFileLoader):
    """A loader that runs the given source as the module at this path; no bytecode is read or written."""

    text = ""
    loaded = False

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        Loader.loaded = True
        vars(module)["planted"] = planted
        super().exec_module(module)


class Finder:
    """A finder, first in sys.meta_path, that delegates to the other finders and replaces the loader of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        folder, name = os.path.split(file.removesuffix(".py"))
        self.name = os.path.basename(folder) if name == "__init__" else name

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if fullname.rpartition(".")[2] != self.name:
            return None
        for other in sys.meta_path:
            spec = None if other is self else other.find_spec(fullname, path, target)
            if spec is not None:
                if spec.origin and os.path.exists(spec.origin) and os.path.samefile(spec.origin, self.file):
                    spec.loader = Loader(fullname, spec.origin)
                return spec
        return None


class Plugin:
    """A pytest plugin that tracks the running test, deselects and orders tests, and records the first failure."""

    def __init__(self, finder: Finder, skipped: list[str], order: list[str]) -> None:
        self.finder = finder
        self.skipped = set(skipped)
        self.order = {nodeid: position for position, nodeid in enumerate(order)}
        self.failure: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self) -> Iterator[None]:
        """Disable shrinking before test profiles are defined, because nobody reads the failing examples."""
        self.put_finder_first()
        if "hypothesis" in sys.modules:
            from hypothesis import Phase, settings

            phases = [phase for phase in Phase if phase.name not in ("shrink", "explain")]
            settings.register_profile("planted", phases=phases, report_multiple_bugs=False)
            settings.load_profile("planted")
        return (yield)

    def pytest_configure(self) -> None:
        self.put_finder_first()

    def put_finder_first(self) -> None:
        """Move the finder in front of pytest's import hook, which also loads the packages of plugins."""
        sys.meta_path.remove(cast(Any, self.finder))
        sys.meta_path.insert(0, cast(Any, self.finder))

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        deselected = [item for item in items if item.nodeid in self.skipped]
        items[:] = [item for item in items if item.nodeid not in self.skipped]
        items.sort(key=lambda item: self.order.get(item.nodeid, len(self.order)))
        config.hook.pytest_deselected(items=deselected)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        planted.test = nodeid

    def pytest_runtest_logfinish(self) -> None:
        planted.test = ""

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        if not self.failure:
            error = call.excinfo.value
            crashed = not isinstance(error, (AssertionError, BaseExceptionGroup))
            first = (str(error).strip() or "no message").splitlines()[0]
            self.failure = [node.nodeid, f"{type(error).__name__}: {first}", "crashed" if crashed else "found"]


def main(task_file: str, arguments: list[str]) -> int:
    """Run the task and return the exit status of pytest."""
    with open(task_file, encoding="utf-8") as file:
        task = json.load(file)
    if task["limit"]:
        seconds = math.ceil(task["limit"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    Loader.text = task["text"]
    finder = Finder(task["file"])
    sys.meta_path.insert(0, cast(Any, finder))
    sys.path.insert(0, os.getcwd())  # as `python -m pytest` does
    plugin = Plugin(finder, task["skipped"], task["order"])
    status = int(pytest.main(arguments, plugins=[plugin]))
    result = {
        "loaded": Loader.loaded,
        "failure": plugin.failure,
        "reached_by": {place: sorted(tests) for place, tests in planted.reached_by.items()},
        "can_change": sorted(planted.can_change),
    }
    with open(task["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
