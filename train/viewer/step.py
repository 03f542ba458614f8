"""Data of the page's Step view: forward and backward, node by node, recorded by an observer of the engine."""

import inspect
import reprlib
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from autograd import Recorder, Tensor, observing
from autograd.draw.graph import EXPRESSION_ERRORS, ExpressionError, evaluate, format_array, parse
from autograd.draw.layout import Box, Layout
from autograd.engine import BackwardEvent
from autograd.neural import softmax
from autograd.operations import where
from train.errors import UserError, one_line
from train.viewer.explanations import operation_formulas

ALLOWED_FUNCTIONS = {
    "absolute", "concatenate", "exp", "log", "matmul", "max", "maximum", "mean", "min", "minimum", "power", "relu",
    "reshape", "sigmoid", "softmax", "sqrt", "stack", "sum", "swapaxes", "tanh", "transpose",
}  # fmt: skip
ROW = 88  # distance between the centers of the graph's rows; a box is 52 high
# Limits: characters of an expression, nodes, numbers per node and per variable.
MAX_CHARACTERS, MAX_NODES, MAX_SIZE, MAX_VALUES = 400, 60, 64, 64


class StepRecorder(Recorder):
    """A Recorder that also records the source code of each vjp and the gradient sums, and rejects large graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.source: dict[int, str] = {}
        self.inputs: dict[int, list[int | str]] = {}  # maps a node's number to the `input_of` values of its inputs
        self.sums: list[dict[int, Any]] = []  # for each visited node, the gradients summed until then, by node number

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.size > MAX_SIZE or len(self.operations) >= MAX_NODES:
            raise ExpressionError(
                f"expected at most {MAX_NODES} operations of at most {MAX_SIZE} numbers each; got more at {name}"
            )
        super().on_forward(name, args, result)
        if result.node is not None:
            operands = args[1:] if name == "where" else args
            self.inputs[result.node.number] = [self.input_of(operand) for operand in operands]
        if result.node is not None and result.node.vjp is not None:
            self.source[result.node.number] = source_of(result.node.vjp)

    def input_of(self, operand: Any) -> int | str:
        """Return the number of a node or a leaf, or the text of a constant."""
        if isinstance(operand, Tensor) and operand.requires_grad:
            return operand.node.number if operand.node is not None else self.leaf_number(operand)
        text = str(operand) if operand is None else format_array(np.asarray(getattr(operand, "data", operand)))
        text = text.replace("-", "−").replace("inf", "∞")
        return f"({text})" if text.startswith("−") else text

    def on_backward(self, event: BackwardEvent) -> None:
        gradients = {node.number: to_json(total.array) for node, total in event.sums.items()}
        gradients[event.node.number] = to_json(event.g)
        self.sums.append((self.sums[-1] if self.sums else {}) | gradients | self.leaf_gradients())
        super().on_backward(event)

    def leaf_gradients(self) -> dict[int, Any]:
        return {number: to_json(leaf.grad) for number, leaf in self.leaves.items() if leaf.grad is not None}


def source_of(vjp: Any) -> str:
    """Return the source lines of a vjp."""
    try:
        text = textwrap.dedent(inspect.getsource(vjp)).strip()
    except OSError:
        return "source not available"
    return text[text.index("lambda") :].removeprefix("return ") if "lambda" in text else text


def steps(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request, {"expression", "values"} or {"head": {"causal"}}; raise UserError if it cannot be shown."""
    leaves: dict[str, Tensor] = {}
    titles: dict[int, str] = {}
    try:
        with np.errstate(all="ignore"), observing(StepRecorder()) as recorder:
            if "head" in request:
                options = checked_options(request["head"], "head", {"causal"})
                result = compute_head(leaves, titles, options.get("causal", False))
            else:
                options = checked_options(request, "request", {"expression", "values"})
                result = evaluate_expression(leaves, **options)
            if not isinstance(result, Tensor) or result.node is None:
                raise ExpressionError("expected an operation on a variable, as in a * b + a; got a constant")
            result.backward(np.ones_like(result.data))
    except (*EXPRESSION_ERRORS, RecursionError) as error:
        raise UserError(one_line(error) or type(error).__name__) from None
    return describe(recorder, {id(leaf): name for name, leaf in leaves.items()}, titles)


def checked_options(value: Any, name: str, allowed: set[str]) -> Mapping[str, Any]:
    """Return the options of a request. Raises ExpressionError for anything but an object with known names."""
    if not isinstance(value, dict) or not allowed.issuperset(value):
        raise ExpressionError(
            f"{name}: expected an object with only {' and '.join(sorted(allowed))}; got {reprlib.repr(value)}"
        )
    return value


def evaluate_expression(leaves: dict[str, Tensor], expression: str = "", values: Any = None) -> Any:
    """Evaluate an expression of the variables in `values`. Raises ExpressionError if a variable has no value."""
    if not isinstance(expression, str) or not 1 <= len(expression) <= MAX_CHARACTERS:
        raise ExpressionError(
            f"expected an expression of 1 to {MAX_CHARACTERS} characters; got {reprlib.repr(expression)}"
        )
    if not isinstance(values, dict | None):
        raise ExpressionError(f'values: expected an object such as {{"a": 2}}; got {reprlib.repr(values)}')
    for name, value in (values or {}).items():
        try:
            array = np.array(value, float)
        except (TypeError, ValueError):
            raise ExpressionError(
                f"{name[:20]}: expected a number or equally long lists of numbers; got {reprlib.repr(value)}; "
                "try 2 or [1, 2]"
            ) from None
        if not name.isidentifier() or array.size > MAX_VALUES or array.ndim > 3:
            raise ExpressionError(
                f"expected variables with at most {MAX_VALUES} numbers each; got {name[:20]!r} with {array.size}"
            )
        leaves[name] = Tensor(array, requires_grad=True)
    result = evaluate(parse(expression), leaves, ALLOWED_FUNCTIONS)
    if missing := [name for name in leaves if name not in (values or {})]:
        raise ExpressionError(f"values: {missing[0][:20]} is missing; try {missing[0][:20]} = 2")
    return result


def compute_head(leaves: dict[str, Tensor], titles: dict[int, str], causal: bool = False) -> Tensor:
    """Compute one attention head over 3 tokens with d_k = 2 (paper section 3.2.1) from elementary operations."""
    for name, rows in (
        ("q", [[1, 0], [0, 2], [1, 1]]),
        ("k", [[1, 1], [0, 1], [2, 0]]),
        ("v", [[1, 0], [0, 1], [1, -1]]),
    ):
        leaves[name] = Tensor(np.array(rows, float), requires_grad=True)
    q, k, v = leaves.values()

    def named(title: str, x: Tensor) -> Tensor:
        assert x.node is not None
        titles[x.node.number] = title
        return x

    scores = named("scores: matmul q kᵀ", q @ named("kᵀ: transpose", k.transpose()))
    scaled = named("scaled: multiply by 1/√2", scores * 2**-0.5)
    if causal:
        scaled = named("mask: where, else −∞", where(np.tri(3, dtype=bool), scaled, Tensor(np.array(-np.inf))))
    return named("output: matmul weights v", named("weights: softmax", softmax(scaled)) @ v)


def describe(recorder: StepRecorder, names: Mapping[int, str], titles: Mapping[int, str]) -> dict[str, Any]:
    """Return the graph with its layout: nodes in forward order, and the order of the backward pass.

    Args:
        names: names of leaves, by id.
        titles: titles of nodes, by number; other nodes are named after their operation, with a number if it occurs
            several times. In formulas, the part of a title after a colon is omitted.
    """
    steps = [step for _, step in sorted(recorder.operations.items())]
    key = {step.number: f"n{i}" for i, step in enumerate(steps)} | {n: f"leaf{-n}" for n in recorder.leaves}
    counts = Counter(step.name for step in steps)
    nth: Counter[str] = Counter()
    shapes = {number: x.data.shape for number, x in recorder.leaves.items()} | {s.number: s.value.shape for s in steps}
    nodes: list[dict[str, Any]] = []
    for number, leaf in recorder.leaves.items():
        name = names.get(id(leaf), f"leaf {-number}")
        nodes.append({"key": key[number], "name": name, "leaf": True, "value": to_json(leaf.data),
                      "gradient": to_json(leaf.grad), "inputs": []})  # fmt: skip
    symbols = {number: names.get(id(leaf), f"leaf {-number}") for number, leaf in recorder.leaves.items()}
    for step in steps:
        nth[step.name] += 1
        title = f"{step.name} {nth[step.name]}" if counts[step.name] > 1 else step.name
        title = titles.get(step.number, title)
        symbols[step.number] = title.partition(":")[0].replace(" ", "_")
        inputs = [operand if isinstance(operand, str) else symbols[operand] for operand in recorder.inputs[step.number]]
        nodes.append({
            "key": key[step.number], "name": title, "leaf": False,
            "value": to_json(step.value),
            "inputs": [key[parent] for parent in step.parents], "saved": step.saved_bytes,
            "formula": operation_formulas(step.name, inputs, any(shapes[p] != step.value.shape for p in step.parents)),
            "source": recorder.source[step.number], "gradient": to_json(step.g),
            "returned": [to_json(g) for g in step.gradients], "accumulation": step.accumulation,
        })  # fmt: skip
    graph = [Box(node["key"], box_lines(node), node["leaf"], [(i, "") for i in node["inputs"]]) for node in nodes]
    layout = Layout(graph, ROW)
    edges = iter(layout.lines)  # one line for each input of each box, in order
    for node in nodes:
        node["x"], node["y"], node["width"] = (values[node["key"]] for values in (layout.x, layout.y, layout.width))
        node["edges"] = [layout.corners(next(edges)[0]) for _ in node["inputs"]]
    width, height = layout.size
    sums = [*recorder.sums, (recorder.sums[-1] if recorder.sums else {}) | recorder.leaf_gradients()]
    so_far = [{key[number]: g for number, g in gradients.items() if number in key} for gradients in sums]
    visited = sorted(
        (step for step in steps if step.backward_index is not None), key=lambda step: step.backward_index or 0
    )
    backward_order = [key[step.number] for step in visited]
    return {"nodes": nodes, "backward_order": backward_order, "sums": so_far, "width": width, "height": height}


def box_lines(node: Mapping[str, Any]) -> list[str]:
    """Return lines that determine the width of a node's box: its name, and its value (blank for a matrix)."""
    value = np.array(node["value"], float)
    return [node["name"], (format_array(value)[:24] if value.ndim < 2 else "").ljust(16)]  # room for the gradient


def to_json(array: Any) -> Any:
    """Convert an array to nested lists; non-finite numbers become strings because JSON cannot represent them."""
    if array is None:
        return None
    values = np.asarray(array)
    return strings_for_nonfinite(values.tolist()) if not np.isfinite(values).all() else values.tolist()


def strings_for_nonfinite(value: Any) -> Any:
    if isinstance(value, list):
        return [strings_for_nonfinite(item) for item in value]
    return value if np.isfinite(value) else str(value)
