"""Many random examples over every case of tests/cases: right gradients never fail. `python -m tests.soak 20000`.

Unlike the test suite, whose examples are fixed, every run tries new ones. Prints the passed so far and the total.
"""

import sys
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import cases


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
        cases.check(entry, data)
        count += 1

    run()
    return count


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(total: int) -> int:
    """Spread `total` examples evenly; returns the exit status: 1 if a check failed."""
    each, done, failed, start = -(-total // len(cases.ENTRIES)), 0, [], time.perf_counter()
    for entry in cases.ENTRIES:
        try:
            done += soak(entry, each)
        except AssertionError as error:
            failed.append(entry)
            say(f"\n{entry}: {error}")
        say(f"{done:>7} passed, {len(failed)} failed, {time.perf_counter() - start:.0f} s: {entry}")
    say(f"{done} examples of {len(cases.ENTRIES)} entries passed, {len(failed)} entries failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
