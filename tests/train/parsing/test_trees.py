"""Trees: read in any layout, cleaned, written as tokens, and back from any tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train import UserError
from train.tasks.parsing.linearize import TAGS_OF_PUNCTUATION, linearize, tree_from_tokens
from train.tasks.parsing.trees import TOP, Leaf, Tree, clean, punctuation, read_trees, write_tree

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


def tagged(tree, tags=False):
    """The tree as it comes back: punctuation with its own tag, other words with theirs or XX."""
    known = iter(punctuation(tree.words()))

    def part(x):
        if isinstance(x, Leaf):
            return Leaf(next(known) or (x.tag if tags else "XX"), x.word)
        return Tree(x.label, [part(y) for y in x.children])

    return part(tree)


@given(TOPPED, st.booleans())
def test_a_tree_comes_back_from_its_tokens(tree, tags):
    tokens = linearize(tree, tags)
    assert len([t for t in tokens if t[0] not in "()"]) == len(tree.words())
    assert tree_from_tokens(tokens, tree.words()) == (tagged(tree, tags), False)


@pytest.mark.parametrize("depth", [1, 200, 20_000])
def test_unary_chains_of_any_depth_come_back(tmp_path, depth):
    tree = chain(depth)
    assert tree_from_tokens(linearize(tree, tags=True), ["word"]) == (tree, False)
    (tmp_path / "t").write_text(write_tree(tree), encoding="utf-8")
    assert [t for _, t in read_trees(tmp_path / "t")] == [tree] == [clean(tree)]


@given(TOKENS, st.lists(WORDS, min_size=1, max_size=6))
def test_any_tokens_become_a_tree_over_exactly_the_words(tokens, words):
    tree, repaired = tree_from_tokens(tokens, words)
    assert tree.words() == words and tree.label == TOP
    again, twice = tree_from_tokens(linearize(tree, tags=True), words)
    assert (again, twice) == (tree, False)  # what has been repaired is whole
    if not repaired:
        assert [t[0] if t[0] in "()" else "x" for t in tokens] == [
            t[0] if t[0] in "()" else "x" for t in linearize(tree, tags=True)
        ]
    assert [leaf.tag if leaf.tag in TAGS_OF_PUNCTUATION else "" for leaf in tree.leaves()] == punctuation(words)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("(S (NP XX )NP XX", "(S (NP (XX a)) (XX b) (XX c))"),  # closed at the end, and what is missing added
        ("(S XX XX XX XX )S", "(S (XX a) (XX b) (XX c))"),  # one too many
        ("(S (NP XX )S XX XX", "(S (NP (XX a))) (XX b) (XX c)"),  # )S closes NP too
        ("(S (NP XX )NP )S", "(S (NP (XX a)) (XX b) (XX c))"),  # what is missing comes to S
        ("(S (NP XX )VP XX )NP XX )S", "(S (NP (XX a) (XX b)) (XX c))"),  # )VP closes nothing
        ("(S (NP )NP XX XX XX )S", "(S (XX a) (XX b) (XX c))"),  # nothing in it
        ("", "(XX a) (XX b) (XX c)"),
    ],
)
def test_what_is_repaired_and_how(tokens, expected):
    assert tree_from_tokens(tokens.split(), ["a", "b", "c"]) == (read(f"(TOP {expected})"), True)


def read(text):
    import tempfile

    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return next(read_trees(file.name))[1]


@given(st.lists(TREES, min_size=1, max_size=4), st.sampled_from([" ", "\n", "\n\n  ", "\r\n"]))
def test_layout_says_nothing(tmp_path_factory, trees, space):
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
    assert str(clean(read("((S (-NONE- *)))"))) == "(TOP)" and str(read("(A a)")) == "(TOP (A a))"
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
        ("# nothing\n\n", "expected at least one tree; got 2 lines without any"),
        ("", "got an empty file"),
    ],
)
def test_what_is_no_tree_is_told_with_its_line(tmp_path, text, message):
    (tmp_path / "t").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(read_trees(tmp_path / "t"))


def test_single_quotes_are_told_by_what_opened_them():
    assert punctuation("` a ' the boys ' ball '' .".split()) == ["``", "", "''", "", "", "", "", "''", "."]
