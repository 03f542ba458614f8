"""The page's view of the whole model; see conftest.py."""

import base64
import json

import numpy as np
import pytest

from tests.helpers.pages import RECORD_CANVAS, SENTENCE, served, translate, turn_to, until, view
from train.cli.serve import load_page
from train.viewer.blocks import show_block, structure
from train.viewer.examples import FIRST_EXAMPLE_TOKENS


def test_the_first_view_is_the_whole_model_with_the_values_of_a_sentence(tab, address, page):
    view(tab, address, "")
    assert tab.is_visible("#model") and tab.title() == "Model – npx-transformer"
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    shown = tab.locator(".block").evaluate_all(
        "blocks => blocks.map(b => [b.dataset.block, b.querySelector('b').innerText])"
    )
    assert sorted(map(tuple, shown)) == sorted((b["name"], b["title"]) for b in structure(page.model))
    trace = [*page.sentences.traced.values()][-1]
    for name in ("encoder.0.attention", "decoder.0.feed_forward"):
        y, _ = trace.output(name)
        fact = tab.inner_text(f"[data-block='{name}'] small")
        assert f"{len(y)} × {y.shape[1]}" in fact and f"{float(f'{np.linalg.norm(y):.3g}'):g}" in fact
    chips = "document.querySelector('#model .chips')"  # tokens that do not fit end in "…"
    assert tab.evaluate(f"getComputedStyle({chips}).textOverflow") == "ellipsis"
    assert tab.locator(".arrow").count() >= 15 and tab.locator(".thumbnail").count() == len(shown)


def test_the_keys_walk_through_both_passes_and_open_the_blocks(tab, address, page):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click("h1")  # no element has the focus
    names = [block["name"] for block in structure(page.model)]
    walk = [*names, *reversed(names)]
    for key, i in (("ArrowRight", 0), ("ArrowRight", 1), ("End", len(walk) - 1), ("ArrowLeft", len(walk) - 2)):
        tab.keyboard.press(key)
        until(tab, f"document.querySelector('#model .opened').dataset.block === '{walk[i]}'")
        assert tab.inner_text("#model .place").startswith(f"{i + 1} of {len(walk)}")
        assert tab.locator("#model .matrix").count() >= 2
    assert tab.get_attribute("[aria-label=Direction] .backward", "aria-pressed") == "true"
    tab.keyboard.press("Home")
    assert tab.inner_text("#model .place").startswith("1 of")
    tab.keyboard.press("End")
    tab.click("text=Walk again")
    until(tab, f"document.querySelector('#model .opened').dataset.block === '{walk[0]}'")
    assert not tab.locator("#model .end").count()


@pytest.mark.parametrize("start", ["ArrowRight", "text=Walk through the backward pass", "text=▶ Play"])
def test_the_walk_begins_in_the_direction_shown(tab, address, page, start):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click("[aria-label=Direction] .backward")
    tab.click("h1")
    if start == "ArrowRight":
        tab.keyboard.press(start)
    else:
        tab.click(start)
    n = len(structure(page.model))
    until(tab, "document.querySelector('#model .opened').dataset.block === 'output'")
    assert tab.inner_text("#model .place").startswith(f"{n + 1} of {2 * n}, backward")


def test_a_block_that_was_fetched_ahead_opens_without_the_server(tab, address):
    asked = []
    tab.on("request", lambda request: asked.append(request.url) if request.url.endswith("/api/block") else None)
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    n_blocks = tab.locator("#model .block").count()
    for _ in range(600):
        if len(asked) == n_blocks:
            break
        tab.wait_for_timeout(50)
    tab.click("[data-block='encoder.0.feed_forward']")
    until(tab, "document.querySelector('#model .opened').dataset.block === 'encoder.0.feed_forward'")
    assert len(asked) == n_blocks


def test_the_model_view_begins_with_the_attention_to_the_source(tab, address, page):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.focus("#model .preview canvas[tabindex]")
    tab.keyboard.press("Home")
    answer = next(one for one in page.sentences.answers.values() if one["sentence"] == SENTENCE)
    inspection, *_ = page.sentences.recent[answer["translation"]]
    readout = tab.inner_text("#model .preview .read")
    assert float(readout.split(": ")[-1]) == pytest.approx(inspection.maps["cross"][-1].mean(axis=0)[0, 0], rel=5e-4)
    assert "share one vocabulary" in tab.inner_text("#model .opened") and "</s>" in tab.inner_text("#model .signs")
    tab.click("text=Walk through the model")
    until(tab, "document.querySelector('#model .place').textContent.startsWith('1 of ')")
    until(tab, "document.activeElement.textContent.startsWith('Next: ')")
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('#model .place').textContent.startsWith('2 of ')")
    tab.click("text=▶ Play")
    assert tab.get_attribute("#model", "class").split()[-1] == "is-playing"


def test_a_cell_says_how_a_score_becomes_a_weight(tab, address, page):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.click("[data-block='decoder.0.cross_attention']")
    weights = "#model .matrix:has(b:text('weights, softmax')) "
    until(tab, "document.querySelectorAll('[aria-label=Head] button').length === 2")
    tab.focus("[aria-label=Head] button >> nth=0")
    for _ in range(3):
        tab.keyboard.press("ArrowRight")  # stays within the group
    assert tab.evaluate("document.activeElement.textContent") == "1"
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('[aria-label=Head] [aria-pressed=true]')?.textContent === '1'")
    until(tab, "document.activeElement.textContent === '1'")
    tab.focus(weights + "canvas[tabindex]")
    place = tab.inner_text("#model .place")
    for key in ("End", "Home", "ArrowRight"):
        tab.keyboard.press(key)
    assert tab.inner_text("#model .place") == place
    trace = [*page.sentences.traced.values()][-1]
    block = show_block(trace, "decoder.0.cross_attention", 1, page.tokenizer)
    matrices = {one["title"]: one for one in block["matrices"]}
    row = page.sentences.recent[latest(page)][0].decoder_input[0]
    column = block["matrices"][-3]["columns"][1]
    assert matrices["weights, softmax of each row"] == block["matrices"][-3]
    readout = tab.inner_text(weights + ".read")
    assert readout.startswith(f"{row}, {column}: ") and "q·k / √d_k" in readout and "softmax = " in readout


def latest(page):
    return [*page.sentences.traced][-1]


def test_an_opened_block_labels_and_masks_attention_as_the_translate_view(page):
    answer = page.sentences.translate({"text": SENTENCE}, lambda item: None)
    for kind, name in (("encoder", "encoder.0.attention"), ("decoder", "decoder.0.attention"),
                       ("cross", "decoder.0.cross_attention")):  # fmt: skip
        query = {"translation": answer["translation"], "block": name, "head": 0}
        block = page.sentences.block(query, lambda item: None)
        grid = answer["heads"][kind]
        weights = next(one for one in block["matrices"] if one["title"].startswith("weights"))
        assert all(weights[key] == grid[key] for key in ("columns", "masked"))
        # Rows of the decoder: the Translate view names the generated token, a block the token that it reads.
        assert weights["rows"] == (grid["rows"] if kind == "encoder" else answer["decoder_input"])
        if kind != "cross":
            labeled = {one["title"].split()[0]: one["rows"] for one in block["matrices"]}
            assert labeled["queries"] == labeled["keys"] == labeled["values"] == weights["rows"]
        if kind == "decoder":
            n = len(grid["rows"])
            hidden = np.frombuffer(base64.b64decode(grid["masked"]), "u1").reshape(n, n)
            np.testing.assert_array_equal(hidden, 1 - np.tri(n))
        else:
            assert grid["masked"] is None


def test_the_output_block_names_its_input_and_the_gradient_that_it_passes_back(tab, address, page):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    assert "input ‖h‖" in tab.inner_text("[data-block=output]")
    tab.click("[aria-label=Direction] .backward")
    assert "to input ‖∂h‖" in tab.inner_text("[data-block=output]")
    tab.click("[data-block=output]")
    until(tab, "document.querySelector('#model .opened').dataset.block === 'output'")
    assert "Gradient in: 1, the derivative of the loss" in tab.inner_text("#model .opened")
    assert tab.inner_text("#model .matrix:has(b:text('∂ input h')) b").startswith("∂ input h, from ")


def test_the_page_opens_with_translated_validation_sentences(tab, run, uninterrupted):
    page = load_page([run])
    assert len(page.examples) == 3 and all(page.tokenizer.encode(example) for example in page.examples)
    assert len(page.tokenizer.encode(page.examples[0])) in FIRST_EXAMPLE_TOKENS
    with served(page, tab=tab) as address:
        view(tab, address, "")
        tab.wait_for_selector("#model[data-flow]", state="attached")
        assert tab.input_value("#text") == page.examples[0] and tab.get_attribute("#ask", "data-milliseconds")
        tab.select_option("#examples", page.examples[1])
        until(tab, f"document.querySelector('#text').value === {json.dumps(page.examples[1])}")
        until(tab, "document.activeElement.id === 'model-title'")  # the focus has left the list
        tab.wait_for_selector("#status:not(.error)", state="attached")
        until(tab, "!document.querySelector('#status').textContent.startsWith('…')")
        tab.keyboard.press("ArrowRight")
        until(tab, "document.querySelector('#model .place').textContent.startsWith('1 of ')")
        assert tab.input_value("#text") == page.examples[1] and tab.input_value("#examples") == page.examples[1]


def test_a_hypothesis_is_explained_when_it_is_selected(tab, address):
    translate(tab, address)
    turn_to(tab, "beam")
    tab.focus("#beam [data-node][tabindex='0']")
    tab.keyboard.press("Enter")
    assert "score = log-probability / divisor" in tab.inner_text("#beam .opened")
    total = tab.locator("#beam .opened tr").last.locator("td").last.inner_text()
    assert f"= {total} /" in tab.inner_text("#beam .formula")


def test_the_focus_follows_the_view(tab, address):
    view(tab, address, "model")
    for name in ("translate", "beam", "step", "curves", "model"):
        turn_to(tab, name)
        assert tab.evaluate("document.activeElement.id") == f"{name}-title"


SIZES = ((1280, 800), (390, 844), (3840, 2160))
OVERFLOWING = """(view) => {
  const wrong = [], section = document.getElementById(view);
  for (const one of document.querySelectorAll("header *, #ask *, main > section:not([hidden]) *")) {
    const { width, height } = one.getBoundingClientRect();
    if (!width || one.closest(".hidden, details:not([open]) > :not(summary)")) continue;
    if (one.matches("button, a, b, span, small, label, h3, select") && one.clientWidth
        && one.scrollWidth > one.clientWidth + 1) wrong.push(one.textContent);
    if (one.matches("svg .box text") && one.getBBox().width > one.parentNode.querySelector("rect").getBBox().width)
      wrong.push(one.textContent);
    if (one.matches("[data-name=search-tree] text") && one.textContent.endsWith("…")) wrong.push(one.textContent);
  }
  for (const label of section.querySelectorAll(".edge-label")) {
    const { x, y, width, height } = label.getBBox();
    for (const path of section.querySelectorAll(".edge")) {
      const n = path.getTotalLength(), points = Array.from({ length: n }, (_, i) => path.getPointAtLength(i));
      const isOwn = points.some((p) => Math.hypot(p.x - x - width / 2, p.y - y - height / 2) < 3);
      if (!isOwn && points.some((p) => p.x > x && p.x < x + width && p.y > y && p.y < y + height))
        wrong.push(`${label.textContent} meets an edge`);
    }
  }
  for (const [a, b] of [[".times", ".arrow"], [".edge-label", ".box rect"], [".what > *", ".thumbnail"]]) {
    const boxes = (selector) => [...section.querySelectorAll(selector)].map((one) => one.getBoundingClientRect());
    for (const x of boxes(a)) for (const y of boxes(b))
      if (x.left < y.right - 1 && y.left < x.right - 1 && x.top < y.bottom - 1 && y.top < x.bottom - 1
          && (b !== ".arrow" || y.width < 1)) wrong.push(`${a} at ${x.left}, ${x.top} meets ${b}`);
  }
  return wrong;
}"""


def test_no_text_overflows_its_box_or_meets_a_line(tab, address):
    translate(tab, address)
    tab.evaluate("document.addEventListener('translated', (event) => (window.detail = event.detail))")
    tab.press("#text", "Enter")
    until(tab, "window.detail")
    tab.evaluate(
        "detail.answer.beam.nodes.forEach((node) => (node.label += ' and more'));"
        "document.dispatchEvent(new CustomEvent('translated', { detail }))"
    )
    for width, height in SIZES:
        tab.set_viewport_size({"width": width, "height": height})
        for name in ("model", "beam", "step", "translate"):
            turn_to(tab, name)
            tab.wait_for_selector(f"#{name} svg, #{name} canvas")
            if name == "model":
                tab.wait_for_selector("#model[data-flow]", state="attached")
            if name == "beam":
                tab.check("#dropped")
            if name == "step":
                for _ in range(4):
                    tab.keyboard.press("ArrowRight")
            tab.wait_for_timeout(100)  # drawings follow the size of the window
            assert tab.evaluate(f"({OVERFLOWING})('{name}')") == [], (name, width)
            if name == "beam":
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if name == "translate" and width > 2000:
                tops = "[...document.querySelectorAll('.kind')].map((kind) => kind.offsetTop)"
                assert len({*tab.evaluate(tops)}) == 1


def test_the_whole_model_is_in_the_window_and_a_selection_moves_nothing(tab, address):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    elements = "[...document.querySelectorAll('.block, .controls button')]"
    boxes = f"{elements}.map(one => Object.values(one.getBoundingClientRect().toJSON()))"
    for width, height in SIZES:
        tab.set_viewport_size({"width": width, "height": height})
        before = tab.evaluate(boxes)
        if width > 1000:
            assert max(top + tall for _, top, _, tall, *_ in before) < height
            assert tab.evaluate("document.documentElement.scrollHeight") <= height
        else:  # the drawing begins in the window, above the controls
            assert tab.evaluate("document.querySelector('.figure').getBoundingClientRect().top") < height / 2
        tab.evaluate("document.querySelector('[data-block=\"encoder.0.attention\"]').click()")
        until(tab, "document.querySelector('#model .opened').dataset.block === 'encoder.0.attention'")
        for direction in ("backward", "forward"):
            tab.evaluate(f"document.querySelector('[aria-label=Direction] .{direction}').click()")
            tab.evaluate("scrollTo(0, 0)")
            assert tab.evaluate(boxes) == before, (width, direction)
        tab.keyboard.press("Escape")


def test_the_arrow_keys_move_between_blocks_and_escape_closes(tab, address):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    focused, opened = "document.activeElement.dataset.block", "document.querySelector('#model .opened').dataset.block"
    for key, name in (("ArrowDown", "output"), ("ArrowUp", "source_embedding")):
        tab.evaluate("document.activeElement.blur()")  # no element has the focus
        tab.keyboard.press(key)
        assert tab.evaluate(focused) == name
    for _ in range(2):
        tab.keyboard.press("ArrowUp")
    assert tab.evaluate(focused) == "encoder.0.attention_residual" and tab.evaluate(f"{opened} === undefined")
    tab.keyboard.press("Enter")
    until(tab, f"{opened} === 'encoder.0.attention_residual'")
    for key, name in (("ArrowDown", "encoder.0.attention"), ("ArrowRight", "encoder.0.attention_residual")):
        tab.keyboard.press(key)
        until(tab, f"{opened} === '{name}'")
        assert tab.evaluate(focused) == name
    canvas = "#model .opened canvas[tabindex]"
    tab.focus(canvas)
    assert tab.is_visible("#model .opened .cursor")  # the selection starts visibly, and the first key moves it
    first = tab.inner_text("#model .opened .read >> nth=0")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#model .opened .read >> nth=0") != first
    tab.click("#save summary")
    tab.wait_for_selector("#save .menu button")
    tab.keyboard.press("Escape")  # closes the menu only
    assert not tab.is_visible("#save .menu") and tab.evaluate(f"{opened} !== undefined")
    tab.keyboard.press("Escape")
    until(tab, f"{focused} === 'encoder.0.attention_residual'")
    assert tab.is_visible("#model .start")


def test_a_new_sentence_starts_the_panel_anew_and_an_error_keeps_the_latest_values(tab, address):
    translate(tab, address)
    turn_to(tab, "model")
    tab.click("[data-block='decoder.0.cross_attention']")
    tab.wait_for_selector("#model[data-flow] .opened[data-block='decoder.0.cross_attention']")
    panel = "document.querySelector('#model .opened')"
    flow = tab.get_attribute("#model", "data-flow")
    tab.evaluate(f"{panel}.scrollTop = 300")
    assert tab.evaluate(f"{panel}.scrollTop") == 300
    content = tab.get_attribute("#model .opened", "data-content")
    tab.fill("#text", "four")
    tab.press("#text", "Enter")
    until(tab, f"document.querySelector('#model').dataset.flow !== '{flow}' && {panel}.dataset.content !== '{content}'")
    assert tab.evaluate(f"{panel}.scrollTop") == 0
    panel_text = tab.inner_text("#model .opened")
    tab.fill("#text", " ")
    assert "Edited, not yet sent" in tab.inner_text("#edited") and "edited" in tab.get_attribute("#text", "class")
    tab.press("#text", "Enter")
    tab.wait_for_selector("#status.error")
    assert (
        tab.inner_text("#status").endswith('The values are still those of "four"') and tab.inner_text("#edited") == ""
    )
    assert tab.inner_text("#model .opened") == panel_text and tab.locator("#model .thumbnail").count()
    tab.click("#model .opened button.primary")  # the walk continues
    until(tab, f"{panel}.dataset.block === 'decoder.0.cross_attention_residual'")


def test_every_label_and_number_of_a_matrix_is_drawn(tab, address):
    tab.add_init_script(RECORD_CANVAS)
    view(tab, address, "translate")
    tab.evaluate("""async () => {
        const { matrix } = await import("/matrix.js"), place = document.createElement("div");
        place.style.width = "520px";
        const names = Array.from({ length: 17 }, (_, i) => `\u2423token${i}`);
        const values = Float32Array.from({ length: 16 * 17 }, (_, i) => 0.01 + i / 300);
        const masked = btoa(String.fromCharCode(...values.map((_, i) => i % 17 === 16)));
        const of = { rows: names.slice(1), columns: names };
        place.append(matrix({ title: "weights", ...of, values, most: 1, masked }));
        place.append(matrix({ title: "gradients", ...of, values: values.map((x) => x / 4096) }));
        drawn.length = 0;
        document.getElementById("translate").prepend(place);
    }""")
    until(tab, "drawn.length > 0")
    drawn = tab.evaluate("drawn")
    captions = tab.locator("#translate figcaption").all_inner_texts()
    assert "masked" in captions[0] and "numbers × 10⁻⁴" in captions[1] and "masked" not in captions[1]
    assert len(drawn) == 2 * 33 + 16 * 16 + 16 * 17  # masked cells have no number
    drawn = drawn[: 33 + 16 * 16]
    texts = [text for text, _ in drawn]
    assert texts[:16] == texts[17:33] == [f"\u2423token{i}" for i in range(1, 17)]
    assert texts[33:36] == [".01", ".01", ".02"] and min(size for _, size in drawn) >= 8.9
    tab.evaluate("""async () => {
        const { matrix } = await import("/matrix.js"), place = document.createElement("div");
        place.style.width = "180px";
        const names = Array.from({ length: 17 }, (_, i) => `token${i}`);
        place.append(matrix({ title: "narrow", rows: names.slice(1), columns: names, values: new Float32Array(272) }));
        [drawn.length, heights.length] = [0, 0];
        document.getElementById("translate").prepend(place);
    }""")
    until(tab, "drawn.length > 0")
    columns = tab.evaluate("drawn.length") - 16
    assert 0 < columns < 17 and tab.evaluate("heights.filter((height) => height === 4).length") == 17 - columns
