"""Ends the starter of a rank, mpirun or its daemon on another machine, where it does not end by itself.

After an abort mpirun waits for the daemons of all machines, and where one cannot be reached any more, being gone or cut
off, it waits for as long as TCP believes in the connection: a quarter of an hour. The daemon there waits as well. What
ends them has to outlive the rank, which an abort kills: a process of its own.
"""

import os
import subprocess
import sys
from contextlib import suppress

STARTERS = {"prterun", "prted"}  # Open MPI's mpirun and its daemon, by the name that Linux knows them by
PATIENCE = 3  # seconds
UNDERTAKER = """
import select, signal, sys
starter, patience = int(sys.argv[1]), int(sys.argv[2])  # a descriptor, which means this process and no later one
for number in [signal.SIGTERM] * 10 + [signal.SIGKILL]:  # mpirun ends at once where it is told so again
    if select.select([starter], [], [], patience)[0]:
        break
    signal.pidfd_send_signal(starter, number)
    patience = 1
"""


def end_starter(patience: int = PATIENCE) -> None:
    """From now on what started this process is ended if it has not ended within so many seconds.

    Nothing happens where it is none of those that are known, or where the system has no descriptors of processes.
    """
    with suppress(OSError, AttributeError):
        if starter := _starter():
            own = os.pidfd_open(starter)
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            about = [sys.executable, "-S", "-c", UNDERTAKER, str(own), str(patience)]
            subprocess.Popen(about, pass_fds=[own], start_new_session=True, **quiet)  # type: ignore[call-overload]


def _starter() -> int:
    """The process number of the starter above this process; 0 where there is none that is known."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            before, _, after = file.read().rpartition(")")
        if before.partition("(")[2] in STARTERS:
            return pid
        pid = int(after.split()[1])
    return 0
