"""Files from the network: gone on with where they broke off, held to their hash, under their name only when whole."""

import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train.errors import UserError, one_line
from train.text.download.catalog import Archive

BLOCK = 1 << 20  # bytes
WAIT = 30.0  # seconds without a byte until a connection counts as broken
TRIES = 5  # connections in a row that bring nothing
Told = Callable[[Archive, int, int], object]  # archive, bytes there, bytes in all (0: unknown)


def fetch_all(
    archives: Sequence[Archive], folder: Path, mirror: str = "", told: Told = lambda *_: None, wait: float = WAIT
) -> list[dict[str, Any]]:
    """Every archive in `folder`, fetched where it is not there; what each is, for the manifest.

    `mirror`: a folder, or a URL, with files of these names, instead of where they are published. A file that was put
    there by hand is taken, if it has the hash. Raises UserError, in one line: for a wrong hash, for too little room,
    and, where nothing can be fetched, with the names and hashes of all that is missing.
    """
    missing = [archive for archive in archives if not (folder / archive.name).is_file()]
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = sum(archive.size for archive in missing), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: expected room for {needed / 1e9:.1f} GB to fetch; got {free / 1e9:.1f} GB; try another --out"
        )
    found = []
    for archive in archives:
        file, url = folder / archive.name, f"{mirror.rstrip('/')}/{archive.name}" if mirror else archive.url
        if archive not in missing:
            found.append(verified(archive, file))
        else:
            try:
                found.append(fetch(archive, file, url, told, wait))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                absent = "; ".join(f"{a.name} ({a.hash})" for a in archives if not (folder / a.name).is_file())
                reason = one_line(getattr(error, "reason", error) or type(error).__name__)
                raise UserError(
                    f"{archive.name}: expected to fetch it; got '{reason}'; try the same command again, which goes on "
                    f"where this stopped, or put by hand into {folder}: {absent}"
                ) from None
    return found


def fetch(archive: Archive, file: Path, url: str, told: Told = lambda *_: None, wait: float = WAIT) -> dict[str, Any]:
    """Writes the file at a URL, or at a path, and returns what it is, as `verified` does.

    What has come is kept in `file`.part and gone on with; a connection that breaks is made again. Raises OSError where
    the file cannot be had, UserError where its hash is wrong.
    """
    part = file.with_name(f"{file.name}.part")
    if "://" not in url:
        if not Path(url).is_file():
            raise FileNotFoundError(f"no file {url}")
        shutil.copyfile(url, part)
    else:
        failed = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                if download(archive, part, url, told, wait):
                    break
                reason: Exception = ConnectionError("the connection broke off")
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 416 and before:  # there is nothing after what has come
                    break
                if error.code < 500:
                    raise
                reason = error
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
                reason = error
            failed = 0 if part.exists() and part.stat().st_size > before else failed + 1
            nobody = isinstance(getattr(reason, "reason", None), OSError) and not before
            if failed == TRIES or nobody:
                raise OSError(one_line(getattr(reason, "reason", reason) or "the connection broke off"))
            time.sleep(min(wait, 0.1 * 2**failed))
    try:
        found = verified(archive, part)
    except UserError:
        part.unlink()
        raise
    os.replace(part, file)
    return found


def download(archive: Archive, part: Path, url: str, told: Told, wait: float) -> bool:
    """Adds what comes of a URL to `part`; whether that was all of it."""
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    with urllib.request.urlopen(request, timeout=wait) as answer:
        if there and answer.status != 206:  # it sends the whole again
            there = 0
        length = answer.headers.get("Content-Length")
        total = there + int(length) if length else archive.size
        with part.open("ab" if there else "wb") as file:
            while block := answer.read1(BLOCK):
                file.write(block)
                there += len(block)
                told(archive, there, total)
    return not total or there >= total


def verified(archive: Archive, file: Path) -> dict[str, Any]:
    """What a file is, for the manifest; UserError where it has not the hash it is held to."""
    hashes = {name: hashlib.new(name) for name in ("sha256", "md5")}
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            for one in hashes.values():
                one.update(block)
    sha256, md5 = (one.hexdigest() for one in hashes.values())
    found, expected = (md5, archive.md5) if archive.md5 and not archive.sha256 else (sha256, archive.sha256 or sha256)
    size = file.stat().st_size
    if found != expected:
        sizes = f"{size:,} bytes of {archive.size:,}" if archive.size else f"{size:,} bytes"
        raise UserError(
            f"{file}: expected {archive.hash}; got {found} ({sizes}); try removing it and fetching it again"
        )
    checked = "sha256" if archive.sha256 else "md5" if archive.md5 else "nothing published"
    return {"file": archive.name, "url": archive.url, "bytes": size, "sha256": sha256, "checked_by": checked}


@contextmanager
def shown_progress(wanted: bool = True) -> Iterator[Told]:
    """A progress bar on stderr for what is fetched, where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not (wanted and console.is_terminal):
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def told(archive: Archive, there: int, total: int) -> None:
            if archive.name not in tasks:
                tasks[archive.name] = bar.add_task(archive.name, total=total or None)
            bar.update(tasks[archive.name], completed=there)

        yield told
