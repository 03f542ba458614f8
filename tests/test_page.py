"""The page (`serve`): what it refuses, and each view in a real browser, held against the engine's numbers.

The browser is NPX_CHROMIUM, or a Chromium on PATH, driven by Playwright (the extra `browser`); without one its tests
are skipped, or fail where NPX_REQUIRE_BROWSER=1. A request that leaves this machine, or a word on the browser's
console, fails the test that caused it.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from autograd import Tensor, neural
from models.search import beam_search
from tests.trainings import text, uninterrupted  # noqa: F401
from train.cli import main
from train.errors import UserError
from train.run.checkpoint import load_model
from train.show.guard import Guard
from train.show.inside import Head, labels, see, source_ids, without
from train.show.server import FILES, Cancelled, Inference, Page, application
from train.show.step import steps

SENTENCE = "one two three"
HOSTILE = '<img src="http://example.invalid/x.png" onerror="document.title=1">'


@contextmanager
def served(page, port=0):
    """The address of a server in a thread of its own, with its token, and the Guard."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        port = listening.getsockname()[1]
        guard = application(page, port)
        server = uvicorn.Server(uvicorn.Config(guard, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/?token={guard.token}", guard, port
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def run(uninterrupted, tmp_path_factory):  # noqa: F811
    """A copy of the run, whose metrics may grow."""
    return Path(shutil.copytree(uninterrupted, tmp_path_factory.mktemp("page") / "run"))


@pytest.fixture(scope="module")
def page(run):
    return Page(run, *load_model(run))


@pytest.fixture(scope="module")
def address(page):
    with served(page) as found:
        yield found


# ---- who may ask


def raw(port, request, body=b""):
    """The status of an answer to bytes sent as they are; 0 where the connection ends without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(request.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
            answer = connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return 0
    return int(answer.split()[1]) if answer else 0


def test_what_is_not_from_our_own_page_is_refused(address):
    _, guard, port = address
    own, cookie = f"Host: 127.0.0.1:{port}", f"Cookie: {guard.cookie}={guard.token}"
    end = "\nConnection: close"

    def get(path="/api/about", *lines):
        return raw(port, "\n".join([f"GET {path} HTTP/1.1", *lines]) + end)

    def post(*lines, body=b"{}", path="/api/step"):
        return raw(port, "\n".join([f"POST {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}"]) + end, body)

    kind, origin = "Content-Type: application/json", f"Origin: http://127.0.0.1:{port}"
    assert get("/api/about", own, cookie) == 200 and get(f"/?token={guard.token}", own) == 200
    assert get("/api/about", f"Host: localhost:{port}", cookie) == 200
    assert post(own, cookie, kind, origin) == 200
    refused = {
        "foreign host": get("/api/about", "Host: evil.example", cookie),
        "a name that begins like ours": get("/api/about", f"Host: localhost.evil.example:{port}", cookie),
        "ours behind a user": get("/api/about", f"Host: a@127.0.0.1:{port}", cookie),
        "another port": get("/api/about", "Host: 127.0.0.1:1", cookie),
        "two hosts": get("/api/about", own, "Host: evil.example", cookie),
        "no host": raw(port, f"GET /api/about HTTP/1.0\n{cookie}"),
        "no token": get("/", own),
        "a wrong token": get("/?token=x", own),
        "a wrong cookie": get("/api/about", own, f"Cookie: {guard.cookie}=x"),
        "no cookie for a file": get("/main.js", own),
        "from another site": get("/api/about", own, cookie, "Sec-Fetch-Site: cross-site"),
        "up": get("/../setup.py", own, cookie),
        "up, encoded": get("/%2e%2e/%2e%2e/setup.py", own, cookie),
        "up, half encoded": get("/..%2f..%2fsetup.py", own, cookie),
        "a path that begins twice": get("//etc/passwd", own, cookie),
        "another file of ours": get("/server.py", own, cookie),
        "no origin": post(own, cookie, kind),
        "a foreign origin": post(own, cookie, kind, "Origin: http://evil.example"),
        "origin null": post(own, cookie, kind, "Origin: null"),
        "a form": post(own, cookie, "Content-Type: application/x-www-form-urlencoded", origin),
        "1 MB": post(own, cookie, kind, origin, body=b" " * 2**20),
        "another method": raw(port, f"DELETE /api/about HTTP/1.1\n{own}\n{cookie}{end}"),
    }
    assert {name for name, status in refused.items() if status not in (0, 400, 403, 404, 405, 413, 415)} == set()
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    lines = f"POST /api/step HTTP/1.1\n{own}\n{cookie}\n{kind}\n{origin}\nTransfer-Encoding: chunked{end}"
    assert raw(port, lines, chunk * 4 + b"0\r\n\r\n") in (0, 413)


def test_a_link_in_the_folder_of_the_page_is_not_followed(address, tmp_path):
    """Files are read once, by their names, when the server starts."""
    assert set(FILES) == {path.name for path in Path("train/show/page").resolve().iterdir()} and "passwd" not in FILES


def test_every_answer_says_that_nothing_foreign_may_be_loaded(address):
    async def asked():
        sent = []
        guard = Guard(None, 1)
        scope = {"type": "http", "path": "/", "query_string": b"", "headers": [], "method": "GET"}
        await guard(scope, None, lambda message: collect(sent, message))
        return sent

    async def collect(sent, message):
        sent.append(message)

    headers = dict(asyncio.run(asked())[0]["headers"])
    assert headers[b"content-security-policy"].startswith(b"default-src 'self';")
    assert headers[b"x-content-type-options"] == b"nosniff" and headers[b"referrer-policy"] == b"no-referrer"


def test_a_new_request_ends_the_one_that_runs():
    inference, begun, gone = Inference(), threading.Event(), threading.Event()

    def endless(tell):
        begun.set()
        try:
            for _ in range(10_000):
                tell({"so_far": []})
                time.sleep(0.001)
            return {}
        except Cancelled:
            gone.set()
            raise

    async def both():
        lines = inference.lines(endless)
        first = asyncio.ensure_future(collect(lines))
        await asyncio.to_thread(begun.wait, 20)
        second = await collect(inference.lines(lambda tell: {"answer": 1}))
        return await first, second

    async def collect(lines):
        return [json.loads(line) async for line in lines]

    first, second = asyncio.run(both())
    assert first[-1] == {"cancelled": True} and second[-1] == {"answer": 1} and gone.is_set()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "text: expected a sentence"),
        ({"text": ""}, "expected 1 to 255 pieces; got 0"),
        ({"text": "x" * 10_000}, "expected 1 to 255 pieces"),
        ({"text": "one", "beam": 100}, "beam: expected at most 8"),
        ({"text": "one", "beam": "x"}, "invalid literal"),
        ({"text": "one", "alpha": 1e400}, "alpha: expected a number between"),
        ({"text": "one", "prefix": [0]}, "prefix: expected at most 256 pieces"),
        ({"text": "one", "prefix": [2, 5]}, "prefix: expected"),
        ({"text": "one", "prefix": [True]}, "prefix: expected"),
        ({"text": "one", "off": ["cross.9.9"]}, "off: expected heads"),
        ({"text": "one", "off": 3}, "off: expected heads"),
    ],
)
def test_a_question_that_cannot_be_answered_is_told_so(page, asked, said):
    with pytest.raises(UserError, match=said):
        page.translation(asked, lambda item: None)


@pytest.mark.parametrize(
    "expression",
    ["__import__('os').system('id')", "a.__class__", "9**9**9*a", "[1]*10**9", "power(9, 9**9)", "(" * 300 + "a", "a",
     "", "lambda: a", "f'{a}'", "astype(a, a)", "x @ x", "stack(" + "a, " * 90 + "a)", "a[0]", "1/0*a"],
)  # fmt: skip
def test_an_expression_runs_nothing_but_small_operations(expression):
    with pytest.raises(UserError):
        steps({"expression": expression, "values": {"x": [[1.0] * 60]}})


def test_serve_prints_its_address_and_ends_with_ctrl_c(run):
    command = [sys.executable, "-m", "train", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        printed = process.stdout.readline().strip()
        port = int(printed.split(":")[2].split("/")[0])
        assert printed.startswith(f"http://127.0.0.1:{port}/?token=")
        assert raw(port, f"GET /{printed.split('/')[-1]} HTTP/1.1\nHost: localhost:{port}\nConnection: close") == 200
        assert main(["serve", "--port", str(port)]) == 2  # it is taken
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) in (0, 130, -2)
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()


def test_serve_of_what_is_no_run_says_so(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "expected a run folder" in capsys.readouterr().err


# ---- in a browser


def chromium():
    """A Chromium to drive, or why there is none."""
    try:
        import axe_playwright_python
        import playwright.sync_api
    except ImportError:
        return None, 'no browser tests: pip install "npx-transformer[browser]"'
    del axe_playwright_python, playwright
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    found = os.environ.get("NPX_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    return found, "" if found else "no browser tests: no Chromium on PATH; NPX_CHROMIUM names one"


@pytest.fixture(scope="module")
def browser():
    path, why = chromium()
    if path is None:
        if os.environ.get("NPX_REQUIRE_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = driver.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def tab(browser):
    """A tab of a fresh profile; what it asks of others, and what it complains of, fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    wrong = []

    def route(route):
        if route.request.url.startswith("http://127.0.0.1:"):
            return route.continue_()
        wrong.append(f"asked for {route.request.url}")
        route.abort()

    context.route("**/*", route)
    opened = context.new_page()
    opened.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.wrong = wrong
    yield opened
    context.close()
    assert wrong == []


def view(tab, address, name):
    tab.goto(f"{address[0]}#{name}")
    tab.wait_for_selector("body[data-ready]")
    assert "token" not in tab.url
    return tab


def until(tab, expression):
    """Waits until an expression is true; Playwright's own way needs eval in the page, which is refused."""
    for _ in range(600):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"never came true: {expression}")


def translate(tab, address, sentence=SENTENCE):
    view(tab, address, "translate")
    tab.fill("#text", sentence)
    tab.press("#text", "Enter")
    tab.wait_for_selector(".grid")


def cells(tab, place):
    """The rows of a table as lists of text, as soon as it has more than its head: it is made when it is opened."""
    until(tab, f"document.querySelectorAll(`{place} tr`).length > 1")
    return tab.locator(f"{place} tr").evaluate_all("rows => rows.map(r => [...r.children].map(c => c.textContent))")


def test_step_by_the_keyboard_alone_has_the_engines_numbers(tab, address):
    view(tab, address, "step")
    tab.fill("#expression", "sum(softmax(x) * x)")
    tab.fill("#values", "x = [1, 2.5, -3]")
    tab.press("#values", "Enter")
    until(tab, "document.querySelectorAll('#step svg .box').length === 4")
    tab.press("#values", "Tab")  # to the button beside it
    seen = [tab.inner_text("#place")]
    for _ in range(6):
        tab.keyboard.press("ArrowRight")
        seen.append(tab.inner_text("#place"))
    assert seen[0].startswith("0 of 6") and seen[3] == "3 of 6, forward" and seen[6] == "6 of 6, backward"
    x = Tensor(np.array([1, 2.5, -3]), requires_grad=True)
    y = neural.softmax(x)
    z = (y * x).sum()
    z.backward()
    tab.click("#step summary")
    rows = {row[0].split()[1]: row for row in cells(tab, "#step details")[1:]}
    for name, value in (("x", x), ("softmax", y), ("sum", z)):
        np.testing.assert_allclose(json.loads(rows[name][2]), value.data, rtol=6e-4)
    np.testing.assert_allclose(json.loads(rows["x"][3]), x.grad, rtol=6e-4)
    tab.focus("#step button >> nth=0")
    tab.keyboard.press("ArrowLeft")
    said = tab.inner_text("#node")
    for part in ("multiply gets the whole gradient", "lambda g", "(borrowed)", "bytes are let go"):
        assert part in said
    tab.keyboard.press("Home")
    assert tab.inner_text("#place").startswith("0 of 6")


def test_step_asks_for_a_prediction_and_knows_a_wrong_one(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.check("#predict")
    tab.click("[aria-label=Forward]")
    tab.fill("#guess", "6")
    tab.press("#guess", "Enter")
    assert "Right." in tab.inner_text("#node") and tab.inner_text("#place").startswith("1 of 4")
    tab.keyboard.press("ArrowRight")
    tab.fill("#guess", "4")
    tab.press("#guess", "Enter")
    assert "It is 9." in tab.inner_text("#node")


def test_step_shows_a_head_of_attention_and_a_mistake(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.select_option("#ready", "4")
    until(tab, "document.querySelectorAll('#step svg .box').length === 8")
    tab.press("#place", "End")
    tab.fill("#expression", "a.b")
    tab.press("#expression", "Enter")
    tab.wait_for_selector("#node .error")
    assert "got 'a.b'" in tab.inner_text("#node")


def test_translate_shows_the_searchs_translation_and_all_heads(tab, address, page):
    translate(tab, address)
    model, tokenizer, config = page.model, page.tokenizer, page.config
    src = source_ids(model, tokenizer, SENTENCE)
    search = {"beam": config.search.beam, "alpha": config.search.alpha, "max_extra": config.search.max_extra}
    best = beam_search(model, np.array([src]), **search)[0][0]
    seen = see(model, tokenizer, src, best.tokens)
    assert tab.inner_text("#status").removesuffix(" (cut off at the greatest length)") == tokenizer.decode(best.tokens)
    assert f"Score {best.score:.4f}, log-probability {best.log_probability:.4f}" in tab.inner_text("#result")
    assert tab.locator(".head").count() == 6  # 3 kinds, 1 layer, 2 heads
    for kind in ("encoder", "decoder", "cross"):
        tab.click(f"[data-head='{kind}.0.1']")
        until(tab, f"document.querySelector('#head h3')?.textContent === 'Head {kind}.0.1'")
        shown = [[float(cell) for cell in row[1:]] for row in cells(tab, "#head table")[1:]]
        expected = model.attention_maps(np.array([src]), np.array([[1, *best.tokens]]), kind)[0][0, 1]
        np.testing.assert_allclose(shown, expected, atol=5.1e-5)
    shown = [float(x.split()[-1]) for x in tab.locator("button.piece").all_inner_texts()]
    ids = [*best.tokens, 2][: len(shown)]
    np.testing.assert_allclose(shown, np.exp(seen.log_probabilities[range(len(ids)), ids]), atol=5.1e-5)
    lens = cells(tab, "#result > .scroll")[-1]
    assert [cell.rsplit(" ", 1)[0] for cell in lens[1:]] == labels(tokenizer, seen.by_layer[-1].tolist())
    pixel = tab.evaluate(
        "() => { const c = document.querySelector(\"[data-head='decoder.0.0'] canvas\");"
        " return [...c.getContext('2d').getImageData(0, 0, 2, 1).data] }"
    )
    assert pixel == [253, 231, 37, 255, 0, 0, 0, 0]  # weight 1 is yellow, and what comes later is clear


def test_a_piece_lights_its_row_and_column_everywhere(tab, address):
    translate(tab, address)
    tab.focus("span.piece >> nth=1")
    lit = "block => [block.dataset.kind, block.classList.contains('row-lit'), block.classList.contains('column-lit')]"
    assert tab.locator(".grid").evaluate_all(f"blocks => blocks.map({lit})") == [
        ["encoder", True, True], ["decoder", False, False], ["cross", False, True],
    ]  # fmt: skip
    tab.focus("button.piece >> nth=0")
    assert tab.locator(".grid").evaluate_all(f"blocks => blocks.map({lit})") == [
        ["encoder", False, False], ["decoder", True, tab.locator("button.piece").count() > 1], ["cross", True, False],
    ]  # fmt: skip
    tab.focus(".grid[data-kind=cross] .head >> nth=0")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.dataset.head") == "cross.0.1"


def test_another_piece_can_be_forced_and_a_head_be_switched_off(tab, address, page):
    translate(tab, address)
    model, tokenizer = page.model, page.tokenizer
    tab.click("button.piece >> nth=0")
    choice = tab.locator(".alternative").first.inner_text().split()[0]
    tab.click(".alternative >> nth=0")
    until(tab, "document.querySelector('#result').textContent.includes('pieces are yours')")
    assert tab.locator("button.piece").first.inner_text().split()[0] == choice
    tab.press("#text", "Enter")
    until(tab, "!document.querySelector('#result').textContent.includes('pieces are yours')")
    tab.click("[data-head='cross.0.0']")
    tab.click("#switch")
    tab.wait_for_selector(".on-again")
    src = np.array([source_ids(model, tokenizer, SENTENCE)])
    s = page.config.search
    before = model.state_dict()
    with without(model, [Head("cross", 0, 0)]):
        best = beam_search(model, src, beam=s.beam, alpha=s.alpha, max_extra=s.max_extra)[0][0]
    assert f"Score {best.score:.4f}" in tab.inner_text("#result") and "With all heads" in tab.inner_text("#compare")
    assert all((before[name] == array).all() for name, array in model.state_dict().items())
    tab.click(".on-again")
    tab.wait_for_selector(".on-again", state="detached")


def test_the_beam_tree_has_the_searchs_scores_to_the_last_bit(tab, address, page):
    translate(tab, address)
    tab.click("nav a[href='#beam']")
    tab.click("#beam summary")
    rows = cells(tab, "#beam details")
    finished = {float(row[5]) for row in rows[1:] if row[6] in ("finished", "cut off")}
    s = page.config.search
    src = np.array([source_ids(page.model, page.tokenizer, SENTENCE)])
    found = beam_search(page.model, src, beam=s.beam, alpha=s.alpha, max_extra=s.max_extra)[0][0]
    assert found.score in finished
    assert tab.inner_text("#why").startswith("Why it ended: ") and tab.locator("#beam svg .box").count() > s.beam
    kept = tab.locator("#beam svg .box").count()
    tab.check("#dropped")
    assert tab.locator("#beam svg .box").count() > kept


def test_curves_follow_a_training(tab, address, run):
    view(tab, address, "curves")
    tab.wait_for_selector("figure")
    lines = run.joinpath("metrics.jsonl").read_text("utf-8").splitlines()
    last = json.loads([line for line in lines if '"train"' in line][-1])
    assert f"up to update {json.loads(lines[-1])['step']}" in tab.inner_text("#curves [role=status]")
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(last | {"step": 4321, "loss": 0.125}) + "\n")
    until(tab, "document.querySelector('#curves [role=status]').textContent.includes('4,321')")
    tab.click("#curves figure summary >> nth=0")
    assert cells(tab, "#curves figure details")[-1][:2] == ["4321", "0.125"]


def test_what_is_saved_needs_nothing_else(tab, address, tmp_path, browser):
    translate(tab, address)
    with tab.expect_download() as waiting:
        tab.click("#save")
    waiting.value.save_as(tmp_path / "saved.html")
    saved = (tmp_path / "saved.html").read_text("utf-8")
    assert "<script" not in saved and "http://" not in saved and "SHA-256" not in saved
    asked = []
    other = browser.new_page()
    other.on("request", lambda request: asked.append(request.url))
    other.goto((tmp_path / "saved.html").as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert other.locator(".head img").count() == 6 and other.inner_text("#status") == tab.inner_text("#status")
    other.close()
    tab.click("[data-head='cross.0.0']")
    with tab.expect_download() as waiting:
        tab.click("text=Save as SVG")
    assert waiting.value.suggested_filename == "cross.0.0.svg"


class Hostile:
    """A tokenizer of a foreign run, whose pieces are markup."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def decode_batch(self, sequences):
        return [f"a {HOSTILE}" for _ in sequences]

    def decode(self, ids):
        return HOSTILE


def test_a_foreign_vocabulary_stays_text(tab, page):
    foreign = Page(page.run, page.model, Hostile(page.tokenizer), page.config)
    with served(foreign) as address:
        translate(tab, address)
        tab.click("[data-head='cross.0.0']")
        tab.wait_for_selector("#head table")
        tab.click("nav a[href='#beam']")
        assert HOSTILE in tab.text_content("#beam svg") and HOSTILE in tab.text_content("#translate .piece")
        assert tab.locator("img").count() == 0 and tab.title() == "Beam tree – npx-transformer"


@pytest.mark.parametrize(
    "sentence", ["", "x " * 5000, "one 🙂 two", "שלום one", HOSTILE, "\u200f\u202e one", "𒀀𒀀"], ids=range(7)
)
def test_any_sentence_is_answered_and_stays_text(tab, address, sentence):
    view(tab, address, "translate")
    tab.fill("#text", sentence)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#status.error" if not sentence.strip() or len(sentence) > 999 else ".grid")
    assert tab.locator("img").count() == 0 and "Translate" in tab.title()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1100


def test_a_page_left_open_survives_the_servers_restart(tab, page):
    with served(page) as first:
        translate(tab, first)
        port = first[2]
    tab.press("#text", "Enter")
    tab.wait_for_selector("#banner:not([hidden])")
    assert "does not answer" in tab.inner_text("#banner")
    with served(page, port) as again:
        other = tab.context.new_page()
        other.goto(again[0])
        tab.wait_for_selector("#banner", state="hidden")
        tab.press("#text", "Enter")
        tab.wait_for_selector(".grid")
        until(tab, "document.querySelector('#status').textContent !== '…'")
    tab.wrong[:] = [said for said in tab.wrong if "Failed to load resource" not in said]  # of the time without


def test_nothing_serious_for_those_who_see_or_move_otherwise(tab, address):
    """axe in each view, also in the dark; and a narrow window is scrolled sideways nowhere but where it is meant."""
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
    tab.emulate_media(color_scheme="light", reduced_motion="reduce")
    translate(tab, address)
    tab.click("[data-head='cross.0.0']")
    tab.wait_for_selector("#head table")
    tab.evaluate(axe)
    for name in ("translate", "beam", "curves", "step"):
        tab.click(f"nav a[href='#{name}']")
        tab.wait_for_selector(f"#{name} svg, #{name} canvas")
        for opened in tab.locator(f"#{name} summary").all():
            opened.click()
        told = ".then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html]))"
        found = tab.evaluate(f"axe.run(){told}")
        tab.emulate_media(color_scheme="dark")
        found += tab.evaluate(f"axe.run({{runOnly: ['color-contrast']}}){told}")
        assert [one for one in found if one[0] in ("serious", "critical")] == [], name
        tab.emulate_media(color_scheme="light")
        tab.set_viewport_size({"width": 360, "height": 640})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, name
        tab.set_viewport_size({"width": 1100, "height": 800})


def test_without_a_run_there_is_the_step_view(tab):
    with served(Page(None)) as address:
        view(tab, address, "")
        assert tab.is_visible("#step") and tab.inner_text("#run") == "without a run"
        tab.wait_for_selector("#step svg .box")
        tab.click("nav a[href='#translate']")
        assert "no run was given" in tab.inner_text("#translate")
