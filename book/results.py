"""Run answers on the cases of a check, and compare the results."""

import copy
import importlib.util
import math
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from book.exercise import Stage
from book.files import Exercise


@cache
def load(path: Path) -> ModuleType:
    """Import a file as a module under a unique name."""
    spec = importlib.util.spec_from_file_location(f"answer_{abs(hash(path))}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_of(exercise: Exercise) -> ModuleType:
    return load(exercise.folder / "check.py")


def outcome(stage: Stage, module: ModuleType, case: tuple[Any, ...]) -> Any:
    """Return the answer's result on copies of the arguments, or the exception it raises."""
    try:
        return stage.yours(module, *copied(case))
    except (Exception, SystemExit) as error:
        return error


def passes(stage: Stage, seed: int, module: ModuleType) -> bool:
    """Return whether an answer is right on every case of a stage."""
    cases = ((outcome(stage, module, case), stage.right(*copied(case))) for case in stage.cases(seed))
    return all(not isinstance(a, BaseException) and same(a, b, stage.close) for a, b in cases)


def agrees(a: Any, b: Any) -> bool:
    """Return whether two outcomes are equal, exceptions included."""
    if isinstance(a, BaseException) or isinstance(b, BaseException):
        return type(a) is type(b) and str(a) == str(b)
    return same(a, b, 1e-9)


def same(a: Any, b: Any, close: float) -> bool:
    """Return whether two results are equal, with floats equal within a relative tolerance of `close`."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(same(x, y, close) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], close) for k in a)
    if type(a) is type(b) is float:
        return math.isclose(a, b, rel_tol=close, abs_tol=close * 1e-3) or a != a and b != b
    if isinstance(a, (str, type(None))) or isinstance(b, (str, type(None))):
        return type(a) is type(b) and bool(a == b)
    try:
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype.kind not in "biufc" or y.dtype.kind not in "biufc":
            return False
        if "b" in (x.dtype.kind, y.dtype.kind):
            return x.dtype.kind == y.dtype.kind and bool((x == y).all())
        scale = max(float(np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0.0)), 1e-3)
        return bool(np.allclose(x, y, rtol=close, atol=close * scale, equal_nan=True))
    except (TypeError, ValueError):
        return False


def copied(case: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(copy.deepcopy(x) if isinstance(x, (np.ndarray, list, dict)) else x for x in case)
