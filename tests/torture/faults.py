"""Failing calls: the n-th call of a training and an average fails, and then one of the recovery.

Calls are system calls on their files, memory from the kernel, and the memory of NumPy's arrays. A case is right if the
program ends with status 0 and the result of an undisturbed run, or with status 1 or 2 and one line on stderr; if no
intact checkpoint is lost; and if the same command, with --resume, then gives the result of the undisturbed run. There
are two exceptions. Memory that a compiled library does not get may abort the program, which then counts as killed. And
an update whose arrays do not fit is repeated with halves of its batches, hence with other dropout masks: metrics.jsonl
says so, and only the result of that run differs.
"""

import ctypes
import errno
import importlib
import os
import random
import shutil
import signal
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import typer

from tests.helpers.forks import Fork
from tests.helpers.trainings import config, outcome, write_pairs
from tests.torture.arrays import FailingAllocations
from tests.torture.damage import checkpoint_at
from tests.torture.syscalls import KINDS, supervise
from train import UserError
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder, step_of

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EINTR)
WRITING = ("write", "fsync", "rename", "mkdir", "truncate")
SETTINGS = {
    "max_steps": 4, "warmup_steps": 2, "log_every": 2, "validate_every": 2, "checkpoint_every": 2, "keep_last": 2,
    "accumulate": 1, "validate_bleu": False,
}  # fmt: skip
MMAP_THRESHOLD, TOP_PAD = -3, -2  # of mallopt; small values request memory from the kernel more often


class Program:
    """A training of four updates and the average of its last checkpoint, with everything they read and write."""

    def __init__(self, folder, report):
        self.folder, self.report = Path(folder) / "disk", report
        self.errors = Path(folder) / "errors"
        shutil.rmtree(folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.run = self.folder / "run"
        write_pairs(self.folder, "train", 40, seed=1)
        write_pairs(self.folder, "valid", 5, seed=2)
        (self.folder / "config.toml").write_text(config(self.folder, **SETTINGS).dump(), encoding="utf-8")
        self.app = typer.main.get_command(importlib.import_module("train.cli.app").app)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            self.train_and_average()  # imports modules that the forks then share
        self.expected, self.checkpoints = self.result(), self.intact()
        self.remove()
        status, self.calls = self.attempt()
        assert status == 0 and self.result() == self.expected, self.output()
        self.remove()
        status, self.arrays = self.attempt_without_memory(0)
        assert status == 0 and self.result() == self.expected, self.output()

    def train_and_average(self):
        """Run both commands as a user would, without preparing typer's options anew in each fork."""
        cli = importlib.import_module("train.cli.main")  # train.cli.main is also the name of a function
        cli.app = self.app
        resume = [] if RunFolder(self.run).is_new() else ["--resume"]
        status = cli.main(["train", str(self.folder / "config.toml"), "--out", str(self.run), "--quiet", *resume])
        return status or cli.main(["average", str(self.run), "--last", "1"])

    def remove(self):
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    def attempt(self, first=0, number=0, lasts=False):
        """Run the program; system call number `first` fails with errno `number`, and if it `lasts`, all later writes.

        Returns the exit status and the kinds of the calls.
        """
        calls = []

        def answer(call):
            calls.append(call.kind)
            is_later = lasts and 0 < first < len(calls) and call.kind in WRITING
            return number if len(calls) == first or is_later else 0

        def setup():
            libc = ctypes.CDLL(None)
            libc.mallopt(MMAP_THRESHOLD, 4096)
            libc.mallopt(TOP_PAD, 0)

        with open(self.errors, "wb") as errors:
            status = supervise(self.train_and_average, self.folder, answer, KINDS, {2: errors.fileno()}, setup)
        return status, calls

    def attempt_without_memory(self, first):
        """Run the program; the memory of array number `first` is refused. Returns the exit status and their number."""
        reader, writer = os.pipe()

        def program():
            allocations = FailingAllocations(first)
            status = self.train_and_average()
            os.write(writer, str(allocations.count).encode())
            return status

        with open(self.errors, "wb") as errors:
            status = Fork(program, {2: errors.fileno()}).wait()
        os.close(writer)
        with open(reader, "rb") as file:
            return status, int(file.read() or 0)

    def output(self):
        """Return what the last attempt wrote to stderr, without the line in which `train` reports its end."""
        lines = self.errors.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(f"{self.run}: stopped after step"))

    def result(self):
        """Return the outcome of the run and the averaged weights."""
        averaged = load_checkpoint(RunFolder(self.run).averaged)
        return outcome(self.run), {name: array.tobytes() for name, array in averaged.model.items()}

    def intact(self):
        """Return {step: content} of the intact checkpoints."""
        contents = {}
        for path in RunFolder(self.run).steps():
            with suppress(UserError):
                contents[step_of(path)] = checkpoint_at(self.run, step_of(path))
        return contents

    def has_halved(self):
        """Return whether an update of this run was repeated with halves."""
        run = RunFolder(self.run)
        return any(entry["kind"] == "halved" for entry in run.metrics())

    def problem(self, status, before):
        """Return what is wrong after an attempt that started with the intact checkpoints `before`, or ""."""
        output, intact = self.output(), self.intact()
        if missing := before.keys() - intact.keys():
            return f"lost the checkpoints {missing}; exit {status}: {output[-900:]}"
        if any(intact[step] != self.checkpoints.get(step, intact[step]) for step in intact) and not self.has_halved():
            return f"exit {status}; a checkpoint differs"
        if status == 0:
            try:
                return "" if self.has_halved() or self.result() == self.expected else "exit 0, but the result differs"
            except UserError as error:
                return f"exit 0, but {error}"
        is_line = output.count("\n") == 1 and output.startswith("npx-transformer: ")
        return "" if status == -signal.SIGABRT or status in (1, 2) and is_line else f"exit {status}: {output[-900:]}"


def faults(workspace, scale=1.0, seed=5, repeats=2, arrays=300):
    """Let each call fail with `repeats` of the errors in turn, and some allocations of arrays; recoveries fail too."""
    program, rng = Program(workspace.folder / "faults", workspace.report), random.Random(seed)
    kinds, outcomes, wrong, second = Counter(), Counter(), 0, 0
    cases = [("array", n) for n in range(1, program.arrays + 1)]
    cases = rng.sample(cases, min(len(cases), arrays))
    for n, kind in enumerate(program.calls, 1):
        chosen = [ERRORS[(n + i) % len(ERRORS)] for i in range(repeats)] if kind != "allocate" else [errno.ENOMEM]
        cases += [(n, number) for number in chosen]
    for first, detail in rng.sample(cases, max(1, round(min(1.0, scale) * len(cases)))):
        program.remove()
        if first == "array":
            kind, name = "array", f"array {detail}"
            status, _ = program.attempt_without_memory(detail)
        else:
            kind, lasts = program.calls[first - 1], rng.random() < 0.25
            name = f"call {first}, {kind}, {errno.errorcode[detail]}{' from then on' * lasts}"
            status, _ = program.attempt(first, detail, lasts)
        problem = program.problem(status, {})
        if status:
            again, before, number = rng.randrange(1, len(program.calls) + 1), program.intact(), rng.choice(ERRORS)
            status_of_second, calls = program.attempt(again, number)
            second += again <= len(calls)
            if fault := program.problem(status_of_second, before):
                problem += f"second fault, call {again}, {calls[again - 1 : again]}, {errno.errorcode[number]}: {fault}"
            before = program.intact()
            status_of_third = program.attempt()[0] if status_of_second else 0
            if (fault := program.problem(status_of_third, before)) or status_of_third:
                problem += f"not recovered: exit {status_of_third}: {fault}"
        kinds[kind] += 1
        wrong += bool(problem)
        outcomes["ended with one line" if status > 0 else "aborted" if status else "continued"] += 1
        if problem:
            workspace.report(f"{name}: {problem}")
    count = kinds.total()
    calls = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    ends = ", ".join(f"{n} {end}" for end, n in outcomes.most_common())
    program_words = f"a training and an average of {len(program.calls)} calls and {program.arrays:,} arrays"
    words = f"{count:,} failing calls of {program_words} ({calls}): {ends}"
    return f"{words}; {second:,} second faults during the recovery", count - wrong, count
