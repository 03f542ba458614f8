"""Slips in one expression: a missing factor, another operator or axis, exchanged operands, misplaced brackets."""

import ast
import itertools
from collections.abc import Iterator

Variants = Iterator[tuple[int, ast.expr, str]]  # for each slip, its rank, the new expression and a description
OPERATORS: dict[type[ast.operator], tuple[str, list[type[ast.operator]]]] = {
    ast.Add: ("+", [ast.Sub, ast.Mult]), ast.Sub: ("-", [ast.Add]), ast.Mult: ("*", [ast.Div, ast.Add]),
    ast.Div: ("/", [ast.Mult, ast.FloorDiv]), ast.FloorDiv: ("//", [ast.Div]), ast.MatMult: ("@", [ast.Mult]),
    ast.Pow: ("**", [ast.Mult]),
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
FUNCTIONS = [{"sum", "mean", "max", "min"}, {"maximum", "minimum"}, {"var", "std"}, {"exp", "log"}]


def variants(node: ast.expr, parent: ast.AST, alike: dict[str, list[str]], keys: list[str]) -> Variants:
    """Yield the rank, the replacement and the description of each slip in an expression."""
    text = ast.unparse(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in alike:
        for name in alike[node.id]:
            yield 2, ast.Name(name, ast.Load()), f"`{name}` should be `{text}`"
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult):
            yield 3, ast.Attribute(node, "T", ast.Load()), f"`{text}` should not be transposed"
    elif isinstance(node, ast.BinOp):
        yield from binary(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        if isinstance(node.op, ast.USub):
            yield from constant(ast.Constant(-node.operand.value), parent, keys)  # type: ignore[operator]
    elif isinstance(node, ast.UnaryOp):
        symbol = {ast.USub: "-", ast.Invert: "~", ast.Not: "not "}.get(type(node.op), "+")
        yield 1, node.operand, f"`{symbol}` is missing"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        (op,) = node.ops
        for new in COMPARISONS if type(op) in COMPARISONS else ():
            if type(op) is not new:
                changed = ast.Compare(node.left, [new()], node.comparators)
                yield 2, changed, f"`{COMPARISONS[new]}` should be `{COMPARISONS[type(op)]}`"
    elif isinstance(node, ast.Call) and not isinstance(parent, ast.Expr):
        yield from call(node)
    elif isinstance(node, ast.Constant) and not isinstance(parent, ast.UnaryOp):
        yield from constant(node, parent, keys)
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield 2, node.value, f"`{ast.unparse(node.value)}` should be transposed"
    elif isinstance(node, ast.IfExp):
        yield 1, node.body, f"the case `{ast.unparse(node.orelse)}` is missing"
        yield 1, node.orelse, f"the case `{ast.unparse(node.body)}` is missing"
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            rest = [v for v in node.values if v is not value]
            yield (
                4,
                rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest),
                f"the condition `{ast.unparse(value)}` is missing",
            )
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield 4, node.value, f"`[{ast.unparse(node.slice)}]` is missing"
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        for i, j in itertools.combinations(range(len(node.elts)), 2):
            elements = list(node.elts)
            elements[i], elements[j] = elements[j], elements[i]
            note = f"`{ast.unparse(node.elts[i])}` and `{ast.unparse(node.elts[j])}` are exchanged"
            yield 4, ast.Tuple(elements, ast.Load()), note


def binary(node: ast.BinOp) -> Variants:
    """Yield slips in an operation: an operand is missing or used twice, the operator or the brackets are wrong."""
    left, right, op = node.left, node.right, type(node.op)
    if op not in OPERATORS:
        return
    symbol, others = OPERATORS[op]
    a, b = bracketed(left), bracketed(right)
    words = {
        ast.Add: "the term", ast.Sub: "the term", ast.Mult: "the factor", ast.Div: "the division by",
        ast.MatMult: "the factor", ast.Pow: "the power",
    }.get(op, "")  # fmt: skip
    if words:
        yield 0, left, f"{words} `{b}` is missing"
    if op in (ast.Add, ast.Mult, ast.MatMult):
        yield 0, right, f"{words} `{a}` is missing"
    if op is ast.Sub:
        yield 0, ast.UnaryOp(ast.USub(), right), f"the term `{a}` is missing"
    if op is ast.Div:
        yield 0, ast.BinOp(ast.Constant(1.0), ast.Div(), right), f"the factor `{a}` is missing"
    if op in (ast.Mult, ast.Div):
        yield 3, ast.BinOp(node, op(), right), f"`{symbol} {b}` is there twice"
    if op is ast.Mult:
        yield 3, ast.BinOp(node, op(), left), f"the factor `{a}` is there twice"
    if op is ast.Pow and not isinstance(right, ast.UnaryOp):
        yield 2, ast.BinOp(left, ast.Pow(), ast.UnaryOp(ast.USub(), right)), "the power has the wrong sign"
    for other in others:
        yield 1, ast.BinOp(left, other(), right), f"`{OPERATORS[other][0]}` should be `{symbol}`"
    if op in (ast.Sub, ast.Div, ast.FloorDiv, ast.MatMult, ast.Pow):
        yield 1, ast.BinOp(right, node.op, left), f"the two sides of `{symbol}` are exchanged"
    yield from brackets(node)


def brackets(node: ast.BinOp) -> Variants:
    """Yield slips in which two operations, or a call and an operation, change their order."""
    left, right, op = node.left, node.right, node.op
    note = "the brackets are in the wrong place"
    if isinstance(left, ast.BinOp):
        yield 3, ast.BinOp(left.left, left.op, ast.BinOp(left.right, op, right)), note
        if isinstance(left.op, ast.Mult):
            yield 3, ast.BinOp(ast.BinOp(left.left, op, right), left.op, left.right), note
    if isinstance(right, ast.BinOp):
        yield 3, ast.BinOp(ast.BinOp(left, op, right.left), right.op, right.right), note
        if isinstance(right.op, ast.Mult):
            yield 3, ast.BinOp(ast.BinOp(left, op, right.right), right.op, right.left), note
    for inner, outer, on_the_left in ((left, right, True), (right, left, False)):
        if isinstance(inner, ast.Call) and inner.args and not isinstance(inner.args[0], ast.Starred):
            first = inner.args[0]
            both = ast.BinOp(first, op, outer) if on_the_left else ast.BinOp(outer, op, first)
            sign = f"{OPERATORS[type(op)][0]} {bracketed(outer)}" if on_the_left else (
                f"{bracketed(outer)} {OPERATORS[type(op)][0]}")  # fmt: skip
            new = ast.Call(inner.func, [both, *inner.args[1:]], inner.keywords)
            yield 3, new, f"`{sign}` belongs outside of `{ast.unparse(inner.func)}`"


def call(node: ast.Call) -> Variants:
    """Yield slips in a call: it is missing or misplaced, calls another function, or has other arguments."""
    name = ast.unparse(node.func)
    method = node.func if isinstance(node.func, ast.Attribute) else None
    last = method.attr if method else name
    of_module = method is not None and isinstance(method.value, ast.Name) and method.value.id in ("np", "math", "heapq")
    shown = f".{last}" if method and not of_module else name
    if method and not of_module:
        yield 2, method.value, f"`{shown}({', '.join(map(ast.unparse, node.args))})` is missing"
    elif node.args and not isinstance(node.args[0], ast.Starred):
        yield 2, node.args[0], f"`{shown}` is missing"
    for group in FUNCTIONS:
        for other in sorted(group - {last}) if last in group else ():
            function = ast.Attribute(method.value, other, ast.Load()) if method else ast.Name(other, ast.Load())
            if method or other != "mean":
                yield 2, ast.Call(function, node.args, node.keywords), f"`{other}` should be `{last}`"
    for i, keyword in enumerate(node.keywords):
        rest = node.keywords[:i] + node.keywords[i + 1 :]
        yield 3, ast.Call(node.func, node.args, rest), f"`{ast.unparse(keyword)}` is missing"
        if keyword.arg == "axis" and "keepdims=True" in ast.unparse(node):
            no_axis = [k for k in node.keywords if k.arg not in ("axis", "keepdims")]
            yield 3, ast.Call(node.func, node.args, no_axis), f"`{ast.unparse(keyword)}` is missing"
    if last in ("swapaxes", "transpose", "moveaxis"):
        for axes in itertools.permutations(range(4), len(node.args)):
            arguments: list[ast.expr] = [ast.Constant(axis) for axis in axes]
            now, then = (f"{last}({', '.join(map(ast.unparse, x))})" for x in (arguments, node.args))
            yield 2, ast.Call(node.func, arguments, []), f"`{now}` should be `{then}`"
    for i, j in itertools.combinations(range(len(node.args)), 2):
        arguments = list(node.args)
        arguments[i], arguments[j] = arguments[j], arguments[i]
        note = f"`{ast.unparse(node.args[i])}` and `{ast.unparse(node.args[j])}` are exchanged"
        yield 3, ast.Call(node.func, arguments, node.keywords), note
    first = method.value if method and not of_module else node.args[0] if node.args else None
    if isinstance(first, ast.BinOp) and type(first.op) in OPERATORS:
        for inside, outside in ((first.left, first.right), (first.right, first.left)):
            if method and not of_module:
                early = ast.Call(ast.Attribute(inside, last, ast.Load()), node.args, node.keywords)
            else:
                early = ast.Call(node.func, [inside, *node.args[1:]], node.keywords)
            both = (early, first.op, outside) if inside is first.left else (outside, first.op, early)
            yield 3, ast.BinOp(*both), f"`{ast.unparse(first)}` should be computed before `{shown}`"


def constant(node: ast.Constant, parent: ast.AST, keys: list[str]) -> Variants:
    """Yield other values of a constant."""
    value = node.value
    if isinstance(value, bool):
        yield 2, ast.Constant(not value), f"`{not value}` should be `{value}`"
    elif isinstance(value, (int, float)):
        others = [value + 1, value - 1, -value, 2 * value, value / 2] if value else [1, -1]
        for other in dict.fromkeys(others):
            if isinstance(value, float) or other == int(other):
                other = other if isinstance(value, float) else int(other)
                new = ast.parse(repr(other), mode="eval").body  # -1 is `-` and `1`
                yield 3, new, f"`{other}` should be `{value}`"
        if isinstance(parent, ast.keyword) and parent.arg == "axis":
            for axis in {0, 1, 2} - {value + 1, value - 1, -value}:
                yield 2, ast.Constant(axis), f"`axis={axis}` should be `axis={value}`"
    elif isinstance(value, str) and value in keys:
        for key in keys:
            if key != value:
                yield 2, ast.Constant(key), f"`{key}` should be `{value}`"


def bracketed(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) else text
