"""Finds the backward code in a module's text: what runs on the way back alone, so that a mistake there is one.

For each raw function under @differentiable that is the vjp it returns (a nested function or lambda, or one that
another function of the module makes), and each helper that is called from backward code only. Functions under
`@kernel_name.gradient`, and fast versions of these, are backward code too. Nothing is imported or run.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

Function = ast.FunctionDef | ast.Lambda
GRADIENTS, GRADIENT, VALUE = "gradients", "gradient", "value"


class Source:
    """A module's text and its tree; each node knows its place in the text and the node that it is a part of."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.data = text.encode()  # columns of a tree count bytes
        self.starts = [0, *accumulate(len(line) for line in self.data.splitlines(keepends=True))]
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends in `data`."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that a node is a part of, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


@dataclass
class Backward:
    """A function of the backward code.

    `result`: "gradients", a tuple with one for each input; "gradient", one alone; "value", something on the way.
    `operations` it belongs to; `inputs`: the names of the operation's leading arguments without a default. `root`:
    called by the engine, not by other backward code; `made_at`: where raw functions return it.
    """

    node: Function
    name: str
    result: str
    inputs: list[str]
    operations: list[str] = field(default_factory=list)
    root: bool = False
    made_at: list[ast.expr] = field(default_factory=list)


def alternatives(value: ast.expr | None) -> list[ast.expr]:
    """The values that a conditional expression chooses from; else the value."""
    if isinstance(value, ast.IfExp):
        return alternatives(value.body) + alternatives(value.orelse)
    return [] if value is None else [value]


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's own body, without those of functions and classes inside it."""
    waiting = list(node.body) if isinstance(node, ast.FunctionDef) else [node.body] if hasattr(node, "body") else []
    while waiting:
        here = waiting.pop(0)
        yield here
        if not isinstance(here, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting[:0] = list(ast.iter_child_nodes(here))


def returned(function: Function) -> list[ast.expr]:
    """What a function may return."""
    if isinstance(function, ast.Lambda):
        return alternatives(function.body)
    return [v for node in inside(function) if isinstance(node, ast.Return) for v in alternatives(node.value)]


def leading(function: Function) -> list[str]:
    """The names of the positional arguments without a default."""
    args = [*function.args.posonlyargs, *function.args.args]
    return [a.arg for a in args[: len(args) - len(function.args.defaults)]]


class BackwardCode:
    """All of a module's, in the order of its text, as `functions`; `operations`: the names of what has some."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: dict[Function, Backward] = {}
        self.definitions: dict[ast.AST, dict[str, Function]] = {}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and not isinstance(source.parents[node], ast.ClassDef):
                self.define(node, node.name, node)
            elif isinstance(node, ast.ClassDef):  # calling an object of the class calls its __call__
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "__call__":
                        self.define(node, node.name, method)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.define(node, target.id, node.value)
        self.raw: list[Function] = []
        for name, function in self.differentiable():
            self.raw.append(function)
            self.follow_raw(name, function)
        for node in self.gradient_kernels():
            self.add(node, node.name, GRADIENT, leading(node), None)
        self.operations = list(dict.fromkeys(name for b in self.found.values() for name in b.operations))
        self.add_helpers()
        self.functions = sorted(self.found.values(), key=lambda b: source.span(b.node))

    def define(self, node: ast.AST, name: str, function: Function) -> None:
        self.definitions.setdefault(self.scope(node), {})[name] = function

    def scope(self, node: ast.AST) -> ast.AST:
        """The function or module in which a node stands."""
        scopes = ast.FunctionDef, ast.Lambda, ast.Module
        return next(outer for outer in self.source.around(node) if isinstance(outer, scopes))

    def resolve(self, name: ast.expr) -> Function | None:
        """The function of this module that a name stands for where it is used."""
        if not isinstance(name, ast.Name):
            return None
        for outer in self.source.around(name):
            if isinstance(outer, (ast.FunctionDef, ast.Lambda)) and name.id in {a.arg for a in arguments(outer)}:
                return None
            if name.id in self.definitions.get(outer, {}):
                return self.definitions[outer][name.id]
        return None

    def differentiable(self) -> Iterator[tuple[str, Function]]:
        """The raw functions: those under @differentiable, or handed to it."""
        tree = self.source.tree
        imported = [a for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names]
        names = {"differentiable", *(a.asname for a in imported if a.name == "differentiable" and a.asname)}

        def marks(f: ast.expr) -> bool:
            return f.id in names if isinstance(f, ast.Name) else isinstance(f, ast.Attribute) and f.attr in names

        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(marks(d) for d in node.decorator_list):
                yield node.name, node
            elif isinstance(node, ast.Call) and marks(node.func) and node.args:
                function = node.args[0] if isinstance(node.args[0], ast.Lambda) else self.resolve(node.args[0])
                target = self.source.parents[node]
                if isinstance(function, ast.FunctionDef):
                    yield function.name, function
                elif function:
                    named = isinstance(target, ast.Assign) and isinstance(target.targets[0], ast.Name)
                    yield target.targets[0].id if named else f"lambda in line {node.lineno}", function  # type: ignore

    def gradient_kernels(self) -> Iterator[ast.FunctionDef]:
        """Functions under `@kernel_name.gradient`, and under `@such_a_gradient.fast(...)`."""
        functions = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.FunctionDef)]
        pairs = [(node, d.func if isinstance(d, ast.Call) else d) for node in functions for d in node.decorator_list]
        attributes = [(node, d) for node, d in pairs if isinstance(d, ast.Attribute)]
        gradients = {node.name for node, d in attributes if d.attr == "gradient"}
        for node, d in attributes:
            if d.attr == "gradient" or d.attr == "fast" and getattr(d.value, "id", None) in gradients:
                yield node

    def follow_raw(self, operation: str, function: Function) -> None:
        """Find the vjps in what a raw function returns: (output, vjp), or what another raw function does."""
        for value in returned(function):
            if isinstance(value, ast.Tuple) and len(value.elts) == 2:
                for vjp in alternatives(value.elts[1]):
                    self.follow(vjp, operation, leading(function), vjp)
            elif isinstance(value, ast.Call) and (other := self.resolve(value.func)) not in (None, function):
                assert other is not None
                self.follow_raw(operation, other)  # shared by operations, perhaps

    def follow(self, value: ast.expr, operation: str, inputs: list[str], made_at: ast.expr) -> None:
        """Find the vjp that an expression gives."""
        function = value if isinstance(value, ast.Lambda) else self.resolve(value)
        if function:
            self.add(function, operation, GRADIENTS, inputs, made_at)
        elif isinstance(value, ast.Call):
            maker = self.resolve(value.func)
            if maker and isinstance(self.source.parents[maker], ast.ClassDef):
                self.add(maker, operation, GRADIENTS, inputs, made_at)
            elif maker:
                for made in returned(maker):
                    self.follow(made, operation, inputs, made_at)
            else:  # partial(vjp, ...), and whatever else may be wrapped around it
                for argument in value.args:
                    if isinstance(argument, ast.Lambda) or self.resolve(argument):
                        self.follow(argument, operation, inputs, made_at)

    def add(self, node: Function, operation: str, result: str, inputs: list[str], made_at: ast.expr | None) -> None:
        backward = self.found.setdefault(node, Backward(node, operation, result, inputs, root=True))
        if operation not in backward.operations:
            backward.operations.append(operation)
        if made_at is not None and made_at not in backward.made_at:
            backward.made_at.append(made_at)

    def add_helpers(self) -> None:
        """Add the functions that are named in backward code, and nowhere outside it."""
        uses: dict[Function, list[ast.Name]] = {}
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Name) and (function := self.resolve(node)):
                uses.setdefault(function, []).append(node)
        candidates = [f for f in uses if f not in self.found and f not in self.raw]

        def named_outside(function: Function) -> bool:
            backward = {*self.found, *candidates}
            return any(not backward & set(self.source.around(name)) for name in uses[function])

        while any(map(named_outside, candidates)):  # what only calls them is outside then, too
            candidates = [f for f in candidates if not named_outside(f)]
        waiting = list(self.found.values())
        while waiting:
            caller = waiting.pop(0)
            for function in candidates:
                called = [name for name in uses[function] if caller.node in self.source.around(name)]
                if not called:
                    continue
                calls = [self.source.parents[name] for name in called]
                whole = any(call in returned(caller.node) for call in calls) and caller.result != VALUE
                known = self.found.get(function)
                helper = known or Backward(
                    function, getattr(function, "name", called[0].id), caller.result if whole else VALUE, []
                )
                new = [name for name in caller.operations if name not in helper.operations]
                if new or not known:
                    helper.operations += new
                    self.found[function] = helper
                    waiting.append(helper)


def arguments(function: Function) -> list[ast.arg]:
    """All arguments that a function names."""
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]
