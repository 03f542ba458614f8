"""What each planted mistake takes to find: `python -m tests.mutants --seeds 20 --jobs 2 [WORD ...]`.

Without words, which choose the mistakes whose names have one of them, the table of docs/mutants.md is written anew.
"""

import argparse
import re
import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from tests import conftest  # noqa: F401  registers the profiles, as pytest does for the tests
from tests.mutants import KINDS, MUTANTS, find

PAGE = Path(__file__).parent.parent.parent / "docs" / "mutants.md"
MARK = "<!-- python -m tests.mutants writes what follows -->\n"
Row = tuple[int, int, float, str, str]  # number of a mutant, with how many seeds it was found, seconds, rule, report


def look(task: tuple[int, int]) -> Row:
    """Look for a mutant, by its number, with some seeds; the seconds are those of one search, the mean of all."""
    number, seeds = task
    found = []
    try:
        for seed in range(seeds):
            result = find(MUTANTS[number], seed)
            found += [result] if result else []
            if result and result.examples == 1:  # the edges, which are the first example with every seed
                found *= seeds
                break
    except Exception as error:  # the mistake itself fails
        return number, 0, 0.0, "", f"{type(error).__name__}: {error}".splitlines()[0]
    if not found:
        return number, 0, 0.0, "", ""
    rule, _ = Counter(result.rule for result in found).most_common(1)[0]
    said = re.sub(r"^\w+: (gradcheck|check_\w+): [\w, ]+: |;? most at .*", "", found[0].report.splitlines()[0])
    return number, len(found), sum(result.seconds for result in found) / len(found), rule, said


def table(rows: list[Row], seeds: int) -> str:
    """Mistakes by kind, as Markdown."""
    parts = []
    for kind, meaning in KINDS.items():
        lines = [
            f"| {MUTANTS[i].name} | {MUTANTS[i].entry} | {rule} | {count} of {seeds} | {seconds:.2f} | {said} |"
            for i, count, seconds, rule, said in sorted(rows)
            if MUTANTS[i].kind == kind
        ]
        if lines:
            head = "| Mistake | Entry | Rule | Found | Seconds | What the kit says |\n|---|---|---|---:|---:|---|\n"
            parts.append(f"\n## {kind.capitalize()}: {meaning}\n\n{head}" + "\n".join(lines) + "\n")
    return "".join(parts)


def main() -> int:
    """Exit status 1 where one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("words", nargs="*")
    chosen = parser.parse_args()
    tasks = [
        (i, chosen.seeds)
        for i, mutant in enumerate(MUTANTS)
        if not chosen.words or any(word in mutant.name or word == mutant.kind for word in chosen.words)
    ]
    rows: list[Row] = []
    with get_context("spawn").Pool(chosen.jobs) as pool:
        for row in pool.imap_unordered(look, tasks):
            rows.append(row)
            i, count, seconds, rule, said = row
            sys.stdout.write(f"{count:>3} of {chosen.seeds} {seconds:7.2f} s  {MUTANTS[i].name}: {rule}: {said}\n")
            sys.stdout.flush()
    missed = [MUTANTS[i].name for i, count, *_ in sorted(rows) if count < chosen.seeds]
    sys.stdout.write(f"{len(rows) - len(missed)} of {len(rows)} found with every seed; {missed}\n")
    if not chosen.words:
        text, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text(text + MARK + table(rows, chosen.seeds), encoding="utf-8")
    return bool(missed)
