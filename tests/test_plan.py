"""The laws of planning past the GPUs at hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.cli.main import main
from train.experiments.plan import LINKS, planned, sum_seconds

SIZES, SHARES, SECONDS = st.floats(1, 1e10), st.floats(0, 1), st.floats(1e-3, 10)
GPUS, LINK = st.integers(1, 4096), st.sampled_from([*LINKS.values()])


@given(SIZES, SHARES, SECONDS, st.integers(1, 8), GPUS, LINK)
def test_no_step_is_quicker_than_its_compute_nor_slower_than_compute_and_sum(size, last, micro, accumulate, gpus, link):
    p = planned(size, last, micro, accumulate, gpus, link)
    assert accumulate * micro <= p.step <= (accumulate * micro + p.sum) * (1 + 1e-12)
    assert 0 < p.efficiency <= 1
    if gpus == 1:
        assert p.efficiency == 1
    more = planned(size, last, micro, accumulate + 1, gpus, link)
    assert more.efficiency >= p.efficiency * (1 - 1e-12)  # fewer sums for the same tokens


@given(SIZES, st.integers(2, 4096), LINK)
def test_a_sum_costs_no_less_than_its_bytes_and_the_quicker_way_is_taken(size, gpus, link):
    seconds, way = sum_seconds(size, gpus, link)
    assert seconds >= 2 * (gpus - 1) / gpus * size / link.bandwidth * (1 - 1e-12)
    assert way in ("ring", "tree")
    assert sum_seconds(1e12, gpus, link._replace(latency=0))[1] == "ring"  # which sends less
    assert sum_seconds(1, 1024, link)[1] == "tree"  # which has fewer steps


def test_by_hand():
    link = LINKS["ib"]._replace(bandwidth=1e9, latency=0.0)
    assert sum_seconds(4e9, 4, link) == (6.0, "ring")
    p = planned(4e9, 0.25, 3.0, 2, 4, link)
    assert (p.compute, p.exposed) == (6.0, 4.0)  # 6 - 2/3 of 3
    assert planned(4e9, 0.25, 30.0, 2, 4, link).exposed == 1.5  # the last quarter of 6


def test_the_command(capsys):
    assert main(["plan", "base", "--gpus", "1,8", "--link", "ethernet", "--tokens-per-second", "100000"]) == 0
    out = capsys.readouterr().out
    assert "240 MiB, of which 30 %" in out and "0.4 s a step" in out and "100.0 %" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bas", "--tokens-per-second", "1"], "expected a run folder or a preset; got neither; try base"),
        (["base"], "expected --tokens-per-second"),
        (["base", "--gpus", "0,x", "--tokens-per-second", "1"], "--gpus: expected numbers from 1"),
        (["base", "--link", "wire", "--tokens-per-second", "1"], "--link: expected"),
    ],
)
def test_mistakes_are_told_in_a_line(capsys, arguments, told):
    assert main(["plan", *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
