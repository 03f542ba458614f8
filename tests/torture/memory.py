"""Long training runs of three tasks: memory, file descriptors and threads do not grow."""

import gc
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

from tests.helpers.forks import Fork
from tests.torture.commands import training
from train.run.folder import RunFolder

CHANGES = {"max_steps": 10**9, "validate_every": 200, "checkpoint_every": 100, "log_every": 50, "patience": 0}
GROWTH = 0.02  # the largest change of the resident memory, as a fraction
# Set when the training runs have been forked. Other parts that run at the same time start later: a fork inherits their
# open files, and closing one of them would look like a change in the training run.
started = threading.Event()


def memory(workspace, minutes):
    """Train for some minutes, all tasks at once; compare each process after a fifth of the time and at the end."""
    out = {task: workspace.new_run(f"long-{task}") for task in ("translation", "language", "parsing")}
    programs = {task: partial(training, workspace.folder, task, out[task], **CHANGES) for task in out}
    programs["translation"] = partial(workspace.train, out["translation"], **CHANGES)
    forks = {}
    gc.collect()  # closes the files of unreachable objects, which the training runs would inherit and close later
    for task, program in programs.items():
        with open(workspace.folder / f"stderr-{task}", "wb") as err:
            forks[task] = Fork(program, {2: err.fileno()})
    started.set()
    samples = {task: [] for task in forks}
    deadline = time.monotonic() + 60 * minutes
    while (left := deadline - time.monotonic()) > 0 and not any(fork.ended() for fork in forks.values()):
        for task, fork in forks.items():
            samples[task].append(sample(fork.pid))
        time.sleep(min(5.0, left))
    ended = {task for task, fork in forks.items() if fork.ended()}
    for fork in forks.values():
        fork.kill(signal.SIGTERM)
    words, right = [], 0
    for task, fork in forks.items():
        status, (warm, *start), (last, *end) = fork.wait(), samples[task][len(samples[task]) // 5], samples[task][-1]
        steps = int(RunFolder(out[task]).step_paths()[-1].name.removeprefix("step-"))
        words.append(f"{task}: {steps:,} updates, {warm:.1f} MiB and {last:.1f} ({last / warm - 1:+.1%})")
        if task not in ended and status == 130 and abs(last / warm - 1) <= GROWTH and start == end:
            right += 1
        else:
            stderr = (workspace.folder / f"stderr-{task}").read_text(encoding="utf-8", errors="replace")
            workspace.report(
                f"memory: exit {status}: {words[-1]}; descriptors, threads: {start}, {end}; {stderr[-300:]}"
            )
    each = "resident memory after a fifth of the time and at the end"
    words = f"{minutes:g} minutes of three training runs at once; {each}: {'; '.join(words)}"
    return f"{words}; the numbers of file descriptors and threads must stay the same", right, len(forks)


def sample(pid):
    """Return the resident memory of a process in MiB, and its numbers of file descriptors and threads."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(status["VmRSS"].split()[0]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])
