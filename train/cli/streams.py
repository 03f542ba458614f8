"""Standard input, output and error as a filter needs them: whoever has gone, or never was there, changes nothing else.

`settled` is entered once, by `main`. A stream that was closed before the program began is the null device, so that no
file that is opened later is taken for it. Standard error that takes no more is given up, and nothing else is. Standard
output whose reader has gone ends the program without a word (`Gone`).
"""

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from train.errors import UserError

PAUSE = 0.05  # seconds without input after which what is there is worked on
STREAMS = ("stdin", "stdout", "stderr")


class Gone(BaseException):
    """The reader of standard output has gone. No OSError: libraries on the way would make something of it."""


class Stream:
    """A text stream that is there for others, but for what happens when it takes no more."""

    def __init__(self, stream: Any, failed: Any) -> None:
        self._stream, self._failed = stream, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except OSError as error:
            with suppress(OSError, ValueError):  # what is left in its buffer goes nowhere, also when Python ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._failed(error)


def ended(error: OSError) -> None:
    """Raises Gone where a reader has gone, else the error."""
    if error.errno in (errno.EPIPE, errno.ECONNRESET):
        raise Gone from None
    raise error


@contextmanager
def settled() -> Iterator[None]:
    """The streams of this process for the block."""
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))
    before = sys.stdout, sys.stderr
    for stream in before:  # a letter that a terminal's encoding has not is shown as \\xfc, as on standard error anyway
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = Stream(sys.stdout, ended), Stream(sys.stderr, lambda error: None)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def arriving_lines(file: BinaryIO, name: str, most: int) -> Iterator[str | None]:
    r"""The lines of UTF-8 text as they come, without their end ("\n", and a "\r" before it) and a byte order mark.

    None where the input pauses after a line. UserError, with the line, for other text, and for a line of over `most`
    bytes.
    """
    pending, size, number, descriptor = [b""], 0, 0, file.fileno()
    while True:
        with suppress(OSError, ValueError):  # what cannot be waited for: a file on a system that has no such call
            if number and not select.select([descriptor], [], [], PAUSE)[0]:
                yield None
        try:
            read = os.read(descriptor, 1 << 16)
        except OSError as error:
            got = error.strerror
            raise UserError(f"{name}: expected text that can be read; got '{got}'; try another input") from None
        size += len(read)
        if b"\n" in read or not read:
            *lines, rest = b"".join([*pending, read]).split(b"\n")
            if not read and rest:
                lines, rest = [rest], b""
            for raw in lines:
                number += 1
                yield _decoded(raw, name, number)
            pending, size = [rest], len(rest)
        else:
            pending.append(read)
        if size > most:
            raise UserError(f"{name}, line {number + 1}: expected a line of at most {most:,} bytes; got a longer one; "
                            "try a sentence a line")  # fmt: skip
        if not read:
            return


def _decoded(raw: bytes, name: str, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {raw[error.start]:#04x} at column {error.start + 1}"
        raise UserError(f"{name}, line {number}: expected UTF-8 text; got {found}; try `iconv -t UTF-8`") from None
    return (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\r")
