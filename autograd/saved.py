"""What the graph keeps: the arrays that operations hold for their vjp. For the message where memory runs out.

Nothing is counted while a program runs: the nodes that are alive are found when somebody asks.
"""

import gc
from collections.abc import Iterator
from typing import Any, NamedTuple

from autograd.engine import Node, Tensor
from npx import Array


class SavedArrays(NamedTuple):
    """`number` arrays of one shape and dtype kept by operations of one name, of `nbytes` together."""

    operation: str
    number: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.operation} {self.number} x {self.shape} {self.dtype}, {self.nbytes / 2**20:,.1f} MiB"


def saved_arrays(nodes: list[Node] | None = None) -> list[SavedArrays]:
    """What all live graphs keep, the largest first; leaves (parameters) and arrays kept twice are not counted again."""
    if nodes is None:
        nodes = [x for x in gc.get_objects() if type(x) is Node]
    nodes = sorted((node for node in nodes if node.vjp is not None), key=lambda node: node.number)
    leaves = [parent.data for node in nodes for parent in node.parents if isinstance(parent, Tensor)]
    seen = {id(owner(leaf)) for leaf in leaves}
    total: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for node in nodes:
        for array in map(owner, captured(node.vjp)):
            if id(array) not in seen:
                seen.add(id(array))
                size = total.setdefault((node.name, tuple(array.shape), array.dtype.name), [0, 0])
                size[0] += 1
                size[1] += array.nbytes
    kept = [SavedArrays(name, number, shape, dtype, size) for (name, shape, dtype), (number, size) in total.items()]
    return sorted(kept, key=lambda x: -x.nbytes)


def owner(array: Array) -> Array:
    """The array whose memory a view shows."""
    base: Any = getattr(array, "base", None)
    while hasattr(base, "nbytes") and hasattr(base, "dtype"):
        array, base = base, getattr(base, "base", None)
    return array


def captured(value: Any, visited: set[int] | None = None) -> Iterator[Array]:
    """The arrays that a vjp closes over, in what kernels saved too, or those in any other value; each once."""
    visited = set() if visited is None else visited
    if id(value) in visited:
        return
    visited.add(id(value))
    if hasattr(value, "nbytes") and hasattr(value, "dtype") and not isinstance(value, type):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from captured(item, visited)
    elif isinstance(value, Tensor):
        yield value.data
    elif callable(value):
        for cell in getattr(value, "__closure__", None) or ():
            yield from captured(cell.cell_contents, visited)
