"""The page (`serve`): each view in a real browser, compared with the engine's numbers; see conftest.py."""

import json
import shutil
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

from benchmarks.page import AIMS, measured
from models.search import beam_search
from tests.helpers.pages import (
    RECORD_CANVAS,
    SENTENCE,
    cells,
    number,
    served,
    signed,
    translate,
    turn_to,
    until,
    view,
)
from train.viewer.inspection import AXES, Head, ablate_heads, inspect, source_ids, token_texts
from train.viewer.server import Page


def test_translate_shows_the_search_result_and_all_heads(tab, address, page):
    translate(tab, address)
    model, tokenizer, config = page.model, page.tokenizer, page.config
    src = source_ids(model, tokenizer, SENTENCE)
    search = {
        "beam_size": config.search.beam_size,
        "length_penalty": config.search.length_penalty,
        "max_extra_tokens": config.search.max_extra_tokens,
    }
    best = beam_search(model, np.array([src]), **search)[0][0]
    inspection = inspect(model, tokenizer, src, best.tokens)
    output = tokenizer.decode(best.tokens) or "(empty translation)"
    assert tab.inner_text("#status").removesuffix(" (cut off at the maximum length)") == output
    assert signed(f"Score {best.score:.4f}, log-probability {best.log_probability:.4f}") in tab.inner_text("#result")
    assert tab.locator(".head").count() == 6  # 3 kinds, 1 layer, 2 heads
    for kind in ("encoder", "decoder", "cross"):
        tab.click(f"[data-head='{kind}.0.1']")
        until(tab, f"document.querySelector('#head h3')?.textContent === 'Head {kind}.0.1'")
        tab.click("#head summary")
        shown = [[float(cell) for cell in row[1:]] for row in cells(tab, "#head table")[1:]]
        expected = model.attention_maps(np.array([src]), np.array([[1, *best.tokens]]), kind)[0][0, 1]
        np.testing.assert_allclose(shown, expected, atol=5.1e-5)
    shown = [float(x.split()[-1]) for x in tab.locator("button.token").all_inner_texts()]
    ids = [*best.tokens, 2][: len(shown)]
    np.testing.assert_allclose(shown, np.exp(inspection.log_probabilities[range(len(ids)), ids]), atol=5.1e-5)
    lens = cells(tab, "#result > .scroll")[-1]
    assert [cell.rsplit(" ", 1)[0] for cell in lens[1:]] == token_texts(tokenizer, inspection.lens_tokens[-1].tolist())
    pixel = tab.evaluate(
        "() => { const c = document.querySelector('[data-kind=decoder] canvas:not(.hatched)');"
        " return [...c.getContext('2d').getImageData(0, 0, 1, 1).data] }"
    )
    assert pixel == [27, 120, 55, 255]  # weight 1 is dark green


def lit(tab, **crossings):
    """Return whether exactly these rows and columns are highlighted in all heads; kind -> (row, column) or None."""
    of_canvas = """canvas => {
        const { width, height } = canvas, copy = new OffscreenCanvas(width, height).getContext("2d");
        copy.drawImage(canvas, 0, 0);
        return [height, [...copy.getImageData(0, 0, width, height).data.filter((_, i) => i % 4 === 3)]];
    }"""
    for kind in AXES:
        height, alphas = tab.locator(f".grid[data-kind={kind}] canvas:not(.hatched)").evaluate(of_canvas)
        alphas = np.reshape(alphas, (height, -1))[:-1]  # 1 layer, 2 heads
        visible = np.tri(len(alphas), dtype=bool) if kind == "decoder" else np.True_  # masked weights never change
        heads = alphas[:, : alphas.shape[1] // 2 - 1], alphas[:, alphas.shape[1] // 2 : -1]  # 1 pixel apart
        row, column = crossings.get(kind, (None, None))
        expected = np.full(heads[0].shape, 255 if row is column is None else 64)
        expected[[] if row is None else row] = expected[:, [] if column is None else column] = 255
        if not all(((head == expected) | ~visible).all() for head in heads):
            return False
    return True


def test_a_token_highlights_its_row_and_column_everywhere(tab, address):
    translate(tab, address)
    assert lit(tab)
    tab.focus("span.token >> nth=1")
    assert lit(tab, encoder=(1, 1), cross=(None, 1)) and not lit(tab)
    tab.focus("button.token >> nth=0")
    more = tab.locator("button.token").count() > 1
    assert lit(tab, decoder=(0, 1 if more else None), cross=(0, None))
    tab.focus("#text")
    assert lit(tab)


def test_pointing_at_a_weight_shows_its_value(tab, address, page):
    translate(tab, address)
    tab.hover("[data-head='cross.0.1']", position={"x": 2, "y": 2})
    src = source_ids(page.model, page.tokenizer, SENTENCE)
    weight = page.model.attention_maps(np.array([src]), np.array([[1]]), "cross")[0][0, 1, 0, 0]
    tokens = [tab.locator(f"{tag}.token").first.inner_text().split()[0] for tag in ("button", "span")]
    readout = tab.locator(".kind:has([data-kind=cross]) .read")
    assert readout.inner_text() == f"layer 0, head 1: {tokens[0]} attends to {tokens[1]} with weight {weight:.2f}"
    assert lit(tab, cross=(0, 0))
    tab.hover("h1")
    assert readout.inner_text() == "" and lit(tab)


def test_heads_are_reached_by_arrow_keys(tab, address):
    translate(tab, address)
    tab.focus("[data-head='cross.0.0']")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.dataset.head") == "cross.0.1"
    tab.keyboard.press("Enter")
    until(tab, "document.querySelector('#head h3')?.textContent === 'Head cross.0.1'")
    assert "distance" not in tab.inner_text("#head")  # between positions of two texts


def test_a_token_can_be_forced_and_a_head_ablated(tab, address, page):
    translate(tab, address)
    model, tokenizer = page.model, page.tokenizer
    tab.click("button.token >> nth=0")
    choice = tab.locator(".alternative").first.inner_text().split()[0]
    tab.click(".alternative >> nth=0")
    tab.wait_for_selector(".forced button")
    assert tab.evaluate("document.activeElement === document.querySelector('button.token')")
    assert tab.locator("button.token").first.inner_text().split()[0] == choice
    for name in ("model", "beam", "translate"):
        turn_to(tab, name)
        assert tab.is_visible("text=The first token is forced")
    tab.click("text=Restore the model's choice")
    tab.wait_for_selector(".forced", state="hidden")
    assert tab.locator("button.token").first.inner_text().split()[0] != choice
    tab.click("[data-head='cross.0.0']")
    tab.click("#switch")
    tab.wait_for_selector(".restore")
    until(tab, "document.activeElement.textContent === 'Restore this head'")  # the head is still open
    src = np.array([source_ids(model, tokenizer, SENTENCE)])
    s = page.config.search
    before = model.state_dict()

    def search():
        with ablate_heads(model, [Head("cross", 0, 0)]):
            return beam_search(
                model, src, beam_size=s.beam_size, length_penalty=s.length_penalty, max_extra_tokens=s.max_extra_tokens
            )[0][0]

    best = page.job_runner.executor.submit(search).result()  # the only thread that may change the model
    assert signed(f"Score {best.score:.4f}") in tab.inner_text("#result")
    unconstrained = beam_search(
        model, src, beam_size=s.beam_size, length_penalty=s.length_penalty, max_extra_tokens=s.max_extra_tokens
    )[0][0]
    change = f"log-probability {unconstrained.log_probability:.3f} → {best.log_probability:.3f}."
    assert unconstrained.tokens == best.tokens  # only the probabilities change
    assert tab.inner_text("#compare") == signed(f"The translation is the same; {change}")
    effect = f"Without head cross.0.0: {tab.inner_text('#compare')}"
    assert tab.inner_text("#head .effect") == effect  # next to the button, where it is seen
    tab.click("[data-head='cross.0.1']")
    until(tab, "document.querySelector('#head h3')?.textContent === 'Head cross.0.1'")
    assert tab.inner_text("#head .effect") == ""  # it is the effect of another head
    assert "Ablate the head to find out" in tab.inner_text("#head")
    assert ", was " in tab.inner_text("button.token >> nth=0")
    assert all((before[name] == array).all() for name, array in model.state_dict().items())
    turn_to(tab, "model")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    assert tab.is_visible("#ask >> text=Without head cross.0.0")
    assert "head 0 ablated" in tab.inner_text("[data-block='decoder.0.cross_attention']")
    tab.click(".restore")
    tab.wait_for_selector(".restore", state="detached")
    assert tab.evaluate("document.activeElement.id") == "text"


def test_the_beam_tree_has_the_exact_scores_of_the_search(tab, address, page):
    translate(tab, address)
    turn_to(tab, "beam")
    tab.click("#beam summary")
    rows = cells(tab, "#beam details")
    finished = {number(row[5]) for row in rows[1:] if row[6] in ("finished", "cut off")}
    s = page.config.search
    src = np.array([source_ids(page.model, page.tokenizer, SENTENCE)])
    best = beam_search(
        page.model, src, beam_size=s.beam_size, length_penalty=s.length_penalty, max_extra_tokens=s.max_extra_tokens
    )[0][0]
    assert best.score in finished
    assert tab.inner_text("#stop_reason").startswith("The search ended: ")
    if tab.is_visible("#late"):
        n_folded = tab.locator("#beam svg[data-name] .box").count()
        tab.check("#late")
        assert tab.locator("#beam svg[data-name] .box").count() > n_folded
    n_kept = tab.locator("#beam svg[data-name] .box").count()
    tab.check("#dropped")
    assert tab.locator("#beam svg[data-name] .box").count() > n_kept


def test_a_setting_that_is_no_number_is_reported_and_the_result_stays(tab, address):
    translate(tab, address)
    shown = tab.inner_text("#result")
    for field, got in (("length_penalty", ""), ("beam_size", "2.5")):
        before = tab.input_value(f"#{field}")
        tab.fill(f"#{field}", got)
        tab.press(f"#{field}", "Enter")
        message = tab.inner_text("#status.error")
        assert f"got {got or 'no number'}; try {before}" in message and " from " in message
        assert tab.inner_text("#result") == shown
        tab.fill(f"#{field}", before)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#status:not(.error)", state="attached")


def test_curves_follow_trainings(tab, page, run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other", ignore=shutil.ignore_patterns("checkpoints")))
    tab.add_init_script(RECORD_CANVAS)
    with served(Page({"run": run, "other": other}, page.model, page.tokenizer, page.config), tab=tab) as address:
        view(tab, address, "curves")
        tab.wait_for_selector("figure")
        until(tab, "['update', 'nats per token', 'L2 norm'].every((text) => drawn.some(([one]) => one === text))")
        lines = run.joinpath("metrics.jsonl").read_text("utf-8").splitlines()
        step = json.loads(lines[-1])["step"]
        last = json.loads([line for line in lines if '"train"' in line][-1])
        status = "document.querySelector('#curves [role=status]').textContent"
        assert f"run: update {step}; other: update {step}." in tab.evaluate(status)
        legend = ".u-legend >> nth=0"
        markers = "all => all.filter((one) => one.style.border).map((one) => getComputedStyle(one).borderTopColor)"
        colors = tab.locator(f"{legend} >> .u-marker").evaluate_all(markers)
        assert len({*colors}) == 4 and "" not in tab.locator(f"{legend} >> .u-value").all_inner_texts()
        tab.click("#curves figure summary >> nth=0")
        assert cells(tab, "#curves figure details")[0] == [
            "update", "run, training", "run, validation", "other, training", "other, validation",
        ]  # fmt: skip
        with open(other / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(last | {"step": 4321, "loss": 0.125}) + "\n")
        until(tab, f"{status}.includes('4,321')")
        assert cells(tab, "#curves figure details")[-1] == ["4321", "", "", "0.125", ""]  # the table stayed open
        tab.goto("about:blank")  # before the server stops


def test_a_saved_view_needs_no_server_and_can_be_stepped_through(tab, address, tmp_path, browser):
    view(tab, address, "model")
    flow = ""
    for sentence in ("four", SENTENCE):
        tab.fill("#text", sentence)
        tab.press("#text", "Enter")
        until(tab, f"(document.querySelector('#model').dataset.flow ?? {flow!r}) !== {flow!r}")
        flow = tab.get_attribute("#model", "data-flow")
        tab.click("[data-block='encoder.0.attention']")
        tab.wait_for_selector("#model .matrix")
    turn_to(tab, "step")
    until(tab, "document.querySelectorAll('#step svg .box').length === 4")
    files = {}
    for name in ("model", "translate", "step"):
        turn_to(tab, name)
        tab.click("#save summary")
        with tab.expect_download() as waiting:
            tab.click(".menu >> text=This view as a page")
        files[name] = tmp_path / f"{name}.html"
        waiting.value.save_as(files[name])
    requests, wrong = [], []
    other = browser.new_page()
    other.on("request", lambda request: requests.append(request.url))
    other.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    other.on("pageerror", lambda error: wrong.append(str(error)))
    other.goto(files["translate"].as_uri())
    other.wait_for_selector("body[data-ready]")
    assert (
        other.inner_text("#status") == tab.text_content("#status")
        and other.locator(".grid canvas:not(.hatched)").count() == 3
    )
    assert (
        f"Sentence: {SENTENCE}, beam size 4, length penalty 0.6" in other.inner_text(".settings")
        and not other.locator("form").count()
    )
    assert "Saved on " in other.inner_text("footer") and "SHA-256" in other.inner_text("footer")
    other.goto(files["model"].as_uri())
    other.wait_for_selector("body[data-ready]")
    recorded = json.loads(other.text_content("#recorded"))
    flows = [key for key in recorded["answers"] if key.startswith("api/overview")]
    opened = {answer["block"] for key, answer in recorded["answers"].items() if key.startswith("api/block")}
    assert len(flows) == 1 and opened == {block["name"] for block in recorded["about"]["model"]["blocks"]}
    other.keyboard.press("ArrowRight")
    other.wait_for_selector("#model .matrix")
    assert not other.locator("#model .error").count()
    other.keyboard.press("ArrowRight")
    head = "[aria-label=Head] button"
    other.wait_for_selector(f"{head} >> nth=1")
    assert other.locator(f"{head} >> nth=0").is_enabled() and not other.locator(f"{head} >> nth=1").is_enabled()
    other.goto(files["step"].as_uri())
    other.wait_for_selector("body[data-ready]")
    for _ in range(3):
        other.keyboard.press("ArrowRight")
    assert other.inner_text("#place") == "3 of 4, backward" and "∂multiply = g" in other.inner_text("#node")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == [] and wrong == []
    other.close()


def test_a_saved_drawing_keeps_its_styles(tab, address, tmp_path):
    """Every part has its own colors, so the file needs no style sheet."""
    translate(tab, address)
    tab.click("[data-head='cross.0.0']")
    turn_to(tab, "beam")
    turn_to(tab, "step")
    tab.wait_for_selector("#step svg .box")
    for name, place in {"translate": "#head .lines", "beam": "#beam", "step": "#step"}.items():
        turn_to(tab, name)
        place = place if " " in place else f"{place} svg[data-name]"
        tab.click("#save summary")
        with tab.expect_download() as waiting:
            tab.click(f".menu >> text=Drawing {tab.get_attribute(place, 'data-name')}")
        waiting.value.save_as(tmp_path / "saved.svg")
        saved = xml.parse(tmp_path / "saved.svg").getroot()
        title, ground, *parts = saved
        assert title.text == tab.get_attribute(place, "aria-label") and ground.get("fill") == "rgb(255, 255, 255)"
        assert {part.get("fill") is not None and part.get("stroke") is not None for part in parts} == {True}
    assert waiting.value.suggested_filename == "step.svg"


def test_a_page_left_open_survives_the_servers_restart(tab, page):
    with served(page) as first:
        translate(tab, first)
        port = first[2]
    tab.press("#text", "Enter")
    tab.wait_for_selector("#banner:not([hidden])")
    assert "does not respond" in tab.inner_text("#banner")
    assert "does not respond" not in tab.inner_text("#status")  # once is enough
    with served(page, port) as again:
        other = tab.context.new_page()
        other.goto(again[0])
        tab.wait_for_selector("#banner", state="hidden")
        tab.press("#text", "Enter")
        tab.wait_for_selector(".grid")
        until(tab, "document.querySelector('#status').textContent !== '…'")
    tab.wrong[:] = [text for text in tab.wrong if "Failed to load resource" not in text]  # while the server was down


def test_no_serious_accessibility_violation(tab, address):
    """Run axe in each view, light and dark; a narrow window must not scroll sideways."""
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
    tab.emulate_media(color_scheme="light", reduced_motion="reduce")
    translate(tab, address)
    tab.click("[data-head='cross.0.0']")
    tab.wait_for_selector("#head .matrix")
    tab.evaluate(axe)
    turn_to(tab, "model")
    tab.click("[data-block='decoder.0.cross_attention']")
    tab.wait_for_selector("#model .matrix")
    for name in ("model", "translate", "beam", "curves", "step"):
        turn_to(tab, name)
        tab.wait_for_selector(f"#{name} svg, #{name} canvas")
        for opened in tab.locator(f"#{name} summary").all():
            opened.click()
        collect = ".then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html]))"
        violations = tab.evaluate(f"axe.run(){collect}")
        tab.emulate_media(color_scheme="dark")
        violations += tab.evaluate(f"axe.run({{runOnly: ['color-contrast']}}){collect}")
        assert [one for one in violations if one[0] in ("serious", "critical")] == [], name
        tab.emulate_media(color_scheme="light")
        for width, height in ((320, 640), (550, 400)):  # a phone; a window zoomed to 200%
            tab.set_viewport_size({"width": width, "height": height})
            until(tab, f"document.documentElement.scrollWidth <= {width}")  # drawings follow a moment later
        tab.set_viewport_size({"width": 1100, "height": 800})


def test_without_a_run_there_is_the_step_view(tab):
    with served(Page({}), tab=tab) as address:
        view(tab, address, "")
        assert tab.is_visible("#step") and tab.inner_text("#run").startswith("no run was given")
        tab.wait_for_selector("#step svg .box")


def test_the_navigation_has_only_views_that_work(tab, run):
    """A run whose model the page cannot show has Step and Curves, and the header says why."""
    page = Page({"labels": run})
    page.unavailable_reason = "labels: expected a translation model; got the task classification"
    with served(page, tab=tab) as address:
        view(tab, address, "model")
        assert tab.locator("nav a").all_inner_texts() == ["Step", "Curves"]
        assert tab.is_visible("#step") and "got the task classification" in tab.inner_text("#run")
        turn_to(tab, "curves")
        tab.wait_for_selector("figure")


@pytest.mark.slow
def test_the_pages_benchmark_measures_each_part(tab, address):
    timings = measured(tab, address[0], SENTENCE, 1)
    assert set(timings) == set(AIMS) and all(len(times) >= 1 and min(times) > 0 for times in timings.values())
