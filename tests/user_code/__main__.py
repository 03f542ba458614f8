"""Check user code with many seeds: `python -m tests.user_code --runs 100 [--only NAME ...] [--jobs 2] [--naive]`.

Correct code is checked with that many seeds of its x, sizes and parameters, wrong code with at most 20. Prints every
false alarm in full and every missed bug; the exit status is 1 if there is one. `--naive` lists the wrong code that
plain central differences detect.
"""

import argparse
import sys
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from tests.user_code import RIGHT, WRONG, UserCode, central_difference_error, check

WRONG_SEEDS = 20
TOLERANCE = 1e-4  # relative, of central differences


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def verdict(code: UserCode, seed: int) -> str:
    """Return the report of the checker; "" if it passes, "crash" and the traceback for any other exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(code, seed)
    except AssertionError as error:
        return f"{type(error).__name__}, rule {getattr(error, 'rule', None)}: {error}"
    except Exception:
        return f"crash: {traceback.format_exc()}"
    return ""


def run(task: tuple[bool, int, int]) -> tuple[list[str], float, list[str]]:
    """Check one entry with every seed; return the lines to print, the seconds, and the violated rules."""
    is_right, index, runs = task
    code, start = (RIGHT if is_right else WRONG)[index], time.perf_counter()
    reports = [verdict(code, seed) for seed in range(runs if is_right else min(runs, WRONG_SEEDS))]
    if is_right:
        lines = [f"FALSE ALARM {code.name}, seed {seed}: {text}" for seed, text in enumerate(reports) if text]
    else:
        missed = [seed for seed, text in enumerate(reports) if not text]
        lines = [f"MISSED {code.name} [{code.kind}] with {len(missed)} of {len(reports)} seeds"] if missed else []
        lines += [f"{code.name}, seed {seed}: {text}" for seed, text in enumerate(reports) if text[:5] == "crash"]
    rules = sorted({text.split(":")[0] for text in reports if text})
    return lines, time.perf_counter() - start, rules


def detected_by_central_differences(code: UserCode) -> bool:
    with np.errstate(all="ignore"):
        try:
            return central_difference_error(code) > TOLERANCE
        except Exception:  # an error counts as detection
            return True


def main(arguments: list[str]) -> int:
    """Return the exit status: 1 after a false alarm or a missed bug."""
    parser = argparse.ArgumentParser(prog="python -m tests.user_code", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--naive", action="store_true")
    options = parser.parse_args(arguments)
    tasks = [
        (is_right, index, options.runs)
        for is_right, entries in ((True, RIGHT), (False, WRONG))
        for index, code in enumerate(entries)
        if not options.only or code.name in options.only
    ]
    if options.naive:
        detected = [
            WRONG[index].name
            for is_right, index, _ in tasks
            if not is_right and detected_by_central_differences(WRONG[index])
        ]
        report(f"central differences detect {len(detected)}: {', '.join(detected)}")
        return 0
    failed, start = 0, time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        for (is_right, index, _), (lines, seconds, rules) in zip(tasks, pool.map(run, tasks), strict=True):
            code = (RIGHT if is_right else WRONG)[index]
            for line in lines:
                report(line)
            failed += bool(lines)
            kind = "right" if is_right else "wrong"
            report(f"{seconds:7.2f} s  {kind}  {code.kind:13} {code.name:32} {'; '.join(rules)}")
    report(f"{len(tasks)} checked, {failed} with false alarms or misses, {time.perf_counter() - start:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
