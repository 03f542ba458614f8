"""Termination of an mpirun that hangs after an abort. NPX_KILL_LAUNCHER=1 enables it.

After an abort mpirun waits for its daemons on all hosts. If a host is down or unreachable, mpirun waits until its TCP
connection times out, after about 15 minutes; a daemon that cannot reach mpirun waits equally long. An abort also kills
the rank itself, so only a separate process can end the launcher.
"""

import os
import subprocess
import sys
from contextlib import suppress

LAUNCHERS = {"prterun", "prted"}  # Open MPI's mpirun and its daemon, as their processes are named on Linux
GRACE_PERIOD = 3  # seconds until the launcher is ended
KILLER = """
import select, signal, sys
launcher, seconds = int(sys.argv[1]), int(sys.argv[2])  # a pidfd never refers to a later process
for number in [signal.SIGTERM] * 10 + [signal.SIGKILL]:  # mpirun ends at once when it receives SIGTERM a second time
    if select.select([launcher], [], [], seconds)[0]:
        break
    signal.pidfd_send_signal(launcher, number)
    seconds = 1
"""


def end_launcher() -> None:
    """Start a process that ends this rank's launcher unless the launcher exits within GRACE_PERIOD seconds.

    Does nothing for an unknown launcher, or on a system without pidfds.
    """
    with suppress(OSError, AttributeError):
        if pid := _launcher_pid():
            pidfd = os.pidfd_open(pid)
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            command = [sys.executable, "-S", "-c", KILLER, str(pidfd), str(GRACE_PERIOD)]
            subprocess.Popen(command, pass_fds=[pidfd], start_new_session=True, **streams)  # type: ignore[call-overload]


def _launcher_pid() -> int:
    """Return the process ID of the launcher that started this process, directly or indirectly; 0 if it is unknown."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            start, _, fields = file.read().rpartition(")")
        if start.partition("(")[2] in LAUNCHERS:
            return pid
        pid = int(fields.split()[1])
    return 0
