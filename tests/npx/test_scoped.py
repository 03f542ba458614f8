"""What a `with` block sets (npx/scoped.py) holds in its own thread, and in those that walk over rows for it."""

import threading

import numpy as np
import pytest

import npx
from autograd import Tensor, is_grad_enabled, no_grad, observing
from models import Transformer, TransformerConfig
from models.init import full, shapes_only
from models.search import beam_search
from npx import dispatch
from npx.cpu import row_blocks
from train import Adam

SRC = np.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]])
TGT = np.array([[1, 5, 6, 2], [1, 9, 2, 0]])


class Seen:
    """An observer that counts."""

    number = 0

    def on_forward(self, *args):
        self.number += 1


def seen_by(observer):
    """How many operations it is told of here."""
    before = observer.number
    Tensor(np.ones(1)) + 1.0
    return observer.number - before


OBSERVER = Seen()
BLOCKS = {  # a block -> what is so within, and not outside
    "no_grad": (no_grad, lambda: not is_grad_enabled()),
    "observing": (lambda: observing(OBSERVER), lambda: seen_by(OBSERVER) == 1),
    "keyed": (lambda: npx.keyed(1, 2), lambda: npx.next_key() == (1, 2, 0)),
    "no_rematerialization": (npx.no_rematerialization, lambda: not npx.should_rematerialize(np.ones(1))),
    "kernel_mode": (lambda: npx.kernel_mode("reference"), lambda: dispatch._mode.get() == "reference"),
    "shapes_only": (shapes_only, lambda: full(1, 3).strides == (0,)),
}


def answer(question):
    try:
        return question()
    except RuntimeError:  # of random numbers without a key
        return False


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_holds_in_its_thread_and_in_those_that_walk_for_it(name, monkeypatch):
    """Two threads whose blocks overlap: neither sees the other's, nor what was set when another one ends later."""
    monkeypatch.setenv("NPX_THREADS", "2")
    block, question = BLOCKS[name]
    opened, closed, found = threading.Event(), threading.Event(), []

    def other():
        found.append(answer(question))
        with block():
            opened.set()
            closed.wait(60)
            found.append(answer(question))
        found.append(answer(question))

    thread = threading.Thread(target=other)
    with block():
        thread.start()
        assert opened.wait(60)
        both, asked = threading.Barrier(2), threading.Lock()  # one question at a time: the observer counts

        def ask(i, j):
            both.wait(60)
            with asked:
                return answer(question), threading.get_ident()

        answers = row_blocks.parallel_ranges(ask, 2, 1)
        assert len({walker for _, walker in answers}) == 2
        if name != "keyed":  # whose first key one of the two has got
            assert all(said for said, _ in answers)
        assert name != "keyed" or answers[0][0] != answers[1][0]
    assert not answer(question)
    closed.set()
    thread.join(60)
    assert found == [False, True, False] and not answer(question)


def test_two_threads_train_and_translate_as_one_does():
    """With dropout, to the bit: each in its own blocks, whatever the other does in between."""
    shape = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=2, dropout=0.3)

    def trained(seed):
        adam = Adam(model := Transformer(shape, seed=seed))
        for step in range(1, 31):
            adam.flat.zero_grad()
            with npx.keyed(seed, step):
                model.loss(SRC, TGT).backward()
            adam.step(1e-3)
        return adam.flat.data.tobytes()

    def translated(seed):
        model = Transformer(shape, seed=seed)
        model.eval()
        return [beam_search(model, SRC, beam=3, max_extra=8)[0][0].score for _ in range(10)]

    jobs = [(trained, 1), (translated, 2), (trained, 3), (translated, 4)]
    expected = [job(seed) for job, seed in jobs]
    found = [None] * len(jobs)

    def work(i):
        found[i] = jobs[i][0](jobs[i][1])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
