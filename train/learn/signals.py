"""Signals such as Ctrl-C: the first one stops training after the current step, and the second stops it at once."""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Of these signals, mpirun forwards only SIGUSR1 to its ranks.
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


class Signals:
    """Records requests to stop.

    Args:
        single_process: whether a signal to this process sets `stop_requested`. If not, the ranks exchange `received`
            and set `stop_requested` together.
    """

    def __init__(self, single_process: bool = True) -> None:
        self.single_process = single_process
        self.received = False  # whether this process has received a signal
        self.stop_requested = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM, SIGHUP and SIGUSR1 in this block.

        The first signal sets `stop_requested`, the second raises KeyboardInterrupt. A signal that was ignored before,
        such as SIGHUP under nohup, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # in Python, only the main thread receives signals
            return
        numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
        self.stop_requested = self.stop_requested or self.single_process
        if self.single_process and sys.__stderr__ is not None:
            with suppress(OSError):  # print may fail: the signal may have interrupted a buffered write
                os.write(2, b"\nstopping after this step; press Ctrl-C again to stop at once\n")


@contextmanager
def reraise_lost_interrupts() -> Iterator[None]:
    """Re-raise a KeyboardInterrupt that Python ignored because it arrived in a destructor."""
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return previous(unraisable)
        returned = threading.Event()

        def interrupt() -> None:  # waits until `hook` has returned: Python would also ignore an error raised in it
            returned.wait()
            time.sleep(0.01)
            _thread.interrupt_main()

        threading.Thread(target=interrupt, daemon=True).start()
        returned.set()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous
