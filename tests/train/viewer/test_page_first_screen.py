"""What the page shows without scrolling, and how it leads to the rest; see conftest.py."""

from dataclasses import replace

import pytest

from tests.helpers.pages import SENTENCE, model_view, served, translate, turn_to, until, view
from train.run.checkpoint import load_with_origin
from train.viewer.blocks import structure
from train.viewer.inspection import AXES
from train.viewer.server import Page

# Whether an element is visible without scrolling: in the window, and not behind controls that a phone pins to its end.
SEEN = """(selector) => {
    const place = document.querySelector(selector).getBoundingClientRect();
    const controls = document.querySelector("#model .controls");
    const end = getComputedStyle(controls).position === "sticky" ? controls.getBoundingClientRect().top : innerHeight;
    return place.height > 0 && place.top >= 0 && place.bottom <= end + 1;
}"""
OPENED = "document.querySelector('#model .opened').dataset.block"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_first_matrix_of_every_block_is_on_the_first_screen(tab, address, page, direction):
    model_view(tab, address, 1280, 800)
    tab.click(f"[aria-label=Direction] .{direction}")
    for name in [block["name"] for block in structure(page.model)]:
        tab.click(f"[data-block='{name}']")
        until(tab, f"{OPENED} === '{name}'")
        until(tab, f"({SEEN})('#model .opened .cells')")
    titles = tab.locator("#model .opened .matrix b").all_inner_texts()
    assert titles[0] == ("probabilities p" if direction == "forward" else "∂ logits")


@pytest.mark.parametrize(
    "files, what",
    [
        (("a/train.en", "b/train.de"), 'English into German, on text such as "two" from train.en and train.de.'),
        (("a/train.src", "b/<b>"), 'text such as "two" from train.src and <b>.'),
        (("", ""), 'text such as "two".'),
    ],
)
def test_the_page_says_what_the_model_was_trained_on(tab, run, files, what):
    model, tokenizer, config, _ = load_with_origin(run)
    data = replace(config.data, **dict(zip(("train_src", "train_tgt"), files, strict=True)))
    with served(Page({}, model, tokenizer, replace(config, data=data), examples=["two"]), tab=tab) as address:
        view(tab, address, "model")
        sentence = f"This model was trained to translate {what} On other text, its output may be meaningless."
        tab.wait_for_selector("#model .training")
        assert tab.inner_text("#model .training") == sentence


def test_the_heads_are_on_the_first_screen(tab, address):
    tab.set_viewport_size({"width": 1280, "height": 800})
    translate(tab, address)
    for kind in AXES:
        assert tab.evaluate(f"({SEEN})('.grid[data-kind={kind}]')")
        assert tab.evaluate(f"document.querySelector('.grid[data-kind={kind}]').getBoundingClientRect().top") < 400
    assert tab.get_attribute(".grid >> nth=0", "data-kind") == "cross"
    tops = tab.locator("#result .tokens").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert len(tops) == 2 and tops[0] == tops[1]  # the input and the output are next to each other


def test_a_phone_starts_with_what_the_page_shows_and_the_walk(tab, address):
    model_view(tab, address, 390, 844)
    tops = [tab.locator(f"#model {part}").bounding_box()["y"] for part in (".start", ".training", ".walk", ".figure")]
    assert tops == sorted(tops) and tops[-1] < 844 / 2
    assert tab.locator("#model .preview").bounding_box()["y"] > 844  # the rest follows the figure
    tab.click("#model .walk button")
    tab.wait_for_selector("#model .opened .heading h3")
    until(tab, f"({SEEN})('#model .opened .heading h3')")


def test_a_phone_scrolls_to_the_block_of_the_address(tab, address):
    tab.set_viewport_size({"width": 390, "height": 844})
    view(tab, address, "model/encoder.0.attention")
    if not tab.input_value("#text"):
        tab.fill("#text", SENTENCE)
        tab.press("#text", "Enter")
    until(tab, f"{OPENED} === 'encoder.0.attention'")
    until(tab, f"({SEEN})('#model .opened .heading h3')")


def test_a_phone_scrolls_to_the_block_that_opens(tab, address, page):
    """A click, the keys and the buttons of the walk open a block, in both directions."""
    model_view(tab, address, 390, 844)
    names = [block["name"] for block in structure(page.model)]

    def is_seen(name):
        until(tab, f"{OPENED} === '{name}'")
        for part in (".heading h3", ".cells"):
            until(tab, f"({SEEN})('#model .opened {part}')")

    for name in ("encoder.0.attention", "output", "source_embedding"):
        tab.click(f"[data-block='{name}']")
        is_seen(name)
        assert tab.evaluate("document.querySelector('#model .opened').contains(document.activeElement)")
        tab.keyboard.press("Escape")
        until(tab, f"document.activeElement.dataset.block === '{name}'")
    tab.keyboard.press("ArrowRight")
    is_seen(names[0])
    tab.click("[aria-label=Next]")
    is_seen(names[1])
    tab.click("#model .opened button.primary")
    is_seen(names[2])
    tab.click("[aria-label=Direction] .backward")
    tab.click("[aria-label=Next]")
    is_seen(names[1])


def complete_tree(tab, address):
    translate(tab, address)
    turn_to(tab, "beam")
    for name in ("late", "dropped"):
        if tab.is_visible(f"#{name}"):
            tab.check(f"#{name}")


def test_the_path_to_a_hypothesis_is_traced(tab, address, page):
    """Pointer and focus trace the path; the panel explains the selected hypothesis."""
    tab.set_viewport_size({"width": 1280, "height": 800})
    complete_tree(tab, address)
    nodes = next(one for one in page.sentences.answers.values() if one["sentence"] == SENTENCE)["beam"]["nodes"]
    shown = tab.locator("#beam [data-node]").evaluate_all("all => all.map((one) => Number(one.dataset.node))")
    traced = "(one) => [...document.querySelectorAll(`#beam .traced[data-${one}]`)].map((x) => Number(x.dataset[one]))"
    dropped = [i for i in shown if nodes[i]["fate"] == "dropped"]
    assert len(dropped) > 3
    for i in (dropped[0], dropped[-1], shown[-1]):
        path = set()
        at = i
        while at >= 0:
            path.add(at)
            at = nodes[at]["parent"]
        tab.evaluate("document.activeElement.blur()")
        tab.hover(f"#beam [data-node='{i}']")
        assert {*tab.evaluate(traced, "node")} == {*tab.evaluate(traced, "edge")} == path
        faded = tab.locator("#beam [data-node]:not(.traced)").first
        assert faded.evaluate("(one) => Number(getComputedStyle(one).opacity)") < 0.5
        tab.hover("h1")  # no box has the pointer or the focus
        assert tab.evaluate(traced, "node") == []
        tab.focus(f"#beam [data-node='{i}']")
        assert {*tab.evaluate(traced, "node")} == path
        tab.keyboard.press("Enter")
        words = " ".join(nodes[one]["label"] for one in sorted(path))
        assert tab.inner_text("#beam .hypothesis") == words
        until(tab, f"document.activeElement.dataset.node === '{i}'")
        assert {*tab.evaluate(traced, "node")} == path  # also after it is drawn again


def test_every_fate_has_its_mark(tab, address, page):
    complete_tree(tab, address)
    marks = {"kept": "", "finished": "✓", "dropped": "✗", "cut off": "…"}
    key = tab.inner_text("#beam .key")
    assert all(f"{mark} {fate}" in key for fate, mark in marks.items())
    boxes = tab.locator("#beam [data-node]").evaluate_all(
        "all => all.map((one) =>"
        " [one.getAttribute('aria-label').split(', ').at(-1), one.querySelector('.value').textContent])"
    )
    assert {fate for fate, _ in boxes} >= {"kept", "dropped"}
    assert all(text.startswith(marks[fate] or "−") for fate, text in boxes)


def luminance(color):
    """Return the relative luminance of WCAG 2 of a color such as "#c3cede"."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(*colors):
    low, high = sorted(map(luminance, colors))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_masked_cells_are_fainter_than_weights(tab, address, theme):
    """The lines of masked cells are visible, but less than a weight of 1/4 against the background."""
    view(tab, address, "step")
    lines, between, weight, background = tab.evaluate(
        """async (theme) => {
            const { maskedColors, scale, setTheme } = await import("/parts.js");
            setTheme(theme);
            const hex = (color) => `#${color.map((x) => x.toString(16).padStart(2, "0")).join("")}`;
            return [...maskedColors(), hex(scale()[127 + 64]), hex(scale()[127])];
        }""",
        theme,
    )
    assert 1.2 < contrast(lines, between) < 1.4
    assert contrast(lines, background) < contrast(weight, background)
