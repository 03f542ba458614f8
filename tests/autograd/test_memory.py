"""Memory profiles (autograd/memory.py) agree with tracemalloc."""

import gc
import tracemalloc

import numpy as np
import pytest

import npx
from autograd import MemoryProfiler, observing
from models import FlatParameters, TransformerConfig
from models.architectures.decoder import LanguageModel


def deep(layers=12, **options):
    """Return a language model with this number of layers, and a batch of text."""
    sizes = {"d_model": 32, "d_ff": 128, "n_heads": 4, "vocab_size": 50, "dropout": 0.1} | options
    with npx.keyed(1, 0):
        model = LanguageModel(TransformerConfig(n_layers=layers, architecture="decoder", **sizes))
    return model, np.random.default_rng(0).integers(3, 50, size=(8, 65))


def peak_of(run):
    gc.collect()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_memory_agrees_with_tracemalloc(gradient_checkpointing):
    model, ids = deep(4)
    flat = FlatParameters(model)

    def step(observer):
        flat.zero_grad()
        with npx.keyed(1, 1), observing(observer):
            model.loss(ids).backward()

    step(None)  # creates tables that later steps reuse
    model.enable_gradient_checkpointing(gradient_checkpointing)
    measured = peak_of(lambda: step(None))
    traced = []

    def run_traced():
        traced.append(MemoryProfiler(traced=True))  # while `peak_of` runs tracemalloc
        step(traced[0])

    peak_of(run_traced)
    (memory,) = traced
    untraced = MemoryProfiler()
    step(untraced)
    assert abs(memory.peak.max_live / measured - 1) < 0.1, (memory.peak, measured)
    live = [m.live for m in untraced.samples]
    assert [m.live for m in memory.samples] == live == [m.max_live for m in untraced.samples]
    if gradient_checkpointing:  # little is saved, so the temporary arrays of kernels matter
        return
    # the difference: temporary arrays of recomputed attention
    assert abs(untraced.peak.live / measured - 1) < 0.2, (untraced.peak, measured)
    first, last = memory.samples[0], memory.samples[-1]
    assert first.phase == "forward" and last.phase == "backward" and last.live < 0.1 * memory.peak.live
    layers = memory.by_layer()
    assert {"layers.0.attention", "layers.3.feed_forward_residual.norm"} & layers.keys()
    assert layers["layers.0.attention"] == layers["layers.1.attention"]


def test_traced_memory_needs_tracemalloc():
    with pytest.raises(ValueError, match="MemoryProfiler: expected tracemalloc to be tracing; it is stopped"):
        MemoryProfiler(traced=True)
