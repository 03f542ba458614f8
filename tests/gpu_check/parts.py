"""The parts of the check, each in a process of its own with a limit of time; what it prints is kept however it ends."""

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
MOST = 6000  # characters of an output that are kept
NEVER_BELOW = 5  # seconds: with less left a part is not begun
PATIENCE = 5  # times as long may a rehearsal take, which may share its machine
SUITES = {  # name: what pytest runs, and what it chooses of that in a rehearsal
    "kernels": (
        ["tests/npx/test_cuda_kernels.py", "tests/npx/test_cuda_attention.py"],
        "float32 and (equals_the_reference or source-dropout)",
    ),
    "operations, layers and laws": (["tests/autograd/testing/test_registry_checks.py"], "softmax"),
    "parity with torch": (["tests/test_parity_torch.py"], "paper-float32"),
}
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


class Outcome(NamedTuple):
    """How a part ended (passed, failed, timed out, skipped), the figures it found, and what else it said."""

    status: str
    found: dict[str, Any] = {}
    said: str = ""


class Part(NamedTuple):
    """A name, the most seconds it gets, and what runs it within the seconds left."""

    name: str
    seconds: float
    run: Callable[[float], Outcome]


def parts(rehearse: bool) -> Iterator[Part]:
    """All of them: first what is fast, then what is right, last the sanitizers."""

    def own(name: str, seconds: float) -> Part:
        return Part(name, seconds, lambda left: of_ours(name, left, rehearse))

    yield own("machine", 60)
    yield own("memory and calls", 60)
    yield own("products", 60)
    yield own("steps: ours", 120)
    yield own("training step, graph = none", 60)
    yield own("steps: ours-graph", 60)
    yield own("training step, cublasLt = CPU", 60)
    yield own("steps: ours-lt", 60)
    yield own("products by cublasLt", 60)
    yield own("steps: torch", 90)
    yield own("steps: floor", 60)
    yield own("training step, GPU = CPU", 60)
    yield own("short training", 60)
    yield own("a run", 60)
    for name in SUITES:
        yield Part(name, 120, lambda left, name=name: suite(name, left, rehearse))
    yield own("steps: torch-compile", 150)
    for tool in SANITIZERS:
        yield Part(f"compute-sanitizer {tool}", 45, lambda left, tool=tool: sanitizer(tool, left, rehearse))


def command(command: list[str], seconds: float, **environment: str) -> tuple[int | None, str]:
    """(exit status, or None where it was stopped after `seconds`; all that it wrote)."""
    given = os.environ | {"PYTHONUNBUFFERED": "1"} | environment
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=given, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGKILL)  # its own processes too
            process.wait()
        output.seek(0)
        return status, output.read()


def ended(status: int | None) -> str:
    return "timed out" if status is None else "failed" if status else "passed"


def of_ours(name: str, seconds: float, rehearse: bool) -> Outcome:
    """A part of this package: each line of its output that is a dictionary holds figures."""
    needed = {"steps: torch": "torch", "steps: torch-compile": "torch", "a run": "pytest"}.get(name)
    if needed and find_spec(needed) is None:
        return Outcome("skipped", said=f"{needed} is not installed")
    flags = ["--rehearse"] if rehearse else []
    status, output = command([PYTHON, "-m", "tests.gpu_check", "--part", name, *flags], seconds)
    found, said = {}, []
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            found |= value
        else:
            said.append(line)
    return Outcome(ended(status), found, "\n".join(said)[-MOST:])


def suite(name: str, seconds: float, rehearse: bool) -> Outcome:
    """Tests on the GPU, with fewer examples and as many processes as help; foreign packages may warn."""
    needed = ("pytest", "hypothesis", "torch") if "torch" in name else ("pytest", "hypothesis")
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        return Outcome("skipped", said=f"{' and '.join(missing)} not installed")
    environment = {"NPX_TEST_ENGINE": "emulated" if rehearse else "cupy", "HYPOTHESIS_PROFILE": "few"}
    many = ["-n", str(min(8, os.cpu_count() or 1))] if find_spec("xdist") and not rehearse else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        how = ["-W", "default", f"--junitxml={report}", "-p", "no:cacheprovider"]
        files, few = SUITES[name]
        choose = ["-k", few] if rehearse else []
        status, output = command([PYTHON, "-m", "pytest", "-q", *many, *how, *files, *choose], seconds, **environment)
        counts = ElementTree.parse(report).getroot().find("testsuite").attrib if report.exists() else {}  # type: ignore
    numbers = {name: int(counts[name]) for name in ("tests", "failures", "errors", "skipped") if name in counts}
    ending = ended(status)
    if ending == "passed" and numbers.get("tests") == numbers.get("skipped"):
        ending = "skipped"
    return Outcome(ending, numbers, "" if ending == "passed" else output[-MOST:])


def sanitizer(tool: str, seconds: float, rehearse: bool) -> Outcome:
    """Every kernel alone, under one of compute-sanitizer's tools."""
    path = shutil.which("compute-sanitizer")
    if path is None:
        return Outcome("skipped", said="compute-sanitizer is not installed")
    flags = ["--rehearse"] if rehearse else []
    ours = [PYTHON, "-m", "tests.gpu_check", "--part", "every kernel", *flags]
    status, output = command([path, "--tool", tool, "--error-exitcode", "9", *ours], seconds)
    return Outcome(ended(status), said=output[-MOST:])


def all_parts(
    out: Path, seconds: float, rehearse: bool, only: list[str], tell: Callable[[str, Outcome, float], None]
) -> dict[str, Any]:
    """Run the parts whose names contain one of `only`, or all; `out` is written after each, and it is told."""
    began, results, times = time.monotonic(), {}, PATIENCE if rehearse else 1
    for part in parts(rehearse):
        if only and part.name != "machine" and not any(word in part.name for word in only):
            continue
        started = time.monotonic()
        left = min(times * part.seconds, times * seconds - (started - began))
        outcome = part.run(left) if left >= NEVER_BELOW else Outcome("skipped", said="no time left")
        if part.name == "machine" and outcome.status != "passed":
            return {"machine": outcome._asdict()}
        took = round(time.monotonic() - started, 1)
        results[part.name] = {"status": outcome.status, "seconds": took, "found": outcome.found, "said": outcome.said}
        out.write_text(json.dumps({"rehearsal": rehearse, "parts": results}, indent=1) + "\n")
        tell(part.name, outcome, took)
    return results
