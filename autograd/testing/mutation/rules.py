"""The standard mistakes in a gradient: each rule is shown a piece of backward code and gives what might stand there.

    @rule("sign")
    def signs(piece, place): ...; yield made("a + b", a=piece.left, b=piece.right)      # for a - b

`piece` is an expression or a statement (a node of Python's `ast`). A rule yields trees that stand for it, or pairs
(node, tree) where only a part changes. Indices, shapes and conditions on shapes are left alone (`numeric`): a mistake
there rarely runs at all. What no expression can say is a call of `planted`, a class in planted.py.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

KINDS = {
    "sign": "a minus lost or added",
    "factor": "twice or half the gradient, a factor or a denominator lost",
    "lost reduction": "no sum, only the first of its terms, a mean instead",
    "swapped operands": "b - a for a - b, another input's value, two gradients exchanged",
    "dropped term": "one term of a sum lost",
    "wrong axis": "another axis, a transpose or a reversal lost",
    "detached input": "no gradient for one of the inputs",
    "overwritten repeat": "= for +=: of several gradients for one place the last wins",
    "stale workspace": "what another call kept or gave",
    "changed comparison": ">= for >, a mask inverted, the branches of a choice exchanged, the least for the largest",
    "changed power": "an exponent one too small, a root or a square lost",
    "rounded": "through float32 or float16 on the way",
    "gradient written over": "the incoming gradient used as a workspace",
}
# What is done to any gradient gx that a function gives back, whose incoming one is g.
ON_A_GRADIENT = [
    ("sign", "-gx"),
    ("factor", "2 * gx"),
    ("factor", "0.5 * gx"),
    ("detached input", "None"),
    ("rounded", "planted.rounded(gx, 'float32')"),
    ("rounded", "planted.rounded(gx, 'float16')"),
    ("gradient written over", "planted.written_over(g, gx)"),
]
# Calls with no numbers in them, and those with numbers in the first place alone: what follows are shapes and orders.
WITHOUT_NUMBERS = {"arange", "empty", "empty_like", "full", "getattr", "hasattr", "isinstance", "len", "ones"}
WITHOUT_NUMBERS |= {"ones_like", "range", "type", "zeros", "zeros_like", "zip"}
NUMBERS_FIRST = {"astype", "broadcast_to", "expand_dims", "moveaxis", "repeat", "reshape", "roll", "sorted", "split"}
NUMBERS_FIRST |= {"squeeze", "sum", "mean", "max", "min", "prod", "swapaxes", "take", "tile", "transpose", "view"}
ALONG_AN_AXIS = {"sum", "mean", "max", "min", "prod", "expand_dims", "cumsum", "flip", "argmax", "argmin"}
ALONG_AN_AXIS |= {"concatenate", "stack", "sort"}
REORDERING = {"transpose", "swapaxes", "moveaxis", "flip", "argsort"}
OPPOSITE = {"max": "min", "amax": "amin", "maximum": "minimum", "argmax": "argmin"}
OPPOSITE |= {least: most for most, least in OPPOSITE.items()}
STRICTER = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt}
INVERTED = {ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
ABOUT_SHAPES = {"shape", "ndim", "size", "dtype", "itemsize"}


@dataclass
class Place:
    """Where a rule looks: `inputs`, names of the operation's arrays; `modules`: names that are modules, as np is."""

    inputs: list[str]
    modules: set[str]

    def subject(self, call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
        """x and the other positional arguments of np.f(x, ...), f(x, ...) and x.f(...) alike."""
        f = call.func
        if isinstance(f, ast.Attribute) and getattr(f.value, "id", None) not in self.modules:
            return f.value, call.args
        return (call.args[0], call.args[1:]) if call.args else (None, [])


Piece = ast.expr | ast.stmt
Change = ast.AST | tuple[Piece, ast.AST]
Rule = Callable[[ast.AST, Place], Iterator[Change]]
RULES: list[tuple[str, Rule]] = []


def rule(kind: str) -> Callable[[Rule], Rule]:
    """Enter the decorated rule as one of that kind."""

    def enter(function: Rule) -> Rule:
        RULES.append((kind, function))
        return function

    return enter


def made(template: str, **parts: ast.AST) -> ast.AST:
    """The tree of a text in which the names given stand for other trees."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return parts.get(name.id, name)

    statement = Fill().visit(ast.parse(template).body[0])
    return statement.value if isinstance(statement, ast.Expr) else statement


def called(node: ast.AST) -> str:
    """The last part of the name of what is called; "" for what is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def renamed(call: ast.Call, name: str) -> ast.Call:
    """The same call of another function or method."""
    f = call.func
    function = ast.Attribute(f.value, name) if isinstance(f, ast.Attribute) else ast.Name(name)
    return ast.Call(function, call.args, call.keywords)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def integer(node: ast.AST | None) -> int | None:
    """The value of a written whole number."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        positive = integer(node.operand)
        return None if positive is None else -positive
    value = node.value if isinstance(node, ast.Constant) else None
    return value if type(value) is int else None


def about_shapes(comparison: ast.AST) -> bool:
    """Whether it asks for shapes, lengths, kinds or None, not for numbers."""
    return any(
        getattr(part, "attr", None) in ABOUT_SHAPES
        or called(part) in WITHOUT_NUMBERS
        or (isinstance(part, ast.Constant) and (part.value is None or isinstance(part.value, (str, bool))))
        for part in ast.walk(comparison)
    )


def numeric(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """A node, and all in it whose values go into the gradient: no indices, shapes, axes, nor conditions on them."""
    if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    if isinstance(node, (ast.BinOp, ast.UnaryOp)) and any(isinstance(n, ast.FloorDiv) for n in ast.walk(node)):
        return  # it counts something
    yield node
    for name, value in ast.iter_fields(node):
        parts = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST)]
        if name in ("keywords", "slice", "iter", "annotation") or (isinstance(node, ast.For) and name == "target"):
            continue
        if name == "test":
            parts = [p for part in parts for p in ast.walk(part) if isinstance(p, ast.Compare) and not about_shapes(p)]
        if name == "args" and called(node) in WITHOUT_NUMBERS:
            continue
        if name == "args" and called(node) in NUMBERS_FIRST:
            assert isinstance(node, ast.Call)
            parts = [part for part in parts if part is place.subject(node)[0]]
        for part in parts:
            yield from numeric(part, place)


@rule("sign")
def signs(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.UnaryOp(op=ast.USub(), operand=x) if not isinstance(x, ast.Constant):
            yield x
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            yield made("a - b", a=a, b=b)
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            yield made("a + b", a=a, b=b)
        case ast.AugAssign(target=x, op=ast.Add(), value=a):
            yield made("x -= a", x=x, a=a)
        case ast.AugAssign(target=x, op=ast.Sub(), value=a):
            yield made("x += a", x=x, a=a)
        case ast.Call(args=[_, _]) if called(piece) in ("add", "subtract"):
            yield renamed(piece, {"add": "subtract", "subtract": "add"}[called(piece)])


@rule("factor")
def factors(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            yield from (x for x in (a, b) if not isinstance(x, ast.Constant))
        case ast.BinOp(left=a, op=ast.Div()) if not isinstance(a, ast.Constant):
            yield a
        case ast.AugAssign(op=ast.Mult() | ast.Div()):
            yield ast.Pass()


@rule("lost reduction")
def reductions(piece: ast.AST, place: Place) -> Iterator[Change]:
    if not isinstance(piece, ast.Call):
        return
    x, others = place.subject(piece)
    if x is None:
        return
    if called(piece) in ("unbroadcast", "sum_to", "sum_to_shape"):
        yield x
    if called(piece) in ("sum", "mean"):
        yield x
        yield renamed(piece, "mean" if called(piece) == "sum" else "sum")
        axis = integer(keyword(piece, "axis") or (others[0] if others else None))
        if axis is not None:
            first = "[0]" if getattr(keyword(piece, "keepdims"), "value", False) else "0"
            yield made(f"x.take({first}, axis={axis})", x=x)


@rule("swapped operands")
def swaps(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.BinOp(left=a, op=(ast.Sub() | ast.Div() | ast.MatMult()) as op, right=b):
            yield ast.BinOp(b, op, a)
        case ast.Call(args=[a, b]) if called(piece) in ("subtract", "divide"):
            yield ast.Call(piece.func, [b, a], piece.keywords)
    match piece:
        case ast.BinOp(left=a, op=ast.Sub() | ast.Mult() | ast.Div() | ast.MatMult(), right=b):
            for x in (a, b):  # the value of another input
                if isinstance(x, ast.Name) and x.id in place.inputs and len(place.inputs) > 1:
                    yield x, ast.Name(place.inputs[place.inputs.index(x.id) - 1])


@rule("dropped term")
def terms(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            yield a
            yield b
        case ast.BinOp(left=a, op=ast.Sub()):
            yield a
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield ast.Pass()


@rule("wrong axis")
def axes(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.Attribute(value=x, attr="T" | "mT"):
            yield x
        case ast.Subscript(value=x, slice=ast.Slice(step=step)) if integer(step) == -1:
            yield x
    if not isinstance(piece, ast.Call):
        return
    array, others = place.subject(piece)
    if array is not None and called(piece) in REORDERING:
        yield array
    positional = others and called(piece) in ALONG_AN_AXIS and isinstance(piece.func, ast.Attribute)  # not min(a, b)
    axis = keyword(piece, "axis") or (others[0] if positional else None)
    match axis:
        case None | ast.Constant(value=None):
            pass
        case ast.Tuple(elts=[first, *_]):
            yield axis, first
        case _:
            yield axis, made("-1" if integer(axis) == 0 else "0")


@rule("overwritten repeat")
def repeats(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.AugAssign(target=x, op=ast.Add(), value=a):
            yield made("x = a", x=x, a=a)
        case ast.Expr(value=ast.Call(func=ast.Attribute() as f, args=[x, i, a])) if "add" in ast.unparse(f):
            if f.attr in ("at", "add_at"):
                yield made("x[i] = a", x=x, i=i, a=a)


@rule("changed comparison")
def comparisons(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.Compare(left=a, ops=[op], comparators=[b]) if not about_shapes(piece):
            for table in (STRICTER, INVERTED):
                if type(op) in table:
                    yield ast.Compare(a, [table[type(op)]()], [b])
        case ast.UnaryOp(op=ast.Invert(), operand=x):
            yield x
        case ast.Call(args=[condition, a, b]) if called(piece) == "where":
            yield ast.Call(piece.func, [condition, b, a], piece.keywords)
        case ast.Call(func=ast.Attribute()) if called(piece) in OPPOSITE:
            yield renamed(piece, OPPOSITE[called(piece)])


@rule("changed power")
def powers(piece: ast.AST, place: Place) -> Iterator[Change]:
    match piece:
        case ast.BinOp(left=x, op=ast.Pow(), right=n):
            exponent = integer(n)
            lower = made("n - 1", n=n) if exponent is None else made(str(exponent - 1))
            yield x if exponent == 2 else made("x**n", x=x, n=lower)
        case ast.Call() if called(piece) in ("sqrt", "square"):
            under, _ = place.subject(piece)
            if under is not None:
                yield under
