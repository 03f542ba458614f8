"""Keys that lead out of the parts of the page, and to their first and last elements; see conftest.py."""

from tests.helpers.pages import translate, turn_to, until

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
