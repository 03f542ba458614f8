"""Paths of a run: texts, token arrays and tokenizer are found from every working directory."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.trainings import tables
from train import RunConfig, UserError, train
from train.cli import main
from train.run.toml_text import to_toml


def start(folder, out, **data):
    """Train for two steps in a new run folder, on the texts in `folder`, with `data` overriding keys of [data]."""
    changed = tables(folder, max_steps=2, validate_score=False)
    changed["data"] |= data
    train(RunConfig.from_dict(changed), out, progress=False)


def test_a_run_with_relative_paths_resumes_in_another_folder(text, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(text)
    start(Path(), tmp_path / "first", prepared=str(tmp_path / "arrays"))
    tokenizer = shutil.copy(tmp_path / "first" / "tokenizer.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(text, "texts")
    start(Path("texts"), tmp_path / "run", prepared="arrays", tokenizer=Path(tokenizer).name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["train", "--resume", "--out", "../run", "--set=train.max_steps=3"]) == 0
    err = capfd.readouterr().err
    assert f"using the token arrays in {tmp_path}/arrays/train" in err and "done after step 3" in err
    assert not any(Path().iterdir())


def test_paths_stay_relative_in_a_folder_that_toml_cannot_name(tmp_path, monkeypatch):
    folder = tmp_path / "line\nbreak"
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = RunConfig.from_dict({"data": {"train_src": "a", "train_tgt": "b"}})
    assert config.with_absolute_paths() == config


@pytest.mark.parametrize("steps", [2, 0])  # without a checkpoint, config.toml decides
def test_a_tokenizer_is_identified_by_its_content(text, tmp_path, monkeypatch, steps):
    start(text, tmp_path / "first")
    tokenizer, copy = tmp_path / "first" / "tokenizer.json", tmp_path / "copy.json"
    shutil.copy(tokenizer, copy)
    start(text, tmp_path / "run", tokenizer=str(tokenizer))
    start(text, tmp_path / "other", vocab_size=280)
    if not steps:
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    resume = ["train", "--resume", "--quiet", "--out", str(tmp_path / "run"), "--set=train.max_steps=3"]
    monkeypatch.chdir(tmp_path)
    for path in ("./first/../first/tokenizer.json", copy, "run/tokenizer.json"):
        assert main([*resume, f"--set=data.tokenizer={path}"]) == 0
    assert f"\ntokenizer = {to_toml(str(tokenizer))}\n" in (tmp_path / "run" / "config.toml").read_text()
    resume[resume.index("--out") + 1] = "first"
    assert main([*resume, f"--set=data.tokenizer={copy}"]) == 0
    assert '\ntokenizer = "bpe"\n' in (tmp_path / "first" / "config.toml").read_text()
    changed = tables(text, max_steps=3)
    changed["data"] |= {"tokenizer": "other/tokenizer.json"}
    with pytest.raises(
        UserError, match=r'resume: data.tokenizer: expected ".*/tokenizer.json" as in .*; got "other/tokenizer.json"'
    ):
        train(RunConfig.from_dict(changed), tmp_path / "run", resume=True, progress=False)


@pytest.mark.parametrize("options", [["--out", ""], ["--out="]])
def test_an_empty_output_folder_is_an_error(options, tmp_path, monkeypatch, capfd):
    """An unset variable of the shell does not mean the current folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny", *options]) == 2
    assert "--out: expected a path; got an empty one" in capfd.readouterr().err and not any(tmp_path.iterdir())
