"""The page's server (`serve`): access, rejected requests, and requests that cannot be answered."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.helpers.pages import served
from train.cli import main
from train.errors import UserError
from train.viewer import connections
from train.viewer import guard as guarding
from train.viewer.guard import Guard
from train.viewer.sentences import RECENT
from train.viewer.server import FILES, Cancelled, JobRunner, Page
from train.viewer.step import steps


def raw(port, request, body=b""):
    """Send raw bytes; return the status of the response, or 0 if the connection ends without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(request.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
            answer = connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return 0
    return int(answer.split()[1]) if answer else 0


def test_requests_from_other_pages_are_rejected(address):
    _, guard, port = address
    host, cookie = f"Host: 127.0.0.1:{port}", f"Cookie: {guard.cookie}={guard.token}"
    end = "\nConnection: close"

    def get(path="/api/about", *lines):
        return raw(port, "\n".join([f"GET {path} HTTP/1.1", *lines]) + end)

    def post(*lines, body=b"{}", path="/api/step"):
        return raw(port, "\n".join([f"POST {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}"]) + end, body)

    kind, origin = "Content-Type: application/json", f"Origin: http://127.0.0.1:{port}"
    assert get("/api/about", host, cookie) == 200 and get(f"/?token={guard.token}", host) == 200
    assert get("/api/about", f"Host: localhost:{port}", cookie) == 200
    assert post(host, cookie, kind, origin) == 200
    refused = {
        "foreign host": get("/api/about", "Host: evil.example", cookie),
        "a name that begins like ours": get("/api/about", f"Host: localhost.evil.example:{port}", cookie),
        "ours behind a user": get("/api/about", f"Host: a@127.0.0.1:{port}", cookie),
        "another port": get("/api/about", "Host: 127.0.0.1:1", cookie),
        "two hosts": get("/api/about", host, "Host: evil.example", cookie),
        "no host": raw(port, f"GET /api/about HTTP/1.0\n{cookie}"),
        "no token": get("/", host),
        "a wrong token": get("/?token=x", host),
        "a wrong cookie": get("/api/about", host, f"Cookie: {guard.cookie}=x"),
        "no cookie for a file": get("/main.js", host),
        "from another site": get("/api/about", host, cookie, "Sec-Fetch-Site: cross-site"),
        "up": get("/../setup.py", host, cookie),
        "up, encoded": get("/%2e%2e/%2e%2e/setup.py", host, cookie),
        "up, half encoded": get("/..%2f..%2fsetup.py", host, cookie),
        "a path that begins twice": get("//etc/passwd", host, cookie),
        "another file of ours": get("/server.py", host, cookie),
        "no origin": post(host, cookie, kind),
        "a foreign origin": post(host, cookie, kind, "Origin: http://evil.example"),
        "origin null": post(host, cookie, kind, "Origin: null"),
        "a form": post(host, cookie, "Content-Type: application/x-www-form-urlencoded", origin),
        "1 MB": post(host, cookie, kind, origin, body=b" " * 2**20),
        "another method": raw(port, f"DELETE /api/about HTTP/1.1\n{host}\n{cookie}{end}"),
    }
    assert {name for name, status in refused.items() if status not in (0, 400, 403, 404, 405, 413, 415)} == set()
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    lines = f"POST /api/step HTTP/1.1\n{host}\n{cookie}\n{kind}\n{origin}\nTransfer-Encoding: chunked{end}"
    assert raw(port, lines, chunk * 4 + b"0\r\n\r\n") in (0, 413)


def test_only_files_of_the_page_folder_are_served():
    folder = Path("train/viewer/page").resolve()
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    assert set(FILES) == {name for name in files if not name.endswith((".LICENSE", ".json"))} and "passwd" not in FILES


def test_every_response_has_the_content_security_policy(address):
    async def sent_messages():
        sent = []
        guard = Guard(None, 1)
        scope = {"type": "http", "path": "/", "query_string": b"", "headers": [], "method": "GET"}
        await guard(scope, None, lambda message: collect(sent, message))
        return sent

    async def collect(sent, message):
        sent.append(message)

    headers = dict(asyncio.run(sent_messages())[0]["headers"])
    assert headers[b"content-security-policy"].startswith(b"default-src 'self';")
    assert headers[b"x-content-type-options"] == b"nosniff" and headers[b"referrer-policy"] == b"no-referrer"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_job_ends_when_its_client_leaves_and_not_when_another_page_asks(leaves):
    """The jobs of two pages take turns; a page that requests something else closes its first request."""
    job_runner = JobRunner()
    started, cancelled, release = (threading.Event() for _ in range(3))

    def translation(send):
        started.set()
        try:
            while not release.is_set():
                send({"so_far": []})
                time.sleep(0.001)
            return {"answer": 1}
        except Cancelled:
            cancelled.set()
            raise

    async def both():
        lines = job_runner.stream(translation)
        await anext(lines)
        await asyncio.to_thread(started.wait, 20)
        second = asyncio.ensure_future(collect(job_runner.stream(lambda send: {"answer": 2})))
        await asyncio.sleep(0)
        if leaves:
            await lines.aclose()
            return None, await second
        release.set()
        return await collect(lines), await second

    first, second = asyncio.run(both())
    assert second[-1] == {"answer": 2} and cancelled.is_set() == leaves
    assert leaves or first[-1] == {"answer": 1}


async def collect(lines):
    return [json.loads(line) async for line in lines]


def post_or_get(address, path, question=None):
    """Return the last line of the answer to a POST of `question`, or to a GET."""
    _, guard, port = address
    headers = {"Cookie": f"{guard.cookie}={guard.token}"}
    if question is not None:
        headers |= {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port}"}
    data = None if question is None else json.dumps(question).encode()
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=60) as answer:
        return json.loads(answer.read().splitlines()[-1])


def test_each_page_opens_the_heads_of_its_own_translation(address):
    """Two tabs have separate translations; an expired translation gives an error."""
    one, two = (post_or_get(address, "/api/translate", {"text": text}) for text in ("one", "two three"))
    of = {"kind": "encoder", "layer": 0, "head": 1}
    for answer in (one, two):
        assert (
            post_or_get(address, "/api/head_weights", of | {"translation": answer["translation"]})["rows"]
            == answer["source"]
        )
    of_two = {"translation": two["translation"]}
    for wrong in ({}, {"translation": []}, of_two | {"layer": -1}, of_two | {"layer": float("inf")}):
        assert "no longer in memory" in post_or_get(address, "/api/head_weights", of | wrong)["error"]
    for i in range(RECENT):
        post_or_get(address, "/api/translate", {"text": "one", "beam_size": 1, "length_penalty": i / 10})
    assert "error" in post_or_get(address, "/api/head_weights", of | {"translation": two["translation"]})


def test_two_tabs_translate_at_the_same_time(address):
    """Each tab gets its translation; a client that leaves does not keep the server busy."""
    _, guard, port = address
    long = json.dumps({"text": "one " * 60, "beam_size": 8})
    request = (
        f"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
        f"Cookie: {guard.cookie}={guard.token}\r\nContent-Type: application/json\r\nContent-Length: {len(long)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall((request + long).encode())
        assert b"started" in client.recv(65536) + client.recv(65536)
    with ThreadPoolExecutor(2) as threads:
        answers = threads.map(
            lambda text: post_or_get(address, "/api/translate", {"text": text}), ["one two", "two three"]
        )
    assert [answer["sentence"] for answer in answers] == ["one two", "two three"]


def test_a_run_without_metrics_has_no_curves_yet(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with served(Page({"run": tmp_path, "new": tmp_path / "none"})) as address:
        assert post_or_get(address, "/api/curves")["runs"] == {"run": {}, "new": {}}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "text: expected a sentence"),
        ({"text": ""}, "expected 1 to 255 tokens; got 0"),
        ({"text": "x" * 10_000}, "expected 1 to 255 tokens"),
        ({"text": "one", "beam_size": 100}, "beam_size: expected a whole number from 1 to 8; got 100; try 4"),
        ({"text": "one", "beam_size": "x"}, "beam_size: expected a whole number from 1 to 8; got 'x'; try 4"),
        ({"text": "one", "beam_size": 2.9}, "beam_size: expected a whole number from 1 to 8; got 2.9; try 4"),
        ({"text": "one", "length_penalty": "x"}, "length_penalty: expected a number from -10 to 10; got 'x'; try 0.6"),
        (
            {"text": "one", "length_penalty": 1e400},
            "length_penalty: expected a number from -10 to 10; got inf; try 0.6",
        ),
        ({"text": "one", "prefix": [0]}, "prefix: expected a list of at most 255 valid token ids"),
        ({"text": "one", "prefix": [5] * 256}, "prefix: expected"),
        ({"text": "one", "prefix": [2, 5]}, "prefix: expected"),
        ({"text": "one", "prefix": [True]}, "prefix: expected"),
        ({"text": "one", "ablated_heads": ["cross.9.9"]}, "ablated_heads: expected the names of heads"),
        ({"text": "one", "ablated_heads": 3}, "ablated_heads: expected the names of heads"),
    ],
)
def test_an_invalid_query_gives_an_error(page, query, message):
    with pytest.raises(UserError, match=message):
        page.sentences.translate(query, lambda item: None)


def test_a_suppressed_token_is_no_alternative(page, monkeypatch):
    model = page.sentences.model

    def alternatives():
        (choices, *_) = page.sentences.translate({"text": "one two", "prefix": [9]}, lambda item: None)["alternatives"]
        page.sentences.answers.clear()
        return [choice["id"] for choice in choices]

    first, second, *_ = before = alternatives()
    monkeypatch.setattr(model, "config", replace(model.config, suppressed_ids=(first, second)))
    assert alternatives()[:4] == before[2:] and len(before) == 6


def test_a_prefix_with_a_suppressed_token_is_rejected(page, monkeypatch):
    model = page.sentences.model
    monkeypatch.setattr(model, "config", replace(model.config, suppressed_ids=(5,)))
    with pytest.raises(UserError, match="prefix: expected a list of at most 255 valid token ids"):
        page.sentences.translate({"text": "one", "prefix": [4, 5]}, lambda item: None)


@pytest.mark.parametrize(
    "expression",
    ["__import__('os').system('id')", "a.__class__", "9**9**9*a", "[1]*10**9", "power(9, 9**9)", "(" * 300 + "a", "a",
     "", "lambda: a", "f'{a}'", "astype(a, a)", "x @ x", "stack(" + "a, " * 90 + "a)", "a[0]", "1/0*a"],
)  # fmt: skip
def test_an_expression_runs_nothing_but_small_operations(expression):
    with pytest.raises(UserError):
        steps({"expression": expression, "values": {"x": [[1.0] * 60]}})


@pytest.mark.parametrize(
    "query",
    [{"expression": "a", "values": 3}, {"expression": "a * a", "values": {"a": "x"}}, {"head": 3}, {"text": "a"},
     {"expression": "a * a", "values": {"a": [[1], [1, 2]]}}, {"head": {"x": 1}}],
)  # fmt: skip
def test_a_malformed_step_says_what_is_expected(query):
    with pytest.raises(UserError, match="^[a-z]+: expected .*; got .+"):
        steps(query)


def test_a_variable_without_a_value_is_reported():
    with pytest.raises(UserError, match="^values: b is missing; try b = 2$"):
        steps({"expression": "a * b + a", "values": {"a": 3}})


def test_a_sentence_asked_again_is_the_latest(page):
    def ask(length_penalty):
        return page.sentences.translate(
            {"text": "one", "beam_size": 1, "length_penalty": length_penalty}, lambda item: None
        )

    first = ask(0.05)["translation"]
    for i in range(RECENT + 2):
        ask(i / 10)
        assert ask(0.05)["translation"] == first


def test_serve_prints_its_address_and_ends_with_ctrl_c(run):
    command = [sys.executable, "-m", "train", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        printed = process.stdout.readline().strip()
        port = int(printed.split(":")[2].split("/")[0])
        assert printed.startswith(f"http://127.0.0.1:{port}/?token=")
        assert raw(port, f"GET /{printed.split('/')[-1]} HTTP/1.1\nHost: localhost:{port}\nConnection: close") == 200
        assert main(["serve", "--port", str(port)]) == 2  # the port is taken
        question = json.dumps({"text": "one " * 100, "beam_size": 8})
        lines = ["POST /api/translate HTTP/1.1", f"Host: localhost:{port}", f"Origin: http://localhost:{port}"]
        lines += [f"Cookie: npx-{port}={printed.split('=')[-1]}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(question)}", "", question]
        request = "\r\n".join(lines).encode()
        try:
            with ExitStack() as stack:
                half, complete = (
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(2)
                )
                half.sendall(request[:-5])
                complete.sendall(request)
                assert complete.recv(65536).startswith(b"HTTP/1.1 200")  # and keeps streaming
                process.send_signal(signal.SIGINT)
                assert process.wait(30) in (0, 130, -2)
        finally:
            process.kill()
        assert process.stderr.read().count("\n") == 1  # how to open the page


def test_serve_rejects_a_path_that_is_not_a_run(tmp_path, capsys):
    for words in ([str(tmp_path / "none")], ["--also", str(tmp_path / "none")]):
        assert main(["serve", *words, "--port", "0"]) == 2
        assert "expected a run folder" in capsys.readouterr().err


# ---- clients without the token


def test_half_sent_requests_do_not_keep_the_page_from_its_user(page, monkeypatch):
    """The number of open connections is limited, and those without a complete request are closed in time."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(guarding, "BODY_SECONDS", 0.5)
    with served(page) as address:
        _, guard, port = address
        headers = f"Host: 127.0.0.1:{port}\r\nCookie: {guard.cookie}={guard.token}\r\n"
        post = f"Content-Type: application/json\r\nOrigin: http://127.0.0.1:{port}\r\nContent-Length: 99\r\n\r\n"
        beginnings = [
            "", "G", "GET /api/about HTTP/1.1\r\n", f"GET /api/about HTTP/1.1\r\n{headers}", "\r\n" * 9,
            f"POST /api/step HTTP/1.1\r\n{headers}{post}{{", f"GET /api/about HTTP/1.1\r\n{headers}\r\nGET /api",
            "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /", "POST / HTTP/1.1\r\nContent-Length: 9999\r\n\r\nx",
        ]  # fmt: skip
        with ExitStack() as stack:
            clients = []
            for number in range(5 * len(beginnings)):
                clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)))
                with suppress(OSError):  # closed already
                    clients[-1].sendall(beginnings[number % len(beginnings)].encode())
                if number % 9 == 8:
                    assert post_or_get(address, "/api/about")["runs"]
            for client in clients:
                with suppress(ConnectionResetError):
                    while client.recv(65536):
                        pass
        assert post_or_get(address, "/api/step", {"expression": "a * a", "values": {"a": [[1.0]]}})


def test_a_refusal_closes_the_connection(address):
    with socket.create_connection(("127.0.0.1", address[2]), timeout=20) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{address[2]}\r\n\r\n".encode())
        answer = b""
        while block := client.recv(65536):
            answer += block
    assert answer.startswith(b"HTTP/1.1 403") and b"connection: close" in answer.lower()


@pytest.mark.parametrize("text", ["\\\\" * 15_000, "\\a" * 15_000, "; " * 15_000, "=" * 30_000, '"; a="' * 5000])
def test_a_long_cookie_does_not_block_the_server(text):
    start = time.monotonic()
    assert Guard(None, 1).cookies({"cookie": [b'a="' + text.encode() + b'"']}) == []
    assert time.monotonic() - start < 0.5


def test_our_cookie_is_found_among_others():
    headers = {"cookie": [b'a="x; y=";npx-1=one ; npx-10=two', b"npx-1=three"]}
    assert Guard(None, 1).cookies(headers) == ["one", "three"]


@pytest.mark.parametrize(("descriptors", "limit"), [(32, 8), (1024, 64), (4, 2)])
def test_connections_leave_descriptors_for_the_rest(monkeypatch, descriptors, limit):
    monkeypatch.setattr(connections.resource, "getrlimit", lambda name: (descriptors, descriptors))
    assert connections.max_connections() == limit
