"""The page's Step view in a real browser, compared with the engine's numbers; see conftest.py."""

import json
import re

import numpy as np

from autograd import Tensor, neural
from autograd.draw.graph import OPERATORS
from tests.helpers.pages import cells, plain, until, view
from train.viewer.explanations import BLOCKS, OPERATIONS, explain
from train.viewer.step import ALLOWED_FUNCTIONS, steps


def test_every_operation_has_a_formula():
    assert ALLOWED_FUNCTIONS | {*OPERATORS.values(), "negative", "where"} <= OPERATIONS.keys()


def test_the_names_in_explanations_are_replaced():
    names = dict.fromkeys(
        "activation alpha bias factor last loss mask positions root sizes space whom x".split(), "value"
    )
    for kind in BLOCKS:
        shown = explain(kind, "layer_norm", **names)
        assert shown["text"] and shown["gradients"] and "{" not in str([*shown.values()])


def test_formulas_use_the_names_of_the_inputs():
    expressions = ["a * b + a", "sum(softmax(x) * w) * 2", "sum(relu(x @ w))", "2 - a / b", "concatenate(a, b)"]
    values = {"a": [3], "b": [2], "x": [[1, -2], [3, 1]], "w": [[1, 2], [2, 1]]}
    formulas = {}
    for expression in expressions:
        used = {name: value for name, value in values.items() if re.search(rf"\b{name}\b", expression)}
        nodes = {one["key"]: one for one in steps({"expression": expression, "values": used})["nodes"]}
        for one in nodes.values():
            names = [nodes[key]["name"].replace(" ", "_") for key in one["inputs"]]
            for name in names:
                assert f"∂{name}" in str(one.get("formula", "")), (expression, one["name"])
            formulas[expression, one["name"]] = one.get("formula")
    assert formulas["a * b + a", "add"][:2] == ["y = multiply + a", "∂multiply = g,  ∂a = g"]
    assert formulas["sum(relu(x @ w))", "matmul"][1] == "∂x = g wᵀ,  ∂w = xᵀ g"
    assert formulas["sum(softmax(x) * w) * 2", "multiply 2"][0] == "y = sum ⊙ 2"
    assert formulas["2 - a / b", "subtract"] == ["y = 2 − divide", "∂divide = −g"]
    head = {one["name"]: one.get("formula") for one in steps({"head": {"causal": True}})["nodes"]}
    assert head["scores: matmul q kᵀ"] == ["y = q kᵀ", "∂q = g k,  ∂kᵀ = qᵀ g"]
    masked = head["mask: where, else −∞"]
    assert masked[:2] == ["y = scaled where the condition holds, else (−∞)", "∂scaled = g where it holds, else 0"]
    assert head["output: matmul weights v"][0] == "y = weights v"


def test_a_gradient_is_partial_until_all_paths_have_arrived(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.keyboard.press("End")
    leaf = "#step .leaf:has(text:text-is('a')) .gradient"
    assert tab.text_content(leaf) == "grad 3"
    assert "a is used more than once, so its gradients add up: 1 + 2 = 3." in tab.inner_text("#node")
    tab.keyboard.press("ArrowLeft")
    assert tab.text_content(leaf) == "grad 1 so far"
    assert "y = multiply + a" in tab.inner_text("#node") and "add up" not in tab.inner_text("#node")
    tab.fill("#expression", "x * x")
    tab.fill("#values", "x = [1, -2]")
    tab.press("#values", "Enter")
    until(tab, "document.querySelector('#place').textContent.startsWith('0 of 2')")
    tab.press("#values", "Tab")
    tab.keyboard.press("End")
    assert "x is used more than once, so its gradients add up to" in tab.inner_text("#node")


def test_step_view_shows_the_engines_numbers_by_keyboard(tab, address):
    view(tab, address, "step")
    tab.fill("#expression", "sum(softmax(x) * x)")
    tab.fill("#values", "x = [1, 2.5, -3]")
    tab.press("#values", "Enter")
    until(tab, "document.querySelector('#place').textContent.startsWith('0 of 6')")
    tab.press("#values", "Tab")  # to the next button
    places = [tab.inner_text("#place")]
    for _ in range(6):
        tab.keyboard.press("ArrowRight")
        places.append(tab.inner_text("#place"))
    assert places[0].startswith("0 of 6") and places[3] == "3 of 6, forward" and places[6] == "6 of 6, backward"
    x = Tensor(np.array([1, 2.5, -3]), requires_grad=True)
    y = neural.softmax(x)
    z = (y * x).sum()
    z.backward()
    tab.click("#step > details summary")
    rows = {row[0].split()[1]: row for row in cells(tab, "#step > details")[1:]}
    for name, value in (("x", x), ("softmax", y), ("sum", z)):
        np.testing.assert_allclose(json.loads(plain(rows[name][2])), value.data, rtol=6e-4)
    np.testing.assert_allclose(json.loads(plain(rows["x"][3])), x.grad, rtol=6e-4)
    tab.focus("#step button >> nth=0")
    tab.keyboard.press("ArrowLeft")
    explanation = tab.inner_text("#node")
    assert "∂softmax = g ⊙ x" in explanation and "lambda g" not in explanation and "bytes" not in explanation
    tab.click("#node summary")
    until(tab, "document.querySelector('#node').innerText.includes('lambda g')")
    assert "bytes are saved" in tab.inner_text("#node") and "borrowed" in tab.inner_text("#node")
    tab.keyboard.press("Home")
    assert tab.inner_text("#place").startswith("0 of 6")


def test_step_quiz_accepts_right_and_rejects_wrong_answers(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.check("#predict")
    tab.click("#step [aria-label=Next]")
    tab.fill("#guess", "6")
    tab.press("#guess", "Enter")
    assert "Correct." in tab.inner_text("#node") and tab.inner_text("#place").startswith("1 of 4")
    tab.keyboard.press("ArrowRight")
    tab.fill("#guess", "4")
    tab.press("#guess", "Enter")
    assert "The answer is 9." in tab.inner_text("#node")


def test_step_shows_the_inputs_before_the_first_operation(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.select_option("#ready", "3")
    until(tab, "document.querySelectorAll('#step svg .box').length === 8")
    assert tab.locator("#node figcaption b").all_text_contents() == ["k", "q", "v"]
    tab.focus("#node canvas >> nth=2")
    tab.keyboard.press("ArrowRight")
    head = steps({"head": {"causal": False}})
    (value,) = [one["value"] for one in head["nodes"] if one["name"] == "v"]
    assert plain(tab.inner_text("#node .read >> nth=2")) == f"0, 1: {value[0][1]:g}"


def test_step_shows_an_attention_head_and_an_error(tab, address):
    view(tab, address, "step")
    tab.wait_for_selector("#step svg .box")
    tab.select_option("#ready", "4")
    until(tab, "document.querySelectorAll('#step svg .box').length === 9")
    tab.keyboard.press("End")  # the focus has left the list of examples
    assert tab.inner_text("#place") == "12 of 12, backward"
    names = {"scores: matmul q kᵀ", "scaled: multiply by 1/√2", "mask: where, else −∞", "output: matmul weights v"}
    assert names <= {*tab.locator("#step svg .box text").all_text_contents()}
    tab.set_viewport_size({"width": 390, "height": 500})
    for step in range(12):  # the current node is in the window
        tab.keyboard.press("ArrowLeft" if step < 11 else "ArrowRight")
        box = "document.querySelector('#step .box.lit').getBoundingClientRect()"
        left, right, top, bottom = tab.evaluate(
            f"(({{left, right, top, bottom}}) => [left, right, top, bottom])({box})"
        )
        assert 0 <= left and right <= 390 and 0 <= top and bottom <= 500
    tab.fill("#expression", "a.b")
    tab.press("#expression", "Enter")
    tab.wait_for_selector("#node .error")
    assert "got 'a.b'" in tab.inner_text("#node")
    tab.fill("#expression", "x @ w")
    tab.fill("#values", "x = [[1, 2]]; w = [[1, 2]]")
    tab.press("#values", "Enter")
    assert tab.input_value("#ready") == ""  # not the example shown before
    until(tab, "document.querySelector('#node').textContent.startsWith('1×2 @ 1×2 does not work for these shapes')")
