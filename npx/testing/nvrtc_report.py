"""Report registers, spills and shared memory of every kernel for three generations of GPUs; no GPU is needed.

    python -m npx.testing.nvrtc_report [softmax.cu ...]       prints the table

NVRTC is NVIDIA's compiler as a library, in the package nvidia-cuda-nvrtc and in CuPy's extra [ctk]. The head of a .cu
file lists the definitions with which its kernels are compiled (`variants`):

    // Built with: T = float half_t bf16_t, D = 64 128       (all combinations; several lines are several sets)
"""

import ctypes
import functools
import itertools
import json
import re
import site
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from npx.cuda.launch import OPTIONS, SOURCES, source_text
from npx.testing.cuda_emulator.emulator import cache_directory

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")  # Turing, Ampere, Hopper


FLAGS = (*OPTIONS, "--device-as-default-execution-space", "-ftz=true")  # CuPy adds the last two to the options
MAX_LINES = 40  # maximum number of lines shown of a compiler message


class CompileError(RuntimeError):
    """NVRTC is missing, or a kernel does not compile."""


class KernelResources(NamedTuple):
    """The resources of a kernel, as reported by the compiler: registers per thread, spilled bytes, shared bytes."""

    source: str
    kernel: str
    defines: str
    architecture: str
    registers: int
    spills: int
    shared: int


def kernel_files() -> list[str]:
    """Return the names of all kernel files."""
    return sorted(path.name for path in SOURCES.glob("*.cu"))


def variants(source: str) -> list[dict[str, str]]:
    """Return the definitions that the head of a kernel file lists."""
    sets = re.findall(r"^// Built with: (.*)$", (SOURCES / source).read_text(), re.MULTILINE)
    if not sets:
        raise CompileError(f"{source}: expected a line '// Built with: T = float half_t bf16_t'; found no such line")
    combinations = []
    for line in sets:
        pairs = [part.partition("=") for part in line.split(",")]
        names = [name.strip() for name, _, _ in pairs]
        choices = [values.split() for _, _, values in pairs]
        combinations += [dict(zip(names, values, strict=True)) for values in itertools.product(*choices)]
    return combinations


@functools.cache
def load_nvrtc() -> ctypes.CDLL:
    """Load NVRTC from an installed package or the system. Raises CompileError if NVRTC is missing."""
    roots = [*site.getsitepackages(), site.getusersitepackages()]
    files = [str(file) for root in roots for file in sorted(Path(root).glob("nvidia/*/lib/libnvrtc.so.*"))]
    for file in [*reversed(files), "libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"]:
        try:
            return ctypes.CDLL(file)
        except OSError:
            continue
    raise CompileError(
        "nvrtc: the library libnvrtc, which compiles CUDA kernels, is missing; try pip install nvidia-cuda-nvrtc"
    )


def compile_kernels(source: str, defines: dict[str, str], architecture: str) -> str:
    """Compile a kernel file to machine code and return the compiler's log.

    Raises CompileError with the log if the kernel does not compile.
    """
    lib = load_nvrtc()
    program = ctypes.c_void_p()
    log_size = ctypes.c_size_t()
    flags = [*FLAGS, f"-arch={architecture}", "--ptxas-options=-v"]
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    text = source_text(source, tuple(defines.items())).encode()
    if lib.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None):
        raise CompileError(f"{source}: NVRTC cannot create a program")
    try:
        failed = lib.nvrtcCompileProgram(program, len(flags), options)
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(log_size))
        log = ctypes.create_string_buffer(max(1, log_size.value))
        lib.nvrtcGetProgramLog(program, log)
        if failed:
            errors = "\n".join(log.value.decode().strip().splitlines()[:MAX_LINES])
            raise CompileError(f"{source}, {architecture}, {_define_text(defines)}: NVRTC reports\n{errors}")
        return log.value.decode()
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _define_text(defines: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in defines.items())


def read_log(log: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, registers, spilled bytes and static shared memory of each kernel in the log of ptxas."""
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'(\w+)'", part)
        registers = re.search(r"Used (\d+) registers", part)
        if name and registers:
            spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", part))
            shared = re.search(r"(\d+) bytes smem", part)
            yield name[1], int(registers[1]), spills, int(shared[1]) if shared else 0


def kernel_resources(
    source: str, architectures: Sequence[str] = ARCHITECTURES, selected: list[dict[str, str]] | None = None
) -> list[KernelResources]:
    """Compile a file and return the resources of its kernels. The results are cached on disk.

    Args:
        selected: the definitions with which to compile the file. Default: those that it lists.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    load_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    rows = []
    for architecture, defines in itertools.product(architectures, selected or variants(source)):
        text = _define_text(defines)
        identity = "\0".join(
            [source_text(source, tuple(defines.items())), architecture, *FLAGS, f"{major.value}.{minor.value}"]
        )
        file = cache_directory() / f"{Path(source).stem}-{sha256(identity.encode()).hexdigest()[:24]}.json"
        if file.exists():
            kernels = json.loads(file.read_text())
        else:
            kernels = list(read_log(compile_kernels(source, defines, architecture)))
            file.write_text(json.dumps(kernels))
        rows += [KernelResources(source, kernel, text, architecture, *values) for kernel, *values in kernels]
    return rows


def table(rows: list[KernelResources]) -> str:
    """Format one row per kernel and set of definitions, with registers and spilled bytes for each GPU."""
    by_kernel: dict[tuple[str, str, str], dict[str, KernelResources]] = {}
    for row in rows:
        by_kernel.setdefault((row.source, row.kernel, row.defines), {})[row.architecture] = row
    heads = list(dict.fromkeys(row.architecture for row in rows))
    lines = [f"{'kernel':30} {'compiled with':44} {'shared':>7} " + " ".join(f"{head:>18}" for head in heads)]
    for (_, kernel, defines), by_gpu in by_kernel.items():
        cells = [
            f"{by_gpu[head].registers}" + (f" ({by_gpu[head].spills} B spilled)" if by_gpu[head].spills else "")
            if head in by_gpu
            else "-"
            for head in heads
        ]
        shared = max(row.shared for row in by_gpu.values())
        lines.append(f"{kernel:30} {defines:44} {shared:>7} " + " ".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Print the table of the named kernel files (default: all). Return 2 without NVRTC, 1 if one does not compile."""
    try:
        load_nvrtc()
    except CompileError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        print(table([row for name in names or kernel_files() for row in kernel_resources(name)]))
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
