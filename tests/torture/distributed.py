"""Trainings on three ranks, one of which is killed or stopped at a random time.

    python -m tests.torture.distributed 30

Each run must end within 30 seconds with a nonzero exit status, a line that names the rank, and a valid checkpoint from
which one process resumes to the weights of an uninterrupted run (float64, to 1e-9). Prints one line per run; the exit
status is 1 if a run fails.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.helpers import distributed_jobs
from tests.helpers.trainings import tables, write_pairs
from train import RunConfig
from train import train as train_run
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder

RANKS = 3


def one_run(folder: Path, number: int, rng: random.Random) -> tuple[str, bool]:
    """Return a description of the outcome, and whether it is correct."""
    out, signal_number = folder / f"run-{number}", rng.choice([signal.SIGKILL, signal.SIGSTOP])
    changes = {"precision": "float64", "accumulate": 2, "validate_every": 7, "keep_last": 2, "lr_scale": 0.1}
    config = RunConfig.from_dict(tables(folder, **changes, max_steps=10**6, rank_timeout=5.0))
    (folder / "config.toml").write_text(config.dump())
    train = ["-m", "train", "train", folder / "config.toml", "--out", out, "--quiet"]
    process = distributed_jobs.launch(RANKS, *train)
    while not RunFolder(out).steps() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 3))
    rank = rng.randrange(RANKS)
    ranks = distributed_jobs.rank_pids(process)
    if rank not in ranks:
        process.terminate()
        return f"ended without a signal: {process.communicate(timeout=30)[1]!r}", False
    os.kill(ranks[rank], signal_number)
    killed = time.monotonic()
    try:
        _, errors = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.terminate()
        return f"{signal_number.name} of rank {rank}: not ended within 30 s", False
    seconds = time.monotonic() - killed
    line = next((line.strip() for line in errors.splitlines() if f"npx-transformer: rank {rank} of" in line), "")
    steps = int(RunFolder(out).steps()[-1].name.removeprefix("step-")) + 1
    weights = []
    for path, ranks in ((out, RANKS), (folder / f"alone-{number}", 1)):
        changed = changes | {"accumulate": 2 * RANKS // ranks if ranks == 1 else 2, "max_steps": steps}
        train_run(RunConfig.from_dict(tables(folder, **changed)), path, resume=ranks > 1, progress=False)
        weights.append(load_checkpoint(RunFolder(path).steps()[-1]).model)
    same = all(np.allclose(weights[0][name], weights[1][name], rtol=1e-9, atol=1e-9) for name in weights[0])
    good = bool(process.returncode and line and same)
    message = line or "no message"
    return (
        f"{signal_number.name} of rank {rank}: ended in {seconds:.1f} s, status {process.returncode}: {message}; "
        + (f"resumed to the same weights at step {steps}" if same else "resumed to OTHER weights"),
        good,
    )


def main(runs: int, seed: int) -> int:
    rng, bad = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        for part, count in (("train", 40), ("valid", 5)):
            write_pairs(Path(name), part, count, seed=count)
        for number in range(runs):
            text, good = one_run(Path(name), number, rng)
            bad += not good
            sys.stdout.write(f"{number + 1:>3} {'' if good else 'WRONG '}{text}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{runs - bad} of {runs} runs ended and resumed correctly\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, int(sys.argv[2]) if len(sys.argv) > 2 else 1))
