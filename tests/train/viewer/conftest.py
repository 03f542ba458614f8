"""A page of a small run, and a real browser.

The browser is NPX_CHROMIUM, or a Chromium on PATH, driven by Playwright (the `browser` extra); without a browser, its
tests are skipped, or fail if NPX_REQUIRE_BROWSER=1. A request to another machine, or a message on the browser's
console, fails the test that caused it.
"""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.page import chromium
from tests.helpers.pages import served
from train.run.checkpoint import load_with_origin
from train.viewer.server import Page


@pytest.hookimpl(tryfirst=True)  # before deselection
def pytest_collection_modifyitems(items):
    """Mark the tests that use a browser as slow."""
    for item in items:
        if "tab" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def run(uninterrupted, tmp_path_factory):
    """A copy of the run, whose metrics may grow."""
    return Path(shutil.copytree(uninterrupted, tmp_path_factory.mktemp("page") / "run"))


@pytest.fixture(scope="module")
def page(run):
    return Page({run.name: run}, *load_with_origin(run))


@pytest.fixture(scope="module")
def address(page):
    with served(page) as server:
        yield server


def driven():
    """Return the path of a Chromium and "", or None and the reason for its absence."""
    try:
        import axe_playwright_python
        import playwright.sync_api
    except ImportError:
        return None, 'no browser tests: pip install "npx-transformer[browser]"'
    del axe_playwright_python, playwright
    executable = chromium()
    return executable, "" if executable else "no browser tests: no Chromium on PATH; NPX_CHROMIUM names one"


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
    """A tab with a fresh profile; requests to other machines and messages on its console fail the test."""
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
