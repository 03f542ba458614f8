"""Scores (train/metrics/bleu.py): laws of BLEU, and each variant compared with sacreBLEU."""

import json
import math
from io import StringIO

import pytest
import sacrebleu
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from train.cli import main
from train.errors import UserError
from train.metrics.bleu import (
    BLEUS,
    OTHER_METRICS,
    WITHOUT_TER,
    bleu,
    corpus_bleu_for_validation,
    print_report,
    score_report,
    split_compounds,
)

WORDS = ["Das", "das", "Haus", "ist", "rot", ",", ".", "E-Mail-Adresse", "U-Bahn", "»Ja«", "10-12", "öffnen", "nicht"]
sentences = st.lists(st.sampled_from(WORDS), min_size=4, max_size=12).map(" ".join)
corpora = st.lists(sentences, min_size=1, max_size=5)
pairs = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5).map(
    lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
)

HYPOTHESES = ["Das Haus mit der E-Mail-Adresse ist sehr rot .", "Er sagte: „Nein, die U-Bahn kommt heute nicht.“"]
REFERENCES = ["das Haus mit der E-Mail-Adresse war sehr rot .", "Er sagte: „Ja, die S-Bahn kommt heute nicht.“"]


@given(corpora)
@settings(max_examples=15, deadline=None)
def test_a_text_scores_100_against_itself(lines):
    report = score_report(lines, lines)
    assert set(report["scores"]) == {*BLEUS, "chrf", "chrf++", "ter"}
    for key, row in report["scores"].items():
        assert row["score"] == pytest.approx(0 if key == "ter" else 100)
    assert corpus_bleu_for_validation(lines, lines) == pytest.approx(100)


@given(pairs)
@settings(max_examples=15, deadline=None)
def test_only_lowercase_variants_ignore_case(pair):
    hypotheses, references = pair
    lowered = score_report([x.lower() for x in hypotheses], [x.lower() for x in references], metrics=WITHOUT_TER)[
        "scores"
    ]
    scores = score_report(hypotheses, references, metrics=WITHOUT_TER)["scores"]
    for key in ("bleu_13a_lc", "bleu_tok_lc"):
        assert scores[key]["score"] == lowered[key]["score"] == lowered[key.removesuffix("_lc")]["score"]
        assert "|case:lc|" in scores[key]["signature"]
    upper = [x.upper() for x in references]
    assume(upper != references)
    for row in score_report(upper, references, metrics=WITHOUT_TER)["scores"].values():
        assert (row["score"] < 99.999) == ("case:lc" not in row["signature"])


def test_several_references_equal_sacrebleu(tmp_path, capfd):
    hypotheses, second = ["the cat sat on the mat", "a dog"], ["the cat sat down on a mat", "a big dog"]
    first = ["a cat was on the mat", "the dog"]
    files = [tmp_path / name for name in ("hyp", "a", "b")]
    for file, lines in zip(files, (hypotheses, first, second), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    out = tmp_path / "scores.json"
    arguments = ["score", *(f"--{n}={f}" for n, f in zip(("hyp", "ref", "ref"), files, strict=True)), "--quiet"]
    assert main([*arguments, "--json", f"--output={out}", "--bootstrap=10", f"--baseline={files[2]}"]) == 0
    scores = json.loads(out.read_text())["scores"]
    assert capfd.readouterr() == ("", "")
    for key, metric in (("bleu_13a", sacrebleu.BLEU(force=True)), ("chrf", sacrebleu.CHRF()), ("ter", sacrebleu.TER())):
        assert scores[key]["score"] == metric.corpus_score(hypotheses, [first, second]).score
        assert "nrefs:2|" in scores[key]["signature"]
    assert main([*arguments, f"--src={files[0]}", "--model=run"]) == 2
    assert "expected one --ref with --model; got 2" in capfd.readouterr().err
    files[2].write_text("one line\n")
    assert main(arguments) == 2
    assert "got 2 hypotheses and 1 references" in capfd.readouterr().err


@given(pairs)
@settings(max_examples=15, deadline=None)
def test_scores_equal_sacrebleu(pair):
    hypotheses, references = pair
    scores = score_report(hypotheses, references)["scores"]
    for key in ("bleu_13a", "bleu_13a_lc", "bleu_intl", "bleu_tok", "bleu_tok_lc"):
        variant = BLEUS[key]
        expected = sacrebleu.corpus_bleu(
            hypotheses, [references], tokenize=variant.tokenize, lowercase=variant.lowercase, force=True
        )
        row = scores[key]
        assert (row["score"], row["precisions"], row["brevity_penalty"]) == (
            expected.score,
            expected.precisions,
            expected.bp,
        )
        assert (row["hypothesis_length"], row["reference_length"]) == (expected.sys_len, expected.ref_len)
        assert f"|tok:{variant.tokenize}|" in row["signature"]
    assert scores["chrf"]["score"] == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert scores["chrf++"]["score"] == sacrebleu.corpus_chrf(hypotheses, [references], word_order=2).score
    assert scores["ter"]["score"] == sacrebleu.corpus_ter(hypotheses, [references]).score
    assert corpus_bleu_for_validation(hypotheses, references) == scores["bleu_13a"]["score"]
    tokenized = corpus_bleu_for_validation(hypotheses, references, tokenize="none", lowercase=True)
    assert tokenized == scores["bleu_tok_lc"]["score"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("E-Mail-Adresse", "E ##AT##-##AT## Mail ##AT##-##AT## Adresse"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # matches do not overlap
        ("a - b -c d- --", "a - b -c d- --"),  # a hyphen next to whitespace is not inside a word
        ("2013-14", "2013 ##AT##-##AT## 14"),
        ("Ü-Wagen", "Ü ##AT##-##AT## Wagen"),
        ("a\u00a0-\u00a0b", "a\u00a0 ##AT##-##AT## \u00a0b"),  # in Perl, which reads bytes, U+00A0 is not whitespace
    ],
)
def test_split_compounds_equals_the_papers_script(text, expected):
    assert split_compounds(text) == expected


@given(corpora, corpora)
@settings(max_examples=15, deadline=None)
def test_compound_variants_split_after_tokenization(a, b):
    n = min(len(a), len(b))
    scores = score_report(a[:n], b[:n], metrics=WITHOUT_TER)["scores"]
    direct = sacrebleu.corpus_bleu(
        [split_compounds(x) for x in a[:n]], [[split_compounds(x) for x in b[:n]]], tokenize="none", force=True
    )
    assert scores["bleu_compound"]["score"] == direct.score
    assert "|tok:none+##AT##|" in scores["bleu_compound"]["signature"]
    assert "|tok:13a+##AT##|" in scores["bleu_compound_13a"]["signature"]
    without_hyphens = [[line.replace("-", "") for line in lines[:n]] for lines in (a, b)]
    scores = score_report(*without_hyphens, metrics=WITHOUT_TER)["scores"]
    assert scores["bleu_compound"]["score"] == scores["bleu_tok"]["score"]
    assert scores["bleu_compound_13a"]["score"] == scores["bleu_13a"]["score"]


@pytest.mark.parametrize("variant", BLEUS)
def test_bleu_caches_no_lines(variant):
    """A long training run calls BLEU so often that cached lines would fill the memory."""
    bleu(["A line that is not cached."], ["A line."], BLEUS[variant])
    for tokenizer in (Tokenizer13a, TokenizerRegexp, TokenizerV14International):
        assert tokenizer.__call__.cache_info().currsize == 0


def test_the_variants_differ():
    scores = score_report(HYPOTHESES, REFERENCES)["scores"]
    values = [scores[key]["score"] for key in BLEUS]
    assert len(set(values)) == len(values)
    assert scores["bleu_compound"]["hypothesis_length"] == scores["bleu_tok"]["hypothesis_length"] + 2 * 3


@given(corpora, st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_unequal_numbers_of_lines_raise_with_both_counts(lines, more):
    longer = lines + ["und noch eine Zeile"] * more
    for score in (score_report, corpus_bleu_for_validation):
        with pytest.raises(UserError) as error:
            score(lines, longer)
        message = str(error.value)
        assert f"{len(lines)} hypotheses and {len(longer)} references" in message and "\n" not in message
        with pytest.raises(UserError, match="at least one line"):
            score([], [])


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.lists(st.text(max_size=20), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_any_text_can_be_scored(a, b):
    n = min(len(a), len(b))
    assume(n)
    for row in score_report(a[:n], b[:n])["scores"].values():
        assert row["score"] >= 0


def test_the_report_is_json_and_prints_complete_signatures():
    report = score_report(HYPOTHESES, REFERENCES)
    assert json.loads(json.dumps(report)) == report
    lines = {}
    for width in (40, 80):  # a narrow terminal may wrap the table, never a signature
        out = StringIO()
        print_report(report, Console(file=out, width=width))
        lines[width] = out.getvalue().split("\n")
    for row in report["scores"].values():
        assert f"  {row['signature']}" in lines[40]
        assert f"  {row['signature']}" in lines[80]
        assert any(line.startswith(row["name"]) and f"{row['score']:.2f}" in line for line in lines[80])
    assert all("…" not in line for line in lines[80])


@pytest.mark.parametrize(
    ("hypotheses", "references", "expected"),
    [  # precisions by order, then the brevity penalty, computed by hand
        (["a b c d e"], ["a b c d f"], (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        (["a b c d"], ["a b c d e"], math.exp(1 - 5 / 4)),
        (["a a b c d e"], ["a b c d e f"], (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25),  # the second "a" has no match
        (["a b c d e", "x y z v w u"], ["a b c d f", "x y z v w u"], (10 / 11 * 8 / 9 * 6 / 7 * 4 / 5) ** 0.25),
        (["a b c d e f", "g"], ["a b c d e f", "g h"], math.exp(1 - 8 / 7)),  # one penalty for the corpus
        (["A b c d e"], ["a b c d e"], (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),  # case matters, as it does without -lc
        (["a b c d e ."], ["a b c d e."], (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25),  # words end only at whitespace
    ],
)
def test_tokenized_bleu_equals_multi_bleu(hypotheses, references, expected):
    scores = score_report(hypotheses, references, metrics=WITHOUT_TER)["scores"]
    assert scores["bleu_tok"]["score"] == pytest.approx(100 * expected, abs=1e-9)
    lowered = score_report([x.lower() for x in hypotheses], [x.lower() for x in references], metrics=WITHOUT_TER)[
        "scores"
    ]
    assert scores["bleu_tok_lc"]["score"] == lowered["bleu_tok"]["score"]


def metric_and_lines(key, hypotheses, references):
    """Return sacreBLEU's metric and the preprocessed texts."""
    if key in OTHER_METRICS:
        return {"chrf": CHRF(), "chrf++": CHRF(word_order=2), "ter": TER()}[key], hypotheses, references
    tokenize, lowercase = BLEUS[key].tokenize, BLEUS[key].lowercase
    if BLEUS[key].compounds:
        words = Tokenizer13a() if tokenize == "13a" else str.strip
        hypotheses, references = ([split_compounds(words(x)) for x in lines] for lines in (hypotheses, references))
        tokenize = "none"
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True), hypotheses, references


@given(pairs, st.integers(2, 30))
@settings(max_examples=10, deadline=None)
def test_confidence_intervals_equal_sacrebleu(pair, samples):
    report = score_report(*pair, bootstrap=samples)["scores"]
    for key, row in report.items():
        metric, hypotheses, references = metric_and_lines(key, *pair)
        expected = metric.corpus_score(hypotheses, [references], n_bootstrap=samples)
        assert (row["score"], row["mean"], row["confidence"]) == (expected.score, expected._mean, expected._ci)
        assert f"|bs:{samples}|seed:12345|" in row["signature"]


@given(st.lists(st.tuples(sentences, sentences, sentences), min_size=1, max_size=5), st.integers(2, 30))
@settings(max_examples=10, deadline=None)
def test_the_paired_test_equals_sacrebleu(lines, samples):
    one, other, references = ([*side] for side in zip(*lines, strict=True))
    report = score_report(one, references, bootstrap=samples, baseline=other)["scores"]
    for key, row in report.items():
        metric, system, expected = metric_and_lines(key, one, references)
        systems = [("b", metric_and_lines(key, other, references)[1]), ("s", system)]
        signatures, scores = PairedTest(systems, {"": metric}, [expected], "bs", samples)()
        baseline, result = scores[next(iter(signatures))]
        assert row["baseline"] == {"score": baseline.score, "mean": baseline.mean, "confidence": baseline.ci}
        assert (row["score"], row["mean"], row["confidence"]) == (result.score, result.mean, result.ci)
        difference = result.score - baseline.score
        assert (row["p_value"], row["difference"]) == (result.p_value if difference else 1, difference)
        assert row["score"] == score_report(one, references)["scores"][key]["score"]


def test_the_paired_test_of_better_and_equal_systems(capsys):
    references = [f"a b c d e {n}" for n in range(60)]
    hypotheses = [line.replace("c", "x") if n % 3 else line for n, line in enumerate(references)]
    report = score_report(references, references, baseline=hypotheses, metrics=WITHOUT_TER)
    assert all(row["p_value"] < 0.01 and row["difference"] > 0 for row in report["scores"].values())
    same = score_report(hypotheses, references, baseline=hypotheses, metrics=WITHOUT_TER)
    assert all(row["p_value"] == 1 and row["difference"] == 0 for row in same["scores"].values())
    print_report(report, Console(width=200))
    shown = capsys.readouterr().out
    assert "difference" in shown and "baseline" in shown and "±" in shown
    json.dumps(report)
    with pytest.raises(UserError, match="got 59 lines in the baseline and 60 references"):
        score_report(references, references, baseline=hypotheses[1:])


@pytest.mark.parametrize(("hypothesis", "reference"), [("", "a b c d"), ("5", "Yes"), ("x", "")])
def test_bootstrap_samples_without_matches(hypothesis, reference):
    """In a sample with only the first line, nothing matches, and sacreBLEU's score is not a NumPy number."""
    report = score_report([hypothesis, "The cat sat ."], [reference, "The cat sat ."], bootstrap=20)
    assert all(0 < report["scores"][key]["mean"] < 100 for key in OTHER_METRICS)
    json.dumps(report, allow_nan=False)
