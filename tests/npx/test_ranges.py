"""Ranges of valid values, which configuration keys, options and environment variables share."""

import inspect
import math
import os
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npx.ranges import Range, is_inside
from npx.settings import SETTINGS, check_settings, read_setting
from tests import ROOT
from train.cli import main
from train.cli.app import COMMANDS, app
from train.cli.main import load_commands

INTEGER = Range(int, "[-5, 7]")
FRACTION = Range(float, "(0, 1]")
HUGE = st.integers(10**12, 10**30)


@given(st.integers(-100, 100) | HUGE)
def test_an_integer_is_read_if_it_fits(value):
    assert INTEGER.fits(value) == (-5 <= value <= 7)
    if INTEGER.fits(value):
        assert INTEGER.parse(str(value)) == value
    else:
        with pytest.raises(ValueError, match="expected a whole number from -5 to 7; got"):
            INTEGER.parse(str(value))


@given(st.floats(allow_nan=True, allow_infinity=True) | st.floats(-1, 2))
def test_a_number_is_read_if_it_fits(value):
    assert FRACTION.fits(value) == (0 < value <= 1)
    if FRACTION.fits(value):
        assert FRACTION.parse(repr(value)) == value
    assert not FRACTION.fits(math.nan) and not Range(float).fits(math.inf)


@given(st.text() | st.from_regex(r"[0-9_.+e-]{1,60}"))
def test_any_text_is_read_or_rejected_with_a_message(text):
    for allowed in (INTEGER, FRACTION, Range(str, choices=("a", "b"))):
        try:
            assert allowed.fits(allowed.parse(text))
        except ValueError as error:
            assert str(error).startswith("expected ")


@given(st.integers(0, 10**12))
def test_the_commas_and_suffix_of_a_number_in_the_range_are_understood(value):
    """Three digits after each comma are thousands, unless the number begins with 0."""
    integers, floats = Range(int, "[0, 1e9]"), Range(float, "[0, 1e9]")
    assert integers.normalize_number(f"{value:,}") == f"{value}" * (value <= 10**9)
    assert floats.normalize_number(f"{value:,}.5") == f"{value}.5" * (value < 10**9)
    for text, number in (("1,5", "1.5"), ("0,500", "0.500"), ("1,0000", "1.0000"), ("1,000", "1000")):
        assert floats.normalize_number(text) == number
        assert integers.normalize_number(text) == number * (number == "1000")
    assert floats.normalize_number(f"{value}") == integers.normalize_number(f"{value}") == f"{value}" * (value <= 10**9)
    assert floats.normalize_number("1e-4") == "1e-4" and integers.normalize_number("1e-4") == ""
    for text in ("1,000.5.5", "1,2,3", ",5", "5,", "05", "-", value):
        assert floats.normalize_number(text) == integers.normalize_number(text) == ""
    for text, number in (("20k", "20000"), ("3K", "3000"), ("1m", "1000000"), ("500M", "500000000")):
        assert floats.normalize_number(text) == integers.normalize_number(text) == number
    for text in ("k", "0k", "2g", "2000M", "1kk"):
        assert floats.normalize_number(text) == integers.normalize_number(text) == ""
    assert Range(str).normalize_number("1,000") == ""


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("value", ["x", "-1", "1" + "0" * 30, "1.5", "\u0663"])
def test_an_invalid_environment_variable_is_an_error(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name}: expected .*; got .*; try {name}="):
        check_settings()
    monkeypatch.setenv(name, "")  # counts as unset
    assert read_setting(name) == SETTINGS[name].range.parse(SETTINGS[name].default)


@pytest.mark.parametrize("name", ["NPX_THREADS", "NPX_KERNELS"])
def test_a_command_reports_it_in_one_line(name):
    version = [sys.executable, "-m", "train", "--version"]
    process = subprocess.run(version, cwd=ROOT, env=os.environ | {name: "x"}, capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr.count("\n")) == (2, "", 1)
    assert process.stderr.startswith(f"npx-transformer: {name}: expected ")


def numeric_options():
    """Yield (command, option) for every option that takes a number."""
    load_commands(*COMMANDS)
    for command in app.registered_commands:
        for name, parameter in inspect.signature(command.callback).parameters.items():
            kind = get_args(parameter.annotation)[0]
            if {int, float} & {kind, *get_args(kind)}:
                yield command.callback.__name__.replace("_", "-"), "--" + name.replace("_", "-")


@pytest.mark.parametrize("command, option", [*numeric_options()])
@pytest.mark.parametrize("value", ["-77", "1" + "0" * 24, "nan", "x", "1e999", ""])
def test_every_numeric_option_rejects_invalid_values(command, option, value, capfd):
    assert main([command, f"{option}={value}"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and option in err and "Missing" not in err


def test_brackets_include_or_exclude_the_ends():
    assert (
        is_inside("[1, 2]", 1) and is_inside("[1, 2]", 2) and not is_inside("(1, 2)", 1) and not is_inside("(1, 2)", 2)
    )
