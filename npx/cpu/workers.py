"""Worker threads that sleep until a caller offers them a function.

An offer takes less time than a task of `concurrent.futures`, and the caller can withdraw it: a caller that has finished
its own part does not wait for a worker to wake up.
"""

import os
from collections.abc import Callable
from contextvars import copy_context
from threading import Lock, Thread

_idle: list["Worker"] = []
_workers: list["Worker"] = []  # all threads of this process


def _forget_workers() -> None:
    """Start without workers in a forked process, which inherits no threads."""
    _idle.clear()
    _workers.clear()


os.register_at_fork(after_in_child=_forget_workers)


class Offer:
    """An offer to a worker: a function, the context to run it in (the caller's), and its error, if any."""

    def __init__(self, worker: "Worker", function: Callable[[], object]) -> None:
        self.worker = worker
        self.function = function
        self.context = copy_context()
        self.error: BaseException | None = None
        self.ended = Lock()
        self.ended.acquire()
        worker.offer = self
        worker.offered.release()

    def join(self) -> BaseException | None:
        """Withdraw the offer or, if the worker has accepted it, wait until it ends; return the error."""
        worker = self.worker
        if worker.offer is self and worker.offered.acquire(blocking=False):
            if worker.offer is self:
                worker.offer = None
                _idle.append(worker)
                return None
            worker.offered.release()  # the worker has already run this offer and accepted another one
        self.ended.acquire()
        return self.error


class Worker:
    """A daemon thread that runs one offered function after another."""

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.offered = Lock()
        self.offered.acquire()
        Thread(target=self.serve, name="npx", daemon=True).start()

    def serve(self) -> None:
        """Run offers, one after another, until the process ends."""
        while True:
            self.offered.acquire()
            offer, self.offer = self.offer, None
            assert offer
            try:
                offer.context.run(offer.function)
            except BaseException as error:
                offer.error = error
            _idle.append(self)
            offer.ended.release()
            del offer  # frees the arrays that the function refers to


def make_offers(function: Callable[[], object], n: int) -> list[Offer]:
    """Offer the function to n workers, or to fewer if the process already has n workers and some of them are busy."""
    offers: list[Offer] = []
    while len(offers) < n:
        try:
            worker = _idle.pop()
        except IndexError:
            if len(_workers) >= n:
                break
            _workers.append(worker := Worker())
        offers.append(Offer(worker, function))
    return offers
