"""Access control of the page's server: only the browser of the user who started the server may use it.

The server binds 127.0.0.1, which every local user and every open web page can reach. A request therefore needs an exact
Host header, to prevent DNS rebinding. It also needs the token that is printed with the address, or the cookie that the
server sets when it receives the token (HttpOnly, SameSite=Strict). To prevent CSRF, a POST must also have a JSON body
and our own Origin. A content security policy prevents the page from loading anything from elsewhere.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

MAX_BODY = 64 * 1024  # bytes
BODY_SECONDS = 10.0  # seconds until the body of a request must be complete
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Guard:
    """Pass permitted requests to the application `app`; answer all others with one line that gives the reason."""

    def __init__(self, app: Any, port: int, token: str = "") -> None:
        self.app = app
        self.token = token or secrets.token_urlsafe(24)
        self.hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}
        self.cookie = f"npx-{port}"  # browsers share cookies between ports of a host

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        is_login = self.has_token(scope)
        status, reason = self.refusal(scope, is_login)

        async def guarded_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name.decode() not in HEADERS]
                headers += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if is_login and not status:
                    cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    headers.append((b"set-cookie", cookie.encode()))
                message = message | {"headers": headers}
            await send(message)

        if status:
            return await refuse(guarded_send, status, reason)
        try:
            body = await asyncio.wait_for(read_body(receive), BODY_SECONDS) if scope["method"] == "POST" else b""
        except TimeoutError:
            return await refuse(guarded_send, 408, f"expected the complete request within {BODY_SECONDS:g} s")
        if body is None:
            return await refuse(guarded_send, 413, f"expected at most {MAX_BODY:,} bytes")
        replayed = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay_body() -> Any:
            return replayed.pop() if replayed else await receive()

        await self.app(scope, replay_body, guarded_send)

    def has_token(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the request is for the printed address, with the token in its query."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        return scope["path"] == "/" and any(self.matches(token) for token in query.get("token", ()))

    def matches(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())

    def refusal(self, scope: Mapping[str, Any], is_login: bool) -> tuple[int, str]:
        """Return the status and reason of a rejection; status 0 permits the request."""
        headers: dict[str, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value)
        host = headers.get("host", [])
        if len(host) != 1 or host[0] not in self.hosts:
            return 400, "expected exactly one Host header with this server's own name"
        if scope["method"] not in ("GET", "POST"):
            return 405, "expected GET or POST"
        if headers.get("sec-fetch-site", [b"same-origin"]) not in ([b"same-origin"], [b"none"]) and not is_login:
            return 403, "expected a request from this server's own page"
        if not (is_login or any(self.matches(token) for token in self.cookies(headers))):
            return 403, "missing or wrong token; open the address that `npx-transformer serve` printed"
        if scope["method"] == "POST":
            if headers.get("content-type", []) != [b"application/json"]:
                return 415, "expected content type application/json"
            if headers.get("origin", []) != [b"http://" + host[0]]:
                return 403, "expected the address of this server as Origin"
        return 0, ""

    def cookies(self, headers: Mapping[str, list[bytes]]) -> list[str]:
        """Return the values of our cookie. SimpleCookie takes quadratic time for some headers (CVE-2024-7592)."""
        cookies = b";".join(headers.get("cookie", ())).decode("latin-1").split(";")
        pairs = (cookie.strip().partition("=") for cookie in cookies)
        return [value for name, _, value in pairs if name == self.cookie]


async def refuse(send: Send, status: int, reason: str) -> None:
    """Answer with a status and a reason, and close the connection, so that each attempt needs a new connection."""
    body = f"{status}: {reason}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes | None:
    """Return the body of a request, or None if it is too long."""
    parts = []
    size = 0
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > MAX_BODY:
            return None
    return b"".join(parts)
