"""The vocabulary of a parser: trees and sizes that it cannot represent, and words without a tag."""

import pytest

from train.errors import UserError
from train.tasks.parsing.linearize import linearize, tree_from_tokens
from train.tasks.parsing.task import read_clean_trees
from train.tasks.parsing.tokenizer import TreeTokenizer
from train.text.tokenizer import KINDS, SPECIALS


def read(tmp_path, text):
    (tmp_path / "trees").write_text(text)
    return list(read_clean_trees(tmp_path / "trees"))


@pytest.mark.parametrize("tag", [token[1:-1] for token in SPECIALS])
def test_a_tag_with_the_name_of_a_special_token_is_named(tmp_path, tag):
    trees = read(tmp_path, f"(S (NN cat) ({tag} sat))" * 2)
    with pytest.raises(UserError) as error:
        TreeTokenizer.from_trees(trees, "bpe", 400, uses_tags=True)
    expected = f"training trees: expected tags other than pad, s, /s, unk; got {tag}; try other names, or data.tree_lea"
    assert str(error.value).startswith(expected)
    assert TreeTokenizer.from_trees(trees, "bpe", 400, uses_tags=False).encode_trees(trees)


def test_a_word_without_a_tag_is_written_as_xx(tmp_path):
    (tree,) = read(tmp_path, "(TOP (S ( It) (VP (VBD rained))))")
    tokenizer = TreeTokenizer.from_trees([tree], "bpe", 400, uses_tags=True)
    (ids,) = tokenizer.encode_trees([tree])
    assert tokenizer.symbols(ids) == linearize(tree, uses_tags=True) == ["(S", "XX", "(VP", "VBD", ")VP", ")S"]
    assert tree_from_tokens(tokenizer.symbols(ids), ["It", "rained"]) == (tree, False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_vocabulary_contains_the_symbols(tmp_path, kind):
    trees = read(tmp_path, "".join(f"(X{i} (NN cat))" for i in range(60)))  # with 120 brackets and XX
    with pytest.raises(UserError, match=r"expected at least 381 \(125 special symbols and 256 bytes\); got 380; try"):
        TreeTokenizer.from_trees(trees, kind, 380, uses_tags=False)
    assert TreeTokenizer.from_trees(trees, kind, 381, uses_tags=False).vocab_size == 381
