"""Some cases of each part of tests/torture, and inputs that hypothesis generates for the fuzzed readers."""

import errno
import os
import random
import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torture import commands, crashes, damage, disk, faults, fuzz, runs, syscalls
from tests.torture.__main__ import HEAD, update_report
from train import UserError, files
from train.run import folder_swap, report, storage

# Without memory from the kernel, Python itself may crash or go wrong; only `make torture` tries that.
SURVIVED = [kind for kind in syscalls.KINDS if kind != "allocate"]
PARTS = {
    "kills": lambda w: runs.kills(w, 4),
    "writes": lambda w: runs.writes(w, 0.03),
    "terms": lambda w: runs.stops(w, 2, signal.SIGTERM, twice=False),
    "interrupts": lambda w: runs.stops(w, 2, signal.SIGINT, twice=True),
    "pairs": lambda w: runs.pairs(w, 4),
    "full": lambda w: runs.full(w, 2),
    "crashes": lambda w: crashes.crashes(w, 0.03, [crashes.training]),
    "crashes of outputs": lambda w: crashes.crashes(w, 0.03, [crashes.own_corpus, crashes.translations]),
    "faults": lambda w: faults.faults(w, 0.015, kinds=SURVIVED),
    "commands": lambda w: commands.commands(w, 1, without=["`reproduce table3`", "`reproduce figures`"]),
    "damage": lambda w: damage.damaged(w, 4),
    "fuzz": lambda w: fuzz.fuzzed(w, 70),
}


WITH_SYSTEM_CALLS = ("crashes", "crashes of outputs", "faults", "commands")
SLOW = (*WITH_SYSTEM_CALLS, "writes", "kills", "pairs", "damage")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Run in one thread: threads do not survive a fork, and tokenizers warns about its own threads."""
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


@pytest.mark.parametrize("part", [pytest.param(p, marks=[pytest.mark.slow] * (p in SLOW)) for p in PARTS])
def test_some_cases_of_each_part_are_right(part, workspace, failures):
    if part in WITH_SYSTEM_CALLS:
        needs_system_calls()
    failures.clear()
    words, right, count = PARTS[part](workspace)
    assert right == count > 0, (words, failures)


def needs_system_calls():
    """Skip the test if the system calls of other processes cannot be observed."""
    if reason := syscalls.unsupported():
        pytest.skip(reason)


def test_a_system_call_is_seen_with_its_arguments_and_may_fail(tmp_path):
    """Calls made by C libraries are seen too, such as those of Python's `open`."""
    needs_system_calls()
    file, calls = tmp_path / "a", []

    def write():
        with open(file, "wb") as opened:
            opened.write(b"content")
        os.rename(file, tmp_path / "b")

    def answer(call):
        calls.append((call.kind, [os.path.basename(path) for path in call.paths]))
        if call.kind == "write":
            calls.append((call.data, call.offset))
        return errno.EDQUOT if call.kind == "rename" else 0

    kinds = ("open", "write", "rename")
    assert syscalls.supervise(write, tmp_path, answer, kinds) == 99  # OSError
    assert calls == [("open", ["a"]), ("write", ["a"]), (b"content", 0), ("rename", ["a", "b"])]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def crash_states(folder, call):
    """Return the states that a crash during a call may leave a folder in, as a set of {name: content} items."""
    status, log = disk.record(call, folder)
    assert status == 0
    return {tuple(files.items()) for _, files in disk.crash_states(log, random.Random(0))}


@pytest.mark.parametrize("syncs_file", [True, False])
@pytest.mark.parametrize("syncs_folder", [True, False])
def test_crash_states_of_a_replaced_file(tmp_path, syncs_file, syncs_folder):
    needs_system_calls()
    new, old, content = tmp_path / "new", tmp_path / "file", b"x" * 700
    old.write_bytes(b"old")

    def replace():
        with open(new, "wb", buffering=0) as file:
            file.write(content)
            if syncs_file:
                os.fsync(file.fileno())
        os.replace(new, old)
        if syncs_folder:
            files.fsync(tmp_path)
        os.mkdir(tmp_path / "later")

    states = [dict(state) for state in crash_states(tmp_path, replace)]
    contents = {state["file"] for state in states}
    torn = {b"", content[:512], b"\0" * 512 + content[512:]}
    assert contents == {b"old", content} | (set() if syncs_file else torn)
    assert any(state["file"] == b"old" and "later" in state for state in states) is not syncs_folder
    assert {state.get("new") for state in states} == {None, b"", content} | torn


@pytest.mark.parametrize("target", [pytest.param("file", marks=pytest.mark.slow), "folder"])
def test_a_missing_fsync_is_detected(workspace, failures, monkeypatch, target):
    needs_system_calls()

    def fsync(path):
        if os.path.isdir(path) == (target == "file"):
            original(path)

    original = files.fsync
    for module in (files, storage, folder_swap, report):
        monkeypatch.setattr(module, "fsync", fsync)
    result = crashes.averages(workspace, 0.05)
    assert result.right < result.tried


@pytest.mark.slow
def test_a_traceback_after_a_failing_call_is_detected(tmp_path, failures, monkeypatch):
    needs_system_calls()
    monkeypatch.setattr(files, "error_number", lambda error: 0)
    monkeypatch.setattr(sys.modules["train.cli.main"], "CANNOT_WRITE", {})
    program, result = faults.Program(tmp_path / "faults", kinds=SURVIVED), faults.Faults(failures.append, 0)
    monkeypatch.setattr(result.rng, "random", lambda: 0.0)  # all later writes fail too
    failures.clear()
    result.call(program, next(n for n, (kind, *_) in enumerate(program.calls, 1) if kind == "fsync"), errno.EIO)
    assert result.wrong == len(failures) == 1 and "internal error" in failures[0]


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
    st.sampled_from(
        ["[model]", "[train]", "[search]", "[[data]]", "d_model", "seed", "length_penalty", "=", "-1", "1e400"]
    )
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
