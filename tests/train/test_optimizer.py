"""The schedule, Adam and clipping, compared with plain float64 implementations of their formulas; the loss scale."""

import math
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from models import FlatParameters, Transformer, TransformerConfig
from train import Adam, NoamSchedule
from train.learn.optimizer import LossScale, clip_factor, squared_norm, sum_of_squares

SMALL = TransformerConfig(vocab_size=12, d_model=8, d_ff=16, n_heads=2, n_layers=1, dropout=0.0)


def noisy_model(seed: int = 0):
    """Return a small model whose gradients are normal noise."""
    flat = FlatParameters(Transformer(SMALL, seed=seed))
    flat.flatten_grad()[...] = np.random.default_rng(seed).normal(size=flat.flatten_grad().shape)
    return flat


def test_zero_grad_clears_every_gradient():
    adam = Adam(noisy_model())
    adam.zero_grad()
    assert adam.flat.flatten_grad().size and not adam.flat.flatten_grad().any()


@given(
    step=st.integers(1, 10**6), warmup=st.integers(1, 10**5), d_model=st.integers(1, 4096), scale=st.floats(1e-3, 1e3)
)
def test_schedule_is_the_papers_formula(step, warmup, d_model, scale):
    expected = scale / math.sqrt(d_model) * min(1 / math.sqrt(step), step / warmup**1.5)
    assert NoamSchedule(d_model, warmup, scale)(step) == pytest.approx(expected, rel=1e-12)


def test_schedule_peaks_at_warmup_and_starts_at_step_one():
    schedule = NoamSchedule(512, 4000)
    rates = [schedule(step) for step in range(1, 8001)]
    assert int(np.argmax(rates)) + 1 == 4000
    assert rates[0] == pytest.approx(512**-0.5 * 4000**-1.5)
    assert rates[3999] == pytest.approx((512 * 4000) ** -0.5)


@pytest.mark.parametrize("step", [0, -1])
def test_schedule_rejects_a_step_below_one(step):
    with pytest.raises(ValueError, match="step >= 1"):
        NoamSchedule(512)(step)


@pytest.mark.parametrize("changes", [{"warmup_steps": 0}, {"d_model": 0}, {"lr_scale": 0.0}, {"lr_scale": math.nan}])
def test_schedule_rejects_invalid_arguments(changes):
    with pytest.raises(ValueError, match="expected"):
        NoamSchedule(**{"d_model": 512, **changes})


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 99),
    beta1=st.floats(0, 0.99),
    beta2=st.floats(0.5, 0.999),
    decay=st.sampled_from([0.0, 0.1]),
    inside=st.booleans(),
)
def test_adam_follows_its_formula_over_several_steps(seed, beta1, beta2, decay, inside):
    flat = noisy_model(seed)
    eps = 1e-3
    rng = np.random.default_rng(seed)
    adam = Adam(flat, beta1, beta2, eps, decay, inside)
    p = flat.data.astype(np.float64)
    m = v = 0.0
    for step in range(1, 4):
        g = flat.flatten_grad().astype(np.float64)
        adam.step(0.01 * step)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        c1, c2 = 1 - beta1**step, 1 - beta2**step
        root = (np.sqrt(v) + eps) / math.sqrt(c2) if inside else np.sqrt(v / c2) + eps
        p = p - 0.01 * step * (m / c1 / root + decay * p)
        np.testing.assert_allclose(flat.data, p, rtol=1e-4, atol=1e-6)
        flat.flatten_grad()[...] = rng.normal(size=flat.flatten_grad().shape)


def update(adam, gradients):
    """Update the weights once with each of the flat gradients."""
    for g in gradients:
        adam.flat.flatten_grad()[...] = g
        adam.step(1e-2)


def noise(adam, n_updates=3):
    """Return `n_updates` flat gradients of normal noise."""
    return np.random.default_rng(0).normal(size=(n_updates, adam.flat.data.size)).astype(np.float32)


def test_adam_updates_every_parameter_of_the_model():
    model = Transformer(SMALL, seed=3)
    adam = Adam(model)
    before = {name: value.copy() for name, value in model.state_dict().items()}
    update(adam, noise(adam))
    assert all(not np.array_equal(before[name], value) for name, value in model.state_dict().items())


def test_adam_resumes_from_its_state_bit_for_bit():
    uninterrupted, stopped = (Adam(Transformer(SMALL, seed=3)) for _ in range(2))
    gradients = noise(uninterrupted)
    update(uninterrupted, gradients)
    update(stopped, gradients[:1])

    resumed = Adam(Transformer(SMALL, seed=4))  # other weights, which the next lines replace
    resumed.flat.data[...] = stopped.flat.data
    resumed.load_state_dict(stopped.state_dict())
    update(resumed, gradients[1:])
    assert np.array_equal(resumed.flat.data, uninterrupted.flat.data)


def test_later_updates_do_not_change_a_saved_state():
    adam = Adam(Transformer(SMALL, seed=3))
    gradients = noise(adam)
    update(adam, gradients[:1])
    saved = adam.state_dict()
    before = deepcopy(saved)
    update(adam, gradients[1:])
    assert saved.keys() == before.keys()
    assert all(np.array_equal(saved[name], before[name]) for name in saved)


def two_updates(is_flat):
    """Return Adam after two updates with the gradients of two micro-batches each, and the norm of the last gradient.

    If `is_flat`, all gradients are views of one array; otherwise each parameter has an array of its own.
    """
    model = Transformer(SMALL, seed=3)
    adam = Adam(model)
    ids = np.array([[4, 5, 6, 2], [7, 8, 2, 0]])
    if is_flat:
        assert not adam.flat.flatten_grad().any()
    for step in (1, 2):
        adam.flat.zero_grad()
        for micro in (1, 2):
            with npx.keyed(step, micro):
                model.loss(ids, ids).backward()
        norm = math.sqrt(squared_norm(adam.flat))
        adam.step(1e-2)
    return adam, norm


@pytest.fixture(params=[0, 100, 1 << 20], ids=["one_parameter", "some_parameters", "all_parameters"])
def chunk_size(request, monkeypatch):
    """Update separate gradients in chunks of one parameter, of a few small ones, or of all parameters."""
    monkeypatch.setattr("models.parameters.CHUNK_SIZE", request.param)


@pytest.mark.usefixtures("chunk_size")
def test_an_update_does_not_depend_on_the_layout_of_gradients():
    flat, _ = two_updates(is_flat=True)
    separate, _ = two_updates(is_flat=False)
    assert flat.flat.data.tobytes() == separate.flat.data.tobytes()
    assert flat.m.tobytes() == separate.m.tobytes()
    assert flat.v.tobytes() == separate.v.tobytes()


@pytest.mark.usefixtures("chunk_size")
def test_the_gradient_norm_hardly_depends_on_the_layout_of_gradients():
    """The squares are added in another order, so the norms are equal only up to rounding."""
    _, flat_norm = two_updates(is_flat=True)
    _, separate_norm = two_updates(is_flat=False)
    assert flat_norm == pytest.approx(separate_norm, rel=1e-6)


def test_adam_rejects_the_state_of_another_model_and_invalid_arguments():
    state = Adam(Transformer(SMALL)).state_dict()
    adam = Adam(Transformer(TransformerConfig(vocab_size=13, d_model=8, d_ff=16, n_heads=2, n_layers=1)))
    with pytest.raises(ValueError, match="expected"):
        adam.load_state_dict(state)
    for changes in ({"beta1": 1.0}, {"beta2": -0.1}, {"eps": -1e-9}, {"eps": 0.0}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            Adam(Transformer(SMALL), **changes)
    for rate in (-1e-4, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a finite learning rate >= 0"):
            adam.step(rate)
    assert adam.steps == 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), limit=st.floats(1e-3, 1e3))
def test_clipping_scales_the_whole_gradient_to_the_limit(seed, limit):
    flat = noisy_model(seed)
    norm = math.sqrt(squared_norm(flat))
    assert norm == pytest.approx(np.linalg.norm(flat.flatten_grad().astype(np.float64)), rel=1e-5)
    assert clip_factor(norm, limit) * norm == pytest.approx(min(norm, limit), rel=1e-12)


def test_clipping_edge_cases():
    flat = noisy_model()
    assert clip_factor(5.0, 0.0) == 1.0  # 0 disables clipping
    assert clip_factor(0.0, 1.0) == 1.0
    flat.flatten_grad()[3] = np.nan
    assert math.isnan(squared_norm(flat)) and clip_factor(math.nan, 1.0) == 1.0
    flat.flatten_grad()[...] = 1e30  # its square overflows float32
    with np.errstate(over="ignore"):
        assert squared_norm(flat) == math.inf and clip_factor(math.inf, 1.0) == 1.0


@pytest.mark.parametrize("scale", [0.37, 2.0**-16])
def test_adam_scales_the_gradient(scale):
    scaled, other = noisy_model(1), noisy_model(1)
    Adam(scaled).step(0.01, scale)
    other.grad[...] *= np.float32(scale)
    Adam(other).step(0.01)
    assert np.array_equal(scaled.data, other.data) and not np.array_equal(scaled.grad, other.grad)


# Loss scale


def test_the_loss_scale_of_other_precisions_stays_one():
    scale = LossScale()
    for _ in range(LossScale.PATIENCE * 2 + 1):
        scale.record_update()
    assert scale.value == 1 and not scale.reduce_after_overflow() and scale.skipped == 0


def test_the_loss_scale_halves_on_overflow_and_doubles_after_patience():
    scale = LossScale(dynamic=True)
    assert scale.value == 2**16
    assert scale.reduce_after_overflow() and (scale.value, scale.skipped) == (2**15, 1)
    for _ in range(LossScale.PATIENCE - 1):
        scale.record_update()
    assert scale.value == 2**15
    saved = scale.state_dict()
    scale.record_update()
    assert scale.value == 2**16
    restored = LossScale(dynamic=True)
    restored.load_state_dict(saved)
    restored.record_update()
    assert restored.state_dict() == scale.state_dict()
    restored.reduce_after_overflow()
    for _ in range(LossScale.PATIENCE - 1):
        restored.record_update()
    assert restored.value == 2**15, "an overflow starts the count again"


def test_the_loss_scale_is_never_below_one():
    scale = LossScale(dynamic=True)
    assert [scale.reduce_after_overflow() for _ in range(18)] == [True] * 16 + [False] * 2
    assert scale.value == 1


def test_the_norm_of_many_equal_gradients_is_accurate():
    """Summing 19 million squares (an embedding table) in float32 would be 0.7% off."""
    g = np.full(19_000_000, 1e-3, np.float32)
    assert float(sum_of_squares(g)) == pytest.approx(float(g[0]) ** 2 * g.size, rel=1e-4)
    assert float(sum_of_squares(g[:0])) == 0 and float(sum_of_squares(g[:5].astype(float))) == pytest.approx(
        5e-6, rel=1e-6
    )
