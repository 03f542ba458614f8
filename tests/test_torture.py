"""Some cases of each part of tests/torture, and inputs that hypothesis generates for the fuzzed readers."""

import os
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torture import damage, fuzz, runs
from tests.torture.__main__ import HEAD, update_report
from train import UserError

PARTS = {
    "kills": lambda w: runs.kills(w, 4),
    "writes": lambda w: runs.writes(w, 0.03),
    "terms": lambda w: runs.stops(w, 2, signal.SIGTERM, twice=False),
    "interrupts": lambda w: runs.stops(w, 2, signal.SIGINT, twice=True),
    "pairs": lambda w: runs.pairs(w, 4),
    "full": lambda w: runs.full(w, 2),
    "damage": lambda w: damage.damaged(w, 4),
    "fuzz": lambda w: fuzz.fuzzed(w, 60),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads do not survive a fork, and tokenizers warns about its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("NPX_THREADS", "1")):
            patch.setitem(os.environ, name, value)
        yield


@pytest.fixture(scope="module")
def failures():
    return []


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, failures):
    return runs.Workspace(tmp_path_factory.mktemp("torture"), failures.append)


@pytest.mark.parametrize("part", PARTS)
def test_some_cases_of_each_part_are_right(part, workspace, failures):
    failures.clear()
    words, right, count = PARTS[part](workspace)
    assert right == count > 0, (words, failures)


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
def test_the_fuzzer_detects_a_planted_fault(workspace, failures, monkeypatch, fault, words):
    calls = []

    def reader(model, data):
        calls.append(data)
        (fault if len(calls) == 5 else fuzz.read_config)(model, data)

    monkeypatch.setattr(fuzz, "SECONDS", 1)
    monkeypatch.setattr(fuzz, "READERS", {"config": reader})
    failures.clear()
    _, right, count = fuzz.fuzzed(workspace, 10)
    assert (right, count, len(failures)) == (0, 10, 1) and words in failures[0], failures


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
def test_a_reader_survives_inputs_from_hypothesis(model, reader, data):
    fuzz.feed(model, reader, data)


def test_a_row_of_the_report_is_replaced_in_its_place(tmp_path):
    report = tmp_path / "report.md"
    for part, words in (("memory", "an hour"), ("kills", "few"), ("kills", "many")):
        update_report(part, words, 9, 10, 1.0, report)
        if part == "memory":
            report.write_text(report.read_text() + "\nBelow it.\n\n| kills | of ranks |\n")
    kills, memory, below = report.read_text().removeprefix(HEAD).split("\n", 2)
    assert "| many | 9 | 10 |" in kills and "| an hour |" in memory
    assert below == "\nBelow it.\n\n| kills | of ranks |\n"
