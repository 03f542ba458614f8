"""Parity with PyTorch, if it is installed (`make parity`): same weights, logits, gradients and training.

The PyTorch model is benchmarks/twin.py, which takes our parameters by name and which the benchmarks time.
"""

import numpy as np
import pytest

import npx
from autograd import Tensor, neural
from models import Transformer, TransformerConfig
from models.layers.alibi import slopes
from models.layers.t5_positions import relative_bucket
from train.learn.optimizer import Adam, NoamSchedule
from train.run.keys import VARIANTS

torch = pytest.importorskip("torch", reason="torch is not installed: `make parity` installs it and runs this file")
torch.set_num_threads(1)  # more threads do not help matrices this small, and slow down a busy machine
F = torch.nn.functional
from benchmarks import twin  # noqa: E402
from benchmarks.torch_engine import Functions  # noqa: E402  imports torch

PAD, BOS, EOS, FIRST, V = 0, 1, 2, 3, 23
SIZES = {"vocab_size": V, "d_model": 16, "d_ff": 24, "n_heads": 4, "n_layers": 2, "dropout": 0.0}
OPTIONS = {
    "paper": {},
    "pre-norm": {"norm_placement": "pre"},
    "biases": {"attention_bias": True, "norm_eps": 1e-5},
    "learned": {"positions": "learned", "max_positions": 40},
    "halves": {"positions": "sinusoidal_halves"},
    "tensor2tensor-v1": VARIANTS["tensor2tensor-v1"]["model"],
    "tensor2tensor-v2": VARIANTS["tensor2tensor-v2"]["model"] | {"attention_dropout": 0.0, "activation_dropout": 0.0},
    "sizes": {"d_k": 3, "d_v": 7, "norm_placement": "pre", "attention_bias": True},
}


def twin_loss(w, c, src, tgt, label_smoothing=0.1):
    logits = twin.encoder_decoder(Functions(), w, c, src, tgt[:, :-1])
    return F.cross_entropy(
        logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


def model_and_weights(name, dtype, seed=0):
    """Return our model with random parameters, and the same parameters as torch tensors."""
    config = TransformerConfig(**SIZES | OPTIONS[name])
    model, rng = Transformer(config, seed, dtype), np.random.default_rng(seed)
    for p in model.parameters():
        p.data += npx.asarray(rng.normal(size=p.shape).astype(dtype) * 0.1)
    weights = {n: torch.tensor(a, requires_grad=True) for n, a in model.state_dict().items()}
    return model, weights


def random_batch(rng, n, longest=9):
    """Return ids (B, S) and (B, T+1) of random lengths, padded at the end."""
    rows = [[rng.integers(FIRST, V, rng.integers(1, longest)).tolist() for _ in range(n)] for _ in range(2)]
    sides = [[[*row, EOS] for row in rows[0]], [[BOS, *row, EOS] for row in rows[1]]]
    arrays = [np.full((n, max(map(len, side))), PAD) for side in sides]
    for side, array in zip(sides, arrays, strict=True):
        for i, row in enumerate(side):
            array[i, : len(row)] = row
    return arrays


def assert_near(name, ours, theirs, tolerance):
    """Compare relative to the largest magnitude of the array."""
    ours, theirs = npx.to_host(ours), theirs.detach().numpy()
    error = abs(ours - theirs).max() / abs(theirs).max()
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and error <= tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-10)])
@pytest.mark.parametrize("name", OPTIONS)
def test_logits_and_all_gradients_equal_pytorch(name, dtype, tolerance, seed):
    model, weights = model_and_weights(name, dtype, seed)
    src, tgt = random_batch(np.random.default_rng(seed), n=1 + 3 * seed)
    theirs = torch.tensor(src), torch.tensor(tgt)
    src, tgt = npx.asarray(src), npx.asarray(tgt)
    ours = model(src, tgt[:, :-1]).data
    assert_near(
        "logits",
        ours,
        twin.encoder_decoder(Functions(), weights, model.config, theirs[0], theirs[1][:, :-1]),
        tolerance,
    )
    loss, their_loss = model.loss(src, tgt), twin_loss(weights, model.config, *theirs)
    assert_near("loss", loss.data, their_loss, tolerance)
    loss.backward()
    their_loss.backward()
    for parameter, p in model.named_parameters():
        assert_near(parameter, p.grad, weights[parameter].grad, tolerance)


@pytest.mark.parametrize("name", ["paper", "pre-norm", "biases", "learned"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-9)])
def test_twenty_training_steps_equal_pytorch(name, dtype, tolerance):
    """Train with Adam, the paper's schedule and label smoothing 0.1, without dropout."""
    model, weights = model_and_weights(name, dtype)
    schedule = NoamSchedule(SIZES["d_model"], warmup_steps=50)
    adam = Adam(model, beta1=0.9, beta2=0.98, eps=1e-9)
    theirs = torch.optim.Adam(weights.values(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    rng, losses = np.random.default_rng(1), []
    data = [random_batch(rng, 8) for _ in range(4)]
    for step in range(1, 21):
        src, tgt = data[step % 4]
        adam.flat.zero_grad()
        loss = model.loss(npx.asarray(src), npx.asarray(tgt))
        loss.backward()
        adam.step(schedule(step))

        theirs.zero_grad()
        their_loss = twin_loss(weights, model.config, torch.tensor(src), torch.tensor(tgt))
        their_loss.backward()
        for group in theirs.param_groups:
            group["lr"] = 16**-0.5 * min(step**-0.5, step * 50**-1.5)
        theirs.step()
        losses.append((loss.item(), their_loss.item()))
    ours, others = np.array(losses).T
    assert np.allclose(ours, others, rtol=tolerance, atol=0), abs(ours - others).max()
    assert ours[-4:].mean() < ours[:4].mean() - 0.3, "the loss must fall"


def language_model():
    """Return a language model like that of benchmarks/language_step.py with random parameters, and ids (3, 9)."""
    parts = {"architecture": "decoder", "norm_placement": "pre", "activation": "gelu", "positions": "rotary"}
    model, rng = TransformerConfig(**SIZES, **parts).build(dtype="float64"), np.random.default_rng(0)
    for p in model.parameters():
        p.data += npx.asarray(rng.normal(size=p.shape) * 0.1)
    return model, rng.integers(FIRST, V, (3, 9))


def test_logits_of_a_language_model_equal_pytorch():
    model, ids = language_model()
    weights = {n: torch.tensor(a) for n, a in model.state_dict().items()}
    theirs = twin.decoder(Functions(), weights, model.config, torch.tensor(ids))
    assert_near("logits", model(npx.asarray(ids)).data, theirs, 1e-9)


def test_functions_of_jax_equal_pytorchs():
    """The benchmarks compare with JAX too: benchmarks/jax_engine.py. Its attention computes softmax in float32."""
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install jax")
    from benchmarks import jax_engine

    with jax.enable_x64(True):
        model, ids = language_model()
        arrays = model.state_dict()
        weights = {n: jax.numpy.asarray(a) for n, a in arrays.items()}
        theirs = np.asarray(twin.decoder(jax_engine.Functions(), weights, model.config, ids))
        assert np.allclose(npx.to_host(model(npx.asarray(ids)).data), theirs, rtol=0, atol=1e-6)

        model, _ = model_and_weights("biases", "float64")
        src, tgt = random_batch(np.random.default_rng(0), n=2)
        weights = {n: jax.numpy.asarray(a) for n, a in model.state_dict().items()}
        logits = twin.encoder_decoder(jax_engine.Functions(), weights, model.config, src, tgt[:, :-1])
        ours, torch_targets = model(npx.asarray(src), npx.asarray(tgt[:, :-1])).data, torch.tensor(tgt[:, 1:]).flatten()
        assert np.allclose(npx.to_host(ours), np.asarray(logits), rtol=0, atol=1e-6)
        loss = jax_engine.cross_entropy(logits.reshape(-1, V), tgt[:, 1:].reshape(-1), 0.1)
        torch_loss = F.cross_entropy(torch.tensor(np.asarray(logits)).flatten(0, 1), torch_targets, label_smoothing=0.1)
        assert abs(float(loss) - torch_loss.item()) < 1e-9


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_grouped_query_attention_equals_pytorch(n_kv_heads):
    """Compare values and gradients, including the gradient of a bias."""
    rng = np.random.default_rng(0)
    shapes = (2, 5, 4, 8), (2, 5, n_kv_heads, 8), (2, 5, n_kv_heads, 6), (4, 5, 5)
    arrays = [rng.normal(size=shape) for shape in shapes]
    ours = [Tensor(npx.asarray(x), requires_grad=True) for x in arrays]
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    y = neural.attention(*ours[:3], npx.AttentionSpec(), None, ours[3])
    q, k, v = (x.transpose(1, 2) for x in theirs[:3])
    their_y = F.scaled_dot_product_attention(q, k, v, theirs[3], enable_gqa=True).transpose(1, 2)
    assert_near("output", y.data, their_y, 1e-12)
    g = rng.normal(size=y.shape)
    y.backward(npx.asarray(g))
    their_y.backward(torch.tensor(g))
    for name, a, b in zip(("q", "k", "v", "bias"), ours, theirs, strict=True):
        assert_near(name, a.grad, b.grad, 1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("relative_buckets, max_relative_distance", [(32, 128), (16, 64), (6, 9)])
def test_buckets_of_relative_positions_equal_those_of_transformers(relative_buckets, max_relative_distance, causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")
    offsets = np.arange(-1000, 1001)
    options = {"bidirectional": not causal, "num_buckets": relative_buckets, "max_distance": max_relative_distance}
    theirs = t5.T5Attention._relative_position_bucket(torch.tensor(offsets), **options).numpy()
    assert np.array_equal(
        npx.to_host(relative_bucket(npx.asarray(offsets), relative_buckets, max_relative_distance, causal)), theirs
    )


def test_slopes_of_alibi_equal_those_of_transformers():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="transformers is not installed")
    for heads in range(1, 33):
        theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32).reshape(heads, 2)[:, 1].numpy()
        assert np.allclose(slopes(heads), theirs, rtol=1e-6)
