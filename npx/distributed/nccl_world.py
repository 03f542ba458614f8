"""Processes with one GPU each: arrays are transferred by NCCL, everything else by MPI."""

import os
import socket
from typing import Any

from npx import backend
from npx.distributed.mpi_world import MpiWorld
from npx.distributed.nccl import NcclCollectives
from npx.distributed.world import Wait

LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")  # the rank within its host


class NcclWorld(MpiWorld):
    """The processes of an MPI communicator, each with its own GPU."""

    def __init__(self, comm: Any) -> None:
        cupy = backend.cupy_with_a_gpu()
        from cupy.cuda import nccl

        super().__init__(comm)
        local_ranks = (int(os.environ[name]) for name in LOCAL_RANK_VARIABLES if os.environ.get(name, "").isdigit())
        device = cupy.cuda.Device(next(local_ranks, self.rank) % cupy.cuda.runtime.getDeviceCount())
        device.use()
        backend.limit_memory(cupy)  # applies only to the current GPU, which has just changed
        has_nccl = self.all_gather_object(nccl.available)
        gpus = self.all_gather_object((socket.gethostname(), device.pci_bus_id))
        if not all(has_nccl):
            raise RuntimeError(
                f"ranks: CuPy on rank {has_nccl.index(False)} has no NCCL support; "
                "try CuPy's installation guide, or --device cpu"
            )
        if len({*gpus}) < self.size:
            second_rank = next(r for r, gpu in enumerate(gpus) if gpu in gpus[:r])
            raise RuntimeError(
                f"ranks: expected one GPU per rank; got the same GPU for ranks {gpus.index(gpus[second_rank])} and "
                f"{second_rank}; try fewer ranks per host"
            )
        unique_id = self.broadcast_object(nccl.get_unique_id() if self.rank == 0 else None)
        self.collectives = NcclCollectives(cupy, nccl, unique_id, self)

    @property
    def wait_seconds(self) -> float:
        return super().wait_seconds + self.collectives.wait_seconds()

    # The host cannot see whether a rank is missing from an NCCL collective, so each collective also starts an MPI
    # barrier.

    def reduce_scatter(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        self.comm_thread.submit(self._barrier())
        return self.collectives.reduce_scatter(flat, wire_dtype)

    def all_gather(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        self.comm_thread.submit(self._barrier())
        return self.collectives.all_gather(flat, wire_dtype)

    def all_reduce(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        self.comm_thread.submit(self._barrier())
        return self.collectives.all_reduce(flat, wire_dtype)
