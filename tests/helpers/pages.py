"""What the tests of the page share: a server in a thread, a small run, and a real browser, as fixtures.

The browser is NPX_CHROMIUM, or a Chromium on PATH, driven by Playwright (the extra `browser`); without one its tests
are skipped, or fail where NPX_REQUIRE_BROWSER=1. A request that leaves this machine, or a word on the browser's
console, fails the test that caused it.
"""

import os
import shutil
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from benchmarks.page import chromium
from tests.helpers.trainings import text, uninterrupted  # noqa: F401
from train.run.checkpoint import load_with_origin
from train.viewer.connections import server_config
from train.viewer.server import Page, application

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
        server = uvicorn.Server(server_config(guard, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/?token={guard.token}", guard, port
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def run(uninterrupted, tmp_path_factory):
    """A copy of the run, whose metrics may grow."""
    return Path(shutil.copytree(uninterrupted, tmp_path_factory.mktemp("page") / "run"))


@pytest.fixture(scope="module")
def page(run):
    return Page({run.name: run}, *load_with_origin(run))


@pytest.fixture(scope="module")
def address(page):
    with served(page) as found:
        yield found


def driven():
    """A Chromium to drive, or why there is none."""
    try:
        import axe_playwright_python
        import playwright.sync_api
    except ImportError:
        return None, 'no browser tests: pip install "npx-transformer[browser]"'
    del axe_playwright_python, playwright
    found = chromium()
    return found, "" if found else "no browser tests: no Chromium on PATH; NPX_CHROMIUM names one"


@pytest.fixture(scope="module")
def browser():
    path, why = driven()
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
    assert wrong == [], wrong


def view(tab, address, name):
    tab.goto(f"{address[0]}#{name}")
    tab.wait_for_selector("body[data-ready]")
    assert "token" not in tab.url
    return tab


def turn_to(tab, name):
    """Another view, by its link: the browser says later, not within the click, that the address has changed."""
    tab.click(f"nav a[href='#{name}']")
    tab.wait_for_selector(f"nav a[href='#{name}'][aria-current]")


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
