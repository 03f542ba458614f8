"""Test how Jupyter displays Tensors and recorded graphs: well-formed HTML and SVG with the values in it."""

from xml.etree import ElementTree

import numpy as np
import pytest

from autograd import Tensor, observing
from autograd.draw import GraphRecorder


def texts(markup, tag):
    """Return the text of each element with a tag, with or without a namespace."""
    return [e.text for e in ElementTree.fromstring(markup).iter() if e.tag.rpartition("}")[2] == tag]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0), (0, 2)])
def test_html_has_every_value_and_gradient(shape):
    x = Tensor(np.arange(np.prod(shape, dtype=int)).reshape(shape) / 4, requires_grad=True)
    values = [f"{v:.4g}" for v in x.data.reshape(-1).tolist()]
    assert texts(x._repr_html_(), "td") == values
    x.backward(np.ones(shape))
    assert texts(x._repr_html_(), "td") == values + ["1"] * x.size
    assert texts(x._repr_html_(), "caption") == [f"Tensor {shape} float64", "gradient"]


@pytest.mark.parametrize("shape", [(201,), (2, 2, 2)])
def test_large_tensors_are_text(shape):
    (text,) = ElementTree.fromstring(Tensor(np.zeros(shape))._repr_html_()).itertext()
    assert text == f"Tensor {shape} float64\n{np.zeros(shape)}"


def test_integers_have_all_digits():
    assert "<td>123456</td>" in Tensor(np.array([123456]))._repr_html_()


def test_svg_shows_a_recorded_graph():
    a = Tensor(np.array(3.0), requires_grad=True)
    with observing(GraphRecorder()) as graph:
        (a * a).backward()
    assert {"multiply = 9", "gradient 6"} <= set(texts(graph._repr_svg_(), "text"))
