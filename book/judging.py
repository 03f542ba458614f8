"""Judge an answer by the stages of its exercise; report only the first failure, in at most 18 lines, with a hint.

`judge` runs a file in this process. `python -m book.judging` is the separate process in which a learner's file runs, so
that prints, crashes and endless loops do no harm.
"""

import contextlib
import io
import json
import signal
import sys
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from book.exercise import Rejected, Stage
from book.files import Exercise, exercises, first_problem, shown
from book.hints import find_hint
from book.results import check_of, copied, load, outcome, same

WIDTH = 110  # maximum characters of a reported line
MAX_LINES = 18


@dataclass
class Verdict:
    """The result: passed or not, lines to print, name of the hint, and size of the failing input."""

    passed: bool
    lines: list[str] = field(default_factory=list)
    hint: str = ""
    numbers: int = 0


class TimeUp(BaseException):
    """Raised when the time limit is reached."""


def judge(exercise: Exercise, path: Path, seeds: range = range(1), vary_inputs: bool = True) -> Verdict:
    """Judge an answer on the cases of some seeds; `vary_inputs` adds the inputs derived by the gradient checker."""
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
            done = set[str]()
            for seed in seeds:
                failure = first_difference(stage, seed, module, path, done)
                if failure is not None:
                    return with_hint(exercise, stage, seed, module, *failure)
        if hasattr(check, "GRADIENT_CHECK"):
            try:
                check.GRADIENT_CHECK(module, vary_inputs)
            except Rejected as error:
                lines = ["Values and gradients are right on our cases; the gradient checker finds:", ""]
                return Verdict(False, lines + [x for line in str(error).splitlines() for x in wrapped(line)])
            except Exception as error:
                return Verdict(False, wrapped(f"In the gradient checker: {describe_error(error, path)}"))
    return Verdict(True, check.AFTER.splitlines())


def first_difference(stage: Stage, seed: int, module: ModuleType, path: Path, done: set[str]) -> Any:
    """Return the verdict, outcome and case of the first wrong result, or None if all are right.

    Cases in `done` are skipped: other seeds have already yielded them.
    """
    for case in stage.cases(seed):
        if repr(case) in done:
            continue
        done.add(repr(case))
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
                x, y = differing(yours, right, stage.close)
                a, b = show(x), show(y)
                if a == b:  # six digits do not show the difference
                    a, b = show(x, 13), show(y, 13)
                lines += [*folded(a, label="yours  ", max_lines=3), *folded(b, label="right  ", max_lines=3)]
            return Verdict(False, lines, numbers=numbers(case)), yours, case
    return None


def differing(yours: Any, right: Any, close: float) -> tuple[Any, Any]:
    """Leave out the entries that two dicts have in common."""
    if not (isinstance(yours, dict) and isinstance(right, dict) and yours.keys() == right.keys()):
        return yours, right
    wrong = [key for key in right if not same(yours[key], right[key], close)]
    return {key: yours[key] for key in wrong}, {key: right[key] for key in wrong}


def with_hint(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, verdict: Verdict, yours: Any, case: Any
) -> Verdict:
    """Add a hint to a verdict, if there is one."""
    if not isinstance(yours, Rejected):  # its message is the hint
        try:
            verdict.hint, hint = find_hint(exercise, stage, seed, module, yours, case)
        except (Exception, TimeUp):  # a result may have any form, and the report must not fail
            verdict.hint, hint = "", ""
        if hint:
            verdict.lines += ["", *wrapped("Hint: " + hint)]
    return verdict


def numbers(case: tuple[Any, ...]) -> int:
    """Return the size of a case's largest array, list or table, a measure of how hard it is to follow by hand."""

    def count(x: Any, kind: type) -> int:
        if isinstance(x, (list, tuple, dict)):
            return sum(count(y, kind) for y in (x.values() if isinstance(x, dict) else x))
        return x.size if isinstance(x, np.ndarray) else int(isinstance(x, kind))

    return max(max((count(x, kind) for x in case), default=1) for kind in ((float,) if has_floats(case) else (int,)))


def has_floats(x: Any) -> bool:
    """Return whether a case contains floats; if so, its integers are only positions."""
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
    """Wrap a sentence into lines with the same indentation."""
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
