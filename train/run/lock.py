"""The lock of a run folder: at most one program writes in it at a time.

RUN/lock is an flock on an open file, so it ends with the process, however that ends. Over NFS, Linux makes it a lock
on the server. The file names its holder, for the message to a second program.
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
from train.files import is_same_file, open_for_reading, try_lock

# Seconds to wait for the lock of a dead process: a child it forked may still hold the descriptor until it calls exec.
PATIENCE = 5.0

_held: dict[tuple[int, int], tuple[int, int]] = {}  # folder (device, inode) -> (process id, thread) that holds its lock


class FolderLock:
    """A run folder that this program has locked."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder, self.descriptor = folder, descriptor

    def check(self) -> None:
        """Raise UserError if the folder was moved or deleted since it was locked."""
        if not is_same_file(self.descriptor, self.folder):
            raise UserError(
                f"{self.folder}: expected the run folder of this program; got a moved or deleted one; "
                "try moving it back, then --resume"
            )


@contextmanager
def lock_folder(folder: Path, program: str) -> Iterator[FolderLock]:
    """Hold the lock of an existing folder; nested calls of one thread share it.

    Raises UserError, naming the holder, if another program or thread holds it.
    """
    folder_descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(folder_descriptor)
        key, holder = (status.st_dev, status.st_ino), (os.getpid(), threading.get_ident())
        if _held.get(key) == holder:
            yield FolderLock(folder, folder_descriptor)
            return
        lock, descriptor = folder / "lock", _acquire(folder / "lock")
        _held[key] = holder
        try:
            text = {"program": program, "pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%c")}
            with suppress(OSError):  # on a full disk the lock still holds
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(text).encode())
            yield FolderLock(folder, folder_descriptor)
        finally:
            del _held[key]
            if is_same_file(descriptor, lock):
                with suppress(OSError):
                    os.unlink(lock)
            os.close(descriptor)
    finally:
        os.close(folder_descriptor)


def _acquire(lock: Path) -> int:
    """Return the descriptor of the locked file."""
    deadline = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if try_lock(descriptor):
                if is_same_file(descriptor, lock):
                    return descriptor
            else:
                holder, dead = _describe_holder(lock)
                if not dead or time.monotonic() > deadline:
                    raise UserError(
                        f"{lock.parent}: expected an unlocked run folder; got one in use by {holder}; "
                        "try again when it has finished, or use another folder"
                    )
                time.sleep(0.02)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder has just ended and removed the file


def _describe_holder(lock: Path) -> tuple[str, bool]:
    """Return who holds a lock, in words, and whether that process is dead."""
    try:
        with open_for_reading(lock) as file:
            holder = json.loads(file.read(4096))
        words = f"{holder['program']} (process {holder['pid']} on {holder['host']}, since {holder['since']})"
        if holder["host"] == socket.gethostname():
            os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return words, True
    except PermissionError:
        pass  # a process of another user
    except (UserError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another program", False
    return words, False
