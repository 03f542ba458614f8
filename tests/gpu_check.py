"""`make gpu-check`: all that only a machine with a GPU can show, in under 8 minutes; a table and gpu-check.json.

    python -m tests.gpu_check [--out FILE] [--only STEP ...]

Each step is a process of its own with a limit of time; one that fails does not keep the others from running. Exit
status: 0 all is well, 1 a step failed, 2 no GPU.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path

import numpy as np

import npx
from models import FlatParameters, Transformer, TransformerConfig
from npx.precision import dtype as dtype_named
from npx.registry import KERNELS, mapped

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
LIMIT = 470  # seconds for everything
WORKERS = str(min(8, os.cpu_count() or 1))
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 8e-2}  # of a gradient of the whole model, in the 2-norm
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
SHAPES = {
    "base, 25k + 25k tokens": ("--batch", "820", "--length", "30"),
    "base, 4k": ("--batch", "68", "--length", "30"),
}

# name: (seconds, what pytest runs)
SUITES = {
    "kernels": (150, ["tests/test_cuda_kernels.py", "tests/test_cuda_attention.py"]),
    "operations, layers and laws": (150, ["tests/test_registry_checks.py"]),
    "parity with torch": (60, ["tests/test_parity_torch.py"]),
}


# ---- what runs in processes of its own


def small_model(dtype):
    config = TransformerConfig(
        37, d_model=64, d_ff=128, n_heads=2, n_layers=2, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1
    )
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(3, 37, (6, 19)), rng.integers(3, 37, (6, 17))
    src[1, 9:], tgt[2, 5:], tgt[:, 0] = 0, 0, 1
    return Transformer(config, seed=1, dtype=dtype_named(dtype)), src, tgt


def gradient(dtype, device):
    """Loss and gradient of a small Transformer with dropout."""
    npx.use_device(device)
    model, src, tgt = small_model(dtype)
    flat = FlatParameters(model)
    with npx.keyed(3, 4):
        loss = model.loss(npx.asarray(src), npx.asarray(tgt))
    loss.backward()
    return float(npx.to_host(loss.data)), npx.to_host(flat.grad).astype("float64")


def training_step():
    """The same training step on the GPU and on the CPU, from the same random bits."""
    expected_loss, expected = gradient("float32", "cpu")
    found = {}
    for dtype, tolerance in TOLERANCE.items():
        loss, result = gradient(dtype, "cuda")
        off = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        found[dtype] = float(off)
        assert off < tolerance, f"{dtype}: the gradient is off by {off:.2g}; allowed are {tolerance}"
        assert abs(loss - expected_loss) < tolerance * abs(expected_loss), f"{dtype}: loss {loss}, not {expected_loss}"
        again = gradient(dtype, "cuda")[1]
        assert again.tobytes() == result.tobytes(), f"{dtype}: a second step gives other bits"
    print(json.dumps(found))


def run_kernels():
    """Each kernel once with each of its cases, every array an allocation of its own."""
    import cupy

    from tests.cases.kernels import KERNEL_CASES, edge_calls

    npx.use_device("cuda")
    cupy.cuda.set_allocator(None)  # no pool: an index past an array is one past an allocation
    for dtype, name in product(TOLERANCE, KERNEL_CASES):
        for call in edge_calls(name, dtype_named(dtype)):
            kernel, arrays = KERNELS[name], (call.inputs, call.options, call.gradient)
            args, options, gradient = mapped(lambda x: npx.asarray(np.copy(npx.to_host(x))), arrays)
            result = kernel(*args, **options)
            if kernel.grad and result[1].values is not None:
                kernel.grad(npx.ones(result[0].shape, result[0].dtype), result[1], **gradient)
    cupy.cuda.runtime.deviceSynchronize()


# ---- the steps: each returns a status and what it saw


def run(command, seconds, **environment):
    """(exit status or None where it took too long, output; where all is well, without warnings)"""
    given = os.environ | environment
    try:
        done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"took more than {seconds:.0f} s"
    return done.returncode, (done.stdout + done.stderr)[-6000:] if done.returncode else done.stdout


def suite(files, seconds):
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [PYTHON, "-m", "pytest", "-q", "-n", WORKERS, f"--junitxml={report}", *files]
        status, output = run(command, seconds, NPX_TEST_ENGINE="cupy")
        if not report.exists():
            return "failed", {"output": output}
        counts = ElementTree.parse(report).getroot().find("testsuite").attrib
    numbers = {name: int(counts[name]) for name in ("tests", "failures", "errors", "skipped")}
    if status != 0:
        return "failed", numbers | {"output": output}
    return ("skipped", numbers) if numbers["tests"] == numbers["skipped"] else ("passed", numbers)


def own(flag, seconds):
    status, output = run([PYTHON, "-m", "tests.gpu_check", flag], seconds)
    if status != 0:
        return "failed", {"output": output}
    return "passed", json.loads(output.splitlines()[-1])


def compiled(seconds):
    status, output = run([PYTHON, "-m", "npx.cuda.nvrtc"], seconds)
    if status == 0:
        return "passed", {"table": output.splitlines()}
    return ("skipped" if status == 2 else "failed"), {"output": output}


def sanitizer(tool, seconds):
    path = shutil.which("compute-sanitizer")
    if path is None:
        return "skipped", {"reason": "compute-sanitizer is not installed"}
    command = [path, "--tool", tool, "--error-exitcode", "9", PYTHON, "-m", "tests.gpu_check", "--kernels"]
    status, output = run(command, seconds)
    return ("passed" if status == 0 else "failed"), {"output": output[-2000:]}


def benchmark(options, seconds):
    engines = ["--engine", "ours"]
    if importlib.util.find_spec("torch"):
        engines += ["--engine", "torch"]
    command = [PYTHON, "-m", "benchmarks.train_step", "--device", "cuda", *engines, *options, "--json"]
    status, output = run(command, seconds)
    if status != 0:
        return "failed", {"output": output}
    return "passed", {"table": output.splitlines()[:-1], "rows": json.loads(output.splitlines()[-1])}


def steps():
    """name: (seconds at most, function of the seconds left to it)"""
    yield "training step, GPU = CPU", 60, lambda left: own("--step", left)
    for name, (seconds, files) in SUITES.items():
        yield name, seconds, lambda left, files=files: suite(files, left)
    for name, options in SHAPES.items():
        yield name, 60, lambda left, options=options: benchmark(options, left)
    for tool in SANITIZERS:
        yield f"compute-sanitizer {tool}", 60, lambda left, tool=tool: sanitizer(tool, left)
    yield "registers and spills", 120, compiled


def machine():
    """What is computed on."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "gpu": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "memory_gib": round(properties["totalGlobalMem"] / 2**30, 1),
        "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def summary(detail):
    """A few words about a step for the table."""
    if "tests" in detail:
        return ", ".join(f"{number} {name}" for name, number in detail.items() if name != "output" and number)
    if "reason" in detail:
        return detail["reason"]
    if "rows" in detail:
        rows = detail["rows"] if isinstance(detail["rows"], list) else [detail["rows"]]
        return ", ".join(f"{row['engine']} {row['tokens_per_second']:,.0f} tokens/s" for row in rows)
    if "output" in detail:
        return detail["output"].strip().splitlines()[-1][:100] if detail["output"].strip() else ""
    return ", ".join(f"{key} {value:.2g}" for key, value in detail.items() if isinstance(value, float))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="gpu-check.json", help="where the results are written")
    parser.add_argument("--only", action="append", help="a step by its name; may be given several times")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kernels", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        npx.use_device("cuda")
    except RuntimeError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    npx.use_device("cpu")
    if arguments.step:
        return training_step()
    if arguments.kernels:
        return run_kernels()
    began, results = time.monotonic(), {}
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for name, seconds, step in steps():
        if arguments.only and name not in arguments.only:
            continue
        left, start = min(seconds, LIMIT - (time.monotonic() - began)), time.monotonic()
        status, detail = step(left) if left > 5 else ("skipped", {"reason": "no time left"})
        took = time.monotonic() - start
        results[name] = {"status": status, "seconds": round(took, 1), **detail}
        print(f"{name:30} {status:8} {took:6.1f} s  {summary(detail)}", flush=True)
        Path(arguments.out).write_text(json.dumps({"machine": about, "steps": results}, indent=1))
    for name, result in results.items():
        for line in result.get("table", []):
            print(line)
        if result["status"] == "failed":
            print(f"\n{name}:\n{result.get('output', '')}", file=sys.stderr)
    return int(any(result["status"] == "failed" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
