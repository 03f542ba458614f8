"""What a function remembers from call to call: recognised by calling twice, and set back before each call.

Random numbers without a key (NumPy's and Python's global ones, generators in attributes, closures and globals) and
buffers that every call changes (running means that a layer uses at once) make a right gradient look wrong. Held as they
were before the first call, the function is one again.
"""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing.problem import Problem, forward
from autograd.testing.rules import CheckError
from npx import Array


def functions(subject: Any) -> Iterator[Any]:
    """The Python functions of a layer (with those below it) or function."""
    if hasattr(subject, "modules"):
        for module in subject.modules():
            yield type(module).forward
    else:
        yield subject
    if hasattr(subject, "__wrapped__"):
        yield subject.__wrapped__


def reached(subject: Any) -> Iterator[Any]:
    """What the functions of a subject refer to: closures, globals that they name, attributes."""
    for function in functions(subject):
        code = getattr(function, "__code__", None)
        if code is not None:
            for cell in function.__closure__ or ():
                yield cell.cell_contents
            for name in code.co_names:
                yield function.__globals__.get(name)
    for module in subject.modules() if hasattr(subject, "modules") else [subject]:
        yield from vars(module).values() if hasattr(module, "__dict__") else ()


def random_state(subject: Any) -> tuple[Callable[[], None], Callable[[], bool]]:
    """Sets every source of random numbers back to where it is now; tells whether one has been used since."""
    sources: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
        (npx.host.random.get_state, npx.host.random.set_state),
        (random.getstate, random.setstate),
    ]
    for x in {id(x): x for x in reached(subject)}.values():
        if isinstance(x, npx.host.random.Generator):
            bits = x.bit_generator
            sources.append((partial(getattr, bits, "state"), partial(setattr, bits, "state")))
        elif isinstance(x, npx.host.random.RandomState):
            sources.append((x.get_state, x.set_state))
        elif isinstance(x, random.Random):
            sources.append((x.getstate, x.setstate))
    kept = [(copy.deepcopy(state()), set_state) for state, set_state in sources]

    def back() -> None:
        for state, set_state in kept:
            set_state(copy.deepcopy(state))

    def used() -> bool:
        return any(repr(state()) != repr(before) for (before, _), (state, _) in zip(kept, sources, strict=True))

    return back, used


def buffer_state(layer: Any) -> Callable[[], list[str]]:
    """Sets attributes that are neither modules nor parameters back to what they are now; returns which had changed."""
    modules = list(layer.modules()) if hasattr(layer, "modules") else []
    parameters = {id(p) for _, p in layer.named_parameters()} if hasattr(layer, "named_parameters") else set()

    def own(module: Any) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(module).items()
            if name != "training" and not hasattr(value, "forward") and id(value) not in parameters
        }

    kept = []
    for module in modules:
        for name, value in own(module).items():
            try:
                kept.append((module, name, copy.deepcopy(value)))
            except Exception:
                continue
    names = {(id(module), name) for module, name, _ in kept}

    def back() -> list[str]:
        changed = []
        for module, name, value in kept:
            if name not in vars(module) or not same(vars(module)[name], value):
                changed.append(name)
                setattr(module, name, copy.deepcopy(value))
        for module in modules:
            for name in [n for n in own(module) if (id(module), n) not in names]:
                changed.append(name)
                delattr(module, name)
        return changed

    return back


def same(a: Any, b: Any) -> bool:
    """Whether two values of an attribute are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = a.data, b.data
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        return bool(npx.array_equal(npx.to_host(a), npx.to_host(b), equal_nan=a.dtype.kind == "f"))
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    own = any("__eq__" in vars(kind) for kind in type(a).__mro__[:-1])
    try:
        return not own or bool(a == b)  # a copy of what has no equality of its own, such as a generator, is the same
    except ValueError:  # of arrays in it, which are compared number by number
        return False


def cast_buffers(layer: Any, dtype: Any) -> None:
    """Floating arrays among the buffers in a dtype: a layer is checked in float64, its running means too."""
    parameters = {id(p) for _, p in layer.named_parameters()}
    for module in layer.modules() if hasattr(layer, "modules") else ():
        for name, value in list(vars(module).items()):
            if id(value) in parameters:
                continue
            array = value.data if isinstance(value, Tensor) else value
            if isinstance(array, npx.ndarray) and array.dtype.name in ("float32", "float64") and array.dtype != dtype:
                cast = array.astype(dtype)
                setattr(module, name, Tensor(cast, value.requires_grad) if isinstance(value, Tensor) else cast)


def hold(problem: Problem, subject: Any, notes: list[str]) -> Problem:
    """The problem, with what it remembers set back before each call, if else the same input gives another output."""
    inner, (call_random, random_used), call_buffers = problem.call, random_state(subject), buffer_state(subject)

    def unlike(p: Problem, set_back: Sequence[Callable[[], Any]]) -> bool:
        outputs: list[Array] = []
        call_buffers()
        for _ in range(3):
            for back in set_back:
                back()
            outputs.append(forward(p, [npx.from_host(npx.to_host(a).copy()) for a in p.arrays]))
        return not all(npx.array_equal(outputs[0], y, equal_nan=True) for y in outputs)

    set_back: list[Callable[[], Any]] = []
    differ = unlike(problem, set_back)
    if random_used():  # also where the same came of other numbers, by chance
        set_back.append(call_random)
        notes.append("random numbers without a key: held fixed")
        differ = unlike(problem, set_back)
    if differ:
        set_back.append(call_buffers)
        differ = unlike(problem, set_back)
        call_buffers()
        forward(problem)
        notes.append(f"buffers that each call changes: held fixed ({', '.join(sorted(set(call_buffers())))})")
    if differ:
        expected = "expected the same output for the same input; got another; try giving its random numbers a fixed key"
        error = CheckError(f"{problem.name}: {expected} (npx.Key, or `with npx.keyed(...)` inside it)\nrule: same")
        error.rule = "same"
        raise error

    def held(values: list[Any]) -> Any:
        for back in set_back:
            back()
        return inner(values)

    problem.call = held if set_back else inner
    return problem
