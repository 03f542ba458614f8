"""`reproduce length`: its tasks, the table and its answer, and interrupted tables."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.cli import main
from train.experiments import length
from train.experiments.length import (
    COMMA,
    FIRST,
    LENGTHS,
    ROWS,
    SEQUENCE_TASKS,
    WORDS,
    describe_verdict,
    mastered_length,
    run_length_extrapolation,
)
from train.json_files import read_sealed, write_sealed

UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
NAMES = [*UNITS, "seventeen", "eighteen", "nineteen"]
NAMES += ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


@given(seed=st.integers(0, 10**6), n=st.integers(1, 60))
def test_sources_have_the_requested_length_and_targets_follow_from_them(seed, n):
    pairs = {name: task(np.random.default_rng(seed), n) for name, task in SEQUENCE_TASKS.items()}
    assert all(len(source) == n for source, _ in pairs.values())
    assert max(max(source + target) for source, target in pairs.values()) < length.MODEL["vocab_size"]
    assert pairs["copy"][0] == pairs["copy"][1] and pairs["reverse"][0] == pairs["reverse"][1][::-1]
    source, target = pairs["number-words"]
    digits = "".join("," if i == COMMA else str(i - FIRST) for i in source)
    words = " ".join("," if i == COMMA else NAMES[i - WORDS] for i in target)
    assert words == " , ".join(spelled(int(number)) for number in digits.split(","))
    assert len(target) + 2 <= length.MODEL["max_positions"]


def spelled(number):
    if number < 20:
        return NAMES[number]
    return NAMES[18 + number // 10] + (f" {NAMES[number % 10]}" if number % 10 else "")


def scores(*exact):
    return {str(n): {"exact": e, "tokens": 100.0} for n, e in zip(LENGTHS, exact, strict=False)}


def test_the_answer_follows_from_the_lengths_that_sinusoids_reach():
    good, short, none = (
        {"positions": "sinusoidal", "lengths": scores(*exact)}
        for exact in ((100,) * 5 + (96, 50), (100, 98, 92, 90, 89, 100), (20,))
    )
    assert [mastered_length(row) for row in (good, short, none)] == [30, 20, 0]
    for rows, verdict in (
        ({"copy": good, "reverse": good}, "is confirmed here"),
        ({"copy": good, "reverse": short}, "is partly confirmed here"),
        ({"copy": short, "reverse": none}, "is not confirmed here"),
    ):
        text = describe_verdict({name: {"task": name, **row} for name, row in rows.items()})
        assert verdict in text and all(name in text for name in rows)
    assert "no length for reverse" in text and "20 for copy" in text
    assert describe_verdict({"copy": {"task": "copy", **good, "positions": "t5"}}).startswith("No row")


def test_a_table_is_written_and_continued(tmp_path, monkeypatch, capfd):
    """A finished row is not trained again; the command prints the table."""
    monkeypatch.setattr(length, "LENGTHS", (2, 3))
    monkeypatch.setattr(length, "N_TESTED", 3)
    monkeypatch.setattr(length, "BATCH_SIZE", 4)
    monkeypatch.setattr(length, "draw", lambda table, path: False)
    out = tmp_path / "t"
    table = run_length_extrapolation(out, ["copy-alibi"], steps=2, progress=False)
    first = (out / "rows/copy-alibi.json").read_bytes()
    arguments = ["reproduce", "length", "--out", str(out), "--steps", "2", "--quiet"]
    assert main([*arguments, "--rows", "copy-alibi,reverse-t5"]) == 0
    page = capfd.readouterr().out
    assert page == (out / "length.md").read_text("utf-8") and "| reverse | t5 | " in page
    written = json.loads((out / "length.json").read_text("utf-8"))
    assert (out / "rows/copy-alibi.json").read_bytes() == first and [*written["rows"]] == ["copy-alibi", "reverse-t5"]
    assert written["rows"]["copy-alibi"] == table["rows"]["copy-alibi"]
    assert main([*arguments, "--seed", "2"]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    repeated = run_length_extrapolation(tmp_path / "again", ["copy-alibi"], steps=2, progress=False)["rows"][
        "copy-alibi"
    ]
    assert repeated["lengths"] == table["rows"]["copy-alibi"]["lengths"], "a row is a function of its settings"


def test_every_row_is_reported(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (tmp_path / "rows").mkdir()
    write_sealed(tmp_path / "settings.json", {})
    for row in ROWS:
        task, positions = row.rsplit("-", 1)
        result = {"task": task, "positions": positions, "parameters": 1, "seconds": 1.0}
        write_sealed(tmp_path / "rows" / f"{row}.json", result | {"lengths": scores(*[100] * len(LENGTHS))})
    monkeypatch.setattr(length, "run_row", None)
    (tmp_path / "length.png").symlink_to(tmp_path / "settings.json")
    assert len(run_length_extrapolation(tmp_path, progress=False)["rows"]) == len(ROWS)
    assert read_sealed(tmp_path / "settings.json") is not None and not (tmp_path / "length.png").is_symlink()
    page = (tmp_path / "length.md").read_text("utf-8")
    assert "is confirmed here" in page and "length.png" in page and (tmp_path / "length.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--rows", "copy-alibis"], "--rows: expected one of copy-sinusoidal, "),
        (["--rows", ","], "--rows: expected names of rows; got ','; try copy-alibi,reverse-t5"),
        (["--steps", "0"], "--steps: expected a whole number from 1 to 1000000000; got 0"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments, message, tmp_path, capfd):
    assert main(["reproduce", "length", "--out", str(tmp_path / "t"), *arguments]) == 2
    error = capfd.readouterr().err
    assert message in error and error.count("\n") == 1
