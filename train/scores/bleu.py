"""Scores of translations: every BLEU that the paper and its readers mean, chrF and TER, each with its signature.

The same output has several BLEUs, points apart, which differ in how the text is cut into words before n-grams are
counted; a figure means nothing without its signature. The counting is sacreBLEU's (Post 2018), which gives the figure
of multi-bleu.perl for the same words wherever n-grams of every order match. `score_report` makes the report, which is
JSON, and `print_report` shows it.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from train.errors import UserError


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


def bleu(hypotheses: Sequence[str], references: Sequence[str], variant: Variant) -> dict[str, Any]:
    """One BLEU of a corpus: score, signature, precisions (%), brevity penalty, lengths (words)."""
    metric = BLEU(tokenize="none" if variant.compounds else variant.tokenize, lowercase=variant.lowercase, force=True)
    if variant.compounds:
        words = Tokenizer13a() if variant.tokenize == "13a" else str.strip
        hypotheses = [split_compounds(words(line.rstrip())) for line in hypotheses]
        references = [split_compounds(words(line.rstrip())) for line in references]
    result = metric.corpus_score(hypotheses, [references])
    signature = str(metric.get_signature())
    if variant.compounds:  # the one step that sacreBLEU has no name for
        signature = signature.replace("tok:none", f"tok:{variant.tokenize}+##AT##")
    return {
        "name": variant.name,
        "score": result.score,
        "signature": signature,
        "use": variant.use,
        "precisions": list(result.precisions),
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
    }


def score_report(hypotheses: Sequence[str], references: Sequence[str], *, ter: bool = True) -> dict[str, Any]:
    """Every score of a corpus: {"lines": n, "scores": {key: {"name", "score", "signature", "use", ...}}}.

    The keys are those of BLEUS, "chrf", "chrf++" and "ter" (which takes most of the time: `ter=False` leaves it out).
    Raises UserError where the two have unequal numbers of lines, or none.
    """
    _check_lines(hypotheses, references)
    scores = {key: bleu(hypotheses, references, variant) for key, variant in BLEUS.items()}
    for key, (make, name, use) in OTHERS.items():
        if key != "ter" or ter:
            metric = make()
            result = metric.corpus_score(hypotheses, [references])
            signature = str(metric.get_signature())
            scores[key] = {"name": name, "score": result.score, "signature": signature, "use": use}
    return {"lines": len(references), "scores": scores}


def corpus_bleu_for_validation(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """One BLEU alone, quick enough for every validation: 13a, or "none" for text that is tokenised already."""
    _check_lines(hypotheses, references)
    return bleu(hypotheses, references, Variant("", tokenize, lowercase, False, ""))["score"]


def _check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            "score: expected as many hypotheses as references, line i for line i; "
            f"got {len(hypotheses):,} hypotheses and {len(references):,} references; "
            "try translating the very source file that the references translate"
        )
    if not references:
        raise UserError("score: expected at least one line; got none; try other files")


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """The report as a table, then what each score is for and its signature, each on a line of its own."""
    console = console or Console(width=WIDTH)  # a terminal that is narrower wraps it; cut, figures would be lost
    table = Table(box=None, title=f"{report['lines']:,} lines", title_justify="left", pad_edge=False)
    for column, justify in (("", "left"), ("score", "right"), ("1/2/3/4-grams", "left"), ("BP", "right")):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("length", justify="right", no_wrap=True)
    for row in report["scores"].values():
        detail: tuple[str, ...] = ()
        if "precisions" in row:
            lengths = f"{row['hypothesis_length']}/{row['reference_length']}"
            detail = "/".join(f"{p:.1f}" for p in row["precisions"]), f"{row['brevity_penalty']:.3f}", lengths
        table.add_row(row["name"], f"{row['score']:.2f}", *detail)
    console.print(table)
    console.print()
    for row in report["scores"].values():
        console.print(f"{row['name']}: {row['use']}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"  {row['signature']}", soft_wrap=True, highlight=False, markup=False)
