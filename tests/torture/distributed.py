"""Training on two and three ranks, where one rank is killed or stopped, or the launcher gets Slurm's signals.

    python -m tests.torture.distributed 36

The runs alternate between the tasks, values of `train.shard_optimizer` and numbers of ranks. After SIGKILL or SIGSTOP
to a rank, the run must end within 30 seconds with a nonzero exit status and a line that names the rank. SIGUSR1 and
SIGTERM are sent to mpirun, and to the script of docs/distributed.md, which passes both on as SIGUSR1. These runs must
end with a checkpoint, which must be that of the last update except after SIGTERM to mpirun. A single process must then
be able to resume each run and reach the weights of an uninterrupted run (float64, to 1e-9). Prints one line per run;
the exit status is 1 if a run fails."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests import ROOT
from tests.helpers import distributed_jobs
from tests.helpers.trainings import tables, write_pairs
from tests.torture.commands import task_tables
from train import RunConfig
from train import train as train_run
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder

VARIANTS = list(product((3, 2), ("translation", "language", "parsing"), (True, False)))  # ranks, task, sharding
FAULTS = ("SIGKILL of a rank", "SIGUSR1 to mpirun", "SIGSTOP of a rank", "SIGUSR1 to the script")
FAULTS += ("SIGTERM to mpirun", "SIGTERM to the script")


def config_of(folder: Path, task: str, **changes) -> RunConfig:
    """Return the configuration of a small training run of a task."""
    changes = {
        "precision": "float64",
        "gradient_accumulation_steps": 2,
        "validate_every": 7,
        "keep_last": 2,
        "lr_scale": 0.1,
    } | changes
    changes |= {"checkpoint_every": 3, "warmup_steps": 6}
    make = tables if task == "translation" else lambda folder, **changes: task_tables(folder, task, **changes)
    return RunConfig.from_dict(make(folder, **changes))


def slurm_script(folder: Path) -> list[str]:
    """Return the command that runs the script of docs/distributed.md with this Python and a fake scontrol."""
    script = re.search(r"#!/bin/bash\n.*?(?=```)", (ROOT / "docs/distributed.md").read_text(encoding="utf-8"), re.S)
    assert script
    scontrol = f"scontrol() {{ echo requeued >{folder}/requeued; }}\n"
    launched = script[0].replace("mpirun -n", " ".join(distributed_jobs.command("", "")[:4]) + " -n")
    (folder / "job.sh").write_text(scontrol + launched.replace("npx-transformer", f"{sys.executable} -m train"))
    return ["bash", str(folder / "job.sh")]


def fault_of(number: int) -> str:
    """Return the fault of a run. It changes between runs of the same variant."""
    return FAULTS[(number + number // len(VARIANTS)) % len(FAULTS)]


def start(folder: Path, size: int, config: RunConfig, is_script: bool) -> tuple[subprocess.Popen[str], Path]:
    """Start a training run with mpirun or with the script; return the process and the run folder."""
    environment = os.environ | distributed_jobs.QUIET | distributed_jobs.AS_ROOT
    environment |= {"SLURM_NTASKS": str(size), "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "1", "PYTHONPATH": str(ROOT)}
    (folder / "configs").mkdir(parents=True)
    (folder / "configs/base.toml").write_text(config.dump())
    out = folder / "runs/base"
    arguments = ["-m", "train", "train", "configs/base.toml", "--out", out, "--quiet"]
    command = slurm_script(folder) if is_script else distributed_jobs.command(size, *arguments)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=pipe,
                               stderr=pipe)  # fmt: skip
    return process, out


def one_run(folder: Path, number: int, rng: random.Random) -> tuple[str, bool]:
    """Return a description of the outcome, and whether it is correct."""
    size, task, shard = VARIANTS[number % len(VARIANTS)]
    fault = fault_of(number)
    folder, signal_number = folder / f"run-{number}", getattr(signal, fault.split()[0])
    name = f"{task} on {size} ranks{', sharded' * shard}: {fault}"
    config = config_of(folder.parent, task, shard_optimizer=shard, max_steps=10**6, rank_timeout=5.0)
    process, out = start(folder, size, config, "script" in fault)
    while not RunFolder(out).step_paths() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 3))
    rank = rng.randrange(size)
    pids = distributed_jobs.rank_pids(process)
    if rank not in pids:
        process.terminate()
        return f"{name}: ended without a signal: {process.communicate(timeout=30)[1]!r}", False
    os.kill(pids[rank] if "rank" in fault.split()[-1] else process.pid, signal_number)
    start_time = time.monotonic()
    try:
        _, errors = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.terminate()
        return f"{name}: not ended within 30 s", False
    seconds = time.monotonic() - start_time
    log = (out / "log.txt").read_text(encoding="utf-8")
    if "a rank" in fault:
        ended = any(f"npx-transformer: rank {rank} of" in line for line in errors.splitlines())
    else:
        ended = "stopped by a signal" in log or fault == "SIGTERM to mpirun"
        ended &= (folder / "requeued").exists() == (fault == "SIGUSR1 to the script")
        ended &= process.returncode == 130 or fault == "SIGTERM to mpirun"
    steps = int(RunFolder(out).step_paths()[-1].name.removeprefix("step-")) + 1
    weights = []
    for path, accumulate in ((out, 2), (folder / "alone", 2 * size)):
        alone = config_of(
            folder.parent, task, shard_optimizer=shard, max_steps=steps, gradient_accumulation_steps=accumulate
        )
        train_run(alone, path, resume=path == out, progress=False)
        weights.append(load_checkpoint(RunFolder(path).step_paths()[-1]).weights)
    same = all(np.allclose(weights[0][key], weights[1][key], rtol=1e-9, atol=1e-9) for key in weights[0])
    end = f"ended in {seconds:.1f} s with status {process.returncode}{'' if ended else f', WRONG: {errors[-500:]}'}"
    after = f"{'resumed to the same' if same else 'resumed to OTHER'} weights at step {steps}"
    return f"{name}: {end}; {after}", bool(process.returncode and ended and same)


def ranks(workspace, count: int, seed: int = 1) -> tuple[str, int, int]:
    """Run `count` training runs; report each, and return a description, the number right and `count`."""
    rng, folder, right = random.Random(seed), workspace.folder / "ranks", 0
    folder.mkdir(parents=True)
    for part, lines in (("train", 40), ("valid", 5)):
        write_pairs(folder, part, lines, seed=lines)
    for number in range(count):
        text, passed = one_run(folder, number, rng)
        workspace.report(f"{number + 1:>3} {'' if passed else 'WRONG '}{text}")
        right += passed
    kinds = Counter(fault_of(number) for number in range(count))
    words = ", ".join(f"{n} {fault}" for fault, n in kinds.items())
    return f"training runs of all tasks on 2 and 3 ranks, half of them sharded: {words}", right, count


if __name__ == "__main__":
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 36
    with tempfile.TemporaryDirectory() as name:
        terminal = SimpleNamespace(folder=Path(name), report=partial(print, flush=True))
        _, n_right, _ = ranks(terminal, n_runs)
    sys.stdout.write(f"{n_right} of {n_runs} runs ended and resumed correctly\n")
    sys.exit(int(n_right < n_runs))
