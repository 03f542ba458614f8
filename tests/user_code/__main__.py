"""Many seeds of what newcomers write: `python -m tests.user_code --runs 100 [--only NAME ...] [--jobs 2] [--naive]`.

Each right one is checked with that many seeds of its x, its sizes and its parameters, each wrong one with 20 of them at
most. Prints every false alarm in full, and what was missed; exit status 1 if there is any. `--naive`: which of the
wrong ones a plain test by central differences finds, without the kit.
"""

import argparse
import sys
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from tests.user_code import RIGHT, WRONG, Newcomer, check, naive

WRONG_SEEDS = 20
TOLERANCE = 1e-4  # relative, of the naive test


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def verdict(newcomer: Newcomer, seed: int) -> str:
    """What the check says: "" where it passes; for an exception that is not the kit's, "crash" and the traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(newcomer, seed)
    except AssertionError as error:
        return f"{type(error).__name__}, rule {getattr(error, 'rule', None)}: {error}"
    except Exception:
        return f"crash: {traceback.format_exc()}"
    return ""


def run(task: tuple[bool, int, int]) -> tuple[list[str], float, list[str]]:
    """Check one with every seed; returns what to print, the seconds it took, and the rules that spoke."""
    is_right, place, runs = task
    newcomer, start = (RIGHT if is_right else WRONG)[place], time.perf_counter()
    said = [verdict(newcomer, seed) for seed in range(runs if is_right else min(runs, WRONG_SEEDS))]
    if is_right:
        lines = [f"FALSE ALARM {newcomer.name}, seed {seed}: {text}" for seed, text in enumerate(said) if text]
    else:
        missed = [seed for seed, text in enumerate(said) if not text]
        lines = [f"MISSED {newcomer.name} [{newcomer.kind}] with {len(missed)} of {len(said)} seeds"] if missed else []
        lines += [f"{newcomer.name}, seed {seed}: {text}" for seed, text in enumerate(said) if text[:5] == "crash"]
    rules = sorted({text.split(":")[0] for text in said if text})
    return lines, time.perf_counter() - start, rules


def naive_finds(newcomer: Newcomer) -> bool:
    with np.errstate(all="ignore"):
        try:
            return naive(newcomer) > TOLERANCE
        except Exception:  # no answer is not the right answer
            return True


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 where there was a false alarm or a miss."""
    parser = argparse.ArgumentParser(prog="python -m tests.user_code", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--naive", action="store_true")
    options = parser.parse_args(arguments)
    chosen = [
        (is_right, place, options.runs)
        for is_right, entries in ((True, RIGHT), (False, WRONG))
        for place, newcomer in enumerate(entries)
        if not options.only or newcomer.name in options.only
    ]
    if options.naive:
        found = [WRONG[place].name for is_right, place, _ in chosen if not is_right and naive_finds(WRONG[place])]
        say(f"central differences alone find {len(found)}: {', '.join(found)}")
        return 0
    failed, total = 0, time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        for (is_right, place, _), (lines, seconds, rules) in zip(chosen, pool.map(run, chosen), strict=True):
            newcomer = (RIGHT if is_right else WRONG)[place]
            for line in lines:
                say(line)
            failed += bool(lines)
            what = "right" if is_right else "wrong"
            say(f"{seconds:7.2f} s  {what}  {newcomer.kind:13} {newcomer.name:32} {'; '.join(rules)}")
    say(f"{len(chosen)} checked, {failed} with false alarms or misses, {time.perf_counter() - total:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
