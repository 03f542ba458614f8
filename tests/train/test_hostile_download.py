"""`data` with a hostile local server and hostile archives: one-line errors, and no file outside its folder."""

import bz2
import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from contextlib import contextmanager

import pytest

from train.errors import UserError
from train.text.download import fetch as fetching
from train.text.download import unpack
from train.text.download.catalog import Archive, Pair
from train.text.download.fetch import fetch_all
from train.text.download.unpack import read_pairs

BYTES = bytes(range(256)) * 300
ARCHIVE = Archive("a.bin", "", len(BYTES), hashlib.sha256(BYTES).hexdigest())
UNPUBLISHED = Archive("a.bin", "")


@contextmanager
def answering(*answers):
    """Run a server that sends these raw answers, repeating the last one; yield its URL."""
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle(self):
            while self.rfile.readline().strip():
                pass
            answer = left.pop(0) if len(left) > 1 else left[0]
            try:
                for part in answer() if callable(answer) else answer if isinstance(answer, list) else [answer]:
                    self.wfile.write(part.replace(b"PORT", str(self.server.server_address[1]).encode()))
            except OSError:
                pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def answer(*headers, body=b"", status=b"200 OK"):
    return b"\r\n".join([b"HTTP/1.1 " + status, b"Connection: close", *headers, b"", body])


def redirect(url):
    return answer(b"Location: " + url, b"Content-Length: 0", status=b"302 Found")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)


HOSTILE = {
    "redirect to a file": (redirect(b"file:///etc/passwd"), "'file:///etc/passwd' is not allowed"),
    "redirect to ftp": (redirect(b"ftp://127.0.0.1/x"), "a redirect to ftp://127.0.0.1/x, which is not followed"),
    "redirect in a circle": (redirect(b"http://127.0.0.1:PORT/x"), "infinite loop"),
    "redirect to nothing": (redirect(b"http://[::1"), "Invalid IPv6 URL"),
    "redirect to a long name": (redirect(b"http://" + b"a" * 300 + b"/"), "label"),
    "another range": (answer(b"Content-Range: bytes 7-99/9", body=BYTES, status=b"206 Partial"), "a different range"),
    "no HTTP": (b"\x1b[2J\x00\xff" * 99 + b"\r\n\r\n", "got"),
    "long header": (answer(b"X: " + b"x" * 70_000), "got more than 65536 bytes"),
    "many headers": (answer(*[b"X: x"] * 200), "got more than 100 headers"),
    "length of 5,000 digits": (answer(b"Content-Length: " + b"9" * 5000, body=BYTES[:-1]), "got"),
    "negative length": (answer(b"Content-Length: -5", body=BYTES[:-1]), "got"),
    "escape sequences": (answer(status=b"404 \x1b[2J\x1b]0;title\x07"), "got "),
    "bad chunks": (answer(b"Transfer-Encoding: chunked", body=b"zz\r\nx"), "got"),
    "compressed": (answer(b"Content-Encoding: gzip", body=gzip.compress(BYTES)), "closed early"),
    "too long": ([answer()] + [b"x" * 10_000] * 20, "a.bin: expected 76,800 bytes; got more; try another --mirror"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_gives_one_line(tmp_path, quick, name):
    raw, message = HOSTILE[name]
    with answering(raw) as url, pytest.raises(UserError) as error:
        fetch_all([ARCHIVE], tmp_path / "out", url)
    text = str(error.value)
    assert text.isprintable() and message in text and "a.bin" in text and "; try " in text
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"a.bin.part"}


def dripping(start, drop, wait=0.05):
    """Return an answer that never ends."""

    def parts():
        yield start
        while True:
            threading.Event().wait(wait)
            yield drop

    return parts


SLOW = {
    "interim responses": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, wait=0),
    "headers": dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "body": dripping(answer(b"Content-Length: 76800"), b"x"),
    "body of unknown length": dripping(answer(), b"x"),
    "chunks": dripping(answer(b"Transfer-Encoding: chunked"), b"1\r\nx\r\n"),
    "length of a chunk": dripping(answer(b"Transfer-Encoding: chunked", body=b"1;"), b"x"),
    "trailers": dripping(answer(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\n"), b"x: y\r\n"),
    "body of a redirect": dripping(answer(b"Location: http://127.0.0.1:PORT/", status=b"302 Found"), b"x"),
}


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_download_ends(tmp_path, quick, monkeypatch, name, published):
    monkeypatch.setattr(fetching, "WATCH_SECONDS", 0.2)
    with answering(SLOW[name]) as url, pytest.raises(UserError, match="a.bin: expected a complete download; got '"):
        fetch_all([ARCHIVE if published else UNPUBLISHED], tmp_path, url)
    assert {path.name for path in tmp_path.iterdir()} <= {"a.bin.part"}


def test_connections_of_one_byte_each_end_the_download(tmp_path, quick):
    ranges = [answer(b"Content-Range: bytes %d-9/10" % n, body=b"x", status=b"206 Partial") for n in range(1, 10)]
    with answering(answer(b"Content-Length: 76800", body=b"x"), *ranges, answer(status=b"404 Not Found")) as url:
        with pytest.raises(UserError, match="a.bin: expected a complete download; got 'the connection was closed"):
            fetch_all([ARCHIVE], tmp_path, url)
    assert (tmp_path / "a.bin.part").stat().st_size == fetching.MAX_FAILURES


def test_a_download_of_many_periods_completes(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "WATCH_SECONDS", 0.5)

    def parts():
        yield answer(b"Content-Length: 76800")
        for i in range(0, len(BYTES), 4800):
            threading.Event().wait(0.06)
            yield BYTES[i : i + 4800]

    with answering(parts, answer(status=b"404 Not Found")) as url:
        fetch_all([ARCHIVE], tmp_path, url)
    assert (tmp_path / "a.bin").read_bytes() == BYTES


URLS = [
    "http://[bad",
    "http://..",
    f"http://{'a' * 70}.com",
]


@pytest.mark.parametrize("url", [*URLS, "http://127.0.0.1:x", "http://127.0.0.1:99999", "http://a b", "http://a\0"])
def test_an_invalid_url_gives_one_line(tmp_path, quick, url):
    with pytest.raises(UserError, match="a.bin: expected a complete download; got '") as error:
        fetch_all([ARCHIVE], tmp_path, url)
    assert str(error.value).isprintable() and not [*tmp_path.iterdir()]


def test_an_archive_of_unknown_size_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_SIZE", 100_000)
    with answering([answer()] + [b"x" * 10_000] * 20) as url:
        with pytest.raises(UserError, match="a.bin: expected 100,000 bytes; got more; try another --mirror"):
            fetch_all([UNPUBLISHED], tmp_path, url)
    assert not [*tmp_path.iterdir()]


def test_a_redirect_to_another_host_is_followed_and_verified(tmp_path, quick):
    """Catalogs move: the content is identified by its hash, not by its host."""
    with answering(answer(body=BYTES)) as other, answering(redirect(other.encode())) as url:
        assert fetch_all([ARCHIVE], tmp_path, url)[0]["checked_by"] == "sha256"
    with answering(answer(body=b"x" * len(BYTES))) as other, answering(redirect(other.encode())) as url:
        with pytest.raises(UserError, match="expected SHA-256"):
            fetch_all([ARCHIVE], tmp_path / "again", url)


def test_https_is_never_downgraded_to_http():
    handler = fetching.SafeRedirects()
    request = fetching.urllib.request.Request("https://example.invalid/a")
    with pytest.raises(OSError, match="a redirect to http://example.invalid/a, which is not followed"):
        handler.redirect_request(request, None, 302, "", {}, "http://example.invalid/a")
    assert handler.redirect_request(request, None, 302, "", {}, "https://other.invalid/b").host == "other.invalid"


@pytest.mark.parametrize(
    "mirror", ["file:///etc", "ftp://127.0.0.1", "http://", "https:///a", "http://ä.example", "http://127.0.0.1/\udcff"]
)
def test_a_mirror_is_a_folder_or_a_web_server(tmp_path, mirror):
    with pytest.raises(UserError, match="--mirror: expected a folder, or an http:// or https:// URL"):
        fetch_all([ARCHIVE], tmp_path, mirror)


def test_links_in_the_download_folder_are_not_followed(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/a.bin").write_bytes(BYTES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.bin.part").symlink_to(tmp_path / "victim")
    with answering(answer(body=BYTES)) as url:
        for mirror in (url, str(tmp_path / "mirror")):
            with pytest.raises(UserError, match="a.bin.part: expected a regular file to write; got a link"):
                fetch_all([ARCHIVE], tmp_path / "out", mirror)
    assert (tmp_path / "victim").read_text() == "precious"


# ---- archives


def entry(name, content=b"", **changes):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, content


def archive(folder, *entries, name="a.tar"):
    with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))


def read(folder, src="src", tgt="tgt", name="a.tar"):
    return list(read_pairs(Pair(name, src, tgt), folder))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_in_archives_are_not_members(tmp_path, kind):
    archive(tmp_path, entry("src", type=kind, linkname="/etc/passwd"), entry("tgt", b"a\n"))
    with pytest.raises(UserError, match="a.tar: expected an archive with src; got 'an archive without"):
        read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_no_path_of_an_archive_leaves_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    names = ["../outside", "/etc/../outside", "in/../../outside", "src", "tgt"]
    archive(tmp_path / "in", *(entry(name, b"one\n") for name in names))
    assert read(tmp_path / "in") == read(tmp_path / "in", "../outside") == [("one", "one")]
    assert {path.name for path in tmp_path.rglob("*")} == {"in", "a.tar"}


def test_archives_of_many_entries_and_huge_headers_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "MAX_ENTRIES", 100)
    archive(tmp_path, *[entry("x")] * 101, entry("src"))
    with pytest.raises(UserError, match="got 'more than 100 entries'"):
        read(tmp_path)
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        header, _ = entry("src", type=kind, size=1 << 33)
        (tmp_path / "a.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + b"x" * 2048)
        with pytest.raises(UserError, match="got 'a header of type .* with 8,589,934,592 bytes'"):
            read(tmp_path)


def test_an_archive_is_not_compressed_with_anything_but_gzip(tmp_path):
    """10 KB of bzip2 can hold gigabytes, which tarfile would decompress in one step."""
    archive(tmp_path, entry("src", b"a\n"), entry("tgt", b"a\n"))
    (tmp_path / "b.tgz").write_bytes(bz2.compress((tmp_path / "a.tar").read_bytes()))
    (tmp_path / "b.tar").write_bytes((tmp_path / "b.tgz").read_bytes())
    for name in ("b.tgz", "b.tar"):
        with pytest.raises(UserError, match=f"{name}: expected an archive with src"):
            read(tmp_path, name=name)
    archive(tmp_path, entry("src", b"a\n"), entry("tgt", b"a\n"), name="c.tgz")
    assert read(tmp_path, name="c.tgz") == [("a", "a")]


def test_damaged_compression_inside_an_archive_is_reported(tmp_path):
    good = gzip.compress(b"line\n" * 50_000)
    for bad in (good[:-9], good[:-5] + b"xxxxx", good[:40] + b"\xff" * 40 + good[80:]):
        archive(tmp_path, entry("src.gz", bad), entry("tgt.gz", good))
        with pytest.raises(UserError, match="src.gz: expected a complete file; got "):
            read(tmp_path, "src.gz", "tgt.gz")
