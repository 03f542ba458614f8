"""Files as others may have left them: read with every check, and written whole or not at all.

Reading refuses what is no regular file (a pipe, a device, a folder), so that nothing is waited for, and takes no more
memory than the file's size. Content that a program reads back carries its own checksum (`sealed`), since a flipped bit
in a number is as good a number.
"""

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from npx.ranges import Range
from train.errors import UserError, one_line

# Of these a person can free a disk, and a training can try again.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CANNOT_WRITE = NO_ROOM | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
SHAPES = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFREG: "a file",
}  # fmt: skip
ATTEMPTS = {stat.S_IFDIR: "the path of a file inside it", stat.S_IFIFO: "writing its content to a file first"}
SEAL = "sha256_of_this"
Path_ = str | os.PathLike[str]
AGAIN, RESUME = "then the same command again", "then --resume"  # what comes after the remedy of WriteError


class WriteError(UserError):
    """A disk that is full, a quota, a folder that may not be written: what was there before is kept.

    `found`: what was expected and what was got; `remedy`: what makes it possible; `after`: what to do then.
    """

    def __init__(self, found: str, remedy: str = "freeing space", after: str = AGAIN) -> None:
        super().__init__(f"{found}; try {remedy}, {after}")
        self.found, self.remedy = found, remedy


# ---- reading


def what_is(path: Path_) -> str:
    """What stands at a path, for a message."""
    try:
        shape = SHAPES.get(stat.S_IFMT(os.stat(path).st_mode), "something strange")
        return ("an empty folder" if not os.listdir(path) else "a folder that exists") if os.path.isdir(path) else shape
    except FileNotFoundError:
        return "a link that leads nowhere" if os.path.islink(path) else "nothing"
    except (OSError, ValueError) as error:
        return one_line(error)


@contextmanager
def opened(path: Path_, what: str = "a file", pipes: bool = False, attempt: str = "") -> Iterator[BinaryIO]:
    """A file to read; UserError says that `what` was expected where there is none, or none that can be read.

    `pipes`: takes also what can be read only once. Nothing else is waited for, neither a pipe without a writer.
    `attempt`: what to try, of the message.
    """

    path = str(path) or "''"

    def failed(error: OSError) -> UserError:
        if isinstance(error, FileNotFoundError):
            return UserError(f"{path}: expected {what}; got no such file; try {attempt or 'another path'}")
        got = f"'{error.strerror}'"
        return UserError(f"{path}: expected {what} that can be read; got {got}; try {attempt or 'another path'}")

    descriptor = -1
    try:
        if "\0" in path:
            raise OSError(errno.EINVAL, "a NUL in its name")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK))
        shape = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if not (shape == stat.S_IFREG or pipes and shape != stat.S_IFDIR):
            try_this = attempt or ATTEMPTS.get(shape, "another path")
            raise UserError(f"{path}: expected {what}; got {SHAPES.get(shape, 'something else')}; try {try_this}")
    except (OSError, UserError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise failed(error) if isinstance(error, OSError) else error from None
    with io.BufferedReader(Source(descriptor, failed)) as file:
        yield cast(BinaryIO, file)


class Source(io.FileIO):
    """An open file; what goes wrong as it is read is told by `failed`, and nothing else that happens meanwhile."""

    def __init__(self, descriptor: int, failed: Callable[[OSError], Exception]) -> None:
        super().__init__(descriptor)
        self.failed = failed

    def readinto(self, buffer: Any) -> Any:
        return self._told(super().readinto, buffer)

    def readall(self) -> Any:
        return self._told(super().readall)

    def _told(self, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except OSError as error:
            raise self.failed(error) from None


def read_json(path: Path_, what: str, attempt: str = "a copy of the file") -> Any:
    """The content of a JSON file; UserError, that `what` was expected, for any other, and for NaN and infinity."""
    with opened(path, what, attempt=attempt) as file:
        raw = file.read()
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = "brackets too deep" if isinstance(error, RecursionError) else one_line(error)
        raise UserError(f"{path}: expected {what} in JSON; got '{reason}'; try {attempt}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant}, which is no number")


def kept(path: Path_) -> Any:
    """The content that `write_json` left in a file, without its seal; None where there is none, or a damaged one."""
    try:
        content = read_json(path, "what a program left")
    except UserError:
        return None
    if not isinstance(content, dict) or seal_broken(content):
        return None
    del content[SEAL]
    return content


def open_own_folder(out: Path, *marks: str, besides: Collection[str] = ()) -> Any:
    """What a command's own folder holds in the first of the sealed files `marks` that is there; None for a new folder.

    UserError for any other folder, which is somebody's own. A new one has nothing in it but what is named `besides`.
    """
    for mark in marks:
        if (before := kept(out / mark)) is not None:
            return before
    there = os.listdir(out) if out.is_dir() else ["a file"] if os.path.lexists(out) else []
    if [name for name in there if name not in besides and not (name[0] == "." and name.endswith(".partial"))]:
        got = "another" if out.is_dir() else what_is(out)
        raise UserError(f"{out}: expected a new folder, or one of this command; got {got}; try another --out")
    return None


def digest(path: Path_) -> str:
    """SHA-256 of a file."""
    with opened(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


Schema = Mapping[str, Any]  # key -> a Range, a type, (that, None) for what may be null, or a Schema


def schema_error(content: Any, schema: Schema) -> str:
    """What is wrong with the first key of `content` that does not fit, `run.step: expected ...; got ...`, or ""."""
    if not isinstance(content, dict):
        return f"expected keys and values; got {type(content).__name__}"
    for key, kind in schema.items():
        if key not in content:
            return f"{key}: expected it; got none"
        value = content[key]
        if isinstance(kind, tuple):
            if value is None:
                continue
            kind = kind[0]
        if isinstance(kind, Range) and kind.kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        if isinstance(kind, Mapping):
            if wrong := schema_error(value, kind):
                return f"{key}.{wrong}"
        elif not (kind.fits(value) if isinstance(kind, Range) else type(value) is kind):
            words = kind.words() if isinstance(kind, Range) else {dict: "keys and values"}.get(kind, kind.__name__)
            return f"{key}: expected {words}; got {one_line(repr(value))[:60]}"
    return ""


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON content with its own SHA-256 as the last key."""
    return {**content, SEAL: _seal(content)}


def seal_broken(content: Mapping[str, Any]) -> bool:
    """Whether content is other than when it was sealed, or never was."""
    rest = {key: value for key, value in content.items() if key != SEAL}
    try:
        return content.get(SEAL) != _seal(rest)
    except (ValueError, RecursionError):
        return True


def _seal(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- writing


@contextmanager
def whole(path: Path_, mode: str = "b", through: bool = False) -> Iterator[IO[Any]]:
    """A file to write, "b" bytes or "t" text, that appears under its name when all of it is written and on disk.

    A link is followed, and the permissions of what is replaced are kept. What is no regular file (a device, a pipe) is
    replaced too, or with `through`, which is for where a user sends an output, written as it is. UserError where
    another program is writing it.
    """
    how: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"} if mode == "t" else {}
    target, replaceable = _end_of_links(Path(path))
    if target.is_dir():
        raise UserError(f"{path}: expected a file to write; got a folder; try another path, or removing it")
    if not (replaceable or through):
        target = Path(path)
    elif not replaceable:
        with open(target, f"a{mode}", **how) as file:
            yield file
        return
    partial = target.with_name(f".{target.name}.partial")
    descriptor = _alone(partial)
    try:
        with open(descriptor, f"w{mode}", **how) as file:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(descriptor)
            os.replace(partial, target)
            sync(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _end_of_links(path: Path) -> tuple[Path, bool]:
    """What a path leads to in the end, and whether that is a file to be replaced, or none yet."""
    for _ in range(40):
        place = Path(os.path.realpath(path.parent)) / path.name
        if str(place).startswith("/proc/"):  # /dev/stdout leads there, to a file that is somebody's open output
            return place, False
        if not place.is_symlink():
            return place, not place.exists() or place.is_file()
        path = place.parent / os.readlink(place)
    raise UserError(f"{path}: expected a file to write; got links that lead to each other; try another path")


def _alone(partial: Path) -> int:
    """A descriptor of the partial file, empty and locked: a second writer is refused, a killed one has left no lock."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not locked(descriptor):
                raise UserError(f"{partial}: expected to be its only writer; got another program; try again later")
            if same_file(descriptor, partial):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the other one has just finished


def locked(descriptor: int) -> bool:
    """Takes the lock of an open file; False where another program holds it. One that ends, or is killed, holds none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise  # else a file system that knows no locks
    return True


def same_file(descriptor: int, path: Path_) -> bool:
    """Whether a path still leads to an open file or folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def write_text(path: Path_, text: str) -> None:
    """Replaces a text file whole or not at all; WriteError where the disk is full."""
    with disk_errors(str(path)), whole(path, "t") as file:
        file.write(text)


def write_json(path: Path_, content: Mapping[str, Any]) -> None:
    """Replaces a JSON file, sealed, whole or not at all; WriteError where the disk is full."""
    write_text(path, as_json(content))


def as_json(content: Mapping[str, Any]) -> str:
    """What a JSON file of this content holds: sealed, an entry a line."""
    return json.dumps(sealed(content), indent=1, allow_nan=False) + "\n"


def sync(path: Path_) -> None:
    """Forces a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(what: str, after: str = "") -> Iterator[None]:
    """Turns what keeps a file from being written (`CANNOT_WRITE`) into WriteError; other errors pass.

    `after` (default AGAIN) is what to do when it can be written; it also takes the place of that of a block within.
    """
    try:
        yield
    except WriteError as error:
        if not after:
            raise
        raise WriteError(error.found, error.remedy, after) from None
    except UserError:
        raise
    except Exception as error:
        number = error_number(error)
        if number not in CANNOT_WRITE:
            raise
        room, remedy = ("room on the disk", "freeing space") if number in NO_ROOM else ("to write it", "allowing that")
        found = f"{what}: expected {room}; got '{os.strerror(number)}'; what was written before is kept"
        raise WriteError(found, remedy, after or AGAIN) from None


def appended(path: Path_) -> IO[Any]:
    """A regular file to append bytes to, unbuffered; UserError for anything else that stands there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a pipe that nobody reads
            raise
        regular, descriptor = False, -1
    if not regular:
        if descriptor >= 0:
            os.close(descriptor)
        raise UserError(f"{path}: expected a file to append to; got {what_is(path)}; try removing it")
    return open(descriptor, "ab", buffering=0)


def error_number(error: Exception) -> int:
    """The errno of an error; safetensors tells it in its text alone. 0 where there is none."""
    found = re.search(r"os error (\d+)", str(error))
    return getattr(error, "errno", None) or (int(found[1]) if found else 0)


def removed(paths: Iterator[Path] | list[Path], remove: Callable[[Path], object]) -> None:
    """Removes what can be removed."""
    for path in paths:
        with suppress(OSError):
            remove(path)
