"""Trees: reading, cleaning, linearization, and repair of token sequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train import UserError
from train.tasks.parsing.linearize import TAGS_OF_PUNCTUATION, linearize, tree_from_tokens
from train.tasks.parsing.trees import TOP, Leaf, Tree, clean, punctuation_tags, read_sentences, read_trees, write_tree

LABELS = st.sampled_from(["S", "NP", "VP", "ADVP|PRT", "X-Y"])
WORDS = st.sampled_from(["the", "cat", "-LRB-", ",", ".", "'", "`", "''", "1\\/2", "é\u00a0\u2028", "XX", "#"])
LEAVES = st.builds(Leaf, st.sampled_from(["XX", "NN", "DT"]), WORDS)
TREES = st.recursive(
    st.builds(Tree, LABELS, st.lists(LEAVES, min_size=1, max_size=3)),
    lambda parts: st.builds(Tree, LABELS, st.lists(st.one_of(parts, LEAVES), min_size=1, max_size=4)),
    max_leaves=12,
)
TOPPED = st.builds(lambda parts: Tree(TOP, parts), st.lists(st.one_of(TREES, LEAVES), min_size=1, max_size=3))
TOKENS = st.lists(st.sampled_from(["(S", ")S", "(NP", ")NP", "(VP", ")VP", "XX", "NN", ",", "(", ")", "", "<unk>"]))


def chain(depth, label="NP"):
    tree = Tree(label, [Leaf("NN", "word")])
    for _ in range(depth - 1):
        tree = Tree(label, [tree])
    return Tree(TOP, [tree])


def with_known_tags(tree, tags=False):
    """Return the expected tree: punctuation has its own tag, other words their tag or XX."""
    marks = iter(punctuation_tags(tree.words()))

    def part(x):
        if isinstance(x, Leaf):
            return Leaf(next(marks) or (x.tag if tags else "XX"), x.word)
        return Tree(x.label, [part(y) for y in x.children])

    return part(tree)


@given(TOPPED, st.booleans())
def test_linearize_round_trip(tree, tags):
    tokens = linearize(tree, tags)
    assert len([t for t in tokens if t[0] not in "()"]) == len(tree.words())
    assert tree_from_tokens(tokens, tree.words()) == (with_known_tags(tree, tags), False)


@pytest.mark.parametrize("depth", [1, 200, 20_000])
def test_deep_unary_chains_round_trip(tmp_path, depth):
    tree = chain(depth)
    assert tree_from_tokens(linearize(tree, uses_tags=True), ["word"]) == (tree, False)
    (tmp_path / "t").write_text(write_tree(tree), encoding="utf-8")
    assert [t for _, t in read_trees(tmp_path / "t")] == [tree] == [clean(tree)]


@given(TOKENS, st.lists(WORDS, min_size=1, max_size=6))
def test_any_tokens_become_a_tree_over_exactly_the_words(tokens, words):
    tree, repaired = tree_from_tokens(tokens, words)
    assert tree.words() == words and tree.label == TOP
    assert tree_from_tokens(linearize(tree, uses_tags=True), words) == (tree, False)  # a repaired tree needs no repair
    if not repaired:
        assert [t[0] if t[0] in "()" else "x" for t in tokens] == [
            t[0] if t[0] in "()" else "x" for t in linearize(tree, uses_tags=True)
        ]
    assert [leaf.tag if leaf.tag in TAGS_OF_PUNCTUATION else "" for leaf in tree.leaves()] == punctuation_tags(words)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("(S (NP XX )NP XX", "(S (NP (XX a)) (XX b) (XX c))"),  # closed at the end, missing words added
        ("(S XX XX XX XX )S", "(S (XX a) (XX b) (XX c))"),  # a surplus leaf
        ("(S (NP XX )S XX XX", "(S (NP (XX a))) (XX b) (XX c)"),  # )S also closes NP
        ("(S (NP XX )NP )S", "(S (NP (XX a)) (XX b) (XX c))"),  # missing words are added to S
        ("(S (NP XX )VP XX )NP XX )S", "(S (NP (XX a) (XX b)) (XX c))"),  # )VP closes nothing
        ("(S (NP )NP XX XX XX )S", "(S (XX a) (XX b) (XX c))"),  # an empty constituent
        ("", "(XX a) (XX b) (XX c)"),
    ],
)
def test_repairs(tokens, expected):
    assert tree_from_tokens(tokens.split(), ["a", "b", "c"]) == (read(f"(TOP {expected})"), True)


def read(text):
    import tempfile

    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return next(read_trees(file.name))[1]


@given(st.lists(TREES, min_size=1, max_size=4), st.sampled_from([" ", "\n", "\n\n  ", "\r\n"]))
def test_trees_are_read_in_any_layout(tmp_path_factory, trees, space):
    path = tmp_path_factory.mktemp("trees") / "t"
    text = "% about\n" + space.join(map(write_tree, trees)).replace(" (", f"{space}(")
    path.write_text(text, encoding="utf-8", newline="")
    assert [tree for _, tree in read_trees(path)] == trees


def test_cleaning_drops_traces_and_function_tags():
    text = """( (S (NP-SBJ-1=2 (DT The) (-LRB- -LRB-) (NN cat)) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1))
        (SBAR (-NONE- 0) (S (NP (-NONE- *)))) (PP-LGS (IN by) (NP (PRP us))))) (NP ) (. .)) )"""
    assert str(clean(read(text))) == (
        "(TOP (S (NP (DT The) (-LRB- -LRB-) (NN cat)) (VP (VBD was) (VP (VBN seen) (PP (IN by) (NP (PRP us))))) (. .)))"
    )
    assert clean(read("(ROOT (S (A a)))")) == clean(read("((S (A a)))")) == clean(read("(S (A a))"))
    assert clean(read("(S ( (NP (A a))) ( (B b) (C c)))")) == clean(read("(S (NP (A a)) (B b) (C c))"))
    assert str(clean(read("((S (-NONE- *)))"))) == "(TOP)" and str(read("(A a)")) == "(TOP (A a))"
    assert clean(read("(TOP (S ( It) (VP (VBD rained))))")) == read("(TOP (S (XX It) (VP (VBD rained))))")
    assert str(clean(read("(TOP (S (A a)) (S (B b)))"))) == "(TOP (S (A a)) (S (B b)))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (A a))\n(S (NP (A a))\n", "line 2: expected the tree that begins here to be closed"),
        ("(S (A a))\n(S (A a)))\n", r"line 2: expected '\('; got '\)'"),
        ("(S (A a b))", "line 1: expected '\\)' or '\\(' after the word 'a'; got 'b'"),
        ("(S (A a) b)", "line 1: expected '\\)' or '\\(' after a closing bracket; got 'b'"),
        ("(S\n(A a (B b)))", "line 2: expected '\\)' after the word 'a'; got '\\(B'"),
        ("word\n", "line 1: expected '\\('; got 'word'"),
        ("# nothing\n\n", "expected at least one tree; got 2 lines without a tree"),
        ("", "got an empty file"),
    ],
)
def test_invalid_trees_are_reported_with_their_line(tmp_path, text, message):
    (tmp_path / "t").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(read_trees(tmp_path / "t"))


def test_blank_lines_count_towards_the_size_of_a_tree(tmp_path):
    (tmp_path / "t").write_text(f"(S{chr(10) * 2**20}(A a))", encoding="utf-8")
    for read_all in (read_sentences, lambda path: list(read_trees(path))):
        with pytest.raises(UserError, match="line 10485..: expected a tree of at most 1,048,576 characters"):
            read_all(tmp_path / "t")
    (tmp_path / "t").write_text(f"(S{chr(10) * 10**5}(A a))\n\n(S (B b))\n", encoding="utf-8")
    assert [len(trees) for _, trees in read_sentences(tmp_path / "t")] == [1, 1]


def test_single_quotes_close_a_backtick():
    assert punctuation_tags("` a ' the boys ' ball '' .".split()) == ["``", "", "''", "", "", "", "", "''", "."]
