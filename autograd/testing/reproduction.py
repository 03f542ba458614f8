"""Write values as Python source, and the line of Python that repeats a failing check."""

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import npx
from autograd.engine import Tensor

MAX_WRITTEN = 24  # maximum number of entries of an array that is written out; larger arrays are saved to a file
MIN_SEEDED = 8  # random arrays with at least this many entries are written as a call with their seed
SEEDS = range(10)
LITERAL_NAMES = {  # the names that `literal` uses from each module
    "numpy": ("array", "inf", "load", "nan"),
    "numpy.random": ("default_rng",),
    "npx": ("AttentionSpec", "DropoutSpec", "Key", "LabelSmoothing"),
    "autograd": ("Tensor",),
}


class Placeholder:
    """A placeholder, in code that reproduces a failure, for an object that only the caller can create."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def reproduction(check: str, function: Any, values: Sequence[Any], options: dict[str, Any], setup: str = "") -> str:
    """Return a line of Python that repeats `check(function, *values, **options)`.

    The line is self-contained if `function` can be imported; otherwise, the caller must define its name.

    Args:
        setup: statements to run before the check.
    """
    arguments = [literal(function), *map(literal, values), *(f"{k}={literal(v)}" for k, v in options.items())]
    text = f"{setup} {' '.join(arguments)}"
    names = [(module, n) for module, group in LITERAL_NAMES.items() for n in group if re.search(rf"\b{n}\b", text)]
    names.append(("autograd.testing", check))
    for f in with_bound_values(function, *values, *options.values()):
        if hasattr(f, "imports"):  # a function from another framework
            names += f.imports()
        elif is_importable(f):
            names.append((f.__module__, f.__name__))
        elif (
            (callable(f) or hasattr(f, "_fields"))
            and is_importable(type(f))
            and type(f).__name__ not in LITERAL_NAMES["npx"]
        ):
            names.append((type(f).__module__, type(f).__name__))
    modules = dict.fromkeys(module for module, _ in names)
    imports = [f"from {m} import {', '.join(dict.fromkeys(n for module, n in names if module == m))}" for m in modules]
    return "; ".join([*imports, *([setup] if setup else []), f"{check}({', '.join(arguments)})"])


def with_bound_values(*values: Any) -> Iterator[Any]:
    """Yield the values; precede each `functools.partial` by its function and its bound arguments."""
    for value in values:
        if isinstance(value, partial):
            yield from with_bound_values(value.func, *value.args, *value.keywords.values())
        yield value


def is_importable(f: Any) -> bool:
    """Return whether `from module import name` imports this function or class."""
    name = getattr(f, "__name__", None)
    module = getattr(f, "__module__", None)
    return isinstance(name, str) and module != "__main__" and getattr(sys.modules.get(str(module)), name, None) is f


def literal(x: Any) -> str:
    """Return Python source for x; large arrays are saved to a file that the source loads."""
    if isinstance(x, Tensor):
        return f"Tensor({literal(x.data)})"
    if isinstance(x, partial):
        bound = [*map(literal, x.args), *(f"{k}={literal(v)}" for k, v in x.keywords.items())]
        return f"partial({', '.join([literal(x.func), *bound])})"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return f"{type(x).__name__}({', '.join(f'{name}={literal(v)}' for name, v in zip(x._fields, x, strict=True))})"
    if isinstance(x, (list, tuple)):
        items = ", ".join(literal(v) for v in x)
        return f"[{items}]" if isinstance(x, list) else f"({items}{',' if len(x) == 1 else ''})"
    if type(x) is dict:
        return f"{{{', '.join(f'{key!r}: {literal(v)}' for key, v in x.items())}}}"
    if isinstance(x, type) or not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        return literal_of_object(x)
    host = npx.to_host(x)
    if host.size >= MIN_SEEDED and (source := seeded_source(host)):
        return source
    if host.size > MAX_WRITTEN:
        return save_array(host)
    dtype = "" if host.dtype.name in ("float64", "int64", "bool") and host.size else f", dtype={host.dtype.name!r}"
    shape = f".reshape{host.shape}" if not host.size else ""
    return f"array({host.tolist()}{dtype}){shape}"


def literal_of_object(x: Any) -> str:
    """Return the name of a function or class, or the repr of x if it is Python source, or a name to be defined."""
    if callable(x) and hasattr(x, "__name__") and (isinstance(x, type) or type(x).__repr__ is type(literal).__repr__):
        return x.__name__ if x.__name__.isidentifier() else "my_function"
    try:
        compile(repr(x), "literal", "eval")
    except (SyntaxError, ValueError):
        return "my_function" if callable(x) else f"my_{type(x).__name__.lower()}"
    return repr(x)


def seeded_source(x: npx.Array) -> str:
    """Return source for an array of standard normal numbers from a small seed; "" for other arrays."""
    if x.dtype.name == "float64":
        for seed in SEEDS:
            if npx.array_equal(npx.host.random.default_rng(seed).normal(size=x.shape), x):
                return f"default_rng({seed}).normal(size={x.shape})"
    return ""


def save_array(x: npx.Array) -> str:
    """Save an array to a file in the folder for temporary files, and return source that loads it."""
    contents = npx.host.ascontiguousarray(x)
    if x.dtype.kind not in "biuf":  # bfloat16, which NumPy's file format does not support
        return f"{save_array(x.astype('float32'))}.astype({x.dtype.name!r})"
    digest = hashlib.sha256(contents.tobytes() + f"{x.shape} {x.dtype}".encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"gradient-check-{digest}.npy"
    try:
        npx.host.save(path, contents)
    except OSError:
        return f"<array {x.shape} {x.dtype}>"
    return f"load({str(path)!r})"
