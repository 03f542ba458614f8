"""What a report says of values: Python text that makes them again, and a line that runs a failing check again."""

import sys
from collections.abc import Sequence
from typing import Any

import npx
from autograd.engine import Tensor

WRITTEN = 512  # entries up to which an array is written out in the line that reproduces


class Named:
    """Stands in a line to reproduce for what only the caller can make."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def reproduction(check: str, function: Any, values: Sequence[Any], options: dict[str, Any], setup: str = "") -> str:
    """A line of Python that runs `check(function, *values, **options)` again.

    `setup`: statements before the check. Where `function` can be imported, the line stands alone; else the name in it
    is to be had from where the check was called.
    """
    written = [literal(function), *map(literal, values), *(f"{k}={literal(v)}" for k, v in options.items())]
    imports = ["from numpy import array, inf, nan", "from npx import Drop, Key, Scores, Smoothing"]
    imports.append(f"from autograd.testing import {check}")
    for f in (function, *values, *options.values()):
        if importable(f):
            imports.append(f"from {f.__module__} import {f.__name__}")
        elif (callable(f) or hasattr(f, "_fields")) and importable(type(f)):
            imports.append(f"from {type(f).__module__} import {type(f).__name__}")
    return "; ".join([*dict.fromkeys(imports), *([setup] if setup else []), f"{check}({', '.join(written)})"])


def importable(f: Any) -> bool:
    """Whether `from module import name` gives this very function or class."""
    name, module = getattr(f, "__name__", None), getattr(f, "__module__", None)
    return isinstance(name, str) and module != "__main__" and getattr(sys.modules.get(str(module)), name, None) is f


def literal(x: Any) -> str:
    """Python text that makes `x` again; a large array as its shape."""
    if isinstance(x, Tensor):
        return f"Tensor({literal(x.data)})"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return f"{type(x).__name__}({', '.join(f'{name}={literal(v)}' for name, v in zip(x._fields, x, strict=True))})"
    if isinstance(x, (list, tuple)):
        inside = ", ".join(literal(v) for v in x)
        return f"[{inside}]" if isinstance(x, list) else f"({inside}{',' if len(x) == 1 else ''})"
    if not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        named = callable(x) and hasattr(x, "__name__") and type(x).__repr__ is type(literal).__repr__
        return x.__name__ if named else repr(x)
    host = npx.to_host(x)
    if host.size > WRITTEN:
        return f"<array {host.shape} {host.dtype}>"
    kind = "" if host.dtype.name in ("float64", "int64", "bool") and host.size else f", dtype={host.dtype.name!r}"
    shape = f".reshape{host.shape}" if not host.size else ""
    return f"array({host.tolist()}{kind}){shape}"
