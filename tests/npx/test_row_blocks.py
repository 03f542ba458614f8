"""Row blocks and threads (npx/cpu/row_blocks.py): every row is computed once, in order, for every block size."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from npx.cpu import row_blocks
from npx.testing import interleave

small = pytest.mark.parametrize("size, threads", [(size, threads) for size in (1, 2, 3) for threads in (1, 2, 3)])


@small
@pytest.mark.parametrize("number", [0, 1, 2, 3, 7, 20])
def test_every_row_once_and_results_in_order(number, size, threads):
    """There are as many threads as blocks, and nothing runs inline."""
    workers = set()
    computed = []

    def body(i, j):
        workers.add(threading.get_ident())
        computed.extend(range(i, j))
        return i, j

    with npx.small_blocks(size, threads):
        blocks = row_blocks.map_blocks(body, number, 8)
        assert blocks == [(i, min(i + size, number)) for i in range(0, number, size)]
        assert sorted(computed) == list(range(number)) and len(workers) == min(threads, len(blocks))
        assert blocks == row_blocks.parallel_for(body, number, row_blocks.overridable_size(1000), inline=True)


@given(number=st.integers(0, 300), row_bytes=st.integers(0, 100), threads=st.integers(1, 5))
def test_blocks_cover_every_row_once_in_order(number, row_bytes, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "BLOCK_BYTES", 200)
        patch.setattr(row_blocks, "INLINE_BYTES", 1000)
        patch.setenv("NPX_THREADS", str(threads))
        blocks = row_blocks.map_blocks(lambda i, j: range(i, j), number, row_bytes)
    assert [row for block in blocks for row in block] == list(range(number))


@given(number=st.integers(1, 300), row_bytes=st.integers(1, 100))
def test_large_work_gets_an_even_number_of_blocks_of_bounded_size(number, row_bytes):
    """Two threads then compute the same number of blocks, unless there are too few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "BLOCK_BYTES", 200)
        patch.setattr(row_blocks, "INLINE_BYTES", 1000)
        step = row_blocks.block_rows(number, row_bytes)
    if number * row_bytes < 1000:
        assert step == number
    else:
        assert step == 1 or step * row_bytes <= 200 + row_bytes
        n_blocks = 2 * -(-number * row_bytes // 400)
        assert -(-number // step) <= n_blocks and (number % n_blocks or -(-number // step) == n_blocks)


@small
@given(m=st.integers(0, 9), k=st.integers(0, 9), n=st.integers(0, 9))
def test_a_matmul_in_panels_equals_the_matmul(size, threads, m, k, n):
    a = np.arange(m * k, dtype=float).reshape(m, k) - 7
    b = np.arange(k * n, dtype=float).reshape(k, n) + 1
    with npx.small_blocks(size, threads):
        assert np.array_equal(row_blocks.matmul(a, b), a @ b)  # integers, so exact in any order
        out = np.empty((m, 2 * n))[:, ::2]
        assert row_blocks.matmul(a, b, out=out) is out and np.array_equal(out, a @ b)


@pytest.mark.parametrize("threads", [2, 3])
def test_nested_ranges_do_not_deadlock(threads, monkeypatch):
    """When all threads run outer ranges, none is free for the inner ones."""
    monkeypatch.setenv("NPX_THREADS", str(threads))
    all_started = threading.Barrier(threads)
    results = []

    def outer(i, j):
        if i < threads:
            all_started.wait(60)
        return row_blocks.parallel_for(lambda k, _: (i, k, threading.get_ident()), 4, 1)

    thread = threading.Thread(
        target=lambda: results.extend(row_blocks.parallel_for(outer, 2 * threads, 1)), daemon=True
    )
    thread.start()
    thread.join(60)
    assert [[(i, k) for i, k, _ in inner] for inner in results] == [
        [(i, k) for k in range(4)] for i in range(2 * threads)
    ]
    assert len({thread_id for inner in results for *_, thread_id in inner}) == threads


@small
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), dtype=st.sampled_from(["float32", "float64"]))
def test_elementwise_equals_the_formula_on_complete_arrays(size, threads, shape, dtype):
    """Non-contiguous views are included; every value is computed once."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*shape[:-1], 2 * shape[-1])).astype(dtype)[..., 1::2]
    y = rng.normal(size=shape).astype(dtype)
    computed = []

    def formula(a, b):
        computed.extend(np.ravel(b))
        return np.exp(a) * b

    with npx.small_blocks(size, threads):
        z = npx.elementwise(formula, x, y)
    assert z.shape == y.shape and z.dtype == dtype and np.array_equal(z, np.exp(x) * y)
    assert sorted(computed) == sorted(y.ravel())
    assert npx.elementwise(np.exp, np.array(0.0)) == 1


@pytest.mark.parametrize("shape", [(2, 3), (3,), ()])
def test_elementwise_computes_16_bit_floats_in_float32(shape):
    """The result has the dtype of the first array, even without blocks (shape (), or any shape on a GPU)."""
    x = np.full(shape, 300, np.float16)
    dtypes = []

    def formula(x, small):
        dtypes.append((x.dtype.name, small.dtype.name))
        return x * x * small

    y = npx.elementwise(formula, x, np.full(shape, 1e-3, np.float16))
    assert y.dtype == np.float16 and y.shape == shape and np.allclose(y, 90, rtol=1e-3)
    assert set(dtypes) == {("float32", "float32")}
    with pytest.raises(ValueError, match="elementwise: expected a floating-point dtype; got int64"):
        npx.elementwise(np.exp, np.zeros(shape, np.int64))  # the result would be truncated


@small
@pytest.mark.parametrize("shape", [(5, 3), (4,), ()])
def test_elementwise_returns_several_outputs_as_a_tuple(size, threads, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float16)[()]
    with npx.small_blocks(size, threads):
        y, z = npx.elementwise(lambda x: (x * x, np.exp(x)), x, outputs=2)
    wide = x.astype(np.float32)
    assert y.dtype == z.dtype == np.float16
    assert np.array_equal(y, (wide * wide).astype(np.float16)) and np.array_equal(z, np.exp(wide).astype(np.float16))


@small
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 3), (4,), ()])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_formula_that_works_in_place_gives_equal_bits(size, threads, shape, dtype, outputs):
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)[()]

    def formula(x, *out):
        for power, y in enumerate(out, 2):
            np.multiply(x, x, out=y)
            y *= power

    with npx.small_blocks(size, threads):
        results = npx.elementwise(formula, x, outputs=outputs, in_place=True)
        expected = npx.elementwise(lambda x: (x * x * 2, x * x * 3), x, outputs=2)
    for y, z in zip(results if outputs > 1 else [results], expected, strict=False):
        assert y.dtype == dtype and y.shape == shape and np.array_equal(y, z)


def test_elementwise_does_not_broadcast():
    with pytest.raises(ValueError, match=r"expected all arrays to have shape \(2, 3\); got \(1, 3\)"):
        npx.elementwise(np.add, np.ones((2, 3)), np.ones((1, 3)))


def test_small_blocks_ends_with_its_block(monkeypatch):
    monkeypatch.setenv("NPX_THREADS", "4")
    before = row_blocks.overridable_size(1000), row_blocks.panel_size(1000), row_blocks.thread_count()
    with npx.small_blocks(2, threads=3):
        assert (row_blocks.overridable_size(1000), row_blocks.panel_size(1000), row_blocks.thread_count()) == (2, 2, 3)
        with npx.small_blocks(None, threads=1):
            assert (row_blocks.overridable_size(1000), row_blocks.thread_count()) == (1000, 1)
        with pytest.raises(ZeroDivisionError), npx.small_blocks():
            raise ZeroDivisionError
        assert (row_blocks.overridable_size(7), row_blocks.thread_count()) == (2, 3)
    assert (
        (row_blocks.overridable_size(1000), row_blocks.panel_size(1000), row_blocks.thread_count())
        == before
        == (1000, 250, 4)
    )


def test_small_blocks_applies_to_every_thread():
    sizes = []
    with npx.small_blocks(3, threads=2):
        other = threading.Thread(
            target=lambda: sizes.append((row_blocks.overridable_size(1000), row_blocks.thread_count()))
        )
        other.start()
        other.join()
    assert sizes == [(3, 2)]


@pytest.mark.parametrize("bad", [{"rows": 0}, {"threads": 0}, {"rows": -1, "threads": 2}])
def test_sizes_below_one_are_an_error(bad):
    with pytest.raises(ValueError, match="small_blocks: expected at least 1 row and 1 thread"):
        with npx.small_blocks(**bad):
            pass


@pytest.mark.parametrize("value", ["two", "-1", "1.5"])
def test_an_invalid_number_of_threads_is_an_error(value, monkeypatch):
    monkeypatch.setenv("NPX_THREADS", value)
    with pytest.raises(ValueError, match=f"NPX_THREADS: expected a whole number from 0 to 1024; got '{value}'"):
        row_blocks.thread_count()


@small
def test_an_error_in_a_block_reaches_the_caller(size, threads):
    def body(i, j):
        if i >= size:
            raise ZeroDivisionError

    with npx.small_blocks(size, threads), pytest.raises(ZeroDivisionError):
        row_blocks.map_blocks(body, 20, 8)


@pytest.mark.parametrize("fails", ["caller", "worker"])
def test_nothing_runs_after_an_error_is_raised(fails, monkeypatch):
    """Otherwise other threads would keep writing to arrays that the caller has discarded."""
    monkeypatch.setenv("NPX_THREADS", "2")
    number = 200
    both_started = threading.Barrier(2)
    caller = threading.get_ident()
    threads = set()
    begun, done = [], []

    def body(i, j):
        begun.append(i)
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            both_started.wait(60)
        if (threading.get_ident() == caller) == (fails == "caller"):
            raise MemoryError
        threading.Event().wait(1e-3)  # lets the other thread run
        done.append(i)

    with pytest.raises(MemoryError):
        row_blocks.parallel_for(body, number, 1)
    n_begun = len(begun)
    row_blocks.parallel_for(lambda i, j: both_started.wait(60), 2, 1)  # needs the worker to be free
    assert len(begun) == n_begun == len(done) + 1 < number


# Interleaved threads


SHARING = {
    "lines": lambda x, y, scratch: (np.multiply(x, 2, out=scratch), np.copyto(y, scratch)),
    "one expression": lambda x, y, scratch: np.copyto(y, np.multiply(x, 2, out=scratch)),
    "in place": lambda x, y, scratch: (scratch.fill(0), scratch.__iadd__(x), y.fill(0), y.__iadd__(scratch * 2)),
}


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("shared", SHARING)
@pytest.mark.parametrize("run", range(3))
def test_a_race_fails_in_every_run(threads, shared, run):
    x, y = np.arange(6.0), np.empty(6)
    scratch = np.empty(1)

    def body(i, j):
        SHARING[shared](x[i:j], y[i:j], scratch)

    with npx.small_blocks(1, threads):
        row_blocks.map_blocks(body, 6, 8)
    assert not np.array_equal(y, 2 * x)
    with npx.small_blocks(1, threads=1):
        row_blocks.map_blocks(body, 6, 8)
    assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize("run", range(5))
def test_the_last_of_the_first_blocks_ends_first(run):
    """A result that depends on the order of completion is then detected too."""
    ended = []
    with npx.small_blocks(2, threads=3):
        row_blocks.parallel_for(lambda i, j: ended.append(i), 6, 2)
    assert ended == [4, 2, 0]


def test_blocks_that_wait_for_a_lock_continue(monkeypatch):
    """A thread that holds a lock continues, although the others wait for that lock and never yield to it."""
    monkeypatch.setattr(interleave, "TIMEOUT", 0.02)
    lock = threading.Lock()
    total = 0

    def body(i, j):
        nonlocal total
        with lock:
            before = total
            total = before + i

    with npx.small_blocks(1, threads=3):
        row_blocks.map_blocks(body, 20, 8)
    assert total == 190
