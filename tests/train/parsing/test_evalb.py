"""Bracket scores, compared with EVALB's output and, on random trees, with a reference implementation."""

import json
import os
import random
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.evalb_reference import COLLINS, DELETED, reference_score
from train import UserError
from train.cli import main
from train.tasks.parsing.evalb import Parameters, evalb_table, score, score_files, score_sentence
from train.tasks.parsing.trees import Leaf, Tree, read_sentences, write_tree

DATA = Path(os.environ.get("NPX_DATA", ROOT.parent / "shared" / "data"))
SAMPLES = DATA / "treebank" / "evalb"
LABELS = ["S", "NP", "VP", "PP", "ADVP", "PRT", "NP-SBJ", "NP=2", "TOP", "-NONE-", "", "A"]
TAGS = ["NN", "DT", "ADVP", "PRT", ",", ".", "``", "''", ":", "POS", "-NONE-", "NN-X"]
QUOTED = Parameters(quote_label=["``", "''", "POS", ":"])


def random_tree(rng, words, tags, depth=0):
    """Return a random tree over the words, with some unary chains and empty constituents."""
    if len(words) == 1 and (depth > 6 or rng.random() < 0.7):
        return Leaf(tags[0], words[0])
    tree = Tree(rng.choice(LABELS))
    if rng.random() < 0.05:
        tree.children.append(Tree("NP"))
    start = 0
    while start < len(words):
        end = rng.randint(start + 1, len(words))
        tree.children.append(random_tree(rng, words[start:end], tags[start:end], depth + 1))
        start = end
    return tree


def random_pairs(n, seed=1):
    """Yield pairs of trees with mostly equal words and tags."""
    rng = random.Random(seed)
    for _ in range(n):
        words = [rng.choice("abcd'\"/") for _ in range(rng.randint(1, 9))]
        tags = [rng.choice(TAGS) for _ in words]
        others = [t if rng.random() < 0.9 else rng.choice(TAGS) for t in tags]
        changed = [w if rng.random() < 0.99 else "e" for w in words]
        gold = random_tree(rng, words, tags)
        yield Tree("TOP", [gold]), Tree("TOP", [random_tree(rng, changed, others) if rng.random() < 0.8 else gold])


def score_numbers(gold, predicted, parameters):
    """Return the numbers of one row of the table."""
    row = score_sentence([gold], [predicted], parameters)
    c = row.counts
    return row.length, row.status, c.matched, c.gold, c.predicted, c.crossing, c.words, c.tags


def test_2000_random_pairs_equal_the_reference_implementation(tmp_path):
    pairs = list(random_pairs(2000))
    slow = {**COLLINS, "quotes": ("``", "''", "POS", ":")}
    statuses, plain = [0, 0, 0], []
    for gold, predicted in pairs:
        lines = write_tree(gold), write_tree(predicted)
        plain.append(reference_score(*lines))
        assert score_numbers(gold, predicted, Parameters()) == plain[-1], lines
        with_quotes = reference_score(*lines, slow)
        assert score_numbers(gold, predicted, QUOTED) == with_quotes, lines
        statuses[with_quotes[1]] += 1
    assert min(statuses) > 50 and len(DELETED) == 7
    for side, name in enumerate(("gold", "predicted")):
        text = "".join(write_tree(pair[side]) + "\n" for pair in pairs)
        (tmp_path / name).write_text(text, encoding="utf-8")
    report = score_files(tmp_path / "gold", tmp_path / "predicted")
    assert report.total == score([([a], [b]) for a, b in pairs]).total  # files give the same result
    sums = report.total
    valid = [line for line in plain if line[1] == 0]
    assert [sums.errors, sums.skipped, sums.valid] == [sum(line[1] == s for line in plain) for s in (1, 2, 0)]
    assert [sums.no_crossing, sums.few_crossing] == [sum(line[5] <= most for line in valid) for most in (0, 2)]
    assert 100 < sums.complete == sum(line[2] == line[3] == line[4] for line in valid)
    r, p = (100 * sum(line[2] for line in valid) / sum(line[i] for line in valid) for i in (3, 4))
    assert sums.as_dict()["f1"] == float(f"{2 * p * r / (p + r):.2f}") and sums.matched > 1000


@pytest.mark.parametrize(("name", "param"), [("sample", "sample"), ("bug", "new")])
def test_the_table_equals_evalbs_on_its_samples(name, param):
    if not SAMPLES.is_dir():
        pytest.skip(f"no {SAMPLES}; set NPX_DATA")
    parameters = Parameters.load(SAMPLES / f"{param}.prm")
    lines = list(evalb_table(score_files(SAMPLES / f"{name}.gld", SAMPLES / f"{name}.tst", parameters)))
    expected = (SAMPLES / f"{name}.rsl").read_text().splitlines()
    if name == "sample":
        assert lines == expected
    else:  # printed by an older version, with other columns and 0 as the total of Cross
        single_spaced = [" ".join(line.split()) for line in lines]
        assert single_spaced == [" ".join(line.split()).replace("113 123 0", "113 123 36") for line in expected]
    assert vars(Parameters.load(SAMPLES / "COLLINS.prm")) == vars(Parameters())


def test_a_tree_scores_100_against_itself_at_every_length():
    trees = [gold for gold, _ in random_pairs(100, seed=2)]
    report = score([([tree], [tree]) for tree in trees])
    got = report.as_dict()
    assert got["f1"] == got["recall"] == got["precision"] == got["complete_match"] == got["tagging"] == 100
    assert got["crossing"] == 0 and got["no_crossing"] == 100 and got["error_sentences"] == 0
    sums = report.by_length((3, 6))
    assert list(sums) == ["1-3", "4-6", "over 6"] and sum(c.sentences for c in sums.values()) == 100
    assert score([]).as_dict()["f1"] == 0


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_score_trees_reports_error_sentences_and_prints_json(tmp_path, capsys):
    gold = write(tmp_path / "gold", "(S (NP (DT the) (NN cat)) (VP (VBD sat)))", "(S (A a))", "(S (A a))", "(S (A a))")
    hyp = write(tmp_path / "hyp", "(S (DT the) (NP (NN cat)) (VP (VBD sat)))", "(S (A b))", "", "(S (A a) (B b))")
    assert main(["score-trees", "--gold", gold, "--hyp", hyp, "--json"]) == 0
    out, err = capsys.readouterr()
    got = json.loads(out)
    assert (got["sentences"], got["error_sentences"], got["skipped_sentences"], got["f1"]) == (4, 2, 1, 66.67)
    assert got["up_to_40"] == {name: value for name, value in got.items() if name != "up_to_40"}
    assert "sentence 2: expected the word 'a'; got 'b'" in err and "sentence 4: expected 1 words" in err
    assert main(["score-trees", "--gold", gold, "--hyp", hyp]) == 0
    assert "Bracketing FMeasure       =  66.67" in capsys.readouterr().out


@pytest.mark.parametrize(("root", "is_reported"), [("", True), ("ROOT ", True), ("TOP ", False), ("S1 ", True)])
def test_roots_of_gold_trees_only_are_counted_and_reported(tmp_path, capsys, root, is_reported):
    gold = write(tmp_path / "gold", *[f"({root}(S (A a) (B b)))"] * 2)
    hyp = write(tmp_path / "hyp", "(TOP (S (A a) (B b)))", "")
    same = write(tmp_path / "same", *[f"({root}(S (A a) (B b)))"] * 2)
    for other, words in ((hyp, is_reported), (same, False)):
        assert main(["score-trees", "--gold", gold, "--hyp", other, "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["recall"] == (50 if words else 100)
        assert ("that is missing in the scored tree: 1; EVALB counts each" in err) == words and err.count("\n") == words


def test_invalid_files_are_reported_on_one_line(tmp_path, capsys):
    gold, short = write(tmp_path / "gold", "(S (A a))", "(S (A a))"), write(tmp_path / "short", "(S (A a))")
    empty = write(tmp_path / "empty")
    param = write(tmp_path / "p.prm", "# fine", "DELETE_LABEL TOP", "LABELED many")
    for options, message in (
        (["--gold", gold, "--hyp", short], "expected equal numbers of sentences, one tree per line; got 2 and 1"),
        (["--gold", gold, "--hyp", empty], "got an empty file"),
        (["--gold", gold, "--hyp", str(tmp_path / "none")], "got a path that does not exist"),
        (["--gold", gold, "--hyp", gold, "--param", param], "p.prm, line 3: expected one of DELETE_LABEL"),
    ):
        assert main(["score-trees", *options]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


def test_a_file_is_read_by_lines_unless_a_tree_spans_several(tmp_path):
    lines = write(tmp_path / "lines", "# no tree", "(S (A a))", "", "(A a) (B b)")
    assert [len(trees) for _, trees in read_sentences(lines)] == [1, 0, 2]
    trees = write(tmp_path / "trees", "(S", "  (A a))", "", "(S (A a)) (S (B b))")
    assert [(line, len(trees)) for line, trees in read_sentences(trees)] == [(2, 1), (4, 1), (4, 1)]
    with pytest.raises(UserError, match="line 1: expected the tree that begins here to be closed"):
        read_sentences(write(tmp_path / "open", "(S (A a)"))
