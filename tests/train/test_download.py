"""`data` (train/text/download): downloads over unreliable HTTP, archives, and the preparation of a corpus."""

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
from train.progress import Work
from train.text.download import fetch as fetching
from train.text.download import prepare as preparing
from train.text.download.catalog import NAMES, Archive, Dataset, Pair, dataset
from train.text.download.fetch import fetch, fetch_all
from train.text.download.prepare import prepare_dataset
from train.text.download.unpack import read_pairs
from train.text.tokenizer import Tokenizer

BYTES = bytes(range(256)) * 300
ARCHIVE = Archive("a.bin", "", len(BYTES), hashlib.sha256(BYTES).hexdigest())


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `files`; `plan` lists the behavior for the next requests, then "normal"."""

    files: dict[str, bytes]
    plan: list[str]
    ranges_requested: list[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        behavior = self.plan.pop(0) if self.plan else "normal"
        content = self.files.get(self.path.lstrip("/"))
        start = 0
        range_ = self.headers.get("Range", "")
        self.ranges_requested.append(range_)
        if content is None or behavior == "error":
            self.send_error(404 if content is None else 503)
            return
        if range_ and behavior != "no ranges":
            start = int(range_.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_error(416)
                return
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if behavior == "breaks":
            self.wfile.write(body[: len(body) // 2])
        elif behavior == "nothing":
            pass
        elif behavior == "slow":
            for i in range(0, len(body), 30_000):
                self.wfile.write(body[i : i + 30_000])
                time.sleep(0.01)
        elif behavior == "hangs":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            time.sleep(0.6)
        else:
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextmanager
def served(files, *plan):
    """Run a local server; yield its URL and the Range headers of its requests."""
    handler = type("Handler", (Server,), {"files": files, "plan": [*plan], "ranges_requested": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", handler.ranges_requested
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
        (["breaks", "error", "normal"], ["", "bytes=38400-", "bytes=38400-"]),
        (["breaks", "no ranges"], ["", "bytes=38400-"]),  # sends the complete file again
        (["hangs"], ["", "bytes=38400-"]),
    ],
)
def test_a_download_completes_despite_server_failures(tmp_path, plan, ranges, monkeypatch):
    hangs = "hangs" in plan
    monkeypatch.setattr(fetching, "TIMEOUT", 0.3 if hangs else 60)
    with served({"a.bin": BYTES}, *plan) as (url, ranges_requested):
        entries = fetch_all([ARCHIVE], tmp_path, url)
    assert (tmp_path / "a.bin").read_bytes() == BYTES
    checked = ranges_requested[:2] if hangs else ranges_requested  # a slow machine may need more requests of 0.3 s
    assert checked == ranges
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    (entry,) = entries
    assert (entry["sha256"], entry["bytes"], entry["checked_by"]) == (ARCHIVE.sha256, len(BYTES), "sha256")


def test_a_failed_download_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    message = r"a.bin: expected a complete download; got .*; try the same command again"
    with served({"a.bin": BYTES}, "breaks", *["nothing"] * 5) as (url, ranges_requested):
        with pytest.raises(UserError, match=message) as error:
            fetch_all([ARCHIVE], tmp_path, url)
        assert ARCHIVE.sha256 in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)
        assert [path.name for path in tmp_path.iterdir()] == ["a.bin.part"]
        fetch_all([ARCHIVE], tmp_path, url)
    assert ranges_requested[-1] == "bytes=38400-" and (tmp_path / "a.bin").read_bytes() == BYTES


def test_a_complete_partial_file_is_renamed(tmp_path):
    (tmp_path / "a.bin.part").write_bytes(BYTES)
    with served({"a.bin": BYTES}) as (url, ranges_requested):
        fetch_all([ARCHIVE], tmp_path, url)
    assert ranges_requested == [f"bytes={len(BYTES)}-"] and (tmp_path / "a.bin").read_bytes() == BYTES


def test_a_wrong_hash_raises_and_deletes_the_download(tmp_path):
    with served({"a.bin": BYTES[:-1] + b"x"}) as (url, _), pytest.raises(UserError) as error:
        fetch_all([ARCHIVE], tmp_path, url)
    assert f"expected SHA-256 {ARCHIVE.sha256}; got " in str(error.value)
    assert "76,800 bytes of 76,800" in str(error.value)
    assert str(error.value).endswith("; try the same command again, or another --mirror")
    assert not [*tmp_path.iterdir()]
    old = Archive("a.bin", "", md5=hashlib.md5(BYTES).hexdigest())
    with served({"a.bin": BYTES}) as (url, _):
        assert fetch_all([old], tmp_path, url)[0]["checked_by"] == "md5"
    (tmp_path / "a.bin").write_bytes(BYTES[:-9])  # placed there by the user, truncated
    with pytest.raises(UserError, match=r"a.bin: expected MD5 .*; got .* \(76,791 bytes\); try deleting it"):
        fetch_all([old], tmp_path, "http://127.0.0.1:1")
    assert (tmp_path / "a.bin").exists()  # the user's file is kept


def test_a_failed_download_names_all_missing_files(tmp_path):
    others = [ARCHIVE, Archive("b.tgz", "http://127.0.0.1:1/b.tgz", 5, md5="0" * 32), Archive("c.tgz", "")]
    (tmp_path / "a.bin").write_bytes(BYTES)
    with pytest.raises(UserError) as error:
        fetch_all(others, tmp_path)
    text = str(error.value)
    assert "\n" not in text and f"{tmp_path}: b.tgz (MD5 {'0' * 32}); c.tgz (no published hash)" in text
    assert "a.bin" not in text
    with served({}) as (url, _), pytest.raises(UserError, match=r"b.tgz: expected a complete download; got 'Not"):
        fetch_all(others, tmp_path, url)


def test_disk_space_is_checked_before_downloading(tmp_path):
    with pytest.raises(UserError, match=r"expected 5000000.0 GB of free disk space; got .* GB; try another --out"):
        fetch_all([Archive("huge", "http://127.0.0.1:1/", 5 * 10**15)], tmp_path)


def test_a_mirror_can_be_a_folder(tmp_path):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "a.bin").write_bytes(BYTES)
    fetch_all([ARCHIVE], tmp_path / "out", str(tmp_path / "mirror"))
    assert (tmp_path / "out/a.bin").read_bytes() == BYTES
    with pytest.raises(OSError, match="no file"):
        fetch(ARCHIVE, tmp_path / "b", "nowhere", Work("b"))


# ---- corpora

LINES = [f"the {a} {b} number {i} is here" for i, (a, b) in enumerate((a, b) for a in "red old big".split()
                                                                       for b in "cat dog cow hen".split())]  # fmt: skip
ALL = [*LINES, "", *LINES[:2], "дом дом"]


def tar_bytes(members, mode="w:gz"):
    """Return a tar archive as bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def text(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def sgml(lines):
    return text(["<refset>", *(f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(lines)), "</refset>"])


ARCHIVES = {
    "one.tgz": tar_bytes({"./x/train.en": text(ALL), "x/train.de": text(line[::-1] for line in ALL)}),
    "two.tar": tar_bytes({"b.de.gz": gzip.compress(b"was\r\n"), "b.en.gz": gzip.compress(b"\xef\xbb\xbfwhat\n")}, "w"),
    "test.tgz": tar_bytes({"t.en.sgml": sgml(LINES[:3]), "t.de.sgml": sgml(LINES[3:6])}),
}
DATASET = Dataset(
    "en", "de",
    tuple(Archive(name, "", len(data), hashlib.sha256(data).hexdigest()) for name, data in ARCHIVES.items()),
    (Pair("one.tgz", "x/train.en", "x/train.de"), Pair("two.tar", "b.en.gz", "b.de.gz")),
    (Pair("test.tgz", "t.en.sgml", "t.de.sgml", "segments"),), vocab_size=300,
)  # fmt: skip


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("corpus")
    with served(ARCHIVES, "breaks", "normal", "slow") as (url, _):
        prepare_dataset(DATASET, out, mirror=url, command="the command", progress=False)
    return out


def test_prepare_dataset_writes_all_files_and_the_manifest(corpus):
    manifest = json.loads((corpus / "manifest.json").read_text("utf-8"))
    counts = {"read": 17, "kept": 13, "empty": 1, "long": 0, "ratio": 0, "script": 1, "duplicate": 2}
    assert manifest["texts"]["train"]["counts"] == counts and manifest["command"] == "the command"
    assert (corpus / "train.en").read_bytes() == text([*LINES, "what"])
    assert (corpus / "train.de").read_bytes() == text([*(line[::-1] for line in LINES), "was"])
    assert (corpus / "valid.en").read_bytes() == text(LINES[:3]) and (corpus / "valid.de").stat().st_size
    assert [source["sha256"] for source in manifest["sources"]] == [archive.sha256 for archive in DATASET.archives]
    tokenizer = Tokenizer.load(corpus / "tokenizer.json")
    assert manifest["tokenizer"]["digest"] == tokenizer.digest and manifest["tokenizer"]["types"] == 300
    assert manifest["arrays"]["train"]["kept"] == 13
    assert manifest["pairs"] == {"read": 17, "empty": 1, "long": 0, "ratio": 0, "script": 1, "duplicate": 2,
                                 "held_out": 0, "too_long": 0, "no_tokens": 0, "kept": 13}  # fmt: skip
    for part in ("train", "valid"):
        for language, sha256 in manifest["texts"][part]["sha256"].items():
            assert hashlib.sha256((corpus / f"{part}.{language}").read_bytes()).hexdigest() == sha256
    assert not [path for path in corpus.rglob("*") if "part" in path.suffix]


def test_training_uses_the_prepared_arrays(corpus, tmp_path, monkeypatch):
    from train.text import corpus as arrays

    monkeypatch.setattr(arrays, "write_prepared", lambda *_: pytest.fail("prepared twice"))
    options = [f"--train-src={corpus / 'train.en'}", f"--train-tgt={corpus / 'train.de'}"]
    sets = [f"data.tokenizer={corpus / 'tokenizer.json'}", f"data.prepared={corpus / 'prepared'}"]
    sets += ["model.d_model=8", "model.d_ff=8", "model.n_layers=1", "train.max_steps=1", "train.batch_tokens=200"]
    settings = [part for setting in sets for part in ("--set", setting)]
    assert main(["train", "base", *options, "--out", str(tmp_path / "run"), "--quiet", *settings]) == 0


@pytest.mark.parametrize("step", ["write_texts", "train_tokenizer", "prepare"])
def test_an_interrupted_preparation_is_continued(corpus, tmp_path, monkeypatch, step):
    class Kill(BaseException):
        pass

    def killed(*_, **__):
        raise Kill

    (tmp_path / "downloads").mkdir()
    for name, data in ARCHIVES.items():  # placed there by the user
        (tmp_path / "downloads" / name).write_bytes(data)
    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(preparing, step, killed)
        prepare_dataset(DATASET, tmp_path, mirror="http://127.0.0.1:1", progress=False)
    assert not (tmp_path / "manifest.json").exists()
    prepare_dataset(DATASET, tmp_path, mirror="http://127.0.0.1:1", command="the command", progress=False)
    ours, theirs = files_of(tmp_path), files_of(corpus)
    for name in theirs:  # meta.json contains paths
        assert name.endswith("meta.json") or ours[name] == theirs[name], name
    assert ours.keys() == theirs.keys()
    monkeypatch.setattr(preparing, "read_pairs", lambda *_: pytest.fail("read twice"))
    monkeypatch.setattr(Tokenizer, "train_spec", lambda *_: pytest.fail("trained twice"))
    prepare_dataset(DATASET, tmp_path, mirror="http://127.0.0.1:1", command="the command", progress=False)


@pytest.mark.parametrize("file", ["train.src", "valid.tgt", "tokenizer.json", "prepared/train/src.tokens"])
def test_a_changed_output_file_is_made_again(tmp_path, file):
    """One letter is changed, which keeps the size. The manifest never states a hash that the file does not have."""
    for side in ("src", "tgt"):
        (tmp_path / side).write_bytes(text(f"{side} {line}" for line in LINES))
    command = ["data", "own", "--out", str(tmp_path / "out"), "--vocab-size", "290", "--quiet"]
    command += [f"--{part}-{side}={tmp_path / side}" for part in ("train", "valid") for side in ("src", "tgt")]
    assert main(command) == 0
    before = files_of(tmp_path / "out")
    damaged = bytearray(before[file])
    damaged[20] ^= 1
    (tmp_path / "out" / file).write_bytes(damaged)
    assert main(command) == 0
    assert files_of(tmp_path / "out") == before


def change(dataset_, **changes):
    return Dataset(**{**vars(dataset_), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (Pair("one.tgz", "x/train.en", "x/nothing"),)}, "one.tgz: expected an archive with x/nothing"),
        (
            {"vocab_size": 9000},
            r"expected enough text for 9,000 tokens; got enough for \d+ .*; try --vocab-size \d+, because",
        ),
        ({"train": (Pair("odd.tgz", "a", "b"),)}, "a, b: expected equal numbers of lines.*; got 3 and 1"),
        ({"train": (Pair("odd.tgz", "b", "a"),)}, "b, a: expected equal numbers of lines.*; got 1 and 3"),
        ({"train": (Pair("odd.tgz", "latin", "b"),)}, "odd.tgz:latin, line 2: expected UTF-8 text; got byte 0xe4"),
        ({"train": (Pair("odd.tgz", "none", "none"),)}, "none, none: expected at least one pair"),
        (
            {"train": (Pair("odd.tgz", "blank", "blank"),)},
            "train: expected at least one pair; got 0 of 2 after cleaning, which removed 2 empty, .*; try other files",
        ),
        ({"train": (Pair("cut.tgz", "x/train.en", "x/train.de"),)}, "cut.tgz: expected an archive with x/train"),
    ],
)
def test_an_invalid_corpus_raises_and_leaves_no_files(tmp_path, changes, message):
    (tmp_path / "downloads").mkdir()
    odd = tar_bytes({"a": b"1\n2\n3\n", "b": b"1\n", "latin": b"a\nb\xe4\n", "none": b"", "blank": b"\n\n"})
    extra = {"odd.tgz": odd, "cut.tgz": ARCHIVES["one.tgz"][: len(ARCHIVES["one.tgz"]) // 2]}
    for name, data in {**ARCHIVES, **extra}.items():
        (tmp_path / "downloads" / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        archives = tuple(Archive(name, "") for name in {**ARCHIVES, **extra})
        prepare_dataset(change(DATASET, archives=archives, **changes), tmp_path, progress=False)
    assert "\n" not in str(error.value)
    texts = {"train.en", "train.de", "valid.en", "valid.de", "texts.json"} if "vocab_size" in changes else set()
    assert {path.name for path in tmp_path.iterdir()} - {"downloads", "begun.json"} == texts


def test_every_nth_pair_is_held_out(tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/one.tgz").write_bytes(ARCHIVES["one.tgz"])
    dataset_ = change(DATASET, archives=DATASET.archives[:1], train=DATASET.train[:1], valid=(), held_out=5)
    pairs = prepare_dataset(dataset_, tmp_path, progress=False)["pairs"]
    assert (pairs["held_out"], pairs["kept"], pairs["read"]) == (3, 9, 16)
    assert (tmp_path / "valid.en").read_bytes() == text(LINES[::5])
    assert (tmp_path / "train.en").read_bytes() == text(line for n, line in enumerate(LINES) if n % 5)


def test_ted_text_has_titles_but_no_other_tags(tmp_path):
    lines = "<doc>\n<url>http://x</url>\n<title>Eins</title>\n<keywords>a, b</keywords>\nZwei < drei\n</doc>\n"
    (tmp_path / "de-en.tgz").write_bytes(tar_bytes({"t": lines.encode()}))
    assert [*read_pairs(Pair("de-en.tgz", "t", "t", "tags"), tmp_path)] == [("Eins",) * 2, ("Zwei < drei",) * 2]


@pytest.mark.parametrize("name", NAMES)
def test_the_catalog_is_consistent(name):
    known = dataset(name)
    assert known.parts.keys() >= {"train", "test"} and ("valid" in known.parts or known.held_out)
    names = [archive.name for archive in known.archives]
    assert len({*names}) == len(names)
    assert {pair.archive for pairs in known.parts.values() for pair in pairs} == {*names}
    assert all(archive.url.startswith("http") for archive in known.archives)
    has_hash = [len(archive.sha256) == 64 or len(archive.md5) == 32 for archive in known.archives]
    assert all(has_hash) or name == "iwslt14-de-en"


def test_the_papers_vocabularies():
    assert (dataset("wmt14-en-de").tokenizer, dataset("wmt14-en-de").vocab_size) == ("bpe", 37_000)
    assert (dataset("wmt14-en-fr").tokenizer, dataset("wmt14-en-fr").vocab_size) == ("wordpiece", 32_000)


@settings(max_examples=10)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 7))
def test_evenly_spaced_lines(max_lines, total, chunk):
    lines = [str(n) for n in range(total)]
    parts = [lines[i : i + chunk] for i in range(0, total, chunk)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "read_lines", lambda path: iter(parts))
        sample = [line for part in preparing.evenly_spaced(parts, max_lines, ["one"]) for line in part]
    assert sample == lines[:: -(-total // max_lines)] and len(sample) <= max_lines


def test_other_folders_and_input_files_are_not_modified(tmp_path, capfd):
    """Runs, other text files and the input files, whatever their names, keep their content."""
    user_text = {"train.src": text(ALL), "train.tgt": text(line[::-1] for line in ALL)}
    folders = {"mine": user_text, "run": {"tokenizer.json": b"{}", "config.toml": b""}, "text": {"train.en": b"mine\n"}}
    for name, files in folders.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_bytes(content)
    given = [f"--train-{side}={tmp_path / 'mine' / f'train.{side}'}" for side in ("src", "tgt")]
    data = ["data", "own", "--vocab-size", "290", "--quiet", "--out"]
    before = files_of(tmp_path)
    for name in folders:
        assert main([*data, str(tmp_path / name), *given]) == 2
        assert "an earlier output folder of this command; got a folder with other files; try" in capfd.readouterr().err
    assert files_of(tmp_path) == before
    (out := tmp_path / "out").mkdir()
    assert main([*data, str(out), *given]) == main([*data, str(out), *given]) == 0
    before = files_of(tmp_path)
    (tmp_path / "linked").hardlink_to(out / "train.src")
    for path in (out / "train.src", tmp_path / "linked"):
        assert main([*data, str(out), f"--train-src={path}", given[1]]) == 2
        assert f"{path}: expected a text outside the output folder; got {out}" in capfd.readouterr().err
    (tmp_path / "linked").unlink()
    assert files_of(tmp_path) == before


def test_data_own_records_its_sources_and_accounts_for_every_pair(tmp_path, capfd):
    """Pairs that cleaning keeps but that have too many tokens are counted too."""
    paths = {side: tmp_path / side for side in ("src", "tgt")}
    for path, step in zip(paths.values(), (1, -1), strict=True):
        path.write_bytes(text(line[::step] for line in [*ALL, "a b c d e f g h i j k l m n o p q r s t u v w x y z"]))
    files = [f"--{part}-{side}={path}" for part in ("train", "valid") for side, path in paths.items()]
    out = tmp_path / "out"
    options = ["--vocab-size", "290", "--max-length", "40", "--quiet"]
    assert main(["data", "own", "--out", str(out), *options, *files]) == 0
    printed = capfd.readouterr().out
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    expected = [
        {"file": str(path), "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in (*paths.values(), *paths.values())
    ]
    assert manifest["sources"] == expected
    pairs = manifest["pairs"]
    assert pairs["read"] == 17 == sum(number for outcome, number in pairs.items() if outcome != "read")
    assert pairs["too_long"] >= 1 and pairs["kept"] == manifest["arrays"]["train"]["kept"]
    left_out = f"; left out: {pairs['too_long']} with more than 40 tokens\n"
    assert f"train: {pairs['kept']} pairs" in printed and left_out in printed


def test_data_own_and_its_error_messages(tmp_path, capfd):
    for side, step in (("src", 1), ("tgt", -1)):
        (tmp_path / side).write_bytes(text(line[::step] for line in ALL))
    command = ["data", "own", "--out", str(tmp_path / "out"), "--vocab-size", "290", "--quiet"]
    files = [f"--{part}-{side}={tmp_path / side}" for part in ("train", "valid") for side in ("src", "tgt")]
    assert main([*command, *files]) == 0
    assert (
        "16 pairs read, 12 kept; removed: 1 empty, 0 too long, 0 length ratio, 1 not Latin, 2 duplicates"
        in capfd.readouterr().out
    )
    valid = (tmp_path / "out/valid.src").read_text().splitlines()
    assert len(valid) == 15  # only lines that are empty on both sides are dropped
    for arguments, message in (
        (["data", "wmt15", "--out", "x"], "got 'wmt15'; try own"),
        ([*command, files[0]], "expected both sides of each text"),
        (["data", "multi30k", "--out", "x", *files], "text files are not accepted"),
        ([*command, *files, "--tokenizer", "spm"], "--tokenizer: expected one of bpe, wordpiece; got 'spm'"),
        (["data", "multi30k", "--out", str(tmp_path / "m"), "--mirror", str(tmp_path)], "training.tar.gz (SHA-256 2"),
        ([*command, "--train-src=nowhere", "--train-tgt=nowhere"], "nowhere: expected a text file"),
        (["data", "own", "--out", str(tmp_path / "new"), f"--train-src={tmp_path}", files[1]], "got a folder"),
    ):
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and message in err, err
    assert not (tmp_path / "new").exists()
