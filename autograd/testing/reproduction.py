"""Values as Python source, and the line of Python that repeats a failing check."""

import hashlib
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import npx
from autograd.engine import Tensor
from npx import Array

MAX_WRITTEN = 512  # entries up to which an array is written out; larger ones are saved to a file
LITERAL_NAMES = {  # names that `literal` writes, by module
    "numpy": ("array", "inf", "load", "nan"),
    "npx": ("AttentionSpec", "Drop", "Key", "LabelSmoothing"),
    "autograd": ("Tensor",),
}


class Named:
    """In code that reproduces a failure, a placeholder for an object that only the caller can create."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def reproduction(check: str, function: Any, values: Sequence[Any], options: dict[str, Any], setup: str = "") -> str:
    """Return a line of Python that repeats `check(function, *values, **options)`.

    The line is self-contained if `function` can be imported; otherwise its name has to be defined by the caller.
    setup: statements to run before the check.
    """
    arguments = [literal(function), *map(literal, values), *(f"{k}={literal(v)}" for k, v in options.items())]
    text = f"{setup} {' '.join(arguments)}"
    imports = []
    for module, names in LITERAL_NAMES.items():
        used = [name for name in names if re.search(rf"\b{name}\b", text)]
        imports += [f"from {module} import {', '.join(used)}"] if used else []
    imports.append(f"from autograd.testing import {check}")
    for f in (function, *values, *options.values()):
        if is_importable(f):
            imports.append(f"from {f.__module__} import {f.__name__}")
        elif (
            (callable(f) or hasattr(f, "_fields"))
            and is_importable(type(f))
            and type(f).__name__ not in LITERAL_NAMES["npx"]
        ):
            imports.append(f"from {type(f).__module__} import {type(f).__name__}")
    return "; ".join([*dict.fromkeys(imports), *([setup] if setup else []), f"{check}({', '.join(arguments)})"])


def is_importable(f: Any) -> bool:
    """Return whether `from module import name` gives this function or class."""
    name, module = getattr(f, "__name__", None), getattr(f, "__module__", None)
    return isinstance(name, str) and module != "__main__" and getattr(sys.modules.get(str(module)), name, None) is f


def literal(x: Any) -> str:
    """Return Python source for x; that of a large array loads it from a file, which this function writes."""
    if isinstance(x, Tensor):
        return f"Tensor({literal(x.data)})"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return f"{type(x).__name__}({', '.join(f'{name}={literal(v)}' for name, v in zip(x._fields, x, strict=True))})"
    if isinstance(x, (list, tuple)):
        items = ", ".join(literal(v) for v in x)
        return f"[{items}]" if isinstance(x, list) else f"({items}{',' if len(x) == 1 else ''})"
    if type(x) is dict:
        return f"{{{', '.join(f'{key!r}: {literal(v)}' for key, v in x.items())}}}"
    if not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        has_name = callable(x) and hasattr(x, "__name__") and type(x).__repr__ is type(literal).__repr__
        name = x.__name__ if has_name else repr(x)
        return name.replace("<lambda>", "function")
    host = npx.to_host(x)
    if host.size > MAX_WRITTEN:
        return f"load({saved_array(host)!r})"
    dtype = "" if host.dtype.name in ("float64", "int64", "bool") and host.size else f", dtype={host.dtype.name!r}"
    shape = f".reshape{host.shape}" if not host.size else ""
    return f"array({host.tolist()}{dtype}){shape}"


def saved_array(x: Array) -> str:
    """Save an array in the folder for temporary files, under a name that its contents determine; return the path."""
    name = hashlib.sha256(f"{x.shape} {x.dtype}".encode() + x.tobytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"gradcheck-{name}.npy"
    if not path.exists():
        npx.host.save(path, x)
    return str(path)
