"""Recognize the mistake behind a wrong result, and return a hint about it."""

import ast
import builtins
import keyword
import re
import traceback
from collections import Counter
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from book.exercise import Stage
from book.files import Exercise, exercises
from book.relations import Pair, exchanged, relation
from book.results import agrees, check_of, copied, load, outcome, passes, same
from book.slips import Slip, limited, names_in, slips, types_of_names

SEEDS = range(4)  # results are compared on the cases of several seeds, because a short result can agree by chance


@cache
def known_wrong(exercise: Exercise) -> dict[str, tuple[str, ModuleType]]:
    """Map the name of each known wrong answer of an exercise to its hint and module."""
    known = {}
    for name, hint, source in exercise.wrong_answers:
        module = ModuleType(f"wrong_{exercise.name}_{name}")
        exec(compile(source, f"<{name}>", "exec"), module.__dict__)
        known[name] = hint, module
    return known


def find_hint(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, yours: Any, case: Any
) -> tuple[str, str]:
    """Return the name and text of a hint, or two empty strings.

    These are tried in order: a known wrong answer with the learner's results, a line that writes into an argument, a
    slip in a right answer that gives the learner's results, a relation to the right results, the stage's explanation.
    """
    right = stage.right(*copied(case))
    parts = wrong_parts(yours, right, stage.close)
    in_other_order = exchanged(Pair(None, None, None, yours, right))
    for part in (None,) if in_other_order else (None, *parts):
        name, hint = recognized(exercise, stage, seed, module, case, part)
        if hint:
            return name, hint
    hint = in_place(stage, module, case)
    if hint:
        return "in place", hint
    if not isinstance(yours, BaseException):
        hint = slip_hint(exercise, stage, seed, module, case, [None, *parts])
        if hint:
            return "slip", hint
        if isinstance(yours, np.ndarray):  # lists are too often equal by chance
            name, hint = recognized(exercise, stage, seed, module, case, None, only_here=True)
        if hint:
            return name, f"In this stage your results are those of a known mistake: {hint}"
    name, hint = general_relation(stage, seed, module, parts[0] if parts else None)
    if hint or not stage.explain or isinstance(yours, BaseException):
        return name, hint
    hint = stage.explain(yours, right, *copied(case))
    return ("explanation" if hint else ""), hint


def numbers_of(value: Any) -> list[Any]:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [x for x in parts if isinstance(x, (float, np.ndarray, np.floating))]


def is_finite(value: Any) -> bool:
    return all(bool(np.isfinite(x).all()) for x in numbers_of(value))


def is_zero(value: Any) -> bool:
    return bool(numbers_of(value)) and all(np.allclose(x, 0) for x in numbers_of(value))


def slip_hint(
    exercise: Exercise, stage: Stage, seed: int, module: ModuleType, case: Any, parts: list[int | None]
) -> str:
    """Describe a slip in a right answer that gives the learner's results in every case, or return an empty string.

    For each index in `parts`, only that part of the results is compared; for None, the complete results are. Of several
    slips that agree, the likeliest is described; a slip with a name that the learner's answer lacks is the last choice.
    """
    names = getattr(check_of(exercise), "NAMES", None)
    if names is None:
        return ""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    known = known_words(exercise) | words(text)
    used = names_in(ast.parse(text))
    cases = [(each, x) for each in similar_stages(exercise, stage) for n in SEEDS for x in each.cases(seed + n)]
    results = [compared(each, module, x) for each, x in cases]
    stages = check_of(exercise).STAGES
    earlier = stages[: stages.index(stage)]  # the learner's answer passes them
    mine = compared(stage, module, case)
    outcomes = ((outcome(each, module, x), each.right(*copied(x)), each.close) for each, x in cases)
    # Different mistakes can give the same nan, inf or 0.
    if not any(is_finite(x[0]) and not is_zero(x[0]) and not same(*x) for x in outcomes):
        return ""
    if not isinstance(mine, tuple) or not all(isinstance(x, np.ndarray) for x in mine):
        parts = [None]

    def fits(slip: Slip, part: int | None) -> bool:
        outcomes = (limited(compared, each, slip.module(), x) for each, x in cases)
        pairs = zip(outcomes, results, strict=True)
        return all(agrees(part_of(a, part), part_of(b, part)) for a, b in pairs) and all(
            limited(passes, each, seed, slip.module()) for each in earlier
        )

    best, hint = (2, 0), ""
    for path in [exercise.solution, *exercise.also_right]:
        first = [(slip, limited(compared, stage, slip.module(), case)) for slip in all_slips(exercise, path)]
        for part in parts:
            for slip, result in first:
                choice = part is not None, not {re.sub(r"_\d+$", "", name) for name in slip.inserted} <= used
                quoted = " ".join(slip.text.split("`")[1::2])
                if choice >= best or not words(quoted) <= known:
                    continue
                if agrees(part_of(result, part), part_of(mine, part)) and fits(slip, part):
                    best, hint = choice, slip.text
                    if part is not None:
                        hint = hint.replace("Your results are those", f"Number {part + 1} of your results is that", 1)
                    explained = words(re.sub(r"\.\w+", "", quoted)) & names.keys()  # without methods and functions
                    if explained:
                        meanings = [f"{name} is {names[name]}" for name in sorted(explained)]
                        hint += f" In our answer, {', '.join(meanings)}."
                if not any(best):
                    return hint
    return hint


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


@cache
def known_words(exercise: Exercise) -> set[str]:
    """Return the names that a description may use: those of Python, of the chapters so far and of the solution."""
    chapters = [each.chapter for each in exercises() if each.number <= exercise.number]
    text = " ".join(path.read_text(encoding="utf-8") for path in (*chapters, exercise.blank, exercise.solution))
    return words(text) | set(check_of(exercise).NAMES) | set(dir(builtins)) | set(keyword.kwlist)


def in_place(stage: Stage, module: ModuleType, case: Any) -> str:
    """Return a hint about a line that writes into an array among the arguments, or an empty string."""
    arguments = copied(case)
    for x in arguments:
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    try:
        stage.yours(module, *arguments)
    except (Exception, SystemExit) as error:
        lines = [x.line for x in traceback.extract_tb(error.__traceback__) if x.filename == module.__file__]
        if lines and "read-only" in str(error):
            return f"`{lines[-1]}` changes an argument in place: later uses see the changed numbers. Make a new array."
    return ""


@cache
def all_slips(exercise: Exercise, path: Path) -> list[Slip]:
    """Return the slips in a right answer."""
    runs = [partial(outcome, stage, load(path), next(iter(stage.cases(0)))) for stage in check_of(exercise).STAGES]
    return slips(path, types_of_names(path, runs))


def similar_stages(exercise: Exercise, stage: Stage) -> list[Stage]:
    """Return the stages that test the same function in the same way."""
    return [each for each in check_of(exercise).STAGES if each.yours.__code__ is stage.yours.__code__]


def compared(stage: Stage, module: ModuleType, case: tuple[Any, ...]) -> Any:
    """Return the outcome that is compared with those of known mistakes."""
    result = outcome(stage._replace(yours=stage.compared or stage.yours), module, case)
    # A traceback would keep its frames in memory.
    return result.with_traceback(None) if isinstance(result, BaseException) else result


def wrong_parts(yours: Any, right: Any, close: float) -> list[int]:
    """Return the indices of the wrong parts of a result with several parts; an empty list if it has one part."""
    if isinstance(yours, (tuple, list)) and isinstance(right, (tuple, list)) and len(yours) == len(right) > 1:
        return [i for i, (a, b) in enumerate(zip(yours, right, strict=True)) if not same(a, b, close)]
    return []


def part_of(result: Any, part: int | None) -> Any:
    return result[part] if part is not None and isinstance(result, (tuple, list)) and part < len(result) else result


def recognized(
    exercise: Exercise,
    stage: Stage,
    seed: int,
    module: ModuleType,
    case: Any,
    part: int | None,
    only_here: bool = False,
) -> tuple[str, str]:
    """Return the name and hint of the known wrong answer that gives the learner's results, or two empty strings.

    Two errors may agree on one case by chance, and a wrong hint is worse than none. So the comparison covers all cases
    of all stages that test the same function in the same way: a known answer must agree wherever the learner's result
    is wrong, and on three quarters of all cases. If several do, the closest one is chosen. It must pass the earlier
    stages, as the learner's answer does.

    With `part`, only that part of a result is compared, so each of two independent errors can be recognized. With
    `only_here`, a known answer must agree on all cases of this stage, because the learner may have made another mistake
    in the other stages. If `case` is finite, cases with infinite numbers are ignored.
    """
    known = known_wrong(exercise)
    yours = part_of(compared(stage, module, case), part)
    matching = [name for name, (_, m) in known.items() if agrees(part_of(compared(stage, m, case), part), yours)]
    agreed, cases = Counter[str](), 0  # number of agreeing cases per known answer, number of cases
    seeds = SEEDS if not isinstance(yours, np.ndarray) else (0,)
    for each in similar_stages(exercise, stage) if matching else []:
        for other in (case for n in seeds for case in each.cases(seed + n)):
            result = part_of(compared(each, module, other), part)
            agreeing = [m for m in matching if agrees(part_of(compared(each, known[m][1], other), part), result)]
            agreed.update(agreeing)
            cases += 1
            right = part_of(each.right(*copied(other)), part)
            actual = result if each.compared is None else part_of(outcome(each, module, other), part)
            wrong = isinstance(actual, BaseException) or not same(actual, right, each.close)
            if (each is stage and is_finite(other) >= is_finite(case)) if only_here else wrong:
                matching = agreeing
    if matching:
        nearest = max(agreed[name] for name in matching)
        matching = [name for name in matching if agreed[name] == nearest >= (0.75 - only_here) * cases]
    earlier = check_of(exercise).STAGES[: check_of(exercise).STAGES.index(stage)]
    matching = [name for name in matching if all(passes(each, seed, known[name][1]) for each in earlier)]
    return (matching[0], known[matching[0]][0]) if len(matching) == 1 else ("", "")


def general_relation(stage: Stage, seed: int, module: ModuleType, part: int | None) -> tuple[str, str]:
    """Return the name and text of a relation between the wrong results of a stage and the correct ones.

    The first wrong result is the one that the report shows.
    """
    pairs = []
    for case in stage.cases(seed):
        yours, right = outcome(stage, module, case), stage.right(*copied(case))
        if isinstance(yours, BaseException) or not same(part_of(yours, part), part_of(right, part), stage.close):
            doubled, rows = None, tuple[Any, ...]()
            if stage.linear:
                g, *rest = case
                doubled = outcome(stage, module, (2 * g, *rest))
                ends = (0, len(g) - 1) if g.shape[:1] > (1,) else ()
                alone = (np.where(np.indices(g.shape)[0] == i, g, 0) for i in ends)
                rows = tuple(part_of(stage.right(x, *copied(tuple(rest))), part) for x in alone)
            pairs.append(Pair(part_of(yours, part), part_of(right, part), part_of(doubled, part), yours, right, rows))
    return relation(pairs, part)
