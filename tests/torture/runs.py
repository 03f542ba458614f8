"""Trainings that are killed, stopped or run concurrently, each compared with an undisturbed one."""

import errno
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.helpers.forks import Fork
from tests.helpers.trainings import config, outcome, write_text
from train import UserError, average_checkpoints, train
from train.learn import checkpointer
from train.learn.trainer import Trainer
from train.run import folder_swap, storage
from train.run.folder import RunFolder
from train.run.report import LineFile


class Workspace:
    """A folder with the text and an undisturbed run; `report` is called with each failure."""

    def __init__(self, folder, report):
        self.folder, self.report = Path(folder), report
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder)
        reference = self.new_run("reference")
        self.train(self.new_run())  # imports modules that the forks then share
        started = time.monotonic()
        assert self.child(lambda: self.train(reference)).wait() == 0
        self.seconds = time.monotonic() - started  # time of a training run with its preparation
        self.expected = self.result(reference)

    def train(self, out, resume=False, **changes):
        """Train; return 2 after a user error, which is printed to stderr."""
        try:
            train(config(self.folder, **changes), out, resume=resume, progress=False)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        return 0

    def average(self, out):
        """Run the command `average`."""
        try:
            average_checkpoints(out, 1)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        return 0

    def child(self, call):
        """Fork this process; the method `stderr` reads the output of the child."""
        with open(self.folder / "stderr", "wb") as err:
            return Fork(call, {2: err.fileno()})

    def status(self, call, seconds=60.0):
        """Return the exit status of a call in a fork; "hangs" if it does not end in time."""
        try:
            return self.child(call).wait(seconds)
        except AssertionError:
            return "hangs"

    def stderr(self):
        """Return the stderr of the last child."""
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")

    def result(self, out):
        """Return the outcome of a run: weights, moments, state, metrics and the names of its files."""
        names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.name != "log.txt")
        return outcome(out, 6), names  # some runs are first stopped after step 6

    def new_run(self, name="run"):
        """Return the path of a new run folder."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        return out

    def resumes(self, out, name):
        """Return whether the same command, with --resume if a run exists, gives the result of the undisturbed run."""
        resume = not RunFolder(out).is_new()
        status = self.child(lambda: self.train(out, resume)).wait()
        if status:
            self.report(f"{name}: exit {status}: {self.stderr()[-600:]}")
            return False
        if self.result(out) != self.expected:
            self.report(f"{name}: the result differs")
            return False
        return True


def kills(workspace, count, seed=0):
    """Send SIGKILL at a random time, and in a third of the training runs again while resuming."""
    rng, counts, number = random.Random(seed), Counter(), 0
    while counts["killed"] < count and number < 10 * count:
        number += 1
        out = workspace.new_run()
        for attempt in range(1 + (number % 3 == 0)):
            resume = attempt > 0 and not RunFolder(out).is_new()
            fork = workspace.child(partial(workspace.train, out, resume))
            if not fork.ended(rng.uniform(0, 1.1 * workspace.seconds)):
                fork.kill(signal.SIGKILL)
                counts["killed"] += 1
            fork.wait()
        counts["right" if workspace.resumes(out, f"kill {number}") else "wrong"] += 1
    return f"{counts['killed']} SIGKILLs in {number} training runs", counts["right"], number


def stops(workspace, count, number, twice, seed=1):
    """Send a signal at a random time and, if `twice`, a second one within 50 ms; the run must end and be resumable."""
    rng, right, longest = random.Random(seed), 0, 0.0
    for trial in range(count):
        out = workspace.new_run()
        fork = workspace.child(partial(workspace.train, out))
        fork.ended(rng.uniform(0, 1.0 * workspace.seconds))
        start = time.monotonic()
        fork.kill(number)
        if twice and not fork.ended(rng.uniform(0, 0.05)):
            fork.kill(number)
        status = fork.wait()
        seconds = time.monotonic() - start
        longest = max(longest, seconds)
        name = f"{'double ' * twice}{signal.Signals(number).name} {trial}"
        ended = status in (0, 130, -number) and seconds < 10 and "Traceback" not in workspace.stderr()
        if not ended:
            workspace.report(f"{name}: exit {status} after {seconds:.1f} s: {workspace.stderr()[-600:]}")
        right += ended and workspace.resumes(out, name)
    name = "Ctrl-C twice within 50 ms" if twice else signal.Signals(number).name
    return f"{name}, {count} times; answered within {longest:.1f} s", right, count


# ---- a kill before every call that changes a file


EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "os.chmod"}


def kill_at_write(out, at, report):
    """Send SIGKILL to this process before call number `at` that changes a file in `out`; -1 only reports the calls."""
    calls, root = [0], os.fspath(out)

    def call(name):
        calls[0] += 1
        if at < 0:
            report(f"{name}\n")
        elif calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            flags = arguments[2] or 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and os.fsdecode(arguments[0]).startswith(root):
                call("open")
        elif event in EVENTS and str(arguments[0]).startswith(root):
            call(event)

    def intercept(module, name, label=None):
        original = getattr(module, name)

        def replacement(*arguments, **named):
            call(label or name)
            return original(*arguments, **named)

        setattr(module, name, replacement)

    sys.addaudithook(audit)
    for name in ("fsync", "ftruncate"):
        intercept(os, name)
    intercept(storage, "save_file")
    intercept(folder_swap, "replace_folder")
    intercept(LineFile, "_write", "append")
    save = storage.save_file

    def save_in_halves(arrays, file, **named):
        save(arrays, file, **named)
        with open(file, "r+b") as opened:
            half = os.path.getsize(file) // 2
            content = opened.read()
            opened.truncate(half)
            call("half of a .safetensors")
            opened.seek(0)
            opened.write(content)

    storage.save_file = save_in_halves


def writes(workspace, fraction=1.0):
    """Send SIGKILL before each call that changes the run folder, or a fraction of these calls, in separate runs."""
    reader, writer = os.pipe()
    out = workspace.new_run()
    fork = workspace.child(
        lambda: kill_at_write(out, -1, lambda line: os.write(writer, line.encode())) or workspace.train(out)
    )
    os.close(writer)
    with open(reader, "rb") as file:
        calls = file.read().decode().split("\n")[:-1]
    assert fork.wait() == 0, workspace.stderr()
    points = range(1, len(calls) + 1, max(1, round(1 / fraction)))
    right = 0
    for at in points:
        out = workspace.new_run()
        status = workspace.child(lambda at=at, out=out: kill_at_write(out, at, None) or workspace.train(out)).wait()
        assert status == -signal.SIGKILL, (at, calls[at - 1], status, workspace.stderr())
        right += workspace.resumes(out, f"killed before call {at}, {calls[at - 1]}")
    kinds = ", ".join(f"{count} {name}" for name, count in Counter(calls).most_common())
    return f"{len(points)} of the {len(calls)} write points of a training run ({kinds})", right, len(points)


# ---- two programs in one folder


def pairs(workspace, count, seed=2):
    """Run two programs at once in one folder: one is rejected, or both succeed one after the other; nothing is lost."""
    rng, right = random.Random(seed), 0
    for number in range(count):
        out = workspace.new_run()
        kind = ("new new", "new resume", "resume resume", "resume average", "average average")[number % 5]
        if not kind.startswith("new"):
            assert workspace.child(lambda out=out: workspace.train(out, max_steps=6)).wait() == 0
            workspace.child(lambda out=out: workspace.average(out)).wait()
        calls = {
            "new": lambda out=out: workspace.train(out), "resume": lambda out=out: workspace.train(out, True),
            "average": lambda out=out: workspace.average(out),
        }  # fmt: skip
        forks = []
        for name in kind.split():
            forks.append(workspace.child(calls[name]))
            time.sleep(rng.uniform(0, 0.6 * workspace.seconds))
        statuses = [fork.wait() for fork in forks]
        passed = all(status in (0, 2) for status in statuses) and 0 in statuses
        if not passed:
            workspace.report(f"pair {number} ({kind}): exits {statuses}: {workspace.stderr()[-600:]}")
        averaged = RunFolder(out).averaged_path
        if averaged.exists():
            passed = passed and bool(storage.read_state(averaged))
            shutil.rmtree(averaged)
        right += passed and workspace.resumes(out, f"pair {number} ({kind})")
    return f"`train`, `train --resume` and `average` at the same time in one folder, {count} pairs", right, count


# ---- a full disk


def full(workspace, count, seed=3):
    """Limit files to 3 kB during some updates: the run logs the error and writes the missing files later."""
    rng, right = random.Random(seed), 0
    for number in range(count):
        first = rng.randrange(1, 11)
        last = rng.randrange(first, 11)

        def limited(out, first=first, last=last):
            original, hard = Trainer._after_update, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            checkpointer.RETRY_SECONDS = 0

            def with_limit(self):
                is_full = first <= self.state.step <= last
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000 if is_full else hard, hard))
                original(self)

            Trainer._after_update = with_limit
            return workspace.train(out)

        out = workspace.new_run()
        status = workspace.child(lambda out=out, limited=limited: limited(out)).wait()
        log = (out / "log.txt").read_text(encoding="utf-8")
        needs_write = any(step % 3 == 0 for step in range(first, last + 1))
        is_logged = os.strerror(errno.EFBIG) in log
        passed = status == 0 and is_logged >= needs_write and outcome(out) == workspace.expected[0]
        if not passed:
            workspace.report(
                f"full disk {number}, updates {first} to {last}: exit {status}: {workspace.stderr()[-600:]}"
            )
        right += passed
    return f"a disk that is full for some updates (a limit of 3,000 bytes per file), {count} times", right, count


# ---- a long training run


def in_thread(call):
    """Start a call in a thread; return a function that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()

    def result():
        thread.join()
        return results[0]

    return result
