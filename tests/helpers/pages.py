"""Helpers for the tests of the page: a server in a thread, and a user's steps in a browser."""

import socket
import threading
from contextlib import contextmanager

import uvicorn

from train.viewer.connections import server_config
from train.viewer.server import application

SENTENCE = "one two three"
# Records texts drawn on canvases in window.drawn, as [text, font size], and heights of rectangles in window.heights.
RECORD_CANVAS = """
window.drawn = [];
window.heights = [];
const { fillText, fillRect } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  drawn.push([String(text), parseFloat(this.font)]);
  fillText.call(this, text, ...rest);
};
CanvasRenderingContext2D.prototype.fillRect = function (x, y, width, height) {
  heights.push(height);
  fillRect.call(this, x, y, width, height);
};
"""
HOSTILE = '<img src="http://example.invalid/x.png" onerror="document.title=1">'


@contextmanager
def served(page, port=0, tab=None):
    """Run a server in a thread of its own; yield its address with the token, the Guard, and the port.

    The page in `tab`, which prepares blocks while it is idle, is left before the server ends.
    """
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
            if tab:
                tab.goto("about:blank")
            server.should_exit = True
            thread.join()


def signed(text):
    """Return a text with the page's minus sign."""
    return text.replace("-", "−").replace("log−", "log-")


def plain(text):
    """Return a text with Python's minus sign."""
    return text.replace("−", "-")


def number(text):
    return float(plain(text))


def view(tab, address, name):
    tab.goto(f"{address[0]}#{name}")
    tab.wait_for_selector("body[data-ready]")
    assert "token" not in tab.url
    return tab


def turn_to(tab, name):
    """Follow the link to another view and wait: the browser reports the new address only after the click returns."""
    tab.click(f"nav a[href='#{name}']")
    tab.wait_for_selector(f"nav a[href='#{name}'][aria-current]")


def until(tab, expression):
    """Wait until an expression is true; Playwright's `wait_for_function` needs eval, which the page forbids."""
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


def model_view(tab, address, width, height):
    """Show the values of a sentence in the Model view, in a window of this size."""
    tab.set_viewport_size({"width": width, "height": height})
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")


def cells(tab, place):
    """Return the rows of a table as lists of text, after waiting for rows below the header; opening it creates them."""
    until(tab, f"document.querySelectorAll(`{place} tr`).length > 1")
    return tab.locator(f"{place} tr").evaluate_all("rows => rows.map(r => [...r.children].map(c => c.textContent))")
