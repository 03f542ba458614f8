"""Right answers with one small slip each: a swapped name, a missing factor, a wrong axis, two lines exchanged.

They are made from every right answer of an exercise. If a learner's answer gives the same results as a slip in every
case, the check names this slip. It can thus explain an error that `wrong.txt` does not list.
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

from book.slip_variants import variants

FILE = "<slip>"
MAX_LINES = 50_000  # a slip that executes more lines is stopped, because it may have made a loop endless
MAX_WIDTH = 64  # maximum width of a quoted expression, in characters
EXPRESSIONS = (ast.expr, ast.keyword, ast.comprehension)


class Slip(NamedTuple):
    """A right answer with one slip: its description, its code, and the names that the slip inserts."""

    text: str
    code: CodeType
    inserted: frozenset[str]
    rank: int  # if several slips have the same results, the one with the lowest rank is reported

    def module(self) -> ModuleType:
        module = ModuleType("slip")
        exec(self.code, module.__dict__)
        return module


class TooLong(Exception):
    """Raised if a slip executes too many lines."""


def limited(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and raise TooLong if a slip executes too many lines of its own code."""
    executed = 0

    def count(frame: Any, event: str, arg: Any) -> Any:
        nonlocal executed
        executed += 1
        if executed > MAX_LINES:
            raise TooLong
        return count

    return traced(count, FILE, function, *args)


def types_of_names(path: Path, runs: Iterable[Callable[[], Any]]) -> dict[str, Any]:
    """Record some runs; return the type of each name in a file, or None if its values had several types."""
    types: dict[str, set[type]] = {}

    def record(frame: Any, event: str, arg: Any) -> Any:
        for name, value in frame.f_locals.items():
            types.setdefault(name, set()).add(type(value))
        return record

    for run in runs:
        traced(record, str(path), run)
    return {name: min(found, key=str) if len(found) == 1 else None for name, found in types.items()}


def traced(trace: Callable[..., Any], file: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function`, and call `trace` for each line that runs in one file."""
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
    for rank, text, inserted in itertools.chain.from_iterable(changes(function, types) for function in functions):
        with contextlib.suppress(SyntaxError, ValueError):  # for example, an assignment to a call
            found.append(Slip(text, compile(ast.fix_missing_locations(tree), FILE, "exec"), inserted, rank))
    return sorted(found, key=lambda slip: slip.rank)


def remember_old_values(function: ast.FunctionDef) -> None:
    """Save each value that an assignment replaces as NAME_0, NAME_1, ...: a slip may use an old value."""
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


def changes(function: ast.FunctionDef, types: dict[str, Any]) -> Changes:
    """Change a function in place, yield rank, description and inserted names of the slip, and undo the change."""
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
                for rank, text in of_statements(value):
                    yield rank, text, frozenset()
            if field in ("args", "decorator_list", "targets") and not isinstance(node, ast.Call):
                continue
            for i, child in enumerate(children):
                if not isinstance(child, ast.expr) or is_docstring(node):
                    continue
                for rank, new, note in variants(child, node, alike, keys):
                    put(node, field, value, i, new)
                    parents[new] = node
                    shown = enclosing(new, parents)
                    text = ast.unparse(shown)
                    replaced = re.match("`(.+)` should be `", note)
                    if replaced and occurrences(replaced[1], text) > 1:
                        part = unique_part(new, shown, parents)
                        wrong = ast.unparse(part)
                        put(node, field, value, i, child)
                        note = f"`{wrong}` should be `{ast.unparse(child if part is new else part)}`"
                        put(node, field, value, i, new)
                    yield rank, description(text, note), names_in(new) - names_in(child)
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


def description(text: str, note: str) -> str:
    sentence = f"Your results are those of `{text}`, where {note}."
    return sentence.replace(f"where `{text}` should", "which should")


def occurrences(part: str, text: str) -> int:
    """Return how often an operator, a name or another expression occurs in an expression."""
    if not re.search(r"\w", part):
        return text.count(f" {part} ")
    return len(re.findall(rf"(?<!\w){re.escape(part)}(?!\w)", text))


def unique_part(node: ast.AST, shown: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    """Return the smallest expression around a node that occurs only once in `shown`."""
    text = ast.unparse(shown)
    while node is not shown and occurrences(ast.unparse(node), text) > 1:
        node = parents[node]
    return node


def enclosing(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    """Return the largest short expression or assignment around a node."""
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
    return shown


def names_in(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def of_statements(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Leave out a statement or a condition, exchange two neighbors, or move a statement into or out of a loop."""
    simple = (ast.Assign, ast.AugAssign, ast.Expr)
    for i, statement in enumerate(body):
        following = body[i + 1] if i + 1 < len(body) else None
        text = ast.unparse(statement)
        if isinstance(statement, simple) and not is_docstring(statement) and not saves_value(statement):
            body[i] = ast.Pass()
            yield 6, f"Your results are those of a solution without `{text}`."
            if isinstance(following, simple) and not saves_value(following):
                body[i : i + 2] = [following, statement]
                exchanged = (
                    f"Your results are those of a solution that computes `{ast.unparse(following)}` before `{text}`."
                )
                yield 7, exchanged
                body[i + 1] = following
        if isinstance(statement, ast.AugAssign):
            body[i] = ast.copy_location(ast.Assign([statement.target], statement.value), statement)
            yield 2, f"Your results are those of `{ast.unparse(body[i])}`, where `=` should be `+=`."
        if isinstance(statement, (ast.If, ast.While)):
            test = statement.test
            for value, note in (
                (ast.Constant(True), "without the condition"),
                (ast.Constant(False), "without the case"),
            ):
                statement.test = value
                yield 2, f"Your results are those of a solution {note} `{ast.unparse(test)}`."
            statement.test = ast.UnaryOp(ast.Not(), test)
            yield 2, f"Your results are those of a solution with the opposite of `{ast.unparse(test)}`."
            statement.test = test
        if isinstance(statement, (ast.For, ast.While)):
            *rest, last = inside = statement.body
            if rest:
                statement.body, body[i + 1 : i + 1] = rest, [last]
                moved = ast.unparse(last).splitlines()[0]
                yield 6, f"Your results are those of a solution with `{moved}` after the loop."
                statement.body, body[i + 1 : i + 2] = inside, []
            if isinstance(following, (*simple, ast.Return)):
                statement.body, body[i + 1] = [*inside, following], ast.Pass()
                moved = ast.unparse(following)
                yield 6, f"Your results are those of a solution with `{moved}` inside the loop."
                statement.body, body[i + 1] = inside, following
        body[i] = statement


def saves_value(statement: ast.stmt) -> bool:
    """Return whether a statement comes from `remember_old_values`."""
    return re.fullmatch(r"(\w+)_\d+ = \1", ast.unparse(statement)) is not None


def kind_of(name: str, types: dict[str, Any]) -> Any:
    return types.get(re.sub(r"_\d+$", "", name), types.get(name))


def everywhere(statement: ast.stmt, alike: dict[str, list[str]]) -> Changes:
    """Replace all occurrences of a name in a statement."""
    uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for old, others in alike.items():
        same = [n for n in uses if n.id == old]
        right = ast.unparse(statement).removeprefix("return ")
        for new in others if len(same) > 1 else ():
            for n in same:
                n.id = new
            text = ast.unparse(statement).removeprefix("return ")
            if len(text) <= 2 * MAX_WIDTH:
                only_these = occurrences(new, text) == len(same)
                note = f"`{new}` should be `{old}`" if only_these else f"`{text}` should be `{right}`"
                yield 5, description(text, note), frozenset([new])
            for n in same:
                n.id = old
