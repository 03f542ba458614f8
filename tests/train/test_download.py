"""`data` (train/text/download/fetch.py, unpack.py, collect.py): over HTTP that fails in every way, and from files."""

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.cli import main
from train.errors import UserError
from train.text.download import fetch as fetching
from train.text.download import prepare as collecting
from train.text.download.catalog import NAMES, Archive, Dataset, Pair, dataset
from train.text.download.fetch import fetch, fetch_all
from train.text.download.prepare import collect
from train.text.download.unpack import read_pairs
from train.text.tokenizer import Tokenizer

BYTES = bytes(range(256)) * 300
WHOLE = Archive("a.bin", "", len(BYTES), hashlib.sha256(BYTES).hexdigest())


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `files`; the answers to come are as `plan` says, "whole" when it has run out."""

    files: dict[str, bytes]
    plan: list[str]
    asked: list[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        how = self.plan.pop(0) if self.plan else "whole"
        content, start = self.files.get(self.path.lstrip("/")), 0
        asked = self.headers.get("Range", "")
        self.asked.append(asked)
        if content is None or how == "error":
            self.send_error(404 if content is None else 503)
            return
        if asked and how != "no ranges":
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_error(416)
                return
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if how == "breaks":
            self.wfile.write(body[: len(body) // 2])
        elif how == "nothing":
            pass
        elif how == "slow":
            for i in range(0, len(body), 30_000):
                self.wfile.write(body[i : i + 30_000])
                time.sleep(0.01)
        elif how == "hangs":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            time.sleep(0.6)
        else:
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextmanager
def served(files, *plan):
    """A server on the loopback: its URL, and the Range of each request that came."""
    handler = type("Handler", (Server,), {"files": files, "plan": [*plan], "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", handler.asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("plan", "ranges"),
    [
        ([], [""]),
        (["slow"], [""]),
        (["breaks"], ["", "bytes=38400-"]),
        (["breaks", "breaks", "breaks"], ["", "bytes=38400-", "bytes=57600-", "bytes=67200-"]),
        (["breaks", "error", "whole"], ["", "bytes=38400-", "bytes=38400-"]),
        (["breaks", "no ranges"], ["", "bytes=38400-"]),  # sends the whole once more
        (["hangs"], ["", "bytes=38400-"]),
    ],
)
def test_a_file_comes_whole_however_the_server_fails(tmp_path, plan, ranges):
    hangs = "hangs" in plan
    with served({"a.bin": BYTES}, *plan) as (url, asked):
        found = fetch_all([WHOLE], tmp_path, url, wait=0.3 if hangs else 60)
    assert (tmp_path / "a.bin").read_bytes() == BYTES
    assert asked[:2] == ranges if hangs else asked == ranges  # a slow machine may take more tries in 0.3 s
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (found[0]["sha256"], found[0]["bytes"], found[0]["checked_by"]) == (WHOLE.sha256, len(BYTES), "sha256")


def test_a_download_that_was_stopped_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    said = r"a.bin: expected to fetch it; got .*; try the same command again"
    with served({"a.bin": BYTES}, "breaks", *["nothing"] * 5) as (url, asked):
        with pytest.raises(UserError, match=said) as error:
            fetch_all([WHOLE], tmp_path, url)
        assert WHOLE.sha256 in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)
        assert [path.name for path in tmp_path.iterdir()] == ["a.bin.part"]
        fetch_all([WHOLE], tmp_path, url)
    assert asked[-1] == "bytes=38400-" and (tmp_path / "a.bin").read_bytes() == BYTES


def test_all_of_it_may_be_there_but_not_under_its_name(tmp_path):
    (tmp_path / "a.bin.part").write_bytes(BYTES)
    with served({"a.bin": BYTES}) as (url, asked):
        fetch_all([WHOLE], tmp_path, url)
    assert asked == [f"bytes={len(BYTES)}-"] and (tmp_path / "a.bin").read_bytes() == BYTES


def test_a_wrong_hash_is_one_line_and_leaves_nothing(tmp_path):
    with served({"a.bin": BYTES[:-1] + b"x"}) as (url, _), pytest.raises(UserError) as error:
        fetch_all([WHOLE], tmp_path, url)
    assert f"expected SHA-256 {WHOLE.sha256}; got " in str(error.value) and "76,800 bytes of 76,800" in str(error.value)
    assert not [*tmp_path.iterdir()]
    old = Archive("a.bin", "", md5=hashlib.md5(BYTES).hexdigest())
    with served({"a.bin": BYTES}) as (url, _):
        assert fetch_all([old], tmp_path, url)[0]["checked_by"] == "md5"
    (tmp_path / "a.bin").write_bytes(BYTES[:-9])  # put there by hand, cut short
    with pytest.raises(UserError, match=r"a.bin: expected MD5 .*; got .* \(76,791 bytes\); try removing it"):
        fetch_all([old], tmp_path, "http://127.0.0.1:1")
    assert (tmp_path / "a.bin").exists()  # it is the user's


def test_without_a_network_the_line_names_every_file_that_is_missing(tmp_path):
    others = [WHOLE, Archive("b.tgz", "http://127.0.0.1:1/b.tgz", 5, md5="0" * 32), Archive("c.tgz", "")]
    (tmp_path / "a.bin").write_bytes(BYTES)
    with pytest.raises(UserError) as error:
        fetch_all(others, tmp_path, wait=0.2)
    text = str(error.value)
    assert "\n" not in text and f"into {tmp_path}: b.tgz (MD5 {'0' * 32}); c.tgz (no published hash)" in text
    assert "a.bin" not in text
    with served({}) as (url, _), pytest.raises(UserError, match=r"b.tgz: expected to fetch it; got 'Not Found'"):
        fetch_all(others, tmp_path, url)


def test_room_is_looked_at_before_anything_is_fetched(tmp_path):
    with pytest.raises(UserError, match=r"expected room for 5000000.0 GB to fetch; got .* GB; try another --out"):
        fetch_all([Archive("huge", "http://127.0.0.1:1/", 5 * 10**15)], tmp_path)


def test_a_folder_is_a_mirror_too(tmp_path):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "a.bin").write_bytes(BYTES)
    fetch_all([WHOLE], tmp_path / "out", str(tmp_path / "mirror"))
    assert (tmp_path / "out/a.bin").read_bytes() == BYTES
    with pytest.raises(OSError, match="no file"):
        fetch(WHOLE, tmp_path / "b", "nowhere")


# ---- whole corpora

LINES = [f"the {a} {b} number {i} is here" for i, (a, b) in enumerate((a, b) for a in "red old big".split()
                                                                       for b in "cat dog cow hen".split())]  # fmt: skip
ALL = [*LINES, "", *LINES[:2], "дом дом"]


def packed(members, mode="w:gz"):
    """A tar archive as bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def text(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def sgm(lines):
    return text(["<refset>", *(f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(lines)), "</refset>"])


ARCHIVES = {
    "one.tgz": packed({"./x/train.en": text(ALL), "x/train.de": text(line[::-1] for line in ALL)}),
    "two.tar": packed({"b.de.gz": gzip.compress(b"was\r\n"), "b.en.gz": gzip.compress(b"\xef\xbb\xbfwhat\n")}, "w"),
    "test.tgz": packed({"t.en.sgm": sgm(LINES[:3]), "t.de.sgm": sgm(LINES[3:6])}),
}
KNOWN = Dataset(
    "en", "de",
    tuple(Archive(name, "", len(data), hashlib.sha256(data).hexdigest()) for name, data in ARCHIVES.items()),
    (Pair("one.tgz", "x/train.en", "x/train.de"), Pair("two.tar", "b.en.gz", "b.de.gz")),
    (Pair("test.tgz", "t.en.sgm", "t.de.sgm", "segments"),), vocab_size=300,
)  # fmt: skip


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("corpus")
    with served(ARCHIVES, "breaks", "whole", "slow") as (url, _):
        collect(KNOWN, out, mirror=url, command="the command", progress=False)
    return out


def test_a_corpus_is_fetched_cleaned_and_prepared_and_the_manifest_tells_all(corpus):
    manifest = json.loads((corpus / "manifest.json").read_text("utf-8"))
    counts = {"read": 17, "kept": 13, "empty": 1, "long": 0, "ratio": 0, "script": 1, "duplicate": 2}
    assert manifest["texts"]["train"]["counts"] == counts and manifest["command"] == "the command"
    assert (corpus / "train.en").read_bytes() == text([*LINES, "what"])
    assert (corpus / "train.de").read_bytes() == text([*(line[::-1] for line in LINES), "was"])
    assert (corpus / "valid.en").read_bytes() == text(LINES[:3]) and (corpus / "valid.de").stat().st_size
    assert [source["sha256"] for source in manifest["sources"]] == [archive.sha256 for archive in KNOWN.archives]
    tokenizer = Tokenizer.load(corpus / "tokenizer.json")
    assert manifest["tokenizer"]["digest"] == tokenizer.digest and manifest["tokenizer"]["types"] == 300
    assert manifest["arrays"]["train"]["kept"] == 13
    for part in ("train", "valid"):
        for language, sha256 in manifest["texts"][part]["sha256"].items():
            assert hashlib.sha256((corpus / f"{part}.{language}").read_bytes()).hexdigest() == sha256
    assert not [path for path in corpus.rglob("*") if "part" in path.suffix]


def test_what_was_made_trains_without_being_prepared_again(corpus, tmp_path, monkeypatch):
    from train.text import corpus as arrays

    monkeypatch.setattr(arrays, "write_prepared", lambda *_: pytest.fail("prepared again"))
    options = [f"--train-src={corpus / 'train.en'}", f"--train-tgt={corpus / 'train.de'}"]
    sets = [f"data.tokenizer={corpus / 'tokenizer.json'}", f"data.prepared={corpus / 'prepared'}"]
    sets += ["model.d_model=8", "model.d_ff=8", "model.n_layers=1", "train.max_steps=1", "train.batch_tokens=200"]
    settings = [part for setting in sets for part in ("--set", setting)]
    assert main(["train", "base", *options, "--out", str(tmp_path / "run"), "--quiet", *settings]) == 0


@pytest.mark.parametrize("at", ["write_texts", "learn", "prepare"])
def test_wherever_it_was_stopped_the_same_command_goes_on_to_the_same_files(corpus, tmp_path, monkeypatch, at):
    class Kill(BaseException):
        pass

    def killed(*_, **__):
        raise Kill

    (tmp_path / "downloads").mkdir()
    for name, data in ARCHIVES.items():  # put there by hand
        (tmp_path / "downloads" / name).write_bytes(data)
    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(collecting, at, killed)
        collect(KNOWN, tmp_path, mirror="http://127.0.0.1:1", progress=False)
    assert not (tmp_path / "manifest.json").exists()
    collect(KNOWN, tmp_path, mirror="http://127.0.0.1:1", command="the command", progress=False)
    ours, theirs = files_of(tmp_path), files_of(corpus)
    for name in theirs:  # all but the paths noted beside the arrays
        assert name.endswith("meta.json") or ours[name] == theirs[name], name
    assert ours.keys() == theirs.keys()
    monkeypatch.setattr(collecting, "read_pairs", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(Tokenizer, "learned", lambda *_: pytest.fail("learned again"))
    collect(KNOWN, tmp_path, mirror="http://127.0.0.1:1", command="the command", progress=False)


def change(dataset_, **changes):
    return Dataset(**{**vars(dataset_), **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": (Pair("one.tgz", "x/train.en", "x/nothing"),)}, "one.tgz: expected x/nothing in it; got no"),
        ({"vocab_size": 9000}, r"expected text for 9,000 pieces; got only \d+ different ones .*; try --vocab-size \d+"),
        ({"train": (Pair("odd.tgz", "a", "b"),)}, "a, b: expected equally many lines.*; got 3 and 1"),
        ({"train": (Pair("odd.tgz", "b", "a"),)}, "b, a: expected equally many lines.*; got 1 and 3"),
        ({"train": (Pair("odd.tgz", "latin", "b"),)}, "odd.tgz:latin, line 2: expected UTF-8 text; got byte 0xe4"),
        ({"train": (Pair("odd.tgz", "none", "none"),)}, "none, none: expected at least one pair"),
        ({"train": (Pair("odd.tgz", "blank", "blank"),)}, "train: expected at least one pair; got none that is kept"),
        ({"train": (Pair("cut.tgz", "x/train.en", "x/train.de"),)}, "cut.tgz: expected an archive with x/train"),
    ],
)
def test_a_bad_corpus_is_one_line_and_nothing_under_a_final_name(tmp_path, changes, said):
    (tmp_path / "downloads").mkdir()
    odd = packed({"a": b"1\n2\n3\n", "b": b"1\n", "latin": b"a\nb\xe4\n", "none": b"", "blank": b"\n\n"})
    extra = {"odd.tgz": odd, "cut.tgz": ARCHIVES["one.tgz"][: len(ARCHIVES["one.tgz"]) // 2]}
    for name, data in {**ARCHIVES, **extra}.items():
        (tmp_path / "downloads" / name).write_bytes(data)
    with pytest.raises(UserError, match=said) as error:
        archives = tuple(Archive(name, "") for name in {**ARCHIVES, **extra})
        collect(change(KNOWN, archives=archives, **changes), tmp_path, progress=False)
    assert "\n" not in str(error.value)
    texts = {"train.en", "train.de", "valid.en", "valid.de", "texts.json"} if "vocab_size" in changes else set()
    assert {path.name for path in tmp_path.iterdir()} - {"downloads"} == texts


def test_every_so_many_pairs_are_held_out(tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/one.tgz").write_bytes(ARCHIVES["one.tgz"])
    known = change(KNOWN, archives=KNOWN.archives[:1], train=KNOWN.train[:1], valid=(), held_out=5)
    collect(known, tmp_path, progress=False)
    assert (tmp_path / "valid.en").read_bytes() == text(LINES[::5])
    assert (tmp_path / "train.en").read_bytes() == text(line for n, line in enumerate(LINES) if n % 5)


def test_ted_talks_keep_titles_and_lose_other_tags(tmp_path):
    lines = "<doc>\n<url>http://x</url>\n<title>Eins</title>\n<keywords>a, b</keywords>\nZwei < drei\n</doc>\n"
    (tmp_path / "de-en.tgz").write_bytes(packed({"t": lines.encode()}))
    assert [*read_pairs(Pair("de-en.tgz", "t", "t", "tags"), tmp_path)] == [("Eins",) * 2, ("Zwei < drei",) * 2]


@pytest.mark.parametrize("name", NAMES)
def test_known_corpora_are_whole(name):
    known = dataset(name)
    assert known.parts.keys() >= {"train", "test"} and ("valid" in known.parts or known.held_out)
    names = [archive.name for archive in known.archives]
    assert len({*names}) == len(names)
    assert {pair.archive for pairs in known.parts.values() for pair in pairs} == {*names}
    assert all(archive.url.startswith("http") for archive in known.archives)
    held = [len(archive.sha256) == 64 or len(archive.md5) == 32 for archive in known.archives]
    assert all(held) or name == "iwslt14-de-en"


def test_the_papers_vocabularies():
    assert (dataset("wmt14-en-de").tokenizer, dataset("wmt14-en-de").vocab_size) == ("bpe", 37_000)
    assert (dataset("wmt14-en-fr").tokenizer, dataset("wmt14-en-fr").vocab_size) == ("wordpiece", 32_000)


@settings(max_examples=10)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 7))
def test_evenly_spaced_lines(most, total, chunk):
    lines = [str(n) for n in range(total)]
    parts = [lines[i : i + chunk] for i in range(0, total, chunk)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "read_lines", lambda path: iter(parts))
        found = [line for part in collecting.evenly(parts, most, ["one"]) for line in part]
    assert found == lines[:: -(-total // most)] and len(found) <= most


def test_a_folder_of_something_else_and_ones_own_text_are_left_alone(tmp_path, capfd):
    """Nothing that was there before is another afterwards: a run, a text beside others, the input by any name."""
    own = {"train.src": text(ALL), "train.tgt": text(line[::-1] for line in ALL)}
    places = {"mine": own, "run": {"tokenizer.json": b"{}", "config.toml": b""}, "text": {"train.en": b"mine\n"}}
    for place, files in places.items():
        (tmp_path / place).mkdir()
        for name, content in files.items():
            (tmp_path / place / name).write_bytes(content)
    given = [f"--train-{side}={tmp_path / 'mine' / f'train.{side}'}" for side in ("src", "tgt")]
    data = ["data", "own", "--vocab-size", "290", "--quiet", "--out"]
    before = files_of(tmp_path)
    for place in places:
        assert main([*data, str(tmp_path / place), *given]) == 2
        assert "one of this command; got a folder with other files; try" in capfd.readouterr().err
    assert files_of(tmp_path) == before
    (out := tmp_path / "out").mkdir()
    assert main([*data, str(out), *given]) == main([*data, str(out), *given]) == 0
    before = files_of(tmp_path)
    (tmp_path / "linked").hardlink_to(out / "train.src")
    for one in (out / "train.src", tmp_path / "linked"):
        assert main([*data, str(out), f"--train-src={one}", given[1]]) == 2
        assert f"{one}: expected text outside of --out; got {out}" in capfd.readouterr().err
    (tmp_path / "linked").unlink()
    assert files_of(tmp_path) == before


def test_the_command_prepares_ones_own_files_and_tells_mistakes_in_one_line(tmp_path, capfd):
    for side, turned in (("src", 1), ("tgt", -1)):
        (tmp_path / side).write_bytes(text(line[::turned] for line in ALL))
    own = ["data", "own", "--out", str(tmp_path / "out"), "--vocab-size", "290", "--quiet"]
    files = [f"--{part}-{side}={tmp_path / side}" for part in ("train", "valid") for side in ("src", "tgt")]
    assert main([*own, *files]) == 0
    assert "16 pairs read, 12 kept; left out: 1 empty, 0 long, 0 ratio, 1 script, 2 duplicate" in capfd.readouterr().out
    assert len((tmp_path / "out/valid.src").read_text().splitlines()) == 15  # only what is empty on both sides goes
    for arguments, said in (
        (["data", "wmt15", "--out", "x"], "got 'wmt15'; try wmt14"),
        ([*own, files[0]], "expected both sides of a text"),
        (["data", "multi30k", "--out", "x", *files], "expected no files"),
        ([*own, *files, "--tokenizer", "spm"], "--tokenizer: expected one of bpe, wordpiece; got 'spm'"),
        (["data", "multi30k", "--out", str(tmp_path / "m"), "--mirror", str(tmp_path)], "training.tar.gz (SHA-256 2"),
        ([*own, "--train-src=nowhere", "--train-tgt=nowhere"], "nowhere: expected a text file"),
        (["data", "own", "--out", str(tmp_path / "new"), f"--train-src={tmp_path}", files[1]], "got a folder"),
    ):
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and said in err, err
    assert not (tmp_path / "new").exists()
