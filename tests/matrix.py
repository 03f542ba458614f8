"""Run the tests as on other processors: with other BLAS kernels, other numbers of threads, and NumPy without AVX.

    python -m tests.matrix              the fast tests under each setting (`make test-matrix`)
    python -m tests.matrix --fast       the numerical tests under one BLAS kernel that is not the default

Prints one line per setting; the exit status is 1 if a test failed. BLAS kernels are skipped if they need instructions
that this processor lacks.
"""

import os
import subprocess
import sys
import time

import numpy as np
import threadpoolctl

KERNELS = {
    "Haswell": "AVX2",
    "SkylakeX": "AVX512F",
    "Zen": "AVX2",
    "Sandybridge": "AVX",
}  # OpenBLAS's kernels, and the instruction set that each needs
NUMERICAL = [  # excludes the tests of text, files and the command line
    *(f"tests/npx/test_{name}.py" for name in ("kernels", "attention_spec")),
    *(f"tests/autograd/test_{name}.py" for name in ("engine", "neural", "operations")),
    *(f"tests/models/test_{name}.py" for name in ("layers", "loss")),
    *(f"tests/laws/test_{name}.py" for name in ("transformer", "language_model", "search")),
    *(f"tests/train/test_{name}.py" for name in ("compatibility", "language", "optimizer", "precision")),
]


def processor() -> set[str]:
    """Return the instruction sets of this processor as named by /proc/cpuinfo; an empty set without that file."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((set(line.upper().split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()


def simd(*parts: str) -> str:
    """Return the instruction sets available to NumPy on this processor whose names contain one of `parts`."""
    available = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    return " ".join(name for name in available if any(part in name for part in parts))


def default_kernel() -> str:
    """Return the BLAS kernel in use on this machine."""
    np.ones((2, 2)) @ np.ones((2, 2))
    return next((x.get("architecture", "") for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"), "")


def settings() -> dict[str, dict[str, str]]:
    """Return the environment variables of each setting."""
    one_thread = {"NPX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {
        **{f"OpenBLAS {name}": one_thread | {"OPENBLAS_CORETYPE": name} for name in KERNELS},
        **{f"NPX_THREADS {n}": {"NPX_THREADS": n} for n in ("1", "2", "3")},
        "NumPy without AVX-512": one_thread | {"NPY_DISABLE_CPU_FEATURES": simd("512", "V4")},
        "NumPy without AVX2": one_thread | {"NPY_DISABLE_CPU_FEATURES": simd("")},
    }


def run(name: str, environment: dict[str, str], tests: list[str]) -> bool:
    """Run pytest in two processes and print its summary; return whether all tests passed."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "--hypothesis-profile=ci", *tests]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    report(f"{name:24} {time.perf_counter() - start:5.0f} s  {lines[-1].strip('= ')}")
    if done.returncode:
        report("\n".join(lines))
    return not done.returncode


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the tests under every setting and return the exit status."""
    available, selected, tests = processor(), settings(), []
    if arguments == ["--fast"]:
        other = "Haswell" if default_kernel() != "Haswell" else "Sandybridge"
        selected, tests = {f"OpenBLAS {other}": selected[f"OpenBLAS {other}"]}, NUMERICAL
    elif arguments:
        report(f"matrix: expected --fast or nothing; got {' '.join(arguments)}")
        return 2
    passed = True
    for name, environment in selected.items():
        needs = KERNELS.get(environment.get("OPENBLAS_CORETYPE", ""), "")
        if needs and available and needs not in available:
            report(f"{name:24} skipped: this processor has no {needs}")
        else:
            passed &= run(name, environment, tests)
    return not passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
