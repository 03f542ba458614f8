"""Output of the commands `parse` and `score-trees`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from train.tasks.pairs import format_hypotheses
from train.tasks.parsing.evalb import ERROR, Report
from train.tasks.parsing.task import Parse
from train.tasks.parsing.trees import Tree


@dataclass
class WrittenParses:
    """Statistics of the parses that `write_parses` has written."""

    sentences: int = 0  # lines with at least one word
    repaired: int = 0
    first_tree: Tree | None = None

    def __str__(self) -> str:
        return f"repaired {self.repaired:,} of {self.sentences:,} outputs"


def write_parses(file: Any, parses: Iterable[Sequence[Parse]], n_best: int) -> WrittenParses:
    """Write the parses of each line to `file` as soon as they are available, in the format of `format_hypotheses`."""
    written = WrittenParses()
    for index, hypotheses in enumerate(parses):
        texts = [(str(parse), parse.score) for parse in hypotheses] or [("", 0.0)]
        file.write(format_hypotheses(texts, index, n_best) + "\n")
        file.flush()
        if hypotheses:
            written.sentences += 1
            written.repaired += hypotheses[0].repaired
            written.first_tree = written.first_tree or hypotheses[0].tree
    return written


def summarize(parses: Sequence[Sequence[Parse]], report: Report) -> Iterator[str]:
    """Yield lines with F1, recall, precision and the number of repairs, for all sentences and by length."""
    for name, counts in {
        "all": report.total,
        f"at most {report.cutoff}": report.up_to_cutoff,
        **report.by_length(),
    }.items():
        if counts.sentences:
            scores = f"F1 {counts.f1:6.2f}  recall {counts.recall:6.2f}  precision {counts.precision:6.2f}"
            yield f"{name + ' words':>17}: {counts.sentences:6,} sentences  {scores}"
    repaired = sum(hypotheses[0].repaired for hypotheses in parses)
    c = report.total
    yield f"repaired {repaired:,} of {len(parses):,} outputs; {c.errors:,} error sentences; {c.complete:,} exact trees"


def score_warnings(report: Report) -> Iterator[str]:
    """Yield a line for each sentence that is not scored, and one about root labels that only the gold trees have."""
    for number, sentence in enumerate(report.sentences, 1):
        if sentence.status == ERROR:
            yield f"sentence {number}: {sentence.error}; not scored"
    if report.extra_roots:
        yield (
            "gold trees with a root ((S ...)), (ROOT ...) or (S1 ...) that is missing in the scored tree: "
            f"{report.extra_roots:,}; EVALB counts each root as a missed bracket, parse --gold does not"
        )
