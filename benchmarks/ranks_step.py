"""Compare training steps of k single-core ranks and one process: speedup, waiting time, bytes sent, plan.

    python -m benchmarks.ranks_step --ranks 2 --json
    python -m benchmarks.ranks_step --ranks 2 --preset tiny --vocab 8000 --wire "--delay 0.02 --rate 12.5e6"

Each rank computes one micro-batch per step, so k ranks do k times the work of one, and the speedup is in tokens per
second. Steps with and without overlap alternate in one run. If there are more ranks than cores, ranks share cores.
`--wire` runs the ranks on two simulated hosts whose connection has these options (tests/helpers/two_hosts.py; requires
root). The network time of a step is the shortest wait of any rank. Next to the measurements are the figures of `plan`.
They are computed from the compute time of these steps and from the speed of the link, which is measured with the sums
of one number and of one bucket. Requires mpi4py and mpirun; meaningful speedups also require k idle cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from shutil import which
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocab", type=int, default=37000)
    parser.add_argument("--batch", type=int, default=64, help="pairs in a rank's micro-batch")
    parser.add_argument("--length", type=int, default=30, help="tokens per side")
    parser.add_argument("--steps", type=int, default=6, help="measured steps of each kind")
    parser.add_argument("--wire", default=None, help="options of tests.helpers.two_hosts")
    parser.add_argument("--shard-optimizer", action="store_true", help="train.shard_optimizer = true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def link(world: Any) -> tuple[float, float]:
    """Return the link's bandwidth (bytes per second) and latency (seconds), measured by timing sums."""
    import numpy as np

    from train.learn.parallel.reducer import BUCKET

    medians = []
    for size, times in ((world.size, 21), (BUCKET // 4, 7)):
        flat = np.zeros(size, np.float32)
        seconds = []
        for _ in range(times):
            world.all_gather_object(None)  # a barrier
            start_time = time.perf_counter()
            world.all_reduce(flat)()
            seconds.append(time.perf_counter() - start_time)
        medians.append(statistics.median(world.all_gather_object(statistics.median(seconds))))
    small, large = medians
    return 2 * (world.size - 1) / world.size * BUCKET / (large - small), small / 2


def work(args: argparse.Namespace) -> dict[str, Any]:
    """Run the steps of one rank; return {kind: seconds of each step} and the bytes sent."""
    import numpy as np

    import npx
    from train.learn.parallel.plan import WorkShare
    from train.learn.update import Updater
    from train.run.config import RunConfig
    from train.run.folder import RunFolder
    from train.run.report import SilentReport
    from train.tasks import TASKS
    from train.text.batches import Batches
    from train.text.corpus import PairCorpus

    npx.configure_process()
    world = npx.distributed.initialize()
    cores = sorted(os.sched_getaffinity(0))
    if world.size <= len(cores) and args.wire is None:
        os.sched_setaffinity(0, {cores[world.rank]})
    overrides = [
        f"data.vocab_size={args.vocab}",
        f"train.shard_optimizer={str(args.shard_optimizer).lower()}",
        "train.batch_tokens=100000",
    ]
    config = RunConfig.from_dict({"model": {"preset": args.preset}}, overrides)
    words = np.random.default_rng(world.rank).integers(4, args.vocab, (2, args.batch, args.length - 1)).tolist()
    batch = Batches(PairCorpus.from_pairs(zip(*words, strict=True)), 10**6).batch(np.arange(args.batch))
    model = config.transformer_config(args.vocab).build(0, "float32")
    model.train()
    updater = Updater(TASKS["translation"], model, config.train, SilentReport(RunFolder(""), 1))
    share = WorkShare([world.rank], world.size, world.size * batch.n_targets)
    measured: dict[str, Any] = {"overlapped": [], "after": []}
    waits: dict[str, list[float]] = {kind: [] for kind in measured}
    for step in range(2 * args.steps + 2):
        kind = ("overlapped", "after")[step % 2]
        updater.reducer.sends_during_backward = kind == "overlapped"  # meaningless for a single process
        world.bytes_sent = 0
        world.all_gather_object(None)  # a barrier
        start_time = time.perf_counter()
        waited = world.wait_seconds
        updater.compute_gradient([batch], step + 1, share)
        updater.apply_gradient(1e-6, 0.0)
        world.all_gather_object(None)  # a barrier
        if step > 1:
            measured[kind].append(time.perf_counter() - start_time)
            waits[kind].append(min(world.all_gather_object(world.wait_seconds - waited)))
    size = model.n_parameters() * 4
    measured |= {"network": waits, "tokens": batch.n_tokens * world.size, "size": size, "sent": world.bytes_sent}
    measured["minimum_bytes"] = 2 * (world.size - 1) * size // world.size
    measured["late_fraction"] = args.vocab * model.config.d_model * 4 / size  # the gradient of the embedding comes last
    measured["bandwidth"], measured["latency"] = link(world) if world.size > 1 else (0.0, 0.0)
    return measured


def run_ranks(args: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Start this many ranks and return the output of rank 0."""
    mpirun = which("mpirun", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpirun is None:
        sys.exit("benchmarks.ranks_step: mpirun is not installed; try pip install 'npx-transformer[mpi]'")
    command = [sys.executable, "-m", "benchmarks.ranks_step", *sys.argv[1:], "--work"]
    launcher = [mpirun, "--bind-to", "none", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    one_thread = {"NPX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    hosts = []
    if ranks > 1 and args.wire is not None:
        from tests.helpers.two_hosts import ISOLATED

        hosts = [*ISOLATED, sys.executable, "-m", "tests.helpers.two_hosts", *args.wire.split()]
    environment = os.environ | one_thread | as_root
    popen_options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*hosts, *launcher, *command], env=environment, **popen_options) as process:
        assert process.stdout
        output = process.stdout.read()
    if process.returncode:
        sys.exit(process.returncode)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    args = arguments()
    if args.work:
        import npx

        result = work(args)
        if npx.distributed.world().rank == 0:
            print(json.dumps(result))
        return
    from train.experiments.plan import BACKWARD, Link, estimate_step

    one = run_ranks(args, 1)
    many = run_ranks(args, args.ranks)
    speed = one["tokens"] / statistics.median(one["overlapped"] + one["after"])
    result: dict[str, Any] = {"ranks": args.ranks, "one_process_tokens_per_second": speed}
    measured_link = Link(many["bandwidth"], many["latency"], "as measured")
    steps = zip(many["after"], many["network"]["after"], strict=True)
    micro = statistics.median(seconds - network for seconds, network in steps)
    bandwidth, latency = measured_link.bandwidth / 1e6, measured_link.latency * 1e3
    print(f"link: {bandwidth:,.1f} MB/s, {latency:.2f} ms; compute {micro:.3f} s per step")
    for kind, when, overlap in (("overlapped", "during", BACKWARD), ("after", "after", 0.0)):
        seconds, network = statistics.median(many[kind]), statistics.median(many["network"][kind])
        gathered_bytes = many["size"] * args.shard_optimizer
        estimate = estimate_step(
            many["size"],
            many["late_fraction"],
            micro,
            1,
            args.ranks,
            measured_link,
            overlap,
            gathered_bytes=gathered_bytes,
        )
        tokens = many["tokens"] / seconds
        result |= {f"{kind}_seconds": seconds, f"{kind}_speedup": tokens / speed, f"{kind}_network": network}
        result |= {f"{kind}_plan": estimate.step, f"{kind}_plan_network": estimate.exposed}
        print(
            f"{args.ranks} ranks, sums {when} backward: {seconds:.3f} s per step, {tokens:,.0f} tokens/s, "
            f"{tokens / speed:.3f} times one process; network {network:.3f} s per step; planned {estimate.step:.3f} s, "
            f"{100 * (estimate.step / seconds - 1):+.1f}%, network {estimate.exposed:.3f} s"
        )
    best = result["overlapped_seconds"]
    result |= {"seconds": best, "tokens_per_second": many["tokens"] / best}
    sent, minimum = many["sent"], many["minimum_bytes"]
    result |= {"sent": sent, "minimum_bytes": minimum}
    print(f"sent per step by each rank: {sent:,} bytes; 2 (k - 1) / k of the gradient: {minimum:,}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
