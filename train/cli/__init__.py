"""The command line: `main`, for the entry point and `python -m train`. One file a command."""

from train.cli.main import main

__all__ = ["main"]
