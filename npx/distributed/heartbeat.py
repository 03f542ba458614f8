"""Detection of ranks that are dead, stopped or stuck."""

import os
import select
import socket
from contextlib import suppress
from typing import Any

import numpy as np

BEAT_INTERVAL = 0.5  # seconds between two heartbeats
ABORTING = np.array([-1], np.int64)  # sent instead of a heartbeat by a rank that aborts the run and reports why


class Heartbeat:
    """Monitors the next rank, so that every rank is monitored by one other rank.

    Every BEAT_INTERVAL seconds, each rank sends a heartbeat with the number of collectives that it has started. This
    rank logs one line and ends all ranks in three cases: the next rank sends no heartbeat for `max_silence` seconds;
    its process has ended (detected only on the same host); or this rank has waited longer than
    `world.collective_timeout` in a collective that the next rank has not started.

    Args:
        peer: name, host and process ID of the next rank.
        now: the current time.monotonic().
    """

    def __init__(self, world: Any, peer: tuple[str, str, int], max_silence: float, now: float) -> None:
        self.world = world
        self.max_silence = max_silence
        self.peer_name, host, pid = peer
        self.exit_fds: list[int] = []  # on the same host: a descriptor that becomes readable when that process ends
        if host == socket.gethostname():
            with suppress(AttributeError, OSError):  # a system without pidfds
                self.exit_fds.append(os.pidfd_open(pid))
        self.receiver = (world.rank - 1) % world.size  # the rank that monitors this one
        self.enabled = True  # False once the ranks are shutting down
        self.last_received = self.last_check = now
        self.last_sent = 0.0
        self.peer_collectives = 0  # collectives that the next rank has started, according to its last heartbeat
        self.pending_sends: list[Any] = []

    def check(self, now: float) -> None:
        """Send and receive heartbeats; end the run if the next rank has failed. The CommThread calls this method."""
        if now - self.last_check > 2 * BEAT_INTERVAL:  # this process itself was suspended
            self.last_received = now
        self.last_check = now
        comm = self.world.heartbeat_comm
        if now - self.last_sent >= BEAT_INTERVAL:
            self.last_sent = now
            self.pending_sends = [request for request in self.pending_sends if not request.Test()]
            started = np.array([self.world.comm_thread.n_collectives], np.int64)
            self.pending_sends.append(comm.Isend(started, self.receiver))
        while comm.Iprobe():
            message = np.empty(1, np.int64)
            comm.Recv(message)
            if message == ABORTING:
                self.enabled = False
            else:
                self.last_received = now
                self.peer_collectives = int(message[0])
        if self.enabled and (failure := self._failure(now - self.last_received, now)):
            self.enabled = False
            self.world.log(f"{failure}; the run ends; try --resume", self.peer_name)
            self.world.end_all(1)

    def _failure(self, silence: float, now: float) -> str:
        """Return a description of the next rank's failure, or "" if it has not failed."""
        comm_thread = self.world.comm_thread
        collective_timeout = self.world.collective_timeout
        if select.select(self.exit_fds, [], [], 0)[0]:
            return "the process has ended (killed or out of memory)"
        if silence > self.max_silence:
            return f"no heartbeat for {silence:.0f} s (train.rank_timeout)"
        waited = now - (comm_thread.waiting_since or now)
        is_behind = silence < 2 * BEAT_INTERVAL and self.peer_collectives < comm_thread.n_collectives
        if collective_timeout is not None and waited > collective_timeout and is_behind:
            return f"this rank has kept another rank waiting for {waited:.0f} s (train.rank_timeout)"
        return ""
