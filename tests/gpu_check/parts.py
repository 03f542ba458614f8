"""The parts of the check, each in its own process with a time limit; its output is recorded even if it fails."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
MAX_OUTPUT = 6000  # maximum number of characters recorded from an output
MIN_SECONDS = 5  # a part is skipped if less time is left
REHEARSAL_FACTOR = 5  # multiplies the time limits in a rehearsal, which may share its machine
SUITES = {  # name: the files for pytest, and its -k option in a rehearsal
    "kernels": (
        ["tests/npx/test_cuda_kernels.py", "tests/npx/test_cuda_attention.py"],
        "float32 and (equals_the_reference or source-dropout)",
    ),
    "operations, layers and laws": (["tests/autograd/testing/test_registry_checks.py"], "softmax"),
    "parity with torch": (["tests/test_parity_torch.py"], "paper-float32"),
}
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


class Outcome(NamedTuple):
    """The status of a part (passed, failed, timed out, skipped), its measured values, and its other output."""

    status: str
    values: dict[str, Any] = {}
    output: str = ""


class Part(NamedTuple):
    """The name of a part, its time limit in seconds, and a function that runs it within the seconds left."""

    name: str
    seconds: float
    run: Callable[[float], Outcome]


def parts(rehearse: bool) -> Iterator[Part]:
    """Yield all parts: first speed, then correctness, then the sanitizers and the slowest comparison."""

    def measurement(name: str, seconds: float) -> Part:
        return Part(name, seconds, lambda left: of_ours(name, left, rehearse))

    yield measurement("machine", 60)
    yield measurement("memory and calls", 60)
    yield measurement("matmuls", 60)
    yield measurement("steps: ours", 120)
    yield measurement("training step, with graph = without", 60)
    yield measurement("steps: ours-graph", 60)
    yield measurement("training step, cublasLt = CPU", 60)
    yield measurement("steps: ours-lt", 60)
    yield measurement("steps: ours-graph-lt", 60)
    yield measurement("steps: torch", 90)
    yield measurement("steps: floor", 60)
    yield measurement("training step, GPU = CPU", 60)
    yield measurement("short training", 60)
    yield measurement("a run", 60)
    for name in SUITES:
        yield Part(name, 120, lambda left, name=name: suite(name, left, rehearse))
    yield measurement("steps: torch-compile", 150)
    for tool in SANITIZERS:
        yield Part(f"compute-sanitizer {tool}", 45, lambda left, tool=tool: sanitizer(tool, left, rehearse))
    yield measurement("steps: torch-graph", 150)


def command(command: list[str], seconds: float, **environment: str) -> tuple[int | None, str]:
    """Run a command; return its exit status, or None if it was killed after `seconds`, and its output."""
    merged = os.environ | {"PYTHONUNBUFFERED": "1"} | environment
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=merged, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGKILL)  # with its child processes
            process.wait()
        output.seek(0)
        return status, output.read()


def ended(status: int | None) -> str:
    return "timed out" if status is None else "failed" if status else "passed"


def of_ours(name: str, seconds: float, rehearse: bool) -> Outcome:
    """Run a part of this package; lines of its output that are JSON objects are results."""
    needed = "torch" if name.startswith("steps: torch") else "pytest" if name == "a run" else None
    if needed and find_spec(needed) is None:
        return Outcome("skipped", output=f"{needed} is not installed")
    flags = ["--rehearse"] if rehearse else []
    status, output = command([PYTHON, "-m", "tests.gpu_check", "--part", name, *flags], seconds)
    values, other = {}, []
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            values |= value
        else:
            other.append(line)
    return Outcome(ended(status), values, "\n".join(other)[-MAX_OUTPUT:])


def suite(name: str, seconds: float, rehearse: bool) -> Outcome:
    """Run test files on the GPU with few examples in parallel; warnings of other packages are not errors."""
    needed = ("pytest", "hypothesis", "torch") if "torch" in name else ("pytest", "hypothesis")
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        return Outcome("skipped", output=f"{' and '.join(missing)} not installed")
    environment = {"NPX_TEST_ENGINE": "emulated" if rehearse else "cupy", "HYPOTHESIS_PROFILE": "few"}
    parallel = ["-n", str(min(8, os.cpu_count() or 1))] if find_spec("xdist") and not rehearse else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-W", "default", f"--junitxml={report}", "-p", "no:cacheprovider", "-m", ""]
        files, few = SUITES[name]
        choose = ["-k", few] if rehearse else []
        status, output = command(
            [PYTHON, "-m", "pytest", "-q", *parallel, *options, *files, *choose], seconds, **environment
        )
        counts = ElementTree.parse(report).getroot().find("testsuite").attrib if report.exists() else {}  # type: ignore
    numbers = {name: int(counts[name]) for name in ("tests", "failures", "errors", "skipped") if name in counts}
    ending = ended(status)
    if ending == "passed" and numbers.get("tests") == numbers.get("skipped"):
        ending = "skipped"
    return Outcome(ending, numbers, "" if ending == "passed" else output[-MAX_OUTPUT:])


def sanitizer(tool: str, seconds: float, rehearse: bool) -> Outcome:
    """Run every kernel under one tool of compute-sanitizer."""
    path = shutil.which("compute-sanitizer")
    if path is None:
        return Outcome("skipped", output="compute-sanitizer is not installed")
    flags = ["--rehearse"] if rehearse else []
    ours = [PYTHON, "-m", "tests.gpu_check", "--part", "every kernel", *flags]
    status, output = command([path, "--tool", tool, "--error-exitcode", "9", *ours], seconds)
    return Outcome(ended(status), output=output[-MAX_OUTPUT:])


def all_parts(
    out: Path, seconds: float, rehearse: bool, only: list[str], report: Callable[[str, Outcome, float], None]
) -> dict[str, Any]:
    """Run the parts whose names contain one of `only`, or all; write `out` and call `report` after each."""
    start, results, factor = time.monotonic(), {}, REHEARSAL_FACTOR if rehearse else 1
    for part in parts(rehearse):
        if only and part.name != "machine" and not any(word in part.name for word in only):
            continue
        part_start = time.monotonic()
        left = min(factor * part.seconds, factor * seconds - (part_start - start))
        outcome = part.run(left) if left >= MIN_SECONDS else Outcome("skipped", output="no time left")
        if part.name == "machine" and outcome.status != "passed":
            return {"machine": outcome._asdict()}
        took = round(time.monotonic() - part_start, 1)
        results[part.name] = {
            "status": outcome.status,
            "seconds": took,
            "values": outcome.values,
            "output": outcome.output,
        }
        out.write_text(json.dumps({"rehearsal": rehearse, "parts": results}, indent=1) + "\n")
        report(part.name, outcome, took)
    return results
