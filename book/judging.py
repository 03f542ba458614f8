"""An answer through the stages of its exercise: the first failure alone, in at most 15 lines, with the mistake's name.

`judge` runs a file here; `python -m book.judging` is the process of its own in which a learner's file runs, so that
what it prints, breaks or never ends harms nothing: `files.py` and `__main__.py` stay outside.
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

from book.exercise import Refused, Stage
from book.files import Exercise, exercises, first_refusal, shown

WIDTH = 110  # of a line that is shown
MOST = 15  # lines


@dataclass
class Verdict:
    """Whether an answer passed, what to print, the hint it was given (the wrong answer's name), how large the input."""

    passed: bool
    lines: list[str] = field(default_factory=list)
    hint: str = ""
    numbers: int = 0


class TimeUp(BaseException):
    """The time limit is reached."""


@cache
def load(path: Path) -> ModuleType:
    """A file as a module, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"answer_{abs(hash(path))}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_of(exercise: Exercise) -> ModuleType:
    return load(exercise.folder / "check.py")


def judge(exercise: Exercise, path: Path, seeds: range = range(1), kit: bool = True) -> Verdict:
    """An answer's verdict, on the cases of some seeds. `kit` False: without the inputs that the kit derives."""
    refusal = first_refusal(exercise, path)
    if refusal:
        return Verdict(False, refusal)
    check = check_of(exercise)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = load(path)
        except (Exception, SystemExit) as error:
            return Verdict(False, wrapped(f"It does not load. {told(error, path)}"))
        for stage in check.STAGES:
            for seed in seeds:
                found = first_difference(exercise, stage, seed, module, path)
                if found is not None:
                    return with_hint(exercise, stage, seed, module, *found)
        if hasattr(check, "KIT"):
            try:
                check.KIT(module, kit)
            except Refused as error:
                return Verdict(False, ["Its values and gradients are right; the gradient kit finds this.", "",
                                       *str(error).splitlines()])  # fmt: skip
            except Exception as error:
                return Verdict(False, wrapped(f"Within the gradient kit: {told(error, path)}"))
    return Verdict(True, check.AFTER.splitlines())


def outcome(stage: Stage, module: ModuleType, case: tuple[Any, ...]) -> Any:
    """What an answer gives for a case, on arrays of its own; what it raises counts as that."""
    try:
        return stage.yours(module, *copied(case))
    except (Exception, SystemExit) as error:
        return error


def first_difference(exercise: Exercise, stage: Stage, seed: int, module: ModuleType, path: Path) -> Any:
    """The verdict on the first case where an answer is not right, its outcome and the case; None where all are."""
    for case in stage.cases(seed):
        yours, right = outcome(stage, module, case), stage.right(*copied(case))
        if isinstance(yours, Exception | SystemExit) or not same(yours, right, stage.close):
            lines = [f"Not yet: {stage.said}.", "", *clipped(stage.call(*case))]
            if isinstance(yours, BaseException):
                lines = ["Not yet: it cannot do this.", *lines[1:], *wrapped(told(yours, path), "  ")]
            else:
                a, b = show(yours), show(right)
                if a == b:  # in six digits
                    a, b = show(yours, 13), show(right, 13)
                lines += ["  yours  " + a, "  right  " + b]
            return Verdict(False, lines, numbers=numbers(case)), yours, case
    return None


def with_hint(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, verdict: Verdict, yours: Any, case: Any
) -> Verdict:
    """The verdict with the hint of the wrong answer that gives the learner's outcome, here and where else it is wrong.

    Two mistakes may give the same by chance, and the wrong hint is worse than none: so all cases count of the stages
    that look at the same function in the same way. Of several that explain all that is wrong the nearest one is taken,
    and only if it gives what the learner's gives in three cases of four.
    """
    wrong = {path: load(path) for path in exercise.others("wrong")}
    alike = [path for path, answer in wrong.items() if agrees(outcome(stage, answer, case), yours)]
    agreed, cases = Counter[Path](), 0  # in how many cases, of how many
    alike_stages = [each for each in check_of(exercise).STAGES if each.yours.__code__ is stage.yours.__code__]
    for each in alike_stages if alike else []:
        for other in each.cases(seed):
            result = outcome(each, module, other)
            agreeing = [path for path in alike if agrees(outcome(each, wrong[path], other), result)]
            agreed.update(agreeing)
            cases += 1
            if isinstance(result, BaseException) or not same(result, each.right(*copied(other)), each.close):
                alike = agreeing
    if len(alike) > 1:  # some are wrong in other places as well
        nearest = max(agreed[path] for path in alike)
        alike = [path for path in alike if agreed[path] == nearest >= 0.75 * cases]
    if len(alike) == 1:
        verdict.hint = alike[0].stem
        verdict.lines += ["", *wrapped("Hint: " + hint_of(alike[0]))]
    return verdict


def hint_of(path: Path) -> str:
    """The first line of its docstring."""
    return (load(path).__doc__ or "").strip().splitlines()[0]


def agrees(a: Any, b: Any) -> bool:
    """Whether two outcomes are the same, raised ones too."""
    if isinstance(a, BaseException) or isinstance(b, BaseException):
        return type(a) is type(b) and str(a) == str(b)
    return same(a, b, 1e-9)


def same(a: Any, b: Any, close: float) -> bool:
    """Whether two results are the same, floats to `close` of the larger."""
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
    """How many numbers the largest of a case's arrays, lists and tables has: how hard it is to follow by hand."""

    def count(x: Any, kind: type) -> int:
        if isinstance(x, (list, tuple, dict)):
            return sum(count(y, kind) for y in (x.values() if isinstance(x, dict) else x))
        return x.size if isinstance(x, np.ndarray) else int(isinstance(x, kind))

    return max(max((count(x, kind) for x in case), default=1) for kind in ((float,) if has_floats(case) else (int,)))


def has_floats(x: Any) -> bool:
    """Whether there is a float in a case: then its integers only say where things stand."""
    inside = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return isinstance(x, (float, np.ndarray)) or any(map(has_floats, inside))


def told(error: BaseException, path: Path) -> str:
    """An exception in a sentence, with the line of the learner's file that it came from."""
    if isinstance(error, Refused):
        return str(error)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    where = f"{shown(path)}:{lines[-1]}: " if lines else f"{shown(path)}: "
    said = str(error).splitlines()[0][: 2 * WIDTH] if str(error) else ""
    if isinstance(error, RecursionError):
        said = "it calls itself too often"
    return f"{where}{type(error).__name__}{': ' if said else ''}{said}"


def show(value: Any, digits: int = 6) -> str:
    """A result in one line; a matrix with its shape."""
    shape = f"  shape {value.shape}" if isinstance(value, np.ndarray) and (value.ndim > 1 or not value.size) else ""
    return cut(written(value, digits) + shape)


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


def cut(line: str) -> str:
    return line if len(line) <= WIDTH - 12 else line[: WIDTH - 15] + " ..."


def clipped(call: str) -> list[str]:
    """The text of a call on up to six lines, still Python."""
    lines: list[str] = []
    for line in call.splitlines():
        for word in line.replace(", np.array", ",\0np.array").replace(")[1](", ")[1](\0").split("\0"):
            if lines and len(lines[-1]) + len(word) < WIDTH - 12 and lines[-1][-1] in ",(":
                lines[-1] += " " * (lines[-1][-1] == ",") + word
            else:
                lines.append("  " + word)
    return [line if len(line) < WIDTH else line[: WIDTH - 5] + " ..." for line in lines[:6]]


def wrapped(line: str, indent: str = "") -> list[str]:
    """Words on lines of the width."""
    lines = [indent]
    for word in line.split(" "):
        if len(lines[-1]) + len(word) >= 96 and lines[-1] != indent:
            lines.append(indent)
        lines[-1] += (" " if lines[-1] != indent else "") + word
    return lines


def main(number: str, path: str, limit: str, patience: str, result: str) -> None:
    """Judge a learner's file in this process, and leave the verdict as JSON in the file `result`.

    `limit`: seconds of the processor, so that a busy machine makes no right answer wrong; `patience`: by the clock, for
    an answer that waits.
    """
    where = Path(path)

    def stop(*_: Any) -> None:
        raise TimeUp

    clocks = {signal.ITIMER_PROF: (signal.SIGPROF, limit), signal.ITIMER_REAL: (signal.SIGALRM, patience)}
    for clock, (told_by, seconds) in clocks.items():
        signal.signal(told_by, stop)
        signal.setitimer(clock, float(seconds))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exercise = next(e for e in exercises() if e.number == int(number))
            verdict = judge(exercise, where)
    except TimeUp as error:
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == where]
        at = f"{shown(where)}:{lines[-1].lineno}: at `{lines[-1].line}`" if lines else shown(where)
        verdict = Verdict(False, [f"It did not end within {float(limit):g} seconds: a loop that never stops?", at])
    for clock in clocks:
        signal.setitimer(clock, 0)
    if printed.getvalue():
        said = printed.getvalue().splitlines()
        verdict.lines += ["", f"(Your file prints, {len(said)} lines; the first: {said[0][:60]!r}. That is allowed.)"]
    Path(result).write_text(json.dumps(asdict(verdict)), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main(*sys.argv[1:])
