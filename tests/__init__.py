"""Tests. A package of this name that is installed elsewhere must not be taken for this one."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
