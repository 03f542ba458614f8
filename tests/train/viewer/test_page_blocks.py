"""The opened blocks of the page's model view: what they explain and show, and how they open; see conftest.py."""

import pytest

from tests.helpers.pages import SENTENCE, turn_to, until, view
from train.viewer.explanations import OWN_OUTPUT


def test_the_view_survives_a_reload_and_back_closes_the_block(tab, address):
    opened = "document.querySelector('#model .opened').dataset.block"
    view(tab, address, "model")
    tab.fill("#text", "four")
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click("#theme")
    theme = tab.get_attribute(":root", "data-theme")
    tab.click("[data-block='encoder.0.attention']")
    tab.click("[aria-label=Direction] .backward")
    tab.click("#model .opened button.primary")
    until(tab, f"{opened} === 'source_embedding'")
    for _ in range(2):
        assert tab.url.endswith("#model/source_embedding/backward")
        tab.reload()
        tab.wait_for_selector("#model .opened[data-block=source_embedding]")
    assert tab.input_value("#text") == "four" and tab.get_attribute(":root", "data-theme") == theme
    assert "backward, encoder: Embedding" in tab.inner_text("#model .place")
    assert "fixed, no gradient" in tab.inner_text("#model .opened")
    turn_to(tab, "translate")
    tab.go_back()
    until(tab, "!document.querySelector('#model').hidden")
    assert tab.evaluate(opened) == "source_embedding"
    tab.go_back()
    until(tab, f"{opened} === undefined")
    assert tab.is_visible("#model .start") and tab.url.endswith("#model")


@pytest.mark.parametrize("block", ["source_embedding", "encoder.0.attention", "decoder.0.feed_forward", "output"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_columns_of_all_matrices_of_a_block_begin_at_the_same_place(tab, address, block, direction):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.wait_for_selector("#model[data-flow]", state="attached")
    tab.click(f"[aria-label=Direction] .{direction}")
    tab.click(f"[data-block='{block}']")
    until(tab, f"document.querySelector('#model .opened').dataset.block === '{block}'")
    begins = tab.locator("#model .opened .matrix .cells canvas").evaluate_all("""all => all.map((canvas) => {
        canvas.focus(); // frames the first cell
        return canvas.nextSibling.offsetLeft - canvas.offsetLeft;
    })""")
    assert begins and len({*begins}) == 1


def test_a_head_is_ablated_in_its_block(tab, address):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.click("[data-block='decoder.0.attention']")
    for name, other in (("Ablate", "Restore"), ("Restore", "Ablate")):
        tab.click(f"text={name} head 0 and run again")
        until(tab, f"document.activeElement.textContent === '{other} head 0 and run again'")
        mark = "layer 0 has ablated heads" if name == "Ablate" else ""
        assert tab.get_attribute("[aria-label='Layer shown'] button", "title") == mark


def test_a_block_shows_its_matrices_in_the_order_of_the_pass(tab, address, page):
    view(tab, address, "model")
    tab.fill("#text", SENTENCE)
    tab.press("#text", "Enter")
    tab.click("[data-block='decoder.0.attention']")
    until(tab, "document.querySelector('#model .opened')?.dataset.block === 'decoder.0.attention'")
    until(tab, "document.querySelectorAll('#model .matrix b').length === 9")
    order = ["x, from", "queries q", "keys k", "values v", "scores q kᵀ", "scores / √dk + mask", "weights, softmax"]
    order += ["head output", "all heads"]
    order = [order[6], *order[:6], *order[7:]]  # the weights are seen first
    titles = tab.locator("#model .matrix b").all_inner_texts()
    assert [title.startswith(start) for title, start in zip(titles, order, strict=True)] == [True] * 9
    assert "head0" in tab.inner_text("#model .formula") and "∂" not in tab.inner_text("#model .formula")
    tab.click("[aria-label=Direction] .backward")
    until(tab, "document.querySelector('#model .matrix b').textContent.startsWith('∂')")
    computed = [*titles[1:7], titles[0], *titles[7:]]
    assert tab.locator("#model .matrix b").all_inner_texts() == [f"∂ {title}" for title in reversed(computed)]
    assert "∂A − Σrow" in tab.inner_text("#model .formula")
    tab.click("[data-block=output]")
    until(tab, "document.querySelector('#model .opened').dataset.block === 'output'")
    shown = tab.inner_text("#model .opened")
    assert OWN_OUTPUT in shown and "∂logits = (p − onehot(target)) / T" in shown and "not shown" not in shown
    titles = tab.locator("#model .matrix b").all_inner_texts()
    assert titles[0] == "∂ logits" and titles[1].startswith("∂ input h") and len(titles) == 2
