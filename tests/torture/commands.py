"""Kill every kind of command: SIGKILL before a system call that changes a file, and at random times in `serve`.

A case is right if the same command (a training run with --resume) then gives the result of an undisturbed one.
"""

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from tests.helpers.forks import Fork
from tests.helpers.trainings import outcome
from tests.torture.crashes import command, read
from tests.torture.disk import CHANGES, spread
from tests.torture.syscalls import supervise
from train import RunConfig, UserError, train
from train.cli import main
from train.run.folder import RunFolder

TREES = [f"((S (NP (DT the) (NN {noun})) (VP (VBD sat)) (. .)))\n" for noun in ("cat", "dog", "mat", "rat")]
MODEL = {"d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1, "dropout": 0.2}
STEPS = {"max_steps": 6, "warmup_steps": 3, "validate_every": 2, "checkpoint_every": 2, "keep_last": 2, "log_every": 2}
SMALL = ("model.d_model=8", "model.d_ff=8", "model.d_k=4", "model.d_v=4", "model.n_layers=1", "data.vocab_size=280")
SMALL += ("train.batch_tokens=100", "search.max_extra_tokens=2", "search.beam_size=1")


class Program(NamedTuple):
    """A command, its result, and the folder that it writes, which is initially a copy of `before` or missing."""

    name: str
    run: Any  # returns the exit status
    result: Any  # a value to compare
    out: Path
    before: Path | None = None

    def reset(self):
        """Undo the changes of the command to the folder."""
        shutil.rmtree(self.out, ignore_errors=True)
        if self.before is not None:
            shutil.copytree(self.before, self.out)


def task_tables(folder, task, **changes):
    """Return the configuration of a small training run of the task language or parsing; write its text."""
    (folder / "plain.txt").write_text("to be or not to be\nthat is the question\n" * 6, encoding="utf-8")
    (folder / "trees.mrg").write_text("".join(TREES), encoding="utf-8")
    if task == "language":
        data = {
            "train_text": str(folder / "plain.txt"),
            "valid_text": str(folder / "plain.txt"),
            "tokenizer": "characters",
        }
        data |= {"vocab_size": 300, "max_length": 12}
    else:
        data = {"train_trees": str(folder / "trees.mrg"), "valid_trees": str(folder / "trees.mrg")}
        data |= {"tokenizer": "affixes", "vocab_size": 200, "max_length": 60}
    return {
        "model": MODEL | ({"architecture": "decoder"} if task == "language" else {}), "data": {"task": task, **data},
        "train": STEPS | {"batch_tokens": 60, "gradient_accumulation_steps": 2} | changes,
        "search": {"beam_size": 2, "max_extra_tokens": 10},
    }  # fmt: skip


def training(folder, task, out, **changes):
    """Train, or resume; return the exit status."""
    try:
        config = RunConfig.from_dict(task_tables(folder, task, **changes))
        train(config, out, not RunFolder(out).is_new(), progress=False)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def programs(workspace):
    """Return the programs, all of which use the text and the run of the workspace."""
    folder, model = workspace.folder, workspace.folder / "reference"
    names = ("language", "parsing", "draw", "figures", "own", "average", "table")
    out = {name: folder / f"killed-{name}" for name in names}
    (empty := folder / "empty").mkdir(exist_ok=True)
    texts = [(f"--{part}-{side}", folder / f"{part}.{end}") for part in ("train", "valid")
             for side, end in (("src", "en"), ("tgt", "de"))]  # fmt: skip
    texts = [item for pair in texts for item in pair]

    def run(*arguments):
        return partial(lambda: command(*arguments)[0])

    def files(name):
        return lambda: {path: c for path, c in read(out[name]).items() if "begun" not in path and "lock" not in path}

    def rows():
        table = json.loads((out["table"] / "table3.json").read_text("utf-8"))
        ours = [{key: value for key, value in (row["ours"] or {}).items() if key != "seconds"} for row in table["rows"]]
        return ours, sorted(path.name for path in out["table"].iterdir())

    for task in ("language", "parsing"):
        train_task, result = partial(training, folder, task, out[task]), partial(outcome, out[task])
        yield Program(f"a {task} training", train_task, result, out[task])
    yield Program("`average`", run("average", out["average"], "--last", 2), files("average"), out["average"], model)
    picture = ("--out", out["draw"] / "heads.svg", "--input", "one two", "--beam-size", 1)
    yield Program("`draw`", run("draw", model, "heads", *picture), files("draw"), out["draw"], empty)
    own = run("data", "own", "--out", out["own"], *texts, "--vocab-size", 290, "--quiet")
    yield Program("`data own`", own, files("own"), out["own"])
    figures = run("reproduce", "figures", "--out", out["figures"], "--model", model, "--input", "one two three")
    yield Program("`reproduce figures`", figures, files("figures"), out["figures"])
    sets = [item for setting in SMALL for item in ("--set", setting)]
    table = ("--scale", "tiny", "--steps", 2, "--rows", "base,A-h4", "--quiet", *texts, *sets)
    yield Program("`reproduce table3`", run("reproduce", "table3", "--out", out["table"], *table), rows, out["table"])


def kill_at(program, at):
    """Run a program; kill it before call number `at` that changes a file (0: never). Returns status and calls."""
    calls = 0

    def answer(call):
        nonlocal calls
        if call.kind != "open" or call.argument("w") & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            calls += 1
            if calls == at:
                os.kill(call.pid, signal.SIGKILL)

    return supervise(program.run, program.out, answer, CHANGES), calls


def commands(workspace, points=40, without=()):
    """Kill every program at `points` of its calls, evenly spaced, and `serve` at a quarter as many random times."""
    words, right, count = [], 0, 0
    for program in (program for program in programs(workspace) if program.name not in without):
        program.reset()
        status = workspace.status(program.run)
        assert status == 0, (program.name, status, workspace.stderr())
        expected = program.result()
        program.reset()
        status, calls = kill_at(program, 0)
        assert status == 0 and program.result() == expected, program.name
        chosen = spread(range(1, calls + 1), points)
        for at in chosen:
            program.reset()
            killed, _ = kill_at(program, at)
            status = workspace.status(program.run)
            passed = killed == -signal.SIGKILL and status == 0 and program.result() == expected
            if not passed:
                workspace.report(
                    f"{program.name}, call {at}: {killed}, then exit {status}: {workspace.stderr()[-600:]}"
                )
            right, count = right + passed, count + 1
        program.reset()
        words.append(f"{len(chosen)} of {calls} calls of {program.name}")
    times = max(1, points // 4)
    served = sum(serving(workspace, random.Random(number)) for number in range(times))
    return f"SIGKILL before {', '.join(words)}; {times} of `serve`", right + served, count + times


def serving(workspace, rng):
    """Kill a server at a random time; return whether the run is unchanged and the next server answers and stops."""
    run = workspace.folder / "reference"
    before, statuses = read(run), []
    for number, seconds in ((signal.SIGKILL, rng.uniform(0, 1.5)), (signal.SIGTERM, 30)):
        with open(workspace.folder / "address", "w+b") as out:
            fork = Fork(lambda: main(["serve", str(run), "--port", "0"]), {1: out.fileno()})
            deadline, answered = time.monotonic() + seconds, False
            while time.monotonic() < deadline and not (answered and number == signal.SIGTERM) and not fork.ended():
                time.sleep(0.02)
                if address := re.search(rb"http://\S+", (workspace.folder / "address").read_bytes()):
                    with urlopen(address[0].decode(), timeout=20) as response:
                        answered = response.status == 200
            fork.kill(number)
            statuses.append(fork.wait())
    passed = answered and statuses[0] == -signal.SIGKILL and statuses[1] in (0, 130, -signal.SIGTERM)
    if not passed or read(run) != before:
        workspace.report(f"serve: {statuses}, answered: {answered}")
    return passed and read(run) == before
