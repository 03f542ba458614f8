"""Scores of labeled brackets against gold trees, computed as in EVALB (Sekine and Collins, 1997).

A bracket is a label over a span of words. Words with a deleted tag (punctuation, traces) do not count, nor do brackets
with a deleted label or without words. Over all sentences, recall is the fraction of gold brackets that are predicted,
and precision is the fraction of predicted brackets that are in the gold tree. A sentence whose words differ from those
of the gold tree is an error sentence, which is counted but not scored.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.tasks.parsing.trees import ROOT_LABELS, TOP, Leaf, Tree, read_sentences, walk
from train.text.lines import numbered_lines

OK, ERROR, SKIPPED = 0, 1, 2  # values in EVALB's column "Stat."
QUOTES = ("'", '"', "/")
Parts = Sequence[Tree | Leaf]


@dataclass
class Parameters:
    """EVALB's parameters; the defaults are those of COLLINS.prm, with which results are usually reported."""

    delete_label: list[str] = field(default_factory=lambda: ["TOP", "-NONE-", ",", ":", "``", "''", "."])
    delete_label_for_length: list[str] = field(default_factory=lambda: ["-NONE-"])
    eq_label: list[tuple[str, str]] = field(default_factory=lambda: [("ADVP", "PRT")])
    eq_word: list[tuple[str, str]] = field(default_factory=list)
    quote_label: list[str] = field(default_factory=list)
    labeled: int = 1
    cutoff_len: int = 40

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Parameters":
        """Read a .prm file. DEBUG and MAX_ERROR are ignored: there is no limit on the number of error sentences.

        Raises UserError, with the line number, for an unknown parameter or an invalid value.
        """
        parameters = cls([], [], [], [], [])
        names = [f.name.upper() for f in fields(cls)]
        for number, line in numbered_lines(path):
            name, *values = line.split()[:3] if line.strip() and not line.startswith("#") else ["DEBUG", "0"]
            is_pair = name.startswith("EQ_")
            is_number = name in ("LABELED", "CUTOFF_LEN")
            if (
                name not in (*names, "DEBUG", "MAX_ERROR")
                or len(values) < 1 + is_pair
                or (is_number and not values[0].isdecimal())
            ):
                raise UserError(
                    f"{path}, line {number}: expected one of {', '.join(names)} and its value; got {line.strip()!r}; "
                    "try an EVALB parameter file, or omit --param for COLLINS.prm"
                )
            if is_number:
                setattr(parameters, name.lower(), int(values[0]))
            elif name in names:
                getattr(parameters, name.lower()).append((values[0], values[1]) if is_pair else values[0])
        return parameters

    def equal_labels(self, a: str, b: str) -> bool:
        """Return whether two labels count as equal."""
        return a == b or (a, b) in self.eq_label or (b, a) in self.eq_label


@dataclass
class Counts:
    """Counts over one or more sentences."""

    gold: int = 0  # brackets
    predicted: int = 0
    matched: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0  # correct tags
    complete: int = 0  # sentences with exactly the gold brackets
    no_crossing: int = 0
    few_crossing: int = 0  # sentences with at most 2 crossing brackets
    sentences: int = 0
    errors: int = 0
    skipped: int = 0  # sentences without words

    def add(self, other: "Counts") -> None:
        for f in fields(Counts):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    @property
    def recall(self) -> float:
        """Percentage of gold brackets that are predicted."""
        return _percent(self.matched, self.gold)

    @property
    def precision(self) -> float:
        """Percentage of predicted brackets that are in the gold tree."""
        return _percent(self.matched, self.predicted)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 where EVALB prints nan."""
        p, r = self.precision, self.recall
        return 2 * p * r / (p + r) if p + r else 0.0

    @property
    def valid(self) -> int:
        """Number of scored sentences."""
        return self.sentences - self.errors - self.skipped

    def as_dict(self) -> dict[str, float]:
        """Return EVALB's summary by name, with fractions in percent, rounded to two digits."""
        return {
            "sentences": self.sentences,
            "error_sentences": self.errors,
            "skipped_sentences": self.skipped,
            "valid_sentences": self.valid,
            "recall": round(self.recall, 2),
            "precision": round(self.precision, 2),
            "f1": round(self.f1, 2),
            "complete_match": round(_percent(self.complete, self.valid), 2),
            "crossing": round(_percent(self.crossing, self.valid, 1.0), 2),
            "no_crossing": round(_percent(self.no_crossing, self.valid), 2),
            "two_or_less_crossing": round(_percent(self.few_crossing, self.valid), 2),
            "tagging": round(_percent(self.tags, self.words), 2),
        }


def _percent(part: int, total: int, scale: float = 100.0) -> float:
    return scale * part / total if total else 0.0


@dataclass
class SentenceScore:
    """Score of one sentence: a row of EVALB's table."""

    length: int  # words, punctuation included
    status: int
    counts: Counts
    error: str = ""  # describes how the words of an ERROR sentence differ from the gold words


class _Brackets:
    """The remaining `leaves` of a sentence, and its `spans` [start, end, label] in the order of opening brackets."""

    def __init__(self, parts: Parts, parameters: Parameters) -> None:
        self.leaves: list[Leaf] = []
        self.length = 0
        self.quotes: list[list[Any]] = []  # [leaf, number of words before, number of spans before, open spans]
        self.spans: list[list[Any]] = []
        spans = self.spans
        stack = list[int]()
        for part in walk(Tree("", parts)):
            if isinstance(part, Tree):
                stack.append(len(spans))
                spans.append([len(self.leaves), 0, part.label])
            elif isinstance(part, Leaf):
                self.length += part.tag not in parameters.delete_label_for_length
                if part.tag in parameters.quote_label and part.word in QUOTES:
                    self.quotes.append([part, len(self.leaves), len(spans), stack[:]])
                if part.tag not in parameters.delete_label:
                    self.leaves.append(part)
            else:
                spans[stack.pop()][1] = len(self.leaves)

    def restore_quote(self, quote: int) -> None:
        """Count a deleted quotation mark as a word, and shift the spans after it by one word."""
        leaf, index, n_spans, enclosing = self.quotes[quote]
        self.leaves.insert(index, leaf)
        for span in self.spans[n_spans:]:
            span[0] += 1
            span[1] += 1
        for i in enclosing:
            self.spans[i][1] += 1
        for later in self.quotes[quote:]:
            later[1] += 1

    def scored(self, parameters: Parameters) -> list[tuple[int, int, str]]:
        """Return the brackets that count in the scores, without their function tags."""
        brackets = []
        for start, end, label in self.spans[1:]:  # spans[0] is the artificial root
            label = label.split("-", 1)[0].split("=", 1)[0]
            if start != end and not any(parameters.equal_labels(label, name) for name in parameters.delete_label):
                brackets.append((start, end, label))
        return brackets


def score_sentence(gold: Parts, predicted: Parts, parameters: Parameters) -> SentenceScore:
    """Score one sentence; each side is the content of a line: one tree, several, or none."""
    a = _Brackets(gold, parameters)
    b = _Brackets(predicted, parameters)
    if not b.leaves:
        return SentenceScore(a.length, SKIPPED, Counts(sentences=1, skipped=1))
    if len(a.leaves) != len(b.leaves):
        _reconcile_quotes(a, b, parameters)
    if difference := _word_difference(a.leaves, b.leaves, parameters):
        return SentenceScore(a.length, ERROR, Counts(sentences=1, errors=1), difference)
    gold_brackets = a.scored(parameters)
    predicted_brackets = b.scored(parameters)
    matched = _matched(gold_brackets, predicted_brackets, parameters)
    crossing = _crossing(gold_brackets, predicted_brackets)
    counts = Counts(
        gold=len(gold_brackets),
        predicted=len(predicted_brackets),
        matched=matched,
        crossing=crossing,
        words=len(a.leaves),
        tags=sum(parameters.equal_labels(x.tag, y.tag) for x, y in zip(a.leaves, b.leaves, strict=True)),
        complete=matched == len(gold_brackets) == len(predicted_brackets),
        no_crossing=crossing == 0,
        few_crossing=crossing <= 2,
        sentences=1,
    )
    return SentenceScore(a.length, OK, counts)


def _reconcile_quotes(a: _Brackets, b: _Brackets, parameters: Parameters) -> None:
    """Restore each quotation mark that was deleted from only one tree because the two trees tag it differently."""
    for j, (other, position, *_) in enumerate(b.quotes):
        for i, (quote, index, *_) in enumerate(a.quotes):
            if index == position and quote.tag != other.tag:
                deleted = quote.tag in parameters.delete_label, other.tag in parameters.delete_label
                if deleted == (True, False):
                    a.restore_quote(i)
                elif deleted == (False, True):
                    b.restore_quote(j)


def _word_difference(gold: list[Leaf], predicted: list[Leaf], parameters: Parameters) -> str:
    """Describe the first difference between the words of two sentences, or return ""."""
    if len(gold) != len(predicted):
        return f"expected {len(gold)} words (not counting deleted ones); got {len(predicted)}"
    for x, y in zip(gold, predicted, strict=True):
        if x.word != y.word and not {(x.word, y.word), (y.word, x.word)} & {*parameters.eq_word}:
            return f"expected the word {x.word!r}; got {y.word!r}"
    return ""


def _matched(gold: list[tuple[int, int, str]], predicted: list[tuple[int, int, str]], parameters: Parameters) -> int:
    """Count the gold brackets that match a predicted bracket in span and label; a bracket matches at most once."""
    labels = defaultdict(list)
    for start, end, label in predicted:
        labels[start, end].append(label)
    matched = 0
    for start, end, label in gold:
        candidates = labels[start, end]
        for i, candidate in enumerate(candidates):
            if not parameters.labeled or parameters.equal_labels(label, candidate):
                del candidates[i]
                matched += 1
                break
    return matched


def _crossing(gold: list[tuple[int, int, str]], predicted: list[tuple[int, int, str]]) -> int:
    """Count the predicted brackets that partially overlap a gold bracket."""
    spans = {(start, end) for start, end, _ in gold}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for start, end, _ in predicted)


# ---- files


@dataclass
class Report:
    """Scores of all sentences, their sums, and the sums over sentences of at most `cutoff` words."""

    sentences: list[SentenceScore]
    total: Counts
    up_to_cutoff: Counts
    cutoff: int
    extra_roots: int = 0  # gold trees with a root (...), (ROOT ...) or (S1 ...) that the predicted tree does not have

    def as_dict(self) -> dict[str, float | dict[str, float]]:
        """Return `Counts.as_dict` of all sentences.

        The result's key "up_to_40" (for a cutoff of 40) holds `Counts.as_dict` of the short sentences.
        """
        return {**self.total.as_dict(), f"up_to_{self.cutoff}": self.up_to_cutoff.as_dict()}

    def by_length(self, edges: Sequence[int] = (10, 20, 30, 40, 60)) -> dict[str, Counts]:
        """Return the sums for each range of sentence lengths (in words); `edges` separate the ranges."""
        names = [f"{low + 1}-{high}" for low, high in zip((0, *edges), edges, strict=False)] + [f"over {edges[-1]}"]
        sums = {name: Counts() for name in names}
        for sentence in self.sentences:
            sums[names[sum(sentence.length > edge for edge in edges)]].add(sentence.counts)
        return sums


def score(pairs: Iterable[tuple[Parts, Parts]], parameters: Parameters | None = None) -> Report:
    """Score (gold, predicted) pairs of sentences."""
    parameters = parameters or Parameters()
    report = Report([score_sentence(*pair, parameters) for pair in pairs], Counts(), Counts(), parameters.cutoff_len)
    for sentence in report.sentences:
        report.total.add(sentence.counts)
        if sentence.length <= parameters.cutoff_len:
            report.up_to_cutoff.add(sentence.counts)
    return report


def score_files(gold: Path, predicted: Path, parameters: Parameters | None = None) -> Report:
    """Score the trees of a file against gold trees.

    Raises UserError for invalid files, or if their numbers of sentences differ.
    """
    a, b = read_sentences(gold), read_sentences(predicted)
    if len(a) != len(b):
        raise UserError(
            f"{gold}, {predicted}: expected equal numbers of sentences, one tree per line; "
            f"got {len(a):,} and {len(b):,}; try an empty line for each missing tree"
        )
    pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
    report = score(pairs, parameters)
    report.extra_roots = sum(bool(y and (roots(x) - roots(y) - {TOP})) for x, y in pairs)
    return report


def roots(parts: Parts) -> set[str]:
    """Return the labels of the top-level constituents that are roots of a treebank."""
    return {part.label for part in parts if isinstance(part, Tree)} & {*ROOT_LABELS}


def evalb_table(report: Report) -> Iterator[str]:
    """Yield the lines of EVALB's output."""
    separator = "=" * 76
    yield "  Sent.                        Matched  Bracket   Cross        Correct Tag"
    yield " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"
    yield separator
    for number, sentence in enumerate(report.sentences, 1):
        c = sentence.counts
        yield (
            f"{number:4d}  {sentence.length:3d}    {sentence.status}  {c.recall:6.2f} {c.precision:6.2f}   "
            f"{c.matched:3d}    {c.gold:3d}  {c.predicted:3d}    {c.crossing:3d}   {c.words:4d}  {c.tags:4d}   "
            f"{_percent(c.tags, c.words):6.2f}"
        )
    yield separator
    c = report.total
    brackets = f"{c.matched:6d} {c.gold:5d} {c.predicted:5d}  {c.crossing:5d}"
    first = f"                {c.recall:6.2f} {c.precision:6.2f} {brackets}" if c.gold and c.predicted else ""
    yield f"{first}  {c.words:5d} {c.tags:5d}   {_percent(c.tags, c.words):6.2f}"
    yield "=== Summary ==="
    for title, counts in (("All", report.total), (f"len<={report.cutoff}", report.up_to_cutoff)):
        yield from ("", f"-- {title} --")
        for name, value in zip(_NAMES, counts.as_dict().values(), strict=True):
            yield f"{name:<26}= " + (f"{value:6d}" if isinstance(value, int) else f"{value:6.2f}")


_NAMES = (
    "Number of sentence",
    "Number of Error sentence",
    "Number of Skip  sentence",
    "Number of Valid sentence",
    "Bracketing Recall",
    "Bracketing Precision",
    "Bracketing FMeasure",
    "Complete match",
    "Average crossing",
    "No crossing",
    "2 or less crossing",
    "Tagging accuracy",
)
