"""Fixtures that several files share. Tests modify only copies of these folders."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.trainings import run, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A folder with 40 training pairs and 5 validation pairs."""
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def uninterrupted(text, tmp_path_factory):
    """The run folder of an uninterrupted training run of 12 steps."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    run(text, out)
    return out


@pytest.fixture
def copied(uninterrupted, tmp_path):
    """A copy of the uninterrupted run."""
    return Path(shutil.copytree(uninterrupted, tmp_path / "run"))
