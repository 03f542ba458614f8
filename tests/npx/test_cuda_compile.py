"""Compile every kernel with NVIDIA's compiler for GPUs before and after sm_80; test the report of registers and spills.

`python -m npx.testing.nvrtc_report` compiles all variants that the kernel files list; this test compiles one per type.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from npx.cuda import launch
from npx.testing import nvrtc_report
from npx.testing.nvrtc_report import CompileError, KernelResources

try:
    nvrtc_report.load_nvrtc()
except CompileError as error:
    pytest.skip(str(error), allow_module_level=True)

PROBE = str(Path(__file__).with_name("probe.cu"))
MAX_REGISTERS = 255  # per thread; more are spilled to memory


def one_variant_per_type(source):
    """Return the first variant for each value of the first definition, which is the storage type."""
    by_type = {}
    for defines in nvrtc_report.variants(source):
        by_type.setdefault(next(iter(defines.values())), defines)
    return list(by_type.values())


@pytest.mark.parametrize(
    "architecture", [pytest.param("sm_75", marks=pytest.mark.slow), "sm_90"]
)  # the code depends on __CUDA_ARCH__ >= 800 only
@pytest.mark.parametrize("source", [*nvrtc_report.kernel_files(), PROBE], ids=lambda source: Path(source).name)
def test_every_kernel_compiles(source, architecture):
    rows = nvrtc_report.kernel_resources(source, [architecture], one_variant_per_type(source))
    assert all(row.kernel in nvrtc_report.table(rows) for row in rows)
    assert {row.source for row in rows} == {source}
    assert all(0 < row.registers <= MAX_REGISTERS and row.shared <= 48 << 10 for row in rows)
    assert len({row.defines for row in rows}) == len(one_variant_per_type(source))


def test_every_dtype_of_a_launch_is_compiled():
    types = {
        value
        for source in nvrtc_report.kernel_files()
        for defines in nvrtc_report.variants(source)
        for value in defines.values()
    }
    assert types >= {launch.CTYPES[name] for name in ("float32", "float16", "bfloat16")}


def test_a_kernel_that_does_not_compile_shows_the_compilers_message(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "SOURCES", tmp_path)
    monkeypatch.setattr(launch, "HEADER", tmp_path / "device.cuh")
    monkeypatch.setattr(nvrtc_report, "SOURCES", tmp_path)
    (tmp_path / "device.cuh").write_text("")
    (tmp_path / "small.cu").write_text('#include "device.cuh"\n\n__global__ void f(T* x) { x[0] = undeclared; }\n')
    with pytest.raises(CompileError, match=r"(?s)small.cu, sm_90, T=int: NVRTC reports.*small.cu\(3\).*undeclared"):
        nvrtc_report.compile_kernels("small.cu", {"T": "int"}, "sm_90")
    with pytest.raises(CompileError, match="small.cu: expected a line '// Built with"):
        nvrtc_report.variants("small.cu")


def test_variants_are_all_combinations_of_each_line(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc_report, "SOURCES", tmp_path)
    (tmp_path / "small.cu").write_text(
        "// Small.\n// Built with: T = float half_t, D = 1 2\n// Built with: T = float\n"
    )
    assert nvrtc_report.variants("small.cu") == [
        {"T": "float", "D": "1"}, {"T": "float", "D": "2"}, {"T": "half_t", "D": "1"}, {"T": "half_t", "D": "2"},
        {"T": "float"},
    ]  # fmt: skip


def test_the_table_shows_spills():
    rows = [
        KernelResources("a.cu", "f", "T=float", "sm_80", 32, 0, 128),
        KernelResources("a.cu", "f", "T=float", "sm_90", 255, 16, 128),
    ]
    heads, line = nvrtc_report.table(rows).splitlines()
    assert heads.split() == ["kernel", "compiled", "with", "shared", "sm_80", "sm_90"]
    assert line.split() == ["f", "T=float", "128", "32", "255", "(16", "B", "spilled)"]


def test_the_command_prints_the_table():
    done = subprocess.run([sys.executable, "-m", "npx.testing.nvrtc_report", PROBE], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert "probe_reduce" in done.stdout and "sm_75" in done.stdout
