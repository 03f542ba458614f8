"""Processes with a GPU each: arrays go through NCCL, all else through MPI."""

import os
import socket
from typing import Any

from npx import array
from npx.distributed.mpi_world import MpiWorld
from npx.distributed.nccl import NcclCollectives
from npx.distributed.world import Wait

LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")  # which of the ranks of its machine


class NcclWorld(MpiWorld):
    """Processes of which each has a GPU of its own."""

    def __init__(self, comm: Any) -> None:
        cupy = array.cupy_with_a_gpu()
        from cupy.cuda import nccl

        super().__init__(comm)
        local = next((int(os.environ[name]) for name in LOCAL if os.environ.get(name, "").isdigit()), self.rank)
        device = cupy.cuda.Device(local % cupy.cuda.runtime.getDeviceCount())
        device.use()
        array.limit_memory(cupy)  # a limit is of the GPU that is current, which was the first until now
        available, taken = self.gather(nccl.available), self.gather((socket.gethostname(), device.pci_bus_id))
        if not all(available):
            raise RuntimeError(
                f"ranks: expected a CuPy with NCCL; got one without on rank {available.index(False)}; "
                "try CuPy's page on installing it, or --device cpu"
            )
        if len({*taken}) < self.size:
            twice = next(r for r, gpu in enumerate(taken) if gpu in taken[:r])
            raise RuntimeError(
                f"ranks: expected a GPU for each rank; got one for ranks {taken.index(taken[twice])} and {twice}; "
                "try fewer ranks on a machine"
            )
        unique = self.broadcast(nccl.get_unique_id() if self.rank == 0 else None)
        self.links = NcclCollectives(cupy, nccl, unique, self)

    @property
    def waited(self) -> float:
        return super().waited + self.links.waited()

    # A rank that does not come is told by MPI, in which all meet beside: of NCCL's wait the host knows nothing.

    def reduce_scatter(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        self.carrier.carry(self._barrier())
        return self.links.reduce_scatter(flat, wire_dtype)

    def all_gather(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        self.carrier.carry(self._barrier())
        return self.links.all_gather(flat, wire_dtype)

    def all_reduce(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        self.carrier.carry(self._barrier())
        return self.links.all_reduce(flat, wire_dtype)
