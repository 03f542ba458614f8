"""Worker threads (npx/cpu/workers.py): accepted offers run once, in the caller's context; others can be withdrawn."""

import os
import threading
import traceback
from contextvars import ContextVar

import pytest

from npx.cpu import workers
from npx.cpu.workers import make_offers

VALUE = ContextVar("value", default="outside")


def test_workers_run_the_function_in_the_context_of_the_caller():
    all_running = threading.Barrier(3)
    calls = []

    def function():
        calls.append((VALUE.get(), threading.get_ident()))
        all_running.wait(60)

    token = VALUE.set("inside")
    offers = make_offers(function, 2)
    VALUE.reset(token)
    all_running.wait(60)
    assert [offer.join() for offer in offers] == [None, None]
    assert [value for value, _ in calls] == ["inside", "inside"]
    assert len({thread for _, thread in calls} - {threading.get_ident()}) == 2


def test_join_waits_and_returns_the_error():
    started = threading.Event()
    ended = []

    def function():
        started.set()
        threading.Event().wait(0.05)
        ended.append(True)
        raise ZeroDivisionError

    (offer,) = make_offers(function, 1)
    assert started.wait(60)
    assert isinstance(offer.join(), ZeroDivisionError) and ended == [True]


def test_a_withdrawn_offer_never_runs(monkeypatch):
    """A worker that has not woken up does not delay the caller, and takes the next offer."""
    monkeypatch.setattr(workers, "_idle", [worker := workers.Worker.__new__(workers.Worker)])
    worker.offer = None
    worker.offered = threading.Lock()
    worker.offered.acquire()  # its thread has not started yet
    accepted = []
    for i in range(3):
        (offer,) = make_offers(lambda i=i: accepted.append(i), 1)
        assert offer.join() is None and workers._idle == [worker] and worker.offer is None
    (offer,) = make_offers(lambda: accepted.append("last"), 1)
    thread = threading.Thread(target=worker.serve, daemon=True)
    thread.start()
    assert offer.ended.acquire(timeout=60) and accepted == ["last"]


def test_an_offer_that_has_ended_does_not_withdraw_the_next_one(monkeypatch):
    """A worker may end an offer, and get the next one, before the first caller joins."""
    monkeypatch.setattr(workers, "_idle", [worker := workers.Worker.__new__(workers.Worker)])
    worker.offer = None
    worker.offered = threading.Lock()
    worker.offered.acquire()
    (first,) = make_offers(int, 1)
    assert worker.offered.acquire(blocking=False)  # the worker accepts the first offer
    worker.offer = None
    first.ended.release()
    second = workers.Offer(worker, int)
    assert first.join() is None and worker.offer is second and worker.offered.acquire(blocking=False)


def test_callers_share_the_workers(monkeypatch):
    """A caller gets fewer workers than it asks for, or none, while others use them."""
    monkeypatch.setattr(workers, "_idle", [])
    monkeypatch.setattr(workers, "_workers", [])
    release = threading.Event()
    started = threading.Barrier(3)

    def function():
        started.wait(60)
        release.wait(60)

    offers = make_offers(function, 2)
    started.wait(60)
    assert make_offers(function, 2) == [] and len(workers._workers) == 2
    release.set()
    assert [offer.join() for offer in offers] == [None, None]
    started.reset()
    new_offers = make_offers(started.wait, 2)
    started.wait(60)
    assert [offer.join() for offer in new_offers] == [None, None] and len(workers._workers) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_its_own_workers():
    done = threading.Event()
    for offer in make_offers(done.set, 1):
        assert done.wait(60)
        offer.join()
    if not (child := os.fork()):
        status = 1
        try:
            done.clear()
            (offer,) = make_offers(done.set, 1)
            status = 0 if done.wait(60) and offer.join() is None else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
