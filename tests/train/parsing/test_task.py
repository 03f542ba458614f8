"""The task `parsing`: vocabulary, training, validation F1, the command `parse`, its picture, and Table 4."""

import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest

from models import TransformerConfig
from models.search import beam_search, greedy_search
from tests.helpers.small_models import build
from tests.helpers.trainings import outcome
from train import RunConfig, UserError, load_model, train
from train.cli import main
from train.run.checkpoint import find_checkpoint, read_state
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.tasks.pairs import pad_sources
from train.tasks.parsing.constrained import ConstrainedParser
from train.tasks.parsing.linearize import linearize, tree_from_tokens
from train.tasks.parsing.pictures import attention_over_words, draw_tree
from train.tasks.parsing.task import GreedyF1, encode_pairs, parse_gold, parse_stream, read_clean_trees
from train.tasks.parsing.tokenizer import KINDS, TreeTokenizer
from train.tasks.parsing.trees import Leaf, Tree, read_trees, write_tree
from train.text.affixes import word_shape
from train.viewer.sentences import Sentences

NOUNS, VERBS = ["cat", "dog", "mat"], ["sat", "ran"]
TREES = [
    f"((S (NP-SBJ (DT the) (NN {noun})) (VP (VBD {verb}) (PP (IN on) (NP (DT the) (NN {other}))) (-NONE- *)) (. .)))"
    for noun in NOUNS for verb in VERBS for other in NOUNS
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    for name, trees in (("train", TREES), ("valid", TREES[::4])):
        (folder / f"{name}.mrg").write_text("".join(tree + "\n" for tree in trees), encoding="utf-8")
    return folder


def config(folder, model=(), data=(), **changes):
    return RunConfig.from_dict({
        "model": {
            "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "norm_placement": "pre",
            **dict(model),
        },
        "data": {
            "task": "parsing", "train_trees": str(folder / "train.mrg"), "valid_trees": str(folder / "valid.mrg"),
            "tokenizer": "affixes", "vocab_size": 200, "max_length": 60, **dict(data),
        },
        "train": {
            **{"batch_tokens": 300, "max_steps": 120, "warmup_steps": 30, "lr_scale": 1.0, "label_smoothing": 0.0},
            "seed": 4,  # with which the best checkpoint needs no repairs, whatever kernels BLAS uses
            **{"validate_every": 40, "checkpoint_every": 60, "keep_last": 2, "log_every": 40, **changes},
        },
        "search": {"beam_size": 3, "length_penalty": 0.3, "max_extra_tokens": 30},
    })  # fmt: skip


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(config(folder), out, progress=False)
    return out


# ---- the vocabulary


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tree_symbols_have_the_first_ids_and_trees_round_trip(folder, tmp_path, kind, tags):
    trees = list(read_clean_trees(folder / "train.mrg"))
    tokenizer = TreeTokenizer.from_trees(trees, kind, 400, tags)
    assert tokenizer.n_outputs == 4 + len({t for tree in trees for t in linearize(tree, tags)}) < tokenizer.vocab_size
    ids = tokenizer.encode_trees(trees)
    assert [tokenizer.symbols(row) for row in ids] == [linearize(tree, tags) for tree in trees]
    assert 4 <= min(map(min, ids)) and max(map(max, ids)) < tokenizer.n_outputs
    words = tokenizer.encode_batch(["the cat (S XX <(S> </s>", "", "zzz"])
    assert words[1] == [] and all(i == 3 or i >= tokenizer.n_outputs for row in words for i in row)
    tokenizer.save(tmp_path / "t.json")
    loaded = TreeTokenizer.load(tmp_path / "t.json")
    assert loaded.digest == tokenizer.digest == TreeTokenizer.from_trees(trees, kind, 400, tags).digest
    assert loaded.encode_batch(["the cat"]) == tokenizer.encode_batch(["the cat"]) and loaded.uses_tags == tags
    first = min(t for tree in trees for t in linearize(tree, tags))
    assert loaded.symbols([0, 1, 2, 3, tokenizer.vocab_size - 1, 4]) == ["", "", "", "", "", first]


def test_affixes_encode_a_word_as_two_tokens(folder):
    tokenizer = TreeTokenizer.from_trees(list(read_clean_trees(folder / "train.mrg")), "affixes", 400, False)
    cat, hat, new = tokenizer.encode_batch(["cat", "hat", "Qqq"])
    assert len(cat) == len(hat) == len(new) == 2 and cat != hat and new[1] == 3
    assert [word_shape(w) for w in ("Hat", "mid-1990s", "IBM", "$1,234")] == ["?Aaa", "?aa-00a", "?AA", "?$0,00"]
    with pytest.raises(UserError, match="vocab_size: expected at least"):
        TreeTokenizer.from_trees(list(read_clean_trees(folder / "train.mrg")), "affixes", 100, False)


def test_a_tokenizer_without_tree_symbols_is_rejected(folder, tmp_path):
    from train import Tokenizer

    (tmp_path / "text").write_text("a b c\n")
    Tokenizer.train([tmp_path / "text"], vocab_size=270).save(tmp_path / "t.json")
    with pytest.raises(UserError, match="expected tree symbols after the 4 special tokens"):
        TreeTokenizer.load(tmp_path / "t.json")


# ---- a model with fewer outputs than inputs


def test_n_outputs_limits_logits_and_gradients():
    shape = {"vocab_size": 30, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.0}
    few, full = (build(TransformerConfig(**shape, n_outputs=n), 1) for n in (9, None))
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(3, 30, (4, 5)), rng.integers(3, 9, (4, 6))
    logits = few(src, tgt)
    assert logits.shape == (4, 6, 9)
    np.testing.assert_allclose(logits.data, full(src, tgt).data[..., :9], rtol=1e-12)
    few.loss(src, tgt).backward()
    rows = np.abs(few.embedding.weight.grad).sum(axis=1)
    assert (rows[:9] > 0).all() and set(np.flatnonzero(rows[9:]) + 9) == set(src[src > 8].tolist())
    hypotheses = [
        *greedy_search(few, src, max_extra_tokens=9),
        *(h for hs in beam_search(few, src, max_extra_tokens=9) for h in hs),
    ]
    assert max(i for h in hypotheses for i in h.tokens) < 9
    with pytest.raises(ValueError, match="n_outputs: expected a whole number from 3 .* to 30; got 2"):
        TransformerConfig(**shape, n_outputs=2)


# ---- training


def test_training_selects_the_checkpoint_with_the_best_f1(run, folder):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = {entry["step"]: entry["f1"] for entry in lines if entry["kind"] == "valid"}
    assert list(curve) == [40, 80, 120] and max(curve.values()) == 100
    assert all(0 <= entry["repaired"] <= 100 for entry in lines if entry["kind"] == "valid")
    best = min(step for step, f1 in curve.items() if f1 == 100)
    assert read_state(RunFolder(run).best_path)["step"] == best and find_checkpoint(run) == RunFolder(run).best_path
    state = read_state(run / "checkpoints" / "step-120")
    assert state["run"]["best_step"] == best and state["run"]["best_score"] == 100 and state["model"]["n_outputs"]


def test_resuming_equals_an_uninterrupted_run(run, folder, tmp_path):
    train(config(folder, max_steps=60), tmp_path / "b", progress=False)
    train(config(folder), tmp_path / "b", resume=True, progress=False)
    assert outcome(tmp_path / "b")[0] == outcome(run)[0]


def test_validation_f1_is_that_of_the_predicted_trees(run, folder, tmp_path):
    model, tokenizer, config = load_model(run / "checkpoints" / "step-120")  # the run's best may need repairs
    gold = list(read_clean_trees(folder / "valid.mrg"))
    valid = str(folder / "valid.mrg")
    corpus = TASKS["parsing"].prepare([valid], tokenizer, tmp_path / "all", 60)
    scores = GreedyF1(tokenizer, valid, corpus, 30)
    src = np.array([[*ids, 2] for ids in tokenizer.encode_batch([" ".join(t.words()) for t in gold])])

    class Batch:
        pass

    Batch.src = src[::-1]
    scores.add(model, np.arange(len(gold))[::-1], Batch)
    assert scores.result() == {"f1": 100.0, "repaired": 0.0}


def test_validation_f1_compares_the_trees_of_the_prepared_corpus(folder, tmp_path):
    tokenizer = TreeTokenizer.from_trees(list(read_clean_trees(folder / "train.mrg")), "bpe", 400, False)
    short, long = "(S (NP (NN cat)))", f"(S {'(NN cat)' * 60})"
    (tmp_path / "valid.mrg").write_text(f"{long}\n(S (NN \u00a0))\n{short}\n{TREES[0]}\n", encoding="utf-8")
    corpus = TASKS["parsing"].prepare([tmp_path / "valid.mrg"], tokenizer, tmp_path / "data", 60)
    gold = GreedyF1(tokenizer, str(tmp_path / "valid.mrg"), corpus, 30).gold
    assert [corpus.pair(i) for i in range(len(corpus))] == [*zip(*encode_pairs(gold, tokenizer), strict=True)]
    assert [len(tree.words()) for tree in gold] == [1, 7]


# ---- parsing of text


def test_parse_writes_one_tree_per_line(run, folder, tmp_path, capsys):
    out, text = tmp_path / "out", tmp_path / "text"
    text.write_text("the cat sat on the mat .\n\n  zzz  (the) \u00a0x dog\n", encoding="utf-8")
    assert main(["parse", "--model", str(run), "--input", str(text), "--output", str(out)]) == 0
    first, empty, last = out.read_text(encoding="utf-8").splitlines()
    assert first == (
        "(TOP (S (NP (XX the) (XX cat)) (VP (XX sat) (PP (XX on) (NP (XX the) (XX mat)))) (. .)))"
    ) and empty == ""  # fmt: skip
    (tmp_path / "last").write_text(last, encoding="utf-8")
    (tree,) = [tree for _, tree in read_trees(tmp_path / "last")]
    assert tree.words() == ["zzz", "-LRB-the-RRB-", "\u00a0x", "dog"]
    assert "of 2 outputs" in capsys.readouterr().err
    assert main(["parse", "--model", str(run), "--input", str(text), "--output", str(out), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_parse_gold_reports_f1(run, folder, tmp_path, capsys):
    out = tmp_path / "out"
    gold = ["--gold", str(folder / "valid.mrg"), "--n-best", "2"]
    assert main(["parse", "--model", str(run), *gold, "--output", str(out)]) == 0
    err = capsys.readouterr().err
    out = out.read_text(encoding="utf-8")
    assert len(out.splitlines()) == 2 * len(TREES[::4]) and out.startswith("0 ||| (TOP (S ")
    assert "all words:      5 sentences  F1 100.00" in err and "repaired 0 of 5 outputs" in err


@pytest.mark.parametrize("tags", [False, True])
def test_constrained_search_yields_trees_with_the_models_probability(folder, tags):
    tokenizer = TreeTokenizer.from_trees(list(read_clean_trees(folder / "train.mrg")), "affixes", 400, tags)
    shape = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "n_outputs": tokenizer.n_outputs}
    sentences = [line.split() for line in ("the cat .", "dog", ". the ran ? mat", "the cat")]
    ids = tokenizer.encode_batch([" ".join(words) for words in sentences])
    finished = 0
    for seed in range(5):
        model = build(TransformerConfig(tokenizer.vocab_size, **shape), seed)
        constrained = ConstrainedParser(model, tokenizer, sentences)
        src = pad_sources(ids, model.config)
        results = beam_search(constrained, src, beam_size=4, n_best=4, max_extra_tokens=40, length_penalty=0.0)
        for words, source, hypotheses in zip(sentences, ids, results, strict=True):
            for h in (h for h in hypotheses if h.finished):
                finished += 1
                tokens = tokenizer.symbols(h.tokens)
                tree, repaired = tree_from_tokens(tokens, words)
                assert not repaired and linearize(tree, tags) == tokens
                logits = model(np.array([[*source, 2]]), np.array([[1, *h.tokens]])).data[0]
                log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
                expected = log_p[np.arange(len(logits)), [*h.tokens, 2]].sum()
                np.testing.assert_allclose(h.log_probability, expected, rtol=1e-5)
    assert finished >= 5


def test_free_search_repairs_its_outputs(run):
    model, tokenizer, _ = load_model(run)
    lines = ["the the . dog cat cat on on the", "on on . . the", "dog " * 15, "the . " * 9, "cat on cat on . cat"]
    constrained, free = (
        [parses[0] for parses in parse_stream(model, tokenizer, lines, free=free, beam_size=4, max_extra_tokens=60)]
        for free in (False, True)
    )
    assert (
        [parse.tree.words() for parse in constrained]
        == [parse.tree.words() for parse in free]
        == [*map(str.split, lines)]
    )
    assert sum(parse.repaired for parse in free) > sum(parse.repaired for parse in constrained)


def test_a_truncated_sentence_keeps_all_its_words(run):
    model, tokenizer, _ = load_model(run)
    warnings = []
    line = "the cat sat on the mat . " * 5
    (parses,) = parse_stream(
        model, tokenizer, [line], max_length=20, on_warning=warnings.append, beam_size=1, max_extra_tokens=10
    )
    assert parses[0].tree.words() == line.split() and parses[0].repaired
    assert "line 1: expected at most 19 tokens; got 70; the model reads the first 19" in warnings[0]


def test_words_without_tokens_get_a_flat_tree_and_no_attention(folder):
    trees = list(read_clean_trees(folder / "train.mrg"))
    tokenizer = TreeTokenizer.from_trees(trees, "bpe", 400, False)
    shape = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "n_outputs": tokenizer.n_outputs}
    model = build(TransformerConfig(tokenizer.vocab_size, **shape), 3)
    empty = Tree("TOP", [Leaf("NN", "\u00a0"), Leaf("NN", "\u3000")])
    assert tokenizer.encode_batch(empty.words()) == [[], []]
    parses, report = parse_gold(model, tokenizer, [empty, trees[0]], beam_size=1, max_extra_tokens=20)
    assert [str(parse) for parse in parses[0]] == ["(TOP (XX \u00a0) (XX \u3000))"] and report.total.sentences == 2
    assert "\u3000" in draw_tree(empty, *attention_over_words(model, tokenizer, empty))
    full = Tree("TOP", [Leaf("NN", word) for word in ("the", "\u00a0", "cat")])
    _, attention = attention_over_words(model, tokenizer, full)
    _, without = attention_over_words(model, tokenizer, Tree("TOP", [full.children[0], full.children[2]]))
    assert attention.shape == (5 - 1, 4) and (attention[:, 1] == 0).all()
    np.testing.assert_allclose(attention[0, [0, 2, 3]], without[0], rtol=1e-6)


def test_invalid_options_are_reported_on_one_line(run, folder, tmp_path, capfd):
    bad = tmp_path / "bad.mrg"
    bad.write_text("(S (NP (NN a))\n(S (NN a))\n")
    traces = tmp_path / "traces.mrg"
    traces.write_text("((S (-NONE- *)))\n")
    new = ["train", "base", "--set", "data.task=parsing", "--out", str(tmp_path / "new")]
    model = ["parse", "--model", str(run)]
    good = str(folder / "train.mrg")
    for options, message in (
        ([*new, "--train-trees", str(bad)], "bad.mrg, line 1: expected the tree that begins here to be closed"),
        ([*new, "--train-trees", str(traces)], "expected at least one tree with a word"),
        (new, "data.train_trees: expected a text file; got an empty name; try --train-trees FILE"),
        ([*new, "--train-trees", good, "--set", "data.tokenizer=characters"], "characters"),
        ([*new, "--train-trees", good, "--set", "data.tree_leaves=tag"], 'try tree_leaves = "tags"'),
        ([*model, "--gold", str(bad)], "bad.mrg, line 1"),
        ([*model, "--gold", good, "--input", good], f"--gold {good} cannot be combined with --input"),
        ([*model, "--gold", good, "--lexicon", str(bad)], "bad.mrg, line 1"),
        ([*model, "--gold", good, "--lexicon", good], "--lexicon: expected a parser that writes tags; got"),
        ([*model, "--gold", good, "--lexicon", good, "--free"], "--lexicon constrains the search, but --free"),
        (
            [*model, "--input", str(tmp_path / "none")],
            "expected a text file (a sentence goes to standard input); got a path that does not exist",
        ),
        ([*model, "--n-best", "9"], "--n-best: expected at most the beam size, 3; got 9"),
        (
            ["translate", "--model", str(run)],
            "expected a translation model; got a parser; try `npx-tr",
        ),
    ):
        assert main(options) == 2, options
        err = capfd.readouterr().err
        assert message in err and err.count("npx-transformer:") == 1 and "Traceback" not in err, err
    assert not (tmp_path / "new").exists()


def test_clean_trees_are_read_from_a_file(folder):
    trees = list(read_clean_trees(folder / "train.mrg"))
    assert write_tree(trees[0]).startswith("(TOP (S (NP (DT the) (NN cat)) (VP")
    assert len(trees) == len(TREES)


# ---- the lexicon


def test_runs_of_older_versions_take_a_lexicon_from_trees(folder, tmp_path, capsys):
    gold = list(read_clean_trees(folder / "valid.mrg"))
    many = tmp_path / "many.mrg"
    many.write_text("".join(tree + "\n" for tree in TREES * 20), encoding="utf-8")  # each word has one tag, 100 times
    spec = TreeTokenizer.from_trees(list(read_clean_trees(folder / "train.mrg")), "affixes", 200, True)._spec
    del spec["model"]["tags"]
    TreeTokenizer(spec).save(tmp_path / "old.json")
    run, out = tmp_path / "run", tmp_path / "out"
    train(config(folder, data={"tokenizer": str(tmp_path / "old.json")}, max_steps=1), run, progress=False)
    n_correct = {}
    for options in ([], ["--lexicon", str(many)]):
        command = ["parse", "--model", str(run), "--gold", str(folder / "valid.mrg"), "--output", str(out)]
        assert main([*command, "--max-extra-tokens", "200", *options]) == 0
        predicted = [tree.leaves() for _, tree in read_trees(out)]
        n_correct[len(options)] = sum(leaves == tree.leaves() for leaves, tree in zip(predicted, gold, strict=True))
    assert n_correct[0] < n_correct[2] == len(gold)
    trees = [f"--train-trees={many}", *(f"--{part}-trees={folder / 'valid.mrg'}" for part in ("valid", "test"))]
    table = ["reproduce", "table4", "--scale", "small", "--quiet", *trees]
    assert main([*table, "--out", str(tmp_path / "t"), "--run", f"wsj={run}"]) == 0
    ours = json.loads((tmp_path / "t" / "table4.json").read_text())["ours"]["wsj"]
    assert ours["trees"]["tagging"] == 100 > ours["free"]["tagging"]
    capsys.readouterr()


# ---- the picture


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_summed_over_the_subwords_of_a_word(folder, kind):
    tokenizer = TreeTokenizer.from_trees(list(read_clean_trees(folder / "train.mrg")), kind, 400, True)
    shape = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0, "n_outputs": tokenizer.n_outputs}
    model = build(TransformerConfig(tokenizer.vocab_size, **shape), 3)
    tree = next(read_clean_trees(folder / "train.mrg"))
    tokens, attention = attention_over_words(model, tokenizer, tree)
    assert tokens == [*linearize(tree, uses_tags=True), "end"] and attention.shape == (
        len(tokens),
        len(tree.words()) + 1,
    )
    np.testing.assert_allclose(attention.sum(axis=1), 1, rtol=1e-6)


def test_the_heads_of_a_parser_are_drawn(run, folder, tmp_path, capfd):
    words = " ".join(next(read_clean_trees(folder / "valid.mrg")).words())
    (tmp_path / "text").write_text(words + "\n", encoding="utf-8")
    assert main(["parse", "--model", str(run), "--input", str(tmp_path / "text")]) == 0
    tree = capfd.readouterr().out
    out = tmp_path / "a.svg"
    assert main(["draw", str(run), "heads", "--input", words, "--kind", "cross", "--out", str(out)]) == 0
    assert capfd.readouterr().out == tree
    alt = out.with_suffix(".alt.txt").read_text("utf-8")
    assert "Output: (" in alt and all(label in alt for label in (")", "end", "cross, "))
    assert main(["draw", str(run), "beam", "--input", words, "--out", str(out)]) == 0
    assert capfd.readouterr().out == tree and tree.strip() in out.with_suffix(".alt.txt").read_text("utf-8")


def test_the_page_shows_a_parser(run, folder):
    model, tokenizer, config = load_model(run)
    words = " ".join(next(read_clean_trees(folder / "valid.mrg")).words())
    ((expected,),) = parse_stream(
        model, tokenizer, [words], beam_size=2, max_extra_tokens=config.search.max_extra_tokens
    )
    sentences = Sentences(model, tokenizer, config)
    answer = sentences.translate({"text": words, "beam_size": 2}, lambda item: None)
    assert answer["text"] == str(expected) and answer["target"][-1] == "</s>"
    again = sentences.translate({"text": words, "beam_size": 2, "prefix": answer["ids"][:2]}, lambda item: None)
    assert again["target"][:2] == answer["target"][:2]
    for i, choices in enumerate(answer["alternatives"][:6]):  # each can be forced
        assert answer["ids"][i] in [choice["id"] for choice in choices]
        for choice in choices:
            prefix = [*answer["ids"][:i], choice["id"]]
            forced = sentences.translate({"text": words, "beam_size": 1, "prefix": prefix}, lambda item: None)
            assert forced["ids"][: i + 1] == prefix
    assert sum(map(len, answer["alternatives"][:6])) > 6
    for prefix in ([tokenizer.eos_id], answer["ids"][:-1] * 2, [tokenizer.n_outputs - 1] * 20):
        with pytest.raises(UserError, match="prefix: expected the beginning of a tree over the words of the sentence"):
            sentences.translate({"text": words, "prefix": prefix}, lambda item: None)


def test_the_svg_has_the_tree_and_the_attention(run, folder, tmp_path, capfd):
    svg = tmp_path / "t.svg"
    command = ["parse", "--model", str(run), "--gold", str(folder / "valid.mrg"), "--output", str(tmp_path / "out")]
    assert main([*command, "--svg", str(svg)]) == 0
    root = ElementTree.parse(svg).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert all(word in texts for word in ["the", "cat", "sat", "NP", "VP", "TOP", "(NP", ")S", "end"])
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 7 + 6 - 1  # one per child of a constituent
    (empty := tmp_path / "empty").write_text("\n", encoding="utf-8")
    unseen = ["parse", "--model", str(run), "--input", str(empty), "--svg", str(tmp_path / "no.svg")]
    assert main(unseen) == 2 and not (tmp_path / "no.svg").exists()
    assert "--svg: the input has no sentence to draw" in capfd.readouterr().err
    (long := tmp_path / "long").write_text("a " * 1001)
    assert main(["parse", "--model", str(run), "--input", str(long), "--svg", str(tmp_path / "no.svg")]) == 2
    err = capfd.readouterr().err
    assert (
        "--svg: expected a sentence and a tree of at most 1,000 tokens each; got" in err and "shorter sentence" in err
    )
    train(config(folder, model={"architecture": "bytenet"}, max_steps=1), tmp_path / "bytenet", progress=False)
    (text := tmp_path / "text").write_text("the cat\n")
    command = ["parse", "--model", str(tmp_path / "bytenet"), "--input", str(text), "--output", str(tmp_path / "no")]
    assert main([*command, "--svg", str(tmp_path / "no.svg")]) == 2 and not (tmp_path / "no").exists()
    assert "expected a model with cross attention; got the architecture bytenet" in capfd.readouterr().err
    odd = Tree("TOP", [Tree("A&B", [Leaf("<", "a<b")]), Leaf("'", "x")])
    drawn = ElementTree.fromstring(draw_tree(odd, ["(A", "end"], np.eye(2, 3)))
    assert {"a<b", "A&B"} <= {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}


# ---- Table 4


def test_table_4_with_a_trained_run_and_another_parser(run, folder, tmp_path, capsys):
    trees = [f"--{part}-trees={folder / f'{name}.mrg'}" for part, name in (("train", "train"), ("valid", "valid"))]
    test = ["--test-trees", str(folder / "valid.mrg"), "--scale", "small", "--quiet"]
    command = ["reproduce", "table4", "--out", str(tmp_path / "t"), *trees, *test]
    other = f"--other=gold={folder / 'valid.mrg'}"
    shutil.copytree(run, tmp_path / "run")
    assert main([*command, "--run", f"wsj={tmp_path / 'run'}", other]) == 0
    page = capsys.readouterr().out
    assert "| Dyer et al. (2016) | generative | 93.3 |" in page and page.count("| WSJ only, discriminative |") == 5
    table = json.loads((tmp_path / "t" / "table4.json").read_text())
    ours = table["ours"]["wsj"]
    assert ours["trees"]["f1"] == ours["free"]["f1"] == table["others"]["gold"]["recall"] == 100
    assert table["others"]["gold"]["f1"] < 100  # its outermost brackets have no label, and EVALB counts them
    assert ours["updates"] == 120 and [e["step"] for e in ours["curve"]] == [40, 80, 120]
    assert (tmp_path / "t" / "rows" / "wsj.parsed").read_text().count("(TOP (S") == 5
    assert main([*command, "--run", "other=x"]) == 2 and main([*command, "--other", "x"]) == 2
    err = capsys.readouterr().err
    assert "--run: expected wsj or semi; got 'other'" in err and "--other: expected NAME=PATH; got 'x'" in err


def test_table_4_with_a_run_that_has_no_numbered_checkpoints(run, folder, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    for path in RunFolder(tmp_path / "run").step_paths():
        shutil.rmtree(path)
    trees = [f"--{part}-trees={folder / 'valid.mrg'}" for part in ("train", "valid", "test")]
    command = ["reproduce", "table4", f"--out={tmp_path / 't'}", *trees, "--scale=small", "--quiet"]
    for _ in range(2):  # the second time, the row is finished
        assert main([*command, f"--run=wsj={tmp_path / 'run'}"]) == 0
        assert re.search(r"\n[\d,]+ parameters\.\n", capsys.readouterr().out)


def test_table_4_trains_its_rows(folder, tmp_path, capsys):
    settings = ["train.max_steps=2", "model.d_model=8", "model.d_ff=8", "model.n_layers=1", "search.max_extra_tokens=3"]
    trees = [f"--{part}-trees={folder / 'valid.mrg'}" for part in ("train", "valid", "test")]
    command = ["reproduce", "table4", f"--out={tmp_path / 't'}", "--scale=small", "--quiet", *trees]
    command += ["--silver", str(folder / "valid.mrg"), *(f"--set={setting}" for setting in settings)]
    assert main(command) == 0
    table = json.loads((tmp_path / "t" / "table4.json").read_text())
    assert set(table["ours"]) == {"wsj", "semi"} and table["ours"]["semi"]["updates"] == 2
    assert len((tmp_path / "t" / "semi.mrg").read_text().splitlines()) == 3 * len(TREES[::4])
    page = capsys.readouterr().out
    command = command[: command.index("--silver")] + command[command.index("--silver") + 2 :]
    assert main(command) == 0 and capsys.readouterr().out == page  # the page has all finished rows
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "t" / "rows").rglob("*.*")}
    assert main(command) == 0
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "test.mrg").write_text("my own")
    (tmp_path / "mine.mrg").write_text(TREES[0])
    for changes, message in (
        (
            [f"--test-trees={tmp_path / 'mine.mrg'}"],
            "expected the same test trees, as in the finished rows; got different ones",
        ),
        ([f"--train-trees={tmp_path / 'mine.mrg'}"], "expected the same train trees"),
        (["--scale=paper", "--set=model.n_heads=2"], "expected scale = small, as in the finished rows; got paper; try"),
        (["--set=train.seed=2"], "expected settings = "),
        ([f"--run=semi={tmp_path / 't' / 'rows' / 'wsj'}"], "expected the same run semi, as in the finished rows"),
        (["--run=wsj=nope"], "nope: expected a run folder or a checkpoint folder; got a path that"),
        (
            [f"--out={tmp_path / 'mine'}"],
            "an earlier output folder of this command; got a folder with other files; try another",
        ),
    ):
        replaced = {change.partition("=")[0] for change in changes} - {"--set", "--run"}
        assert main([*(word for word in command if word.partition("=")[0] not in replaced), *changes]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, err
    rows = (tmp_path / "t" / "rows").rglob("*.*")  # finished rows are not changed
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in rows}
    assert (tmp_path / "mine" / "test.mrg").read_text() == "my own"
