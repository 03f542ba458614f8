"""Many random examples over every case of tests/cases: right gradients never fail. `python -m tests.soak 20000`.

Unlike the test suite, whose examples are fixed, every run tries new ones; edges, which never change, are left to the
suite. Prints the passed so far and the total. `--jobs 2`: in two processes.
"""

import argparse
import math
import sys
import time
from multiprocessing import get_context

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import cases

PART = 250  # examples of an entry at a time, so that all processes are busy to the end
SHARE = {"layer": 0.15, "model": 0.05}  # of the examples of others: they take as many times as long


def soak(entry: str, examples: int) -> int:
    """Check `examples` random calls of an entry; returns how many were drawn. Raises what the check raises."""
    count = 0

    @settings(
        max_examples=examples,
        database=None,
        derandomize=False,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(data=st.data())
    def run(data):
        nonlocal count
        cases.check_drawn(entry, data)
        count += 1

    run()
    return count


def outcome(task: tuple[str, int]) -> tuple[str, int, str]:
    """An entry, how many of its examples passed, and what failed."""
    entry, examples = task
    try:
        return entry, soak(entry, examples), ""
    except Exception as error:
        return entry, 0, f"{type(error).__name__}: {error}"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(total: int, jobs: int) -> int:
    """Spread `total` examples, by how long they take; returns the exit status: 1 if a check failed."""
    shares = {entry: SHARE.get(entry.split()[0], 1.0) for entry in cases.ENTRIES}
    each = total / sum(shares.values())
    numbers = {entry: math.ceil(each * share) for entry, share in shares.items()}
    rounds = range(math.ceil(each / PART))
    tasks = [(e, part) for i in rounds for e, n in numbers.items() if (part := min(PART, n - i * PART)) > 0]
    done, failed, start = 0, set(), time.perf_counter()
    with get_context("spawn").Pool(jobs) as pool:
        for entry, passed, report in pool.imap_unordered(outcome, tasks):
            done += passed
            if report:
                failed.add(entry)
                say(f"\n{entry}: {report}")
            say(f"{done:>7} passed, {len(failed)} failed, {time.perf_counter() - start:.0f} s: {entry}")
    say(f"{done} examples of {len(cases.ENTRIES)} entries passed, {len(failed)} entries failed: {', '.join(failed)}")
    return bool(failed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=int, nargs="?", default=20_000)
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    sys.exit(main(chosen.examples, chosen.jobs))
