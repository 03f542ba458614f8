"""Pictures of a graph: `python -m autograd.draw "a * b + a"` as mermaid, DOT or SVG, with the numbers of both ways.

    python -m autograd.draw "softmax(x) @ w" x=[1,2,3] w=[1,0,0] --format svg > graph.svg

From Python: `with observing(Recorder()) as seen: loss = ...; loss.backward()`, then `mermaid(boxes(seen))`. A graph of
more than 60 nodes is drawn by module: one box for each, with the number of its operations.
"""

import argparse
import ast
import math
import sys
from collections.abc import Collection
from html import escape
from typing import Any

import npx
from autograd.draw.layout import HALF, Box, Layout, Point
from autograd.engine import OPERATIONS, Tensor, observing
from autograd.observe import Recorder

MOST = 60  # boxes; beyond, modules are drawn
FORMATS = ("mermaid", "dot", "svg")


def numbers(x: Any) -> str:
    """A small array's numbers, a large one's shape."""
    x = npx.to_host(x)
    if x.size > 6:
        return " x ".join(map(str, x.shape))
    return f"{x.item():.4g}" if not x.shape else "[" + ", ".join(f"{v:.4g}" for v in x.reshape(-1).tolist()) + "]"


def boxes(seen: Recorder, names: dict[int, str] | None = None, most: int = MOST) -> list[Box]:
    """The boxes of what was seen, inputs before outputs. `names`: id of a leaf -> its name."""
    steps = [step for _, step in sorted(seen.steps.items())]
    place = {step.number: f"n{i}" for i, step in enumerate(steps)} | {n: f"leaf{-n}" for n in seen.leaves}
    if len(steps) + len(seen.leaves) > most:
        return by_module(seen)
    found = []
    for number, leaf in seen.leaves.items():
        name = (names or {}).get(id(leaf), f"leaf {-number}")
        lines = [f"{name} = {numbers(leaf.data)}"]
        if leaf.grad is not None:
            lines.append(f"gradient {numbers(leaf.grad)}")
        found.append(Box(place[number], lines, leaf=True))
    for step in steps:
        lines = [f"{step.name} = {numbers(step.value)}"]
        if step.g is not None:
            lines.append(f"gradient {numbers(step.g)}")
        how = [*step.how, *[""] * len(step.parents)]
        inputs = [(place[p], how[i]) for i, p in enumerate(step.parents) if p in place]
        found.append(Box(place[step.number], lines, inputs=inputs))
    return found


def by_module(seen: Recorder) -> list[Box]:
    """A box for each module whose operations follow each other, however often it is called."""
    found: dict[str, Box] = {}
    counts: dict[str, int] = {}
    place: dict[int, str] = {}
    for _, step in sorted(seen.steps.items()):
        layer = step.layer or "the rest"
        mine = found.setdefault(layer, Box(f"m{len(found)}", []))
        counts[layer] = counts.get(layer, 0) + 1
        place[step.number] = mine.key
        for parent in step.parents:
            other = place.get(parent)
            if other and other != mine.key and (other, "") not in mine.inputs:
                mine.inputs.append((other, ""))
    for layer, box in found.items():
        box.lines = [layer, f"{counts[layer]} operation{'s' * (counts[layer] > 1)}"]
    return list(found.values())


def mermaid(graph: list[Box]) -> str:
    """For Markdown: GitHub draws it."""
    lines = ["flowchart BT"]
    for box in graph:
        text = "<br/>".join(box.lines).replace('"', "'")
        lines.append(f'    {box.key}(["{text}"])' if box.leaf else f'    {box.key}["{text}"]')
    for box in graph:
        lines += [f"    {other} -->{f'|{how}|' if how else ''} {box.key}" for other, how in box.inputs]
    return "\n".join(lines) + "\n"


def dot(graph: list[Box]) -> str:
    """For graphviz, which is not needed here."""
    lines = ["digraph {", "    rankdir=BT"]
    for box in graph:
        text = "\\n".join(box.lines).replace('"', "'")
        lines.append(f'    {box.key} [label="{text}", shape={"ellipse" if box.leaf else "box"}]')
    for box in graph:
        lines += [f'    {other} -> {box.key} [label="{how}"]' for other, how in box.inputs]
    return "\n".join([*lines, "}"]) + "\n"


def free_place(corners: list[Point], text: str, taken: list[tuple[float, float, float]]) -> Point:
    """Where on a way's last piece a text covers no other one: its middle. `taken`: middles and half widths."""
    (x0, y0), (x1, y1) = corners[-2:]
    half = 2.8 * len(text)
    tried = [(x0 + (x1 - x0) * part, y0 + (y1 - y0) * part) for part in (0.35, 0.6, 0.85, 0.1)]
    for x, y in tried:
        if all(abs(x - a) > half + other or abs(y - b) > 11 for a, b, other in taken):
            break
    else:
        x, y = tried[0]
    taken.append((x, y, half))
    return x, y


def svg(graph: list[Box]) -> str:
    """A picture in layers, inputs at the bottom, drawn here."""
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
    said: list[str] = []
    taken: list[tuple[float, float, float]] = []
    for keys, how in layout.ways:
        corners = layout.way(keys)
        line = " L".join(f"{x:.0f} {y:.0f}" for x, y in corners)
        out.append(f'<path d="M{line}" stroke="#555" fill="none" stroke-linejoin="round" marker-end="url(#tip)"/>')
        if how:
            x, y = free_place(corners, how, taken)
            said.append(f'<text x="{x:.0f}" y="{y + 3:.0f}" text-anchor="middle" font-size="10" fill="#555" '
                        f'stroke="white" stroke-width="4" paint-order="stroke">{escape(how)}</text>')  # fmt: skip
    out += said
    for box in graph:
        x, y, wide = layout.x[box.key], layout.y[box.key], layout.width[box.key]
        fill, corner = ("#eef6ee", 18) if box.leaf else ("#eef2fa", 3)
        out.append(f'<rect x="{x - wide / 2:.0f}" y="{y - HALF:.0f}" width="{wide:.0f}" height="{2 * HALF}" '
                   f'rx="{corner}" fill="{fill}" stroke="#555"/>')  # fmt: skip
        for i, line in enumerate(box.lines):
            out.append(f'<text x="{x:.0f}" y="{y - 4 + 16 * i:.0f}" text-anchor="middle">{escape(line)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


# Expressions


class Wrong(ValueError):
    """An expression cannot be drawn: what was expected, what was found."""


# What operations raise of arguments that are none: all of it is the expression's mistake.
REFUSED = (Wrong, ValueError, TypeError, IndexError, RuntimeError, ArithmeticError, AttributeError, MemoryError)

OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.MatMult: "matmul"}
OPERATORS |= {ast.Pow: "power"}
NUMBERS = {"add": float.__add__, "subtract": float.__sub__, "multiply": float.__mul__, "divide": float.__truediv__}
NUMBERS |= {"power": lambda a, b: math.pow(a, b)}  # as Python's **, without complex numbers


def evaluate(node: ast.AST, leaves: dict[str, Tensor], known: Collection[str] = OPERATIONS) -> Any:
    """The value of an expression: arithmetic, operations of `known` names, numbers, lists. Nothing else is run."""

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
        name, both = OPERATORS[type(node.op)], (value(node.left), value(node.right))
        if any(isinstance(x, Tensor) for x in both):
            return OPERATIONS[name](*both)
        if name in NUMBERS and not any(isinstance(x, list) for x in both):
            return NUMBERS[name](*map(float, both))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
        named = {k.arg: value(k.value) for k in node.keywords if k.arg}
        given = [value(item) for item in node.args]
        if any(isinstance(x, Tensor) for x in given):
            return OPERATIONS[node.func.id](*given, **named)
    said = ", ".join(sorted(name for name in known if "." not in name))
    raise Wrong(f"expected numbers, names, + - * / @ ** and operations of names ({said}); got {ast.unparse(node)!r}")


def parsed(text: str) -> ast.AST:
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise Wrong(f"expected an expression as a * b + a; got {text!r}: {error.msg}") from error


def drawn(expression: str, values: list[str], how: str) -> str:
    """An expression's graph, values as in x=[1,2]; Wrong for what is none."""
    leaves: dict[str, Tensor] = {}
    for value in values:
        name, _, text = value.partition("=")
        if not name.isidentifier() or not text:
            raise Wrong(f"expected a value as x=3 or x=[1,2]; got {value!r}")
        leaves[name] = Tensor(npx.host.array(evaluate(parsed(text), {}), float), requires_grad=True)
    with observing(Recorder()) as seen:
        result = evaluate(parsed(expression), leaves)
        if not isinstance(result, Tensor) or result.node is None:
            raise Wrong(f"expected an expression with an operation on a name in it; got {expression!r}")
        result.backward(npx.ones_like(result.data))
    return {"mermaid": mermaid, "dot": dot, "svg": svg}[how](boxes(seen, {id(t): name for name, t in leaves.items()}))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m autograd.draw", description=__doc__.split("\n\n")[0])
    parser.add_argument("expression", help='as "a * b + a" or "softmax(x)"')
    parser.add_argument("values", nargs="*", help="of the names: a=3 x=[1,2,3]; others get 2, 3, 5, ...")
    parser.add_argument("--format", choices=FORMATS, default="mermaid")
    a = parser.parse_args(arguments)
    try:
        sys.stdout.write(drawn(a.expression, a.values, a.format))
    except REFUSED as error:
        lines = str(error).splitlines() or [type(error).__name__]
        sys.stderr.write(f"autograd.draw: {lines[0]}\n")
        return 2
    return 0
