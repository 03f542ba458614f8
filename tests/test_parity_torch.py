"""Parity with PyTorch, where it is installed (`make parity`): same weights, same logits, same gradients, same training.

The other model is made of torch.nn.functional, and takes our parameters by their names: `twin`.
"""

import numpy as np
import pytest

import npx
from models import Transformer, TransformerConfig
from train.learn.optim import Adam, NoamSchedule

torch = pytest.importorskip("torch", reason="torch is not installed: `make parity` installs it and runs this file")
torch.set_num_threads(1)  # of little use to matrices this small, and in each other's way on a busy machine
F = torch.nn.functional

PAD, BOS, EOS, FIRST, V = 0, 1, 2, 3, 23
SIZES = {"vocab_size": V, "d_model": 16, "d_ff": 24, "n_heads": 4, "n_layers": 2, "dropout": 0.0}
OPTIONS = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "biases": {"attention_bias": True, "layer_norm_eps": 1e-5},
    "learned": {"positions": "learned", "max_positions": 40},
    "halves": {"positions": "sinusoidal_halves"},
    "sizes": {"d_k": 3, "d_v": 7, "norm": "pre", "attention_bias": True},
}


def positions(w, side, c, length, dtype):
    """(length, D): learned, or sin and cos of pos / 10000^(2i/D)."""
    if c.positions == "learned":
        return w[f"{side}_positions.weight"][:length]
    rates = torch.pow(10000.0, -torch.arange(0, c.d_model, 2, dtype=torch.float64) / c.d_model)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    waves = [torch.sin(angles), torch.cos(angles)]
    table = torch.cat(waves, dim=1) if c.positions == "sinusoidal_halves" else torch.stack(waves, dim=2).flatten(1)
    return table.to(dtype)


def twin(w, c, src, tgt):
    """Logits (B, T, V) from the parameters `w` (name -> torch tensor) of a Transformer of configuration `c`."""

    def linear(x, name):
        return F.linear(x, w[name + ".weight"].T, w.get(name + ".bias"))

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[name + ".gamma"], w[name + ".beta"], c.layer_norm_eps)

    def attention(x, memory, name, mask):
        keys, values = c.n_heads * c.key_size, c.n_heads * c.value_size
        if memory is None:
            q, k, v = linear(x, name + ".query_key_value").split([keys, keys, values], dim=-1)
        else:
            q, (k, v) = linear(x, name + ".query"), linear(memory, name + ".key_value").split([keys, values], dim=-1)
        q, k, v = (a.unflatten(-1, (c.n_heads, -1)).transpose(1, 2) for a in (q, k, v))  # (B, H, T, d)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return linear(y.transpose(1, 2).flatten(2), name + ".output")

    def feed_forward(x, name):
        return linear(F.relu(linear(x, name + ".inner")), name + ".outer")

    def residual(x, f, name):
        name += "_residual.norm"
        return norm(x + f(x), name) if c.norm == "post" else x + f(norm(x, name))

    def embed(ids, side):
        table = w["embedding.weight"]
        return F.embedding(ids, table) * c.d_model**0.5 + positions(w, side, c, ids.shape[1], table.dtype)

    source_mask = (src != PAD)[:, None, None, :]
    x = embed(src, "source")
    for i in range(c.n_layers):
        e = f"encoder.{i}."
        x = residual(x, lambda y, e=e: attention(y, None, e + "attention", source_mask), e + "attention")
        x = residual(x, lambda y, e=e: feed_forward(y, e + "feed_forward"), e + "feed_forward")
    memory = x if c.norm == "post" else norm(x, "encoder_norm")

    causal = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril()
    x = embed(tgt, "target")
    for i in range(c.n_layers):
        d = f"decoder.{i}."
        x = residual(x, lambda y, d=d: attention(y, None, d + "attention", causal), d + "attention")
        cross = d + "cross_attention"
        x = residual(x, lambda y, n=cross: attention(y, memory, n, source_mask), cross)
        x = residual(x, lambda y, d=d: feed_forward(y, d + "feed_forward"), d + "feed_forward")
    x = x if c.norm == "post" else norm(x, "decoder_norm")
    return F.linear(x, w["embedding.weight"])


def twin_loss(w, c, src, tgt, smoothing=0.1):
    logits = twin(w, c, src, tgt[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, label_smoothing=smoothing)


def both(name, dtype, seed=0):
    """Our model with random parameters, and the same parameters as torch tensors."""
    config = TransformerConfig(**SIZES | OPTIONS[name])
    model, rng = Transformer(config, seed, dtype), np.random.default_rng(seed)
    for p in model.parameters():
        p.data += npx.asarray(rng.normal(size=p.shape).astype(dtype) * 0.1)
    weights = {n: torch.tensor(a, requires_grad=True) for n, a in model.state_dict().items()}
    return model, weights


def random_batch(rng, n, longest=9):
    """Ids (B, S) and (B, T+1) of random lengths, padded at their ends."""
    rows = [[rng.integers(FIRST, V, rng.integers(1, longest)).tolist() for _ in range(n)] for _ in range(2)]
    sides = [[[*row, EOS] for row in rows[0]], [[BOS, *row, EOS] for row in rows[1]]]
    arrays = [np.full((n, max(map(len, side))), PAD) for side in sides]
    for side, array in zip(sides, arrays, strict=True):
        for i, row in enumerate(side):
            array[i, : len(row)] = row
    return arrays


def assert_near(name, ours, theirs, tolerance):
    """Relative to the array's largest magnitude."""
    ours, theirs = npx.to_host(ours), theirs.detach().numpy()
    error = abs(ours - theirs).max() / abs(theirs).max()
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and error <= tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-10)])
@pytest.mark.parametrize("name", OPTIONS)
def test_logits_and_every_gradient(name, dtype, tolerance, seed):
    model, weights = both(name, dtype, seed)
    src, tgt = random_batch(np.random.default_rng(seed), n=1 + 3 * seed)
    theirs = torch.tensor(src), torch.tensor(tgt)
    src, tgt = npx.asarray(src), npx.asarray(tgt)
    ours = model(src, tgt[:, :-1]).data
    assert_near("logits", ours, twin(weights, model.config, theirs[0], theirs[1][:, :-1]), tolerance)
    loss, their_loss = model.loss(src, tgt), twin_loss(weights, model.config, *theirs)
    assert_near("loss", loss.data, their_loss, tolerance)
    loss.backward()
    their_loss.backward()
    for parameter, p in model.named_parameters():
        assert_near(parameter, p.grad, weights[parameter].grad, tolerance)


@pytest.mark.parametrize("name", ["paper", "pre-norm", "biases", "learned"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-9)])
def test_twenty_training_steps(name, dtype, tolerance):
    """Adam, the paper's schedule, smoothing 0.1, dropout off: the losses stay together."""
    model, weights = both(name, dtype)
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
    assert ours[-4:].mean() < ours[:4].mean() - 0.3, "they learned something"
