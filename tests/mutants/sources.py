"""Bugs in the source of the kernels: each mutant replaces lines of one function.

The changed function replaces the correct one wherever the latter is registered or imported. `CACHE` in a changed line
is a dict that lives as long as the patch: state wrongly retained between calls or shared by threads. This file has the
bugs in blocks and threads; `sources_rows.py`, `sources_products.py` and `sources_losses.py` have the bugs in single
kernels.
"""

import ast
import importlib
import inspect
import textwrap

from npx import random
from npx.cpu import row_blocks
from npx.dispatch import KERNELS
from tests.mutants.base import mutant

MODULES = [row_blocks, random, *(importlib.import_module(f"npx.kernels.{name}") for name in (
    "adam", "attention", "cross_entropy", "dropout", "dropout_residual_norm", "embedding", "layer_norm", "linear",
    "softmax", "top_k",
))]  # fmt: skip
(adam, attention, cross_entropy, dropout, _, embedding, layer_norm, linear, softmax, top_k) = MODULES[2:]


def edited(function, changes):
    """Return the function with replacements (old, new, old, new, ...) in its source; each old text occurs once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(old) == 1, f"{function.__qualname__}: expected {old!r} once; got {source.count(old)} of it"
        source = source.replace(old, new)
    tree = ast.parse(f"def make(CACHE):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}")
    tree.body[0].body[0].decorator_list = []
    made = {}
    exec(compile(tree, inspect.getsourcefile(function), "exec"), function.__globals__, made)
    return made["make"]({})


def source_mutant(entry, kind, what, function, *changes):
    """Register a mutant of the kernel `entry`: replacements in the source of a function that it uses."""

    @mutant(f"{entry}: {what}", "fast kernel", kind, f"kernel {entry}")
    def install(patch):
        wrong = edited(function, changes)
        for kernel in KERNELS.values():
            for versions in (kernel, kernel.grad):
                for key, version in list(versions.versions.items()) if versions else ():
                    if version is function:
                        patch.setitem(versions.versions, key, wrong)
        for place in (*MODULES, dropout.DropoutSpec):
            for name, value in list(vars(place).items()):
                if value is function:
                    patch.setattr(place, name, wrong)


def cached(key, like):
    """Return the source of an expression that creates an array once per key."""
    return f"CACHE.setdefault(({key}), {like})"


# Blocks and threads (row_blocks.py)

source_mutant(
    "adam",
    "blocks",
    "last, shorter block skipped",
    row_blocks.parallel_for,
    "starts = range(0, n, step)",
    "starts = range(0, max(step, n // step * step) if n else 0, step)",
)
source_mutant(
    "linear_cross_entropy",
    "blocks",
    "results of threads off by one position",
    row_blocks.parallel_for,
    "results[number] =",
    "results[number - 1] =",
)
source_mutant(
    "adam",
    "blocks",
    "every thread processes all blocks",
    row_blocks.parallel_for,
    "for number, i in remaining:",
    "for number, i in enumerate(starts):",
)
source_mutant(
    "dropout",
    "blocks",
    "last block skipped",
    row_blocks.parallel_for,
    "iter(enumerate(starts))",
    "iter([*enumerate(starts)][:-1])",
)
source_mutant(
    "layer_norm",
    "blocks",
    "results in completion order",
    row_blocks.parallel_for,
    "results: list[Any] = [None] * len(starts)",
    "results: list[Any] = []",
    "results[number] = run(i, min(i + step, n))",
    "results.append(run(i, min(i + step, n)))",
)
source_mutant(
    "linear",
    "blocks",
    "every panel reads the first columns",
    row_blocks.parallel_matmuls,
    "b[:, i : i + step], out",
    "b[:, : min(step, n - i)], out",
)
source_mutant(
    "linear",
    "blocks",
    "every panel writes to the first rows",
    row_blocks.parallel_matmuls,
    "out[i : i + step], add) for i in range(0, m",
    "out[: min(step, m - i)], add) for i in range(0, m",
)
