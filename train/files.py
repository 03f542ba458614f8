"""Checked reads and atomic writes of files that other programs may damage or write at the same time.

Unless a caller allows pipes, only regular files are read, because reading them never blocks and needs no more memory
than their size.
"""

import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from train.errors import ReadError, UserError, one_line

# Errors that the user can fix while training waits and retries.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Maps an error that prevents writing to two parts of its message: what was expected, and what to try.
CANNOT_WRITE = {
    **dict.fromkeys(DISK_FULL, ("space on the disk", "freeing space")),
    errno.EIO: ("a readable and writable path", "repairing the disk"),
    errno.EROFS: ("a writable disk", "another disk"),
    **dict.fromkeys((errno.ESTALE, errno.EINTR), ("a network disk that responds", "checking the network")),
    **dict.fromkeys((errno.EACCES, errno.EPERM), ("permission to read and write", "changing the permissions")),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), ("an existing path", "creating the path or moving it back")),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), ("free file descriptors", "a higher ulimit -n")),
    errno.ENOTEMPTY: ("a new or empty folder", "another path"),
    errno.ENOMEM: ("memory to write", "closing other programs"),
}
# A file that cannot be read because of one of these errors may still be intact.
UNREADABLE = CANNOT_WRITE.keys() - {errno.ENOENT, errno.ENOTDIR}
NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}  # errors of file systems that cannot sync folders
FILE_TYPES = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFREG: "a file",
}  # fmt: skip
REMEDIES = {stat.S_IFDIR: "the path of a file inside it", stat.S_IFIFO: "writing its content to a file first"}
PathLike = str | os.PathLike[str]
SETTLING_NANOSECONDS = 2 * 10**9  # see `text_digest`
files_read: set[tuple[int, ...]] = set()  # the `file_version` of each file read, at most MAX_FILES_READ of them
MAX_FILES_READ = 4096  # only training runs read more files, and they write no file that the user names
MISSING = "a path that does not exist"
WOULD_REPLACE_A_FILE = "this output would replace an input or another output; try another path"
THEN_RETRY, THEN_RESUME = "then the same command again", "then --resume"  # the end of the message of a WriteError


class WriteError(UserError):
    """A file cannot be written because of a full disk, a quota or permissions. Its earlier content is intact.

    Args:
        problem: what was expected and what happened.
        suggestion: how to make the write possible.
        next_step: what to do after that.
    """

    def __init__(self, problem: str, suggestion: str = "freeing space", next_step: str = THEN_RETRY) -> None:
        super().__init__(f"{problem}; try {suggestion}, {next_step}")
        self.problem, self.suggestion = problem, suggestion


# ---- reading


def describe_path(path: PathLike) -> str:
    """Describe what a path refers to, for a message, for example "a file" or "an empty folder"."""
    try:
        if os.path.isdir(path):
            return "a folder that is not empty" if os.listdir(path) else "an empty folder"
        return FILE_TYPES.get(stat.S_IFMT(os.stat(path).st_mode), "an unknown file type")
    except FileNotFoundError:
        return "a broken link" if os.path.islink(path) else MISSING
    except (OSError, ValueError) as error:
        return one_line(error)


def describe_base(path: str) -> str:
    """Return a note that names the current folder, for a message about a relative path; "" for an absolute path."""
    if os.path.isabs(path):
        return ""
    try:
        return f" (this path is relative to {os.getcwd()})"
    except OSError:  # the folder has been removed
        return ""


@contextmanager
def open_for_reading(
    path: PathLike, expected: str = "a file", pipes: bool = False, suggestion: str = ""
) -> Iterator[BinaryIO]:
    """Open a file for reading. Raises UserError if it is missing or cannot be read.

    In the message, `expected` says what the file should be, and `suggestion` what to try. With `pipes`, input that can
    be read only once is accepted too, and "-" is standard input; otherwise a pipe is rejected without blocking.
    """
    path = "/dev/stdin" if pipes and str(path) == "-" else str(path) or "''"
    if pipes and path == "/dev/stdin":
        if (0,) in files_read:
            raise UserError("-: expected one input from standard input; got two; try a file for one of them")
        files_read.add((0,))  # standard input; no `file_version` equals it

    def user_error(error: OSError) -> UserError:
        if isinstance(error, FileNotFoundError):
            other = suggestion or f"another path{describe_base(path)}"
            return UserError(f"{path}: expected {expected}; got {MISSING}; try {other}")
        change = ""
        if error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):  # the file itself may be intact
            change = CANNOT_WRITE[error.errno][1]
        kind = ReadError if error.errno in UNREADABLE else UserError
        return kind(f"{path}: cannot be read ({error.strerror}); try {change or suggestion or 'another path'}")

    descriptor = -1
    try:
        if "\0" in path:
            raise OSError(errno.EINVAL, "NUL character in the name")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK))
        file_type = stat.S_IFMT((status := os.fstat(descriptor)).st_mode)
        if not (file_type == stat.S_IFREG or pipes and file_type != stat.S_IFDIR):
            other = REMEDIES.get(file_type, "another path")
            got = FILE_TYPES.get(file_type, "an unknown file type")
            raise UserError(f"{path}: expected {expected}; got {got}; try {suggestion or other}")
    except (OSError, UserError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise user_error(error) if isinstance(error, OSError) else error from None
    if len(files_read) < MAX_FILES_READ:
        files_read.add(file_version(status))
    with io.BufferedReader(CheckedFile(descriptor, user_error)) as file:
        yield cast(BinaryIO, file)


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Return numbers that identify a file and its version, regardless of the path that led to it."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class CheckedFile(io.FileIO):
    """An open file. `user_error` converts the errors that occur while the file is read."""

    def __init__(self, descriptor: int, user_error: Callable[[OSError], Exception]) -> None:
        super().__init__(descriptor)
        self.user_error = user_error

    def readinto(self, buffer: Any) -> Any:
        return self._checked(super().readinto, buffer)

    def readall(self) -> Any:
        return self._checked(super().readall)

    def _checked(self, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except OSError as error:
            raise self.user_error(error) from None


def digest(path: PathLike, algorithm: str = "sha256") -> str:
    """Return the hash of a file's content."""
    with open_for_reading(path) as file:
        return hashlib.file_digest(cast(Any, file), algorithm).hexdigest()


_digests: dict[tuple[int, ...], str] = {}  # see `text_digest`


def text_digest(path: PathLike) -> str:
    """Return the SHA-256 of a text file, which is read again only if it has changed.

    A file that changes twice within SETTLING_NANOSECONDS may have the same timestamps each time. The hash of a file
    that has just changed is therefore not cached.
    """
    with open_for_reading(path) as file:
        version = file_version(os.fstat(file.fileno()))
        if version not in _digests:
            sha256 = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
            is_new = time.time_ns() - max(version[-2:]) < SETTLING_NANOSECONDS
            if is_new or file_version(os.fstat(file.fileno())) != version:
                return sha256
            _digests[version] = sha256
    return _digests[version]


# ---- writing


@contextmanager
def atomic_write(path: PathLike, mode: str = "b", follow_links: bool = False) -> Iterator[IO[Any]]:
    """Open a binary ("b") or text ("t") file that replaces `path` once it is complete and on disk.

    The new file has the permissions of the old one. A link, device or pipe is replaced too, because another user may
    have put it into the folder. `follow_links` is for outputs that the user named: a link is followed, a device or
    pipe is written to, and no other file in the folder is touched. Raises WriteError, which names `path`, if the file
    cannot be written. Raises UserError if another program is writing the same file in a folder of this program, or if
    the output would replace a file that this command has read.
    """
    options: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"} if mode == "t" else {}
    target, replaceable = _resolve_links(Path(path)) if follow_links else (Path(path), True)
    if target.is_dir():
        raise UserError(f"{path}: expected a file to write; got a folder; try another path, or removing the folder")
    with disk_errors(str(path)):
        if not replaceable:
            with open(target, f"a{mode}", **options) as file:
                yield file
            return

        def reject() -> None:
            raise UserError(f"{partial}: another program is writing this file; try again later")

        def check() -> None:
            if follow_links and target.exists() and file_version(target.stat()) in files_read:
                raise UserError(f"{path}: {WOULD_REPLACE_A_FILE}")

        check()
        partial = Path(unique_name(target.parent)) if follow_links else target.with_name(f".{target.name}.partial")
        descriptor = open_unnamed(partial) if follow_links else open_locked(partial, reject)
        try:
            with open(descriptor, f"w{mode}", **options) as file:
                file.truncate(0)
                if os.path.isfile(target) and not os.path.islink(target):
                    os.fchmod(descriptor, target.stat().st_mode & 0o777)  # no setuid bit, because the owner may differ
                yield file
                file.flush()
                os.fsync(descriptor)
                check()
                name = partial
                if follow_links and not partial.exists():
                    name = partial if target.exists() else target  # a new output gets its final name at once
                    os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=0)  # src_dir_fd lets link() follow links
                if name == partial:
                    os.replace(partial, target)
                fsync(target.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def unique_name(folder: PathLike) -> str:
    """Return a path for a new hidden file or folder that no other program uses."""
    return f"{folder}/.npx-transformer-{secrets.token_hex(8)}.partial"


def open_unnamed(path: Path) -> int:
    """Create a file without a name, which the system deletes when the process ends, or `path` if that is impossible."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if os.path.isdir("/proc/self/fd"):  # needed to give the file a name later
        with suppress(OSError):
            return os.open(path.parent, flags | os.O_TMPFILE, 0o666)
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)


def _resolve_links(path: Path) -> tuple[Path, bool]:
    """Return the final target of a path, and whether that target is a regular file or does not exist yet."""
    for _ in range(40):
        resolved = Path(os.path.realpath(path.parent)) / path.name
        if str(resolved).startswith("/proc/"):  # the target of /dev/stdout is an open output, not a file to replace
            return resolved, False
        if not resolved.is_symlink():
            return resolved, not resolved.exists() or resolved.is_file()
        path = resolved.parent / os.readlink(resolved)
    raise UserError(f"{path}: expected a file to write; got a cycle of links; try another path")


def open_locked(path: Path, on_busy: Callable[[], object]) -> int:
    """Create or open a file inside a folder of this program and lock it; return its descriptor (see `open_inside`).

    While another program holds the lock, `on_busy` is called, which waits or raises an error. The system releases the
    lock when the process ends for any reason.
    """
    while True:
        descriptor = open_inside(path, os.O_RDWR)
        try:
            with disk_errors(str(path)):
                is_locked = try_lock(descriptor)
            if not is_locked:
                on_busy()
            elif is_same_file(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the last holder of the lock may have just renamed or removed the file; try again


def try_lock(descriptor: int) -> bool:
    """Lock an open file; return False if another program holds the lock. The lock ends with the process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise  # the listed errors mean that the file system does not support locks
    return True


def is_same_file(descriptor: int, path: PathLike) -> bool:
    """Return whether a path still refers to an open file or folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def write_text(path: PathLike, text: str) -> None:
    """Replace a text file atomically. Raises WriteError if it cannot be written."""
    with atomic_write(path, "t") as file:
        file.write(text)


def fsync(path: PathLike) -> None:
    """Force a file to disk, or the entries of a folder if the file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and any missing parents, and sync their entries to disk so that they survive a power loss.

    Raises WriteError if a folder cannot be created, for example on a full disk.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    with disk_errors(str(path)):
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            fsync(folder.parent)


@contextmanager
def disk_errors(target: str, next_step: str = "") -> Iterator[None]:
    """Convert errors of system calls to WriteError, except for a closed pipe.

    `next_step` (default THEN_RETRY) is the end of the message. A given `next_step` also replaces the end of a
    WriteError that a nested block raises.
    """
    try:
        yield
    except WriteError as error:
        if not next_step:
            raise
        raise WriteError(error.problem, error.suggestion, next_step) from None
    except UserError:
        raise
    except Exception as error:
        number = error_number(error)
        if number in (0, errno.EPIPE):
            raise
        expected, suggestion = CANNOT_WRITE.get(number, ("a readable and writable path", "another path"))
        problem = f"{target}: expected {expected}; got '{os.strerror(number)}'; earlier files are intact"
        raise WriteError(problem, suggestion, next_step or THEN_RETRY) from None


def open_inside(path: PathLike, flags: int) -> int:
    """Open or create a regular file in a folder of this program, without truncating it; return its descriptor.

    A link is not followed, because another user with access to the folder may have put it there. Raises UserError for a
    link and for anything else that is not a regular file. A file that has other hard links, such as those in a
    backup made with `cp -al`, is first replaced by a copy, unless another program holds a lock on it.
    """
    with ExitStack() as stack:
        try:
            flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o666)
            stack.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                if status.st_nlink < 2 or not try_lock(descriptor):
                    stack.pop_all()
                    return descriptor
                with open_for_reading(path) as old, atomic_write(path) as new:
                    shutil.copyfileobj(old, new)
                return os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a pipe without a reader, a folder
                raise
    got = "a link" if os.path.islink(path) else describe_path(path)
    raise UserError(f"{path}: expected a regular file to write; got {got}; try removing it")


def open_for_appending(path: PathLike) -> IO[Any]:
    """Open a regular file for appending bytes without a buffer (see `open_inside`)."""
    return open(open_inside(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)


def error_number(error: Exception) -> int:
    """Return the errno of an error, or 0 if it has none. Errors of safetensors contain it only in their text."""
    match = re.search(r"os error (\d+)", str(error))
    return getattr(error, "errno", None) or (int(match[1]) if match else 0)
