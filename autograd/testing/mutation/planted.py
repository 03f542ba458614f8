"""Runs pytest with one module replaced by a text of it with a mistake. `mutate.py` starts this file as a script.

    python -P autograd/testing/planted.py ORDERS.json [pytest arguments]

It imports neither autograd nor NumPy: what it replaces may be autograd/operations.py itself, which everything imports,
so the import hook has to stand before anything of the house is loaded. Orders, as JSON: `file`, the module's path;
`text`, what is to be run instead; `leave_out`, ids of tests not to run; `first`, ids of tests in the order in which
they are to run, before all others; `limit`, seconds of processor time, or null; `result`, where to write, as JSON,
whether the module was loaded, which tests reached which places, the first failure.
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

import pytest  # not yet its plugins, which may import more


class planted:
    """The mistakes that take more than a changed expression. The module finds them under this name."""

    last_vjp: Callable[..., Any]
    before: Any = None
    test = ""  # that runs now; "" between tests
    reached_by: dict[int, set[str]] = {}  # number of a place -> the tests that reach it
    can_change: set[int] = set()  # numbers of places where a mistake would change something

    @staticmethod
    def changed(gradients: Any, change: Callable[[Any], Any], i: int | None = None) -> Any:
        """The gradient, or the i-th of several, changed; None stays None."""
        if i is None:
            return None if gradients is None else change(gradients)
        return tuple(planted.changed(gx, change) if k == i else gx for k, gx in enumerate(gradients))

    @staticmethod
    def exchanged(gradients: Any, i: int) -> Any:
        """The gradients, the i-th and the next one in each other's place."""
        gradients = list(gradients)
        gradients[i : i + 2] = gradients[i : i + 2][::-1]
        return tuple(gradients)

    @staticmethod
    def rounded(gx: Any, dtype: str) -> Any:
        """Cast to a shorter dtype on the way, and back."""
        return gx.astype(dtype).astype(gx.dtype) if hasattr(gx, "astype") else gx

    @staticmethod
    def written_over(g: Any, gx: Any) -> Any:
        """Computed where the incoming gradient g lies, if it fits there."""
        if not fits(gx, g):
            return gx
        g[...] = gx
        return g

    @staticmethod
    def vjp_of_last_call(vjp: Callable[..., Any]) -> Callable[..., Any]:
        """A vjp that uses what the last call of the operation kept, not its own."""
        planted.last_vjp = vjp
        return wraps(vjp)(lambda *args: planted.last_vjp(*args))

    @staticmethod
    def of_call_before(gradients: Any) -> Any:
        """What the call before gave, where the shapes are the same: a workspace that is filled too late."""
        before, planted.before = planted.before, gradients
        return before if shapes(before) == shapes(gradients) else gradients

    @staticmethod
    def reached(value: Any, *places: tuple[int, int | None, Any]) -> Any:
        """Note that the test that runs now got here.

        Of each place (number of a mistake, which of the gradients in the value it is about, the incoming gradient if
        it would be written over) also whether there is something to change.
        """
        for number, i, g in places:
            planted.reached_by.setdefault(number, set()).add(planted.test)
            gx = value if i is None else dict(enumerate(value)).get(i)
            if gx is not None and (g is None or fits(gx, g)):
                planted.can_change.add(number)
        return value


def fits(gx: Any, g: Any) -> bool:
    """Whether a gradient can be written where another lies."""
    return bool(getattr(g, "ndim", 0)) and (g.shape, g.dtype) == (getattr(gx, "shape", None), gx.dtype)


def shapes(gradients: Any) -> Any:
    if isinstance(gradients, (tuple, list)):
        return [shapes(gx) for gx in gradients]
    return type(gradients), getattr(gradients, "shape", None)


class Loader(importlib.machinery.SourceFileLoader):
    """Runs the given text as the module of this path; no bytecode is read or written."""

    text = ""
    loaded = False

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        Loader.loaded = True
        vars(module)["planted"] = planted
        super().exec_module(module)


class Finder:
    """First in sys.meta_path: finds what the others find, and takes over the one file, under whatever name."""

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


class Watch:
    """A pytest plugin: which test runs, which are left out, and the first failure."""

    def __init__(self, finder: Finder, leave_out: list[str], first: list[str]) -> None:
        self.finder, self.leave_out = finder, set(leave_out)
        self.places = {nodeid: place for place, nodeid in enumerate(first)}
        self.failure: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self) -> Iterator[None]:
        """Before profiles are made: hypothesis may stop at the first failure, which nobody reads."""
        if "hypothesis" in sys.modules:
            from hypothesis import Phase, settings

            phases = [phase for phase in Phase if phase.name not in ("shrink", "explain")]
            settings.register_profile("planted", phases=phases, report_multiple_bugs=False)
            settings.load_profile("planted")
        return (yield)

    def pytest_configure(self) -> None:
        sys.meta_path.remove(cast(Any, self.finder))  # pytest has put its own hook in front
        sys.meta_path.insert(0, cast(Any, self.finder))

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        left_out = [item for item in items if item.nodeid in self.leave_out]
        items[:] = [item for item in items if item.nodeid not in self.leave_out]
        items.sort(key=lambda item: self.places.get(item.nodeid, len(self.places)))
        config.hook.pytest_deselected(items=left_out)

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


def main(orders_file: str, arguments: list[str]) -> int:
    with open(orders_file, encoding="utf-8") as file:
        orders = json.load(file)
    if orders["limit"]:
        seconds = math.ceil(orders["limit"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    Loader.text = orders["text"]
    finder = Finder(orders["file"])
    sys.meta_path.insert(0, cast(Any, finder))
    sys.path.insert(0, os.getcwd())  # as `python -m pytest` does
    watch = Watch(finder, orders["leave_out"], orders["first"])
    status = int(pytest.main(arguments, plugins=[watch]))
    result = {
        "loaded": Loader.loaded,
        "failure": watch.failure,
        "reached_by": {place: sorted(tests) for place, tests in planted.reached_by.items()},
        "can_change": sorted(planted.can_change),
    }
    with open(orders["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
