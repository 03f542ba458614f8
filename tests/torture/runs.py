"""Trainings that are killed, stopped and crowded, each compared with one that nothing happened to."""

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
from tests.helpers.trainings import config, outcome, write_pairs
from train import UserError, average_checkpoints, train
from train.learn import checkpointer
from train.learn.trainer import Trainer
from train.run import storage
from train.run.folder import RunFolder
from train.run.report import LineFile


class Ground:
    """A folder with the text, and the run that nothing happened to; `tell` says what goes wrong."""

    def __init__(self, folder, tell):
        self.folder, self.tell = Path(folder), tell
        self.folder.mkdir(parents=True, exist_ok=True)
        write_pairs(self.folder, "train", 40, seed=1)
        write_pairs(self.folder, "valid", 5, seed=2)
        self.whole = self.fresh("whole")
        self.train(self.fresh())  # what is imported for it, the forks need not
        started = time.monotonic()
        assert self.child(lambda: self.train(self.whole)).wait() == 0
        self.seconds = time.monotonic() - started  # of a training, preparation included
        self.expected = self.left(self.whole)

    def train(self, out, resume=False, **changes):
        """A training; 2 after a user's mistake, which is told on stderr."""
        try:
            train(config(self.folder, **changes), out, resume=resume, progress=False)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        return 0

    def average(self, out):
        """`average` as a program."""
        try:
            average_checkpoints(out, 1)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        return 0

    def child(self, call):
        """A fork of this process, its stderr in a file that `said` reads."""
        with open(self.folder / "stderr", "wb") as err:
            return Fork(call, {2: err.fileno()})

    def status(self, call, seconds=60.0):
        """The exit status of a call in a fork; "hangs" where it does not end in time."""
        try:
            return self.child(call).wait(seconds)
        except AssertionError:
            return "hangs"

    def said(self):
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")

    def left(self, out):
        """All that a run leaves: weights and moments, state, metrics, names of files."""
        names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.name != "log.txt")
        return outcome(out), names

    def fresh(self, name="run"):
        """Where a new run goes."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        return out

    def goes_on(self, out, what):
        """Whether the same command, with --resume where there is a run to resume, ends in what nothing happened to."""
        resume = not RunFolder(out).is_new()
        status = self.child(lambda: self.train(out, resume)).wait()
        if status:
            self.tell(f"{what}: exit {status}: {self.said()[-600:]}")
            return False
        if self.left(out) != self.expected:
            self.tell(f"{what}: another outcome")
            return False
        return True


def kills(ground, count, seed=0):
    """SIGKILL at a random moment, in a third of them again while it goes on."""
    rng, done, number = random.Random(seed), Counter(), 0
    while done["killed"] < count and number < 10 * count:
        number += 1
        out = ground.fresh()
        for again in range(1 + (number % 3 == 0)):
            resume = bool(again) and not RunFolder(out).is_new()
            fork = ground.child(partial(ground.train, out, resume))
            if not fork.ended(rng.uniform(0, 1.1 * ground.seconds)):
                fork.kill(signal.SIGKILL)
                done["killed"] += 1
            fork.wait()
        done["right" if ground.goes_on(out, f"kill {number}") else "wrong"] += 1
    return f"{done['killed']} SIGKILLs in {number} trainings", done["right"], number


def stops(ground, count, number, twice, seed=1):
    """A signal at a random moment, `twice` a second one within 50 ms: it ends in time, and goes on."""
    rng, right, longest = random.Random(seed), 0, 0.0
    for trial in range(count):
        out = ground.fresh()
        fork = ground.child(partial(ground.train, out))
        fork.ended(rng.uniform(0, 1.0 * ground.seconds))
        started = time.monotonic()
        fork.kill(number)
        if twice and not fork.ended(rng.uniform(0, 0.05)):
            fork.kill(number)
        status = fork.wait()
        took = time.monotonic() - started
        longest = max(longest, took)
        name = f"{'double ' * twice}{signal.Signals(number).name} {trial}"
        ended = status in (0, 130, -number) and took < 10 and "Traceback" not in ground.said()
        if not ended:
            ground.tell(f"{name}: exit {status} after {took:.1f} s: {ground.said()[-600:]}")
        right += ended and ground.goes_on(out, name)
    what = "two Ctrl-Cs within 50 ms" if twice else signal.Signals(number).name
    return f"{count} times {what}; answered within {longest:.1f} s", right, count


# ---- before every call that changes a file


EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "os.chmod"}


def counted(out, at, report):
    """From now on in this process: SIGKILL before the call `at` that changes something below `out`; -1 counts alone."""
    calls, inside = [0], os.fspath(out)

    def call(name):
        calls[0] += 1
        if at < 0:
            report(f"{name}\n")
        elif calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            flags = arguments[2] or 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and os.fsdecode(arguments[0]).startswith(inside):
                call("open")
        elif event in EVENTS and str(arguments[0]).startswith(inside):
            call(event)

    def before(module, name, what=None):
        real = getattr(module, name)

        def replaced(*arguments, **named):
            call(what or name)
            return real(*arguments, **named)

        setattr(module, name, replaced)

    sys.addaudithook(audit)
    for name in ("fsync", "ftruncate"):
        before(os, name)
    before(storage, "save_file")
    before(storage, "replace_folder")
    before(LineFile, "_write", "append")
    save = storage.save_file

    def half(arrays, file, **named):
        save(arrays, file, **named)
        with open(file, "r+b") as whole:
            rest = os.path.getsize(file) // 2
            content = whole.read()
            whole.truncate(rest)
            call("half of a .safetensors")
            whole.seek(0)
            whole.write(content)

    storage.save_file = half


def writes(ground, share=1.0):
    """SIGKILL before every call that changes something in the run folder, one at a time, or before a share of them."""
    reader, writer = os.pipe()
    out = ground.fresh()
    fork = ground.child(lambda: counted(out, -1, lambda line: os.write(writer, line.encode())) or ground.train(out))
    os.close(writer)
    with open(reader, "rb") as file:
        calls = file.read().decode().split("\n")[:-1]
    assert fork.wait() == 0, ground.said()
    points = range(1, len(calls) + 1, max(1, round(1 / share)))
    right = 0
    for at in points:
        out = ground.fresh()
        status = ground.child(lambda at=at, out=out: counted(out, at, None) or ground.train(out)).wait()
        assert status == -signal.SIGKILL, (at, calls[at - 1], status, ground.said())
        right += ground.goes_on(out, f"killed before call {at}, {calls[at - 1]}")
    kinds = ", ".join(f"{count} {name}" for name, count in Counter(calls).most_common())
    return f"{len(points)} of the {len(calls)} write points of a training ({kinds})", right, len(points)


# ---- two programs in one folder


def pairs(ground, count, seed=2):
    """Two programs at once: one is told who the other is, or both are one after the other; nothing is lost."""
    rng, right = random.Random(seed), 0
    for number in range(count):
        out = ground.fresh()
        kind = ("new new", "new resume", "resume resume", "resume average", "average average")[number % 5]
        if not kind.startswith("new"):
            assert ground.child(lambda out=out: ground.train(out, max_steps=6)).wait() == 0
            ground.child(lambda out=out: ground.average(out)).wait()
        calls = {
            "new": lambda out=out: ground.train(out), "resume": lambda out=out: ground.train(out, True),
            "average": lambda out=out: ground.average(out),
        }  # fmt: skip
        forks = []
        for name in kind.split():
            forks.append(ground.child(calls[name]))
            time.sleep(rng.uniform(0, 0.6 * ground.seconds))
        statuses = [fork.wait() for fork in forks]
        good = all(status in (0, 2) for status in statuses) and 0 in statuses
        if not good:
            ground.tell(f"pair {number} ({kind}): exits {statuses}: {ground.said()[-600:]}")
        averaged = RunFolder(out).averaged
        if averaged.exists():
            good = good and bool(storage.read_state(averaged))
            shutil.rmtree(averaged)
        right += good and ground.goes_on(out, f"pair {number} ({kind})")
    return f"{count} pairs of train, train --resume and average in one folder", right, count


# ---- no room


def full(ground, count, seed=3):
    """No file may grow beyond 3 KB for some updates in the middle: said, and made up for when there is room again."""
    rng, right = random.Random(seed), 0
    for number in range(count):
        first = rng.randrange(1, 11)
        last = rng.randrange(first, 11)

        def limited(out, first=first, last=last):
            after, hard = Trainer._after_update, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            checkpointer.RETRY = 0

            def between(self):
                small = first <= self.state.step <= last
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000 if small else hard, hard))
                after(self)

            Trainer._after_update = between
            return ground.train(out)

        out = ground.fresh()
        status = ground.child(lambda out=out, limited=limited: limited(out)).wait()
        log = (out / "log.txt").read_text(encoding="utf-8")
        missed = any(step % 3 == 0 for step in range(first, last + 1))
        told = os.strerror(errno.EFBIG) in log
        good = status == 0 and told >= missed and outcome(out) == ground.expected[0]
        if not good:
            ground.tell(f"full disk {number}, updates {first} to {last}: exit {status}: {ground.said()[-600:]}")
        right += good
    return f"{count} disks that are full for some updates (a limit of 3,000 bytes a file)", right, count


# ---- for a long time


def memory(ground, minutes):
    """A training of so many minutes: resident memory, descriptors and threads after warm-up and at the end."""
    out, samples = ground.fresh("long"), []
    changes = {"max_steps": 10**9, "validate_every": 200, "checkpoint_every": 100, "log_every": 50, "patience": 0}
    fork = Fork(lambda: ground.train(out, **changes))
    ended = time.monotonic() + 60 * minutes
    while time.monotonic() < ended and not fork.ended(min(5.0, max(0.01, ended - time.monotonic()))):
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{fork.pid}/status").read_text().splitlines() if ":" in line
        )
        files = len(os.listdir(f"/proc/{fork.pid}/fd"))
        samples.append((int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"])))
    early = fork.ended()
    fork.kill(signal.SIGTERM)
    status = fork.wait()
    steps = RunFolder(out).steps()[-1].name.removeprefix("step-")
    warm, end = samples[len(samples) // 5], samples[-1]
    grown = end[0] / warm[0] - 1
    right = not early and status == 130 and abs(grown) <= 0.02 and end[1:] == warm[1:]
    if not right:
        ground.tell(f"memory: exit {status}: {warm} grew to {end}; {ground.said()[-300:]}")
    words = f"{minutes:g} minutes, {steps} updates: resident {warm[0]:.1f} MiB after a fifth, {end[0]:.1f} at the end "
    return words + f"({grown:+.1%}); {end[1]} descriptors, {end[2]} threads (were {warm[1]}, {warm[2]})", int(right), 1


def beside(call):
    """The call in a thread; a function that waits for its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result():
        thread.join()
        return found[0]

    return result
