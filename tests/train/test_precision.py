"""Mixed precision: float32 master weights with 16-bit copies, loss scaling, TF32, and what is saved."""

import shutil
import signal

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import FlatParameters, Transformer, TransformerConfig
from models.search import greedy_search
from tests.fakes.strict_cupy import CUPY, device, kernels_by_reference
from tests.helpers.trainings import Crash, metrics, outcome, rewrite, run
from tests.models.test_module import Tree
from train import Adam, RunConfig, Trainer, UserError, average_checkpoints, load_model
from train.cli.info import describe
from train.learn.memory import training_memory
from train.learn.optimizer import LossScale
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder

LOW = [np.float16, pytest.param("bfloat16", id="bfloat16")]


@pytest.fixture
def gpu():
    """The strict fake device of strict_cupy.py, with reference kernels."""
    with kernels_by_reference(), device() as cupy:
        yield cupy


def dtype(name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    return np.dtype(name)


# ---- dtypes


@pytest.mark.parametrize("low", LOW)
def test_references_preserve_the_dtype(low):
    """NumPy's matmuls and means of bfloat16 are float32, which fast versions need not imitate."""
    rng = np.random.default_rng(0)
    low = dtype(low)
    drop = npx.DropoutSpec(0.5, npx.Key(1, 1, 1))
    numbers = lambda *shape: rng.normal(size=shape).astype(low)  # noqa: E731
    with npx.kernel_mode("reference"):
        for kernel, args in (
            (
                npx.attention,
                (*(numbers(2, 3, 2, 4) for _ in range(3)), npx.AttentionSpec(causal=True, rotary_base=100.0), drop),
            ),
            (npx.layer_norm, (numbers(3, 4), numbers(4), numbers(4))),
            (npx.dropout_residual_norm, (numbers(3, 4), numbers(3, 4), numbers(4), numbers(4), drop)),
        ):
            y, saved = kernel(*args)
            assert {x.dtype for x in (y, *kernel.grad(y, saved))} == {low}, kernel.name


def test_a_precision_is_two_dtypes_and_a_gemm_mode(gpu):
    pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    for name, weights, numbers, products in (
        ("float32", "float32", "float32", "default"),
        ("tf32", "float32", "float32", "tf32"),
        ("bf16", "float32", "bfloat16", "default"),
        ("fp16", "float32", "float16", "default"),
        ("float64", "float64", "float64", "default"),
    ):
        precision = npx.use_precision(name)
        assert (precision.name, precision.weight_dtype.name, precision.compute_dtype.name) == (name, weights, numbers)
        assert precision == npx.precision_named(name) and precision.needs_loss_scaling == (name == "fp16")
        low = precision.compute_dtype.itemsize if precision.is_mixed else 0
        assert sum(training_memory(1, 1, precision, False).values()) == 4 * precision.weight_dtype.itemsize + low
        assert CUPY.compute_types[-1] == ("float32", products)


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16"])
def test_a_cpu_rejects_the_precisions_of_a_gpu(name):
    with pytest.raises(ValueError, match=f"precision: expected float32 or float64 on a CPU; got '{name}'; try --dev"):
        npx.use_precision(name)
    with pytest.raises(ValueError, match="precision: expected one of float32, tf32, bf16, fp16, float64; got 'int8'"):
        npx.use_precision("int8")


def test_16_bit_sums_are_accumulated_in_float32():
    assert [npx.accumulation_dtype(np.dtype(x)).name for x in ("float16", "float32", "float64")] == [
        "float32",
        "float32",
        "float64",
    ]


# ---- two copies of the weights


@pytest.mark.parametrize("low", LOW)
def test_master_weights_are_float32_with_a_16_bit_copy(low):
    low = dtype(low)
    tree = Tree()
    for p in tree.parameters():
        p.data += np.linspace(0, 1e-3, p.size, dtype="float32")
    before = tree.state_dict()
    flat = FlatParameters(tree, low)
    assert (flat.data.dtype, flat.low_precision_data.dtype, flat.flatten_grad().dtype) == ("float32", low, "float32")
    for name, p in tree.named_parameters():
        assert p.dtype == low and p.grad.dtype == "float32"
        assert np.shares_memory(p.data, flat.low_precision_data) and np.shares_memory(p.master, flat.data)
        assert np.array_equal(p.data, before[name].astype(low))
    state = tree.state_dict()
    assert all(array.dtype == "float32" and np.array_equal(array, before[name]) for name, array in state.items())
    changed = {name: array + np.float32(0.1) for name, array in state.items()}
    tree.load_state_dict(changed)
    assert all(np.array_equal(array, changed[name]) for name, array in tree.state_dict().items())
    assert np.array_equal(flat.low_precision_data, flat.data.astype(low))
    with pytest.raises(
        ValueError, match="FlatParameters: expected parameters that no other FlatParameters contains; got scale"
    ):
        FlatParameters(tree, np.dtype("float64"))


@pytest.mark.parametrize("low", LOW)
def test_gradients_accumulate_in_float32(low):
    low = dtype(low)
    tree = Tree()
    flat = FlatParameters(tree, low)
    for _ in range(3):
        (tree.scale * Tensor(np.array([1, 2**-12, 3]).astype(low))).sum().backward()
    assert flat.flatten_grad().dtype == "float32" and np.array_equal(tree.scale.grad, np.float32([3, 3 * 2**-12, 9]))
    (tree.scale * Tensor(np.full(3, 2**-10).astype(low))).sum().backward()
    assert tree.scale.grad[0] == 3 + 2**-10, "not representable in bf16 and fp16"


@pytest.mark.parametrize("low", LOW)
def test_small_updates_are_not_lost_to_rounding(low):
    low = dtype(low)
    tree = Tree()
    flat = FlatParameters(tree, low)
    adam = Adam(flat)
    for _ in range(40):
        flat.flatten_grad()[...] = 4.0
        adam.step(1e-4, grad_scale=0.25)
    assert adam.m.dtype == "float32"
    assert flat.data[0] == pytest.approx(2 - 40e-4, rel=1e-6)
    assert np.array_equal(flat.low_precision_data, flat.data.astype(low)), "Adam writes the copy in the same pass"


def test_a_16_bit_model_matches_float32():
    config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=2, dropout=0.0)
    src, tgt = np.array([[4, 5, 6, 2], [7, 8, 2, 0]]), np.array([[1, 6, 5, 4, 2], [1, 9, 2, 0, 0]])
    results = []
    with kernels_by_reference():
        for numbers in (None, np.dtype("float16")):
            model = Transformer(config, seed=2)
            flat = FlatParameters(model, numbers)
            loss = model.loss(src, tgt)
            loss.backward(1024.0)
            assert loss.dtype == "float32" and model.encode(src)[0].dtype == flat.compute_dtype
            assert model(src, tgt[:, :-1]).dtype == flat.compute_dtype
            assert all(weights.dtype == "float32" for weights in model.attention_maps(src, tgt))
            best = greedy_search(model, src, max_extra_tokens=3)
            results.append((loss.item(), flat.flatten_grad() / 1024, [h.tokens for h in best]))
    assert results[1][0] == pytest.approx(results[0][0], rel=2e-3)
    largest = np.abs(results[0][1]).max()
    assert largest > 0.1 and np.abs(results[1][1] - results[0][1]).max() < 1e-2 * largest
    assert results[0][2] == results[1][2]


@pytest.mark.parametrize(
    "options",
    [{"norm_placement": "deepnorm"}, {"architecture": "convs2s"}, {"positions": "shaw"}],
    ids=lambda options: "".join(options.values()),
)
@pytest.mark.parametrize("low", LOW)
def test_16_bit_layers_keep_the_dtype(low, options):
    config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0, **options)
    src, tgt = np.array([[4, 5, 6, 2], [7, 8, 2, 0]]), np.array([[1, 6, 5, 4, 2], [1, 9, 2, 0, 0]])
    results = []
    with npx.kernel_mode("emulate"):
        for numbers in (np.dtype("float32"), dtype(low)):
            model = config.build(2, numbers)
            loss = model.loss(src, tgt)
            loss.backward()
            assert model.encode(src)[0].dtype == numbers
            results.append((loss.item(), np.concatenate([p.grad.astype(float).ravel() for p in model.parameters()])))
    assert results[1][0] == pytest.approx(results[0][0], rel=2e-2)
    assert np.abs(results[1][1] - results[0][1]).max() < 0.05 * np.abs(results[0][1]).max()


def test_info_counts_the_16_bit_copy():
    for precision, size in (("float32", 16), ("bf16", 18), ("float64", 32)):  # bytes per parameter
        config = RunConfig.from_dict({"model": {"preset": "tiny"}, "train": {"precision": precision}})
        shape = config.transformer_config(1000)
        (line,) = [line for line in describe(shape, config) if line.startswith("memory")]
        mib = shape.n_parameters() * size / 2**20
        assert line.startswith(f"memory       {mib:,.0f} MiB") and ("bf16 copy" in line) == (precision == "bf16")


# ---- training


def test_fp16_training_saves_float32_weights(text, tmp_path, gpu):
    out = tmp_path / "run"
    often = {"log_every": 1, "checkpoint_every": 1, "keep_last": 12}
    summary = run(text, out, precision="fp16", **often)
    saved = load_checkpoint(RunFolder(out).step_paths()[-1])
    assert {array.dtype.name for array in (saved.weights | saved.optimizer_arrays).values()} == {"float32"}
    assert any(not np.array_equal(a, a.astype("float16")) for a in saved.weights.values()), "the master, not the copy"
    assert saved.state["loss_scale"] == {"value": 2.0**16, "good": 12, "skipped": 0}
    entries = [entry for entry in metrics(out) if entry["kind"] == "train"]
    assert len(entries) == 12 and {entry["loss_scale"] for entry in entries} == {2.0**16}
    assert all(np.isfinite([entry["loss"], entry["gradient_norm"]]).all() for entry in entries)
    run(text, tmp_path / "float32", **often)
    plain = [entry for entry in metrics(tmp_path / "float32") if entry["kind"] == "train"]
    assert len(plain) == 12 and not any("loss_scale" in entry for entry in plain)
    # Only the first steps, because rounding errors grow later.
    for half, full in zip(entries[:3], plain[:3], strict=True):
        assert half["loss"] == pytest.approx(full["loss"], rel=1e-3)
        assert half["gradient_norm"] == pytest.approx(full["gradient_norm"], rel=1e-2)
    first, exact = (
        load_checkpoint(RunFolder(x).step_path(1)).optimizer_arrays["m"] for x in (out, tmp_path / "float32")
    )
    assert np.linalg.norm(first - exact) < 0.01 * np.linalg.norm(exact), "unscaled"
    average_checkpoints(out, 3)
    model, _, config = load_model(out)
    assert config.train.precision == "fp16" and {p.dtype.name for p in model.parameters()} == {"float32"}
    assert np.isfinite(summary.valid_loss)


def test_skipped_updates_are_logged_and_resume_is_exact(text, tmp_path, gpu, monkeypatch):
    monkeypatch.setattr(LossScale, "START", 2.0**32)  # overflows fp16 at first
    monkeypatch.setattr(LossScale, "PATIENCE", 4)  # and grows again
    changes = {"precision": "fp16", "log_every": 1, "checkpoint_every": 2}
    run(text, tmp_path / "whole", **changes)
    skipped = [entry for entry in metrics(tmp_path / "whole") if entry["kind"] == "skipped"]
    assert [entry["skipped"] for entry in skipped] == list(range(1, len(skipped) + 1)) and len(skipped) > 4
    assert skipped[0] == {"kind": "skipped", "step": 1, "loss_scale": 2.0**31, "skipped": 1}
    trained = [entry for entry in metrics(tmp_path / "whole") if entry["kind"] == "train"]
    assert [entry["step"] for entry in trained] == list(range(1, 13)), "a skipped update is not a step"
    assert len({entry["loss_scale"] for entry in trained}) > 1
    assert "update skipped, loss scale now 2.14748e+09" in (tmp_path / "whole" / "log.txt").read_text()
    state = load_checkpoint(RunFolder(tmp_path / "whole").step_paths()[-1]).state
    assert state["adam_steps"] == 12 and state["loss_scale"]["skipped"] == len(skipped)

    update = Adam.step

    for step in (2, 7):

        def crash(self, lr, scale, step=step):
            if self.steps == step:
                raise Crash
            update(self, lr, scale)

        stopped = tmp_path / f"stopped-{step}"
        with monkeypatch.context() as patch:
            patch.setattr(Adam, "step", crash)
            with pytest.raises(Crash):
                run(text, stopped, **changes)
        run(text, stopped, resume=True, **changes)
        assert outcome(stopped) == outcome(tmp_path / "whole"), f"stopped at step {step}"

    reduce = LossScale.reduce_after_overflow

    def interrupt(self):
        if self.skipped == len(skipped) - 1:
            signal.raise_signal(signal.SIGINT)
        return reduce(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LossScale, "reduce_after_overflow", interrupt)
        run(text, tmp_path / "interrupted", **changes)
    run(text, tmp_path / "interrupted", resume=True, **changes)
    assert outcome(tmp_path / "interrupted") == outcome(tmp_path / "whole"), "the last overflow is still logged"


def test_an_overflow_at_loss_scale_one_stops_the_run(text, tmp_path, gpu, monkeypatch):
    loss = Transformer.loss
    monkeypatch.setattr(Transformer, "loss", lambda self, *args, **how: loss(self, *args, **how) * float("inf"))
    with pytest.raises(UserError, match="step 1: expected a finite loss; .*; try train.precision=float32, or"):
        run(text, tmp_path / "run", precision="fp16", max_skipped_updates=0)
    *scaled, last = metrics(tmp_path / "run")
    assert [entry["loss_scale"] for entry in scaled] == [2.0**i for i in range(15, -1, -1)]
    assert last["in_a_row"] == 1


def test_a_checkpoint_without_a_loss_scale_is_still_read(text, tmp_path):
    out = tmp_path / "run"
    run(text, out, max_steps=3)
    rewrite(RunFolder(out).step_paths()[-1], lambda state: state.pop("loss_scale"))
    assert run(text, out, resume=True, max_steps=4).step == 4


def test_a_cpu_rejects_the_precision_before_anything_is_written(text, tmp_path):
    with pytest.raises(UserError, match="train.precision: expected float32 or float64 on a CPU; got 'bf16'"):
        run(text, tmp_path / "run", precision="bf16")
    assert not (tmp_path / "run").exists()


# ---- emulated GPU kernels


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++: none found")
@pytest.mark.parametrize("precision", ["float32", *(pytest.param(x, marks=pytest.mark.slow) for x in ("bf16", "fp16"))])
def test_training_on_emulated_kernels(text, tmp_path, monkeypatch, precision):
    """Training matches the host, is exact on strict arrays, and synchronizes once per update."""
    pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    short = {"max_steps": 2, "log_every": 1, "validate_score": precision == "bf16"}
    run(text, tmp_path / "host", **short)
    with npx.kernel_mode("emulate"):
        run(text, tmp_path / "emulated", precision=precision, **short)
    host, emulated = ([e for e in metrics(tmp_path / x) if e["kind"] == "train"] for x in ("host", "emulated"))
    for expected, entry in zip(host, emulated, strict=True):
        assert entry["loss"] == pytest.approx(expected["loss"], rel=1e-4 if precision == "float32" else 2e-2)

    waits = []
    update = Trainer._run_update

    def watched(self):
        CUPY.waits.clear()
        done = update(self)
        waits.append([*CUPY.waits])
        return done

    monkeypatch.setattr(Trainer, "_run_update", watched)
    with device(cuda=True):
        run(text, tmp_path / "strict", precision=precision, **short)
    assert waits == [["get"]] * 2
    assert outcome(tmp_path / "strict") == outcome(tmp_path / "emulated")
