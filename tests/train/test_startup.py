"""A command loads only its own file, converts most options itself, and imports no slow libraries."""

import subprocess
import sys

import pytest
import typer

from tests import ROOT
from tests.helpers.command_line import run, texts  # noqa: F401, fixtures
from train import load_model
from train.cli.app import COMMANDS, app, bypass_typer_converters
from train.cli.main import load_commands

SLOW = ("pydantic", "numpy.ma", "numpy.random", "rich", "train.formats", "train.cli.train")
SCRIPT = f"""
import sys
from train.cli import main
status = main(["translate", *sys.argv[1:]])
print(status, [name for name in {SLOW} if name in sys.modules])
"""


def test_translate_imports_no_slow_library(run, tmp_path):
    (tmp_path / "text").write_text("the red cat\nthe blue dog\n", encoding="utf-8")
    options = [f"--model={run}", f"--input={tmp_path / 'text'}", f"--output={tmp_path / 'out'}", "--quiet"]
    command = [sys.executable, "-c", SCRIPT, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 []\n", "")


def test_a_model_is_loaded_without_random_weights(run, monkeypatch):
    expected = {name: p.data for name, p in load_model(run)[0].named_parameters()}
    for name in ("uniform", "normal"):
        monkeypatch.setattr(f"npx.random.{name}", None)
    model, _, _ = load_model(run)
    assert all((p.data == expected[name]).all() for name, p in model.named_parameters())


def test_each_name_loads_its_command_and_help_lists_them_in_order():
    for name in COMMANDS:
        load_commands(name)
        assert name in typer.main.get_command(app).commands
    group = typer.main.get_command(app)
    assert group.list_commands(typer.Context(group)) == [*COMMANDS] and {*group.commands} == {*COMMANDS}


def outcome(option, ctx, value):
    """Return the value of an option and its type, or the type of the error."""
    try:
        result = option.process_value(ctx, value)
    except Exception as error:
        return type(error)
    return result, type(result), [type(x) for x in result] if isinstance(result, list | tuple) else None


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "reproduce"])
def test_options_have_the_values_that_typer_gives_them(name):
    load_commands(name)
    plain, typers = (typer.main.get_command(app).commands[name] for _ in range(2))
    ctx = typer.Context(plain)
    bypass_typer_converters(plain, ctx)
    for option, expected in zip(plain.get_params(ctx), typers.get_params(ctx), strict=True):
        values = ["a b", "7", "cpu", "", None, option.default]
        if option.multiple or option.nargs != 1:
            values = [["a b", "ü/-"], ("a", "b"), (), None]
        if getattr(option, "is_flag", False):
            values = [True, False, None]
        for value in values:
            assert outcome(option, ctx, value) == outcome(expected, ctx, value), (option.name, value)
