"""Implicit state: what a function remembers between calls. The checker finds it by repeated calls and holds it fixed.

Two kinds of state make a correct gradient look wrong: random numbers without a key (from the global generators of NumPy
and Python, or from generators in attributes, closures and globals), and buffers that every call updates, such as
running means. With this state restored before every call, the function is deterministic.
"""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import npx
from autograd.engine import Tensor, is_floating
from autograd.testing.problem import Problem
from npx import Array


def modules_of(subject: Any) -> list[Any]:
    """Return the modules of a layer: a layer without `modules()` is its only one, and a function has none."""
    if hasattr(subject, "modules"):
        return [*subject.modules()]
    return [subject] if hasattr(subject, "named_parameters") and hasattr(subject, "__dict__") else []


def functions(subject: Any) -> Iterator[Any]:
    """Yield the Python functions that a call to a layer or to a function runs."""
    if hasattr(subject, "modules"):
        for module in subject.modules():
            yield type(module).forward
    else:
        yield subject
    if hasattr(subject, "__wrapped__"):
        yield subject.__wrapped__
    yield from getattr(subject, "functions", ())  # functions from another framework


def referenced_objects(subject: Any) -> Iterator[Any]:
    """Yield the objects in the closures, globals and attributes that the functions of a subject refer to."""
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
    """Return a function that restores every random generator, and one that returns whether a generator was used."""
    sources: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
        (npx.host.random.get_state, npx.host.random.set_state),
        (random.getstate, random.setstate),
    ]
    for x in {id(x): x for x in referenced_objects(subject)}.values():
        if isinstance(x, npx.host.random.Generator):
            bit_generator = x.bit_generator
            sources.append((partial(getattr, bit_generator, "state"), partial(setattr, bit_generator, "state")))
        elif isinstance(x, npx.host.random.RandomState):
            sources.append((x.get_state, x.set_state))
        elif isinstance(x, random.Random):
            sources.append((x.getstate, x.setstate))
    saved = [(get_state(), set_state) for get_state, set_state in sources]  # the getters and setters copy the state

    def restore() -> None:
        for state, set_state in saved:
            set_state(state)

    def is_used() -> bool:
        pairs = zip(saved, sources, strict=True)
        return any(repr(get_state()) != repr(before) for (before, _), (get_state, _) in pairs)

    return restore, is_used


def buffer_state(layer: Any) -> Callable[[], list[str]]:
    """Return a function that restores a layer's buffers and returns the names of those that changed.

    All attributes except modules and parameters count as buffers.
    """
    modules = modules_of(layer)
    parameters = {id(p) for _, p in layer.named_parameters()} if hasattr(layer, "named_parameters") else set()

    def buffers(module: Any) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(module).items()
            if name != "training" and not hasattr(value, "forward") and id(value) not in parameters
        }

    saved = []
    for module in modules:
        for name, value in buffers(module).items():
            try:
                saved.append((module, name, copy.deepcopy(value)))
            except Exception:
                continue
    names = {(id(module), name) for module, name, _ in saved}

    def restore() -> list[str]:
        changed = []
        for module, name, value in saved:
            if name in vars(module) and equal(current := vars(module)[name], value):
                if getattr(current, "dtype", None) != getattr(value, "dtype", None):
                    setattr(module, name, copy.deepcopy(value))
                continue
            changed.append(name)
            setattr(module, name, copy.deepcopy(value))
        for module in modules:
            for name in [n for n in buffers(module) if (id(module), n) not in names]:
                changed.append(name)
                delattr(module, name)
        return changed

    return restore


def equal(a: Any, b: Any) -> bool:
    """Return whether two attribute values are equal; objects that do not define equality count as equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = a.data, b.data
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        return bool(npx.array_equal(npx.to_host(a), npx.to_host(b), equal_nan=a.dtype.kind == "f"))
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    has_equality = any("__eq__" in vars(base) for base in type(a).__mro__[:-1])
    try:
        return not has_equality or bool(a == b)
    except ValueError:  # the value contains arrays, which compare element by element
        return False


def cast_buffers(layer: Any, dtype: Any) -> None:
    """Cast the floating-point arrays among the buffers, such as running means, to the dtype of the check."""
    other_arrays = [
        (module, name, value)
        for module in modules_of(layer)
        for name, value in vars(module).items()
        if has_other_dtype(value, dtype)
    ]
    parameters = {id(p) for _, p in layer.named_parameters()} if other_arrays else set()

    def cast(value: Any) -> Any:
        if id(value) in parameters or not has_other_dtype(value, dtype):
            return value
        if isinstance(value, Tensor):
            return Tensor(value.data.astype(dtype), value.requires_grad)
        if type(value) is dict:
            return {key: cast(item) for key, item in value.items()}
        return value.astype(dtype) if isinstance(value, npx.ndarray) else type(value)(map(cast, value))

    for module, name, value in other_arrays:
        setattr(module, name, cast(value))


def has_other_dtype(value: Any, dtype: Any) -> bool:
    """Return whether a value is, or contains, a floating-point array of another dtype."""
    if type(value) in (list, tuple, dict):
        return any(has_other_dtype(item, dtype) for item in (value.values() if type(value) is dict else value))
    array = value.data if isinstance(value, Tensor) else value
    # The dtypes are compared first, because `dtype.name` is slow.
    return isinstance(array, npx.ndarray) and array.dtype != dtype and is_floating(array.dtype)


@contextmanager
def layer_restored(layer: Any) -> Iterator[Callable[[], list[str]]]:
    """Restore parameters, buffers and modes of a layer after the block; yield the function that restores buffers."""
    modules = modules_of(layer)
    training = [(m, m.training) for m in modules if hasattr(m, "training")]
    containers = [(m, n, x) for m in modules for n, x in vars(m).items() if type(x) in (list, tuple, dict)]
    restore_buffers = buffer_state(layer)
    parameters = [(p, p.data, p.grad, p.node, p.requires_grad) for _, p in layer.named_parameters()]
    try:
        yield restore_buffers
    finally:
        for p, data, grad, node, requires_grad in parameters:
            p.data, p.grad, p.node, p.requires_grad = data, grad, node, requires_grad
        restore_buffers()
        for module, name, value in containers:
            if equal(vars(module)[name], value):  # at most a copy, in which `cast_buffers` has cast arrays
                setattr(module, name, value)
        for module, was_training in training:
            module.training = was_training


def hold_state(problem: Problem, subject: Any, notes: list[str], may_be_random: bool = True) -> None:
    """Make a problem restore its implicit state before each call, if repeated calls give different outputs.

    Each state that is held fixed is recorded in `notes`. Raises CheckError with the rule `determinism` if the outputs
    still differ, or if they depend on random numbers and `may_be_random` is False.
    """
    call = problem.call
    restore_random, is_random_used = random_state(subject)
    restore_buffers = buffer_state(subject)

    def varies(restores: Sequence[Callable[[], Any]]) -> bool:
        outputs: list[Array] = []
        restore_buffers()
        for _ in range(3):
            for restore in restores:
                restore()
            outputs.append(problem.output_value([npx.from_host(npx.to_host(a).copy()) for a in problem.arrays]))
        return not all(npx.array_equal(outputs[0], y, equal_nan=True) for y in outputs)

    restores: list[Callable[[], Any]] = []
    is_varying = varies(restores)
    if is_random_used():  # even if different random numbers happened to give the same output
        restores.append(restore_random)
        notes.append("random numbers without a key: held fixed")
        was_varying = is_varying
        is_varying = varies(restores)
        if was_varying and not is_varying and not may_be_random:
            text = "expected the same output for the same input in evaluation mode; it depends on random numbers"
            cause = "random numbers are drawn although the layer is not in training mode; test self.training"
            cause += ", or, if they are intended, check with modes=('train',) only"
            raise problem.failure("determinism", text, cause=cause, reproduce=False)
    if is_varying:
        restores.append(restore_buffers)
        is_varying = varies(restores)
        restore_buffers()
        problem.output_value()
        changed = restore_buffers()
        notes.append(f"buffers that each call changes: held fixed ({', '.join(sorted(set(changed)))})")
    if is_varying:
        advice = "try a fixed key for random numbers (npx.Key, or `with npx.keyed(...)` inside the function)"
        text = f"expected the same output for the same input; repeated calls differ; {advice}"
        raise problem.failure("determinism", text, reproduce=False)

    def call_restored(values: list[Any]) -> Any:
        for restore in restores:
            restore()
        return call(values)

    if restores:
        problem.call, problem.updating_call = call_restored, call
