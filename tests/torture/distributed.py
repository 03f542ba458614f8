"""Trainings of three ranks, one of which is killed or stopped at a random moment: `python -m
tests.torture.distributed 30`.

Each must end within 30 seconds with exit status not 0, a line that names the rank, and a whole checkpoint from which
one process goes on to the weights of a run that nothing stopped (float64, to 1e-9). Prints a line a run; exit status 1
where one did not.
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
    """What happened, in words, and whether it is as it must be."""
    out, how = folder / f"run-{number}", rng.choice([signal.SIGKILL, signal.SIGSTOP])
    changes = {"precision": "float64", "accumulate": 2, "validate_every": 7, "keep_last": 2, "lr_scale": 0.1}
    config = RunConfig.from_dict(tables(folder, **changes, max_steps=10**6, rank_timeout=5.0))
    (folder / "config.toml").write_text(config.dump())
    train = ["-m", "train", "train", folder / "config.toml", "--out", out, "--quiet"]
    process = distributed_jobs.started(RANKS, *train)
    while not RunFolder(out).steps() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 3))
    rank = rng.randrange(RANKS)
    ranks = distributed_jobs.processes(process)
    if rank not in ranks:
        process.terminate()
        return f"ended by itself: {process.communicate(timeout=30)[1]!r}", False
    os.kill(ranks[rank], how)
    killed = time.monotonic()
    try:
        _, told = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.terminate()
        return f"{how.name} of rank {rank}: not ended within 30 s", False
    seconds = time.monotonic() - killed
    line = next((line.strip() for line in told.splitlines() if f"npx-transformer: rank {rank} of" in line), "")
    steps = int(RunFolder(out).steps()[-1].name.removeprefix("step-")) + 1
    found = []
    for place, ranks in ((out, RANKS), (folder / f"alone-{number}", 1)):
        changed = changes | {"accumulate": 2 * RANKS // ranks if ranks == 1 else 2, "max_steps": steps}
        train_run(RunConfig.from_dict(tables(folder, **changed)), place, resume=ranks > 1, progress=False)
        found.append(load_checkpoint(RunFolder(place).steps()[-1]).model)
    same = all(np.allclose(found[0][name], found[1][name], rtol=1e-9, atol=1e-9) for name in found[0])
    good = bool(process.returncode and line and same)
    told_so = line or "no line of ours"
    return f"{how.name} of rank {rank}: ended in {seconds:.1f} s, status {process.returncode}: {told_so}; " + (
        f"resumed to the same weights at step {steps}" if same else "resumed to OTHER weights"
    ), good


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
    sys.stdout.write(f"{runs - bad} of {runs} runs ended and went on as they must\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, int(sys.argv[2]) if len(sys.argv) > 2 else 1))
