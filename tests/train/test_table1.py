"""`reproduce table1`: the counts and measurements of layers, and continuing an interrupted table."""

import json

import numpy as np
import pytest

from train.errors import UserError
from train.experiments import table1
from train.experiments.table1 import (
    KINDS,
    MeasuredSizes,
    gradient_by_distance,
    graph_depth,
    layers_to_reach,
    path_length,
    run_table1,
)
from train.experiments.table1_page import fitted_exponents

RECURRENT, ATTENTION, CONVOLUTION = KINDS["recurrent (LSTM)"], KINDS["self-attention"], KINDS["convolutional"]


def test_fitted_exponents_are_those_of_a_power_law():
    cells = [{"n": n, "d": d, "x": 3e-9 * n**2 * d**1.5} for n in (2, 8, 32, 64) for d in (4, 8, 16)]
    np.testing.assert_allclose(fitted_exponents(cells, "x"), (2, 1.5), rtol=1e-9)


def test_flops_grow_with_the_papers_exponents():
    for kind in KINDS.values():
        sizes = [(n, d) for n in (256, 512, 1024) for d in (1024, 2048, 4096)]
        cells = [{"n": n, "d": d, "flops": kind.multiplications(n, d)} for n, d in sizes]
        np.testing.assert_allclose(fitted_exponents(cells, "flops"), kind.exponents, atol=0.01)


def test_only_a_recurrence_needs_sequential_operations_for_each_position():
    depths = {name: [graph_depth(kind, n) for n in (2, 4, 6)] for name, kind in KINDS.items()}
    for name, (first, second, third) in depths.items():
        if name == "recurrent (LSTM)":
            assert third - second == second - first > 0
        else:
            assert first == second == third


def test_gradients_reach_as_far_as_the_layer():
    assert [layers_to_reach(CONVOLUTION, distance) for distance in (1, 2, 5)] == [1, 2, 5]
    assert layers_to_reach(RECURRENT, 9) == layers_to_reach(ATTENTION, 9) == 1
    assert [layers_to_reach(KINDS["restricted self-attention"], distance) for distance in (8, 9)] == [1, 2]
    paths = {name: path_length(kind, 9) for name, kind in KINDS.items()}
    assert list(paths.values()) == [1, 10, 9, 9, 2]
    near, far = gradient_by_distance(RECURRENT, (1, 8)).values()
    assert near > far > 0
    assert gradient_by_distance(CONVOLUTION, (1, 2))["2"] == 0


def test_an_interrupted_table_resumes_only_at_the_same_scale(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table1, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(table1, "KINDS", {"convolutional": CONVOLUTION, "self-attention": ATTENTION})
    monkeypatch.setitem(table1.SCALES, "small", MeasuredSizes((2, 4, 8), (4, 8), (1, 2), 2))
    table = run_table1(tmp_path / "out", "small")
    assert json.loads((tmp_path / "out" / "table1.json").read_text())["kinds"].keys() == table["kinds"].keys()
    page = (tmp_path / "out" / "table1.md").read_text()
    assert "| self-attention | O(n^2 d) | n^" in page and "never" in page
    assert "kind 2 of 2: self-attention" in capsys.readouterr().err
    (tmp_path / "out" / "kinds" / "convolutional.json").unlink()
    monkeypatch.setattr(table1, "measure_kind", lambda kind, scale, report: table["kinds"]["convolutional"])
    assert run_table1(tmp_path / "out", "small")["kinds"].keys() == table["kinds"].keys()
    assert "self-attention" not in capsys.readouterr().err
    with pytest.raises(UserError, match="expected scale = small, as in the finished rows; got full; try a new --out"):
        run_table1(tmp_path / "out", "full")
