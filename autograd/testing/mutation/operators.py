"""The mutation operators: each operator takes a node of the backward code and yields replacements.

    @mutation_operator("sign")
    def signs(node, context):
        yield template("a + b", a=node.left, b=node.right)  # if node is a - b

A node is an expression or a statement of Python's `ast`. An operator yields trees that replace the node, or pairs
(inner node, tree) that replace a part of it. Indices, shapes and conditions on shapes are not mutated (`value_nodes`):
such mutants usually crash. Mutations that cannot be written as an expression call a method of `planted` in planted.py.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

KINDS = {
    "sign": "a minus sign added or removed",
    "factor": "the gradient doubled or halved, a factor or denominator removed",
    "lost reduction": "a sum removed, replaced by its first term or by a mean",
    "swapped operands": "b - a for a - b, the value of another input, two gradients swapped",
    "dropped term": "one term of a sum removed",
    "wrong axis": "another axis, a transpose or a reversal removed",
    "detached input": "no gradient for one of the inputs",
    "overwritten repeat": "= for +=, so that the last of several gradients for one entry wins",
    "stale workspace": "a value that another call saved or returned",
    "changed comparison": ">= for >, an inverted mask, swapped branches, min for max",
    "changed power": "an exponent decreased by one, a root or a square removed",
    "rounded": "an intermediate value rounded to float32 or float16",
    "gradient overwritten": "the incoming gradient used as a workspace",
}
# Mutations of any returned gradient gx of a function with incoming gradient g.
ON_A_GRADIENT = [
    ("sign", "-gx"),
    ("factor", "2 * gx"),
    ("factor", "0.5 * gx"),
    ("detached input", "None"),
    ("rounded", "planted.rounded(gx, 'float32')"),
    ("rounded", "planted.rounded(gx, 'float16')"),
    ("gradient overwritten", "planted.overwritten(g, gx)"),
]
# The arguments of the functions in WITHOUT_NUMBERS are not mutated. For the functions in NUMBERS_FIRST, only the first
# argument is mutated, because the others are shapes, axes or dtypes, not values.
WITHOUT_NUMBERS = {"arange", "empty", "empty_like", "full", "getattr", "hasattr", "isinstance", "len", "ones"}
WITHOUT_NUMBERS |= {"ones_like", "range", "type", "zeros", "zeros_like", "zip"}
NUMBERS_FIRST = {"astype", "broadcast_to", "expand_dims", "moveaxis", "repeat", "reshape", "roll", "sorted", "split"}
NUMBERS_FIRST |= {"squeeze", "sum", "mean", "max", "min", "prod", "swapaxes", "take", "tile", "transpose", "view"}
ALONG_AN_AXIS = {"sum", "mean", "max", "min", "prod", "expand_dims", "cumsum", "flip", "argmax", "argmin"}
ALONG_AN_AXIS |= {"concatenate", "stack", "sort"}
REORDERING = {"transpose", "swapaxes", "moveaxis", "flip", "argsort", "permute", "t"}
OPPOSITE = {"max": "min", "amax": "amin", "maximum": "minimum", "argmax": "argmin"}
OPPOSITE |= {minimum: maximum for maximum, minimum in OPPOSITE.items()}
STRICTER = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt}
INVERTED = {ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SHAPE_ATTRIBUTES = {"shape", "ndim", "size", "dtype", "itemsize"}


@dataclass
class Context:
    """The context of a node: the names of the operation's `inputs`, and names that refer to `modules`, such as np."""

    inputs: list[str]
    modules: set[str]

    def subject(self, call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
        """Return x and the other positional arguments of np.f(x, ...), f(x, ...) or x.f(...)."""
        f = call.func
        if isinstance(f, ast.Attribute) and getattr(f.value, "id", None) not in self.modules:
            return f.value, call.args
        return (call.args[0], call.args[1:]) if call.args else (None, [])


Node = ast.expr | ast.stmt
Change = ast.AST | tuple[Node, ast.AST]
MutationOperator = Callable[[ast.AST, Context], Iterator[Change]]
MUTATION_OPERATORS: list[tuple[str, MutationOperator]] = []


def mutation_operator(kind: str) -> Callable[[MutationOperator], MutationOperator]:
    """Register the decorated operator under a kind."""

    def register(function: MutationOperator) -> MutationOperator:
        MUTATION_OPERATORS.append((kind, function))
        return function

    return register


def template(text: str, **parts: ast.AST) -> ast.AST:
    """Parse an expression or statement and replace the names in `parts` by trees."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return parts.get(name.id, name)

    statement = Fill().visit(ast.parse(text).body[0])
    return statement.value if isinstance(statement, ast.Expr) else statement


def called_name(node: ast.AST) -> str:
    """Return the last part of the name of the called function; "" if the node is not a call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def renamed(call: ast.Call, name: str) -> ast.Call:
    """Return the same call with another function or method name."""
    f = call.func
    function = ast.Attribute(f.value, name) if isinstance(f, ast.Attribute) else ast.Name(name)
    return ast.Call(function, call.args, call.keywords)


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """Return the value of a keyword argument. Its name, one of `names`, depends on the framework."""
    return next((k.value for k in call.keywords if k.arg in names), None)


def integer(node: ast.AST | None) -> int | None:
    """Return the value of an integer literal, else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        positive = integer(node.operand)
        return None if positive is None else -positive
    value = node.value if isinstance(node, ast.Constant) else None
    return value if type(value) is int else None


def involves_shapes(comparison: ast.AST) -> bool:
    """Return whether a comparison involves shapes, lengths, types or None instead of numbers."""
    return any(
        getattr(part, "attr", None) in SHAPE_ATTRIBUTES
        or called_name(part) in WITHOUT_NUMBERS
        or (isinstance(part, ast.Constant) and (part.value is None or isinstance(part.value, (str, bool))))
        for part in ast.walk(comparison)
    )


def value_nodes(node: ast.AST, context: Context) -> Iterator[ast.AST]:
    """Yield the node and those of its descendants that affect values.

    Indices, shapes, axes and conditions on them are left out.
    """
    if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    if isinstance(node, (ast.BinOp, ast.UnaryOp)) and any(isinstance(n, ast.FloorDiv) for n in ast.walk(node)):
        return  # a count
    yield node
    for name, value in ast.iter_fields(node):
        parts = [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST)]
        if name in ("keywords", "slice", "iter", "annotation") or (isinstance(node, ast.For) and name == "target"):
            continue
        if name == "test":
            parts = [
                p for part in parts for p in ast.walk(part) if isinstance(p, ast.Compare) and not involves_shapes(p)
            ]
        if name == "args" and called_name(node) in WITHOUT_NUMBERS:
            continue
        if name == "args" and called_name(node) in NUMBERS_FIRST:
            assert isinstance(node, ast.Call)
            parts = [part for part in parts if part is context.subject(node)[0]]
        for part in parts:
            yield from value_nodes(part, context)


@mutation_operator("sign")
def signs(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=x) if not isinstance(x, ast.Constant):
            yield x
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            yield template("a - b", a=a, b=b)
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            yield template("a + b", a=a, b=b)
        case ast.AugAssign(target=x, op=ast.Add(), value=a):
            yield template("x -= a", x=x, a=a)
        case ast.AugAssign(target=x, op=ast.Sub(), value=a):
            yield template("x += a", x=x, a=a)
        case ast.Call(args=[_, _]) if called_name(node) in ("add", "subtract"):
            yield renamed(node, {"add": "subtract", "subtract": "add"}[called_name(node)])


@mutation_operator("factor")
def factors(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            yield from (x for x in (a, b) if not isinstance(x, ast.Constant))
        case ast.BinOp(left=a, op=ast.Div()) if not isinstance(a, ast.Constant):
            yield a
        case ast.AugAssign(op=ast.Mult() | ast.Div()):
            yield ast.Pass()


@mutation_operator("lost reduction")
def reductions(node: ast.AST, context: Context) -> Iterator[Change]:
    if not isinstance(node, ast.Call):
        return
    x, others = context.subject(node)
    if x is None:
        return
    if called_name(node) in ("unbroadcast", "sum_to", "sum_to_shape", "sum_to_size"):
        yield x
    if called_name(node) in ("sum", "mean"):
        yield x
        yield renamed(node, "mean" if called_name(node) == "sum" else "sum")
        axis = integer(keyword(node, "axis", "dim") or (others[0] if others else None))
        if axis is not None:
            keeps = getattr(keyword(node, "keepdims", "keepdim"), "value", False)
            if keyword(node, "dim", "keepdim"):  # PyTorch's names
                yield template(f"x.narrow({axis}, 0, 1)" if keeps else f"x.select({axis}, 0)", x=x)
            else:
                yield template(f"x.take({'[0]' if keeps else '0'}, axis={axis})", x=x)


@mutation_operator("swapped operands")
def swaps(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.BinOp(left=a, op=(ast.Sub() | ast.Div() | ast.MatMult()) as op, right=b):
            yield ast.BinOp(b, op, a)
        case ast.Call(args=[a, b]) if called_name(node) in ("subtract", "divide"):
            yield ast.Call(node.func, [b, a], node.keywords)
    match node:
        case ast.BinOp(left=a, op=ast.Sub() | ast.Mult() | ast.Div() | ast.MatMult(), right=b):
            for x in (a, b):  # the value of another input
                if isinstance(x, ast.Name) and x.id in context.inputs and len(context.inputs) > 1:
                    yield x, ast.Name(context.inputs[context.inputs.index(x.id) - 1])


@mutation_operator("dropped term")
def terms(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            yield a
            yield b
        case ast.BinOp(left=a, op=ast.Sub()):
            yield a
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield ast.Pass()


@mutation_operator("wrong axis")
def axes(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.Attribute(value=x, attr="T" | "mT"):
            yield x
        case ast.Subscript(value=x, slice=ast.Slice(step=step)) if integer(step) == -1:
            yield x
    if not isinstance(node, ast.Call):
        return
    array, others = context.subject(node)
    if array is not None and called_name(node) in REORDERING:
        yield array
    positional = others and called_name(node) in ALONG_AN_AXIS and isinstance(node.func, ast.Attribute)  # not min(a, b)
    axis = keyword(node, "axis", "dim") or (others[0] if positional else None)
    match axis:
        case None | ast.Constant(value=None):
            pass
        case ast.Tuple(elts=[first, *_]):
            yield axis, first
        case _:
            yield axis, template("-1" if integer(axis) == 0 else "0")


@mutation_operator("overwritten repeat")
def repeats(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.AugAssign(target=x, op=ast.Add(), value=a):
            yield template("x = a", x=x, a=a)
        case ast.Expr(value=ast.Call(func=ast.Attribute() as f, args=[x, i, a])) if "add" in ast.unparse(f):
            if f.attr in ("at", "add_at"):
                yield template("x[i] = a", x=x, i=i, a=a)
        case ast.Call(func=ast.Attribute(value=ast.Subscript(value=ast.Attribute(attr="at")), attr="add")):  # JAX
            yield renamed(node, "set")
        case ast.Call(func=ast.Attribute(attr="index_add_" | "scatter_add_" as name)):  # PyTorch
            yield renamed(node, {"index_add_": "index_copy_", "scatter_add_": "scatter_"}[name])


@mutation_operator("changed comparison")
def comparisons(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.Compare(left=a, ops=[op], comparators=[b]) if not involves_shapes(node):
            for table in (STRICTER, INVERTED):
                if type(op) in table:
                    yield ast.Compare(a, [table[type(op)]()], [b])
        case ast.UnaryOp(op=ast.Invert(), operand=x):
            yield x
        case ast.Call(args=[condition, a, b]) if called_name(node) == "where":
            yield ast.Call(node.func, [condition, b, a], node.keywords)
        case ast.Call(func=ast.Attribute()) if called_name(node) in OPPOSITE:
            yield renamed(node, OPPOSITE[called_name(node)])


@mutation_operator("changed power")
def powers(node: ast.AST, context: Context) -> Iterator[Change]:
    match node:
        case ast.BinOp(left=x, op=ast.Pow(), right=n):
            exponent = integer(n)
            lower = template("n - 1", n=n) if exponent is None else template(str(exponent - 1))
            yield x if exponent == 2 else template("x**n", x=x, n=lower)
        case ast.Call() if called_name(node) in ("sqrt", "square"):
            under, _ = context.subject(node)
            if under is not None:
                yield under
