"""Draw a graph as Mermaid, DOT or SVG, with the values and gradients of every node.

    python -m autograd.draw "softmax(x) @ w" x=[1,2,3] w=[1,0,0] --format svg > graph.svg

From Python: `with observing(Recorder()) as recorder: loss = ...; loss.backward()`, then `mermaid(boxes(recorder))`. A
graph of more than 60 nodes is drawn by module: each module is one box, with its number of operations.
"""

import argparse
import ast
import math
import sys
from collections.abc import Collection, Sequence
from html import escape
from typing import Any

import npx
from autograd.draw.layout import HALF, Box, Layout, Point
from autograd.engine import OPERATIONS, Tensor, observing
from autograd.observe import Recorder

MAX_BOXES = 60  # number of nodes; larger graphs are drawn by module
FORMATS = ("mermaid", "dot", "svg")


class GraphRecorder(Recorder):
    """A Recorder that a notebook shows as a picture: `with observing(GraphRecorder()) as graph: ...`, then `graph`."""

    def _repr_svg_(self) -> str:
        return svg(boxes(self))


def format_array(x: Any) -> str:
    """Return the values of a small array, or the shape of a large one."""
    x = npx.to_host(x)
    if x.size > 6:
        return " x ".join(map(str, x.shape))
    return f"{x.item():.4g}" if not x.shape else "[" + ", ".join(f"{v:.4g}" for v in x.reshape(-1).tolist()) + "]"


def boxes(recorder: Recorder, names: dict[int, str] | None = None, max_boxes: int = MAX_BOXES) -> list[Box]:
    """Return the boxes of a recorded graph, inputs before outputs. `names` maps the id of a leaf to its name."""
    records = [record for _, record in sorted(recorder.operations.items())]
    keys = {record.number: f"n{i}" for i, record in enumerate(records)} | {n: f"leaf{-n}" for n in recorder.leaves}
    if len(records) + len(recorder.leaves) > max_boxes:
        return module_boxes(recorder)
    graph = []
    for number, leaf in recorder.leaves.items():
        name = (names or {}).get(id(leaf), f"leaf {-number}")
        lines = [f"{name} = {format_array(leaf.data)}"]
        if leaf.grad is not None:
            lines.append(f"gradient {format_array(leaf.grad)}")
        graph.append(Box(keys[number], lines, leaf=True))
    for record in records:
        lines = [f"{record.name} = {format_array(record.value)}"]
        if record.g is not None:
            lines.append(f"gradient {format_array(record.g)}")
        labels = [*record.accumulation, *[""] * len(record.parents)]
        inputs = [(keys[p], labels[i]) for i, p in enumerate(record.parents) if p in keys]
        graph.append(Box(keys[record.number], lines, inputs=inputs))
    return graph


def module_boxes(recorder: Recorder) -> list[Box]:
    """Return one box for each module, however often it is called, and arrows that show how data flows."""
    modules: dict[str, Box] = {}
    counts: dict[str, int] = {}
    keys: dict[int, str] = {}
    for _, record in sorted(recorder.operations.items()):
        layer = record.layer or "other"
        box = modules.setdefault(layer, Box(f"m{len(modules)}", []))
        counts[layer] = counts.get(layer, 0) + 1
        keys[record.number] = box.key
        for parent in record.parents:
            source = keys.get(parent)
            if source and source != box.key and (source, "") not in box.inputs:
                box.inputs.append((source, ""))
    for layer, box in modules.items():
        box.lines = [layer, f"{counts[layer]} operation{'s' * (counts[layer] > 1)}"]
    return list(modules.values())


def mermaid(graph: list[Box]) -> str:
    """Return Mermaid text, which GitHub renders in Markdown."""
    lines = ["flowchart BT"]
    for box in graph:
        text = "<br/>".join(box.lines).replace('"', "'")
        lines.append(f'    {box.key}(["{text}"])' if box.leaf else f'    {box.key}["{text}"]')
    for box in graph:
        lines += [f"    {source} -->{f'|{label}|' if label else ''} {box.key}" for source, label in box.inputs]
    return "\n".join(lines) + "\n"


def dot(graph: list[Box]) -> str:
    """Return DOT text for Graphviz."""
    lines = ["digraph {", "    rankdir=BT"]
    for box in graph:
        text = "\\n".join(box.lines).replace('"', "'")
        lines.append(f'    {box.key} [label="{text}", shape={"ellipse" if box.leaf else "box"}]')
    for box in graph:
        lines += [f'    {source} -> {box.key} [label="{label}"]' for source, label in box.inputs]
    return "\n".join([*lines, "}"]) + "\n"


def label_position(corners: list[Point], text: str, occupied: list[tuple[float, float, float]]) -> Point:
    """Return the center of a label on the last segment of a line, away from other labels if possible.

    Args:
        occupied: (x, y, half width) of the labels so far; the new one is appended.
    """
    (x0, y0), (x1, y1) = corners[-2:]
    half_width = 2.8 * len(text)
    candidates = [(x0 + (x1 - x0) * t, y0 + (y1 - y0) * t) for t in (0.35, 0.6, 0.85, 0.1)]
    for x, y in candidates:
        if all(abs(x - a) > half_width + other or abs(y - b) > 11 for a, b, other in occupied):
            break
    else:
        x, y = candidates[0]
    occupied.append((x, y, half_width))
    return x, y


def svg(graph: list[Box]) -> str:
    """Return an SVG picture with the boxes in rows, inputs at the bottom."""
    layout = Layout(graph)
    width, height = layout.size
    title = f"A graph of {len(graph)} boxes, inputs at the bottom"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="12"><title>{title}</title>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
    ]
    labels: list[str] = []
    occupied: list[tuple[float, float, float]] = []
    for keys, label in layout.lines:
        corners = layout.corners(keys)
        line = " L".join(f"{x:.0f} {y:.0f}" for x, y in corners)
        out.append(f'<path d="M{line}" stroke="#555" fill="none" stroke-linejoin="round" marker-end="url(#tip)"/>')
        if label:
            x, y = label_position(corners, label, occupied)
            labels.append(f'<text x="{x:.0f}" y="{y + 3:.0f}" text-anchor="middle" font-size="10" fill="#555" '
                        f'stroke="white" stroke-width="4" paint-order="stroke">{escape(label)}</text>')  # fmt: skip
    out += labels
    for box in graph:
        x, y = layout.x[box.key], layout.y[box.key]
        box_width = layout.width[box.key]
        fill, corner = ("#eef6ee", 18) if box.leaf else ("#eef2fa", 3)
        out.append(f'<rect x="{x - box_width / 2:.0f}" y="{y - HALF:.0f}" width="{box_width:.0f}" height="{2 * HALF}" '
                   f'rx="{corner}" fill="{fill}" stroke="#555"/>')  # fmt: skip
        for i, line in enumerate(box.lines):
            out.append(f'<text x="{x:.0f}" y="{y - 4 + 16 * i:.0f}" text-anchor="middle">{escape(line)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


# Expressions


class ExpressionError(ValueError):
    """An expression that cannot be drawn."""


# Any exception that an operation raises for bad arguments is an error in the expression.
EXPRESSION_ERRORS = (
    ExpressionError,
    ValueError,
    TypeError,
    IndexError,
    RuntimeError,
    ArithmeticError,
    AttributeError,
    MemoryError,
)

OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.MatMult: "matmul"}
OPERATORS |= {ast.Pow: "power"}
ARITHMETIC = {"add": float.__add__, "subtract": float.__sub__, "multiply": float.__mul__, "divide": float.__truediv__}
ARITHMETIC |= {"power": lambda a, b: math.pow(a, b)}  # ** without complex results


def evaluate(node: ast.AST, leaves: dict[str, Tensor], known: Collection[str] = OPERATIONS) -> Any:
    """Evaluate arithmetic, calls to `known` operations, names, numbers and lists; execute nothing else.

    Names that are not in `leaves` are added with the values 2, 3, 5, ... Raises ExpressionError for any other syntax.
    """

    def value(part: ast.AST) -> Any:
        return evaluate(part, leaves, known)

    if isinstance(node, ast.Expression):
        return value(node.body)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value(item) for item in node.elts]
    if isinstance(node, ast.Name):
        if node.id not in leaves:
            leaves[node.id] = Tensor(npx.host.array([2.0, 3.0, 5.0, 7.0, 11.0][len(leaves) % 5]), requires_grad=True)
        return leaves[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        x = value(node.operand)
        return OPERATIONS["negative"](x) if isinstance(x, Tensor) else -x
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        name = OPERATORS[type(node.op)]
        operands = (value(node.left), value(node.right))
        if any(isinstance(x, Tensor) for x in operands):
            return apply(name, operands)
        if name in ARITHMETIC and not any(isinstance(x, list) for x in operands):
            return ARITHMETIC[name](*map(float, operands))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
        kwargs = {k.arg: value(k.value) for k in node.keywords if k.arg}
        args = [value(item) for item in node.args]
        if any(isinstance(x, Tensor) for x in args):
            return apply(node.func.id, args, **kwargs)
    names = ", ".join(sorted(name for name in known if "." not in name))
    expected = f"numbers, names, + - * / @ ** and operations on names ({names})"
    raise ExpressionError(f"expected {expected}; got {ast.unparse(node)!r}")


SIGNS = {"add": "+", "subtract": "−", "multiply": "*", "divide": "/", "matmul": "@"}
BINARY = {*SIGNS, "maximum", "minimum"}


def apply(name: str, operands: Sequence[Any], **options: Any) -> Any:
    """Apply an operation. Raises ExpressionError if the shapes of two operands do not fit."""
    try:
        return OPERATIONS[name](*operands, **options)
    except ValueError:
        if name not in BINARY or len(operands) != 2:
            raise
        shapes = (x.shape if isinstance(x, Tensor) else npx.host.array(x).shape for x in operands)
        a, b = (f"vector of {s[0]}" if len(s) == 1 else "×".join(map(str, s)) or "number" for s in shapes)
        rule = (
            "expected as many columns on the left as rows on the right"
            if name == "matmul"
            else "expected equal sizes, or sizes of 1"
        )
        raise ExpressionError(f"{a} {SIGNS.get(name, name)} {b} does not work for these shapes; {rule}") from None


def parse(text: str) -> ast.AST:
    """Parse an expression. Raises ExpressionError for invalid syntax."""
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ExpressionError(f"expected an expression such as a * b + a; got {text!r}: {error.msg}") from error


def draw_expression(expression: str, values: list[str], output_format: str) -> str:
    """Return the graph of an expression in one of `FORMATS`.

    Values have the form x=[1,2]. Raises ExpressionError if the expression or a value is invalid.
    """
    leaves: dict[str, Tensor] = {}
    for value in values:
        name, _, text = value.partition("=")
        if not name.isidentifier() or not text:
            raise ExpressionError(f"expected a value such as x=3 or x=[1,2]; got {value!r}")
        leaves[name] = Tensor(npx.host.array(evaluate(parse(text), {}), float), requires_grad=True)
    with observing(Recorder()) as recorder:
        result = evaluate(parse(expression), leaves)
        if not isinstance(result, Tensor) or result.node is None:
            raise ExpressionError(f"expected an operation on at least one name, such as 2 * a; got {expression!r}")
        result.backward(npx.ones_like(result.data))
    graph = boxes(recorder, {id(leaf): name for name, leaf in leaves.items()})
    return {"mermaid": mermaid, "dot": dot, "svg": svg}[output_format](graph)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m autograd.draw", description=__doc__.split("\n\n")[0])
    parser.add_argument("expression", help='such as "a * b + a" or "softmax(x)"')
    parser.add_argument("values", nargs="*", help="values of the names, such as a=3 x=[1,2,3] (default: 2, 3, 5, ...)")
    parser.add_argument("--format", choices=FORMATS, default="mermaid")
    a = parser.parse_args(arguments)
    try:
        sys.stdout.write(draw_expression(a.expression, a.values, a.format))
    except EXPRESSION_ERRORS as error:
        lines = str(error).splitlines() or [type(error).__name__]
        sys.stderr.write(f"autograd.draw: {lines[0]}\n")
        return 2
    return 0
