"""Plants the standard mistakes in a module's text, one at a time: `mistakes(source)` has them all.

What is replaced is text, found by the place of its node in the tree: all else stays as it was written, and a mistake
can be shown as the line one would have typed.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autograd.testing.mutation.backward_code import (
    GRADIENTS,
    VALUE,
    Backward,
    BackwardCode,
    Source,
    alternatives,
    arguments,
    inside,
    leading,
    returned,
)
from autograd.testing.mutation.rules import (
    ABOUT_SHAPES,
    ON_A_GRADIENT,
    RULES,
    WITHOUT_NUMBERS,
    Piece,
    Place,
    called,
    made,
    numeric,
)


@dataclass(frozen=True)
class Mistake:
    """One change of a module's text: the bytes from `start` to `end` become `new`.

    `function`: the operation, helper or layer it is planted in; `operations`: those that this belongs to. `before` and
    `after`: the line (or lines, joined) that changes; `old` and `new`: what changes in it. `gradient`: where this is an
    expression for several gradients, the number of the one that changes. `over`: what is written over. `statement`:
    whether it is a statement.
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
    over: str | None = None
    statement: bool = False

    def planted_in(self, text: str) -> str:
        """The module's text with the mistake."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mistakes(text: str) -> list[Mistake]:
    """Every standard mistake in the backward code of a module, in the order of its lines. SyntaxError for no Python."""
    planter = Planter(Source(text))
    for backward in planter.code.functions:
        planter.plant_in(backward)
    planter.plant_in_layers()
    return sorted(planter.found, key=lambda mistake: mistake.line)


def marked(text: str, planted: list[Mistake]) -> str:
    """The text with a call of `planted.reached` around each place where a mistake is planted; it does what it did.

    Places are named by the mistake's number in the list, which tells what tests can notice it.
    """
    places: dict[tuple[int, int, bool], list[int]] = {}
    for number, mistake in enumerate(planted):
        places.setdefault((mistake.start, mistake.end, mistake.statement), []).append(number)
    pieces: list[tuple[int, int, str]] = []  # where, order there, what: what is inside begins later and ends earlier
    for (start, end, statement), numbers in places.items():
        named = ", ".join(f"({number}, {planted[number].gradient}, {planted[number].over})" for number in numbers)
        if statement:
            pieces.append((start, -end - 1, f"planted.reached(True, {named}); "))
        else:
            pieces += [(start, -end, "planted.reached(("), (end, -start - 2**40, f"), {named})")]
    data = text.encode()
    for where, _, piece in sorted(pieces, reverse=True):
        data = data[:where] + piece.encode() + data[where:]
    return data.decode()


class Planter:
    """Collects the mistakes of one module."""

    def __init__(self, source: Source) -> None:
        self.source, self.code = source, BackwardCode(source)
        imports = [node for node in ast.walk(source.tree) if isinstance(node, ast.Import)]
        names = {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}
        self.modules = names | {"xp", "npx", "ops", "operations"}
        self.found: list[Mistake] = []
        self.texts = {source.data}  # each mistaken text is planted once

    def plant(
        self,
        backward: Backward,
        kind: str,
        piece: Piece,
        other: ast.AST,
        gradient: int | None = None,
        over: str | None = None,
    ) -> None:
        """Enter the mistake that replaces a piece of code by another, unless the text with it is no Python."""
        start, end = self.source.span(piece)
        text = ast.unparse(other)
        if isinstance(piece, ast.expr):
            plain, enclosed = (self.parsed(piece, start, end, t) for t in (text, f"({text})"))
            if plain != enclosed:  # what is around binds more
                text = f"({text})"
        data = self.source.data[:start] + text.encode() + self.source.data[end:]
        if data in self.texts or self.parsed(piece, start, end, text) is None:
            return
        self.texts.add(data)
        first, last = piece.lineno, piece.end_lineno or piece.lineno
        changed = last + data.count(b"\n") - self.source.data.count(b"\n")
        self.found.append(
            Mistake(
                function=backward.name,
                operations=tuple(backward.operations),
                kind=kind,
                line=first,
                before=shown(self.source.data, first, last),
                after=shown(data, first, changed),
                old=" ".join(self.source.text(piece).split()),
                new=text,
                start=start,
                end=end,
                gradient=gradient,
                over=over,
                statement=isinstance(piece, ast.stmt),
            )
        )

    def parsed(self, piece: Piece, start: int, end: int, text: str) -> str | None:
        """The tree of the module's statement around a piece, with that text in its place; None: it is no Python."""
        around = [piece, *self.source.around(piece)][-2]
        assert isinstance(around, ast.stmt)
        first, last = self.source.starts[around.lineno - 1], self.source.span(around)[1]
        try:
            return ast.dump(ast.parse(self.source.data[first:start] + text.encode() + self.source.data[end:last]))
        except SyntaxError:
            return None

    def plant_in(self, backward: Backward) -> None:
        """Every mistake in one function of the backward code."""
        place, function = Place(backward.inputs, self.modules), backward.node
        for part in function.body if isinstance(function, ast.FunctionDef) else [function.body]:
            for piece in numeric(part, place):
                if isinstance(piece, (ast.expr, ast.stmt)):
                    for kind, rule in RULES:
                        for change in rule(piece, place):
                            self.plant(backward, kind, *(change if isinstance(change, tuple) else (piece, change)))
        if backward.result != VALUE:
            for result in returned(function):
                self.plant_in_result(backward, result)
        if backward.root:
            self.plant_other_calls(backward)

    def plant_in_result(self, backward: Backward, result: ast.expr) -> None:
        """What can go wrong with any gradient, however it was computed."""
        if not isinstance(result, ast.Tuple):
            for gx in self.gradients([result]):
                if backward.result != GRADIENTS:
                    self.plant_on(backward, gx, None)
                elif not self.made_here(gx):
                    last = (len(backward.inputs) or 2) - 1
                    for i in range(last + 1):
                        self.plant_on(backward, gx, i)
                    for i in range(last):
                        other = made(f"planted.exchanged(them, {i})", them=gx)
                        self.plant(backward, "swapped operands", gx, other, i + 1)
            return
        for gx in self.gradients(result.elts):
            self.plant_on(backward, gx, None)
        for i, (a, b) in enumerate(zip(result.elts, result.elts[1:], strict=False)):
            if not any(isinstance(x, ast.Constant) for x in (a, b)):
                exchanged = [*result.elts[:i], b, a, *result.elts[i + 2 :]]
                self.plant(backward, "swapped operands", result, ast.Tuple(exchanged))

    def gradients(self, results: list[ast.expr]) -> Iterator[ast.expr]:
        """Those of some results that may be something else than zero."""
        for gx in (value for result in results for value in alternatives(result)):
            if not isinstance(gx, (ast.Constant, ast.Starred)) and called(gx) not in ("zeros", "zeros_like"):
                yield gx

    def made_here(self, gx: ast.expr) -> bool:
        """Whether a helper makes it, which has mistakes of its own planted in its result."""
        return isinstance(gx, ast.Call) and self.code.resolve(gx.func) in self.code.found

    def plant_on(self, backward: Backward, gx: ast.expr, i: int | None) -> None:
        """Change a gradient; i: the i-th of several that the expression gives."""
        g = next((a.arg for a in arguments(backward.node)), None)
        helper = self.code.resolve(gx.func) if isinstance(gx, ast.Call) else None
        may_be_none = helper is not None and any(getattr(v, "value", v) is None for v in returned(helper))
        for kind, change in ON_A_GRADIENT:
            over = g if kind == "gradient written over" else None
            if kind == "sign" and isinstance(gx, ast.UnaryOp):
                continue  # the rule for signs has it
            if kind == "gradient written over" and over in (None, ast.unparse(gx)):
                continue  # it is the incoming one
            change = change.replace("(g,", f"({over},")
            if i is not None:
                change = f"planted.changed(them, lambda gx: {change}, {i})"
            elif may_be_none and "gx" in change:
                change = f"planted.changed(them, lambda gx: {change})"
            self.plant(backward, kind, gx, made(change, **{"them" if "them" in change else "gx": gx}), i, over)

    def plant_other_calls(self, backward: Backward) -> None:
        """Mix up what this call kept or gives with what another did."""
        outer = [node for node in self.source.around(backward.node) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
        kept = {a.arg for function in outer for a in arguments(function)}
        kept |= {n.id for function in outer for n in inside(function) if isinstance(n, ast.Name)}
        if any(isinstance(n, ast.Name) and n.id in kept for n in ast.walk(backward.node)):
            for vjp in backward.made_at:
                self.plant(backward, "stale workspace", vjp, made("planted.vjp_of_last_call(vjp)", vjp=vjp))
        for result in returned(backward.node):
            if any(self.gradients(result.elts if isinstance(result, ast.Tuple) else [result])):
                self.plant(backward, "stale workspace", result, made("planted.of_call_before(them)", them=result))

    def plant_in_layers(self) -> None:
        """In a layer of operations, whose gradient is not its own: a parameter or an input that loses its history."""
        for layer in ast.walk(self.source.tree):
            if isinstance(layer, ast.ClassDef):
                methods = {node.name: node for node in layer.body if isinstance(node, ast.FunctionDef)}
                forward = methods.get("forward") or methods.get("__call__")
                if forward is not None and forward not in self.code.found:
                    self.plant_in_layer(layer, methods, forward)

    def plant_in_layer(
        self, layer: ast.ClassDef, methods: dict[str, ast.FunctionDef], forward: ast.FunctionDef
    ) -> None:
        parameters = {
            node.targets[0].attr
            for node in ast.walk(layer)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
            if any(called(part) == "Parameter" for part in ast.walk(node.value))
        }
        inputs = leading(forward)[1:]  # without self
        for method in methods.values():
            for node in inside(method) if method.name != "__init__" else ():
                around = self.source.parents[node]
                if isinstance(around, ast.Attribute) and around.attr in ABOUT_SHAPES | {"data", "grad"}:
                    continue
                if called(around) in WITHOUT_NUMBERS or isinstance(around, ast.Compare):
                    continue
                match node:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
                        detached = name in parameters
                    case ast.Name(id=name, ctx=ast.Load()) if isinstance(around, (ast.BinOp, ast.Call)):
                        detached = method is forward and name in inputs
                    case _:
                        continue
                if detached:
                    as_backward = Backward(method, layer.name, VALUE, [], [layer.name])
                    self.plant(as_backward, "detached input", node, made("x.detach()", x=node))


def shown(data: bytes, first: int, last: int) -> str:
    """Lines of a text as one."""
    return " ".join(line.strip() for line in data.decode().split("\n")[first - 1 : last])
