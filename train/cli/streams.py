"""Handle standard streams that are closed, and readers in a pipeline that exit early.

`main` enters `guard_standard_streams` once. A stream that was closed before the program started becomes the null
device, so a file opened later never takes its descriptor. Errors on standard error are ignored. If the reader of
standard output closes it, `BrokenOutput` ends the program silently.
"""

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from train.errors import UserError
from train.text.lines import decode_line, long_line_error

PAUSE_SECONDS = 0.05  # after this time without input, the lines read so far are processed
STREAMS = ("stdin", "stdout", "stderr")


class BrokenOutput(BaseException):
    """Raised when the reader of standard output has closed it. It is not an OSError, because libraries catch those."""


class GuardedStream:
    """A text stream that passes write errors to `on_error`."""

    def __init__(self, stream: Any, on_error: Callable[[OSError], object]) -> None:
        self._stream, self._on_error = stream, on_error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def write(self, text: str) -> int:
        self._call(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._call(self._stream.flush)

    def _call(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except OSError as error:
            with suppress(OSError, ValueError):  # discard the text that Python flushes at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._on_error(error)


def raise_broken_output(error: OSError) -> None:
    """Raise BrokenOutput if the reader has closed the stream; otherwise raise the error itself."""
    if error.errno in (errno.EPIPE, errno.ECONNRESET):
        raise BrokenOutput from None
    raise error


@contextmanager
def guard_standard_streams() -> Iterator[None]:
    """Replace missing standard streams and guard stdout and stderr during the block."""
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # os.open returns the lowest free descriptor: the missing one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))
    stdout, stderr = sys.stdout, sys.stderr
    for stream in (stdout, stderr):  # characters that the terminal cannot encode become escapes such as \\xfc
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = GuardedStream(stdout, raise_broken_output)
    sys.stderr = GuardedStream(stderr, lambda error: None)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = stdout, stderr


def stream_lines(file: BinaryIO, name: str, max_line_bytes: int) -> Iterator[str | None]:
    r"""Yield the lines of UTF-8 text as they arrive, without line endings ("\n" or "\r\n") or byte order mark.

    Yields None when the input pauses after a line. Raises UserError, with the line number, for invalid UTF-8 and for a
    line longer than `max_line_bytes`.
    """
    pending = [b""]
    size = 0
    number = 0
    descriptor = file.fileno()
    while True:
        with suppress(OSError, ValueError):  # select fails for regular files on some systems
            if number and not select.select([descriptor], [], [], PAUSE_SECONDS)[0]:
                yield None
        try:
            block = os.read(descriptor, 1 << 16)
        except OSError as error:
            got = error.strerror
            raise UserError(f"{name}: expected readable text; got '{got}'; try a copy of the input") from None
        size += len(block)
        if b"\n" in block or not block:
            *lines, rest = b"".join([*pending, block]).split(b"\n")
            if not block and rest:
                lines, rest = [rest], b""
            for line in lines:
                number += 1
                yield decode_line(line, name, number)
            pending = [rest]
            size = len(rest)
        else:
            pending.append(block)
        if size > max_line_bytes:
            raise long_line_error(name, number + 1, max_line_bytes)
        if not block:
            return
