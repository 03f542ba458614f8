"""Run the tests of a module on its mutants, each in a separate process."""

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

from autograd.testing.mutation.mutator import Mutant, instrumented

SCRIPT = Path(__file__).with_name("planted.py")
FOUND, CRASHED, ENDLESS = "found", "crashed", "does not end"  # detected by the tests
UNNOTICED, NOT_RUN = "unnoticed", "not run"  # survivors
NO_TESTS_RAN = 5  # pytest's exit status
COLLECTION = ""  # the name of the running test while pytest collects tests; a mutant reached then affects all tests
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPX_THREADS"), "1")


class UsageError(Exception):
    """Wrong usage of a command. The message says what was expected, what was given and what to try."""


@dataclass(frozen=True)
class MutantResult:
    """The result of the tests on a mutant: the status, the first failed test, its error, and the time in seconds."""

    mutant: Mutant
    status: str
    test: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def detected(self) -> bool:
        return self.status in (FOUND, CRASHED, ENDLESS)


class FirstRun(NamedTuple):
    """The run of the tests on the original module.

    Attributes:
        seconds: the duration of the run.
        reached: the tests that reach the place of each mutant. Mutants that tests reach but that change nothing are
            omitted: their gradient is always None, or does not fit the array in which it would be stored.
        names: all tests that reach the place of any mutant.
    """

    seconds: float
    reached: dict[int, list[str]]
    names: set[str]


class Runner:
    """Run the tests of one module, with `arguments` for pytest."""

    def __init__(self, file: Path, text: str, arguments: list[str]) -> None:
        self.file, self.text, self.arguments = file, text, arguments
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock = Lock()
        self.stopped = False

    def first_run(self, mutants: list[Mutant]) -> FirstRun:
        """Run the tests on the original module. Raises UsageError unless the tests pass and import the module."""
        start = time.perf_counter()
        status, result, last = self.run(instrumented(self.text, mutants))
        seconds = time.perf_counter() - start
        arguments = shlex.join(self.arguments)
        if status == NO_TESTS_RAN:
            raise UsageError(f"expected tests in {arguments}; pytest found none there; try --tests PATH")
        if status != 0:
            got = ": ".join(result.get("failure", [])[:2]) or last
            raise UsageError(
                f"expected tests that pass on the original module; got {got}; try `python -m pytest {arguments}`"
            )
        if not result["loaded"]:
            raise UsageError(f"expected tests that import {self.file}; found none in {arguments}; try --tests PATH")
        reached = {number: result["reached_by"].get(str(number), []) for number in range(len(mutants))}
        effective = {n: names for n, names in reached.items() if not names or n in result["can_change"]}
        return FirstRun(seconds, effective, {name for names in reached.values() for name in names})

    def run_on_all(self, mutants: list[Mutant], first: FirstRun, limit: float, jobs: int) -> Iterator[MutantResult]:
        """Yield the result of each mutant as it completes; only tests that reach the mutated place run."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                futures = []
                n_reached = Counter(name for names in first.reached.values() for name in names)
                for number, names in first.reached.items():
                    if not names:
                        yield MutantResult(mutants[number], NOT_RUN)
                        continue
                    affects_all = COLLECTION in names
                    skipped = set() if affects_all else first.names - set(names)
                    order = sorted(names, key=lambda name: n_reached[name])  # the most specific tests first
                    futures.append(pool.submit(self.run_on, mutants[number], sorted(skipped), order, limit))
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()

    def run_on(self, mutant: Mutant, skipped: list[str], order: list[str], limit: float) -> MutantResult:
        """Run the tests on one mutant, except those in `skipped`; the tests in `order` run first."""
        start = time.perf_counter()
        exit_status, result, last = self.run(mutant.apply(self.text), limit, skipped, order)
        seconds = time.perf_counter() - start
        if exit_status is None:
            return MutantResult(mutant, ENDLESS, error=f"did not end after {limit:.0f} s", seconds=seconds)
        if exit_status in (0, NO_TESTS_RAN):
            return MutantResult(mutant, UNNOTICED if exit_status == 0 else NOT_RUN, seconds=seconds)
        test, error, status = result.get("failure") or ("", last, FOUND if result else CRASHED)
        return MutantResult(mutant, status, test, error, seconds)

    def run(
        self, text: str, limit: float | None = None, skipped: Sequence[str] = (), order: Sequence[str] = ()
    ) -> tuple[int | None, dict[str, Any], str]:
        """Run pytest with `text` as the source of the module. `skipped` and `order` are as for `run_on`.

        Returns the exit status, the result of planted.py and the last line of output. The status is None if the run
        exceeds `limit` seconds of CPU time or, on a busy machine, ten times as many seconds of wall time. The caches of
        pytest, hypothesis and coverage are written to a temporary folder, so runs do not influence each other.
        """
        with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
            task, result, output = (Path(folder) / name for name in ("task", "result", "output"))
            selection = {"limit": limit, "skipped": [*skipped], "order": [*order]}
            description = {"file": str(self.file), "text": text, "result": str(result), **selection}
            task.write_text(json.dumps(description), encoding="utf-8")
            caches = {"HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/examples", "COVERAGE_FILE": f"{folder}/coverage"}
            command = [sys.executable, "-P", str(SCRIPT), str(task), "-x", "-q", "-o", f"cache_dir={folder}/cache"]
            command += [*self.arguments, *(["-n0"] if importlib.util.find_spec("xdist") else [])]
            with self.lock, output.open("wb") as written:
                if self.stopped:
                    return None, {}, ""
                process = subprocess.Popen(
                    command,
                    env=ONE_THREAD | os.environ | caches | {"PYTHONDONTWRITEBYTECODE": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a process group, to kill it with its child processes
                )
                self.running.add(process)
            try:
                status = process.wait(limit and 10 * limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self.end(process)
            lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            parsed = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
            return None if status == -signal.SIGXCPU else status, parsed, lines[-1] if lines else ""

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its child processes."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        self.running.discard(process)

    def stop(self) -> None:
        """Kill all processes and start no new ones."""
        with self.lock:
            self.stopped = True
        for process in list(self.running):
            self.end(process)
