"""Tests that the page repeats no work, so that it responds within 50 ms (see benchmarks/page.py and conftest.py)."""

from tests.helpers.pages import SENTENCE, model_view, translate, turn_to, until

# Counts the drawings of the search tree in window.drawings.
COUNT_DRAWINGS = """
window.drawings = 0;
const count = (changes) => (drawings += changes.filter(({ addedNodes }) => addedNodes.length).length);
new MutationObserver(count).observe(document.querySelector("#beam .drawing"), { childList: true });
"""
# Makes every canvas record in `painted` that it has been painted.
NOTE_PAINTING = """for (const canvas of document.querySelectorAll("canvas")) {
  const { redraw } = canvas;
  if (redraw) canvas.redraw = () => { canvas.painted = true; redraw(); };
}"""


def test_the_search_tree_is_drawn_once_for_each_change(tab, address):
    translate(tab, address)
    tab.evaluate(COUNT_DRAWINGS)
    tab.evaluate("document.documentElement.requestFullscreen = undefined")  # it changes the size of the window

    def drawings():
        tab.wait_for_timeout(300)
        n_drawings = tab.evaluate("drawings")
        tab.evaluate("drawings = 0")
        return n_drawings

    assert drawings() == 0  # it is not visible yet
    turn_to(tab, "beam")
    assert drawings() == 1
    for action in ("#dropped", "#dropped", "#present", "#present"):
        tab.click(action)
        assert drawings() == 1, action
    turn_to(tab, "model")
    turn_to(tab, "beam")
    assert drawings() == 0
    turn_to(tab, "translate")
    tab.fill("#text", f"{SENTENCE} four")
    tab.press("#text", "Enter")
    until(tab, "document.querySelector('#result .tokens').textContent.includes('four')")
    assert drawings() == 0
    turn_to(tab, "beam")
    assert drawings() == 1


def test_a_new_theme_paints_hidden_canvases_when_they_are_shown(tab, address):
    model_view(tab, address, 1280, 800)
    turn_to(tab, "translate")
    tab.wait_for_selector(".grid canvas")
    tab.evaluate(NOTE_PAINTING)
    tab.click("#theme")
    painted = (
        "[...document.querySelectorAll('{} canvas')].filter((one) => one.redraw).map((one) => one.painted ?? false)"
    )
    assert not any(tab.evaluate(painted.format("#model"))) and any(tab.evaluate(painted.format("#translate")))
    turn_to(tab, "model")
    until(tab, f"{painted.format('#model .figure')}.every(Boolean)")


def test_a_new_theme_recolors_the_charts(tab, address):
    tab.goto(f"{address[0]}#curves")
    tab.wait_for_selector(".u-wrap canvas")
    tab.wait_for_timeout(300)
    marker = "getComputedStyle(document.querySelector('.u-marker')).borderTopColor"
    pixels = "document.querySelector('.u-wrap canvas').toDataURL()"
    before = [tab.evaluate(one) for one in (marker, pixels)]
    tab.click("#theme")
    tab.wait_for_timeout(300)
    changed = [tab.evaluate(one) for one in (marker, pixels)]
    assert changed[0] != before[0] and changed[1] != before[1]
    tab.click("#theme")
    tab.wait_for_timeout(300)
    assert [tab.evaluate(one) for one in (marker, pixels)] == before
