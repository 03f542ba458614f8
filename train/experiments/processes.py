"""Call independent functions, such as training runs, in parallel processes."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import npx
from train.errors import UserError, one_line
from train.learn.signals import STOP_SIGNALS, Signals


def run_parallel(functions: Mapping[str, Callable[[], object]], n_jobs: int) -> Iterator[tuple[str, str]]:
    """Run the functions and yield (name, error) whenever one ends; the error is "" if it succeeded.

    Args:
        functions: functions by name. With several jobs, they must be picklable.
        n_jobs: number of parallel jobs, each in its own process with an equal share of the threads. With 1 job, the
            functions run one after another in this process.

    A signal such as Ctrl-C stops all jobs. KeyboardInterrupt is raised after they have ended.
    """
    if n_jobs == 1:
        yield from ((name, run_and_describe_error(function)) for name, function in functions.items())
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, npx.cpu.row_blocks.thread_count() // n_jobs)
    waiting = [*functions.items()]
    running: dict[Any, Any] = {}  # maps each connection to the process at its other end
    resource_tracker.ensure_running()  # otherwise, `start` starts it, which unblocks Ctrl-C
    signals = Signals()
    try:
        with signals.handling():
            while (waiting or running) and not signals.stop_requested:
                while waiting and len(running) < n_jobs:
                    name, function = waiting.pop(0)
                    receiver, sender = context.Pipe(duplex=False)
                    arguments = function, threads, npx.device(), sender
                    process: Any = context.Process(target=run_in_process, args=arguments, name=name, daemon=True)
                    with blocked_interrupts():
                        process.start()
                    sender.close()  # otherwise the receiver would never see that the process has ended
                    running[receiver] = process
                for connection in wait([*running], timeout=0.5):
                    process = running.pop(connection)
                    error = received_error(connection, process)
                    if not signals.stop_requested:  # otherwise, the signal may have ended the process
                        yield process.name, error
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()
    if signals.stop_requested:
        raise KeyboardInterrupt


@contextmanager
def blocked_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; in a process that starts in the block, it stays blocked."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def run_and_describe_error(function: Callable[[], object]) -> str:
    """Call a function and return its error on one line, or "". Prints the traceback of any error except a UserError."""
    try:
        function()
    except UserError as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def run_in_process(function: Callable[[], object], threads: int, device: str, sender: Connection) -> None:
    """Call a function in this process, and send the parent the error that it raises, or "".

    Only SIGTERM stops this process; the parent handles the other signals.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    os.environ["NPX_THREADS"] = str(threads)
    npx.configure_process()
    npx.use_device(device)
    try:
        error = run_and_describe_error(function)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    with suppress(BrokenPipeError):  # the parent was killed
        sender.send(error)


def received_error(connection: Any, process: Any) -> str:
    """Return the error that a process has sent or, if it ended without sending one, how it ended."""
    try:
        error = connection.recv()
    except EOFError:
        process.join()
        return f"the process ended with exit status {process.exitcode}"
    process.join()
    return str(error)
