"""Power loss during a training run, an average, a `data own` and a `translate --output`.

Each state that the disk may be left in (tests/torture/disk.py) is written to a folder and examined: whatever a command
had reported as done must be there, bit for bit; a file that it was writing must have the old or the new content, or be
ignored; and the command must run again. A sample of the states is resumed to the end.
"""

import random
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import islice
from pathlib import Path

from tests.torture import disk
from tests.torture.damage import checkpoint_at
from train import UserError, average_checkpoints
from train.cli import main
from train.run import checkpoint as store
from train.run.checkpoint import DamagedCheckpoint, load_checkpoint
from train.run.folder import RunFolder, step_of
from train.run.folder_swap import existing_folder

KEEP_LAST = 3  # train.keep_last of the training runs in tests/helpers/trainings.py
RESUMED = 20  # one of this many states is resumed to the end


class Crashes:
    """Counts the states of one command that are examined (a fraction `scale` of them), resumed and right."""

    def __init__(self, workspace, name, scale):
        self.workspace, self.name, self.scale = workspace, name, min(1.0, scale)
        self.tried = self.resumed = self.right = 0

    def examine(self, log, check, resume, at="run"):
        """Examine all states of a log with `check(folder, marks)` and a sample of them with `resume(folder)`.

        Both functions return "" for a correct state. The states are written to the path `at` in the workspace, because
        runs contain absolute paths.
        """
        states = disk.crash_states(log, random.Random(0), max(1, round(64 * self.scale)))
        for marks, files in islice(states, 0, None, round(1 / self.scale)):
            inside = {path[len(at) + 1 :]: c for path, c in files.items() if path.startswith(f"{at}/")}
            place = self.workspace.new_run(at)
            if at in files:
                disk.write(inside, place)
            problem = check(place, marks)
            if not problem and self.tried % RESUMED == 0:
                self.resumed += 1
                problem = resume(place)
            self.tried += 1
            self.right += not problem
            if problem:
                state = ", ".join(f"{path}: {'folder' if c is None else len(c)}" for path, c in inside.items())
                self.workspace.report(f"{self.name}, state {self.tried} after {marks}: {problem} ({state})")
        return self

    def words(self):
        """Return the figures for the report."""
        return f"{self.tried:,} of {self.name} ({self.resumed:,} resumed)"


def crashes(workspace, scale=1.0, commands=None):
    """Examine the crash states of all four commands, or of some."""
    parts = [examine(workspace, scale) for examine in commands or (training, averages, own_corpus, translations)]
    right, tried = sum(part.right for part in parts), sum(part.tried for part in parts)
    return f"{tried:,} distinct states after a power loss: {', '.join(part.words() for part in parts)}", right, tried


def training(workspace, scale=1.0):
    """Examine the states of a training run."""
    out, reference, result = workspace.new_run(), {}, Crashes(workspace, "a training run", scale)

    def train():
        save = store.save_checkpoint

        def save_and_mark(run_dir, state, *arrays):
            save(run_dir, state, *arrays)
            disk.mark(workspace.folder, f"step-{state['step']}")

        store.save_checkpoint = save_and_mark
        return workspace.train(out)

    def on_mark(text):
        reference[int(text.removeprefix("step-"))] = checkpoint_at(out, int(text.removeprefix("step-")))

    status, log = disk.record(train, workspace.folder, on_mark)
    assert status == 0 and workspace.result(out) == workspace.expected

    def check(folder, marks):
        run, done = RunFolder(folder), [int(text.removeprefix("step-")) for text in marks]
        intact = []
        for path in run.step_paths():
            try:
                load_checkpoint(path)
            except DamagedCheckpoint:
                continue
            intact.append(step_of(path))
            if step_of(path) in reference and checkpoint_at(folder, step_of(path)) != reference[step_of(path)]:
                return f"{path.name} differs from the undisturbed run"
        if done and (not intact or max(intact) < max(done)):
            return f"expected step {max(done)}; got {intact}"
        if len(intact) < min(KEEP_LAST, len(done)):
            return f"expected {KEEP_LAST} intact checkpoints; got {intact}"
        try:
            run.check(not run.is_new())
        except UserError as error:
            return str(error)
        return ""

    def resume(folder):
        return "" if workspace.resumes(folder, "after a power loss") else "the resumed run is wrong"

    return result.examine(log, check, resume)


def averages(workspace, scale=1.0):
    """Examine the states of two averages, the second of which replaces the first."""
    result, out = Crashes(workspace, "two averages", scale), workspace.new_run()
    assert workspace.status(lambda: workspace.train(out)) == 0, workspace.stderr()
    steps, reference = {path.name: checkpoint_at(out, step_of(path)) for path in RunFolder(out).step_paths()}, {}

    def average():
        for last in (1, 2):
            average_checkpoints(out, last)
            disk.mark(workspace.folder, last)

    def arrays(path):
        return {name: array.tobytes() for name, array in load_checkpoint(path).weights.items()}

    status, log = disk.record(
        average, workspace.folder, lambda text: reference.update({text: arrays(RunFolder(out).averaged_path)})
    )
    assert status == 0 and reference["1"] != reference["2"]

    def check(folder, marks):
        run = RunFolder(folder)
        if {path.name: checkpoint_at(folder, step_of(path)) for path in run.step_paths()} != steps:
            return "a checkpoint was changed"
        averaged = existing_folder(run.averaged_path)
        allowed = [reference[key] for key in ("1", "2") if key >= "".join(marks[-1:])]
        if averaged.is_dir() or marks:
            try:
                if arrays(averaged) not in allowed:
                    return "the average is wrong"
            except DamagedCheckpoint as error:
                return str(error)
        return ""

    def resume(folder):
        average_checkpoints(folder, 2)
        return "" if arrays(RunFolder(folder).averaged_path) == reference["2"] else "the next average is wrong"

    return result.examine(log, check, resume)


def command(*arguments):
    """Run a command line; return its exit status and output."""
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        return main([str(argument) for argument in arguments]), output.getvalue()


def own_corpus(workspace, scale=1.0):
    """Examine the states of `data own`."""
    result, out = Crashes(workspace, "a `data own`", scale), workspace.new_run("corpus")
    files = [
        item for part in ("train", "valid") for side, language in (("src", "en"), ("tgt", "de"))
        for item in (f"--{part}-{side}", workspace.folder / f"{part}.{language}")
    ]  # fmt: skip
    arguments = ["data", "own", "--out", out, *files, "--vocab-size", 290, "--quiet"]

    def prepare():
        status, output = command(*arguments)
        disk.mark(workspace.folder, "done")
        return status

    def files_of(folder):
        # The removal of the lock is not synced, because the next program takes over a lock that a power loss has left.
        return {path: content for path, content in read(folder).items() if "downloads" not in path and path != "lock"}

    status, log = disk.record(prepare, workspace.folder)
    assert status == 0
    expected = files_of(out)

    def check(folder, marks):
        if marks and files_of(folder) != expected:
            return "a file of a complete corpus is missing or differs"
        return ""

    def resume(folder):
        status, output = command(*arguments)
        if status:
            return f"exit {status}: {output}"
        return "" if files_of(folder) == expected else "the next corpus differs"

    return result.examine(log, check, resume, at="corpus")


def read(folder):
    """Return {relative path: bytes, or None for a folder} of a folder."""
    paths = sorted(Path(folder).rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in paths}


def translations(workspace, scale=1.0):
    """Examine the states of a `translate --output` that replaces an older file."""
    result, out = Crashes(workspace, "a `translate --output`", scale), workspace.new_run("output")
    run = workspace.folder / "reference"
    out.mkdir()
    (workspace.folder / "source").write_text("one two\nthree\n" * 10, encoding="utf-8")
    old = "an older translation\n" * 300
    (out / "out").write_text(old, encoding="utf-8")
    arguments = ["translate", "--model", run, "--input", workspace.folder / "source", "--output", out / "out"]

    def translate():
        status, _ = command(*arguments, "--beam-size", 1)
        disk.mark(workspace.folder, "done")
        return status

    status, log = disk.record(translate, workspace.folder)
    assert status == 0
    new = (out / "out").read_text(encoding="utf-8")
    assert new.count("\n") == 20

    def check(folder, marks):
        content = (folder / "out").read_text(encoding="utf-8")
        return "" if content == new or content == old and not marks else f"the output has {len(content)} characters"

    def resume(folder):
        status, output = command(*arguments, "--beam-size", 1)
        return check(folder, ["done"]) if status == 0 else f"exit {status}: {output}"

    return result.examine(log, check, resume, at="output")
