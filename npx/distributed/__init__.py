"""Several processes that train one model: which of them this is, and how they add up and tell each other things.

`mpirun -n 8 npx-transformer train ...` starts eight; each has a `rank` from 0 to `size` - 1. Nothing above npx knows
more of them than a `World`: `world()`. In a process that nobody started with others it is that of one rank, in which
adding up changes nothing, and neither mpi4py nor MPI is looked for. `join()` makes it the world of all that were
started.

    world = npx.distributed.join()
    world.all_reduce(flat)()        # every rank's flat array becomes the sum over the ranks
    world.gather(thing)             # what every rank gives, in the order of ranks, on every rank

A sum is formed in two moves, each of which only carries numbers: rank r gets part r of the array from every rank and
adds in the order of ranks (`reduce_scatter`), then all get all parts (`all_gather`). So whatever way the messages take,
the same numbers give the same bits, on every rank; and each rank sends 2 (k - 1) / k of the array, as little as can be.
`sent` counts these bytes.

One thread calls MPI (`CommThread`), and nobody waits inside of it: a request is looked at, with sleep between, so
that a
rank which waits leaves its core to others, hears signals, and knows for how long it has waited. Every rank watches the
next one (`Heartbeat`), so that none waits for a rank that has died, or was stopped, or does not come.
"""

from npx.distributed.launcher import join, started, world
from npx.distributed.world import World
