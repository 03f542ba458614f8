"""Judge an answer by the stages of its exercise; report only the first failure, in at most 18 lines, with a hint.

`judge` runs a file in this process. `python -m book.judging` is the separate process in which a learner's file runs, so
that prints, crashes and endless loops do no harm.
"""

import contextlib
import copy
import importlib.util
import io
import json
import signal
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from book.exercise import Rejected, Stage
from book.files import Exercise, exercises, first_problem, shown
from book.relations import Pair, relation

WIDTH = 110  # maximum characters of a reported line
MAX_LINES = 18


@dataclass
class Verdict:
    """The result: passed or not, lines to print, name of the recognized wrong answer, size of the failing input."""

    passed: bool
    lines: list[str] = field(default_factory=list)
    hint: str = ""
    numbers: int = 0


class TimeUp(BaseException):
    """Raised when the time limit is reached."""


@cache
def load(path: Path) -> ModuleType:
    """Import a file as a module under a unique name."""
    spec = importlib.util.spec_from_file_location(f"answer_{abs(hash(path))}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_of(exercise: Exercise) -> ModuleType:
    return load(exercise.folder / "check.py")


def judge(exercise: Exercise, path: Path, seeds: range = range(1), derive: bool = True) -> Verdict:
    """Judge an answer on the cases of some seeds; `derive` adds the inputs derived by the gradient checker."""
    refusal = first_problem(exercise, path)
    if refusal:
        return Verdict(False, refusal)
    check = check_of(exercise)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = load(path)
        except (Exception, SystemExit) as error:
            return Verdict(False, wrapped(f"The file cannot be imported. {describe_error(error, path)}"))
        for stage in check.STAGES:
            for seed in seeds:
                failure = first_difference(exercise, stage, seed, module, path)
                if failure is not None:
                    return with_hint(exercise, stage, seed, module, *failure)
        if hasattr(check, "GRADIENT_CHECK"):
            try:
                check.GRADIENT_CHECK(module, derive)
            except Rejected as error:
                lines = ["Values and gradients are right on our cases; the gradient checker finds:", ""]
                return Verdict(False, lines + [x for line in str(error).splitlines() for x in wrapped(line)])
            except Exception as error:
                return Verdict(False, wrapped(f"In the gradient checker: {describe_error(error, path)}"))
    return Verdict(True, check.AFTER.splitlines())


def outcome(stage: Stage, module: ModuleType, case: tuple[Any, ...]) -> Any:
    """Return the answer's result on copies of the arguments, or the exception it raises."""
    try:
        return stage.yours(module, *copied(case))
    except (Exception, SystemExit) as error:
        return error


def first_difference(exercise: Exercise, stage: Stage, seed: int, module: ModuleType, path: Path) -> Any:
    """Return the verdict, outcome and case of the first wrong result, or None if all are right."""
    for case in stage.cases(seed):
        yours, right = outcome(stage, module, case), stage.right(*copied(case))
        if isinstance(yours, Exception | SystemExit) or not same(yours, right, stage.close):
            call = [line for text in stage.call(*case).splitlines() for line in folded(text)]
            lines = [f"Not yet: {stage.complaint}.", "", *call]
            if isinstance(yours, BaseException):
                lines = [
                    "Not yet: your code raises an exception here.",
                    *lines[1:],
                    *wrapped(describe_error(yours, path), "  "),
                ]
            else:
                a, b = show(yours), show(right)
                if a == b:  # equal in six digits
                    a, b = show(yours, 13), show(right, 13)
                lines += [*folded(a, label="yours  ", max_lines=3), *folded(b, label="right  ", max_lines=3)]
            return Verdict(False, lines, numbers=numbers(case)), yours, case
    return None


@cache
def known_wrong(exercise: Exercise) -> dict[str, tuple[str, ModuleType]]:
    """Map the name of each known wrong answer of an exercise to its hint and module."""
    known = {}
    for name, hint, source in exercise.wrong_answers:
        module = ModuleType(f"wrong_{exercise.name}_{name}")
        exec(compile(source, f"<{name}>", "exec"), module.__dict__)
        known[name] = hint, module
    return known


def with_hint(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, verdict: Verdict, yours: Any, case: Any
) -> Verdict:
    """Add a hint to a verdict, if there is one."""
    if not isinstance(yours, Rejected):  # its message is the hint
        try:
            verdict.hint, hint = find_hint(exercise, stage, seed, module, yours, case)
        except Exception:  # a result may have any form, and the report must not fail
            verdict.hint, hint = "", ""
        if hint:
            verdict.lines += ["", *wrapped("Hint: " + hint)]
    return verdict


def find_hint(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, yours: Any, case: Any
) -> tuple[str, str]:
    """Return the name and text of a hint, or two empty strings.

    The first choice is the hint of a known wrong answer that gives the learner's results, then a relation to the right
    results, then the stage's explanation.
    """
    right = stage.right(*copied(case))
    parts = wrong_parts(yours, right, stage.close)
    for part in (None, *parts):
        name, hint = recognized(exercise, stage, seed, module, case, part)
        if hint:
            return name, hint
    name, hint = general_relation(stage, seed, module, parts[0] if parts else None)
    if hint or not stage.explain or isinstance(yours, BaseException):
        return name, hint
    hint = stage.explain(yours, right, *copied(case))
    return ("explanation" if hint else ""), hint


def wrong_parts(yours: Any, right: Any, close: float) -> list[int]:
    """Return the indices of the wrong parts of a result with several parts; an empty list if it has one part."""
    if isinstance(yours, (tuple, list)) and isinstance(right, (tuple, list)) and len(yours) == len(right) > 1:
        return [i for i, (a, b) in enumerate(zip(yours, right, strict=True)) if not same(a, b, close)]
    return []


def part_of(result: Any, part: int | None) -> Any:
    return result[part] if part is not None and isinstance(result, (tuple, list)) and part < len(result) else result


def recognized(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, case: Any, part: int | None
) -> tuple[str, str]:
    """Return the name and hint of the known wrong answer that gives the learner's results, or two empty strings.

    Two errors may agree on one case by chance, and a wrong hint is worse than none. So the comparison covers all cases
    of all stages that test the same function in the same way: a known answer must agree wherever the learner's result
    is wrong, and on three quarters of all cases. If several do, the closest one is chosen, and it must pass the
    stages that the learner's answer passes. With `part`, only that part of a result is compared, so each of two
    independent errors can be recognized.
    """
    known = known_wrong(exercise)
    yours = part_of(outcome(stage, module, case), part)
    matching = [name for name, (_, m) in known.items() if agrees(part_of(outcome(stage, m, case), part), yours)]
    agreed, cases = Counter[str](), 0  # number of agreeing cases per known answer, number of cases
    similar_stages = [each for each in check_of(exercise).STAGES if each.yours.__code__ is stage.yours.__code__]
    for each in similar_stages if matching else []:
        for other in each.cases(seed):
            result = part_of(outcome(each, module, other), part)
            agreeing = [m for m in matching if agrees(part_of(outcome(each, known[m][1], other), part), result)]
            agreed.update(agreeing)
            cases += 1
            right = part_of(each.right(*copied(other)), part)
            if isinstance(result, BaseException) or not same(result, right, each.close):
                matching = agreeing
    if matching:
        nearest = max(agreed[name] for name in matching)
        matching = [name for name in matching if agreed[name] == nearest >= 0.75 * cases]
    if len(matching) > 1:  # the learner's answer passes the earlier stages
        stages = check_of(exercise).STAGES
        earlier = stages[: stages.index(stage)]
        matching = [name for name in matching if all(passes(each, seed, known[name][1]) for each in earlier)]
    return (matching[0], known[matching[0]][0]) if len(matching) == 1 else ("", "")


def passes(stage: Stage, seed: int, module: ModuleType) -> bool:
    """Return whether an answer is right on every case of a stage."""
    cases = ((outcome(stage, module, case), stage.right(*copied(case))) for case in stage.cases(seed))
    return all(not isinstance(a, BaseException) and same(a, b, stage.close) for a, b in cases)


def general_relation(stage: Stage, seed: int, module: ModuleType, part: int | None) -> tuple[str, str]:
    """Return the name and text of a relation between the wrong results of a stage and the correct ones.

    The first wrong result is the one that the report shows.
    """
    pairs = []
    for case in stage.cases(seed):
        yours, right = outcome(stage, module, case), stage.right(*copied(case))
        if isinstance(yours, BaseException) or not same(part_of(yours, part), part_of(right, part), stage.close):
            doubled = outcome(stage, module, (2 * case[0], *case[1:])) if stage.linear else None
            pairs.append(Pair(part_of(yours, part), part_of(right, part), part_of(doubled, part), yours, right))
    return relation(pairs, part)


def agrees(a: Any, b: Any) -> bool:
    """Return whether two outcomes are equal, exceptions included."""
    if isinstance(a, BaseException) or isinstance(b, BaseException):
        return type(a) is type(b) and str(a) == str(b)
    return same(a, b, 1e-9)


def same(a: Any, b: Any, close: float) -> bool:
    """Return whether two results are equal, with floats compared to a relative tolerance of `close`."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(same(x, y, close) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], close) for k in a)
    if type(a) is type(b) is float:
        return a == b or abs(a - b) <= close * max(abs(a), abs(b), 1e-3) or a != a and b != b
    if isinstance(a, (str, type(None))) or isinstance(b, (str, type(None))):
        return type(a) is type(b) and bool(a == b)
    try:
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype.kind not in "biufc" or y.dtype.kind not in "biufc":
            return False
        if "b" in (x.dtype.kind, y.dtype.kind):
            return x.dtype.kind == y.dtype.kind and bool((x == y).all())
        scale = max(float(np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0.0)), 1e-3)
        return bool(np.allclose(x, y, rtol=close, atol=close * scale, equal_nan=True))
    except (TypeError, ValueError):
        return False


def copied(case: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(copy.deepcopy(x) if isinstance(x, (np.ndarray, list, dict)) else x for x in case)


def numbers(case: tuple[Any, ...]) -> int:
    """Return the size of a case's largest array, list or table, a measure of how hard it is to follow by hand."""

    def count(x: Any, kind: type) -> int:
        if isinstance(x, (list, tuple, dict)):
            return sum(count(y, kind) for y in (x.values() if isinstance(x, dict) else x))
        return x.size if isinstance(x, np.ndarray) else int(isinstance(x, kind))

    return max(max((count(x, kind) for x in case), default=1) for kind in ((float,) if has_floats(case) else (int,)))


def has_floats(x: Any) -> bool:
    """Return whether a case contains floats; its integers are then only positions."""
    inside = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return isinstance(x, (float, np.ndarray)) or any(map(has_floats, inside))


def describe_error(error: BaseException, path: Path) -> str:
    """Describe an exception in one sentence, with the line of the learner's file that raised it."""
    if isinstance(error, Rejected):
        return str(error)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    where = f"{shown(path)}:{lines[-1]}: " if lines else f"{shown(path)}: "
    message = str(error).splitlines()[0][: 2 * WIDTH] if str(error) else ""
    if isinstance(error, RecursionError):
        message = "too many recursive calls"
    return f"{where}{type(error).__name__}{': ' if message else ''}{message}"


def show(value: Any, digits: int = 6) -> str:
    """Format a result as one line; a matrix is followed by its shape."""
    shape = f"  shape {value.shape}" if isinstance(value, np.ndarray) and (value.ndim > 1 or not value.size) else ""
    return written(value, digits) + shape


def written(value: Any, digits: int) -> str:
    if isinstance(value, (list, tuple)):
        inside = ", ".join(written(x, digits) for x in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {written(v, digits)}" for k, v in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return written(value.tolist(), digits)
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.{digits}g}"
    return repr(value.item() if isinstance(value, np.generic) else value)


def folded(line: str, label: str = "", max_lines: int = 6) -> list[str]:
    """Break an expression after commas, where Python allows it; " ..." marks the part that exceeds `max_lines`."""
    lines = ["  " + label]
    for word in line.replace(", ", ", \0").split("\0"):
        if len(lines[-1]) + len(word) > WIDTH - 4 and lines[-1].strip() != label.strip():
            lines.append("  " + " " * len(label))
        lines[-1] += word
    if len(lines) > max_lines:
        lines[max_lines - 1 :] = [lines[max_lines - 1] + "..."]
    return [line.rstrip() for line in lines]


def wrapped(line: str, indent: str = "") -> list[str]:
    """Wrap a sentence into lines; they keep its indentation."""
    indent += line[: len(line) - len(line.lstrip())]
    line, lines = line.strip(), [indent]
    for word in line.split(" "):
        if len(lines[-1]) + len(word) >= 96 and lines[-1] != indent:
            lines.append(indent)
        lines[-1] += (" " if lines[-1] != indent else "") + word
    return lines


def main(number: str, path: str, limit: str, wall_limit: str, result: str) -> None:
    """Judge a learner's file in this process and write the verdict as JSON to the file `result`.

    `limit` is in seconds of CPU time, so a correct answer does not fail on a busy machine; `wall_limit` is in
    wall-clock seconds, for an answer that sleeps.
    """
    where = Path(path)

    def stop(*_: Any) -> None:
        raise TimeUp

    clocks = {signal.ITIMER_PROF: (signal.SIGPROF, limit), signal.ITIMER_REAL: (signal.SIGALRM, wall_limit)}
    for clock, (signal_number, seconds) in clocks.items():
        signal.signal(signal_number, stop)
        signal.setitimer(clock, float(seconds))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exercise = next(e for e in exercises() if e.number == int(number))
            verdict = judge(exercise, where)
    except TimeUp as error:
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == where]
        at = f"{shown(where)}:{lines[-1].lineno}: at `{lines[-1].line}`" if lines else shown(where)
        verdict = Verdict(False, [f"Your code did not finish within {float(limit):g} s; is there an endless loop?", at])
    for clock in clocks:
        signal.setitimer(clock, 0)
    if printed.getvalue():
        output = printed.getvalue().splitlines()
        verdict.lines += [
            "",
            f"(Your file prints {len(output)} lines, which is allowed. The first: {output[0][:60]!r}.)",
        ]
    Path(result).write_text(json.dumps(asdict(verdict)), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main(*sys.argv[1:])
