"""One run, one owner: the lock of a run folder, for whatever writes in it.

RUN/lock is held, by flock, by an open file of the process, and so by nobody once that has ended, however it ended. Over
NFS Linux makes it a lock of the server. It names its owner, for who comes second.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from train.errors import UserError
from train.files import locked, opened, same_file

# Seconds for a lock that the dead hold: a child that had not begun its own program yet has all that they had open.
PATIENCE = 5.0

_own: dict[tuple[int, int], tuple[int, int]] = {}  # folder (device, inode) -> the thread that owns it, its descriptor


class Owned:
    """A run folder that this program owns, for as long as `owned` lasts."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder, self.descriptor = folder, descriptor

    def check(self) -> None:
        """UserError where the folder was moved or deleted since."""
        if not same_file(self.descriptor, self.folder):
            raise UserError(
                f"{self.folder}: expected the run folder that this program writes to; got it moved or deleted; "
                "try moving it back, then --resume"
            )


@contextmanager
def owned(folder: Path, program: str) -> Iterator[Owned]:
    """The folder, which exists, as this thread's own, again or for the first time; UserError says who owns it."""
    place = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        seen = os.fstat(place)
        key, me = (seen.st_dev, seen.st_ino), threading.get_ident()
        if _own.get(key) == (os.getpid(), me):
            yield Owned(folder, place)
            return
        lock, descriptor = folder / "lock", _taken(folder / "lock")
        _own[key] = os.getpid(), me
        try:
            text = {"program": program, "pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%c")}
            with suppress(OSError):  # a full disk: it is held all the same
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(text).encode())
            yield Owned(folder, place)
        finally:
            del _own[key]
            if same_file(descriptor, lock):
                with suppress(OSError):
                    os.unlink(lock)
            os.close(descriptor)
    finally:
        os.close(place)


def _taken(lock: Path) -> int:
    """The descriptor of the lock, held."""
    patience = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if locked(descriptor):
                if same_file(descriptor, lock):
                    return descriptor
            else:
                holder, dead = _holder(lock)
                if not dead or time.monotonic() > patience:
                    raise UserError(
                        f"{lock.parent}: expected a run folder that nobody writes to; got {holder}; "
                        "try again when it has ended, or another folder"
                    )
                time.sleep(0.02)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the one before has just ended


def _holder(lock: Path) -> tuple[str, bool]:
    """Who holds a lock, in words, and whether that process is dead."""
    try:
        with opened(lock) as file:
            told = json.loads(file.read(4096))
        words = f"{told['program']} (process {told['pid']} on {told['host']}, since {told['since']})"
        if told["host"] == socket.gethostname():
            os.kill(told["pid"], 0)
    except ProcessLookupError:
        return words, True
    except PermissionError:
        pass  # somebody else's
    except (UserError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another program", False
    return words, False
