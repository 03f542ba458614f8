"""Tests. This file makes the folder a package, so that no installed package called `tests` is imported instead."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
