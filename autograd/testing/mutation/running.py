"""Runs a person's tests with a mistake in their module, in processes of their own, and says what the tests noticed."""

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from autograd.testing.mutation.planting import Mistake, marked

SCRIPT = Path(__file__).with_name("planted.py")
FOUND, CRASHED, ENDLESS = "found", "crashed", "does not end"  # noticed by the tests
UNNOTICED, NOT_RUN = "unnoticed", "not run"  # not so
NO_TESTS_RAN = 5  # pytest's exit status
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPX_THREADS"), "1")


class UsageError(Exception):
    """What was expected, what was found, what to try."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said to a mistake: how it ended, the first test that failed and its error, seconds."""

    mistake: Mistake
    outcome: str
    test: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def noticed(self) -> bool:
        return self.outcome in (FOUND, CRASHED, ENDLESS)


class FirstRun(NamedTuple):
    """The tests without a mistake: `reached`, which of them get to each mistake's place, `names`, all that get to some.

    Mistakes that could change nothing, though tests get there, are not in `reached`: of a gradient that always is None,
    or written over one of another shape.
    """

    seconds: float
    reached: dict[int, list[str]]
    names: set[str]


class Runner:
    """Runs the tests of one module; `arguments`: what pytest is told."""

    def __init__(self, file: Path, text: str, arguments: list[str]) -> None:
        self.file, self.text, self.arguments = file, text, arguments
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock, self.stopped = Lock(), False

    def first_run(self, planted: list[Mistake]) -> FirstRun:
        """Run the tests as they are. UsageError unless they pass and import the module."""
        start = time.perf_counter()
        status, result, last = self.run(marked(self.text, planted))
        seconds = time.perf_counter() - start
        arguments = shlex.join(self.arguments)
        if status == NO_TESTS_RAN:
            raise UsageError(f"expected tests; pytest found none in {arguments}; try --tests PATH")
        if status != 0:
            got = ": ".join(result.get("failure", [])[:2]) or last
            raise UsageError(
                f"expected tests that pass before a mistake is planted; got {got}; try python -m pytest {arguments}"
            )
        if not result["loaded"]:
            raise UsageError(f"expected tests that import {self.file}; these do not: {arguments}; try --tests PATH")
        reached = {number: result["reached_by"].get(str(number), []) for number in range(len(planted))}
        given = {n: names for n, names in reached.items() if not names or n in result["can_change"]}
        return FirstRun(seconds, given, {name for names in reached.values() for name in names})

    def run_on_all(self, planted: list[Mistake], first: FirstRun, limit: float, jobs: int) -> Iterator[Outcome]:
        """The outcome of each mistake as it comes. Tests that never get to a mistake's place are left out."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                futures = []
                reaches = Counter(name for names in first.reached.values() for name in names)
                for number, names in first.reached.items():
                    if not names:
                        yield Outcome(planted[number], NOT_RUN)
                        continue
                    collecting = "" in names  # reached while tests are collected: it concerns them all
                    leave_out = set() if collecting else first.names - set(names)
                    special = sorted(names, key=lambda name: reaches[name])  # to this place: likely to notice, so first
                    futures.append(pool.submit(self.run_on, planted[number], sorted(leave_out), special, limit))
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()

    def run_on(self, mistake: Mistake, leave_out: list[str], special: list[str], limit: float) -> Outcome:
        """The outcome of one mistake."""
        start = time.perf_counter()
        status, result, last = self.run(mistake.planted_in(self.text), limit, leave_out, special)
        seconds = time.perf_counter() - start
        if status is None:
            return Outcome(mistake, ENDLESS, error=f"not done after {limit:.0f} s", seconds=seconds)
        if status in (0, NO_TESTS_RAN):
            return Outcome(mistake, UNNOTICED if status == 0 else NOT_RUN, seconds=seconds)
        test, error, how = result.get("failure") or ("", last, FOUND if result else CRASHED)
        return Outcome(mistake, how, test, error, seconds)

    def run(
        self, text: str, limit: float | None = None, leave_out: Sequence[str] = (), special: Sequence[str] = ()
    ) -> tuple[int | None, dict[str, Any], str]:
        """Run pytest with a text in the module's place. Its exit status, planted.py's result, the last line printed.

        None for a status: it did not end within `limit` seconds of processor time, which a busy machine does not
        shorten, nor ten times that by the clock. What pytest, hypothesis and coverage would keep in the current folder
        goes into one that is removed: neither it nor the next run shall see what was found here.
        """
        with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
            orders, result, output = (Path(folder) / name for name in ("orders", "result", "output"))
            how = {"limit": limit, "leave_out": [*leave_out], "first": [*special]}
            wanted = {"file": str(self.file), "text": text, "result": str(result), **how}
            orders.write_text(json.dumps(wanted), encoding="utf-8")
            elsewhere = {"HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/examples", "COVERAGE_FILE": f"{folder}/coverage"}
            command = [sys.executable, "-P", str(SCRIPT), str(orders), "-x", "-q", "-o", f"cache_dir={folder}/cache"]
            command += [*self.arguments, *(["-n0"] if importlib.util.find_spec("xdist") else [])]
            with self.lock, output.open("wb") as written:
                if self.stopped:
                    return None, {}, ""
                process = subprocess.Popen(
                    command,
                    env=ONE_THREAD | os.environ | elsewhere | {"PYTHONDONTWRITEBYTECODE": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a group of its own, to end with all that the tests start
                )
                self.running.add(process)
            try:
                status = process.wait(limit and 10 * limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self.end(process)
            lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            read = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
            return None if status == -signal.SIGXCPU else status, read, lines[-1] if lines else ""

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and what it started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        self.running.discard(process)

    def stop(self) -> None:
        """End all that runs, and start no more."""
        with self.lock:
            self.stopped = True
        for process in list(self.running):
            self.end(process)
