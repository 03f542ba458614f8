"""Keys that lead out of the parts of the page, and to their first and last elements; see conftest.py."""

from tests.helpers.pages import served, translate, turn_to, until, view
from train.cli.serve import load_page

ACTIVE = "document.activeElement"


def test_escape_leaves_the_sentence_the_head_and_the_alternatives(tab, address):
    translate(tab, address)
    tab.focus("#text")
    tab.keyboard.press("Escape")
    assert tab.evaluate(f"{ACTIVE}.id") == "translate-title"
    tab.focus("[data-head='cross.0.1']")
    tab.keyboard.press("Enter")
    until(tab, f"{ACTIVE}.closest('#head')")
    tab.keyboard.press("Escape")
    assert tab.evaluate(f"{ACTIVE}.dataset.head") == "cross.0.1" and tab.inner_text("#head") == ""
    tab.focus("button.token >> nth=0")
    tab.keyboard.press("Enter")
    assert tab.evaluate(f"{ACTIVE}.className") == "alternative"
    tab.keyboard.press("Escape")
    assert tab.evaluate(f"{ACTIVE}.className").startswith("token")


def test_the_arrow_keys_browse_the_examples_and_enter_sends_one(tab, run, uninterrupted):
    page = load_page([run])
    with served(page, tab=tab) as address:
        view(tab, address, "")
        tab.wait_for_selector("#model[data-flow]", state="attached")
        asked = []
        tab.on("request", lambda request: asked.append(request.url) if request.url.endswith("translate") else None)
        tab.focus("#examples")
        for example in page.examples:
            tab.keyboard.press("ArrowDown")
            assert tab.evaluate(f"{ACTIVE}.id") == "examples" and not asked
            assert tab.input_value("#text") == example
        assert tab.inner_text("#edited").startswith("Edited, not yet sent: press Enter")
        tab.keyboard.press("Enter")
        until(tab, "document.querySelector('#edited').textContent === ''")
        tab.wait_for_selector("#ask[data-milliseconds]")
        assert tab.evaluate(f"{ACTIVE}.id") == "examples" and len(asked) == 1


def test_home_and_end_reach_the_first_and_the_last(tab, address):
    translate(tab, address)
    tab.focus("[data-head='cross.0.0']")
    for key, name in (("End", "cross.0.1"), ("Home", "cross.0.0")):
        tab.keyboard.press(key)
        assert tab.evaluate(f"{ACTIVE}.dataset.head") == name
    turn_to(tab, "beam")
    tab.check("#dropped")
    tab.focus("#beam [data-node][tabindex='0']")
    nodes = tab.locator("#beam [data-node]").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    for key, i in (("End", -1), ("Home", 0)):
        tab.keyboard.press(key)
        selected = tab.get_attribute("#beam [data-node][aria-pressed=true]", "aria-label")
        step = int(selected.split()[1].rstrip(","))
        assert step == (max if i else min)(int(label.split()[1].rstrip(",")) for label in nodes)


def test_a_table_keeps_the_focus_on_its_name(tab, address):
    translate(tab, address)
    tab.click("[data-head='cross.0.0']")
    tab.focus("#head summary")
    for is_open in (True, False, True):
        tab.keyboard.press("Enter")
        until(tab, f"document.querySelector('#head details').open === {str(is_open).lower()}")
        assert tab.evaluate(f"{ACTIVE}.textContent") == "As a table"
        tab.wait_for_selector("#head details table", state="visible" if is_open else "hidden")


def test_tab_leads_from_the_open_block_to_its_contents(tab, address):
    translate(tab, address)
    turn_to(tab, "model")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.focus("[data-block='encoder.0.attention']")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('#model .opened').dataset.block")
    tab.keyboard.press("Tab")
    if tab.evaluate(f"{ACTIVE}.matches('.opened, .scroller')"):  # an area that scrolls is reachable too
        tab.keyboard.press("Tab")
    assert tab.evaluate(f"{ACTIVE}.textContent").startswith("Next: ")
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Escape")
    stops = tab.locator("#model .block").evaluate_all("all => all.map((one) => one.tabIndex)")
    assert set(stops) == {0}  # without an open block, Tab reaches every block


def test_a_quiz_leaves_the_arrow_keys_to_the_steps(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.focus("#predict")
    top = tab.locator("#predict").bounding_box()["y"]
    tab.keyboard.press("Space")
    assert tab.is_checked("#predict") and tab.locator("#predict").bounding_box()["y"] == top
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("#guess")


def test_an_error_quotes_the_beginning_of_a_long_sentence(tab, address):
    sentence = " ".join(["one two three"] * 6)
    translate(tab, address, sentence)
    tab.fill("#text", " ")
    tab.press("#text", "Enter")
    tab.wait_for_selector("#status.error")
    assert tab.inner_text("#status").endswith(f'"{sentence[:59]}…"')


def test_edges_of_the_search_tree_do_not_run_behind_boxes(tab, address):
    translate(tab, address)
    turn_to(tab, "beam")
    tab.check("#dropped")
    if tab.is_visible("#late"):
        tab.check("#late")
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.wait_for_timeout(200)
        hidden = tab.evaluate("""() => {
            const svg = document.querySelector("#beam svg[data-name]");
            const boxes = [...svg.querySelectorAll(".box rect")].map((rect) => rect.getBBox());
            const isHidden = ({ x, y }) =>
                boxes.some((b) => x > b.x + 1 && x < b.x + b.width - 1 && y > b.y + 1 && y < b.y + b.height - 1);
            return [...svg.querySelectorAll(".edge")].filter((path) => {
                const length = path.getTotalLength();
                return Array.from({ length: 200 }, (_, i) => path.getPointAtLength((i * length) / 200)).some(isHidden);
            }).length;
        }""")
        assert hidden == 0, width
    assert "Number: score of the hypothesis" in tab.inner_text("#beam .key")
