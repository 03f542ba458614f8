"""Scores (train/scores/bleu.py): the laws of BLEU, and each variant against sacreBLEU asked directly."""

import json
from io import StringIO

import pytest
import sacrebleu
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from train.errors import UserError
from train.scores.bleu import (
    BLEUS,
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
def test_case_counts_but_where_the_signature_says_otherwise(pair):
    hypotheses, references = pair
    lowered = score_report([x.lower() for x in hypotheses], [x.lower() for x in references], ter=False)["scores"]
    scores = score_report(hypotheses, references, ter=False)["scores"]
    for key in ("bleu_13a_lc", "bleu_tok_lc"):
        assert scores[key]["score"] == lowered[key]["score"] == lowered[key.removesuffix("_lc")]["score"]
        assert "|case:lc|" in scores[key]["signature"]
    upper = [x.upper() for x in references]
    assume(upper != references)
    for row in score_report(upper, references, ter=False)["scores"].values():
        assert (row["score"] < 99.999) == ("case:lc" not in row["signature"])


@given(pairs)
@settings(max_examples=15, deadline=None)
def test_each_score_is_sacrebleus(pair):
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
    tokenised = corpus_bleu_for_validation(hypotheses, references, tokenize="none", lowercase=True)
    assert tokenised == scores["bleu_tok_lc"]["score"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("E-Mail-Adresse", "E ##AT##-##AT## Mail ##AT##-##AT## Adresse"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # matches do not overlap
        ("a - b -c d- --", "a - b -c d- --"),  # a hyphen beside white space is not in a word
        ("2013-14", "2013 ##AT##-##AT## 14"),
        ("Ü-Wagen", "Ü ##AT##-##AT## Wagen"),
        ("a\u00a0-\u00a0b", "a\u00a0 ##AT##-##AT## \u00a0b"),  # Perl reads bytes, to which this is no white space
    ],
)
def test_compounds_are_split_as_the_papers_script_splits_them(text, expected):
    assert split_compounds(text) == expected


@given(corpora, corpora)
@settings(max_examples=15, deadline=None)
def test_splitting_compounds_is_one_step_more_than_tokenising(a, b):
    n = min(len(a), len(b))
    scores = score_report(a[:n], b[:n], ter=False)["scores"]
    by_hand = sacrebleu.corpus_bleu(
        [split_compounds(x) for x in a[:n]], [[split_compounds(x) for x in b[:n]]], tokenize="none", force=True
    )
    assert scores["bleu_compound"]["score"] == by_hand.score
    assert "|tok:none+##AT##|" in scores["bleu_compound"]["signature"]
    assert "|tok:13a+##AT##|" in scores["bleu_compound_13a"]["signature"]
    plain = [[line.replace("-", "") for line in lines[:n]] for lines in (a, b)]
    scores = score_report(*plain, ter=False)["scores"]
    assert scores["bleu_compound"]["score"] == scores["bleu_tok"]["score"]
    assert scores["bleu_compound_13a"]["score"] == scores["bleu_13a"]["score"]


def test_the_variants_tell_different_things():
    scores = score_report(HYPOTHESES, REFERENCES)["scores"]
    values = [scores[key]["score"] for key in BLEUS]
    assert len(set(values)) == len(values)
    assert scores["bleu_compound"]["hypothesis_length"] == scores["bleu_tok"]["hypothesis_length"] + 2 * 3


@given(corpora, st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_unequal_numbers_of_lines_are_refused_with_both_counts(lines, more):
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


def test_the_report_is_json_and_prints_every_signature_in_one_piece():
    report = score_report(HYPOTHESES, REFERENCES)
    assert json.loads(json.dumps(report)) == report
    lines = {}
    for width in (40, 80):  # a pipe has no width of its own; a narrow one may squeeze the table, never a signature
        out = StringIO()
        print_report(report, Console(file=out, width=width))
        lines[width] = out.getvalue().split("\n")
    for row in report["scores"].values():
        assert f"  {row['signature']}" in lines[40]
        assert f"  {row['signature']}" in lines[80]
        assert any(line.startswith(row["name"]) and f"{row['score']:.2f}" in line for line in lines[80])
    assert all("…" not in line for line in lines[80])
