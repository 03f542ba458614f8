"""Copies of metrics.jsonl: metrics.csv, and TensorBoard event files."""

import csv
import importlib.util
import json
import re
from pathlib import Path

import pytest

import train
from tests.helpers.trainings import one_line, run
from train import Trainer, UserError
from train.run import metric_files
from train.run.folder import RunFolder
from train.run.metric_files import COLUMNS

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="event files need the tensorboard extra"
)


def csv_rows(out):
    """Return the rows of metrics.csv, without empty cells, as their values in JSON."""
    with open(out / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(file)]
    return [{k: v if k in ("kind", "time") else json.loads(v) for k, v in row.items()} for row in rows]


def events(out):
    """Return (step, tag, value) of the scalars in the event files of a run."""
    from tensorboard.compat.proto.event_pb2 import Event

    scalars = []
    for file in (out / "tensorboard").iterdir():
        content = file.read_bytes()
        position = 0
        while position < len(content):
            size = int.from_bytes(content[position : position + 8], "little")
            event = Event.FromString(content[position + 12 : position + 12 + size])
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            position += size + 16  # length, its checksum, the event, its checksum
    return scalars


def entries(out):
    return RunFolder(out).metrics()


def test_the_csv_file_has_all_training_and_validation_entries_even_after_a_resume(text, tmp_path):
    out = tmp_path / "run"
    run(text, out, max_steps=7, csv=True)
    assert csv_rows(out) == entries(out) and len(entries(out)) == 4
    (out / "metrics.csv").unlink()
    run(text, out, resume=True, max_steps=8)  # writes no copy
    assert not (out / "metrics.csv").exists()
    run(text, out, resume=True, max_steps=8, csv=True)  # only writes the copy
    run(text, out, resume=True)  # keeps the copy up to date
    assert csv_rows(out) == entries(out) and [row["step"] for row in csv_rows(out)] == [4, 5, 7, 7, 8, 8, 10, 12, 12]


def test_every_column_is_documented():
    page = (Path(train.__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.split("\n| column | in lines of kind | meaning |\n")[1].split("\n\n")[0]
    assert re.findall("`([a-z0-9_]+)`", "".join(line.split(" | ")[0] for line in table.splitlines())) == [*COLUMNS]


@needs_tensorboard
def test_event_files_have_all_numbers_even_after_a_resume(text, tmp_path):
    out = tmp_path / "run"
    for steps in (7, 12):
        run(text, out, resume=steps > 7, max_steps=steps, tensorboard=True)
        with open(out / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"kind": "train", "step": 6, "time": null, "loss": "foreign"}\n')
        shown = {(step, tag): value for step, tag, value in events(out)}
        expected = {
            (entry["step"], f"{entry['kind']}/{name}"): value
            for entry in entries(out)
            for name, value in entry.items()
            if name not in ("kind", "time", "step") and value != "foreign"
        }
        assert len(events(out)) == len(expected) and shown == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("change", ["removed", "link", "replaced"])
@pytest.mark.parametrize("name", ["metrics.csv", pytest.param("tensorboard", marks=needs_tensorboard)])
def test_a_copy_that_is_replaced_during_the_training_is_written_again(text, tmp_path, monkeypatch, capfd, name, change):
    out, target = tmp_path / "run", tmp_path / "target"
    after = Trainer._after_update

    def replace(self):
        if self.state.step == 7:
            path = out / name if name == "metrics.csv" else next((out / name).iterdir())
            path.unlink()
            if change == "link":
                target.touch()
                path.symlink_to(target)
            elif change == "replaced":
                path.write_bytes(b"")
        after(self)

    monkeypatch.setattr(Trainer, "_after_update", replace)
    run(text, out, csv=True, tensorboard=name == "tensorboard")
    assert csv_rows(out) == entries(out)
    assert name == "metrics.csv" or {step for step, _, _ in events(out)} == {entry["step"] for entry in entries(out)}
    assert not target.exists() or not target.read_bytes()
    message = "was removed or replaced; it is written again from metrics.jsonl\n"
    assert capfd.readouterr().err.count(message) == 1 and message in (out / "log.txt").read_text()


def test_a_missing_library_is_reported_before_anything_is_written(text, tmp_path, monkeypatch):
    monkeypatch.setattr(metric_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        run(text, tmp_path / "run", tensorboard=True)
    assert 'pip install "npx-transformer[tensorboard]"' in one_line(error) and not (tmp_path / "run").exists()
