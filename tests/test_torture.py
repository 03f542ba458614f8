"""Some of each part of the torture (tests/torture/), and inputs that hypothesis draws for its readers."""

import os
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torture import damage, fuzz, runs
from tests.torture.__main__ import HEAD, noted
from train import UserError

PARTS = {
    "kills": lambda ground: runs.kills(ground, 4),
    "writes": lambda ground: runs.writes(ground, 0.03),
    "terms": lambda ground: runs.stops(ground, 2, signal.SIGTERM, twice=False),
    "interrupts": lambda ground: runs.stops(ground, 2, signal.SIGINT, twice=True),
    "pairs": lambda ground: runs.pairs(ground, 4),
    "full": lambda ground: runs.full(ground, 2),
    "damage": lambda ground: damage.damaged(ground, 4),
    "fuzz": lambda ground: fuzz.fuzzed(ground, 60),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads do not come along into a fork; those of tokenizers warn of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("NPX_THREADS", "1")):
            patch.setitem(os.environ, name, value)
        yield


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def ground(tmp_path_factory, told):
    return runs.Ground(tmp_path_factory.mktemp("torture"), told.append)


@pytest.mark.parametrize("part", PARTS)
def test_some_of_every_part_is_right(part, ground, told):
    told.clear()
    words, right, count = PARTS[part](ground)
    assert right == count > 0, (words, told)


def raises(model, data):
    raise ValueError("planted")


def hangs(model, data):
    while True:
        pass


def grows(model, data):
    return bytearray(2 * fuzz.GIB)


def talks(model, data):
    raise UserError("two\nlines")


@pytest.mark.parametrize(
    ("fault", "words"), [(raises, "planted"), (hangs, f"exit -{signal.SIGALRM}"), (grows, "Memory"), (talks, "two")]
)
def test_the_fuzzer_finds_what_is_planted(ground, told, monkeypatch, fault, words):
    calls = []

    def reader(model, data):
        calls.append(data)
        (fault if len(calls) == 5 else fuzz.read_config)(model, data)

    monkeypatch.setattr(fuzz, "SECONDS", 1)
    monkeypatch.setattr(fuzz, "READERS", {"config": reader})
    told.clear()
    _, right, count = fuzz.fuzzed(ground, 10)
    assert (right, count, len(told)) == (0, 10, 1) and words in told[0], told


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fuzz.Model(tmp_path_factory.mktemp("fuzz"))


TOML = st.lists(
    st.sampled_from(["[model]", "[train]", "[search]", "[[data]]", "d_model", "seed", "alpha", "=", "-1", "1e400"])
    | st.sampled_from(["nan", '"x"', "[", "]", "{", "}", ",", ".", "0x", "1979-05-27", "true", "''''", "#", "\n"]),
    max_size=30,
).map(lambda parts: " ".join(parts).encode())


@pytest.mark.parametrize("reader", fuzz.READERS)
@settings(max_examples=10, deadline=None)
@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | TOML)
def test_a_reader_survives_whatever_hypothesis_draws(model, reader, data):
    fuzz.feed(model, reader, data)


def test_a_row_of_the_report_takes_its_place_and_leaves_the_rest(tmp_path):
    report = tmp_path / "report.md"
    for part, words in (("memory", "an hour"), ("kills", "few"), ("kills", "many")):
        noted(part, words, 9, 10, 1.0, report)
        if part == "memory":
            report.write_text(report.read_text() + "\nBelow it.\n\n| kills | of ranks |\n")
    kills, memory, below = report.read_text().removeprefix(HEAD).split("\n", 2)
    assert "| many | 9 | 10 |" in kills and "| an hour |" in memory
    assert below == "\nBelow it.\n\n| kills | of ranks |\n"
