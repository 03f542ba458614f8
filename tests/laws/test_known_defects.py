"""Defects of other implementations of the paper. For each, one test checks that our implementation does not have it.

The general laws behind them are tested in the other files.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import npx
from autograd import Tensor, neural, no_grad
from autograd import operations as ops
from models import FlatParameters, Transformer, TransformerConfig
from tests import ROOT
from tests.helpers.losses import label_smoothed_loss
from train.learn.optimizer import Adam, NoamSchedule

PAD, BOS, EOS = 0, 1, 2
CONFIG = TransformerConfig(11, d_model=8, d_ff=12, n_heads=2, n_layers=2, dropout=0.0)
SRC = np.array([[3, 4, 5, EOS], [6, EOS, PAD, PAD]])
TGT = np.array([[BOS, 7, 8, EOS], [BOS, 9, EOS, PAD]])


def model(dtype="float64"):
    return Transformer(CONFIG, seed=1, dtype=dtype)


def gradient(m, src, tgt, **options):
    flat = FlatParameters(m)
    flat.zero_grad()
    m.loss(src, tgt, **options).backward()
    return flat.flatten_grad().copy()


# The engine


BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import npx, autograd, models, models.search, train, train.learn.optimizer
from autograd import Tensor
assert (Tensor([1.0, 2.0]) * 2).numpy().tolist() == [2, 4]
try:
    npx.use_device("cuda")
except RuntimeError as error:
    print(error)
"""


def test_importing_needs_no_gpu_library():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        cwd=ROOT,
        env=os.environ | {"PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "device cuda: expected CuPy and an NVIDIA GPU; got " in done.stdout
    assert 'CuPy is not installed; try pip install "npx-transformer[gpu1' in done.stdout


def test_float64_stays_float64():
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    y = ops.exp(ops.relu((x + 1) * 2 / 3 - x.mean()))[[0, 0, 1]] ** 2
    y.sum().backward()
    assert y.dtype == "float64" and x.grad.dtype == "float64"
    assert gradient(model(), SRC, TGT).dtype == "float64"


def test_a_row_that_is_gathered_twice_gets_both_gradients():
    table = Tensor(np.zeros((3, 2)), requires_grad=True)
    g = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    table[np.array([1, 1, 2])].backward(g)
    assert np.array_equal(table.grad, [[0, 0], [11, 22], [100, 200]])
    table.grad = None
    neural.embedding(table, np.array([1, 1, 2])).backward(g)
    assert np.array_equal(table.grad, [[0, 0], [11, 22], [100, 200]])


def test_a_matrix_times_a_vector_has_a_gradient():
    rng = np.random.default_rng(0)
    for shape in ((4, 3), (2, 4, 3), (5, 2, 4, 3)):
        a = Tensor(rng.normal(size=shape), requires_grad=True)
        b = Tensor(rng.normal(size=3), requires_grad=True)
        y = a @ b
        y.sum().backward()
        assert y.shape == shape[:-1] and np.allclose(a.grad, np.broadcast_to(b.data, shape))
        assert np.allclose(b.grad, a.data.reshape(-1, 3).sum(axis=0))


def test_tied_maxima_share_the_gradient():
    x = Tensor(np.array([[2.0, 2.0, 1.0, 2.0]]), requires_grad=True)
    x.max(axis=1).sum().backward()
    assert np.allclose(x.grad, [[1 / 3, 1 / 3, 0, 1 / 3]])


def test_backward_does_not_recurse_over_long_chains():
    x = Tensor(np.ones(2), requires_grad=True)
    y = x
    for _ in range(3000):
        y = y * 1.0
    y.sum().backward()
    assert np.array_equal(x.grad, [1, 1])


# The loss


def test_cross_entropy_selects_the_target_by_index_not_by_value():
    """With equal logits, only the target's entry has 1 subtracted."""
    for loss in (neural.cross_entropy, neural.composed_cross_entropy):
        logits = Tensor(np.full((1, 4), 0.5), requires_grad=True)
        loss(logits, np.array([2])).backward()
        assert np.allclose(logits.grad, [[0.25, 0.25, -0.75, 0.25]])


def test_padding_does_not_count_in_the_loss():
    """The loss is a mean over tokens, so more padding changes neither the loss nor the gradient."""
    m = model()
    more = np.pad(SRC, ((0, 0), (0, 3))), np.pad(TGT, ((0, 0), (0, 4)))
    assert m.loss(SRC, TGT).item() == pytest.approx(m.loss(*more).item(), rel=1e-12)
    assert np.allclose(gradient(m, SRC, TGT), gradient(m, *more), rtol=0, atol=1e-12)
    real = TGT[:, 1:] != PAD
    with no_grad():
        p = neural.softmax(m(SRC, TGT[:, :-1])).data
    by_hand = -np.log(np.take_along_axis(p, TGT[:, 1:, None], -1)[..., 0])[real].sum() / 5
    assert real.sum() == 5 and m.loss(SRC, TGT, label_smoothing=0.0).item() == pytest.approx(by_hand, rel=1e-12)
    logits = m(SRC, TGT[:, :-1])
    assert label_smoothed_loss(logits, TGT[:, 1:], smoothing=0.0).item() == pytest.approx(by_hand, rel=1e-12)


# Masks


def test_masks_do_not_leak():
    """No value at a padded or later position, however large, influences an output."""
    m = model().eval()
    memory, spec = m.encode(SRC)
    hidden = m.decode(TGT[:, :-1], memory, spec).data
    spoiled = memory.data.copy()
    spoiled[SRC == PAD] = 1e30
    assert np.array_equal(spec.kv_lengths, [4, 2])
    assert np.array_equal(m.decode(TGT[:, :-1], Tensor(spoiled), spec).data, hidden)
    memory.data[1, 0] += 1
    assert not np.allclose(m.decode(TGT[:, :-1], memory, spec).data[1], hidden[1])

    src = np.pad(SRC, ((0, 0), (0, 1)))
    assert np.allclose(m.encode(src)[0].data[:, :4][SRC != PAD], m.encode(SRC)[0].data[SRC != PAD], rtol=0, atol=1e-13)
    changed_target = TGT[:, :-1].copy()
    changed_target[:, 2] = 10
    changed_hidden = m.decode(changed_target, *m.encode(SRC)).data
    assert np.allclose(changed_hidden[:, :2], hidden[:, :2], rtol=0, atol=1e-13) and not np.allclose(
        changed_hidden[:, 2], hidden[:, 2]
    )


def test_a_sentence_of_padding_only_gives_finite_values():
    m = model().eval()
    src = np.array([[3, EOS], [PAD, PAD]])
    logits = m(src, TGT[:, :-1])
    logits.sum().backward()
    assert np.isfinite(logits.data).all() and all(np.isfinite(p.grad).all() for p in m.parameters())


# Updates


def test_the_schedule_advances_once_an_update():
    """The schedule must not advance for each parameter or micro-batch."""
    m = model()
    adam = Adam(m)
    schedule = NoamSchedule(8, warmup_steps=4)
    rates = []
    for _update in range(3):
        adam.flat.zero_grad()
        for row in (slice(0, 1), slice(1, 2)):
            m.loss(SRC[row], TGT[row], loss_normalizer=5).backward()
        rates.append(schedule(adam.steps + 1))
        adam.step(rates[-1])
    assert len(list(m.parameters())) > 30 and adam.steps == 3
    assert np.allclose(rates, [8**-0.5 * step * 4**-1.5 for step in (1, 2, 3)])


def test_accumulation_is_normalized_by_the_tokens_of_the_update():
    """The loss of micro-batches is a sum divided by all five tokens, not a sum or a mean of means."""
    m = model()
    union = gradient(m, SRC, TGT)
    parts = [gradient(m, SRC[i : i + 1], TGT[i : i + 1], loss_normalizer=5) for i in (0, 1)]
    means = [gradient(m, SRC[i : i + 1], TGT[i : i + 1]) for i in (0, 1)]
    assert np.allclose(parts[0] + parts[1], union, rtol=0, atol=1e-13)
    for wrong in (means[0] + means[1], (means[0] + means[1]) / 2):
        assert not np.allclose(wrong, union, rtol=0, atol=1e-6)


# Decoding


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])  # by `decode_step`, by the layers
def test_decoding_uses_a_cache(positions, monkeypatch):
    """Each step computes one position, and the keys and values of the source are computed once."""
    m = Transformer(replace(CONFIG, positions=positions), seed=1, dtype="float64").eval()
    _, state = m.start_decoding(SRC)
    source_keys = [cross.keys for cross in state.source.caches]
    seen = []
    linear = npx.linear
    monkeypatch.setattr(
        npx, "linear", lambda x, *args, **options: (seen.append(x.size), linear(x, *args, **options))[1]
    )
    for token in (BOS, 7, 8):
        m.step(np.array([token, token]), state)
    assert len(seen) >= 3 * 2 * 6 and max(seen) == 2 * CONFIG.d_ff  # two rows in each linear layer
    assert all(cross.keys is keys for cross, keys in zip(state.source.caches, source_keys, strict=True))
