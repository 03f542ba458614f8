"""Failing calls: the n-th call of a training run or an average fails, and then a call of the recovery.

The calls are system calls on the files of the program, requests for memory from the kernel, and allocations of NumPy's
arrays. A case is right if the program ends with status 0 and the result of an undisturbed run, or with status 1 or 2
and one line on stderr; if no intact checkpoint is lost; and if the same command, with --resume, then gives the result
of the undisturbed run. There are two exceptions. A compiled library that gets no memory may abort the program, which
then counts as killed. And an update whose arrays do not fit in memory is repeated with halves of its batches and
therefore with other dropout masks; metrics.jsonl records this, and only the result of that run differs.
"""

import ctypes
import errno
import importlib
import os
import random
import re
import shutil
import signal
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from unittest import mock

import typer

from tests.helpers.forks import Fork
from tests.helpers.trainings import outcome, tables, write_pairs
from tests.torture.arrays import FailingAllocations
from tests.torture.damage import checkpoint_at
from tests.torture.disk import spread
from tests.torture.syscalls import KINDS, supervise
from train import RunConfig, UserError
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder, step_of

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EINTR)
WRITING = ("write", "fsync", "rename", "mkdir", "truncate")
SETTINGS = {
    "max_steps": 2, "warmup_steps": 2, "log_every": 1, "validate_every": 1, "checkpoint_every": 1, "keep_last": 2,
    "gradient_accumulation_steps": 1, "validate_score": False,
}  # fmt: skip
MMAP_THRESHOLD, TOP_PAD = -3, -2  # mallopt's options; small values make malloc call the kernel more often
# How a process ends in a library that does not check whether it got memory; nothing may be lost then either.
ABORTED = -signal.SIGABRT, -signal.SIGSEGV


class Program:
    """A training run of two updates and the average of its last checkpoint, with all files that they read and write.

    It trains a tokenizer in a process of its own, or, much faster, uses the file `tokenizer`.

    Args:
        kinds: the kinds of system calls that are observed and may fail.
    """

    def __init__(self, folder, tokenizer=None, kinds=KINDS):
        self.kinds = kinds
        self.folder, self.errors = Path(folder) / "disk", Path(folder) / "errors"
        shutil.rmtree(folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.run = self.folder / "run"
        write_pairs(self.folder, "train", 40, seed=1)
        write_pairs(self.folder, "valid", 5, seed=2)
        settings = tables(self.folder, **SETTINGS)
        if tokenizer is not None:
            settings["data"]["tokenizer"] = str(shutil.copy(tokenizer, self.folder / "tokenizer.json"))
        (self.folder / "config.toml").write_text(RunConfig.from_dict(settings).dump(), encoding="utf-8")
        self.resumes = False
        importlib.import_module("train.cli.main").load_commands("train", "average")
        self.app = typer.main.get_command(importlib.import_module("train.cli.app").app)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            self.train_and_average()  # imports modules that the forks then share
        self.expected, self.checkpoints = self.result(), self.intact()
        self.tokenizer = Path(shutil.copy(self.run / "tokenizer.json", folder))
        self.remove()
        status, self.calls = self.attempt()
        assert status == 0 and self.result() == self.expected, self.output()
        self.remove()
        status, self.arrays = self.attempt_without_memory(0)
        assert status == 0 and self.result() == self.expected, self.output()

    def train_and_average(self):
        """Run both commands as a user would, without preparing typer's options again in each fork."""
        cli = importlib.import_module("train.cli.main")  # train.cli.main is also the name of a function
        arguments = ["train", str(self.folder / "config.toml"), "--out", str(self.run), "--quiet"]
        with mock.patch.object(cli, "app", self.app):
            status = cli.main([*arguments, *(["--resume"] if self.resumes else [])])
            return status or cli.main(["average", str(self.run), "--last", "1"])

    def remove(self):
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    def attempt(self, first=0, number=0, lasts=False):
        """Run the program; system call number `first` fails with errno `number`, and if it `lasts`, all later writes.

        Returns the exit status and, for each call, its kind and path.
        """
        calls, self.resumes = [], not RunFolder(self.run).is_new()

        def answer(call):
            calls.append((call.kind, *call.paths[-1:]))
            assert len(calls) < 10_000, "the program repeats a call forever"
            is_later = lasts and 0 < first < len(calls) and call.kind in WRITING
            if len(calls) != first and not is_later:
                return 0
            return errno.ENOMEM if call.kind == "allocate" else number

        def setup():
            libc = ctypes.CDLL(None)
            libc.mallopt(MMAP_THRESHOLD, 4096)
            libc.mallopt(TOP_PAD, 0)

        with open(self.errors, "wb") as errors:
            status = supervise(self.train_and_average, self.folder, answer, self.kinds, {2: errors.fileno()}, setup)
        return status, calls

    def attempt_without_memory(self, first):
        """Run the program; array number `first` gets no memory. Returns the exit status and the number of arrays."""
        (reader, writer), self.resumes = os.pipe(), not RunFolder(self.run).is_new()

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
        """Return what the last attempt wrote to stderr."""
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def result(self):
        """Return the outcome of the run and the averaged weights."""
        averaged = load_checkpoint(RunFolder(self.run).averaged_path)
        return outcome(self.run), {name: array.tobytes() for name, array in averaged.weights.items()}

    def intact(self):
        """Return {step: content} of the intact checkpoints."""
        contents = {}
        for path in RunFolder(self.run).step_paths():
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
        notes = r".*: (nothing left to do:|there is no checkpoint,) .*\n"  # the run had ended, or not saved
        error = re.sub(notes, "", output)
        error = "".join(line for line in error.splitlines(True) if not line.startswith("warning: "))
        is_line = error.count("\n") == 1 and error.startswith("npx-transformer: ")
        return "" if status in ABORTED or status in (1, 2) and is_line else f"exit {status}: {output[-900:]}"


class Faults:
    """Makes calls of programs fail, one per attempt, and counts the outcomes."""

    def __init__(self, report, seed):
        self.report, self.rng = report, random.Random(seed)
        self.kinds, self.outcomes, self.wrong, self.second = Counter(), Counter(), 0, 0

    def array(self, program, n):
        """Make the allocation of array number n fail."""
        program.remove()
        status, _ = program.attempt_without_memory(n)
        self._count("array", f"array {n}", program, status)

    def call(self, program, n, number):
        """Make system call number n fail with an errno; in a quarter of the cases, all later writes fail too."""
        kind = program.calls[n - 1][0]
        lasts = kind != "allocate" and number != errno.EINTR and self.rng.random() < 0.25
        program.remove()
        status, calls = program.attempt(n, number, lasts)
        name = f"call {n}, {calls[n - 1 : n]}, {errno.errorcode[number]}{' from then on' * lasts}"
        self._count(kind, name, program, status)

    def _count(self, kind, name, program, status):
        problem = program.problem(status, {})
        if status:
            problem += self._recover(program)
        self.kinds[kind] += 1
        self.outcomes["ended with one line" if status > 0 else "aborted" if status else "continued"] += 1
        self.wrong += bool(problem)
        if problem:
            self.report(f"{name}: {problem}")

    def _recover(self, program):
        """Recover with a second fault, then without one; return what is wrong, or ""."""
        again, before, number = self.rng.randrange(1, len(program.calls) + 1), program.intact(), self.rng.choice(ERRORS)
        status, calls = program.attempt(again, number)
        self.second += again <= len(calls)
        if problem := program.problem(status, before):
            return f"second fault, call {again}, {calls[again - 1 : again]}, {errno.errorcode[number]}: {problem}"
        before = program.intact()
        status = program.attempt()[0] if status else 0
        problem = program.problem(status, before)
        return f"not recovered: exit {status}: {problem}" if status or problem else ""


def faults(workspace, scale=1.0, seed=5, repeats=1, arrays=100, kinds=KINDS):
    """Make each call fail with `repeats` of the errors in turn, and some array allocations; make recoveries fail too.

    Calls before the tokenizer is on disk come from the program that trains it; the others come from one that does not.

    Args:
        kinds: the kinds of calls that fail.
    """
    learning, result = Program(workspace.folder / "faults-tokenizer", kinds=kinds), Faults(workspace.report, seed)
    program = Program(workspace.folder / "faults", learning.tokenizer, kinds)
    last = max(n for n, (_, *path) in enumerate(learning.calls, 1) if "tokenizer.json" in "".join(path))
    cases = [partial(result.array, program, n) for n in spread(range(1, program.arrays + 1), arrays)]
    for chosen, count in ((learning, last), (program, len(program.calls))):
        for n, (kind, *_) in enumerate(chosen.calls[:count], 1):
            numbers = [ERRORS[(n + seed + i) % len(ERRORS)] for i in range(repeats)]
            cases += [partial(result.call, chosen, n, i) for i in (numbers if kind != "allocate" else [errno.ENOMEM])]
    cases = result.rng.sample(cases, max(1, round(min(1.0, scale) * len(cases))))
    for case in cases:
        case()
    calls = ", ".join(f"{n} {kind}" for kind, n in result.kinds.most_common())
    ends = ", ".join(f"{n} {end}" for end, n in result.outcomes.most_common())
    all_calls = f"the {last} calls of training a tokenizer, the {len(program.calls)} of a training and an average, and"
    words = f"{len(cases):,} failing calls ({calls}) of {all_calls} their {program.arrays:,} arrays: {ends}"
    return f"{words}; {result.second:,} second faults during the recovery", len(cases) - result.wrong, len(cases)
