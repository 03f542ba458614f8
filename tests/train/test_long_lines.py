"""Limits on the lengths of lines, words and trees, and texts of any line length for language models."""

import gzip
import io
import tarfile
import tracemalloc
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from train import UserError
from train.cli import main
from train.cli.streams import stream_lines
from train.tasks.parsing.trees import MAX_WORD, read_sentences, read_trees
from train.text import lines as reading
from train.text.download.catalog import Pair
from train.text.download.unpack import read_pairs
from train.text.lines import MAX_LINE_BYTES, line_pieces, read_lines, read_parallel
from train.text.plain import PlainTokenizer, read_plain

MESSAGE = "line 3: expected at most 1,048,576 bytes; got a longer line; try one sentence per line"


@contextmanager
def memory_below(mib):
    """Fail if more than this amount of memory is allocated at any moment in the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mib * 2**20
    finally:
        tracemalloc.stop()


def members(*pairs):
    """Return a tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
        for name, content in pairs:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("reader", ["lines", "parallel", "gzip", "archive", "stream", "trees", "sentences"])
def test_every_reader_has_the_same_limit(tmp_path, reader):
    """A line of 1 MiB is read; a longer one is rejected without reading all of it, compressed or not."""
    path, other = tmp_path / "text", tmp_path / "other"

    def write(last):
        """Write three lines to the file and return a function that reads them."""
        content = f"{first}\n{first}\n{last}\n".encode()
        path.write_bytes(content)
        if reader == "gzip":
            (tmp_path / "text.gz").write_bytes(gzip.compress(content, 1))
        if reader == "archive":
            (tmp_path / "a.tgz").write_bytes(members(("text", content), ("other", other.read_bytes())))
        return {
            "lines": lambda: [line for chunk in read_lines(path) for line in chunk],
            "parallel": lambda: [line for chunk, _ in read_parallel(path, other) for line in chunk],
            "gzip": lambda: list(read_pairs(Pair("", f"{path}.gz", str(other)), tmp_path)),
            "archive": lambda: list(read_pairs(Pair("a.tgz", "text", "other"), tmp_path)),
            "stream": lambda: list(stream_lines(stack.enter_context(open(path, "rb")), "stdin", MAX_LINE_BYTES)),
            "trees": lambda: list(read_trees(path)),
            "sentences": lambda: list(read_sentences(path)),
        }[reader]

    first = "(S (A a))" if reader in ("trees", "sentences") else "short"
    other.write_text("1\n2\n3\n")
    with ExitStack() as stack:
        assert len(write(first + " " * (MAX_LINE_BYTES - 10))()) == 3
        read = write(first + " " * MAX_LINE_BYTES * (24 if reader == "archive" else 8))
        with memory_below(45 if reader == "archive" else 7), pytest.raises(UserError, match=MESSAGE):
            read()


@pytest.mark.parametrize("tree", ["(S (N {}))", "(S ({} a))", "({} (N a))", "(S {}"])
def test_long_words_and_labels_of_trees_are_rejected(tmp_path, tree):
    (tmp_path / "trees").write_text("(S (N " + "x" * MAX_WORD + "))\n" + tree.format("x" * 600_000))
    for read in (read_trees, read_sentences):
        with pytest.raises(UserError, match=r"line 2: expected words and labels of at most 1,000 characters; got 600,"):
            list(read(tmp_path / "trees"))


def test_a_tree_on_many_lines_has_the_limit_of_a_line(tmp_path):
    line = "(A a)" + " " * 10_395 + "\n"
    (tmp_path / "trees").write_text("(S\n" + line * 90 + ")\n(S\n" + line * 120 + ")\n")
    trees = read_trees(tmp_path / "trees")
    assert next(trees)[0] == 92
    with pytest.raises(UserError, match="line 194: expected a tree of at most 1,048,576 characters; got a longer tree"):
        next(trees)


WORD = st.text(st.sampled_from("aé漢\u0301 \u3000\xa0.7\r"), max_size=9)


@settings(deadline=None)
@given(lines=st.lists(WORD, min_size=1, max_size=9), size=st.integers(4, 20), end=st.sampled_from(["\n", "\r\n", ""]))
@example(lines=["abc\r"], size=4, end="\n")
@example(lines=["漢" * 9, ""], size=5, end="")
def test_pieces_of_lines_join_to_the_text(tmp_path_factory, lines, size, end):
    content = (end or "\n").join(lines) + end
    path = tmp_path_factory.mktemp("pieces") / "text"
    path.write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PIECE_BYTES", size)
        pieces = [*line_pieces(io.BytesIO(content.encode()), "")]
        chunks = [*read_plain(path)] if content else []
    assert b"".join(pieces) == content.encode() and all(0 < len(piece) < 2 * size for piece in pieces)
    expected = [line + "\n" for chunk in read_lines(path) for line in chunk] if content else []
    assert "".join(piece for chunk in chunks for piece in chunk) == "".join(expected)


def test_a_text_in_one_line_has_the_tokens_of_the_undivided_line(tmp_path, monkeypatch):
    words = [f"wörd{n % 91} ,  {n}" for n in range(900)]
    (tmp_path / "line").write_text(" ".join(words))
    monkeypatch.setattr(reading, "PIECE_BYTES", 2048)
    tokenizer = PlainTokenizer.from_files([tmp_path / "line"], "bpe", 400)
    pieces = [piece for chunk in read_plain(tmp_path / "line") for piece in chunk]
    assert len(pieces) > 5
    tokens = [i for ids in tokenizer.encode_batch(pieces) for i in ids]
    assert tokens == tokenizer.encode(" ".join(words) + "\n")


def test_a_language_text_in_one_line_needs_little_memory(tmp_path):
    (tmp_path / "line").write_bytes(b"x" * 2**23)
    with memory_below(6):
        assert sum(len(piece) for chunk in read_plain(tmp_path / "line") for piece in chunk) == 2**23 + 1


def test_translating_a_long_line_gives_one_line_of_advice(tmp_path, capfd, uninterrupted):
    (tmp_path / "input").write_text("short\nshort\n" + "one two " * (MAX_LINE_BYTES // 8) + "x")
    assert main(["translate", "--model", str(uninterrupted), "--input", str(tmp_path / "input")]) == 2
    assert MESSAGE in (err := capfd.readouterr().err) and err.count("\n") == 1
