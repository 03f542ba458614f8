"""Drawing graphs: the output formats, large graphs, and the restriction of expressions to operations."""

import re
import xml.etree.ElementTree as xml
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

import npx
from autograd import Recorder, Tensor, observing
from autograd.draw import graph as drawing
from autograd.draw.layout import Layout
from models import Transformer, TransformerConfig
from tests.helpers.expressions import expressions


def test_mermaid_has_values_and_gradients(capsys):
    assert drawing.main(["a * b + a", "a=3", "b=2"]) == 0
    assert capsys.readouterr().out == (
        "flowchart BT\n"
        '    leaf1(["a = 3<br/>gradient 3"])\n'
        '    leaf2(["b = 2<br/>gradient 3"])\n'
        '    n0["multiply = 6<br/>gradient 1"]\n'
        '    n1["add = 9<br/>gradient 1"]\n'
        "    leaf1 -->|added in place| n0\n"
        "    leaf2 -->|copied| n0\n"
        "    n0 -->|borrowed| n1\n"
        "    leaf1 -->|copied| n1\n"
    )


def test_output_is_deterministic(capsys):
    texts = []
    for _ in range(2):
        for output_format in drawing.FORMATS:
            assert drawing.main(["softmax(x) @ w", "x=[1,2,3]", "w=[1,0,0]", "--format", output_format]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_expressions_evaluate_constants_and_run_no_other_code(capsys):
    assert drawing.main(["2 * 3 * a ** (4 / 2)", "a=3"]) == 0
    assert "multiply = 54<" in capsys.readouterr().out
    for expression in ("9 ** 9 ** 9 * a", "[1] * 10 ** 9", "power(9, 9999999999)", "1 / 0 * a", "True * a"):
        assert drawing.main([expression]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_svg_is_well_formed_and_no_boxes_overlap():
    picture = xml.fromstring(drawing.draw_expression("sum(exp(x) * x + x / y)", ["x=[1,2]"], "svg"))
    space = "{http://www.w3.org/2000/svg}"
    elements = [r for r in picture.iter(f"{space}rect") if r.get("rx")]
    rects = [{k: float(r.get(k)) for k in ("x", "y", "width", "height")} for r in elements]
    assert len(rects) == 7
    for i, a in enumerate(rects):
        assert 0 <= a["x"] and a["x"] + a["width"] <= float(picture.get("width"))
        for b in rects[:i]:
            apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert apart or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
    assert picture.find(f"{space}title").text


@given(expressions())
def test_no_line_passes_under_a_box(expression):
    """Lines have a slot in each row that they cross, and nothing overlaps in a row."""
    f, arrays = expression
    with observing(Recorder()) as recorder:
        f(*[Tensor(x, requires_grad=True) for x in arrays]).backward()
    graph = drawing.boxes(recorder)
    layout = Layout(graph)
    for row in layout.rows:
        keys = sorted(row, key=layout.x.__getitem__)
        for a, b in pairwise(keys):
            assert layout.x[a] + layout.width[a] / 2 <= layout.x[b] - layout.width[b] / 2
    rows = {key: i for i, row in enumerate(layout.rows) for key in row}
    assert len(layout.lines) == sum(len(box.inputs) for box in graph)
    assert all(rows[b] - rows[a] == 1 for keys, _ in layout.lines for a, b in pairwise(keys))


def test_dot_names_every_box_and_arrow():
    text = drawing.draw_expression("a * a", [], "dot")
    assert text.startswith("digraph {") and text.count("->") == 2 and 'label="a = 2' in text


def test_a_large_graph_is_drawn_by_module():
    with npx.keyed(1, 0):
        config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=6, dropout=0.0)
        model = Transformer(config)
    with observing(Recorder()) as recorder:
        model.loss(np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5, 4, 2]]), label_smoothing=0.0).backward()
    assert len(recorder.operations) > 60
    graph = drawing.boxes(recorder)
    assert len(graph) < len(recorder.operations) and any(box.lines[0] == "decoder.5.cross_attention" for box in graph)
    assert all(other in {box.key for box in graph} for box in graph for other, _ in box.inputs)
    xml.fromstring(drawing.svg(graph))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["__import__('os')"], r"expected numbers, names.*__import__"),
        (["x.data"], r"expected numbers, names.*got 'x.data'"),
        (["a +"], "expected an expression such as"),
        (["3"], "expected an operation on at least one name"),
        (["x", "x=3"], "expected an operation on at least one name"),
        (["x * 2", "x"], "expected a value such as x=3"),
        (["x @ y", "x=[1,2]", "y=[1,2,3]"], "vector of 2 @ vector of 3 does not work for these shapes"),
        (["[i for i in x]"], "expected numbers, names"),
        (["softmax(x, 3)"], "'int' object has no attribute"),
        (["cross_entropy(x, 3)", "x=[1,2]"], "expected ids from 0 to 1; got 3"),
        (["broadcast_to(x, [10 ** 7, 10 ** 7])"], ""),
    ],
)
def test_invalid_expressions_report_one_line(capsys, arguments, message):
    assert drawing.main(arguments) == 2
    error = capsys.readouterr().err
    assert re.match(f"autograd.draw: .*{message}", error) and error.count("\n") == 1


def test_large_arrays_are_shown_by_their_shape():
    assert drawing.format_array(np.zeros((3, 4))) == "3 x 4" and drawing.format_array(Tensor([1.0]).data) == "[1]"
