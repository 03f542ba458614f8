"""Runs the parts and keeps benchmarks/RELIABILITY.md: a row a part, replaced as soon as it has run."""

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

`make torture` (`python -m tests.torture`) writes this table, one row per part. A case is right if weights, Adam
moments, state and metrics equal, bit for bit, those of an undisturbed run, with the same files next to them; or, for
damaged files, if one line of output names the damage. `tests/torture/` has the exact criteria, and the test suite runs
some cases of each part.

| part | what was done | right | of | seconds | when, with |
|---|---|---|---|---|---|
"""


def parts(scale, minutes):
    """Name -> a function of the ground that gives (what was done, how many right, of how many)."""
    from tests.torture import damage, fuzz, runs

    def n(count):
        return max(1, round(count * scale))

    return {
        "kills": lambda g: runs.kills(g, n(100)),
        "writes": lambda g: runs.writes(g, scale),
        "terms": lambda g: runs.stops(g, n(20), signal.SIGTERM, twice=False),
        "interrupts": lambda g: runs.stops(g, n(20), signal.SIGINT, twice=True),
        "pairs": lambda g: runs.pairs(g, n(20)),
        "full": lambda g: runs.full(g, n(20)),
        "damage": lambda g: damage.damaged(g, n(200)),
        "fuzz": lambda g: fuzz.fuzzed(g, n(50_000)),
        "memory": lambda g: runs.memory(g, minutes * min(1.0, scale)),
    }


def noted(part, words, right, count, seconds, report=REPORT):
    """Puts a row into the report; what stands below the rows stays."""
    rows, below = {}, ""
    if report.exists():
        _, _, found = report.read_text(encoding="utf-8").partition(HEAD.splitlines(keepends=True)[-1])
        table = re.match(r"(\|.*\n)*", found).group()
        rows, below = dict(re.findall(r"^\| (\w+) (\|.*)$", table, re.MULTILINE)), found[len(table) :]
    when = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores"
    rows[part] = f"| {words} | {right:,} | {count:,} | {seconds:.0f} | {when} |"
    names = [name for name in parts(1.0, 60.0) if name in rows]
    report.write_text(HEAD + "".join(f"| {name} {rows[name]}\n" for name in names) + below, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=sys.modules["tests.torture"].__doc__)
    parser.add_argument("--only", default="", metavar="PART,PART", help="some parts")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="a share of the counts")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="of the long training")
    parser.add_argument("--folder", default="", metavar="DIR", help="where to; default: a temporary one")
    parser.add_argument("--report", default=str(REPORT), metavar="F", help="the report; default: %(default)s")
    a = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not come along into a fork
    os.environ.update(dict.fromkeys(("NPX_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    import npx
    from tests.torture.runs import Ground, beside

    npx.configure_process()
    chosen = parts(a.scale, a.minutes)
    names = [name for name in a.only.split(",") if name] or [*chosen]
    if unknown := {*names} - {*chosen}:
        parser.error(f"expected parts of {', '.join(chosen)}; got {', '.join(unknown)}")

    def say(text):
        sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
        sys.stdout.flush()

    folder, failed = Path(a.folder or tempfile.mkdtemp(prefix="torture-")), 0

    grounds = {name: Ground(folder / name, say) for name in names}  # they train, which two threads cannot do at once

    def run(name):
        nonlocal failed
        started = time.monotonic()
        words, right, count = chosen[name](grounds[name])
        seconds = time.monotonic() - started
        noted(name, words, right, count, seconds, Path(a.report))
        failed += count - right
        say(f"{name}: {right:,} of {count:,} right in {seconds:.0f} s: {words}")

    # The long training takes one core for as long as the others take the second one.
    waiting = beside(lambda: run("memory")) if "memory" in names else lambda: None
    for name in names:
        if name != "memory":
            run(name)
    waiting()
    say(f"{failed} wrong" if failed else "all right")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
