"""Right answers with one small slip each: a swapped name, a missing factor, a wrong axis, two lines exchanged.

They are made from every right answer of an exercise. A wrong answer that gives the same results as one of them in every
case is described by that slip, even if nobody has thought of this wrong answer before.
"""

import ast
import contextlib
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

FILE = "<slip>"
MAX_LINES = 50_000  # executed lines of a slip, which may have made a loop endless
MAX_WIDTH = 64  # characters of a quoted expression
OPERATORS: dict[type[ast.operator], tuple[str, list[type[ast.operator]]]] = {
    ast.Add: ("+", [ast.Sub, ast.Mult]), ast.Sub: ("-", [ast.Add]), ast.Mult: ("*", [ast.Div, ast.Add]),
    ast.Div: ("/", [ast.Mult, ast.FloorDiv]), ast.FloorDiv: ("//", [ast.Div]), ast.MatMult: ("@", [ast.Mult]),
    ast.Pow: ("**", [ast.Mult]),
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
EXPRESSIONS = (ast.expr, ast.keyword, ast.comprehension)
FUNCTIONS = [{"sum", "mean", "max", "min"}, {"maximum", "minimum"}, {"var", "std"}, {"exp", "log"}]


class Slip(NamedTuple):
    """A right answer with one slip: how it is described, its code, and the names in the description."""

    text: str
    code: CodeType
    names: frozenset[str]
    rank: int  # the slip of lower rank is reported if two slips have the same results

    def module(self) -> ModuleType:
        module = ModuleType("slip")
        exec(self.code, module.__dict__)
        return module


class TooLong(Exception):
    """A slip executes too many lines."""


def limited(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and raise TooLong inside a slip that executes too many lines; only its own lines are counted."""
    executed = 0

    def count(frame: Any, event: str, arg: Any) -> Any:
        nonlocal executed
        executed += 1
        if executed > MAX_LINES:
            raise TooLong
        return count

    return traced(count, FILE, function, *args)


def types_of_names(path: Path, runs: Iterable[Callable[[], Any]]) -> dict[str, Any]:
    """Return the type that each name of a file has during some runs, or None for a name with several types."""
    types: dict[str, set[type]] = {}

    def record(frame: Any, event: str, arg: Any) -> Any:
        for name, value in frame.f_locals.items():
            types.setdefault(name, set()).add(type(value))
        return record

    for run in runs:
        traced(record, str(path), run)
    return {name: min(found, key=str) if len(found) == 1 else None for name, found in types.items()}


def traced(trace: Callable[..., Any], file: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with a trace of the lines of one file."""
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: trace if frame.f_code.co_filename == file else None)
    try:
        return function(*args)
    finally:
        sys.settrace(before)


def slips(path: Path, types: dict[str, Any]) -> list[Slip]:
    """Return the slips in a right answer, the likeliest first. Names whose `types` differ are not exchanged."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        remember_old_values(function)
    found = []
    for rank, text, names in itertools.chain.from_iterable(changes(function, types) for function in functions):
        with contextlib.suppress(SyntaxError, ValueError):  # such as an assignment to a call
            found.append(Slip(text, compile(ast.fix_missing_locations(tree), FILE, "exec"), names, rank))
    return sorted(found, key=lambda slip: slip.rank)


def remember_old_values(function: ast.FunctionDef) -> None:
    """Save each value that an assignment replaces as NAME_0, NAME_1, ..., for slips that use it afterwards."""
    replaced = Counter({argument.arg: 0 for argument in function.args.args})
    body = list[ast.stmt]()
    for statement in function.body:
        targets = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for name in sorted(targets & replaced.keys()) if isinstance(statement, ast.Assign) else ():
            body += ast.parse(f"{name}_{replaced[name]} = {name}").body
            replaced[name] += 1
        replaced.update(dict.fromkeys(targets - replaced.keys(), 0))
        body.append(statement)
    function.body = body


Changes = Iterator[tuple[int, str, frozenset[str]]]
Variants = Iterator[tuple[int, ast.expr, str]]


def changes(function: ast.FunctionDef, types: dict[str, Any]) -> Changes:
    """Change a function in place, yield the rank, description and names of the slip, and undo the change."""
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    names = sorted({n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                   | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)})  # fmt: skip
    keys = sorted({n.slice.value for n in ast.walk(function) if isinstance(n, ast.Subscript)
                   and isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str)})  # fmt: skip
    alike = {name: [n for n in names if n != name and kind_of(n, types) == kind_of(name, types)] for name in names}
    for node in [*ast.walk(function)]:
        if isinstance(node, ast.stmt) and saves_value(node):
            continue
        for field, value in ast.iter_fields(node):
            children = value if isinstance(value, list) else [value]
            if field == "body" and isinstance(node, (ast.FunctionDef, ast.For, ast.While, ast.If)):
                yield from of_statements(value)
            if field in ("args", "decorator_list", "targets") and not isinstance(node, ast.Call):
                continue
            for i, child in enumerate(children):
                if not isinstance(child, ast.expr) or is_docstring(node):
                    continue
                for rank, new, note in variants(child, node, alike, keys):
                    put(node, field, value, i, new)
                    parents[new] = node
                    shown = enclosing(new, parents)
                    yield rank, f"Your results are those of `{shown[0]}`, where {note}.", shown[1]
                    put(node, field, value, i, child)
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.For, ast.While, ast.If)):
            yield from everywhere(node, alike)


def put(node: ast.AST, field: str, value: Any, i: int, new: ast.AST) -> None:
    if isinstance(value, list):
        value[i] = new
    else:
        setattr(node, field, new)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def enclosing(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> tuple[str, frozenset[str]]:
    """Return the largest short expression or assignment around a node, as text, and its names."""
    shown, child = node, node
    while isinstance(parent := parents.get(child), (*EXPRESSIONS, ast.Assign, ast.AugAssign)):
        clear = isinstance(shown, (ast.BinOp, ast.Call, ast.Compare, ast.BoolOp, ast.IfExp))
        if clear and isinstance(parent, (ast.Tuple, ast.Lambda, ast.List, ast.Dict)):
            break
        child = parent
        if isinstance(parent, (ast.keyword, ast.Starred, ast.comprehension)):
            continue
        if len(ast.unparse(parent)) > (MAX_WIDTH if clear else 2 * MAX_WIDTH):
            break
        shown = parent
    return ast.unparse(shown), names_in(shown)


def names_in(*nodes: ast.AST) -> frozenset[str]:
    return frozenset(n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name))


def of_statements(body: list[ast.stmt]) -> Changes:
    """Leave out a statement or a condition, exchange two neighbors, or move a statement into or out of a loop."""
    simple = (ast.Assign, ast.AugAssign, ast.Expr)
    for i, statement in enumerate(body):
        following = body[i + 1] if i + 1 < len(body) else None
        text = ast.unparse(statement)
        if isinstance(statement, simple) and not is_docstring(statement) and not saves_value(statement):
            body[i] = ast.Pass()
            yield 6, f"Your results are those of a solution without `{text}`.", names_in(statement)
            if isinstance(following, simple) and not saves_value(following):
                body[i : i + 2] = [following, statement]
                exchanged = (
                    f"Your results are those of a solution that computes `{ast.unparse(following)}` before `{text}`."
                )
                yield 7, exchanged, names_in(statement, following)
                body[i + 1] = following
        if isinstance(statement, ast.AugAssign):
            body[i] = ast.copy_location(ast.Assign([statement.target], statement.value), statement)
            yield (
                2,
                f"Your results are those of `{ast.unparse(body[i])}`, where `=` should be `+=`.",
                names_in(statement),
            )
        if isinstance(statement, (ast.If, ast.While)):
            test = statement.test
            for value, note in (
                (ast.Constant(True), "without the condition"),
                (ast.Constant(False), "without the case"),
            ):
                statement.test = value
                yield 2, f"Your results are those of a solution {note} `{ast.unparse(test)}`.", names_in(test)
            statement.test = ast.UnaryOp(ast.Not(), test)
            yield 2, f"Your results are those of a solution with the opposite of `{ast.unparse(test)}`.", names_in(test)
            statement.test = test
        if isinstance(statement, (ast.For, ast.While)):
            *rest, last = inside = statement.body
            if rest:
                statement.body, body[i + 1 : i + 1] = rest, [last]
                moved = ast.unparse(last).splitlines()[0]
                yield 6, f"Your results are those of a solution with `{moved}` after the loop.", names_in(last)
                statement.body, body[i + 1 : i + 2] = inside, []
            if isinstance(following, (*simple, ast.Return)):
                statement.body, body[i + 1] = [*inside, following], ast.Pass()
                moved = ast.unparse(following)
                yield 6, f"Your results are those of a solution with `{moved}` inside the loop.", names_in(following)
                statement.body, body[i + 1] = inside, following
        body[i] = statement


def saves_value(statement: ast.stmt) -> bool:
    """Return whether `remember_old_values` made a statement."""
    return re.fullmatch(r"(\w+)_\d+ = \1", ast.unparse(statement)) is not None


def kind_of(name: str, types: dict[str, Any]) -> Any:
    return types.get(re.sub(r"_\d+$", "", name), types.get(name))


def everywhere(statement: ast.stmt, alike: dict[str, list[str]]) -> Changes:
    """Replace all occurrences of a name in a statement."""
    uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for old, others in alike.items():
        same = [n for n in uses if n.id == old]
        for new in others if len(same) > 1 else ():
            for n in same:
                n.id = new
            text = ast.unparse(statement).removeprefix("return ")
            if len(text) <= 2 * MAX_WIDTH:
                yield 5, f"Your results are those of `{text}`, where `{new}` should be `{old}`.", names_in(statement)
            for n in same:
                n.id = old


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
    """Yield slips in the order of two operations, or of a call and an operation."""
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
    """Yield slips in a call: it is missing, another function, in the wrong place, or has other arguments."""
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
                yield 3, ast.Constant(other), f"`{other}` should be `{value}`"
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
