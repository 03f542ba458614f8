"""Apply the mutation operators to the source of a module: `mutants(text)` returns all mutants.

A mutation replaces the text of one node of the syntax tree. The rest of the source keeps its formatting, so a mutant
looks like code written by a person.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autograd.testing.mutation.backward_code import (
    INTERMEDIATE,
    PER_INPUT,
    Backward,
    Source,
    alternatives,
    arguments,
    body_nodes,
    find_backward_code,
    is_torch_function,
    leading_parameters,
    returned_values,
)
from autograd.testing.mutation.operators import (
    MUTATION_OPERATORS,
    ON_A_GRADIENT,
    SHAPE_ATTRIBUTES,
    WITHOUT_NUMBERS,
    Context,
    Node,
    called_name,
    template,
    value_nodes,
)


@dataclass(frozen=True)
class Mutant:
    """One change to a module's source: `new` replaces the bytes from `start` to `end`.

    Attributes:
        function: the operation, helper or layer that is mutated.
        operations: the operations that it belongs to.
        before, after: the line (or joined lines) before and after the change.
        old, new: the changed part of that line before and after the change.
        gradient: the index of the changed gradient, if the expression returns several.
        overwritten: the name of the array that the mutant overwrites, if any.
        statement: whether a statement is replaced.
    """

    function: str
    operations: tuple[str, ...]
    kind: str
    line: int
    before: str
    after: str
    old: str
    new: str
    start: int
    end: int
    gradient: int | None = None
    overwritten: str | None = None
    statement: bool = False

    def apply(self, text: str) -> str:
        """Return the mutated source."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants(text: str) -> list[Mutant]:
    """Return every mutant of the backward code of a module, in line order. Raises SyntaxError for invalid Python."""
    mutator = Mutator(Source(text))
    for backward in mutator.code.functions:
        mutator.mutate(backward)
    mutator.mutate_layers()
    return sorted(mutator.mutants, key=lambda mutant: mutant.line)


def instrumented(text: str, mutants: list[Mutant]) -> str:
    """Return the source with a call to `planted.reached` around each mutated place; its behavior does not change.

    Each place is identified by the index of its mutant, so a run records which tests reach which mutant.
    """
    places: dict[tuple[int, int, bool], list[int]] = {}
    for number, mutant in enumerate(mutants):
        places.setdefault((mutant.start, mutant.end, mutant.statement), []).append(number)
    insertions: list[tuple[int, int, str]] = []  # position, sort key for nested places, text
    for (start, end, statement), numbers in places.items():
        arguments = ", ".join(f"({i}, {mutants[i].gradient}, {mutants[i].overwritten})" for i in numbers)
        if statement:
            insertions.append((start, -end - 1, f"planted.reached(True, {arguments}); "))
        else:
            insertions += [(start, -end, "planted.reached(("), (end, -start - 2**40, f"), {arguments})")]
    data = text.encode()
    for position, _, inserted in sorted(insertions, reverse=True):
        data = data[:position] + inserted.encode() + data[position:]
    return data.decode()


class Mutator:
    """Collects the mutants of one module."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.code = find_backward_code(source)
        imports = [node for node in ast.walk(source.tree) if isinstance(node, ast.Import)]
        names = {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}
        self.modules = names | {"xp", "npx", "ops", "operations"}
        self.mutants: list[Mutant] = []
        self.texts = {source.data}  # equal mutants are created once

    def add(
        self,
        backward: Backward,
        kind: str,
        node: Node,
        replacement: ast.AST,
        gradient: int | None = None,
        overwritten: str | None = None,
    ) -> None:
        """Add the mutant that replaces a node, unless it is invalid Python or equals an earlier one."""
        start, end = self.source.span(node)
        text = ast.unparse(replacement)
        if isinstance(node, ast.expr):
            plain, enclosed = (self.parsed(node, start, end, t) for t in (text, f"({text})"))
            if plain != enclosed:  # the surrounding operator binds tighter
                text = f"({text})"
        data = self.source.data[:start] + text.encode() + self.source.data[end:]
        if data in self.texts or self.parsed(node, start, end, text) is None:
            return
        self.texts.add(data)
        first, last = node.lineno, node.end_lineno or node.lineno
        new_last = last + data.count(b"\n") - self.source.data.count(b"\n")
        self.mutants.append(
            Mutant(
                function=backward.name,
                operations=tuple(backward.operations),
                kind=kind,
                line=first,
                before=joined_lines(self.source.data, first, last),
                after=joined_lines(data, first, new_last),
                old=" ".join(self.source.text(node).split()),
                new=text,
                start=start,
                end=end,
                gradient=gradient,
                overwritten=overwritten,
                statement=isinstance(node, ast.stmt),
            )
        )

    def parsed(self, node: Node, start: int, end: int, text: str) -> str | None:
        """Return a dump of the top-level statement around a node, after `text` replaces the node; None if invalid."""
        statement = [node, *self.source.ancestors(node)][-2]
        assert isinstance(statement, ast.stmt)
        data = self.source.data
        before = data[self.source.starts[statement.lineno - 1] : start]
        after = data[end : self.source.span(statement)[1]]
        try:
            return ast.dump(ast.parse(before + text.encode() + after))
        except SyntaxError:
            return None

    def mutate(self, backward: Backward) -> None:
        """Add every mutant of one function of the backward code."""
        context = Context(backward.inputs, self.modules)
        function = backward.node
        for part in function.body if isinstance(function, ast.FunctionDef) else [function.body]:
            for node in value_nodes(part, context):
                if isinstance(node, (ast.expr, ast.stmt)):
                    for kind, operator in MUTATION_OPERATORS:
                        for change in operator(node, context):
                            self.add(backward, kind, *(change if isinstance(change, tuple) else (node, change)))
        if backward.result != INTERMEDIATE:
            for result in returned_values(function):
                self.mutate_result(backward, result)
        if backward.root:
            self.mix_calls(backward)

    def mutate_result(self, backward: Backward, result: ast.expr) -> None:
        """Mutate the returned gradients, however they were computed."""
        if not isinstance(result, ast.Tuple):
            for gx in self.gradients([result]):
                if backward.result != PER_INPUT:
                    self.mutate_gradient(backward, gx, None)
                elif not self.is_mutated_helper(gx):
                    last = (len(backward.inputs) or 2) - 1
                    for i in range(last + 1):
                        self.mutate_gradient(backward, gx, i)
                    for i in range(last):
                        swapped = template(f"planted.swapped(gx, {i})", gx=gx)
                        self.add(backward, "swapped operands", gx, swapped, i + 1)
            return
        for gx in self.gradients(result.elts):
            self.mutate_gradient(backward, gx, None)
        for i, (a, b) in enumerate(zip(result.elts, result.elts[1:], strict=False)):
            if not any(isinstance(x, ast.Constant) for x in (a, b)):
                elements = [*result.elts[:i], b, a, *result.elts[i + 2 :]]
                self.add(backward, "swapped operands", result, ast.Tuple(elements))

    def gradients(self, results: list[ast.expr]) -> Iterator[ast.expr]:
        """Yield the gradients that are not None or zeros."""
        for gx in (value for result in results for value in alternatives(result)):
            if not isinstance(gx, (ast.Constant, ast.Starred)) and called_name(gx) not in ("zeros", "zeros_like"):
                yield gx

    def is_mutated_helper(self, gx: ast.expr) -> bool:
        """Return whether a gradient is the result of a helper whose returned gradients are mutated anyway."""
        return isinstance(gx, ast.Call) and self.code.resolve(gx.func) in self.code.backward

    def mutate_gradient(self, backward: Backward, gx: ast.expr, i: int | None) -> None:
        """Mutate a returned gradient; i is its index if the expression returns several."""
        g = next((a.arg for a in arguments(backward.node)[backward.g :]), None)
        helper = self.code.resolve(gx.func) if isinstance(gx, ast.Call) else None
        may_be_none = helper is not None and any(getattr(v, "value", v) is None for v in returned_values(helper))
        for kind, change in ON_A_GRADIENT:
            overwritten = g if kind == "gradient overwritten" else None
            if kind == "sign" and isinstance(gx, ast.UnaryOp):
                continue  # the operator `sign` yields the same mutant
            if kind == "gradient overwritten" and overwritten in (None, ast.unparse(gx)):
                continue  # nothing to overwrite: gx is g itself, or there is no g
            change = change.replace("(g,", f"({overwritten},")
            name = "gx"
            if i is not None or (may_be_none and "gx" in change):
                name = "result"
                index = "" if i is None else f", {i}"
                change = f"planted.changed(result, lambda gx: {change}{index})"
            self.add(backward, kind, gx, template(change, **{name: gx}), i, overwritten)

    def mix_calls(self, backward: Backward) -> None:
        """Add mutants that use values saved or returned by another call."""
        outer = [
            node for node in self.source.ancestors(backward.node) if isinstance(node, (ast.FunctionDef, ast.Lambda))
        ]
        saved = {a.arg for function in outer for a in arguments(function)}
        saved |= {n.id for function in outer for n in body_nodes(function) if isinstance(n, ast.Name)}
        if any(isinstance(n, ast.Name) and n.id in saved for n in ast.walk(backward.node)):
            for vjp in backward.returned_at:
                self.add(backward, "stale workspace", vjp, template("planted.vjp_of_last_call(vjp)", vjp=vjp))
        for result in returned_values(backward.node):
            if any(self.gradients(result.elts if isinstance(result, ast.Tuple) else [result])):
                stale = template("planted.of_call_before(result)", result=result)
                self.add(backward, "stale workspace", result, stale)

    def mutate_layers(self) -> None:
        """Add mutants that detach a parameter or an input in layers that are composed of operations."""
        for layer in ast.walk(self.source.tree):
            if isinstance(layer, ast.ClassDef) and not is_torch_function(layer):
                methods = {node.name: node for node in layer.body if isinstance(node, ast.FunctionDef)}
                forward = methods.get("forward") or methods.get("__call__")
                if forward is not None and forward not in self.code.backward:
                    self.mutate_layer(layer, methods, forward)

    def mutate_layer(self, layer: ast.ClassDef, methods: dict[str, ast.FunctionDef], forward: ast.FunctionDef) -> None:
        parameters = {
            node.targets[0].attr
            for node in ast.walk(layer)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
            if any(called_name(part) == "Parameter" for part in ast.walk(node.value))
        }
        inputs = leading_parameters(forward)[1:]  # without self
        for method in methods.values():
            for node in body_nodes(method) if method.name != "__init__" else ():
                parent = self.source.parents[node]
                if isinstance(parent, ast.Attribute) and parent.attr in SHAPE_ATTRIBUTES | {"data", "grad"}:
                    continue
                if called_name(parent) in WITHOUT_NUMBERS or isinstance(parent, ast.Compare):
                    continue
                match node:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
                        is_tensor = name in parameters
                    case ast.Name(id=name, ctx=ast.Load()) if isinstance(parent, (ast.BinOp, ast.Call)):
                        is_tensor = method is forward and name in inputs
                    case _:
                        continue
                if is_tensor:
                    code = Backward(method, layer.name, INTERMEDIATE, [], [layer.name])
                    self.add(code, "detached input", node, template("x.detach()", x=node))


def joined_lines(data: bytes, first: int, last: int) -> str:
    """Return lines `first` to `last` joined into one."""
    return " ".join(line.strip() for line in data.decode().split("\n")[first - 1 : last])
