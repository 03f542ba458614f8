"""Files of labels and tags: reading, encoding, and the messages for invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.sentences import SENTENCES
from train.errors import UserError
from train.text.affixes import WordTokenizer, affix_spec
from train.text.labeled_text import WordEncoder, make_label_tokenizer, read_labeled, read_parallel_tags, read_tagged
from train.text.tokenizer import SPECIALS, Tokenizer


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "good\tfine\nfine film\n",
            "line 2: expected label<TAB>text, or label<TAB>text<TAB>text; got 'fine film'; try",
        ),
        ("good\tfine\n\n", "line 2: expected label<TAB>text, or label<TAB>text<TAB>text; got an empty line; try"),
        ("good\t \n", "line 1: expected label<TAB>text"),
        ("a\tb\tc\td\n", "line 1: expected label<TAB>text"),
    ],
)
def test_an_invalid_labeled_text_is_named_by_its_line(tmp_path, text, message):
    (tmp_path / "f").write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_labeled(tmp_path / "f"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("the\tDT\ncat\n", "line 2: expected word<TAB>tag, one word per line; got 'cat'; try a tag for each word"),
        ("the\tDT\tx\n", "line 1: expected word<TAB>tag"),
        ("new york\tNN\n", "line 1: expected word<TAB>tag"),
        ("york\tNN NNP\n", "line 1: expected word<TAB>tag"),
        ("\n\n", "expected lines word<TAB>tag; got only empty lines; try another file"),
    ],
)
def test_invalid_tagged_words_are_named_by_their_line(tmp_path, text, message):
    (tmp_path / "f").write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_tagged(tmp_path / "f"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_sentences_are_separated_by_empty_lines(tmp_path):
    (tmp_path / "f").write_text("\n\nthe\tDT\ncat\tNN\n\n\nit\tPRP")
    assert [tuple(s) for s in read_tagged(tmp_path / "f")] == [(3, ["the", "cat"], ["DT", "NN"]), (7, ["it"], ["PRP"])]


@pytest.mark.parametrize("space", " \f\v\r")
def test_whitespace_around_tagged_words_is_ignored(tmp_path, space):
    (tmp_path / "f").write_text(f"{space}cat{space}\t{space}NN{space}\n", newline="")
    assert [tuple(s) for s in read_tagged(tmp_path / "f")] == [(1, ["cat"], ["NN"])]


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("XY")), max_size=4), max_size=5))
def test_a_file_of_tags_gives_what_tagged_words_give(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("tags")
    for name, side in (("words", 0), ("tags", 1)):
        (folder / name).write_text("".join(" ".join(pair[side] for pair in row) + "\n" for row in sentences) or "\n")
    (folder / "tagged").write_text("\n".join("".join(f"{w}\t{t}\n" for w, t in row) for row in sentences) or "\n")
    if not any(sentences):
        with pytest.raises(UserError, match="words: expected a sentence of words per line; got only empty lines"):
            list(read_parallel_tags(folder / "words", folder / "tags"))
        return
    read = list(read_parallel_tags(folder / "words", folder / "tags"))
    assert [s[1:] for s in read] == [s[1:] for s in read_tagged(folder / "tagged")]
    assert [s.line for s in read] == [i for i, row in enumerate(sentences, 1) if row]


@pytest.mark.parametrize(
    "labels, message",
    [
        (
            ["pos", "neg", "<unk>"],
            "f: expected labels other than <pad>, <s>, </s>, <unk>; got <unk>; try other names",
        ),
        (["pos", "pos"], "f: expected at least two different labels; got only 'pos'; try a file with more labels"),
        ([], "f: expected at least two different labels; got no label; try a file with more labels"),
    ],
)
def test_invalid_labels_are_named(labels, message):
    with pytest.raises(UserError) as caught:
        make_label_tokenizer("f", labels)
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", ["bpe", "affixes"])
def test_words_are_encoded_as_in_their_sentence(kind):
    """The tokens of a sentence are those of its words, so that a tagger reads what a masked model was trained on."""
    lines = [[*SENTENCES, "U.S. stocks don't fall ( much ) <s>"]]
    sentences = [line.split() for line in lines[0]]
    spec = Tokenizer.train_spec(lines, kind, 300, "words") if kind == "bpe" else affix_spec(sentences, SPECIALS, 200)
    tokenizer = WordTokenizer(spec)
    ids, firsts = WordEncoder(tokenizer)(sentences)
    assert [row[1:] for row in ids] == tokenizer.encode_batch(lines[0])
    starts = tokenizer.word_starts()
    for row, positions in zip(ids, firsts, strict=True):
        assert len(positions) == len({*positions}) and all(starts[row[i]] for i in positions)
