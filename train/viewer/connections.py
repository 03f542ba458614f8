"""Limits on the connections of the page's server, so that clients without the token cannot exhaust it.

A connection without a request in progress is idle: it is new, has sent only part of a request's headers, or has
received the answer to its last request. An idle connection is closed after IDLE_SECONDS; if there are too many
connections, the one that has been idle longest is closed. A request in progress has passed the Guard, which closes the
connection of any request that it rejects.
"""

import resource
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS, MAX_CONNECTIONS = 10.0, 64


class LimitedProtocol(H11Protocol):
    """HTTP over one connection, which may be closed while it is idle."""

    idle_since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        if len(self.connections) > max_connections():
            idle = (c for c in self.connections if isinstance(c, LimitedProtocol) and c.is_idle())
            min(idle, key=lambda connection: connection.idle_since).transport.abort()
        self.close_if_idle()

    def is_idle(self) -> bool:
        """Return whether no request is in progress."""
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Close the connection when the server stops; the job of a request in progress has already been cancelled."""
        self.transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if it has been idle for too long; otherwise check again in a second."""
        if self.is_idle() and self.loop.time() - self.idle_since >= IDLE_SECONDS:
            self.transport.abort()
        if not self.transport.is_closing():
            self.loop.call_later(min(1.0, IDLE_SECONDS), self.close_if_idle)


def max_connections() -> int:
    """Return the maximum number of connections, which leaves file descriptors for the rest of the program."""
    return min(MAX_CONNECTIONS, max(2, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server of `app` with these limits."""
    return uvicorn.Config(app, http=LimitedProtocol, backlog=max_connections(), log_level="error", access_log=False,
                          server_header=False, **options)  # fmt: skip
