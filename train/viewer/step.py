"""Forward and backward, node by node: what the page's Step view shows. The numbers are the engine's, by an observer."""

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from autograd import Recorder, Tensor, observing
from autograd.draw.graph import EXPRESSION_ERRORS, ExpressionError, evaluate, format_array, label_position, parse
from autograd.draw.layout import Box, Layout
from autograd.engine import BackwardEvent
from autograd.neural import softmax
from train.errors import UserError, one_line

KNOWN = {
    "absolute", "concatenate", "exp", "log", "matmul", "max", "maximum", "mean", "min", "minimum", "power", "relu",
    "reshape", "sigmoid", "softmax", "sqrt", "stack", "sum", "swapaxes", "tanh", "transpose",
}  # fmt: skip
LETTERS, NODES, SIZE, VALUES = 400, 60, 64, 64  # the most of an expression, nodes, numbers of a node, of a name


class Watcher(Recorder):
    """Also keeps the source of each vjp and the sums of gradients as they grow, and stops what grows too large."""

    def __init__(self) -> None:
        super().__init__()
        self.source: dict[int, str] = {}
        self.sums: list[dict[int, Any]] = []  # before each visit: what has arrived so far, by number

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.size > SIZE or len(self.steps) >= NODES:
            raise ExpressionError(
                f"expected at most {NODES} operations, each of at most {SIZE} numbers; got more at {name}"
            )
        super().on_forward(name, args, result)
        if result.node is not None and result.node.vjp is not None:
            self.source[result.node.number] = source_of(result.node.vjp)

    def on_backward(self, event: BackwardEvent) -> None:
        now = {node.number: plain(total) for node, (total, _) in event.sums.items()}
        now[event.node.number] = plain(event.g)
        self.sums.append((self.sums[-1] if self.sums else {}) | now | self.of_leaves())
        super().on_backward(event)

    def of_leaves(self) -> dict[int, Any]:
        return {number: plain(leaf.grad) for number, leaf in self.leaves.items() if leaf.grad is not None}


def source_of(vjp: Any) -> str:
    """The lines of a vjp, without what comes before it."""
    try:
        text = textwrap.dedent(inspect.getsource(vjp)).strip()
    except OSError:
        return "not to be had"
    return text[text.index("lambda") :].removeprefix("return ") if "lambda" in text else text


def steps(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the view asks for, {"expression", "values"} or {"head": {"causal"}}; UserError for what cannot be shown."""
    leaves: dict[str, Tensor] = {}
    try:
        with np.errstate(all="ignore"), observing(Watcher()) as seen:
            result = head(leaves, **request["head"]) if "head" in request else expression(leaves, **request)
            if not isinstance(result, Tensor) or result.node is None:
                raise ExpressionError("expected an operation on a name, as in a * b + a; got none")
            result.backward(np.ones_like(result.data))
    except (*EXPRESSION_ERRORS, RecursionError) as error:
        raise UserError(one_line(error) or type(error).__name__) from None
    return told(seen, {id(leaf): name for name, leaf in leaves.items()})


def expression(leaves: dict[str, Tensor], expression: str = "", values: Any = None) -> Any:
    """The value of an expression of the names in `values`; others get 2, 3, 5, ..."""
    if not isinstance(expression, str) or not 1 <= len(expression) <= LETTERS:
        raise ExpressionError(f"expected an expression of 1 to {LETTERS} letters")
    for name, value in (values or {}).items():
        array = np.array(value, float)
        if not name.isidentifier() or array.size > VALUES or array.ndim > 3:
            raise ExpressionError(
                f"expected names with at most {VALUES} numbers each; got {name[:20]!r} with {array.size}"
            )
        leaves[name] = Tensor(array, requires_grad=True)
    return evaluate(parse(expression), leaves, KNOWN)


def head(leaves: dict[str, Tensor], causal: bool = False) -> Tensor:
    """One head of attention over 3 tokens with d_k = 2 (paper section 3.2.1), from small operations."""
    for name, rows in (
        ("q", [[1, 0], [0, 2], [1, 1]]),
        ("k", [[1, 1], [0, 1], [2, 0]]),
        ("v", [[1, 0], [0, 1], [1, -1]]),
    ):
        leaves[name] = Tensor(np.array(rows, float), requires_grad=True)
    q, k, v = leaves.values()
    scores = q @ k.transpose() * 2**-0.5
    return softmax(scores, np.tri(3, dtype=bool) if causal else None) @ v


def told(seen: Watcher, names: Mapping[int, str]) -> dict[str, Any]:
    """The graph and where its boxes stand; nodes in the order of the way forward; the order of the way back."""
    steps = [step for _, step in sorted(seen.steps.items())]
    key = {step.number: f"n{i}" for i, step in enumerate(steps)} | {n: f"leaf{-n}" for n in seen.leaves}
    nodes: list[dict[str, Any]] = []
    for number, leaf in seen.leaves.items():
        name = names.get(id(leaf), f"leaf {-number}")
        nodes.append({"key": key[number], "name": name, "leaf": True, "value": plain(leaf.data),
                      "gradient": plain(leaf.grad), "inputs": []})  # fmt: skip
    for step in steps:
        nodes.append({
            "key": key[step.number], "name": step.name, "leaf": False, "value": plain(step.value),
            "inputs": [key[parent] for parent in step.parents], "kept": step.saved_bytes,
            "source": seen.source[step.number], "gradient": plain(step.g), "gave": [plain(g) for g in step.gradients],
            "how": step.handling,
        })  # fmt: skip
    graph = [
        Box(node["key"], [node["name"], f"{format_array(np.array(node['value'], float))}"], node["leaf"],
            [(i, "") for i in node["inputs"]])
        for node in nodes
    ]  # fmt: skip
    for box in graph:
        box.lines[1] = box.lines[1][:24].ljust(16)  # so wide that the gradient has room
    layout = Layout(graph)
    ways = iter(layout.lines)  # by boxes and their inputs
    for node in nodes:
        node["x"], node["y"], node["width"] = (at[node["key"]] for at in (layout.x, layout.y, layout.width))
        node["ways"] = [layout.corners(next(ways)[0]) for _ in node["inputs"]]
        taken: list[tuple[float, float, float]] = []
        node["said"] = [
            label_position(way, how, taken) for way, how in zip(node["ways"], node.get("how", ()), strict=False)
        ]
    width, height = layout.size
    sums = [*seen.sums, (seen.sums[-1] if seen.sums else {}) | seen.of_leaves()]
    so_far = [{key[number]: g for number, g in now.items() if number in key} for now in sums]
    visited = sorted((step for step in steps if step.visit is not None), key=lambda step: step.visit or 0)
    back = [key[step.number] for step in visited]
    return {"nodes": nodes, "back": back, "sums": so_far, "width": width, "height": height}


def plain(array: Any) -> Any:
    """An array as lists of numbers; what is not finite as text, for JSON has no word for it."""
    if array is None:
        return None
    values = np.asarray(array)
    return numbered(values.tolist()) if not np.isfinite(values).all() else values.tolist()


def numbered(value: Any) -> Any:
    if isinstance(value, list):
        return [numbered(item) for item in value]
    return value if np.isfinite(value) else str(value)
