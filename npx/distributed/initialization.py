"""Detection of the processes that were launched together, and the world of this process."""

import atexit
import os

from npx import backend
from npx.distributed.world import World
from npx.messages import one_line, pip_install

RANK_VARIABLES = (  # environment variables with rank and size: Open MPI, other PMI launchers, Slurm
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

_world = World()


def world() -> World:
    """Return the world of this process."""
    return _world


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes according to its launcher; (0, 1) without a launcher."""
    for rank, size in RANK_VARIABLES:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def initialize() -> World:
    """Connect the processes that were launched together, and return their world.

    Raises RuntimeError if mpi4py is missing or its MPI does not match the launcher.
    """
    global _world
    rank, size = rank_and_size()
    if size == 1 or _world.size > 1:
        return _world
    try:
        import mpi4py

        mpi4py.rc.thread_level = "serialized"  # only the CommThread calls MPI, so no locks are needed
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py is not installed or does not find its MPI library
        raise RuntimeError(
            f"ranks: expected mpi4py, because {size} processes were launched; got '{one_line(error)}'; "
            f"try {pip_install('mpi')}"
        ) from None
    comm = MPI.COMM_WORLD
    if comm.Get_size() != size:
        raise RuntimeError(
            f"ranks: expected MPI to connect all {size} launched processes; got {comm.Get_size()} connected; "
            "try the mpirun of the MPI that mpi4py uses, or srun --mpi=pmix"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise RuntimeError(
            "ranks: expected an MPI library that supports MPI_THREAD_SERIALIZED; got a lower thread level; "
            f"try Open MPI, with {pip_install('mpi')}"
        )
    from npx.distributed.mpi_world import MpiWorld
    from npx.distributed.nccl_world import NcclWorld

    connected = (NcclWorld if backend.device() == "cuda" else MpiWorld)(comm)
    atexit.register(connected.close)
    _world = connected
    return _world
