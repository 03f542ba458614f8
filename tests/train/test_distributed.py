"""Data-parallel training with real processes, which mpirun launches (distributed_jobs.py).

One process and k processes differ only in the order of summation. Comparing in float64 separates bugs, which are as
large as in float32, from rounding errors, which are much smaller.
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
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from models import FlatParameters, Transformer, TransformerConfig
from tests import ROOT
from tests.helpers import distributed_jobs, trainings
from tests.helpers.trainings import outcome, tables
from train import RunConfig, UserError
from train import train as train_run
from train.cli.main import main
from train.learn.parallel.plan import WorkShare, balance, split_positions
from train.learn.parallel.reducer import BUCKET, GradientReducer
from train.learn.parallel.sync import UpdateSync
from train.learn.signals import Signals
from train.learn.update import Updater
from train.run.checkpoint import load_checkpoint, load_model
from train.run.folder import RunFolder
from train.run.keys import TrainSection
from train.run.report import SilentReport
from train.tasks import TASKS
from train.tasks.translation import translate_lines
from train.text.batches import BatchLoader

MICRO_BATCHES = 12  # per update, over all ranks
LINES = ["one two", "", *(" ".join(["three", "four", "nine"][: n % 4]) for n in range(12)), "zero"]
INITIALIZING = threading.Lock()
PRECISE = {"float32": 1e-6, "float64": 1e-12}


def config_tables(folder, ranks, steps=3, **changes):
    """Return the configuration of a training run whose updates are the same for any number of ranks."""
    changes = {
        "gradient_accumulation_steps": MICRO_BATCHES // ranks,
        "max_steps": steps,
        "validate_every": 3,
        "lr_scale": 0.1,
    } | changes
    values = tables(folder, **changes)
    if "rdrop_weight" in changes:
        values["model"]["word_dropout"] = 0.1
        values["data"]["vocabularies"] = "separate"
    return values


def split_tables(folder, steps):
    """Return the configuration of a training run with one micro-batch per update and without dropout."""
    changed = config_tables(folder, MICRO_BATCHES, steps=steps, validate_every=2, precision="float64")
    return changed | {"model": changed["model"] | {"dropout": 0.0}}


def run_all(text, folder):
    """Run every training job of this file, with one process and with several ranks."""
    jobs = []

    def job(name, ranks, resume=False, **changes):
        arguments = {"tables": config_tables(text, ranks, **changes), "out": str(folder / name), "resume": resume}
        jobs.append(("train", ranks, arguments))

    for ranks in (2, 3, 4):
        jobs.append(("check_world", ranks, {"out": str(folder / "worlds")}))
        for precision in PRECISE if ranks == 3 else ["float64"]:
            job(f"{precision}-{ranks}", ranks, precision=precision)
        job(f"sharded-{ranks}", ranks, precision="float64", shard_optimizer=True)
    job("again", 3, precision="float32")
    regularized = {
        "bpe_dropout": 0.2,
        "rdrop_weight": 1.0,
        "freeze": "encoder.*.feed_forward.*",
        "precision": "float64",
    }
    job("regularized-2", 2, shard_optimizer=True, **regularized)
    for ranks, steps, shard in ((4, 2, True), (2, 4, False), (3, 6, True)):
        changes = {"gradient_accumulation_steps": 1, "steps": steps, "shard_optimizer": shard, "precision": "float64"}
        job("changing", ranks, resume=steps > 2, **changes)
    train_run(RunConfig.from_dict(split_tables(text, 2)), folder / "split", progress=False)
    train_run(RunConfig.from_dict(split_tables(text, 4)), folder / "unsplit", progress=False)
    jobs.append(("train", 4, {"tables": split_tables(text, 4), "out": str(folder / "split"), "resume": True}))
    jobs.append(("translate", 3, {"run": str(folder / "again"), "lines": LINES, "out": str(folder / "translated")}))
    (folder / "jobs.json").write_text(json.dumps(jobs))
    distributed_jobs.run_jobs(4, folder / "jobs.json")
    for precision in PRECISE:
        train_run(
            RunConfig.from_dict(config_tables(text, 1, precision=precision)), folder / f"{precision}-1", progress=False
        )
    train_run(RunConfig.from_dict(config_tables(text, 1, **regularized)), folder / "regularized-1", progress=False)
    single = config_tables(text, 1, gradient_accumulation_steps=4, steps=6, precision="float64")
    train_run(RunConfig.from_dict(single), folder / "alone", progress=False)


def check_same(one, other, within, *stops, validate_every=3):
    """Compare weights, moments, state and metrics of two runs, of which `other` stopped at `stops`.

    The two runs differ only in the order of summation.
    """
    a, b = (load_checkpoint(RunFolder(out).step_paths()[-1]) for out in (one, other))
    for x, y in ((a.weights, b.weights), (a.optimizer_arrays, b.optimizer_arrays)):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_allclose(y[name], x[name], rtol=within, atol=within, err_msg=name)
    clocks = {*trainings.CLOCKS, "window_loss", "best_loss"}
    first, second = ({k: v for k, v in c.state["run"].items() if k not in clocks} for c in (a, b))
    assert first == second and a.state["micro_batches"] == b.state["micro_batches"]
    for x, y in zip(
        trainings.metrics(one), trainings.metrics(other, *stops, validate_every=validate_every), strict=True
    ):
        assert x.keys() == y.keys()
        for name in x:
            assert y[name] == (pytest.approx(x[name], rel=within) if isinstance(x[name], float) else x[name]), name


@pytest.mark.slow
def test_several_ranks_train_like_one_process(text, tmp_path):
    """This is a single test so that parallel test runners launch mpirun only once."""
    distributed_jobs.needs_mpi()
    run_all(text, tmp_path)
    assert len(list((tmp_path / "worlds").iterdir())) == 2 + 3 + 4, "every rank has checked its world"
    for ranks in (2, 3, 4):
        for name in ("float64", "sharded"):
            check_same(tmp_path / "float64-1", tmp_path / f"{name}-{ranks}", PRECISE["float64"])
    for precision, within in PRECISE.items():
        check_same(tmp_path / f"{precision}-1", tmp_path / f"{precision}-3", within)
    check_same(tmp_path / "regularized-1", tmp_path / "regularized-2", PRECISE["float64"])
    assert outcome(tmp_path / "again") == outcome(tmp_path / "float32-3"), "runs are deterministic"
    check_same(tmp_path / "alone", tmp_path / "changing", PRECISE["float64"], 2, 4)  # on 4, 2 and 3 ranks in turn
    # 4 ranks share one micro-batch
    check_same(tmp_path / "unsplit", tmp_path / "split", PRECISE["float64"], 2, validate_every=2)
    assert "only 1 micro-batch per update for 4 ranks" in (tmp_path / "split" / "log.txt").read_text()
    model, tokenizer, _ = load_model(tmp_path / "again", "translation")
    expected = [[list(one) for one in line] for line in translate_lines(model, tokenizer, LINES, n_best=2)]
    by_rank = [json.loads((tmp_path / "translated" / str(rank)).read_text()) for rank in range(3)]
    assert by_rank[0] == by_rank[1] == by_rank[2] and len(by_rank[0]) == len(LINES)
    for ours, theirs in zip(by_rank[0], expected, strict=True):
        assert [text for text, _ in ours] == [text for text, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-5)
    log = (tmp_path / "float32-3" / "log.txt").read_text(encoding="utf-8")
    assert log.count("12 per update on 3 ranks") == 1 and log.count("done after step 3") == 1, "only rank 0 writes"
    names = [{path.name for path in (tmp_path / f"float32-{ranks}").iterdir()} for ranks in (1, 3)]
    assert names[0] == names[1]


def test_a_single_process_does_not_import_mpi(text, tmp_path):
    (tmp_path / "jobs.json").write_text(json.dumps(tables(text, max_steps=1)))
    script = (
        "import json, sys, builtins\n"
        "from train import RunConfig, train\n"
        f"train(RunConfig.from_dict(json.load(open({str(tmp_path / 'jobs.json')!r}))), {str(tmp_path / 'run')!r})\n"
        "assert not {'mpi4py', 'concurrent.futures.process'} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(
        RuntimeError, match=r'expected mpi4py, because 3 processes were launched; .* pip install ".*\[mpi\]"'
    ):
        npx.distributed.initialize()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert npx.distributed.initialize() is npx.distributed.world() and npx.distributed.world().size == 1


def test_several_ranks_do_not_read_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("train.learn.parallel.join.join_ranks", lambda command: RecordingWorld(None))
    assert main(["translate", "--model", "nowhere"]) == 2
    assert "expected --input FILE with 2 ranks" in capsys.readouterr().err


# ---- a rank that fails


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_failed_rank_ends_the_run_with_one_line_and_the_run_can_resume(text, tmp_path, number):
    distributed_jobs.needs_mpi()
    out, jobs = tmp_path / "run", tmp_path / "jobs.json"
    config = config_tables(text, 3, steps=10**6, precision="float64", rank_timeout=5.0, validate_every=10**6)
    jobs.write_text(json.dumps([("train", 3, {"tables": config, "out": str(out)})]))
    process = distributed_jobs.launch(3, "-m", "tests.helpers.distributed_jobs", jobs)
    while not RunFolder(out).step_paths() and process.poll() is None:  # bounded by the timeout of the ranks
        time.sleep(0.05)
    assert process.poll() is None, distributed_jobs.stderr_of(process)
    os.kill(distributed_jobs.rank_pids(process)[1], number)
    errors = distributed_jobs.stderr_of(process)
    messages = re.findall(r"npx-transformer: (rank . of 3 \(.*\)), step \d+: (.*)", errors)  # among mpirun's messages
    assert process.returncode and messages, errors
    assert messages[0][0] == f"rank 1 of 3 ({socket.gethostname()})" and "the run ends" in messages[0][1]
    steps = int(RunFolder(out).step_paths()[-1].name.removeprefix("step-")) + 2
    changes = {"steps": steps, "precision": "float64", "validate_every": 10**6}
    train_run(RunConfig.from_dict(config_tables(text, 3, **changes)), out, resume=True, progress=False)
    train_run(RunConfig.from_dict(config_tables(text, 1, **changes)), tmp_path / "alone", progress=False)
    check_same(tmp_path / "alone", out, 1e-10)


# ---- synchronization of updates


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1), st.booleans()), min_size=1, max_size=4))
def test_an_update_takes_the_time_of_the_slowest_rank_and_the_least_wait_is_the_networks(others):
    """`others` has, for each rank, the seconds of an update, the fraction spent waiting, and whether a signal came."""
    world = npx.distributed.World()
    signals = Signals(single_process=False)
    reports = [(seconds, seconds * fraction, signal, []) for seconds, fraction, signal in others]
    world.all_gather_object = lambda report: [report, *reports]
    sync = UpdateSync(world, signals, SilentReport(RunFolder(""), 1))
    sync.begin()
    seconds, network = sync.end()
    assert seconds >= max(took for took, *_ in reports) and network == 0.0  # this rank has not waited
    assert signals.stop_requested == any(signal for _, _, signal, _ in reports)
    world.all_gather_object = lambda report: [*reports]
    sync.begin()
    assert sync.end() == (max(took for took, *_ in reports), min(waited for _, waited, *_ in reports))


# ---- work shares and gradient buckets


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 8))
def test_every_micro_batch_has_one_rank_and_loads_are_balanced(tokens, ranks):
    shares = balance(tokens, ranks)
    assert sorted(number for share in shares for number in share) == list(range(len(tokens)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(tokens[number] for number in share) for share in shares]
    assert max(loads) <= 4 / 3 * max(sum(tokens) / ranks, max(tokens)) + max(tokens) / 3
    assert max(loads) - min(loads) <= max(tokens)
    if len(tokens) >= ranks:
        assert all(shares)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 40))
def test_micro_batches_are_split_until_every_rank_has_a_part(sizes, ranks):
    starts = np.cumsum([0, *sizes])
    keys = [np.arange(start, start + size) for start, size in zip(starts[:-1], sizes, strict=True)]
    source = SimpleNamespace(epoch_batches=lambda epoch: keys, token_counts=None, batch=None)
    loader = BatchLoader(source)
    places = loader.positions((0, 0), len(sizes))
    parts = split_positions(loader, places, ranks)
    assert [example for part in parts for example in loader.examples(part)] == list(range(sum(sizes)))
    assert all(len(loader.examples(part)) for part in parts) and len(parts) >= min(ranks, sum(sizes))
    assert [loader.next_position(part) for part in parts[-1:]] == [loader.next_position(places[-1])]
    if ranks <= len(sizes):
        assert parts == places


def test_a_run_does_not_resume_on_more_ranks_than_an_update_has_examples(text, tmp_path, monkeypatch):
    config = RunConfig.from_dict(split_tables(text, 1))
    train_run(config, tmp_path / "run", progress=False)
    world = npx.distributed.World()
    world.size = 1000
    monkeypatch.setattr(npx.distributed, "world", lambda: world)
    monkeypatch.setattr(npx.distributed, "initialize", lambda: world)
    with pytest.raises(
        UserError, match=r"at most (\d+) ranks, one for each example in the .*; got 1000; try mpirun -n \1$"
    ):
        train_run(config, tmp_path / "run", resume=True, progress=False)


@given(st.lists(st.integers(1, 2), min_size=1, max_size=5), st.integers(5, 9))
def test_halves_of_micro_batches_have_unique_numbers(halves, count):
    share = WorkShare(range(len(halves)), count, 10).split(halves)
    assert len(set(share.indices)) == sum(halves) == len(share.indices)
    assert [n % count for n in share.indices] == [i for i, parts in enumerate(halves) for _ in range(parts)]


class RecordingWorld(npx.distributed.World):
    """A world of two ranks, of which the other one adds nothing. It records the arrays that are reduced."""

    size = 2

    def __init__(self, flat):
        self.flat = flat
        self.sums = []

    def all_reduce(self, flat, wire_dtype=None):
        self.sums.append(flat.copy())
        return lambda: None


@settings(max_examples=8)
@given(st.integers(200, 3000), st.integers(0, 5))
def test_a_bucket_is_sent_once_its_gradients_are_complete(bytes_of_bucket, seed):
    shape = TransformerConfig(vocab_size=11, d_model=8, d_ff=12, n_heads=2, n_layers=2, dropout=0.0)
    model = Transformer(shape, seed)
    flat = FlatParameters(model)
    world = RecordingWorld(flat)
    reduction = GradientReducer(flat, world, bucket=bytes_of_bucket)
    assert sorted(i for b in reduction.buckets for i in range(b.start, b.stop)) == list(range(flat.flatten_grad().size))
    src, tgt = np.array([[5, 6, 2]]), np.array([[1, 4, 2]])
    reduction.begin()
    model.loss(src, tgt).backward(on_leaf_done=reduction.on_leaf_done)
    assert len(world.sums) == len(reduction.buckets)  # each parameter is a leaf of the graph
    reduction.squared_norm()
    for bucket, sent in zip(reduction.buckets, world.sums, strict=True):
        assert np.array_equal(sent, flat.flatten_grad()[bucket])  # nothing was added after it was sent
    model.encoder[0].gradient_checkpointing = True
    flat.zero_grad()
    world.sums.clear()
    reduction.begin()
    model.loss(src, tgt).backward(on_leaf_done=reduction.on_leaf_done)
    assert not world.sums  # the checkpoint adds to the gradients in a backward pass of its own


# ---- sharded optimizer state


class ThreadWorld(npx.distributed.World):
    """A rank that runs as a thread of this process."""

    def __init__(self, rank, table, barrier):
        self.rank = rank
        self.size = len(table)
        self.table = table
        self.barrier = barrier

    def all_gather_object(self, value):
        self.table[self.rank] = value
        self.barrier.wait(60)
        values = list(self.table)
        self.barrier.wait(60)
        return values

    def reduce_scatter(self, flat, wire_dtype=None):
        shard = self.shard_slice(flat.size)
        shards = [other[shard] for other in self.all_gather_object(flat.copy())]
        flat[shard] = distributed_jobs.sum_in_rank_order(shards, flat.dtype)
        return lambda: None

    def all_gather(self, flat, wire_dtype=None):
        flat[...] = np.concatenate(self.all_gather_object(flat[self.shard_slice(flat.size)].copy()))
        return lambda: None

    def all_reduce(self, flat, wire_dtype=None):
        self.reduce_scatter(flat)
        return self.all_gather(flat)


def run_ranks(size, work):
    """Run `work(world)` on each rank and return the results; `npx.distributed.world()` is the rank's world."""
    table = [None] * size
    barrier = threading.Barrier(size)
    thread = threading.local()

    def run_rank(rank):
        thread.world = ThreadWorld(rank, table, barrier) if size > 1 else npx.distributed.World()
        return work(thread.world)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(size) as pool:
        patch.setattr(npx.distributed, "world", lambda: thread.world)
        return list(pool.map(run_rank, range(size)))


def updated(world, precision, ema_decay, shard, start, gradients):
    """Apply gradients (step, rank, P) to `start`; return the Updater, its compute weights, and its saved state."""
    shape = TransformerConfig(vocab_size=11, d_model=4, d_ff=6, n_heads=2, n_layers=1, dropout=0.0)
    section = TrainSection(precision=precision, shard_optimizer=shard, ema_decay=ema_decay)
    with INITIALIZING:  # the initialization is shared by the threads of a process
        model = Transformer(shape, 1)
    updater = Updater(TASKS["translation"], model, section, SilentReport(RunFolder(""), 1))
    if start is not None:
        updater.load_optimizer_state(start[1])
        updater.load_weights(start[0], start[1].get("weights"))
    for by_rank in gradients:
        parts = by_rank if world.size == 1 else by_rank[world.rank :: world.size]
        updater.flat.flatten_grad()[...] = sum(parts[1:], start=parts[0])
        updater.reducer.begin()
        updater.reducer.squared_norm()
        updater.apply_gradient(1e-3, 1.0)
    computed = np.concatenate([p.data.reshape(-1) for p in updater.flat.parameters])
    return updater, computed, (updater.weights(), updater.optimizer_state())


@settings(max_examples=6)
@given(st.data(), st.sampled_from(["float32", "bf16", "fp16"]), st.integers(2, 4), st.booleans())
def test_sharded_and_unsharded_ranks_update_like_one_process(data, precision, size, small):
    """Sharding and the number of ranks may change between updates. All sums are exact, so bits are compared."""
    if precision == "bf16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    other, decay = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0.0, 0.5]))
    count = 392
    gradients = np.random.default_rng(size).integers(-8, 9, (4, 12, count)).astype("float32")  # sums are exact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientReducer.__init__, "__defaults__", (False, None, 400 if small else BUCKET))
        ((alone, computed, (weights, state)),) = run_ranks(
            1, lambda one: updated(one, precision, decay, False, None, gradients)
        )
        assert alone.flat.size == count
        first = run_ranks(size, lambda world: updated(world, precision, decay, True, None, gradients[:2]))
        kept = first[0][2]
        second = run_ranks(other, lambda world: updated(world, precision, decay, other > 2, kept, gradients[2:]))
    for _, own, _ in second:
        assert own.tobytes() == computed.tobytes()
    learned, remembered = second[0][2]
    for found, expected in ((learned, weights), ({name: remembered[name] for name in state if name != "step"}, state)):
        assert all(array.tobytes() == expected[name].tobytes() for name, array in found.items())
    assert learned.keys() == weights.keys()
    parts = [updater.adam.m.size for updater, _, _ in first]
    buckets = len(first[0][0].reducer.buckets)
    assert sum(parts) == count and max(parts) <= count / size + buckets
    for (updater, _, _), part in zip(first, parts, strict=True):
        arrays = (
            updater.flat.data,
            updater.flat.low_precision_data,
            updater.flat.flatten_grad(),
            updater.adam.m,
            updater.adam.v,
        )
        expected = 6 * count + 12 * part if precision != "float32" else 8 * count + 8 * part
        assert sum(a.nbytes for a in arrays if a is not None) == expected
