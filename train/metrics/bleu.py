"""Scores of translations: every BLEU that the paper and its readers mean, chrF and TER, each with its signature.

The same output has several BLEUs, points apart, which differ in how the text is cut into words before n-grams are
counted; a figure means nothing without its signature. The counting is sacreBLEU's (Post 2018), which gives the figure
of multi-bleu.perl for the same words wherever n-grams of every order match. `score_report` makes the report, which is
JSON, and `print_report` shows it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from rich.console import Console
from rich.table import Table
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest, Result
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from train.errors import UserError

SAMPLES = 1000  # of a bootstrap, where none are asked for


class Variant(NamedTuple):
    """One BLEU: its name, sacreBLEU's tokeniser, whether it lower-cases, whether it splits compounds, its use."""

    name: str
    tokenize: str
    lowercase: bool
    compounds: bool
    use: str


BLEUS = {
    "bleu_13a": Variant("BLEU 13a", "13a", False, False, "plain text; sacreBLEU's default, WMT's own"),
    "bleu_13a_lc": Variant("BLEU 13a, lower-cased", "13a", True, False, "plain text, case left out"),
    "bleu_intl": Variant("BLEU intl", "intl", False, False, "plain text; parts all Unicode punctuation"),
    "bleu_tok": Variant("BLEU as given", "none", False, False, "text tokenised already; multi-bleu.perl"),
    "bleu_tok_lc": Variant("BLEU as given, lower-cased", "none", True, False, "the same, case left out; Multi30k"),
    "bleu_compound": Variant(
        "BLEU compounds split", "none", False, True, "text tokenised already (Moses); the paper's 27.3 and 28.4 EN-DE"
    ),
    "bleu_compound_13a": Variant(
        "BLEU compounds split, 13a", "13a", False, True, "plain text; the nearest to the paper's without Moses"
    ),
}
OTHERS = {
    "chrf": (lambda: CHRF(), "chrF", "characters; higher is better"),
    "chrf++": (lambda: CHRF(word_order=2), "chrF++", "characters and words; higher is better"),
    "ter": (lambda: TER(), "TER", "edits per reference word; lower is better"),
}

WIDTH = 200  # characters
# ASCII, as in Perl, which reads bytes: only ASCII white space parts words here.
_COMPOUND = re.compile(r"(\S)-(\S)", re.ASCII)


def split_compounds(text: str) -> str:
    """Hyphens within a word as words: "rich-text" -> "rich ##AT##-##AT## text".

    The last step of the paper's EN-DE figures (tensor2tensor's get_ende_bleu.sh, after the form of GNMT's and
    Stanford's data). Matches do not overlap, there as here: "a-b-c" is parted once.
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


class Measure(NamedTuple):
    """One score: its name and use, sacreBLEU's metric, what is done to each line before, what its signature says."""

    name: str
    use: str
    metric: Any
    text: Callable[[str], str] | None = None
    also: tuple[str, str] = ("", "")  # replaced in the signature: what sacreBLEU has no name for

    def lines(self, lines: Sequence[str]) -> Sequence[str]:
        """The lines as the metric takes them."""
        return lines if self.text is None else [self.text(line.rstrip()) for line in lines]

    def signature(self, signature: Any) -> str:
        """A signature of the metric's, with all that was done."""
        return str(signature).replace(*self.also)


def bleu_measure(variant: Variant) -> Measure:
    """One BLEU as a score."""
    if not variant.compounds:
        metric = BLEU(tokenize=variant.tokenize, lowercase=variant.lowercase, force=True)
        return Measure(variant.name, variant.use, metric)
    words = Tokenizer13a() if variant.tokenize == "13a" else str.strip
    metric = BLEU(tokenize="none", lowercase=variant.lowercase, force=True)
    also = "tok:none", f"tok:{variant.tokenize}+##AT##"
    return Measure(variant.name, variant.use, metric, lambda line: split_compounds(words(line)), also)


def measures(ter: bool = True) -> Iterator[tuple[str, Measure]]:
    """Every score by its key."""
    yield from ((key, bleu_measure(variant)) for key, variant in BLEUS.items())
    for key, (make, name, use) in OTHERS.items():
        if key != "ter" or ter:
            yield key, Measure(name, use, make())


def score_one(
    measure: Measure,
    hypotheses: Sequence[str],
    references: Sequence[str],
    bootstrap: int = 0,
    baseline: Sequence[str] | None = None,
) -> dict[str, Any]:
    """One score of a corpus, see `score_report`; of a BLEU also precisions (%), brevity penalty, lengths (words)."""
    metric, found, expected = measure.metric, measure.lines(hypotheses), measure.lines(references)
    result = metric.corpus_score(found, [expected], n_bootstrap=bootstrap if baseline is None else 1)
    row = {"name": measure.name, "score": result.score, "use": measure.use}
    row["signature"] = measure.signature(metric.get_signature())
    if isinstance(metric, BLEU):
        row |= {"precisions": list(result.precisions), "brevity_penalty": result.bp}
        row |= {"hypothesis_length": result.sys_len, "reference_length": result.ref_len}
    if baseline is not None:
        systems = [("baseline", measure.lines(baseline)), ("system", found)]
        test = PairedTest(systems, {"score": metric}, [expected], test_type="bs", n_samples=bootstrap)
        signatures, columns = test()
        ((name, signature),) = signatures.items()
        before, own = cast(Sequence[Result], columns[name])
        row |= sure(own.mean, own.ci) | {"signature": measure.signature(signature)}
        row["baseline"] = {"score": before.score, **sure(before.mean, before.ci)}
        difference = own.score - before.score
        row |= {"difference": difference, "p_value": own.p_value if difference else 1.0}  # sacreBLEU: 1 / (samples + 1)
    elif bootstrap:
        row |= sure(result._mean, result._ci)
    return row


def sure(mean: Any, confidence: Any) -> dict[str, float]:
    """Mean over samples and half width of the interval, as JSON takes them."""
    return {"mean": float(mean), "confidence": float(confidence)}


def bleu(hypotheses: Sequence[str], references: Sequence[str], variant: Variant) -> dict[str, Any]:
    """One BLEU of a corpus: score, signature, precisions (%), brevity penalty, lengths (words)."""
    try:
        return score_one(bleu_measure(variant), hypotheses, references)
    finally:  # sacreBLEU keeps 65,536 lines for every tokeniser, for which a long training has no use
        for tokenizer in (Tokenizer13a, TokenizerRegexp, TokenizerV14International):
            cast(Any, tokenizer.__call__).cache_clear()


def score_report(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    ter: bool = True,
    bootstrap: int = 0,
    baseline: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Every score of a corpus: {"lines": n, "scores": {key: {"name", "score", "signature", "use", ...}}}.

    The keys are those of BLEUS, "chrf", "chrf++" and "ter" (which takes most of the time: `ter=False` leaves it out).
    `bootstrap`: so many samples of the lines, drawn with repetition, give each score the mean over them and the half
    width of its 95 % "confidence" interval (Koehn, 2004). With the translations of a `baseline` they are drawn alike
    for both, and give the "difference" a "p_value": how probable one as large is where the two are equally good.
    Raises UserError where the texts have unequal numbers of lines, or none.
    """
    _check_lines(hypotheses, references)
    if baseline is not None:
        _check_lines(baseline, references, "lines in the baseline")
        bootstrap = bootstrap or SAMPLES
    rows = {key: score_one(m, hypotheses, references, bootstrap, baseline) for key, m in measures(ter)}
    return {"lines": len(references), "scores": rows}


def corpus_bleu_for_validation(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """One BLEU alone, quick enough for every validation: 13a, or "none" for text that is tokenised already."""
    _check_lines(hypotheses, references)
    return bleu(hypotheses, references, Variant("", tokenize, lowercase, False, ""))["score"]


def _check_lines(hypotheses: Sequence[str], references: Sequence[str], what: str = "hypotheses") -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            "score: expected as many hypotheses as references, line i for line i; "
            f"got {len(hypotheses):,} {what} and {len(references):,} references; "
            "try translating the very source file that the references translate"
        )
    if not references:
        raise UserError("score: expected at least one line; got none; try other files")


# The columns of the report: what stands there for a score, "" for nothing.
CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "score": lambda row: figure(row),
    "baseline": lambda row: figure(row["baseline"]) if "baseline" in row else "",
    "difference": lambda row: f"{row['difference']:+.2f}" if "difference" in row else "",
    "p": lambda row: f"{row['p_value']:.4f}" if "p_value" in row else "",
    "1/2/3/4-grams": lambda row: "/".join(f"{p:.1f}" for p in row.get("precisions", ())),
    "BP": lambda row: f"{row['brevity_penalty']:.3f}" if "brevity_penalty" in row else "",
    "length": lambda row: f"{row['hypothesis_length']}/{row['reference_length']}" if "precisions" in row else "",
}


def figure(row: dict[str, Any]) -> str:
    """A score, and how sure it is."""
    return f"{row['score']:.2f}" + (f" ± {row['confidence']:.2f}" if "confidence" in row else "")


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """The report as a table, then what each score is for and its signature, each on a line of its own."""
    console = console or Console(width=WIDTH)  # a terminal that is narrower wraps it; cut, figures would be lost
    table = Table(box=None, title=f"{report['lines']:,} lines", title_justify="left", pad_edge=False)
    scores = report["scores"].values()
    columns = [name for name in CELLS if any(CELLS[name](row) for row in scores)]
    if "difference" in columns:  # on a terminal of 80 columns there is room for one of the two
        columns = [name for name in columns if name not in ("1/2/3/4-grams", "BP", "length")]
    for column in ("", *columns):
        table.add_column(column, justify="left" if column in ("", "1/2/3/4-grams") else "right", no_wrap=True)
    for row in scores:
        table.add_row(row["name"], *(CELLS[name](row) for name in columns))
    console.print(table)
    console.print()
    for row in scores:
        console.print(f"{row['name']}: {row['use']}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"  {row['signature']}", soft_wrap=True, highlight=False, markup=False)
