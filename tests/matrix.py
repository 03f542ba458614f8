"""The suite as other processors would run it: other BLAS kernels, other numbers of threads, NumPy without AVX.

    python -m tests.matrix              the whole suite under each of SETTINGS, one after another (`make test-matrix`)
    python -m tests.matrix --fast       what depends on the processor, under one BLAS kernel that is not the default

Prints a line for each setting and ends with 1 if the suite failed under one. A kernel with instructions that this
processor does not have is named and left out.
"""

import os
import subprocess
import sys
import time

import numpy as np
import threadpoolctl

KERNELS = {"Haswell": "AVX2", "SkylakeX": "AVX512F", "Zen": "AVX2", "Sandybridge": "AVX"}  # OpenBLAS: what it needs
ON_NUMBERS = [  # tests of what is computed, not of text, files or the command line
    f"tests/test_{name}.py"
    for name in (
        *("kernels", "scores", "neural", "operations", "engine", "layers", "transformer", "model_training", "search"),
        *("language_model", "language", "optim", "precision", "before"),
    )
]


def processor() -> set[str]:
    """The instruction sets that this processor has, by the names of /proc/cpuinfo; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((set(line.upper().split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()


def simd(*parts: str) -> str:
    """The instruction sets NumPy chooses among on this processor whose names hold one of `parts`."""
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    return " ".join(name for name in found if any(part in name for part in parts))


def own_kernel() -> str:
    """The BLAS kernel in use here."""
    np.ones((2, 2)) @ np.ones((2, 2))
    return next((x.get("architecture", "") for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"), "")


def settings() -> dict[str, dict[str, str]]:
    """Name -> environment."""
    one = {"NPX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {
        **{f"OpenBLAS {name}": one | {"OPENBLAS_CORETYPE": name} for name in KERNELS},
        **{f"NPX_THREADS {n}": {"NPX_THREADS": n} for n in ("1", "2", "3")},
        "NumPy without AVX-512": one | {"NPY_DISABLE_CPU_FEATURES": simd("512", "V4")},
        "NumPy without AVX2": one | {"NPY_DISABLE_CPU_FEATURES": simd("")},
    }


def run(name: str, environment: dict[str, str], tests: list[str]) -> bool:
    """Run pytest in two processes; prints how it ended."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "--hypothesis-profile=ci", *tests]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    say(f"{name:24} {time.perf_counter() - started:5.0f} s  {lines[-1].strip('= ')}")
    if done.returncode:
        say("\n".join(lines))
    return not done.returncode


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """The exit status."""
    flags, chosen, tests = processor(), settings(), []
    if arguments == ["--fast"]:
        other = "Haswell" if own_kernel() != "Haswell" else "Sandybridge"
        chosen, tests = {f"OpenBLAS {other}": chosen[f"OpenBLAS {other}"]}, ON_NUMBERS
    elif arguments:
        say(f"matrix: expected --fast or nothing; got {' '.join(arguments)}")
        return 2
    fine = True
    for name, environment in chosen.items():
        needs = KERNELS.get(environment.get("OPENBLAS_CORETYPE", ""), "")
        if needs and flags and needs not in flags:
            say(f"{name:24} left out: this processor has no {needs}")
        else:
            fine &= run(name, environment, tests)
    return not fine


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
