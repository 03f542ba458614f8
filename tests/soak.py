"""Check random examples of every case in tests/cases: correct gradients never fail. `python -m tests.soak 20000`.

The examples of the test suite are fixed; every run of this command tries new ones. It skips edges, which never change.
It prints the number of examples that have passed so far, and the total. `--jobs 2` runs two processes.
"""

import argparse
import math
import sys
import time
from multiprocessing import get_context

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import cases

CHUNK = 250  # examples of an entry per task, so that all processes stay busy until the end
WEIGHT = {"layer": 0.15, "model": 0.05}  # relative number of examples of kinds that are slower to check


def soak(entry: str, examples: int) -> int:
    """Check `examples` random calls to an entry and return the number drawn; raise the error of the first failure."""
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
    """Run a task; return the entry, the number of examples that passed, and the failure."""
    entry, examples = task
    try:
        return entry, soak(entry, examples), ""
    except Exception as error:
        return entry, 0, f"{type(error).__name__}: {error}"


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(total: int, jobs: int) -> int:
    """Distribute `total` examples over the entries by weight; return the exit status, 1 if a check failed."""
    weights = {entry: WEIGHT.get(entry.split()[0], 1.0) for entry in cases.ENTRIES}
    per_weight = total / sum(weights.values())
    numbers = {entry: math.ceil(per_weight * weight) for entry, weight in weights.items()}
    rounds = range(math.ceil(per_weight / CHUNK))
    tasks = [(e, chunk) for i in rounds for e, n in numbers.items() if (chunk := min(CHUNK, n - i * CHUNK)) > 0]
    done, failed, start = 0, set(), time.perf_counter()
    with get_context("spawn").Pool(jobs) as pool:
        for entry, passed, report in pool.imap_unordered(outcome, tasks):
            done += passed
            if report:
                failed.add(entry)
                write_line(f"\n{entry}: {report}")
            write_line(f"{done:>7} passed, {len(failed)} failed, {time.perf_counter() - start:.0f} s: {entry}")
    write_line(
        f"{done} examples of {len(cases.ENTRIES)} entries passed, {len(failed)} entries failed: {', '.join(failed)}"
    )
    return bool(failed)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=int, nargs="?", default=20_000)
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_arguments()
    sys.exit(main(options.examples, options.jobs))
