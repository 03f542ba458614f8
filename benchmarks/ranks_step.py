"""Training steps of k ranks of one core each, beside one process of one core: speed-up, waiting, bytes sent.

    python -m benchmarks.ranks_step --ranks 2 --json

Each rank computes one micro-batch a step; so k ranks do k times the work of one, and their speed-up is in tokens a
second. Steps with and without overlap take turns in one run. Needs mpi4py and mpirun, and k cores that nothing else
uses.
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
    parser.add_argument("--batch", type=int, default=64, help="pairs of a rank's micro-batch")
    parser.add_argument("--length", type=int, default=30, help="tokens of each side")
    parser.add_argument("--steps", type=int, default=6, help="of each kind")
    parser.add_argument("--shard", action="store_true", help="train.shard = true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def work(args: argparse.Namespace) -> dict[str, Any]:
    """The steps of one rank: {kind: seconds of each}, and what was sent."""
    import numpy as np

    import npx
    from train.experiments.speed import Quiet
    from train.learn.shares import Share
    from train.learn.update import Update
    from train.run.config import RunConfig
    from train.tasks import TASKS
    from train.text.batches import Batches
    from train.text.corpus import Corpus

    npx.tune()
    world = npx.ranks.join()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[world.rank % len(os.sched_getaffinity(0))]})
    settings = [f"data.vocab_size={args.vocab}", f"train.shard={str(args.shard).lower()}", "train.batch_tokens=100000"]
    config = RunConfig.from_dict({"model": {"preset": args.preset}}, settings)
    words = np.random.default_rng(world.rank).integers(4, args.vocab, (2, args.batch, args.length - 1)).tolist()
    batch = Batches(Corpus.from_pairs(zip(*words, strict=True)), 10**6).batch(np.arange(args.batch))
    model = config.transformer_config(args.vocab).build(0, "float32")
    model.train()
    update = Update(TASKS["translation"], model, config.train, Quiet())  # type: ignore[arg-type]
    share = Share([world.rank], world.size, world.size * batch.n_target_tokens)
    found: dict[str, Any] = {"overlapped": [], "after": []}
    waited = dict.fromkeys(found, 0.0)
    for step in range(2 * args.steps + 2):
        kind = ("overlapped", "after")[step % 2]
        update.own.overlaps = kind == "overlapped"  # of a process alone it says nothing
        world.sent = 0
        world.barrier()
        started, before = time.perf_counter(), world.waited
        update.gradient([batch], step + 1, share)
        update.apply(1e-6, 0.0)
        world.barrier()
        if step > 1:
            found[kind].append(time.perf_counter() - started)
            waited[kind] += (world.waited - before) / args.steps
    size = model.n_parameters() * 4
    return found | {"waited": waited, "tokens": batch.n_tokens * world.size, "sent": world.sent,
                    "least": 2 * (world.size - 1) * size // world.size}  # fmt: skip


def started(args: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """What rank 0 of so many says."""
    mpirun = which("mpirun", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpirun is None:
        sys.exit("benchmarks.ranks_step: expected mpirun; got none; try pip install 'npx-transformer[mpi]'")
    own = [sys.executable, "-m", "benchmarks.ranks_step", *sys.argv[1:], "--work"]
    many = [mpirun, "--bind-to", "none", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    one_thread = {"NPX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run([*many, *own], env=os.environ | one_thread | as_root, **how)
    if done.returncode:
        sys.exit(done.stderr)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def main() -> None:
    args = arguments()
    if args.work:
        import npx

        result = work(args)
        if npx.ranks.world().rank == 0:
            print(json.dumps(result))
        return
    one, many = started(args, 1), started(args, args.ranks)
    speed = one["tokens"] / statistics.median(one["overlapped"] + one["after"])
    result: dict[str, Any] = {"ranks": args.ranks, "one_process_tokens_per_second": speed}
    for kind in ("overlapped", "after"):
        seconds, waited = statistics.median(many[kind]), many["waited"][kind]
        tokens = many["tokens"] / seconds
        result |= {f"{kind}_seconds": seconds, f"{kind}_speed_up": tokens / speed, f"{kind}_waited": waited}
        when = "beside" if kind == "overlapped" else "after"
        print(f"{args.ranks} ranks, sums {when} backward: {seconds:.3f} s a step, {tokens:,.0f} tokens/s, "
              f"{tokens / speed:.3f} times one process; waited for sums {waited:.3f} s a step")  # fmt: skip
    best = result["overlapped_seconds"]
    result |= {"sent": many["sent"], "least": many["least"]}
    result |= {"seconds": best, "tokens_per_second": many["tokens"] / best}
    print(f"sent a step by a rank: {many['sent']:,} bytes; 2 (k - 1) / k of the gradient: {many['least']:,}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
