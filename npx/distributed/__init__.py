"""Data-parallel training with several processes: this process's rank, and collective operations between the ranks.

`mpirun -n 8 npx-transformer train ...` starts eight processes, each with a `rank` from 0 to `size` - 1. The other
packages use only a `World`. `world()` returns the world of this process: by default a single rank, whose collectives
do nothing and which never imports mpi4py. `initialize()` connects this process to all others launched with it.

    world = npx.distributed.initialize()
    world.all_reduce(flat)()        # replaces every rank's flat array with the sum over the ranks
    world.all_gather_object(value)  # returns every rank's value, in the order of the ranks, on every rank

An all-reduce has two phases. In the reduce-scatter, rank r receives part r of the array from every rank and adds these
parts in rank order; the all-gather then distributes the sums. MPI only transfers data, so the result is bitwise
identical on every rank and in every run, whatever route the messages take. Each of k ranks sends 2 (k - 1) / k times
the size of the array, the least possible; `bytes_sent` counts these bytes.

Only one thread calls MPI (`CommThread`), and it never blocks in MPI: it polls requests and sleeps in between. A waiting
rank thus leaves its core to other processes, can handle signals and knows how long it has waited. Every rank monitors
the next one (`Heartbeat`), so no rank waits forever for a rank that is dead, stopped or stuck.
"""

from npx.distributed.initialization import initialize, rank_and_size, world
from npx.distributed.world import World
