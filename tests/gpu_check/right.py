"""Compare a GPU with the CPU: a training step in every precision, a short training run, every command, every kernel."""

import math
import os
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import npx
from models import FlatParameters, Transformer, TransformerConfig
from npx.cuda import blas
from npx.dispatch import KERNELS, map_arrays
from npx.precision import dtype_named
from tests.gpu_check.sizes import Sizes
from train import Adam, load_model
from train.learn.cuda_graphs import GraphedLoss
from train.run.keys import TrainSection
from train.tasks.translation import translate_lines

# Relative error of the full gradient in the 2-norm; float16 and bfloat16: a model without float32 master weights.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 8e-2, "float16": 2e-2, "bfloat16": 8e-2}
SCALE = {"fp16": 256.0}  # loss scale
LOSS_TOLERANCE = {"float32": 0.01, "bf16": 0.05, "fp16": 0.05}  # relative error of the losses in a short training run
DTYPES = ("float32", "bfloat16")  # dtypes of the calls under the sanitizers


def small_model(dtype: Any, sizes: Sizes) -> tuple[Transformer, Any, Any]:
    """Return a Transformer with all kinds of dropout, and source and target ids with padding."""
    config = TransformerConfig(37, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, **sizes.model)
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(3, 37, (sizes.rows, 19)), rng.integers(3, 37, (sizes.rows, 17))
    src[1, 9:], tgt[2, 5:], tgt[:, 0] = 0, 0, 1
    return Transformer(config, seed=1, dtype=dtype_named(dtype)), src, tgt


def step(name: str, device: str, sizes: Sizes) -> tuple[float, np.ndarray, np.ndarray]:
    """Return loss, gradient and updated weights of one step, in a precision or with a model of a 16-bit dtype."""
    npx.use_device(device)
    if name in npx.PRECISIONS:
        precision = npx.use_precision(name)
        model, src, tgt = small_model(precision.weight_dtype, sizes)
        flat = FlatParameters(model, precision.compute_dtype if precision.is_mixed else None)
        assert (flat.low_precision_data is not None) == precision.is_mixed and flat.flatten_grad().dtype == np.float32
    else:
        model, src, tgt = small_model(name, sizes)
        flat = FlatParameters(model)
    scale = SCALE.get(name, 1.0)
    with npx.keyed(3, 4):
        loss = model.loss(npx.asarray(src), npx.asarray(tgt))
    loss.backward(scale)
    gradient = npx.to_host(flat.flatten_grad()).astype("float64") / scale
    if name in npx.PRECISIONS:
        Adam(flat).step(1e-3, 1 / scale)
        if flat.low_precision_data is not None:
            assert np.array_equal(
                npx.to_host(flat.low_precision_data), npx.to_host(flat.data).astype(flat.low_precision_data.dtype)
            ), "rounded copy"
    npx.use_precision("float32")
    return float(npx.to_host(loss.data)), gradient, npx.to_host(flat.data)


def training_step(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Compare gradients with those of the CPU for the same random bits; raise AssertionError beyond the tolerance.

    A second step must give the same bits.
    """
    expected_loss, expected, _ = step("float32", "cpu", sizes)
    for name, tolerance in TOLERANCE.items():
        loss, result, weights = step(name, "cuda", sizes)
        off = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        yield {name: {"off": float(off), "allowed": tolerance}}
        assert off < tolerance, f"{name}: gradient: expected a relative error below {tolerance}; got {off:.2g}"
        assert abs(loss - expected_loss) < tolerance * abs(expected_loss), (
            f"{name}: loss: expected {expected_loss}; got {loss}"
        )
        assert np.isfinite(weights.astype("float64")).all(), f"{name}: expected finite weights"
        repeated = step(name, "cuda", sizes)
        assert repeated[1].tobytes() == result.tobytes(), f"{name}: expected the same bits in a second step"


def training_step_by_graph(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Compare the weights after at most five steps of three shapes with and without CUDA graphs, bit for bit."""
    npx.use_device("cuda")
    for name in sizes.precisions:
        (weights, expected), launched = zip(*(by_graph(name, graphs, sizes) for graphs in (True, False)), strict=True)
        off = np.linalg.norm(weights - expected) / np.linalg.norm(expected)
        yield {name: {"off": float(off), "allowed": 0.0, "graphs": launched[0]}}
        assert launched == (3, 0), f"{name}: expected three graphs; got {launched[0]}"
        assert weights.tobytes() == expected.tobytes(), f"{name}: expected the same bits; relative error {off:.2g}"


def training_step_by_cublaslt(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Run `training_step` with matmuls by cuBLASLt."""
    os.environ["NPX_CUBLASLT"] = "1"
    return training_step(sizes)


def by_graph(name: str, graphs: bool, sizes: Sizes) -> tuple[np.ndarray, int]:
    """Return the weights after at most five steps, with graphs or without, and the number of captured graphs."""
    precision = npx.use_precision(name)
    model, src, tgt = small_model(precision.weight_dtype, sizes)
    flat, scale = FlatParameters(model, precision.compute_dtype if precision.is_mixed else None), SCALE.get(name, 1.0)
    steps = GraphedLoss(model, TrainSection(seed=3), print)
    steps.can_capture, adam = graphs, Adam(flat)
    for step in range(1, min(5, sizes.updates) + 1):
        flat.zero_grad()
        with npx.keyed(3, step):
            for length in (11, 17, 14):  # the second graph needs more memory than the first leaves free
                batch = (np.roll(x, step, axis=0)[:, :length] for x in (src, tgt))
                steps.loss(tuple(batch), 3.0 * tgt.size, scale)
        adam.step(1e-3, 1 / scale)
    npx.use_precision("float32")
    return npx.to_host(flat.data), sum(graph is not None for graph in steps.graphs.values())


def losses(name: str, device: str, updates: int) -> list[float]:
    """Return the losses of a training run on reversed sequences, with dropout."""
    npx.use_device(device)
    precision = npx.use_precision(name)
    model = Transformer(TransformerConfig(24, d_model=32, d_ff=64, n_heads=2, n_layers=1, dropout=0.1), seed=2)
    flat, scale = FlatParameters(model, precision.compute_dtype if precision.is_mixed else None), SCALE.get(name, 1.0)
    adam, rng, result = Adam(flat), np.random.default_rng(5), []
    for update in range(1, updates + 1):
        src = rng.integers(3, 24, (16, 7))
        tgt = np.concatenate([np.ones((16, 1), int), src[:, ::-1], np.full((16, 1), 2)], axis=1)
        flat.zero_grad()
        with npx.keyed(9, update):
            loss = model.loss(src, tgt)
        loss.backward(scale)
        adam.step(3e-3 * min(1, update / 10), 1 / scale)
        result.append(loss.data)
    npx.use_precision("float32")
    return [float(npx.to_host(loss)) for loss in result]


def short_training(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Compare the losses of a short training run with those on the CPU; raise AssertionError beyond the tolerance."""
    expected = losses("float32", "cpu", sizes.updates)
    yield {"cpu": {"first": expected[0], "last": expected[-1]}}
    for name, tolerance in LOSS_TOLERANCE.items():
        actual = losses(name, "cuda", sizes.updates)
        off = float(np.max(np.abs(np.array(actual) / expected - 1)))
        yield {name: {"last": actual[-1], "off": off, "allowed": tolerance}}
        assert off < tolerance, f"{name}: loss: expected a relative error below {tolerance:.0%}; got {off:.2%}"
    assert sizes.updates < 50 or expected[-1] < 0.8 * expected[0], "expected the loss to fall by a fifth"


def a_run(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Train one run without interruption and one that is resumed, compare their weights, and translate."""
    from tests.helpers.trainings import outcome, run, write_pairs

    npx.use_device("cuda")
    half = max(2, sizes.updates // 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pairs(folder, "train", 100, seed=1)
        write_pairs(folder, "valid", 5, seed=2)
        for precision, graphs in (("float32", False), ("bf16", True)):
            options = {"precision": precision, "cuda_graphs": graphs, "validate_score": False, "validate_every": half}
            straight, stopped = folder / f"{precision} straight", folder / f"{precision} stopped"
            summary = run(folder, straight, max_steps=2 * half, **options)
            run(folder, stopped, max_steps=half, **options)
            run(folder, stopped, resume=True, max_steps=2 * half, **options)
            model, tokenizer, _ = load_model(straight)
            best = [hypotheses[0][0] for hypotheses in translate_lines(model, tokenizer, ["one two", "", "nine"])]
            yield {precision: {"last": summary.valid_loss, "translations": best}}
            assert math.isfinite(summary.valid_loss) and len(best) == 3
            assert outcome(straight)[0] == outcome(stopped)[0], (
                f"{precision}: expected the resumed run to have the same weights"
            )


def every_kernel(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Call each CUDA kernel once with each of its cases, for the sanitizers; every array is a separate allocation.

    Results of matmuls are filled with zeros first, because initcheck does not see that cuBLAS writes them.
    """
    import cupy

    from tests.cases.kernels import KERNEL_CASES, edge_calls

    npx.use_device("cuda")
    cupy.cuda.set_allocator(None)  # without a pool, an access past an array is past its allocation
    gemm, calls = blas._gemm, 0

    def filled_gemm(cupy: Any, a: Any, b: Any, out: Any, add: bool, *epilogue: Any) -> None:
        if not add:
            out.fill(0)
        gemm(cupy, a, b, out, add, *epilogue)

    blas._gemm = filled_gemm
    for dtype, name in product(DTYPES, KERNEL_CASES):
        if ("cupy", dtype) not in KERNELS[name].versions and name != "adam":  # a reference, computed by CuPy
            continue
        for call in edge_calls(name, dtype_named(dtype)):
            kernel, arrays = KERNELS[name], (call.inputs, call.options, call.gradient_options)
            args, options, gradient_options = map_arrays(lambda x: npx.asarray(np.copy(npx.to_host(x))), arrays)
            result = kernel(*args, **options)
            if kernel.grad and result[1].values is not None:
                kernel.grad(npx.ones(result[0].shape, result[0].dtype), result[1], **gradient_options)
            calls += 1
    cupy.cuda.runtime.deviceSynchronize()
    yield {"calls": calls}
