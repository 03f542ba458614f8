"""Run independent tasks, such as training runs, in parallel processes."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import npx
from train.errors import UserError, one_line
from train.learn.signals import STOP_SIGNALS, Signals

Tasks = Mapping[str, Callable[[], object]]


def run_tasks(tasks: Tasks, jobs: int) -> Iterator[tuple[str, str]]:
    """Run the tasks and yield (name, error) whenever one ends; the error is "" if the task succeeded.

    Args:
        tasks: functions by name. With several jobs, the functions must be picklable.
        jobs: number of parallel tasks, each in its own process with an equal share of the threads. With 1 job, the
            tasks run one after another in this process.

    A signal such as Ctrl-C stops all tasks. KeyboardInterrupt is raised after they have ended.
    """
    if jobs == 1:
        yield from ((name, run_and_describe_error(task)) for name, task in tasks.items())
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, npx.cpu.row_blocks.thread_count() // jobs)
    waiting = [*tasks.items()]
    running: dict[Any, Any] = {}  # maps each connection to the process at its other end
    signals = Signals()
    try:
        with signals.handling():
            while (waiting or running) and not signals.stop_requested:
                while waiting and len(running) < jobs:
                    name, task = waiting.pop(0)
                    receiver, sender = context.Pipe(duplex=False)
                    arguments = task, threads, npx.device(), sender
                    process: Any = context.Process(target=run_in_process, args=arguments, name=name, daemon=True)
                    process.start()
                    sender.close()  # otherwise the receiver would never see that the process has ended
                    running[receiver] = process
                for connection in wait([*running], timeout=0.5):
                    process = running.pop(connection)
                    yield process.name, received_error(connection, process)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()
    if signals.stop_requested:
        raise KeyboardInterrupt


def run_and_describe_error(task: Callable[[], object]) -> str:
    """Run a task and return its error on one line, or "". Prints the traceback of any error except a UserError."""
    try:
        task()
    except UserError as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def run_in_process(task: Callable[[], object], threads: int, device: str, sender: Connection) -> None:
    """Run a task in this process, and send the parent the error that it raises, or "".

    Only SIGTERM stops this process; the parent handles the other signals.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    os.environ["NPX_THREADS"] = str(threads)
    npx.configure_process()
    npx.use_device(device)
    try:
        error = run_and_describe_error(task)
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
