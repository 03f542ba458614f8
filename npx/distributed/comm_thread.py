"""The only thread of a process that calls MPI: it runs the communication tasks and the heartbeat.

A task is a generator that starts MPI requests and yields each one to wait for it:

    def sizes():
        sizes = np.empty(comm.size, np.int64)
        yield comm.Iallgather(np.array([7]), sizes)     # resumes when the request is complete
        return sizes

Because only one thread calls MPI, MPI's multi-threaded mode is not needed; its locks are a common source of bugs. The
thread never blocks in MPI, because that would occupy a core: it polls the request and sleeps in between. A waiting rank
therefore leaves its core to other processes, and heartbeats are sent no matter what the rank is computing or waiting
for.
"""

import os
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import numpy as np

from npx.distributed.heartbeat import Heartbeat

CHECK_INTERVAL = 0.1  # seconds between two heartbeat checks
MAX_PAUSE = 2e-3  # maximum sleep in seconds between two polls of a request

Steps = Generator[Any, None, Any]  # yields requests, returns a result


class Task:
    """A communication task, its progress and its result."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.request: Any = None  # the MPI request that the task waits for
        self.started_at: float | None = None  # time.monotonic()
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for the task and return whether it is done; raise the task's error, if any."""
        done = self.done.wait(seconds)  # a signal handler may interrupt this wait
        if self.error is not None:
            raise self.error
        return done

    def advance(self) -> bool:
        """Run the task as far as possible without waiting; return whether it made progress."""
        progress = False
        try:
            while self.request is None or self.request.Test():
                self.request = next(self.steps)
                progress = True
        except StopIteration as end:
            self.value = end.value
        except BaseException as error:  # raised again by `wait`
            self.error = error
        else:
            return progress
        self.done.set()
        return True


class CommThread:
    """The communication thread, which calls `on_abort(status)` once if the run must be aborted."""

    def __init__(self, on_abort: Callable[[int], None]) -> None:
        # Queues run concurrently; the tasks within a queue run in order.
        self.queues: dict[str, deque[Task]] = {"collectives": deque(), "shutdown": deque()}
        self.n_collectives = 0  # collectives started so far
        self.heartbeat: Heartbeat | None = None
        self.on_abort = on_abort
        self._abort_status = -1  # set by `abort`
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self.thread = threading.Thread(target=self._run, daemon=True, name="npx-ranks")
        self.thread.start()

    def submit(self, steps: Steps, queue: str = "collectives") -> Task:
        """Append a task to a queue."""
        task = Task(steps)
        self.queues[queue].append(task)
        self.wake()
        return task

    def wake(self) -> None:
        """Interrupt the thread's sleep."""
        with suppress(BlockingIOError):  # the pipe is full, so the thread will wake up anyway
            os.write(self._wake_write, b"!")

    def abort(self, status: int) -> None:
        """Make the thread call `on_abort(status)`."""
        self._abort_status = status
        self.wake()

    def stop(self) -> None:
        """End the thread after the tasks in the shutdown queue."""
        self._stopping = True
        self.wake()
        self.thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    @property
    def waiting_since(self) -> float | None:
        """The time.monotonic() at which the current collective started, or None."""
        with suppress(IndexError):
            return self.queues["collectives"][0].started_at
        return None

    def _run(self) -> None:
        try:
            with np.errstate(all="ignore"):  # non-finite sums are reported where they are used
                self._loop()
        except BaseException:  # without this thread all ranks would wait forever
            traceback.print_exc()
            self.on_abort(1)

    def _loop(self) -> None:
        last_progress = last_check = time.monotonic()
        while not self._stopping or self.queues["shutdown"]:
            if self._abort_status >= 0:
                self.on_abort(self._abort_status)
                return
            progress = [self._advance(queue) for queue in self.queues.values()]
            now = time.monotonic()
            last_progress = now if any(progress) else last_progress
            busy = any(self.queues.values())
            pause = min(MAX_PAUSE, (now - last_progress) / 10) if busy else CHECK_INTERVAL
            exit_fds = self.heartbeat.exit_fds if self.heartbeat and self.heartbeat.enabled else []
            ready, _, _ = select.select([self._wake_read, *exit_fds], [], [], pause)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            now = time.monotonic()
            if self.heartbeat and (now - last_check >= CHECK_INTERVAL or not {*ready}.isdisjoint(exit_fds)):
                last_check = now
                self.heartbeat.check(now)

    def _advance(self, queue: deque[Task]) -> bool:
        progress = False
        while queue:
            task = queue[0]
            if task.started_at is None:
                task.started_at = time.monotonic()
                self.n_collectives += queue is self.queues["collectives"]
            progress |= task.advance()
            if not task.done.is_set():
                break
            queue.popleft()
        return progress
