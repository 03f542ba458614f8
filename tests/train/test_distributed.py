"""The laws of several processes that train one model: real ones, which mpirun starts (distributed_jobs.py).

What one process computes and what k of them do differ by the order of summation alone. float64 shows that: a mistake
is as large there as in float32, and rounding is not.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from models import FlatParameters, Transformer, TransformerConfig
from tests import ROOT
from tests.helpers import distributed_jobs, trainings
from tests.helpers.trainings import outcome, tables
from train import RunConfig
from train import train as train_run
from train.cli.main import main
from train.learn.parallel.plan import WorkShare, balance
from train.learn.parallel.reducer import BUCKET, GradientReducer
from train.learn.parallel.sync import UpdateSync
from train.learn.signals import Signals
from train.learn.update import Update
from train.run.checkpoint import load_checkpoint, load_model
from train.run.folder import RunFolder
from train.run.keys import TrainSection
from train.run.report import RankNotes
from train.tasks import TASKS
from train.tasks.translation import translate_lines

text = trainings.text
UNION = 12  # micro-batches an update, of all ranks together
LINES = ["one two", "", *(" ".join(["three", "four", "nine"][: n % 4]) for n in range(12)), "zero"]
ONE_AT_A_TIME = threading.Lock()
PRECISE = {"float32": 1e-6, "float64": 1e-12}


def some(folder, ranks, steps=3, **changes):
    """The tables of a training whose updates are the same for any number of ranks."""
    changes = {"accumulate": UNION // ranks, "max_steps": steps, "validate_every": 3, "lr_scale": 0.1} | changes
    return tables(folder, **changes)


def worked(text, folder):
    """Leaves the run folders of all trainings of this file: one by this process, others by ranks."""
    jobs = []

    def job(name, ranks, resume=False, **changes):
        of = {"tables": some(text, ranks, **changes), "out": str(folder / name), "resume": resume}
        jobs.append(("train", ranks, of))

    for ranks in (2, 3, 4):
        jobs.append(("laws", ranks, {"out": str(folder / "laws")}))
        for precision in PRECISE:
            job(f"{precision}-{ranks}", ranks, precision=precision)
        job(f"sharded-{ranks}", ranks, precision="float64", shard=True)
    job("again", 3, precision="float32")
    for ranks, steps, shard in ((4, 2, True), (2, 4, False), (3, 6, True)):
        about = {"accumulate": 1, "steps": steps, "shard": shard, "precision": "float64"}
        job("changing", ranks, resume=steps > 2, **about)
    jobs.append(("translate", 3, {"run": str(folder / "again"), "lines": LINES, "out": str(folder / "translated")}))
    (folder / "jobs.json").write_text(json.dumps(jobs))
    distributed_jobs.done(4, folder / "jobs.json")
    for precision in PRECISE:
        train_run(RunConfig.from_dict(some(text, 1, precision=precision)), folder / f"{precision}-1", progress=False)
    alone = some(text, 1, accumulate=4, steps=6, precision="float64")
    train_run(RunConfig.from_dict(alone), folder / "alone", progress=False)


def check_same(one, other, within):
    """Weights, moments, state and metrics of two runs, up to the order of summation."""
    a, b = (load_checkpoint(RunFolder(out).steps()[-1]) for out in (one, other))
    for x, y in ((a.model, b.model), (a.optimizer, b.optimizer)):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_allclose(y[name], x[name], rtol=within, atol=within, err_msg=name)
    clocks = {*trainings.CLOCKS, "window_loss", "best_loss"}
    first, second = ({k: v for k, v in c.state["run"].items() if k not in clocks} for c in (a, b))
    assert first == second and a.state["micro_batches"] == b.state["micro_batches"]
    for x, y in zip(trainings.metrics(one), trainings.metrics(other), strict=True):
        assert x.keys() == y.keys()
        for name in x:
            assert y[name] == (pytest.approx(x[name], rel=within) if isinstance(x[name], float) else x[name]), name


def test_ranks_train_what_one_process_trains(text, tmp_path):
    """One test, so that processes which share out the tests start mpirun once."""
    distributed_jobs.needs_mpi()
    worked(text, tmp_path)
    assert len(list((tmp_path / "laws").iterdir())) == 2 + 3 + 4, "sums in the order of ranks, things as given"
    for ranks in (2, 3, 4):
        for precision, within in PRECISE.items():
            check_same(tmp_path / f"{precision}-1", tmp_path / f"{precision}-{ranks}", within)
        check_same(tmp_path / "float64-1", tmp_path / f"sharded-{ranks}", PRECISE["float64"])
    assert outcome(tmp_path / "again") == outcome(tmp_path / "float32-3"), "a run repeats bit for bit"
    check_same(tmp_path / "alone", tmp_path / "changing", PRECISE["float64"])  # of 4, 2 and 3 ranks in turn
    model, tokenizer, _ = load_model(tmp_path / "again", "translation")
    alone = [[list(one) for one in line] for line in translate_lines(model, tokenizer, LINES, n_best=2)]
    found = [json.loads((tmp_path / "translated" / str(rank)).read_text()) for rank in range(3)]
    assert found[0] == found[1] == found[2] and len(found[0]) == len(LINES)
    for ours, theirs in zip(found[0], alone, strict=True):
        assert [text for text, _ in ours] == [text for text, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-5)
    log = (tmp_path / "float32-3" / "log.txt").read_text(encoding="utf-8")
    assert log.count("12 per update on 3 ranks") == 1 and log.count("done after step 3") == 1, "rank 0 alone writes"
    names = [{path.name for path in (tmp_path / f"float32-{ranks}").iterdir()} for ranks in (1, 3)]
    assert names[0] == names[1]


def test_a_process_alone_imports_nothing_of_mpi(text, tmp_path):
    (tmp_path / "jobs.json").write_text(json.dumps(tables(text, max_steps=1)))
    script = (
        "import json, sys, builtins\n"
        "from train import RunConfig, train\n"
        f"train(RunConfig.from_dict(json.load(open({str(tmp_path / 'jobs.json')!r}))), {str(tmp_path / 'run')!r})\n"
        "assert not {'mpi4py', 'concurrent.futures.process'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_mpi4py_ranks_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(
        RuntimeError, match=r"expected mpi4py, because 3 processes were launched; .* pip install '.*\[mpi\]'"
    ):
        npx.distributed.join()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert npx.distributed.join() is npx.distributed.world() and npx.distributed.world().size == 1


def test_several_ranks_do_not_read_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("train.learn.training.join_ranks", lambda: Told(None))
    assert main(["translate", "--model", "nowhere"]) == 2
    assert "expected --input FILE on 2 ranks" in capsys.readouterr().err


# ---- a rank that fails


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_fails_ends_the_run_in_one_line_and_one_process_goes_on(text, tmp_path, number):
    distributed_jobs.needs_mpi()
    out, jobs = tmp_path / "run", tmp_path / "jobs.json"
    about = some(text, 3, steps=10**6, precision="float64", rank_timeout=5.0, validate_every=10**6)
    jobs.write_text(json.dumps([("train", 3, {"tables": about, "out": str(out)})]))
    process = distributed_jobs.started(3, "-m", "tests.helpers.distributed_jobs", jobs)
    while not RunFolder(out).steps() and process.poll() is None:  # no longer than a rank's own patience
        time.sleep(0.05)
    assert process.poll() is None, distributed_jobs.said(process)
    os.kill(distributed_jobs.processes(process)[1], number)
    told = distributed_jobs.said(process)
    found = re.findall(r"npx-transformer: (rank . of 3 \(.*\)), step \d+: (.*)", told)  # mpirun's own lines are around
    assert process.returncode and found, told
    assert found[0][0] == f"rank 1 of 3 ({socket.gethostname()})" and "the run ends" in found[0][1]
    steps = int(RunFolder(out).steps()[-1].name.removeprefix("step-")) + 2
    of = {"steps": steps, "precision": "float64", "validate_every": 10**6}
    train_run(RunConfig.from_dict(some(text, 3, **of)), out, resume=True, progress=False)
    train_run(RunConfig.from_dict(some(text, 1, **of)), tmp_path / "alone", progress=False)
    check_same(tmp_path / "alone", out, 1e-10)


# ---- what ranks agree on


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1), st.booleans()), min_size=1, max_size=4))
def test_the_slowest_rank_says_how_long_and_the_one_that_waited_least_how_much_was_the_networks(others):
    """Each of `others`: what an update took there, the share of it that was waiting, whether it has heard a signal."""
    world, signals = npx.distributed.World(), Signals(single_process=False)
    told = [(seconds, seconds * share, heard, []) for seconds, share, heard in others]
    world.gather = lambda own: [own, *told]
    agreement = UpdateSync(world, signals, RankNotes(), None)
    agreement.begin()
    seconds, network = agreement.end()
    assert seconds >= max(took for took, *_ in told) and network == 0.0  # this rank has waited for nobody
    assert signals.stop_requested == any(heard for _, _, heard, _ in told)
    world.gather = lambda own: [*told]
    agreement.begin()
    assert agreement.end() == (max(took for took, *_ in told), min(waited for _, waited, *_ in told))


# ---- shares, and buckets


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 8))
def test_every_micro_batch_is_one_ranks_and_no_rank_has_much_more_than_it_must(tokens, ranks):
    shares = balance(tokens, ranks)
    assert sorted(number for share in shares for number in share) == list(range(len(tokens)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(tokens[number] for number in share) for share in shares]
    assert max(loads) <= 4 / 3 * max(sum(tokens) / ranks, max(tokens)) + max(tokens) / 3
    assert max(loads) - min(loads) <= max(tokens)
    if len(tokens) >= ranks:
        assert all(shares)


@given(st.lists(st.integers(1, 2), min_size=1, max_size=5), st.integers(5, 9))
def test_halves_have_numbers_of_their_own(halves, count):
    share = WorkShare(range(len(halves)), count, 10).split(halves)
    assert len(set(share.indices)) == sum(halves) == len(share.indices)
    assert [n % count for n in share.indices] == [i for i, parts in enumerate(halves) for _ in range(parts)]


class Told(npx.distributed.World):
    """A world of two, the other of which has nothing to add; it tells when what was added up."""

    size = 2

    def __init__(self, flat):
        self.flat, self.sums = flat, []

    def all_reduce(self, flat, wire_dtype=None):
        self.sums.append(flat.copy())
        return lambda: None


@settings(max_examples=8)
@given(st.integers(200, 3000), st.integers(0, 5))
def test_a_bucket_is_sent_when_backward_adds_no_more_to_it(bytes_of_bucket, seed):
    shape = TransformerConfig(vocab_size=11, d_model=8, d_ff=12, n_heads=2, n_layers=2, dropout=0.0)
    model = Transformer(shape, seed)
    flat = FlatParameters(model)
    world = Told(flat)
    reduction = GradientReducer(flat, world, bucket=bytes_of_bucket)
    assert sorted(i for b in reduction.buckets for i in range(b.start, b.stop)) == list(range(flat.grad.size))
    src, tgt = np.array([[5, 6, 2]]), np.array([[1, 4, 2]])
    reduction.begin()
    model.loss(src, tgt).backward(on_leaf_done=reduction.ready)
    early = len(world.sums)
    assert early == len(reduction.buckets)  # each parameter is a leaf of the graph
    reduction.squared_norm()
    for bucket, sent in zip(reduction.buckets, world.sums, strict=True):
        assert np.array_equal(sent, flat.grad[bucket])  # nothing was added after it had gone
    model.encoder[0].gradient_checkpointing = True
    flat.zero_grad()
    world.sums.clear()
    reduction.begin()
    assert reduction.ready is None


# ---- what each rank keeps


class Among(npx.distributed.World):
    """A rank that is a thread among others."""

    def __init__(self, rank, table, barrier):
        self.rank, self.size, self.table, self.barrier = rank, len(table), table, barrier

    def gather(self, thing):
        self.table[self.rank] = thing
        self.barrier.wait(60)
        found = list(self.table)
        self.barrier.wait(60)
        return found

    def reduce_scatter(self, flat, wire_dtype=None):
        own = self.shard_slice(flat.size)
        flat[own] = distributed_jobs.summed([other[own] for other in self.gather(flat.copy())], flat.dtype)
        return lambda: None

    def all_gather(self, flat, wire_dtype=None):
        flat[...] = np.concatenate(self.gather(flat[self.shard_slice(flat.size)].copy()))
        return lambda: None

    def all_reduce(self, flat, wire_dtype=None):
        self.reduce_scatter(flat)
        return self.all_gather(flat)


def of_ranks(size, work):
    """What `work(world)` gives on each of so many ranks; `npx.distributed.world()` is each one's own."""
    table, barrier, here = [None] * size, threading.Barrier(size), threading.local()

    def one(rank):
        here.world = Among(rank, table, barrier) if size > 1 else npx.distributed.World()
        return work(here.world)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(size) as pool:
        patch.setattr(npx.distributed, "world", lambda: here.world)
        return list(pool.map(one, range(size)))


def moved(world, precision, shard, start, gradients):
    """An Update moved on from `start` by gradients (step, rank, P), what it computes with, what is kept of it."""
    shape = TransformerConfig(vocab_size=11, d_model=4, d_ff=6, n_heads=2, n_layers=1, dropout=0.0)
    section = TrainSection(precision=precision, shard=shard)
    with ONE_AT_A_TIME:  # what draws the first weights is one in a process
        model = Transformer(shape, 1)
    update = Update(TASKS["translation"], model, section, RankNotes())
    if start is not None:
        update.load_optimizer_state(start[1])
        update.load_weights(start[0])
    for of_rank in gradients:
        parts = of_rank if world.size == 1 else of_rank[world.rank :: world.size]
        update.flat.grad[...] = sum(parts[1:], start=parts[0])
        update.gradients.begin()
        update.gradients.squared_norm()
        update.apply(1e-3, 1.0)
    computed = np.concatenate([p.data.reshape(-1) for p in update.flat.parameters])
    return update, computed, (update.weights(), update.optimizer_state())


@settings(max_examples=6)
@given(st.data(), st.sampled_from(["float32", "bf16", "fp16"]), st.integers(2, 4), st.booleans())
def test_each_rank_keeps_its_part_of_what_is_learned_and_all_compute_with_the_same(data, precision, size, small):
    """Ranks sharded or not, and then others, move weights as one process does; the bits are those of the same sums."""
    if precision == "bf16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    other = data.draw(st.integers(1, 4))
    count = 392
    gradients = np.random.default_rng(size).integers(-8, 9, (4, 12, count)).astype("float32")  # sums are exact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientReducer.__init__, "__defaults__", (False, None, 400 if small else BUCKET))
        ((alone, computed, (weights, state)),) = of_ranks(1, lambda one: moved(one, precision, False, None, gradients))
        assert alone.flat.size == count
        first = of_ranks(size, lambda world: moved(world, precision, True, None, gradients[:2]))
        kept = first[0][2]
        second = of_ranks(other, lambda world: moved(world, precision, other > 2, kept, gradients[2:]))
    for _, own, _ in second:
        assert own.tobytes() == computed.tobytes()
    learned, remembered = second[0][2]
    for found, expected in ((learned, weights), ({name: remembered[name] for name in "mv"}, state)):
        assert all(array.tobytes() == expected[name].tobytes() for name, array in found.items())
    assert learned.keys() == weights.keys()
    parts = [update.adam.m.size for update, _, _ in first]
    buckets = len(first[0][0].gradients.buckets)
    assert sum(parts) == count and max(parts) <= count / size + buckets
    for (update, _, _), part in zip(first, parts, strict=True):
        arrays = update.flat.data, update.flat.low_precision, update.flat.grad, update.adam.m, update.adam.v
        expected = 6 * count + 12 * part if precision != "float32" else 8 * count + 8 * part
        assert sum(a.nbytes for a in arrays if a is not None) == expected
