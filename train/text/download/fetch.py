"""Download files: resume after an interruption, verify the hash, and rename a file only when it is complete."""

import errno
import http.client
import os
import re
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from train.errors import UserError, one_line
from train.files import digest, open_inside
from train.progress import Display, Work
from train.text.download.catalog import Archive

BLOCK = 1 << 20  # bytes
MAX_SIZE = 1 << 28  # bytes of an archive whose size is not published
TIMEOUT = 30.0  # seconds without data after which a connection is considered broken
# A connection is closed if the headers, or any later MIN_BYTES of content, take more than WATCH_SECONDS to arrive.
WATCH_SECONDS = 60.0
MIN_BYTES = 1 << 14
MAX_FAILURES = 5  # maximum number of consecutive connections with fewer than MIN_BYTES
SILENT = Display(enabled=False)


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP and HTTPS only.

    A redirect from HTTPS to HTTP is rejected, because data sent over HTTP can be changed in transit.
    """

    def redirect_request(self, request: Any, *args: Any) -> Any:
        url = args[-1].lower()
        if not url.startswith("https://" if request.full_url.startswith("https://") else ("https://", "http://")):
            raise urllib.error.URLError(f"a redirect to {url[:200]}, which is not followed")
        return super().redirect_request(request, *args)


class Connections(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens the connections of a download, and closes each one WATCH_SECONDS after the last call to `watch`."""

    def __init__(self) -> None:
        super().__init__()
        self.responses = ExitStack()
        self.timer = threading.Timer(WATCH_SECONDS, self.abort)

    def do_open(self, http_class: Any, req: Any, **http_conn_args: Any) -> Any:
        def response(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            self.sock = sock
            self.is_too_slow = False
            self.watch()
            return self.responses.enter_context(http.client.HTTPResponse(sock, *args, **options))

        watched: Any = type("", (http_class,), {"response_class": staticmethod(response)})
        return super().do_open(watched, req, **http_conn_args)

    def watch(self) -> None:
        """Close the connection after WATCH_SECONDS, unless `watch` is called again."""
        self.timer.cancel()
        self.timer = threading.Timer(WATCH_SECONDS, self.abort)
        self.timer.daemon = True
        self.timer.start()

    def abort(self) -> None:
        """Close the connection."""
        self.is_too_slow = True
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.timer.cancel()
        self.responses.close()


def fetch_all(
    archives: Sequence[Archive],
    folder: Path,
    mirror: str = "",
    display: Display = SILENT,
) -> list[dict[str, Any]]:
    """Download the archives that are missing from `folder`, verify all of them, and return their manifest entries.

    Args:
        archives: the files to download.
        folder: where to store the archives. A file that the user has put there is accepted if its hash matches.
        mirror: a folder or URL that replaces the published URLs.
        display: shows the progress of each download.

    Raises UserError for a wrong hash, too little disk space or a failed download. If a download fails, the message
    lists the names and hashes of all missing files.
    """
    missing = [archive for archive in archives if not (folder / archive.name).exists()]
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(archive.size for archive in missing)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: expected {needed / 1e9:.1f} GB of free disk space; got {free / 1e9:.1f} GB; try another --out"
        )
    entries = []
    for archive in archives:
        file = folder / archive.name
        url = f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
        if archive not in missing:
            entries.append(verify(archive, file))
        else:
            try:
                with display.work(archive.name, "MiB") as work:
                    entries.append(fetch(archive, file, url, work))
            except (OSError, ValueError) as error:  # ValueError: an invalid URL
                if getattr(error, "errno", None) == errno.ENOSPC:
                    raise
                absent = "; ".join(f"{a.name} ({a.hash})" for a in archives if not (folder / a.name).is_file())
                reason = one_line(getattr(error, "reason", error) or type(error).__name__)
                raise UserError(
                    f"{archive.name}: expected a complete download; got '{reason}'; try the same command again to "
                    f"resume the download, or copying these files to {folder}: {absent}"
                ) from None
    return entries


def fetch(archive: Archive, file: Path, url: str, work: Work) -> dict[str, Any]:
    """Download a URL, or copy a local file, to `file`; return the manifest entry of `file`.

    A broken connection is retried. `file`.part keeps partial data, from which a later call resumes. Raises OSError if
    the file cannot be downloaded and UserError if its hash is wrong.
    """
    part = file.with_name(f"{file.name}.part")
    if not re.match("[A-Za-z]+:/", url):
        if not Path(url).is_file():
            raise FileNotFoundError(f"no file {url}")
        with open(url, "rb") as source, open(open_inside(part, os.O_WRONLY), "wb") as file_:
            file_.truncate()
            shutil.copyfileobj(source, file_)
    elif not (re.match("https?://[^/]", url) and url.isascii()):
        raise UserError(f"--mirror: expected a folder, or an http:// or https:// URL in ASCII; got {url[:200]}")
    else:
        failures = 0
        while True:
            size_before = part.stat().st_size if part.exists() else 0
            try:
                download(archive, part, url, work)
                break
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 416 and size_before:  # range not satisfiable: the file is already complete
                    break
                if error.code < 500:
                    raise
                reason: Exception = error
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
                reason = error
            failures = 0 if part.exists() and part.stat().st_size >= size_before + MIN_BYTES else failures + 1
            is_unreachable = isinstance(getattr(reason, "reason", None), OSError) and not size_before
            if failures == MAX_FAILURES or is_unreachable:
                raise OSError(one_line(getattr(reason, "reason", reason) or "the connection was closed early"))
            time.sleep(min(TIMEOUT, 0.1 * 2**failures))
    try:
        entry = verify(archive, part, "the same command again, or another --mirror")
    except UserError:
        part.unlink()
        raise
    os.replace(part, file)
    return entry


def download(archive: Archive, part: Path, url: str, work: Work) -> None:
    """Append the rest of a URL's content to `part`. Raises ConnectionError if the content remains incomplete."""
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    with (
        closing(Connections()) as connections,
        urllib.request.build_opener(SafeRedirects, connections).open(request, timeout=TIMEOUT) as response,
    ):
        if size and response.status != 206:  # the server ignores the range and sends the complete file
            size = 0
        elif not response.headers.get("Content-Range", prefix := f"bytes {size}-").startswith(prefix):
            part.unlink(missing_ok=True)
            raise ConnectionError("the server sent a different range than requested")
        length = response.headers.get("Content-Length", "")
        total = size + int(length) if length.isdecimal() and len(length) < 16 else archive.size
        with open(open_inside(part, os.O_WRONLY | os.O_APPEND), "ab") as file:
            if not size:
                file.truncate(0)
            size_watched = size
            work.n_before = size >> 20
            work.total = total >> 20 or None
            while block := response.read1(BLOCK):
                file.write(block)
                size += len(block)
                if size >= size_watched + MIN_BYTES:
                    size_watched = size
                    connections.watch()
                work.done = size >> 20
                if size > (limit := archive.size or MAX_SIZE):
                    part.unlink()
                    raise UserError(f"{archive.name}: expected {limit:,} bytes; got more; try another --mirror")
            if connections.is_too_slow:
                raise TimeoutError(f"fewer than {MIN_BYTES:,} bytes in {WATCH_SECONDS:g} seconds")
    if total and size < total:
        raise ConnectionError("the connection was closed early")


def verify(
    archive: Archive, file: Path, suggestion: str = "deleting it and running the command again"
) -> dict[str, Any]:
    """Return the manifest entry of a file; raise UserError if its hash is wrong."""
    sha256 = digest(file)
    size = file.stat().st_size
    if archive.md5 and not archive.sha256:
        actual = digest(file, "md5")
        expected = archive.md5
    else:
        actual = sha256
        expected = archive.sha256 or sha256
    if actual != expected:
        sizes = f"{size:,} bytes of {archive.size:,}" if archive.size else f"{size:,} bytes"
        raise UserError(f"{file}: expected {archive.hash}; got {actual} ({sizes}); try {suggestion}")
    checked_by = "sha256" if archive.sha256 else "md5" if archive.md5 else "nothing published"
    return {"file": archive.name, "url": archive.url, "bytes": size, "sha256": sha256, "checked_by": checked_by}
