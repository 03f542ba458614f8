"""Drawings that fit the window, lines that do not cross, and labels that can be read; see conftest.py."""

import pytest

from tests.helpers.pages import SENTENCE, model_view, translate, turn_to, until, view
from train.viewer.inspection import AXES

# Replaces the hypotheses of the latest search by `steps` steps of `width` hypotheses; the first one of a step has two
# children, and the last one none.
LONG_SEARCH = """([steps, width]) => {
    const nodes = [];
    for (let length = 1; length <= steps; length++)
        for (let k = 0; k < width; k++)
            nodes.push({ parent: length === 1 ? -1 : (length - 2) * width + Math.max(0, k - 1), length,
                         label: k ? "·sechshundert" : "␣", log_probability: -length - k, score: -1 - k,
                         fate: length === steps && !k ? "finished" : "kept" });
    const { answer } = detail;
    answer.beam = { ...answer.beam, nodes, won: [(steps - 1) * width], bounds: [] };
    document.dispatchEvent(new CustomEvent("translated", { detail: { ...detail, answer } }));
}"""
FITS = "(({ scrollHeight: a, clientHeight: b }) => a <= b)(document.querySelector('#model .scroller'))"


def search_tree(tab, address, steps, width):
    translate(tab, address)
    tab.evaluate("document.addEventListener('translated', (event) => (window.detail ??= event.detail))")
    tab.press("#text", "Enter")
    until(tab, "window.detail")
    turn_to(tab, "beam")
    tab.evaluate(LONG_SEARCH, [steps, width])


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (3840, 2160)])
def test_the_arrow_from_the_encoder_crosses_no_other(tab, address, width, height):
    model_view(tab, address, width, height)
    crossings = tab.evaluate("""() => {
        const numbers = (text) => text.match(/-?[\\d.]+/g).map(Number);
        const path = (one) => one.getAttribute("d").split("L").map(numbers);
        const pieces = (points) => points.slice(1).map((end, i) => [points[i], end]);
        const overlap = ([a, b], [c, d], axis) =>
            Math.max(Math.min(a[axis], b[axis]), Math.min(c[axis], d[axis])) <=
            Math.min(Math.max(a[axis], b[axis]), Math.max(c[axis], d[axis])) + 1;
        const meets = (one, other) => overlap(one, other, 0) && overlap(one, other, 1); // they are upright or level
        const all = [...document.querySelectorAll("#model .arrow")].map(path);
        const memory = all.findLast((points) => points.length === 5);
        const others = all.filter((points) => points !== memory).flatMap(pieces);
        const layers = [...document.querySelectorAll("#model .layer")].map((one) => one.getBoundingClientRect());
        const lane = memory[2][0] + document.querySelector("#model .figure").getBoundingClientRect().left;
        return [pieces(memory).slice(1).filter((one) => others.some((other) => meets(one, other))).length,
                Math.min(lane - layers[0].right, layers[1].left - lane)];
    }""")
    assert crossings[0] == 0 and crossings[1] >= 6  # the lane is between the boxes of the layers


def test_the_output_block_has_the_shape_of_its_probabilities(tab, address, page):
    model_view(tab, address, 1280, 800)
    shape = tab.inner_text("[data-block=output] .size:not(.count)").split(" · ")[0]
    assert shape.endswith(f" × {page.model.config.vocab_size:,}")


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1280, 800), (1366, 768), (1920, 1080)])
@pytest.mark.parametrize("is_forced", [False, True])
def test_a_presentation_of_the_model_fits_the_screen(tab, address, width, height, is_forced):
    model_view(tab, address, width, height)
    if is_forced:
        turn_to(tab, "translate")
        tab.click("button.token >> nth=0")
        tab.click("button.alternative >> nth=0")
        tab.wait_for_selector(".forced:not([hidden])")
        turn_to(tab, "model")
        tab.wait_for_selector("#model .thumbnail")
    tab.click("#present")
    until(tab, "document.fullscreenElement")
    until(tab, FITS)
    assert tab.is_visible("text=The first token is forced") == is_forced
    assert tab.is_visible("[data-block=output]") and tab.is_visible("[data-block=source_embedding]")
    state = "(({ scrollWidth: a, clientWidth: b }) => a <= b)(document.querySelector('#model .place'))"
    assert tab.evaluate(state)
    for i in range(16):  # long names too
        tab.keyboard.press("ArrowRight")
        until(tab, f"document.querySelector('#model .place').textContent.startsWith('{i + 1} of ')")
        assert tab.evaluate(state)


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_each_step_of_the_search_tree_is_one_line(tab, address, width, height):
    """A tree that is wider than the window scrolls, and its first hypotheses are visible."""
    tab.set_viewport_size({"width": width, "height": height})
    search_tree(tab, address, 12, 12)
    until(tab, "document.querySelectorAll('#beam .drawing .box').length === 144")
    tops = tab.locator("#beam .drawing rect").evaluate_all("all => all.map((one) => one.getAttribute('y'))")
    assert len({*tops}) == 12
    place = "document.querySelector('#beam .drawing')"
    assert tab.evaluate(f"{place}.scrollWidth > {place}.clientWidth && {place}.scrollLeft === 0")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    left, right = tab.evaluate(f"(({{ left, right }}) => [left, right])({place}.getBoundingClientRect())")
    best = tab.locator("#beam [data-node='0'] rect").bounding_box()
    assert left < best["x"] and best["x"] + best["width"] < right


@pytest.mark.parametrize("presents", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (3840, 2160)])
def test_the_search_tree_of_a_long_sentence_fits_the_window(tab, address, width, height, presents):
    tab.set_viewport_size({"width": width, "height": height})
    search_tree(tab, address, 12, 4)
    if presents:
        tab.click("#present")
        until(tab, "document.fullscreenElement")
        tab.wait_for_timeout(300)  # for the tree to be drawn again
    place = "document.querySelector('#beam .drawing')"
    until(tab, f"{place}.querySelectorAll('.box').length === 48")
    if presents:  # readable from the last row
        scale = tab.evaluate(f"{place}.querySelector('svg').getScreenCTM().a")
        sizes = tab.locator("#beam .box text:not(.value)").evaluate_all(
            "all => all.map((x) => x.getAttribute('font-size'))"
        )
        assert scale * min(map(float, sizes)) >= tab.evaluate(
            "parseFloat(getComputedStyle(document.documentElement).fontSize) - 0.5"
        )
    assert tab.evaluate(f"{place}.getBoundingClientRect().bottom") <= height
    collisions = tab.evaluate("""() => [...document.querySelectorAll("#beam .drawing .box")].filter((box) => {
        const [label, score] = [...box.querySelectorAll("text")].map((one) => one.getBBox());
        const { x, width } = box.querySelector("rect").getBBox();
        const isBeside = label.x + label.width < score.x, isAbove = label.y + label.height < score.y + 6;
        return !(isBeside || isAbove) || label.x < x || score.x + score.width > x + width;
    }).length""")
    assert collisions == 0
    tab.click("#beam [data-node='47']")
    assert tab.inner_text("#beam .hypothesis").count("sechshundert") > 1
    table = tab.locator("#beam .opened .scroll")
    assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")


def test_every_head_of_a_short_sentence_names_its_tokens(tab, address):
    tab.set_viewport_size({"width": 1280, "height": 800})
    translate(tab, address, "one two")
    tab.wait_for_selector(".grid[data-kind=cross].named")
    source = tab.locator("[aria-label=source] .token").all_inner_texts()
    names = tab.locator(".grid[data-kind=cross] .columns >> nth=1").locator("span").all_inner_texts()
    assert names == source
    for kind in AXES:
        overlaps = tab.evaluate(f"""() => {{
            const place = document.querySelector(".grid[data-kind={kind}]"), wrong = [];
            for (const [side, start, end] of [["rows", "top", "bottom"], ["columns", "left", "right"]])
                for (const names of place.querySelectorAll(`.${{side}}`)) {{
                    const all = [...names.children].map((one) => one.getBoundingClientRect());
                    all.slice(1).forEach((one, i) => one[start] < all[i][end] - 4 && wrong.push(side));
                }}
            return wrong;
        }}""")
        assert overlaps == [], kind
    tab.set_viewport_size({"width": 1000, "height": 800})
    until(tab, "document.querySelector('.wide .grid[data-kind=cross].named')")  # in a row of its own
    tops = tab.locator(".kind").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert tops[0] < tops[1] == tops[2]
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    until(tab, "document.querySelectorAll('[aria-label=source] .token').length > 9")
    until(tab, "document.querySelector('.grid[data-kind=encoder]:not(.named)')")  # too small for letters


@pytest.mark.parametrize("n_rows", [1, 4, 30])
def test_the_names_of_the_layers_are_not_cut(tab, address, n_rows):
    view(tab, address, "step")
    tab.evaluate(
        """async (n) => {
        const { grids } = await import("/heads.js"), rows = Array(n).fill("row"), columns = Array(60).fill("column");
        const bytes = btoa(String.fromCharCode(...Array(2 * 2 * n * 60).fill(99)));
        const summary = Array(2).fill(Array(2).fill({ confidence: 1, entropy: 1, distance: 1 }));
        const cross = { layers: 2, heads: 2, rows, columns, bytes, summary };
        const { blocks } = grids({ cross }, { cross: ["", ""] }, []);
        document.getElementById("step").prepend(...blocks);
    }""",
        n_rows,
    )
    tab.wait_for_timeout(200)
    names = tab.locator(".layer-name").all_inner_texts()
    assert names in (["layer 0", "layer 1"], ["L0", "L1"]) and (n_rows < 30 or names[0] == "layer 0")
    fits = """(one) => {
        const range = document.createRange();
        range.selectNodeContents(one);
        const [text, cell] = [range, one.parentElement].map((part) => part.getBoundingClientRect());
        return text.top >= cell.top - 3 && text.bottom <= cell.bottom + 3; // the letters are lower than their line
    }"""
    for i in range(2 if n_rows > 1 else 0):
        assert tab.locator(".layer-name").nth(i).evaluate(fits)


@pytest.mark.parametrize("name", ["model", "translate", "beam", "step", "curves"])
def test_two_keys_lead_past_the_navigation_and_the_sentence(tab, address, name):
    translate(tab, address)
    turn_to(tab, name)
    tab.evaluate("document.activeElement.blur()")
    tab.evaluate("document.querySelector('.skip').focus()")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == f"{name}-title" and tab.is_visible(f"#{name}")
    if name != "curves":
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.closest('section')?.id") == name


@pytest.mark.parametrize("presents", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (3840, 2160)])
def test_the_graph_of_a_head_fills_the_window(tab, address, width, height, presents):
    tab.set_viewport_size({"width": width, "height": height})
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.select_option("#ready", "3")
    until(tab, "document.querySelectorAll('#step svg .box').length === 8")
    if presents:
        tab.click("#present")
        until(tab, "document.fullscreenElement")
        assert tab.is_visible("#ready") and tab.is_visible("#expression")
    bottom = "document.querySelector('#step .graph').getBoundingClientRect().bottom"
    until(tab, f"{bottom} <= innerHeight")
    assert tab.evaluate("document.querySelector('#step .graph').getBoundingClientRect().height") >= 0.6 * height
    assert tab.evaluate("(({ scrollWidth: a, clientWidth: b }) => a <= b)(document.querySelector('#step .scroll'))")


def test_on_a_phone_the_graph_comes_before_the_fields(tab, address):
    tab.set_viewport_size({"width": 390, "height": 844})
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    top = "document.querySelector('#step {}').getBoundingClientRect().top"
    assert tab.evaluate(top.format("svg")) < 250 < tab.evaluate(top.format("form"))
