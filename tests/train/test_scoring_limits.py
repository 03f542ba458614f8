"""`score` of unusual files: numbers are not truncated, and time and memory are bounded."""

import json
import random

import pytest

from train.cli import main
from train.metrics.bleu import BLEUS, WITHOUT_TER, print_report, score_report
from train.metrics.limits import CHARACTERS, TER_WORDS


def run_score(tmp_path, capfd, hypotheses, references, *options):
    """Run `score` and return (status, stdout, stderr)."""
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    status = main(["score", "--ref", str(tmp_path / "ref"), "--hyp", str(tmp_path / "hyp"), *options])
    return status, *capfd.readouterr()


def test_ter_is_skipped_for_long_lines_with_a_message(tmp_path, capfd):
    words = [f"w{i}" for i in range(3000)]
    shuffled = random.Random(0).sample(words, len(words))
    texts = ["a b", " ".join(shuffled)], ["a b", " ".join(words)]
    status, out, err = run_score(tmp_path, capfd, *texts)
    assert status == 0 and "chrF" in out and "TER" not in out
    assert err.count("\n") == 1 and f"line 2 has 3,000 words; the limit is {TER_WORDS} words" in err
    assert "line 2" in run_score(tmp_path, capfd, *texts, "--metric=ter")[2]
    status, out, err = run_score(tmp_path, capfd, *texts, "--metric=chrf", "--metric=bleu_13a", "--json")
    assert (status, [*json.loads(out)["scores"]], err) == (0, ["bleu_13a", "chrf"], "")
    assert run_score(tmp_path, capfd, *texts, "--metric=bleu", "--metric=chrF", "--json")[1] == out


def test_a_line_too_long_for_all_scores_is_rejected(tmp_path, capfd):
    status, out, err = run_score(tmp_path, capfd, ["a", "x" * (CHARACTERS + 1)], ["a", "b"])
    assert (status, out, err.count("\n")) == (2, "", 1) and "in line 2 of the hypothesis" in err


@pytest.mark.parametrize("columns", ["20", "61"])
def test_no_number_is_truncated_in_a_narrow_terminal(capsys, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    report = score_report(["a b c d e f g h i j"] * 3, ["a b c d e f g h i j"] * 3, metrics=WITHOUT_TER)
    for row in report["scores"].values():
        row |= {"hypothesis_length": 1234567, "reference_length": 1234567} if "precisions" in row else {}
    print_report(report)
    assert capsys.readouterr().out.count(" 1234567/1234567") == len(BLEUS)
