"""Who may talk to the page's server: the browser of whoever started it, on this machine, and nobody else.

The server binds 127.0.0.1, which every user of a machine reaches, and so does any page that a browser has open. So a
request needs a Host that is ours to the letter (a name that somebody lets point here is not), the token that was
printed with the address or the cookie that came for it (HttpOnly, SameSite=Strict), and, to do anything, JSON from our
Origin. What the server gives out may load nothing from anywhere else.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

MOST = 64 * 1024  # bytes of a request's body
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
    """The application `app`, for requests that may be answered; others get a line that says why not."""

    def __init__(self, app: Any, port: int, token: str = "") -> None:
        self.app, self.token = app, token or secrets.token_urlsafe(24)
        self.hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}
        self.cookie = f"npx-{port}"  # browsers keep cookies by host, whatever the port

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        first = self.printed(scope)
        status, why = self.refusal(scope, first)

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name.decode() not in HEADERS]
                headers += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if first and not status:
                    cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                    headers.append((b"set-cookie", cookie.encode()))
                message = message | {"headers": headers}
            await send(message)

        if status:
            return await refuse(sending, status, why)
        body = await whole(receive) if scope["method"] == "POST" else b""
        if body is None:
            return await refuse(sending, 413, f"expected at most {MOST:,} bytes")
        given = False

        async def receiving() -> Any:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, receiving, sending)

    def printed(self, scope: Mapping[str, Any]) -> bool:
        """Whether this is the address that was printed, with the token in it."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        return scope["path"] == "/" and any(self.same(token) for token in query.get("token", ()))

    def same(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())

    def refusal(self, scope: Mapping[str, Any], first: bool) -> tuple[int, str]:
        """The status and the reason of a refusal; 0 for none."""
        headers: dict[str, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value)
        host = headers.get("host", [])
        if len(host) != 1 or host[0] not in self.hosts:
            return 400, "expected this server's own name as the only Host"
        if scope["method"] not in ("GET", "POST"):
            return 405, "expected GET or POST"
        if headers.get("sec-fetch-site", [b"same-origin"]) not in ([b"same-origin"], [b"none"]) and not first:
            return 403, "expected a request of this server's own page"
        if not (first or any(self.same(token) for token in self.tokens(headers))):
            return 403, "expected the token: open the address that npx-transformer serve prints"
        if scope["method"] == "POST":
            if headers.get("content-type", []) != [b"application/json"]:
                return 415, "expected application/json"
            if headers.get("origin", []) != [b"http://" + host[0]]:
                return 403, "expected this server's own Origin"
            length = headers.get("content-length", [b"0"])[0]
            if not length.isdigit() or int(length) > MOST:
                return 413, f"expected at most {MOST:,} bytes"
        return 0, ""

    def tokens(self, headers: Mapping[str, list[bytes]]) -> list[str]:
        """What the request has as our cookie."""
        try:
            found = [SimpleCookie(value.decode("latin-1")).get(self.cookie) for value in headers.get("cookie", ())]
        except CookieError:
            return []
        return [morsel.value for morsel in found if morsel]


async def refuse(send: Send, status: int, why: str) -> None:
    body = f"{status}: {why}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def whole(receive: Receive) -> bytes | None:
    """The body of a request; None where it is too long."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > MOST:
            return None
    return b"".join(parts)
