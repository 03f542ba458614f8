"""Find the backward code of a module: code that runs only in the backward pass, where any change is a bug.

Backward code is the vjp that a function decorated with @differentiable returns: a nested function, a lambda, or the
result of another function of the module. A helper that only backward code calls is also backward code, as are functions
under `@kernel_name.define_gradient` and their fast versions. In other frameworks, backward code is the `backward` of a
`torch.autograd.Function`, the second rule that `f.defvjp` receives, and `f_backward` next to `f_forward` or `f`. The
module is neither imported nor run.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

Function = ast.FunctionDef | ast.Lambda
PER_INPUT, SINGLE, INTERMEDIATE = "gradient per input", "single gradient", "intermediate value"


class Source:
    """The source of a module and its syntax tree, with the position and the parent of each node."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.data = text.encode()  # column offsets in a syntax tree count bytes
        self.starts = [0, *accumulate(len(line) for line in self.data.splitlines(keepends=True))]
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the start and end of a node in `data`."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the ancestors of a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


@dataclass
class Backward:
    """A function of the backward code.

    Attributes:
        result: what it returns: PER_INPUT (a tuple of gradients), SINGLE (a gradient) or INTERMEDIATE (another value).
        inputs: the names of the operation's leading arguments without defaults.
        operations: the operations that it belongs to.
        root: whether code outside of the backward code, such as the engine, calls the function.
        returned_at: expressions with which array functions return the function, as their vjp.
        g: which argument of the function is the incoming gradient, counted from 0.
    """

    node: Function
    name: str
    result: str
    inputs: list[str]
    operations: list[str] = field(default_factory=list)
    root: bool = False
    returned_at: list[ast.expr] = field(default_factory=list)
    g: int = 0


def alternatives(value: ast.expr | None) -> list[ast.expr]:
    """Return the possible values of an expression: the branches if it is conditional."""
    if isinstance(value, ast.IfExp):
        return alternatives(value.body) + alternatives(value.orelse)
    return [] if value is None else [value]


def body_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, excluding nested functions and classes."""
    queue = list(node.body) if isinstance(node, ast.FunctionDef) else [node.body] if hasattr(node, "body") else []
    while queue:
        child = queue.pop(0)
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            queue[:0] = list(ast.iter_child_nodes(child))


def returned_values(function: Function) -> list[ast.expr]:
    """Return the expressions that a function may return."""
    if isinstance(function, ast.Lambda):
        return alternatives(function.body)
    return [v for node in body_nodes(function) if isinstance(node, ast.Return) for v in alternatives(node.value)]


def leading_parameters(function: Function) -> list[str]:
    """Return the names of the positional arguments without a default."""
    args = [*function.args.posonlyargs, *function.args.args]
    return [a.arg for a in args[: len(args) - len(function.args.defaults)]]


class BackwardCode:
    """The backward code of a module, as far as it has been found.

    Attributes:
        backward: the functions of the backward code.
        definitions: for the module and for each function, a dictionary from names to the functions defined there.
        array_functions: the functions on arrays that return an output and its vjp.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.backward: dict[Function, Backward] = {}
        self.definitions: dict[ast.AST, dict[str, Function]] = {}
        self.array_functions: list[Function] = []
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

    @property
    def functions(self) -> list[Backward]:
        """The functions of the backward code in source order."""
        return sorted(self.backward.values(), key=lambda b: self.source.span(b.node))

    def define(self, node: ast.AST, name: str, function: Function) -> None:
        self.definitions.setdefault(self.scope(node), {})[name] = function

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function or module that contains a node."""
        scopes = ast.FunctionDef, ast.Lambda, ast.Module
        return next(outer for outer in self.source.ancestors(node) if isinstance(outer, scopes))

    def resolve(self, name: ast.expr) -> Function | None:
        """Return the function of this module that a name refers to at its position."""
        if not isinstance(name, ast.Name):
            return None
        for outer in self.source.ancestors(name):
            if isinstance(outer, (ast.FunctionDef, ast.Lambda)) and name.id in {a.arg for a in arguments(outer)}:
                return None
            if name.id in self.definitions.get(outer, {}):
                return self.definitions[outer][name.id]
        return None

    def differentiable(self) -> Iterator[tuple[str, Function]]:
        """Yield (name, node) for each function on arrays that is decorated with @differentiable or passed to it."""
        tree = self.source.tree
        imported = [a for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names]
        names = {"differentiable", *(a.asname for a in imported if a.name == "differentiable" and a.asname)}

        def is_differentiable(f: ast.expr) -> bool:
            return f.id in names if isinstance(f, ast.Name) else isinstance(f, ast.Attribute) and f.attr in names

        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(is_differentiable(d) for d in node.decorator_list):
                yield node.name, node
            elif isinstance(node, ast.Call) and is_differentiable(node.func) and node.args:
                function = node.args[0] if isinstance(node.args[0], ast.Lambda) else self.resolve(node.args[0])
                target = self.source.parents[node]
                if isinstance(function, ast.FunctionDef):
                    yield function.name, function
                elif function:
                    named = isinstance(target, ast.Assign) and isinstance(target.targets[0], ast.Name)
                    yield target.targets[0].id if named else f"lambda in line {node.lineno}", function  # type: ignore

    def gradient_kernels(self) -> Iterator[ast.FunctionDef]:
        """Yield the functions under `@kernel_name.define_gradient` and their fast versions, `@gradient_name.fast`."""
        functions = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.FunctionDef)]
        pairs = [(node, d.func if isinstance(d, ast.Call) else d) for node in functions for d in node.decorator_list]
        attributes = [(node, d) for node, d in pairs if isinstance(d, ast.Attribute)]
        gradients = {node.name for node, d in attributes if d.attr == "define_gradient"}
        for node, d in attributes:
            if d.attr == "define_gradient" or d.attr == "fast" and getattr(d.value, "id", None) in gradients:
                yield node

    def torch_functions(self) -> Iterator[tuple[str, Function, list[str], int]]:
        """Yield (name, backward, inputs, position of the incoming gradient) for each `torch.autograd.Function`."""
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.ClassDef) and is_torch_function(node):
                methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
                if "backward" in methods:
                    skipped = 0 if "setup_context" in methods else 1  # ctx
                    inputs = leading_parameters(methods["forward"])[skipped:] if "forward" in methods else []
                    yield node.name, methods["backward"], inputs, 1

    def jax_rules(self) -> Iterator[tuple[str, Function, list[str], int]]:
        """Yield (name of f, backward, inputs, position of the incoming gradient) for each call `f.defvjp(...)`."""
        for node in ast.walk(self.source.tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name) as f, attr="defvjp"), args=[_, rule, *_]):
                    function = self.resolve(f)
                    backward = rule if isinstance(rule, ast.Lambda) else self.resolve(rule)
                    if backward:
                        inputs = leading_parameters(function) if function else []
                        yield name, backward, inputs, len(arguments(backward)) - 1

    def pairs(self) -> Iterator[tuple[str, Function, list[str], int]]:
        """Yield (name, backward, inputs, position of the incoming gradient) for each pair of matching functions."""
        functions = {node.name: node for node in self.source.tree.body if isinstance(node, ast.FunctionDef)}
        for name, node in functions.items():
            stem = name.replace("backward", "").strip("_")
            if "backward" in name:
                forward = functions.get(name.replace("backward", "forward")) or functions.get(stem)
                if forward:
                    yield stem or name, node, leading_parameters(forward), 0

    def find_returned_vjps(self, operation: str, function: Function) -> None:
        """Find the vjps of a function on arrays, which returns a pair (output, vjp) or calls such a function."""
        for value in returned_values(function):
            if isinstance(value, ast.Tuple) and len(value.elts) == 2:
                for vjp in alternatives(value.elts[1]):
                    self.find_vjp(vjp, operation, leading_parameters(function), vjp)
            elif isinstance(value, ast.Call) and (other := self.resolve(value.func)) not in (None, function):
                assert other is not None
                self.find_returned_vjps(operation, other)  # several operations may share it

    def find_vjp(self, value: ast.expr, operation: str, inputs: list[str], returned_at: ast.expr) -> None:
        """Find the vjp that an expression evaluates to."""
        function = value if isinstance(value, ast.Lambda) else self.resolve(value)
        if function:
            self.add(function, operation, PER_INPUT, inputs, returned_at)
        elif isinstance(value, ast.Call):
            factory = self.resolve(value.func)
            if factory and isinstance(self.source.parents[factory], ast.ClassDef):
                self.add(factory, operation, PER_INPUT, inputs, returned_at)
            elif factory:
                for value in returned_values(factory):
                    self.find_vjp(value, operation, inputs, returned_at)
            else:  # partial(vjp, ...) and other wrappers
                for argument in value.args:
                    if isinstance(argument, ast.Lambda) or self.resolve(argument):
                        self.find_vjp(argument, operation, inputs, returned_at)

    def add(self, node: Function, operation: str, result: str, inputs: list[str], returned_at: ast.expr | None) -> None:
        backward = self.backward.setdefault(node, Backward(node, operation, result, inputs, root=True))
        if operation not in backward.operations:
            backward.operations.append(operation)
        if returned_at is not None and returned_at not in backward.returned_at:
            backward.returned_at.append(returned_at)

    def add_helpers(self) -> None:
        """Add the functions that only backward code refers to."""
        uses: dict[Function, list[ast.Name]] = {}
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Name) and (function := self.resolve(node)):
                uses.setdefault(function, []).append(node)
        candidates = [f for f in uses if f not in self.backward and f not in self.array_functions]

        def is_used_outside(function: Function) -> bool:
            backward = {*self.backward, *candidates}
            return any(not backward & set(self.source.ancestors(name)) for name in uses[function])

        while any(map(is_used_outside, candidates)):  # removing a function may disqualify its helpers
            candidates = [f for f in candidates if not is_used_outside(f)]
        queue = list(self.backward.values())
        while queue:
            caller = queue.pop(0)
            for function in candidates:
                names = [name for name in uses[function] if caller.node in self.source.ancestors(name)]
                if not names:
                    continue
                calls = [self.source.parents[name] for name in names]
                is_returned = any(call in returned_values(caller.node) for call in calls)
                result = caller.result if is_returned else INTERMEDIATE
                known = self.backward.get(function)
                helper = known or Backward(function, getattr(function, "name", names[0].id), result, [])
                new = [name for name in caller.operations if name not in helper.operations]
                if new or not known:
                    helper.operations += new
                    self.backward[function] = helper
                    queue.append(helper)


def find_backward_code(source: Source) -> BackwardCode:
    """Return the backward code of a module."""
    code = BackwardCode(source)
    for name, function in code.differentiable():
        code.array_functions.append(function)
        code.find_returned_vjps(name, function)
    for node in code.gradient_kernels():
        code.add(node, node.name, SINGLE, leading_parameters(node), None)
    for name, rule, inputs, g in (*code.torch_functions(), *code.jax_rules(), *code.pairs()):
        if rule not in code.backward and rule not in code.array_functions:
            code.add(rule, name, SINGLE if len(inputs) == 1 else PER_INPUT, inputs, None)
            code.backward[rule].g = g
    code.add_helpers()
    return code


def is_torch_function(node: ast.ClassDef) -> bool:
    """Return whether a class is a subclass of `torch.autograd.Function`."""
    return any(getattr(base, "attr", getattr(base, "id", "")) == "Function" for base in node.bases)


def arguments(function: Function) -> list[ast.arg]:
    """Return all named arguments of a function."""
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]
