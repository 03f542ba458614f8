"""--device cuda without a GPU: complete jobs on a strict fake of CuPy (strict_cupy.py), and error messages."""

import importlib
import shutil
import sys
import types

import numpy as np
import pytest

import npx
from models.search import beam_search, greedy_search
from npx.cuda.cublas import ARGUMENTS, load_cublas
from npx.distributed import nccl_world
from tests.fakes.strict_cuda import CUDA
from tests.fakes.strict_cupy import device, kernels_by_reference
from tests.helpers.small_updates import SRC, TGT, batch, model, updater_of
from tests.helpers.trainings import outcome, run, write_text
from train import Adam, load_model
from train.tasks.translation import translate_lines

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++; none found")
backend = importlib.import_module("npx.backend")


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path)


# ---- the strict device


def test_the_strict_device_is_strict():
    with device() as cupy:
        x = npx.ones((2, 3))
        assert type(x).__name__ == "ndarray" and not isinstance(x, np.ndarray)
        for wrong in (
            lambda: x + np.ones(3),
            lambda: np.ones(3) + x,
            lambda: x[np.array([0, 1])],
            lambda: np.asarray(x),
            lambda: npx.concatenate([x, np.ones((2, 3))]),
            lambda: x.__setitem__(0, np.ones(3)),
            lambda: np.multiply(np.ones(3), 2.0, out=x),
            lambda: npx.max(x, axis=0, initial=0.0),  # CuPy's functions lack these arguments
            lambda: x.sum(where=x > 0),
            lambda: npx.exp(x, where=x > 0),
            lambda: npx.argsort(x, kind="quicksort"),
        ):
            with pytest.raises(TypeError):
                wrong()
        assert cupy.waits == []
        assert float(x.sum()) == 6 and npx.to_host(x + 1.0).sum() == 12
        assert x[x > 0].shape == (6,)
        assert cupy.waits == ["float", "get", "boolean index"]
    assert npx.device() == "cpu"


def test_a_reference_runs_on_the_device_of_its_arrays():
    """Host arrays are computed on the host, even while the current device is a GPU."""
    ones = np.ones((3, 7), np.float32)
    drop = npx.DropoutSpec(0.5, npx.Key(1, 2, 3))
    expected = npx.dropout.reference(ones, drop)
    with device():
        found = npx.dropout.reference(ones, drop)
        assert type(found[0]) is np.ndarray and type(found[1][1]) is np.ndarray
        assert np.array_equal(found[0], expected[0]) and np.array_equal(found[1][1], expected[1][1])
        assert np.array_equal(npx.to_host(npx.dropout.reference(npx.asarray(ones), drop)[0]), expected[0])


@pytest.mark.parametrize("shape", [(2, 5), (0, 5), (5, 0)])
def test_the_softmax_reference_runs_on_cupy(shape):
    x = np.arange(10, dtype=np.float32)[: int(np.prod(shape))].reshape(shape)
    mask = np.arange(shape[-1]) < 3
    with device():
        y, _ = npx.softmax.reference(npx.asarray(x), npx.asarray(mask))
        assert y.shape == shape and np.allclose(npx.to_host(y).sum(axis=1), float(bool(shape[-1])))


@pytest.mark.parametrize(
    "settings", [{}, {"norm_placement": "pre", "positions": "learned", "attention_dropout": 0.1}], ids=str
)
def test_a_step_on_the_device_equals_that_on_the_host_and_waits_once(settings):
    micro = [*batch().halves(), batch()]

    def updated():
        updater = updater_of(model(**settings), None, clip_norm=0.5)
        for step in (1, 2):
            updater.apply_gradient(0.01, updater.compute_gradient(micro, step)[1])
        return updater

    with kernels_by_reference():
        expected = updated().flat.data
        with device() as cupy:
            updater = updated()
            assert cupy.waits == ["get", "get"]  # the losses and the norm, together
            assert npx.to_host(updater.flat.data).tobytes() == expected.tobytes()


def test_a_loss_with_the_default_normalizer_does_not_wait():
    with kernels_by_reference(), device() as cupy, npx.keyed(1, 1):
        model().loss(SRC, TGT).backward()
        assert cupy.waits == []


@needs_gxx
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint8"])  # prepared text has the first two
def test_ids_of_every_integer_type_reach_the_kernels(dtype):
    def step(ids):
        made = model()
        with npx.keyed(1, 1):
            loss = made.loss(SRC.astype(ids), TGT.astype(ids))
        loss.backward()
        return [npx.to_host(x).tobytes() for x in (loss.data, *(p.grad for p in made.parameters()))]

    with device(cuda=True):
        assert step(dtype) == step("int64")


@pytest.mark.parametrize("settings", [{}, {"norm_placement": "pre", "positions": "learned"}], ids=str)
@pytest.mark.parametrize("mode", ["reference", pytest.param("emulate", marks=needs_gxx)])
def test_search_on_the_device_equals_that_on_the_host(settings, mode):
    def searched():
        made = model(**settings)
        maps = made.eval().attention_maps(SRC, TGT)
        assert all(type(weights) is np.ndarray for weights in maps)
        return (
            [
                greedy_search(made, SRC, max_extra_tokens=4),
                *beam_search(made, SRC, beam_size=3, n_best=2, max_extra_tokens=4),
            ],
            [weights.tobytes() for weights in maps],
        )

    with npx.kernel_mode(mode):
        expected, expected_maps = searched()
    with npx.kernel_mode("fast" if mode == "emulate" else mode), device(cuda=mode == "emulate"):
        hypotheses, maps = searched()
    assert maps == expected_maps
    for on_device, on_host in zip(sum(hypotheses, []), sum(expected, []), strict=True):
        assert on_device.tokens == on_host.tokens and on_device.finished == on_host.finished
        # Only the host decodes with `decode_step`, which rounds differently.
        assert on_device.score == pytest.approx(on_host.score, rel=1e-6)
        assert on_device.token_log_probabilities == pytest.approx(on_host.token_log_probabilities, rel=1e-5)


def test_a_training_on_the_device_equals_that_on_the_host(text, tmp_path, monkeypatch):
    """Validation, BLEU, checkpoints, metrics, resuming and translating give identical files."""
    update = Adam.step

    def crash(self, lr, scale):
        update(self, lr, scale)
        if self.steps == 8:
            raise ZeroDivisionError

    with kernels_by_reference():
        run(text, tmp_path / "host")
        with device() as cupy:
            monkeypatch.setattr(Adam, "step", crash)
            with pytest.raises(ZeroDivisionError):
                run(text, tmp_path / "device")
            monkeypatch.undo()
            run(text, tmp_path / "device", resume=True)
            names = set(cupy.names)
            made, tokenizer, _ = load_model(tmp_path / "device")
            translated = translate_lines(made, tokenizer, ["one two", "", "nine"], max_extra_tokens=3)
        made, tokenizer, _ = load_model(tmp_path / "host")
        assert translated == translate_lines(made, tokenizer, ["one two", "", "nine"], max_extra_tokens=3)
    assert outcome(tmp_path / "device") == outcome(tmp_path / "host")
    assert {"stack", "matmul", "exp", "where"} <= names


def test_cupy_has_every_function_that_is_used():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    with kernels_by_reference(), device() as strict:
        made = model(positions="learned", norm_placement="pre")
        with npx.keyed(1, 1):
            made.loss(SRC, TGT).backward()
        beam_search(made, SRC, beam_size=3, max_extra_tokens=4)
        Adam(made).step(0.01)
        made.load_state_dict(made.state_dict())
        assert len(strict.names) > 20 and [name for name in strict.names if not hasattr(cupy, name)] == []
    assert [name for name in vars(CUDA) if not hasattr(cupy.cuda, name)] == []
    assert [name for name in vars(CUDA.runtime) if not hasattr(cupy.cuda.runtime, name)] == []
    try:
        from cupy_backends.cuda.libs import cublas  # imported as in npx/cuda/blas.py, which makes CuPy load the library
    except (ImportError, RuntimeError):
        return
    assert [name for name in ARGUMENTS if not hasattr(load_cublas(), name)] == []
    assert "handle, int mode" in cublas.setMathMode.__doc__ and cublas.gemmEx.__doc__.count(",") == 18


# ---- errors


def fake_cupy(count):
    runtime = types.SimpleNamespace(getDeviceCount=count, runtimeGetVersion=lambda: 13020)
    return types.SimpleNamespace(__version__="14.2.0", cuda=types.SimpleNamespace(runtime=runtime))


def insufficient():
    raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is\ninsufficient")


@pytest.mark.parametrize(
    ("cupy", "driver", "parts"),
    [
        (None, None, ["CuPy is not installed", "no NVIDIA driver", "gpu13"]),
        (None, (12, 4), ["CuPy is not installed", "driver for CUDA 12.4", "npx-transformer[gpu12]"]),
        (fake_cupy(lambda: 0), None, ["no GPU", "no NVIDIA driver"]),
        (fake_cupy(insufficient), (12, 9), ["CuPy 14.2.0", "cudaErrorInsufficientDriver", "CUDA 12.9", "gpu12"]),
        (fake_cupy(insufficient), (13, 0), ["cudaErrorInsufficientDriver", "CUDA 13.0", "npx-transformer[gpu13]"]),
    ],
)
def test_a_missing_gpu_is_reported_in_one_line(monkeypatch, capfd, cupy, driver, parts):
    from train.cli import main

    if cupy is None:
        monkeypatch.setattr(sys, "meta_path", [NoCupy(), *sys.meta_path])
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(backend, "driver_version", lambda: driver)
    assert main(["translate", "--model", "none", "--device", "cuda"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    for part in ["device cuda", "--device cpu", *parts]:
        assert part in err
    assert npx.device() == "cpu" and backend._cupy is None


class NoCupy:
    def find_spec(self, name, path=None, target=None):
        if name == "cupy":
            raise ModuleNotFoundError(name)


def test_an_available_gpu_is_used_within_the_memory_limit(monkeypatch):
    limits = []
    cupy = fake_cupy(lambda: 1)
    pool = types.SimpleNamespace(set_limit=lambda **limit: limits.append(limit))
    cupy.get_default_memory_pool = lambda: pool
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(backend, "_device", "cpu")
    monkeypatch.setattr(backend, "_cupy", None)
    monkeypatch.setenv("NPX_GPU_MEMORY", "75%")
    npx.use_device("cuda")
    assert npx.device() == "cuda" and backend._cupy is cupy and limits == [{"fraction": 0.75}]
    npx.use_device("cpu")
    npx.use_device("cuda")
    assert len(limits) == 1, "once per process"


def test_the_driver_version_is_none_or_two_numbers():
    version = backend.driver_version()
    assert version is None or (len(version) == 2 and version[0] >= 11)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("", {}), ("20", {"size": 20 << 30}), ("0.5", {"size": 1 << 29}), ("80%", {"fraction": 0.8})],
)
def test_the_pool_gets_the_limit(limit, expected, monkeypatch):
    limits = {}
    monkeypatch.setenv("NPX_GPU_MEMORY", limit)
    backend.limit_memory(cupy_with_pool(lambda **limit: limits.update(limit)))
    assert limits == expected


def cupy_with_pool(set_limit):
    return types.SimpleNamespace(get_default_memory_pool=lambda: types.SimpleNamespace(set_limit=set_limit))


@pytest.mark.parametrize("limit", ["much", "%", "-1", "200%"])
def test_an_invalid_limit_is_an_error(limit, monkeypatch):
    monkeypatch.setenv("NPX_GPU_MEMORY", limit)
    with pytest.raises(ValueError, match=f"NPX_GPU_MEMORY: expected a size in GiB .* got '{limit}'"):
        backend.limit_memory(cupy_with_pool(None))


def test_a_rank_limits_the_memory_of_its_gpu(monkeypatch):
    """CuPy's limit applies to the current GPU, which is the first one until the rank selects its own."""
    current = [0]  # the number of the current GPU
    limited = []
    nccl = types.SimpleNamespace(available=True, get_unique_id=str)
    cupy = fake_cupy(lambda: 4)
    cupy.cuda.runtime.getDeviceCount = lambda: 4
    cupy.cuda.Device = lambda i: types.SimpleNamespace(use=lambda: current.__setitem__(0, i), pci_bus_id=str(i))
    pool = cupy_with_pool(lambda **limit: limited.append((*current, limit)))
    cupy.get_default_memory_pool = pool.get_default_memory_pool
    modules = {"cupy": cupy, "cupy.cuda": types.SimpleNamespace(nccl=nccl), "cupy.cuda.nccl": nccl}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("NPX_GPU_MEMORY", "20")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
    for name, fake in {"__init__": lambda self, comm: None, "all_gather_object": lambda self, x: [x], "size": 1,
                           "rank": 0, "broadcast_object": lambda self, x: x}.items():  # fmt: skip
        monkeypatch.setattr(nccl_world.MpiWorld, name, fake, raising=False)
    monkeypatch.setattr(nccl_world, "NcclCollectives", lambda *_: None)
    nccl_world.NcclWorld(None)
    assert limited == [(0, {"size": 20 << 30}), (2, {"size": 20 << 30})]
