"""The display of long-running work: on a terminal of any width, in a log file, and the counts that it reports."""

import io
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.trainings import config
from train import Trainer, progress, train
from train.cli import main
from train.errors import UserError
from train.progress import Display, Work, format_duration, wrap
from train.text.lines import count_lines, read_all_lines


class Clock:
    """Replaces time.perf_counter while `patch` is in effect."""

    def __init__(self, patch):
        self.now = 100.0
        patch.setattr(progress.time, "perf_counter", lambda: self.now)


class Terminal(io.StringIO):
    """A terminal that records what is written to it."""

    def isatty(self):
        return True

    def lines(self):
        return [line for line in re.split(r"[\r\n]+|\x1b\[[0-9;?]*[A-Za-z]", self.getvalue()) if line.strip()]


def wait_until(condition, output, seconds=60):
    """Wait until `condition()` is true; fail with `output()` after this many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no expected output in {seconds} s; the output so far: {output()!r}"
        time.sleep(0.01)


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal_shows_all_work_within_its_width_and_nothing_after_it(columns, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Display() as display, display.work("step", total=100_000, done=10) as steps:
        steps.done, steps.details = 99_999, "loss 1.234  12,345 tokens/s"
        with display.work("validation", "tokens", 4_000) as work:
            work.advance(1000)
            display.write("a line that stays")
            display.write("step 100/3,000  epoch 2  loss 6.2045  lr 0.00134  31,977 tokens/s  0:02:59 left", 2)
            wait_until(lambda: "validation 1,000" in terminal.getvalue(), terminal.getvalue)
    lines = terminal.lines()
    assert any("validation 1,000/4,000 tokens" in line and line.rstrip().endswith("left") for line in lines)
    assert any("step 99,999/100,000  loss 1.234  12,345 tokens/s" in line for line in lines)
    assert "a line that stays" in lines and all(len(line) <= columns for line in lines)
    assert any(line.startswith("step 100/3,000") and ("left" in line) == (columns > 60) for line in lines)
    assert any("━" in line for line in lines) == (columns > 60)  # bars only where there is space
    assert terminal.getvalue().endswith("\x1b[2K")  # the last thing written erases the display


@given(
    st.lists(st.text("ab /", min_size=1, max_size=90).map(lambda s: s.strip() or "x"), min_size=1), st.integers(9, 90)
)
def test_a_wrapped_line_has_all_words_within_the_width(fields, width):
    text = "  ".join(" ".join(field.split()) for field in fields)
    lines = wrap(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_a_line_is_wrapped_between_its_fields():
    line = "validation after step 200: loss 5.3044  perplexity 201.23  BLEU 0.17  chrF 4.53  (0.5 s)"
    assert wrap(line, 60).split("\n") == [line[:57], "  BLEU 0.17  chrF 4.53  (0.5 s)"]
    assert wrap(line, 60, 3) == line[:57] and wrap(line, len(line), 3) == line


def test_a_log_file_gets_lines_now_and_then_about_the_innermost_work(monkeypatch, capsys):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.01)
    with Display() as display, display.work("step", total=5), display.work("validation", "tokens", 40) as work:
        work.advance(10)
        output = []

        def read():
            output.append(capsys.readouterr().err)
            return "".join(output)

        wait_until(lambda: read().count("validation 10/40 tokens") >= 3, read)
        display.enabled = False
    output_before, _, output_during = read().partition(
        "validation"
    )  # before it: lines on the step, if the test is slow
    assert "step" not in output_during
    assert "\x1b" not in output_before + output_during


def test_a_log_file_gets_no_second_line_about_a_logged_step(text, tmp_path, monkeypatch, capsys):
    def wait(self):
        after_update(self)
        time.sleep(0.2)

    after_update = Trainer._after_update
    monkeypatch.setattr(progress, "FIRST_LINE", 0.02)
    monkeypatch.setattr(Trainer, "_after_update", wait)
    train(config(text, max_steps=4, log_every=2, validate_every=9, checkpoint_every=9), tmp_path / "run")
    lines = capsys.readouterr().err.split("\n")
    assert any(re.match(r"step 1/4  loss", line) for line in lines)
    logged = next(i for i, line in enumerate(lines) if line.startswith("step 2/4  epoch"))
    assert not any(line.startswith("step 2/4") for line in lines[logged + 1 :])


def test_a_disabled_display_writes_nothing(capsys):
    with Display(enabled=False) as display, display.work("step"):
        display.write("text")
    assert capsys.readouterr() == ("", "")


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.one_of(st.none(), st.integers(1, 10**9)))
def test_any_counts_have_a_description(first, count, total):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        work = Work("translated", "lines", total, first)
        clock.now += 2.0
        work.advance(count)
        work.end = clock.now
    text = work.describe()
    assert text.startswith("translated ") and "\n" not in text
    assert work.result().startswith(f"{first + count:,} line") and "in 2.0 s" in work.result()
    if total is None or count == 0 and first < total:
        assert work.time_left() == "" and text.endswith("0:00:02")
    else:
        left = max(0, total - first - count) / (max(1, count) / 2.0)
        assert work.time_left() == f"{format_duration(left)} left"


def test_the_time_left_is_counted_down_until_the_next_item_is_completed(monkeypatch):
    clock = Clock(monkeypatch)
    work = Work("step", total=100)
    clock.now += 40  # seconds for the first item
    work.advance()
    shown = []
    for _ in range(5):
        shown.append(work.time_left())
        clock.now += 10
    assert shown == [f"1:0{left} left" for left in ("6:00", "5:50", "5:40", "5:30", "5:20")]
    work.advance()  # 90 s for two items
    assert work.time_left() == "1:13:30 left"
    clock.now += 10_000
    assert work.time_left() == "0:00:00 left"


def test_pictures_and_measurements_say_what_they_do_meanwhile(uninterrupted, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    names = []
    work = Display.work

    def record(self, name, *arguments):
        names.append(name)
        return work(self, name, *arguments)

    monkeypatch.setattr(Display, "work", record)
    assert main(["draw", str(uninterrupted), "curves", "--out", str(tmp_path / "curves.svg")]) == 0
    assert main(["draw", str(uninterrupted), "roles", "--sentences", "1", "--out", str(tmp_path / "roles.svg")]) == 0
    sizes = ["--set", "model.d_model=8", "--set", "model.d_ff=8", "--set", "model.n_heads=1", "--vocab-size", "300"]
    assert main(["info", "tiny", *sizes, "--set", "train.batch_tokens=60", "--measure"]) == 0
    assert names == ["drawing curves", "drawing roles", "measuring the speed of a few updates"]
    assert "measuring the speed of a few updates\n" in capsys.readouterr().err


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=3), min_size=1))
def test_lines_are_counted_as_they_are_read(tmp_path_factory, lines):
    file = tmp_path_factory.mktemp("lines") / "text"
    for end in ("", "\n"):
        file.write_text("\n".join(lines) + end, encoding="utf-8", newline="")
        try:
            expected = len(read_all_lines(file))
        except UserError:  # an empty file
            expected = 0
        assert count_lines(file) == expected


def test_reading_from_a_terminal_prints_a_hint(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.stdin", Terminal())
    main(["translate", "--model", str(tmp_path)])
    assert "Ctrl-D" in capsys.readouterr().err
