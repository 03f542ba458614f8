"""List the arrays that the graph holds for backward; the out-of-memory message shows the largest ones.

A program pays nothing for this until it calls `saved_arrays`, which finds the live nodes through the garbage collector.
"""

import gc
from collections.abc import Iterator
from typing import Any, NamedTuple

from autograd.engine import Node, Tensor
from npx import Array


class SavedArrays(NamedTuple):
    """A group of saved arrays: those of one operation with the same shape and dtype. `nbytes` is their total size."""

    operation: str
    n_arrays: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.operation} {self.n_arrays} x {self.shape} {self.dtype}, {self.nbytes / 2**20:,.1f} MiB"


def saved_arrays(nodes: list[Node] | None = None) -> list[SavedArrays]:
    """Return the arrays that `nodes` (default: all live nodes) save for backward, the largest group first.

    Leaves (parameters) are not counted. An array that several nodes save counts once, for the oldest of them.
    """
    if nodes is None:
        nodes = [x for x in gc.get_objects() if type(x) is Node]
    nodes = sorted((node for node in nodes if node.vjp is not None), key=lambda node: node.number)
    leaves = [parent.data for node in nodes for parent in node.parents if isinstance(parent, Tensor)]
    seen = {id(find_owner(leaf)) for leaf in leaves}
    totals: dict[tuple[str, tuple[int, ...], str], list[int]] = {}  # [n_arrays, nbytes]
    for node in nodes:
        for array in map(find_owner, iterate_captured_arrays(node.vjp)):
            if id(array) not in seen:
                seen.add(id(array))
                total = totals.setdefault((node.name, tuple(array.shape), array.dtype.name), [0, 0])
                total[0] += 1
                total[1] += array.nbytes
    groups = [SavedArrays(name, n, shape, dtype, size) for (name, shape, dtype), (n, size) in totals.items()]
    return sorted(groups, key=lambda x: -x.nbytes)


def find_owner(array: Array) -> Array:
    """Return the array that owns the memory of a view."""
    base: Any = getattr(array, "base", None)
    while hasattr(base, "nbytes") and hasattr(base, "dtype"):
        array, base = base, getattr(base, "base", None)
    return array


def iterate_captured_arrays(value: Any, visited: set[int] | None = None) -> Iterator[Array]:
    """Yield each array that a value contains; if the value is a vjp, the arrays that the vjp and its kernels save."""
    visited = set() if visited is None else visited
    if id(value) in visited:
        return
    visited.add(id(value))
    if hasattr(value, "nbytes") and hasattr(value, "dtype") and not isinstance(value, type):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from iterate_captured_arrays(item, visited)
    elif isinstance(value, Tensor):
        yield value.data
    elif callable(value):
        for cell in getattr(value, "__closure__", None) or ():
            yield from iterate_captured_arrays(cell.cell_contents, visited)
