"""Scores of translations: several BLEU variants, chrF and TER, each with its sacreBLEU signature.

BLEU variants differ by several points because they tokenize the text differently before counting n-grams, so a score
is meaningless without its signature. sacreBLEU (Post, 2018) computes the scores. Given the same words, sacreBLEU agrees
with multi-bleu.perl if at least one n-gram of every order matches. `score_report` returns the scores as JSON, and
`print_report` prints them.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from rich.console import Console
from rich.table import Table
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest, Result
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from train.errors import UserError
from train.progress import format_metric

DEFAULT_SAMPLES = 1000  # bootstrap samples of a paired test


class Variant(NamedTuple):
    """A BLEU variant: name, sacreBLEU tokenizer, lowercasing, splitting of hyphenated compounds, intended use."""

    name: str
    tokenize: str
    lowercase: bool
    compounds: bool
    use: str


BLEUS = {
    "bleu_13a": Variant("BLEU 13a", "13a", False, False, "plain text; default of sacreBLEU and WMT"),
    "bleu_13a_lc": Variant("BLEU 13a, lowercase", "13a", True, False, "plain text, ignoring case"),
    "bleu_intl": Variant("BLEU intl", "intl", False, False, "plain text; splits off all Unicode punctuation"),
    "bleu_tok": Variant("BLEU tokenized", "none", False, False, "tokenized text; multi-bleu.perl"),
    "bleu_tok_lc": Variant("BLEU tokenized, lowercase", "none", True, False, "tokenized text, ignoring case; Multi30k"),
    "bleu_compound": Variant(
        "BLEU split compounds", "none", False, True, "text tokenized by Moses; the paper's 27.3 and 28.4 EN-DE"
    ),
    "bleu_compound_13a": Variant(
        "BLEU split compounds, 13a", "13a", False, True, "plain text; closest to the paper's BLEU without Moses"
    ),
}
OTHER_METRICS = {
    "chrf": (lambda: with_one_type(CHRF()), "chrF", "characters; higher is better"),
    "chrf++": (lambda: with_one_type(CHRF(word_order=2)), "chrF++", "characters and words; higher is better"),
    "ter": (lambda: with_one_type(TER()), "TER", "edits per reference word; lower is better"),
}

SCORES = (*BLEUS, *OTHER_METRICS)
SHORT_NAMES = {"bleu": "bleu_13a", "chrf2": "chrf", "chrf2++": "chrf++"}  # names of train.best_metric and sacreBLEU
WITHOUT_TER = tuple(key for key in SCORES if key != "ter")

WIDTH = 200  # characters
# re.ASCII, as in Perl, which reads bytes: only ASCII whitespace separates words.
_COMPOUND = re.compile(r"(\S)-(\S)", re.ASCII)


def split_compounds(text: str) -> str:
    """Split words at hyphens: "rich-text" -> "rich ##AT##-##AT## text".

    This is the last step of the paper's EN-DE evaluation, tensor2tensor's get_ende_bleu.sh. The script uses it to match
    the data of GNMT and Stanford. As in that script, matches do not overlap: "a-b-c" is split once.
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


class Measure(NamedTuple):
    """The definition of one score: name, intended use, sacreBLEU metric and preprocessing."""

    name: str
    use: str
    metric: Any
    preprocess: Callable[[str], str] | None = None
    replacement: tuple[str, str] = ("", "")  # (old, new) text in the signature; new names the preprocessing

    def lines(self, lines: Sequence[str]) -> Sequence[str]:
        """Return the preprocessed lines."""
        return lines if self.preprocess is None else [self.preprocess(line.rstrip()) for line in lines]

    def signature(self, signature: Any) -> str:
        """Return the metric's signature, which also names the preprocessing."""
        return str(signature).replace(*self.replacement)


def bleu_measure(variant: Variant) -> Measure:
    """Return the Measure of a BLEU variant."""
    if not variant.compounds:
        metric = BLEU(tokenize=variant.tokenize, lowercase=variant.lowercase, force=True)
        return Measure(variant.name, variant.use, metric)
    tokenize = Tokenizer13a() if variant.tokenize == "13a" else str.strip
    metric = BLEU(tokenize="none", lowercase=variant.lowercase, force=True)
    replacement = "tok:none", f"tok:{variant.tokenize}+##AT##"
    return Measure(variant.name, variant.use, metric, lambda line: split_compounds(tokenize(line)), replacement)


def measures(keys: Collection[str] = SCORES) -> Iterator[tuple[str, Measure]]:
    """Yield (key, Measure) for every score in `keys`."""
    yield from ((key, bleu_measure(variant)) for key, variant in BLEUS.items() if key in keys)
    yield from ((key, Measure(name, use, make())) for key, (make, name, use) in OTHER_METRICS.items() if key in keys)


def with_one_type(metric: Any) -> Any:
    """Make `metric` give the scores of all bootstrap samples one type; sacreBLEU cannot average mixed types."""
    compute_score = metric._compute_score_from_stats

    def compute(stats: Any) -> Any:
        result = compute_score(stats)
        if isinstance(stats, np.ndarray):  # a bootstrap sample
            result.score = stats.dtype.type(result.score)
        return result

    metric._compute_score_from_stats = compute
    return metric


def score_measure(
    measure: Measure,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    bootstrap: int = 0,
    baseline: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return one row of `score_report`; for BLEU, include the precisions (%), brevity penalty and lengths in words."""
    metric = measure.metric
    system = measure.lines(hypotheses)
    expected = [*map(measure.lines, references)]
    score = metric.corpus_score(system, expected, n_bootstrap=bootstrap if baseline is None else 1)
    row = {"name": measure.name, "score": score.score, "use": measure.use}
    row["signature"] = measure.signature(metric.get_signature())
    if isinstance(metric, BLEU):
        row |= {"precisions": list(score.precisions), "brevity_penalty": score.bp}
        row |= {"hypothesis_length": score.sys_len, "reference_length": score.ref_len}
    if baseline is not None:
        systems = [("baseline", measure.lines(baseline)), ("system", system)]
        test = PairedTest(systems, {"score": metric}, expected, test_type="bs", n_samples=bootstrap)
        signatures, columns = test()
        ((name, signature),) = signatures.items()
        baseline_result, result = cast(Sequence[Result], columns[name])
        row |= confidence_interval(result.mean, result.ci) | {"signature": measure.signature(signature)}
        row["baseline"] = {
            "score": baseline_result.score, **confidence_interval(baseline_result.mean, baseline_result.ci)
        }  # fmt: skip
        difference = result.score - baseline_result.score
        p_value = result.p_value if difference else 1.0  # for equal systems sacreBLEU returns 1 / (samples + 1)
        row |= {"difference": difference, "p_value": p_value}
    elif bootstrap:
        row |= confidence_interval(score._mean, score._ci)
    return row


def confidence_interval(mean: Any, half_width: Any) -> dict[str, float]:
    """Return the mean over bootstrap samples and the half width of the confidence interval, for JSON."""
    return {"mean": float(mean), "confidence": float(half_width)}


def bleu(hypotheses: Sequence[str], references: Sequence[str], variant: Variant) -> dict[str, Any]:
    """Return one BLEU row for a corpus: score, signature, precisions (%), brevity penalty, lengths (words)."""
    try:
        return score_measure(bleu_measure(variant), hypotheses, [references])
    finally:  # sacreBLEU caches 65,536 lines per tokenizer, which wastes memory in a long training run
        for tokenizer in (Tokenizer13a, TokenizerRegexp, TokenizerV14International):
            cast(Any, tokenizer.__call__).cache_clear()


def score_report(
    hypotheses: Sequence[str],
    *references: Sequence[str],
    metrics: Collection[str] = SCORES,
    bootstrap: int = 0,
    baseline: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return scores of a corpus: {"lines": n, "scores": {key: {"name", "score", "signature", "use", ...}}}.

    Args:
        hypotheses: the translations to score.
        references: one or more texts, each with a reference translation of each hypothesis.
        metrics: keys of the scores to compute; TER takes most of the time.
        bootstrap: number of bootstrap samples of the lines (Koehn, 2004); 0 computes no intervals. Each score then has
            the "mean" over the samples and, as "confidence", the half width of its 95% confidence interval.
        baseline: translations of another system. Each score then has the "baseline" score, the "difference" from it and
            its "p_value" in a paired bootstrap test: the probability of a difference this large between systems of
            equal quality. The test uses 1,000 samples unless `bootstrap` is given.

    Raises UserError if the numbers of lines differ or the texts are empty.
    """
    for lines in references:
        _check_lines(hypotheses, lines)
    if baseline is not None:
        _check_lines(baseline, references[0], "lines in the baseline")
        bootstrap = bootstrap or DEFAULT_SAMPLES
    rows = {key: score_measure(m, hypotheses, references, bootstrap, baseline) for key, m in measures(metrics)}
    return {"lines": len(hypotheses), "scores": rows}


def corpus_bleu_for_validation(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """Return a corpus BLEU score; `tokenize` is "13a", or "none" for tokenized text."""
    _check_lines(hypotheses, references)
    return bleu(hypotheses, references, Variant("", tokenize, lowercase, False, ""))["score"]


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the chrF of a corpus."""
    _check_lines(hypotheses, references)
    return float(CHRF().corpus_score(hypotheses, [references]).score)


def _check_lines(hypotheses: Sequence[str], references: Sequence[str], noun: str = "hypotheses") -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            "score: expected equal numbers of hypotheses and references; "
            f"got {len(hypotheses):,} {noun} and {len(references):,} references; "
            "try translating the source file that belongs to the references"
        )
    if not references:
        raise UserError("score: expected at least one line; got empty files; try other files")


# The columns of the report, and for each a function that formats the cell of a score ("" for an empty cell).
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "score": lambda row: format_score(row),
    "baseline": lambda row: format_score(row["baseline"]) if "baseline" in row else "",
    "difference": lambda row: f"{row['difference']:+.2f}" if "difference" in row else "",
    "p-value": lambda row: f"{row['p_value']:.4f}" if "p_value" in row else "",
    "1/2/3/4-grams": lambda row: "/".join(f"{p:.1f}" for p in row.get("precisions", ())),
    "BP": lambda row: f"{row['brevity_penalty']:.3f}" if "brevity_penalty" in row else "",
    "length": lambda row: f"{row['hypothesis_length']}/{row['reference_length']}" if "precisions" in row else "",
}


def format_score(row: dict[str, Any]) -> str:
    """Return a score and its confidence interval as text."""
    return format_metric(row["score"]) + (f" ± {row['confidence']:.2f}" if "confidence" in row else "")


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """Print the report as a table, followed by a line with the use and the signature of each score."""
    console = console or Console(width=WIDTH)  # a narrow terminal wraps the table instead of truncating numbers
    table = Table(box=None, title=f"lines: {report['lines']:,}", title_justify="left", pad_edge=False)
    scores = report["scores"].values()
    columns = [name for name in COLUMNS if any(COLUMNS[name](row) for row in scores)]
    if "difference" in columns:  # 80 columns have room for only one of the two groups
        columns = [name for name in columns if name not in ("1/2/3/4-grams", "BP", "length")]
    for column in ("", *columns):
        table.add_column(column, justify="left" if column in ("", "1/2/3/4-grams") else "right", no_wrap=True)
    for row in scores:
        table.add_row(row["name"], *(COLUMNS[name](row) for name in columns))
    console.print(table)
    if any("confidence" in row for row in scores):
        console.print("± half width of the 95% confidence interval (bootstrap)", highlight=False)
    if "p-value" in columns:
        meaning = "probability of a difference at least this large between systems of equal quality"
        console.print(f"p-value: {meaning}", highlight=False)
    console.print()
    for row in scores:
        console.print(f"{row['name']}: {row['use']}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"  {row['signature']}", soft_wrap=True, highlight=False, markup=False)
