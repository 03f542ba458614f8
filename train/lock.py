"""The lock of a run or data folder: at most one program writes to it at a time.

The program keeps the file `lock` in the folder open and locked with flock, so the system releases the lock when the
process ends for any reason. Over NFS, Linux locks the file on the server. The file names the program that holds the
lock, so that a second program can report it.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from train.errors import UserError
from train.files import is_same_file, open_for_reading, open_locked
from train.json_files import parse_json, reject_links

# Seconds to wait for the lock of a dead process, whose child may hold the descriptor until the child calls exec.
LOCK_WAIT_SECONDS = 5.0

# The folders inside a run, in which this program writes and removes files.
FOLDERS = "checkpoints", "data", "data/train", "data/valid", "tensorboard"

# Maps a locked folder (device, inode) to the (process id, thread) that holds the lock, and to the lock's descriptor.
_held: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}


class FolderLock:
    """A folder that this program has locked."""

    def __init__(self, folder: Path, descriptor: int, lock_descriptor: int) -> None:
        self.folder, self.descriptor, self.lock_descriptor = folder, descriptor, lock_descriptor

    def check(self) -> None:
        """Raise UserError if the folder was moved or deleted, its lock was removed, or a folder inside it is a link.

        If the lock file is gone, another program may have locked the folder, so this program must stop writing.
        """
        if not is_same_file(self.descriptor, self.folder):
            raise UserError(
                f"{self.folder} was moved or deleted while this program was using it; move it back, then --resume"
            )
        if not is_same_file(self.lock_descriptor, lock := self.folder / "lock"):
            event = "replaced by that of another program" if lock.exists() else "removed"
            suggestion = "try --resume when no other program is using the folder"
            raise UserError(f"{lock}: this program's lock was {event}; {suggestion}")
        reject_links(*(self.folder / name for name in FOLDERS))


@contextmanager
def lock_folder(folder: Path, program: str) -> Iterator[FolderLock]:
    """Lock an existing folder during this block. Nested calls in one thread share the lock.

    Raises UserError, naming the holder, if another program or thread holds it.
    """
    folder_descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(folder_descriptor)
        key = (status.st_dev, status.st_ino)
        holder = (os.getpid(), threading.get_ident())
        if key in _held and _held[key][0] == holder:
            yield FolderLock(folder, folder_descriptor, _held[key][1])
            return
        lock = folder / "lock"
        deadline = time.monotonic() + LOCK_WAIT_SECONDS
        descriptor = open_locked(lock, partial(_wait, lock, deadline))
        content = os.pread(descriptor, 12, 0).strip(b"\0")  # a power loss may leave null bytes
        if not b'{"program": '.startswith(content):
            os.close(descriptor)
            raise UserError(
                f"{lock}: expected a lock file that npx-transformer created; got another file; try moving it away"
            )
        _held[key] = holder, descriptor
        try:
            text = {"program": program, "pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%c")}
            with suppress(OSError):  # if the disk is full, the lock works without the text
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(text).encode())
            lock_of_folder = FolderLock(folder, folder_descriptor, descriptor)
            lock_of_folder.check()
            yield lock_of_folder
        finally:
            _held.pop(key, None)
            if is_same_file(descriptor, lock):
                with suppress(OSError):
                    os.unlink(lock)
            os.close(descriptor)
    finally:
        os.close(folder_descriptor)


def _wait(lock: Path, deadline: float) -> None:
    """Wait 20 ms if a lock's holder has died and `deadline` has not passed; else raise UserError, naming the holder."""
    holder, is_dead = _describe_holder(lock)
    if not is_dead or time.monotonic() > deadline:
        raise UserError(f"{lock.parent} is in use by {holder}; try again when it has finished, or use another folder")
    time.sleep(0.02)


def _describe_holder(lock: Path) -> tuple[str, bool]:
    """Return a description of the holder of a lock, and whether that process is dead."""
    try:
        with open_for_reading(lock) as file:
            holder = parse_json(file.read(4096).decode())
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
