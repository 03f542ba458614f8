"""Measure and test everything that needs a GPU, in about ten minutes; FILE is updated after each part.

    python -m tests.gpu_check --out FILE                 everything; `make gpu-check` installs the dependencies first
    python -m tests.gpu_check --only steps --only CPU    only parts whose names contain one of these words
    python -m tests.gpu_check --rehearse                 the same with small sizes on fakes of CuPy, without a GPU
    python -m tests.gpu_check --fill docs/gpu.md FILE    fill the "measured" columns of a page
    python -m tests.gpu_check --count                    the calls of a base training step, counted without a GPU

Speed comes first (memory, launches, matmuls, training steps by kernel, PyTorch for comparison), then correctness (a
step and a short training run compared with the CPU, a complete run, the test suites, parity with PyTorch), then
compute-sanitizer. Needs CuPy and NumPy; parts that need torch, pytest or compute-sanitizer are skipped where those are
missing. Exit status: 0 nothing failed, 1 a part failed or timed out, 2 no GPU.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

SECONDS = 575  # for all parts


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="JSON file for the results")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="run only parts whose names contain WORD; may be repeated",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit in total")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on fakes of CuPy and cuBLAS")
    parser.add_argument(
        "--fill", nargs=2, type=Path, metavar=("PAGE", "FILE"), help="fill the measured columns of PAGE from FILE"
    )
    parser.add_argument("--count", action="store_true", help="print the calls, bytes and operations of a base step")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    a = arguments()
    if a.part:
        return one_part(a.part, a.rehearse)
    if a.count:
        from tests.gpu_check.count import counted, page_rows

        print(page_rows(counted()))
        return 0
    from tests.gpu_check import page
    from tests.gpu_check.parts import all_parts

    if a.fill:
        target, file = a.fill
        text = page.filled(target.read_text(encoding="utf-8"), json.loads(file.read_text(encoding="utf-8")))
        target.write_text(text, encoding="utf-8")
        return 0
    results = all_parts(a.out, a.seconds, a.rehearse, a.only, lambda *part: print(page.line(*part), flush=True))
    if results["machine"]["status"] != "passed":
        print(results["machine"]["output"].strip(), file=sys.stderr)
        return 2
    print(page.tables(results))
    failed = {name: part for name, part in results.items() if part["status"] in ("failed", "timed out")}
    for name, part in failed.items():
        print(f"\n{name}, {part['status']}:\n{part['output']}", file=sys.stderr)
    return int(bool(failed))


def one_part(name: str, rehearse: bool) -> int:
    """Run one part in this process and print its results, one JSON object per line; return the exit status."""
    with contextlib.ExitStack() as stack:
        if rehearse:
            from benchmarks import launches
            from tests.fakes.strict_cupy import device

            launches.BUSY_MATMULS = 16, 2
            stack.enter_context(device(cuda=True))
        import npx

        try:
            npx.use_device("cuda")
        except RuntimeError as error:
            print(f"gpu-check: {error}")
            return 2
        for result in figures(name, rehearse):
            print(json.dumps(result), flush=True)
    return 0


def figures(name: str, rehearse: bool) -> Any:
    """Return an iterator over the results of a part, as dictionaries."""
    from tests.gpu_check import measure, right
    from tests.gpu_check.sizes import GPU, REHEARSAL

    sizes = REHEARSAL if rehearse else GPU
    if name.startswith("steps: "):
        return measure.steps(name.removeprefix("steps: "), sizes)
    return {
        "machine": measure.machine,
        "memory and calls": measure.memory_and_calls,
        "matmuls": measure.matmuls,
        "training step, GPU = CPU": right.training_step,
        "training step, cublasLt = CPU": right.training_step_by_cublaslt,
        "training step, with graph = without": right.training_step_by_graph,
        "short training": right.short_training,
        "a run": right.a_run,
        "every kernel": right.every_kernel,
    }[name](sizes)


if __name__ == "__main__":
    sys.exit(main())
