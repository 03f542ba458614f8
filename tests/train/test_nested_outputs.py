"""Outputs inside a run are rejected, because training replaces and removes folders there."""

import shutil

import pytest

from tests.helpers.trainings import one_line, run
from train import UserError
from train.cli import main
from train.json_files import check_outside_run


@pytest.mark.parametrize(
    "name", ["checkpoints/best-7", "checkpoints/step-5/x", "checkpoints/averaged", "data/x", "new"]
)
@pytest.mark.parametrize("kind", ["run", "link", "unfinished", "without configuration"])
def test_a_run_is_not_created_inside_another_run(text, copied, tmp_path, kind, name):
    if kind == "unfinished":
        shutil.rmtree(copied / "checkpoints")
        (copied / "checkpoints").mkdir()
    if kind == "without configuration":
        (copied / "config.toml").unlink()
    folder = copied
    if kind == "link":
        folder = tmp_path / "link"
        folder.symlink_to(copied)
    out = folder / name
    before = sorted(copied.rglob("*"))
    with pytest.raises(UserError) as error:
        run(text, out, max_steps=1)
    assert f"{out}: expected a folder outside the run; got a folder in {folder}; try another --out" == one_line(error)
    assert sorted(copied.rglob("*")) == before


def test_no_command_writes_into_a_run(text, copied, capfd):
    out = copied / "checkpoints" / "best-7"
    texts = [f"--{name}={text / file}" for name, file in (("train-src", "train.en"), ("train-tgt", "train.de"))]
    hypotheses = [f"--hyp={text / 'valid.de'}", f"--ref={text / 'valid.de'}"]
    before = sorted(copied.rglob("*"))
    for command in (
        ["data", "own", *texts, f"--out={out}"],
        ["demo", f"--out={out}"],
        ["export", str(copied), "--to=safetensors", f"--out={out}"],
        ["score", *hypotheses, f"--output={out}"],
    ):
        assert main(command) == 2
        kind = "file" if command[0] == "score" else "folder"
        message = f"{out}: expected a {kind} outside the run; got a {kind} in {copied}; try another "
        assert message in capfd.readouterr().err
        assert sorted(copied.rglob("*")) == before


def test_a_project_with_a_folder_named_checkpoints_is_not_a_run(text, uninterrupted, tmp_path):
    """A user may keep configurations and runs in folders that are named as in a run."""
    (tmp_path / "config.toml").write_text("")
    for name in ("best", "step-2"):
        shutil.copytree(uninterrupted, out := tmp_path / "checkpoints" / name)
        check_outside_run(out)
        check_outside_run(tmp_path / "checkpoints" / "other", models=[out])
