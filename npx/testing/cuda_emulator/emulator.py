"""CUDA kernels on NumPy arrays, for checking them on a machine without a GPU.

g++ compiles the .cu file, with `cuda_names.h` in place of CUDA's headers, to a library in the user's cache directory.
The name of the library contains a hash of the sources, flags and compiler. A launch runs one block after another, with
every CUDA thread as a fiber. Loads, stores, barriers and warp operations are checked. An invalid operation
raises EmulatorError:

    probe.cu, probe_reduce: thread (3, 0, 0) of block (1, 0, 0) reads 4 bytes at byte 128 of argument 0, which has
    128 bytes (probe.cu:19)

NPX_EMULATOR_ORDER ("forward", "reverse", "random"), or `thread_order` for a block of code, sets the order in which the
threads run. A correct kernel gives the same bits in every order.
"""

import ctypes
import functools
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from npx.settings import THREAD_ORDERS as ORDERS
from npx.settings import read_setting

MAX_THREADS = 1024
STACK = 256 << 10  # bytes per fiber; unused pages take no memory
MESSAGE = 2048  # bytes
FOLDER = Path(__file__).parent
HEADERS = ("cuda_names.h", "emulator.h", "emulator_entry.h")
CACHE_DAYS = 30  # age at which compiled kernels are deleted
SHARED_LIMIT = 227 << 10  # bytes of shared memory a block can have on sm_90

# -O1 compiles fast and runs fast enough. The checks call into emulator.h instead of the sanitizers' runtime libraries,
# so that they work inside a Python process.
FLAGS = (
    "-std=c++17 -O1 -g1 -shared -fPIC -fvisibility=hidden -U_FORTIFY_SOURCE -ffp-contract=off -fno-strict-aliasing "
    "-fno-exceptions -fno-rtti -fsanitize=thread --param tsan-instrument-func-entry-exit=0 "
    "-fsanitize=bounds,alignment,null,shift,signed-integer-overflow,integer-divide-by-zero "
    "-w -fmax-errors=5 -nodefaultlibs"
).split()
LIBRARIES = "-lm -lc -lgcc".split()

_order = read_setting("NPX_EMULATOR_ORDER")
_lock = threading.Lock()
_stacks: mmap.mmap | None = None


class EmulatorError(RuntimeError):
    """A kernel does not compile or performs an invalid operation."""


class _Array(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("stop", ctypes.c_void_p), ("argument", ctypes.c_int)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("arrays", ctypes.POINTER(_Array)),
        ("n_arrays", ctypes.c_uint64),
        ("shared", ctypes.c_void_p),
        ("stacks", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("shared_bytes", ctypes.c_uint64),
        ("stack_bytes", ctypes.c_uint64),
        ("message_bytes", ctypes.c_uint64),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("instruction", ctypes.c_uint64),
    ]


@contextmanager
def thread_order(order: str) -> Iterator[None]:
    """Within the `with` statement, run the CUDA threads of a block in the order "forward", "reverse" or "random".

    Raises ValueError for any other order.
    """
    global _order
    if order not in ORDERS:
        raise ValueError(f"thread_order: expected one of {', '.join(ORDERS)}; got {order!r}")
    previous = _order
    _order = order
    try:
        yield
    finally:
        _order = previous


@functools.cache
def compiler() -> str:
    """Return the path and the version of g++. Raises EmulatorError if g++ is missing."""
    path = shutil.which("g++")
    if path is None:
        raise EmulatorError("emulator: g++, which compiles the CUDA kernels, is not installed; try apt install g++")
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    if "clang" in version.lower():
        raise EmulatorError(f"emulator: expected GNU g++; got {version} ({path}); try installing GCC")
    return f"{path} {version}"


@functools.cache
def cache_directory() -> Path:
    """Return the directory for compiled kernels: in XDG_CACHE_HOME or ~/.cache, else a temporary one."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npx-kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="npx-kernels-"))
    for file in path.glob("*.*"):
        with suppress(OSError):  # another process may have deleted it
            if file.stat().st_mtime < time.time() - CACHE_DAYS * 86400:
                file.unlink()
    return path


class Module:
    """A .cu file, compiled with certain definitions and loaded. `header` is the device.cuh that it includes."""

    def __init__(self, path: Path, header: Path, defines: dict[str, str]) -> None:
        self.name = path.name
        text = path.read_text()
        kernels = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(", text)
        body = (
            '#include "device.cuh"\n'
            + "".join(f"#define {name} {value}\n" for name, value in defines.items())
            + f'#include "{path.name}"\n'
            + "".join(f"EMULATED_KERNEL({name})\n" for name in kernels)
        )
        sources = [body, text, header.read_text(), *((FOLDER / name).read_text() for name in HEADERS)]
        digest = hashlib.sha256("\0".join([compiler(), *FLAGS, *sources]).encode()).hexdigest()[:24]
        self.file = cache_directory() / f"{path.stem}-{digest}.so"
        if not self.file.exists():
            self._compile(body, [*FLAGS, *(f"-I{folder}" for folder in (header.parent, FOLDER, path.parent))])
        self.compiled = ctypes.CDLL(str(self.file))
        self.parameters = {}
        for name in kernels:
            signature = getattr(self.compiled, f"signature_{name}")
            signature.restype = ctypes.c_char_p
            self.parameters[name] = signature().decode().split()

    def _compile(self, body: str, flags: list[str]) -> None:
        with tempfile.TemporaryDirectory(dir=self.file.parent) as directory:
            out = Path(directory) / "library.so"
            command = [compiler().split(" ")[0], *flags, "-x", "c++", "-", "-o", str(out), *LIBRARIES]
            result = subprocess.run(command, input=body, capture_output=True, text=True)
            if result.returncode:
                raise EmulatorError(f"{self.name}: the kernel does not compile; g++ reports:\n{result.stderr.strip()}")
            out.replace(self.file)

    def launch(self, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], args: Any, shared: int = 0) -> None:
        """Run a kernel; `args` are NumPy arrays, NumPy scalars, or None for a null pointer."""
        if kernel not in self.parameters:
            raise EmulatorError(f"{self.name}: expected one of {', '.join(self.parameters)}; got {kernel!r}")
        for unit, value, limit in (
            ("threads per block", int(np.prod(block)), MAX_THREADS),
            ("blocks in y and z", max(grid[1:]), 65535),
            ("bytes of shared memory", shared, SHARED_LIMIT),
        ):
            if value > limit:
                raise EmulatorError(f"{self.name}, {kernel}: expected at most {limit} {unit}; got {value}")
        self._check(kernel, args)
        values = [
            ctypes.c_void_p(a.ctypes.data if isinstance(a, np.ndarray) else None)
            if a is None or isinstance(a, np.ndarray)
            else np.asarray(a)
            for a in args
        ]
        pointers = (ctypes.c_void_p * max(1, len(values)))(
            *(v.ctypes.data if isinstance(v, np.ndarray) else ctypes.addressof(v) for v in values)
        )
        indexed = [(i, a) for i, a in enumerate(args) if isinstance(a, np.ndarray)]
        arrays = (_Array * max(1, len(indexed)))(*(_Array(*byte_bounds(a), i) for i, a in indexed))
        memory = np.empty(shared + 16, np.uint8)
        aligned = memory.ctypes.data + (-memory.ctypes.data) % 16
        message = ctypes.create_string_buffer(MESSAGE)
        with _lock:
            launch = _Launch(
                pointers, grid, block, arrays, len(indexed), aligned, _stack_memory(),
                ctypes.cast(message, ctypes.c_char_p), shared, STACK, MESSAGE, ORDERS.index(_order), 1, 0,
            )  # fmt: skip
            failed = getattr(self.compiled, f"launch_{kernel}")(ctypes.byref(launch))
        if failed:
            raise EmulatorError(f"{self.name}, {kernel}: {message.value.decode()}{self._line(launch.instruction)}")

    def _check(self, kernel: str, args: Any) -> None:
        parameters = self.parameters[kernel]
        if len(parameters) != len(args):
            raise EmulatorError(f"{self.name}, {kernel}: expected {len(parameters)} arguments; got {len(args)}")
        for i, (expected, arg) in enumerate(zip(parameters, args, strict=True)):
            if arg is None:
                actual = "None"
                is_valid = expected.endswith("*")
            else:
                actual = getattr(getattr(arg, "dtype", None), "name", type(arg).__name__)
                actual += "*" if isinstance(arg, np.ndarray) else ""
                is_valid = expected == actual or (expected == "?*" and actual.endswith("*"))
            if not is_valid:
                raise EmulatorError(f"{self.name}, {kernel}, argument {i}: expected {expected}; got {actual}")

    def _line(self, offset: int) -> str:
        tool = shutil.which("addr2line") if offset else None
        if tool is None:
            return ""
        line = subprocess.run([tool, "-e", str(self.file), hex(offset - 1)], capture_output=True, text=True).stdout
        return f" ({Path(line.split(' ')[0].strip()).name})" if ":" in line and "?" not in line else ""


def _stack_memory() -> int:
    global _stacks
    if _stacks is None:
        _stacks = mmap.mmap(-1, MAX_THREADS * STACK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return ctypes.addressof(ctypes.c_char.from_buffer(_stacks))


@functools.cache
def module(path: Path, header: Path, defines: tuple[tuple[str, str], ...]) -> Module:
    """Return the compiled and loaded file; it is recompiled only if a source, a flag or the compiler changes."""
    return Module(path, header, dict(defines))
