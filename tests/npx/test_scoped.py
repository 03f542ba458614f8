"""A value set by a `with` block (npx/scoped.py) applies to its thread and to the worker threads of its row blocks."""

import threading

import numpy as np
import pytest

import npx
from autograd import Tensor, is_grad_enabled, no_grad, observing
from models import Transformer, TransformerConfig
from models.init import constant, use_shapes_only
from models.search import beam_search
from npx import dispatch
from npx.cpu import row_blocks
from train import Adam

SRC = np.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]])
TGT = np.array([[1, 5, 6, 2], [1, 9, 2, 0]])


class CountingObserver:
    """An observer that counts operations."""

    count = 0

    def on_forward(self, *args):
        self.count += 1


def operations_seen_by(observer):
    """Run one operation and return how many the observer has seen."""
    before = observer.count
    Tensor(np.ones(1)) + 1.0
    return observer.count - before


OBSERVER = CountingObserver()
BLOCKS = {  # a block, and a condition that holds only within it
    "no_grad": (no_grad, lambda: not is_grad_enabled()),
    "observing": (lambda: observing(OBSERVER), lambda: operations_seen_by(OBSERVER) == 1),
    "keyed": (lambda: npx.keyed(1, 2), lambda: npx.next_key() == (1, 2, 0)),
    "rematerialize_above": (
        lambda: npx.rematerialize_above(15),
        lambda: [npx.should_rematerialize(np.ones(n)) for n in (1, 2)] == [False, True],
    ),
    "kernel_mode": (lambda: npx.kernel_mode("reference"), lambda: dispatch._mode.get() == "reference"),
    "use_shapes_only": (use_shapes_only, lambda: constant((3,), 1).strides == (0,)),
}


def holds(condition):
    try:
        return condition()
    except RuntimeError:  # random numbers without a key
        return False


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_applies_to_its_thread_and_its_workers(name, monkeypatch):
    """Two threads with overlapping blocks do not affect each other, even if the blocks end in another order."""
    monkeypatch.setenv("NPX_THREADS", "2")
    block, condition = BLOCKS[name]
    entered, left = threading.Event(), threading.Event()  # by the other thread, and by this one
    answers_of_other = []

    def other():
        answers_of_other.append(holds(condition))
        with block():
            entered.set()
            left.wait(60)
            answers_of_other.append(holds(condition))
        answers_of_other.append(holds(condition))

    thread = threading.Thread(target=other)
    with block():
        thread.start()
        assert entered.wait(60)
        both_started = threading.Barrier(2)
        lock = threading.Lock()  # one thread at a time, because the observer counts

        def ask(i, j):
            both_started.wait(60)
            with lock:
                return holds(condition), threading.get_ident()

        answers = row_blocks.parallel_for(ask, 2, 1)
        assert len({thread_id for _, thread_id in answers}) == 2
        if name != "keyed":  # only one of the two gets the first key
            assert all(answer for answer, _ in answers)
        assert name != "keyed" or answers[0][0] != answers[1][0]
    assert not holds(condition)
    left.set()
    thread.join(60)
    assert answers_of_other == [False, True, False] and not holds(condition)


def test_concurrent_trainings_and_translations_equal_sequential_ones():
    """The results are equal bit for bit, even with dropout."""
    config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=2, dropout=0.3)

    def trained(seed):
        adam = Adam(model := Transformer(config, seed=seed))
        for step in range(1, 31):
            adam.flat.zero_grad()
            with npx.keyed(seed, step):
                model.loss(SRC, TGT).backward()
            adam.step(1e-3)
        return adam.flat.data.tobytes()

    def translated(seed):
        model = Transformer(config, seed=seed)
        model.eval()
        return [beam_search(model, SRC, beam_size=3, max_extra_tokens=8)[0][0].score for _ in range(10)]

    jobs = [(trained, 1), (translated, 2), (trained, 3), (translated, 4)]
    expected = [job(seed) for job, seed in jobs]
    results = [None] * len(jobs)

    def work(i):
        results[i] = jobs[i][0](jobs[i][1])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == expected
