"""Labelled brackets of trees beside gold ones, counted as EVALB counts them (Sekine and Collins, 1997).

Each constituent is a label over a stretch of words. Words are counted without those whose tag is deleted (punctuation,
traces); a constituent with a deleted label, or over no words, is not counted. Recall is the share of gold brackets
found, precision the share of brackets that are gold ones, both over all sentences together. A sentence whose words are
not the gold ones is an error: it is counted, and left out of all else.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.tasks.parsing.trees import TOP, TOPS, Leaf, Tree, numbered_lines, read_sentences, walk

OK, ERROR, SKIPPED = 0, 1, 2  # EVALB's "Stat."
QUOTES = ("'", '"', "/")
Parts = Sequence[Tree | Leaf]


@dataclass
class Parameters:
    """What EVALB reads from a .prm file; the defaults are COLLINS.prm, with which everybody reports."""

    delete_label: list[str] = field(default_factory=lambda: ["TOP", "-NONE-", ",", ":", "``", "''", "."])
    delete_label_for_length: list[str] = field(default_factory=lambda: ["-NONE-"])
    eq_label: list[tuple[str, str]] = field(default_factory=lambda: [("ADVP", "PRT")])
    eq_word: list[tuple[str, str]] = field(default_factory=list)
    quote_label: list[str] = field(default_factory=list)
    labeled: int = 1
    cutoff_len: int = 40

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Parameters":
        """Reads a .prm file. DEBUG and MAX_ERROR are passed over: every sentence is scored, however many are errors.

        UserError, with the line, for what EVALB does not know.
        """
        found = cls([], [], [], [], [])
        known = [f.name.upper() for f in fields(cls)]
        for number, line in numbered_lines(path):
            name, *values = line.split()[:3] if line.strip() and not line.startswith("#") else ["DEBUG", "0"]
            pair = name.startswith("EQ_")
            number_wanted = name in ("LABELED", "CUTOFF_LEN")
            if (
                name not in (*known, "DEBUG", "MAX_ERROR")
                or len(values) < 1 + pair
                or (number_wanted and not values[0].isdecimal())
            ):
                raise UserError(
                    f"{path}, line {number}: expected one of {', '.join(known)} and its value; got {line.strip()!r}; "
                    "try a parameter file of EVALB, or none for COLLINS.prm"
                )
            if number_wanted:
                setattr(found, name.lower(), int(values[0]))
            elif name in known:
                getattr(found, name.lower()).append((values[0], values[1]) if pair else values[0])
        return found

    def alike(self, a: str, b: str) -> bool:
        """Whether two labels count as the same."""
        return a == b or (a, b) in self.eq_label or (b, a) in self.eq_label


@dataclass
class Counts:
    """What is counted, of a sentence or of many."""

    gold: int = 0  # brackets
    found: int = 0
    matched: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0  # right ones
    complete: int = 0  # sentences with exactly the gold brackets
    no_crossing: int = 0
    few_crossing: int = 0  # at most 2
    sentences: int = 0
    errors: int = 0
    skipped: int = 0  # those without a word

    def add(self, other: "Counts") -> None:
        for f in fields(Counts):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    @property
    def recall(self) -> float:
        return _percent(self.matched, self.gold)

    @property
    def precision(self) -> float:
        return _percent(self.matched, self.found)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 where EVALB divides 0 by 0 and prints nan."""
        p, r = self.precision, self.recall
        return 2 * p * r / (p + r) if p + r else 0.0

    @property
    def valid(self) -> int:
        """Sentences that are scored."""
        return self.sentences - self.errors - self.skipped

    def figures(self) -> dict[str, float]:
        """What EVALB sums up, by name, in percent where it is a share, to its two digits."""
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


def _percent(part: int, whole: int, of: float = 100.0) -> float:
    return of * part / whole if whole else 0.0


@dataclass
class SentenceScore:
    """One sentence beside its gold tree: EVALB's line of it."""

    length: int  # words, punctuation among them
    status: int
    counts: Counts
    why: str = ""  # what is wrong with an ERROR


class _Brackets:
    """A sentence as it is counted: `leaves` that are not deleted, `spans` [start, end, label] in order of opening."""

    def __init__(self, parts: Parts, how: Parameters) -> None:
        self.leaves: list[Leaf] = []
        self.length = 0
        self.quotes: list[list[Any]] = []  # [leaf, words before it, brackets before it, those of them that are open]
        self.spans: list[list[Any]] = []
        spans, stack = self.spans, list[int]()
        for part in walk(Tree("", parts)):
            if isinstance(part, Tree):
                stack.append(len(spans))
                spans.append([len(self.leaves), 0, part.label])
            elif isinstance(part, Leaf):
                self.length += part.tag not in how.delete_label_for_length
                if part.tag in how.quote_label and part.word in QUOTES:
                    self.quotes.append([part, len(self.leaves), len(spans), stack[:]])
                if part.tag not in how.delete_label:
                    self.leaves.append(part)
            else:
                spans[stack.pop()][1] = len(self.leaves)

    def put_back(self, quote: int) -> None:
        """Counts a quotation mark after all: what comes after it moves on by a word."""
        leaf, index, before, around = self.quotes[quote]
        self.leaves.insert(index, leaf)
        for span in self.spans[before:]:
            span[0] += 1
            span[1] += 1
        for i in around:
            self.spans[i][1] += 1
        for later in self.quotes[quote:]:
            later[1] += 1

    def counted(self, how: Parameters) -> list[tuple[int, int, str]]:
        """The brackets that count, without function tags."""
        found = []
        for start, end, label in self.spans[1:]:  # the first is ours, around all
            label = label.split("-", 1)[0].split("=", 1)[0]
            if start != end and not any(how.alike(label, name) for name in how.delete_label):
                found.append((start, end, label))
        return found


def score_sentence(gold: Parts, found: Parts, how: Parameters) -> SentenceScore:
    """A sentence beside its gold one, each what stands on a line: a tree, several, or none."""
    a, b = _Brackets(gold, how), _Brackets(found, how)
    if not b.leaves:
        return SentenceScore(a.length, SKIPPED, Counts(sentences=1, skipped=1))
    if len(a.leaves) != len(b.leaves):
        _settle_quotes(a, b, how)
    if wrong := _different_words(a.leaves, b.leaves, how):
        return SentenceScore(a.length, ERROR, Counts(sentences=1, errors=1), wrong)
    brackets, others = a.counted(how), b.counted(how)
    matched, crossing = _matched(brackets, others, how), _crossing(brackets, others)
    tags = sum(how.alike(x.tag, y.tag) for x, y in zip(a.leaves, b.leaves, strict=True))
    complete = matched == len(brackets) == len(others)
    counts = Counts(len(brackets), len(others), matched, crossing, len(a.leaves), tags, complete)
    counts.no_crossing, counts.few_crossing, counts.sentences = crossing == 0, crossing <= 2, 1
    return SentenceScore(a.length, OK, counts)


def _settle_quotes(a: _Brackets, b: _Brackets, how: Parameters) -> None:
    """Where one side deletes a quotation mark and the other, for its tag, does not, it counts on both."""
    for j, (theirs, place, *_) in enumerate(b.quotes):
        for i, (ours, index, *_) in enumerate(a.quotes):
            if index == place and ours.tag != theirs.tag:
                deleted = ours.tag in how.delete_label, theirs.tag in how.delete_label
                if deleted == (True, False):
                    a.put_back(i)
                elif deleted == (False, True):
                    b.put_back(j)


def _different_words(a: list[Leaf], b: list[Leaf], how: Parameters) -> str:
    """The first difference between two sentences, "" for none."""
    if len(a) != len(b):
        return f"expected {len(a)} words that count; got {len(b)}"
    for x, y in zip(a, b, strict=True):
        if x.word != y.word and not {(x.word, y.word), (y.word, x.word)} & {*how.eq_word}:
            return f"expected the word {x.word!r}; got {y.word!r}"
    return ""


def _matched(gold: list[tuple[int, int, str]], found: list[tuple[int, int, str]], how: Parameters) -> int:
    """Gold brackets for which there is one of the same words and label: each takes the first that is left."""
    left = defaultdict(list)
    for start, end, label in found:
        left[start, end].append(label)
    matched = 0
    for start, end, label in gold:
        here = left[start, end]
        i = next((i for i, other in enumerate(here) if not how.labeled or how.alike(label, other)), None)
        if i is not None:
            del here[i]
            matched += 1
    return matched


def _crossing(gold: list[tuple[int, int, str]], found: list[tuple[int, int, str]]) -> int:
    """Brackets found that overlap a gold one without one holding the other."""
    spans = {(start, end) for start, end, _ in gold}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for start, end, _ in found)


# ---- files


@dataclass
class Report:
    """All sentences, their sums, and the sums of those of at most `cutoff` words."""

    sentences: list[SentenceScore]
    all: Counts
    short: Counts
    cutoff: int
    other_roots: int = 0  # gold trees with a root (...), (ROOT ...) or (S1 ...) that the tree found has not

    def figures(self) -> dict[str, float | dict[str, float]]:
        """`Counts.figures` of all, and those of the short ones under "up_to_40" (or what the cut-off is)."""
        return {**self.all.figures(), f"up_to_{self.cutoff}": self.short.figures()}

    def by_length(self, edges: Sequence[int] = (10, 20, 30, 40, 60)) -> dict[str, Counts]:
        """The sums by length in words: up to the first edge, up to the second, ..., above the last."""
        names = [f"{low + 1}-{high}" for low, high in zip((0, *edges), edges, strict=False)] + [f"over {edges[-1]}"]
        sums = {name: Counts() for name in names}
        for sentence in self.sentences:
            sums[names[sum(sentence.length > edge for edge in edges)]].add(sentence.counts)
        return sums


def score(pairs: Iterable[tuple[Parts, Parts]], how: Parameters | None = None) -> Report:
    """Scores (gold, found) of each sentence."""
    how = how or Parameters()
    report = Report([score_sentence(*pair, how) for pair in pairs], Counts(), Counts(), how.cutoff_len)
    for sentence in report.sentences:
        report.all.add(sentence.counts)
        if sentence.length <= how.cutoff_len:
            report.short.add(sentence.counts)
    return report


def score_files(gold: Path, found: Path, how: Parameters | None = None) -> Report:
    """Scores the trees of a file beside the gold ones. UserError for what cannot be read, and unequal numbers."""
    a, b = read_sentences(gold), read_sentences(found)
    if len(a) != len(b):
        raise UserError(
            f"{gold}, {found}: expected equally many sentences, a tree a line; got {len(a):,} and {len(b):,}; "
            "try a hypothesis for each gold tree (an empty line where there is none)"
        )
    pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
    report = score(pairs, how)
    report.other_roots = sum(bool(y and (roots(x) - roots(y) - {TOP})) for x, y in pairs)
    return report


def roots(parts: Parts) -> set[str]:
    """The labels of what tops a treebank's trees, where these have it."""
    return {part.label for part in parts if isinstance(part, Tree)} & {*TOPS}


def table(report: Report) -> Iterator[str]:
    """EVALB's output, line by line."""
    rule = "=" * 76
    yield "  Sent.                        Matched  Bracket   Cross        Correct Tag"
    yield " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy"
    yield rule
    for number, sentence in enumerate(report.sentences, 1):
        c = sentence.counts
        yield (
            f"{number:4d}  {sentence.length:3d}    {sentence.status}  {c.recall:6.2f} {c.precision:6.2f}   "
            f"{c.matched:3d}    {c.gold:3d}  {c.found:3d}    {c.crossing:3d}   {c.words:4d}  {c.tags:4d}   "
            f"{_percent(c.tags, c.words):6.2f}"
        )
    yield rule
    c = report.all
    brackets = f"{c.matched:6d} {c.gold:5d} {c.found:5d}  {c.crossing:5d}"
    first = f"                {c.recall:6.2f} {c.precision:6.2f} {brackets}" if c.gold and c.found else ""
    yield f"{first}  {c.words:5d} {c.tags:5d}   {_percent(c.tags, c.words):6.2f}"
    yield "=== Summary ==="
    for title, counts in (("All", report.all), (f"len<={report.cutoff}", report.short)):
        yield from ("", f"-- {title} --")
        for name, value in zip(_NAMES, counts.figures().values(), strict=True):
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
