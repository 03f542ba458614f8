"""Seconds a training step takes: our engine, PyTorch, and the floor, the step's matrix products alone.

    python -m benchmarks.train_step --engine ours --engine torch --engine floor --layers 6 --vocab 37000 --json

Each engine lives in a process of its own, and the processes take a step in turn, so that a noisy machine is noisy for
all of them; medians and ratios to the first engine are printed. The same shapes, dropout 0.1, label smoothing 0.1, Adam
and number of threads for all. With --json the last line is a JSON object (a list of them for several engines).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ENGINES = ("ours", "torch", "torch-bf16", "torch-compile", "floor")


def arguments() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", action="append", choices=ENGINES, help="may be given several times (default: ours)")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    base = {"d-model": 512, "heads": 8, "d-ff": 2048, "layers": 6, "vocab": 37000, "batch": 64, "length": 30}
    for name, default in base.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--steps", type=int, default=7, help="counted steps of each engine")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--profile", action="store_true", help="where our time goes, by operation, forward and backward")
    p.add_argument("--json", action="store_true")
    p.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    return p.parse_args()


def main() -> None:
    a = arguments()
    if a.worker:
        return work(a)
    engines = a.engine or ["ours"]
    if a.profile:
        return profile(a)
    workers = {engine: start(engine, a) for engine in engines}
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    for turn in range(a.warmup + a.steps):
        for engine, process in workers.items():
            seconds = ask(process, engine)["seconds"]
            if turn >= a.warmup:
                times[engine].append(seconds)
    rows = []
    for engine, process in workers.items():
        end = ask(process, engine, "end")
        median = statistics.median(times[engine])
        rows.append(
            {
                "engine": engine,
                "seconds": round(median, 4),
                "tokens_per_second": round(2 * a.batch * a.length / median, 1),
                "peak_rss_mib": end["peak_rss_mib"],
                "fastest": round(min(times[engine]), 4),
                "slowest": round(max(times[engine]), 4),
                "blas": end["blas"],
            }
        )
        process.wait()
    print(f"d_model {a.d_model}, heads {a.heads}, d_ff {a.d_ff}, layers {a.layers}, vocabulary {a.vocab}, ", end="")
    print(f"{a.batch} x {a.length} tokens a side, {a.threads} threads, {a.device}; median of {a.steps} steps in turn")
    for row in rows:
        ratio = row["seconds"] / rows[0]["seconds"]
        print(
            f"{row['engine']:14} {row['seconds']:8.3f} s  ({row['fastest']:.3f} to {row['slowest']:.3f})  "
            f"{row['tokens_per_second']:>10,.0f} tokens/s  {row['peak_rss_mib']:>6} MiB  {ratio:5.2f} x  {row['blas']}"
        )
    if a.json:
        print(json.dumps(rows if len(rows) > 1 else rows[0]))


def start(engine: str, a: argparse.Namespace) -> subprocess.Popen[str]:
    """A process that takes one step of `engine` for each line it is sent."""
    threads = str(a.threads)
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    environment |= {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "NPX_THREADS": threads}
    command = [sys.executable, "-m", "benchmarks.train_step", *sys.argv[1:], "--worker", engine]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], engine: str, what: str = "step") -> dict[str, Any]:
    """Send a line, read the answer."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(what + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())
    except (OSError, ValueError):
        sys.exit(f"train_step: expected engine {engine} to answer; it ended; try --engine {engine} alone")


def work(a: argparse.Namespace) -> None:
    """The process of one engine: a step for each line "step", its peak memory at "end"."""
    step = {"ours": ours, "floor": floor}.get(a.worker, peer)(a)
    for line in sys.stdin:
        if line.strip() == "end":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(json.dumps({"peak_rss_mib": peak, "blas": blas()}), flush=True)
            return
        started = time.perf_counter()
        step()
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def blas() -> str:
    """The BLAS kernel in use."""
    import threadpoolctl

    found = [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]
    return ", ".join(f"{x['internal_api']} {x.get('architecture', '')}".strip() for x in found) or "own kernels"


def our_step(a: argparse.Namespace) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], None]]:
    """forward, backward (of what forward returned) and update, as three functions."""
    import numpy as np

    import npx
    from models import Transformer, TransformerConfig, flatten
    from train import Adam

    npx.use_device(a.device)
    config = TransformerConfig(a.vocab, a.d_model, a.d_ff, a.heads, a.layers)
    model, random = Transformer(config), np.random.default_rng(0)
    flat, adam = flatten(model), Adam(model)
    src = random.integers(4, a.vocab, (a.batch, a.length))
    tgt = random.integers(4, a.vocab, (a.batch, a.length + 1))

    def forward() -> Any:
        flat.zero_grad()
        with npx.keyed(1, 1):
            return model.loss(src, tgt)

    return forward, lambda: forward().backward(), lambda: adam.step(1e-4)


def ours(a: argparse.Namespace) -> Callable[[], None]:
    """One step of this project."""
    _, both, update = our_step(a)

    def step() -> None:
        both()
        update()

    return step


def peer(a: argparse.Namespace) -> Callable[[], None]:
    """One step of PyTorch: its own fused layers, fused Adam, tied embedding, the same loss."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(a.vocab, a.d_model, device=a.device)
    body = torch.nn.Transformer(a.d_model, a.heads, a.layers, a.layers, a.d_ff, 0.1, batch_first=True, device=a.device)
    parameters = [*embedding.parameters(), *body.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    src = torch.randint(4, a.vocab, (a.batch, a.length), device=a.device)
    tgt = torch.randint(4, a.vocab, (a.batch, a.length + 1), device=a.device)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(a.length, device=a.device)
    half = a.worker == "torch-bf16" or a.device == "cuda"

    def loss() -> Any:
        with torch.autocast(a.device, torch.bfloat16, enabled=half):
            x, y = (F.dropout(embedding(ids) * a.d_model**0.5, 0.1) for ids in (src, tgt[:, :-1]))
            hidden = body(x, y, tgt_mask=causal, tgt_is_causal=True)
            logits = hidden @ embedding.weight.T
        return F.cross_entropy(logits.float().view(-1, a.vocab), tgt[:, 1:].reshape(-1), label_smoothing=0.1)

    compute = torch.compile(loss) if a.worker == "torch-compile" else loss

    def step() -> None:
        optimizer.zero_grad()
        compute().backward()
        optimizer.step()
        if a.device == "cuda":
            torch.cuda.synchronize()

    return step


def floor(a: argparse.Namespace) -> Callable[[], None]:
    """The matrix products of one step, forward and backward, and nothing else, by NumPy with BLAS's own threads."""
    import numpy as np

    random, n, d = np.random.default_rng(0), a.batch * a.length, a.d_model
    weights = [(d, 3 * d), (d, d), (d, a.d_ff), (a.d_ff, d)] * 2 + [(d, d), (d, 2 * d), (d, d)]
    products: list[tuple[Any, Any]] = []
    for rows, columns in [*weights * a.layers, (d, a.vocab)]:
        x, w, g = (random.random(shape, np.float32) for shape in ((n, rows), (rows, columns), (n, columns)))
        products += [(x, w), (g, w.T), (x.T, g)]
    q, p = (random.random((a.batch, a.heads, a.length, size), np.float32) for size in (d // a.heads, a.length))
    products += [(q, q.swapaxes(2, 3)), (p, q)] * 3 * 3 * a.layers  # three attentions, forward and twice backward

    def step() -> None:
        for left, right in products:
            np.matmul(left, right)

    return step


def profile(a: argparse.Namespace) -> None:
    """Prints the seconds of each kernel in one step, and of everything between kernels."""
    import npx

    forward, _, update = our_step(a)
    spent: dict[str, list[float]] = {}
    for kernel in npx.KERNELS.values():
        plain = kernel.version_for

        def timed(x: Any, plain: Any = plain, name: str = kernel.name) -> Any:
            version = plain(x)

            def run(*args: Any, **kwargs: Any) -> Any:
                started = time.perf_counter()
                try:
                    return version(*args, **kwargs)
                finally:
                    spent.setdefault(name, []).append(time.perf_counter() - started)

            return run

        kernel.version_for = timed  # type: ignore[method-assign]
    for _ in range(a.warmup + 1):
        spent.clear()
        times = [time.perf_counter()]
        loss = forward()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        update()
        times.append(time.perf_counter())
    parts = [after - before for before, after in zip(times, times[1:], strict=False)]
    total = sum(parts)
    print(f"forward {parts[0]:.3f} s, backward {parts[1]:.3f} s, update {parts[2]:.3f} s, together {total:.3f} s")
    for name, calls in sorted(spent.items(), key=lambda item: -sum(item[1])):
        print(f"{name:32} {sum(calls):7.3f} s  {100 * sum(calls) / total:5.1f} %  {len(calls):4} calls")
    rest = total - sum(map(sum, spent.values()))
    print(f"{'between kernels':32} {rest:7.3f} s  {100 * rest / total:5.1f} %")


if __name__ == "__main__":
    main()
