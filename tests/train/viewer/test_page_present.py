"""The page's presentation mode; see conftest.py."""

import pytest

from tests.helpers.pages import RECORD_CANVAS, SENTENCE, translate, turn_to, until, view

SIZE = "parseFloat(getComputedStyle(document.documentElement).fontSize)"
HIDDEN = """(selector) => {
    const place = document.querySelector(selector).getBoundingClientRect();
    return !place.height || place.top < 0 || place.bottom > innerHeight;
}"""


def test_presenting_enlarges_the_text_and_shows_the_figure_or_the_block(tab, address):
    view(tab, address, "model")
    tab.set_viewport_size({"width": 1920, "height": 1080})
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.press("#text", "f")  # typed text does not start it
    assert tab.input_value("#text") == SENTENCE + "f"
    normal = tab.evaluate(SIZE)
    tab.click("h1")
    tab.keyboard.press("f")
    until(tab, f"Math.abs({SIZE} - 1.4 * {normal}) < 0.1")
    until(tab, "document.fullscreenElement")
    small = "parseFloat(getComputedStyle(document.querySelector('#model .what small')).fontSize)"
    assert tab.evaluate(small) >= 24  # readable from the last row
    assert not tab.is_visible("#save") and not tab.is_visible("#model .opened")
    tops = tab.locator("#model .controls button").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().top)"
    )
    assert len({round(top) for top in tops}) == 1
    for block in ("output", "source_embedding"):
        assert not tab.evaluate(f"({HIDDEN})('[data-block={block}]')")
    tab.click("[data-block='decoder.0.cross_attention']")
    tab.wait_for_selector("#model .matrix")
    assert not tab.is_visible("#model .figure")
    tab.click("#present")
    until(tab, f"{SIZE} === {normal} && !document.fullscreenElement")
    assert tab.is_visible("#model .figure") and tab.is_visible("#model .opened") and tab.is_visible("#ask")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (3840, 2160)])
def test_the_steps_of_the_search_tree_stay_readable(tab, address, width, height):
    tab.set_viewport_size({"width": width, "height": height})
    translate(tab, address)
    turn_to(tab, "beam")
    tab.click("#present")
    until(tab, "document.fullscreenElement")
    tab.wait_for_timeout(300)  # for the tree to be drawn again
    labels, boxes = tab.locator("#beam .tick"), tab.locator("#beam .drawing .box rect")
    ends = labels.evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")
    starts = boxes.evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
    assert ends and max(ends) < min(starts)


def test_the_sentence_and_the_view_change_in_a_presentation(tab, address):
    tab.set_viewport_size({"width": 1280, "height": 800})
    translate(tab, address)
    tab.click("#present")
    until(tab, "document.fullscreenElement")
    turn_to(tab, "model")
    inputs = "document.querySelector('#model [data-stack=encoder] ~ .chips').title"
    before = tab.evaluate(inputs)
    tab.fill("#text", "two one")
    tab.press("#text", "Enter")
    until(tab, f"{inputs} !== '{before}'")
    assert tab.evaluate("document.activeElement.id") == "model-title"  # for the keys of the walk
    tab.fill("#text", "")
    tab.press("#text", "Enter")
    tab.wait_for_selector("#status.error")
    assert tab.is_visible("#status")
    turn_to(tab, "step")
    tab.fill("#expression", "a * b")
    tab.press("#expression", "Enter")
    until(tab, "document.querySelectorAll('#step svg .box').length === 3")
    assert tab.evaluate("'presenting' in document.documentElement.dataset")


@pytest.mark.parametrize("name", ["model", "translate", "beam", "step", "curves"])
def test_the_first_line_of_a_presentation_covers_nothing(tab, address, name):
    tab.set_viewport_size({"width": 1280, "height": 800})
    translate(tab, address)
    turn_to(tab, name)
    tab.click("#present")
    until(tab, "document.fullscreenElement")
    tab.wait_for_timeout(300)
    left, bottom = tab.evaluate(
        "(({ left, bottom }) => [left, bottom])(document.querySelector('header').getBoundingClientRect())"
    )
    parts = "button, a, input, select, textarea, label, p, svg, canvas"
    boxes = tab.locator(f"main :is({parts}):visible").evaluate_all(
        "all => all.map((one) => [one.outerHTML.slice(0, 60), one.getBoundingClientRect()])"
    )
    assert [part for part, box in boxes if box["right"] > left and box["top"] < bottom and box["width"] > 1] == []


def test_presenting_enlarges_the_text_of_the_curves(tab, address):
    tab.set_viewport_size({"width": 1920, "height": 1080})
    tab.add_init_script(RECORD_CANVAS)
    view(tab, address, "curves")
    size = "(drawn.findLast(([text]) => text === 'update') ?? [])[1]"
    until(tab, size)
    normal = tab.evaluate(size)
    tab.click("#present")
    until(tab, f"Math.abs({size} - 1.4 * {normal}) < 0.1 * {normal}")


@pytest.mark.parametrize("presents", [False, True])
@pytest.mark.parametrize(("ahead", "back"), [("PageDown", "PageUp"), ("Space", "Shift+Space")])
def test_a_presenters_remote_reads_a_block_and_goes_on_to_the_next(tab, address, presents, ahead, back):
    tab.set_viewport_size({"width": 1280, "height": 800})
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click("[data-block='decoder.0.attention']")
    opened = "document.querySelector('#model .opened')"
    until(tab, f"{opened}.dataset.block === 'decoder.0.attention'")
    if presents:
        tab.keyboard.press("f")
        until(tab, f"document.activeElement === {opened}")
    end = tab.evaluate(f"{opened}.scrollHeight - {opened}.clientHeight")
    assert end > 100 and tab.evaluate(f"{opened}.scrollTop") == 0
    while (position := tab.evaluate(f"{opened}.scrollTop")) < end - 2:  # read to the end
        tab.keyboard.press(ahead)
        until(tab, f"{opened}.scrollTop > {position}")
        assert tab.evaluate(f"{opened}.dataset.block") == "decoder.0.attention"
    tab.keyboard.press(ahead)
    until(tab, f"{opened}.dataset.block === 'decoder.0.attention_residual'")
    assert tab.evaluate(f"{opened}.scrollTop") == 0
    tab.keyboard.press(back)
    until(tab, f"{opened}.dataset.block === 'decoder.0.attention'")
    if presents:
        assert tab.evaluate(f"document.activeElement === {opened}")


@pytest.mark.parametrize("key", ["PageDown", "Space"])
def test_a_presenters_remote_begins_the_walk(tab, address, key):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click("h1")
    tab.keyboard.press("f")
    until(tab, "document.fullscreenElement")
    tab.keyboard.press("PageUp")
    assert tab.evaluate("location.hash") == "#model"
    tab.keyboard.press(key)
    until(tab, "document.querySelector('#model .place').textContent.startsWith('1 of ')")
    tab.wait_for_selector("#model .opened .matrix")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (3840, 2160)])
def test_the_weights_of_a_short_sentence_are_large(tab, address, width, height):
    """The weights are readable from the last row of a lecture hall, with the formulas next to them."""
    tab.set_viewport_size({"width": width, "height": height})
    view(tab, address, "model")
    tab.fill("#text", "one two")
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click("[data-block='encoder.0.attention']")
    tab.wait_for_selector("#model .opened .matrix")
    tab.keyboard.press("f")
    until(tab, "document.fullscreenElement")
    place = "document.querySelector('#model .lead {}')?.getBoundingClientRect()"  # undefined while it is drawn again
    canvas, formula = place.format("canvas"), place.format(".formula")
    until(tab, f"{canvas}?.width >= 0.25 * innerWidth && {canvas}?.height >= 0.25 * {height}")
    until(tab, f"{canvas}?.bottom <= {height} && {formula}?.left > {canvas}?.right")


def test_the_button_that_ends_the_presentation_covers_no_other(tab, address):
    tab.set_viewport_size({"width": 1280, "height": 800})
    translate(tab, address)
    tab.click("[data-head='cross.0.0']")
    tab.click("#switch")
    tab.wait_for_selector(".restore")
    turn_to(tab, "model")
    tab.click("#present")
    until(tab, "document.fullscreenElement")
    tab.wait_for_timeout(300)
    end = tab.locator("#present").bounding_box()
    for button in tab.locator("button:visible:not(#present)").all():
        box = button.bounding_box()
        is_left, is_below = box["x"] + box["width"] <= end["x"], box["y"] >= end["y"] + end["height"]
        assert is_left or is_below, button.inner_text()


def test_the_full_screen_left_with_escape_ends_the_presentation(tab, address):
    view(tab, address, "step")
    tab.click("#present")
    until(tab, "document.fullscreenElement")
    tab.evaluate("document.exitFullscreen()")  # as Escape does, which the browser handles itself
    until(tab, "!('presenting' in document.documentElement.dataset)")


def test_the_weights_of_a_head_are_seen_without_scrolling(tab, address):
    tab.set_viewport_size({"width": 1920, "height": 1080})
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    for name in ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross_attention"):
        tab.click(f"[data-block='{name}']")
        until(tab, f"document.querySelector('#model .opened').dataset.block === '{name}'")
        weights = tab.locator("#model .matrix >> nth=0")
        assert weights.inner_text().startswith("weights")
        until(tab, f"!({HIDDEN})('#model .matrix')")


@pytest.mark.parametrize(
    ("width", "height", "min_gains"),
    [(1920, 1080, (1.1, 1.2, 1.5)), (1280, 800, (1.2, 1.4, 1.9)), (3840, 2160, (1.08, 1.15, 1.25))],
)
def test_the_browsers_zoom_enlarges_the_text(tab, address, width, height, min_gains):
    """A zoom by z makes the window z times smaller in CSS pixels, which are z times larger on the screen."""
    view(tab, address, "step")
    sizes = []
    for zoom in (1, 1.25, 1.5, 2):
        tab.set_viewport_size({"width": round(width / zoom), "height": round(height / zoom)})
        sizes.append(zoom * tab.evaluate(SIZE))
    gains = [size / sizes[0] for size in sizes]
    assert all(gain > bound for gain, bound in zip(gains[1:], min_gains, strict=True)), gains
