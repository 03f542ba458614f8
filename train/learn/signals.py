"""Ctrl-C and SIGTERM: the first asks the loop to stop, the second stops it where it stands."""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")
ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
FORWARDED = [signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []  # which mpirun, unlike the others, hands on to ranks


class Signals:
    """Whether somebody has asked for the end."""

    def __init__(self, alone: bool = True) -> None:
        self.alone = alone  # not one of several ranks, which stop together
        self.heard = False  # by this process
        self.asked = False

    def agree(self, asked: bool) -> None:
        """All ranks have been asked, or none: what a process which is not alone goes by."""
        self.asked = self.asked or asked

    @contextmanager
    def caught(self) -> Iterator[None]:
        """In the block the first SIGINT, SIGTERM or SIGHUP sets `asked`, the second raises KeyboardInterrupt there.

        Of several ranks SIGUSR1 does so too. One that is ignored (SIGHUP after nohup) stays so.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals to the main thread alone
            return
        asking = ASKING if self.alone else [*ASKING, *FORWARDED]
        heard = [number for number in asking if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in heard}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _handle(self, number: int, frame: Any) -> None:
        if self.heard:
            raise KeyboardInterrupt
        self.heard, self.asked = True, self.asked or self.alone
        if self.alone and sys.__stderr__ is not None:
            with suppress(OSError):  # straight to the terminal: a buffered writer may be in the middle of a line
                os.write(2, b"\nstopping after this step; once more stops at once\n")


@contextmanager
def never_lost() -> Iterator[None]:
    """In the block a KeyboardInterrupt that comes while Python clears something away, which ignores it, comes again."""
    before = sys.unraisablehook

    def again(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return before(unraisable)
        left = threading.Event()

        def interrupt() -> None:  # not before `again` is left, or it would be ignored again
            left.wait()
            time.sleep(0.01)
            _thread.interrupt_main()

        threading.Thread(target=interrupt, daemon=True).start()
        left.set()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def interruptible(work: Callable[[], T]) -> T:
    """What `work` returns, done in another thread: so Ctrl-C is answered at once while a library computes for long."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((work(), None))
        except BaseException as error:  # raised below, where it belongs
            done.append((None, error))

    thread = threading.Thread(target=copy_context().run, args=(run,), daemon=True)
    thread.start()
    thread.join()
    value, error = done[0]
    if error is not None:
        raise error
    return value
