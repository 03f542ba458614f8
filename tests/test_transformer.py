"""The Transformer (models/transformer.py, config.py): the laws of a translation model, whatever its options.

Float64 throughout, so that a law can be held to rounding. Every parameter is moved by noise, so that no zero or one of
the initial values hides a mistake.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import Tensor, gradcheck, neural, no_grad
from models import PRESETS, Parameter, Transformer, TransformerConfig, flatten, sinusoids
from models.search import greedy_search
from npx.kernels.cross_entropy import SMOOTHING_OVER
from npx.registry import compare
from train.loss import label_smoothed_loss
from train.optim import Adam

PAD, BOS, EOS, FIRST, V = 0, 1, 2, 3, 11
SMALL = {"vocab_size": V, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
OPTIONS = {
    "norm": ["post", "pre"],
    "positions": ["sinusoidal", "sinusoidal_halves", "learned"],
    "attention_bias": [False, True],
    "d_k": [None, 3],
    "d_v": [None, 5],
    "embedding_init": ["normal", "xavier"],
    "layer_norm_eps": [1e-6, 1e-2],
}
SEEDS = st.integers(0, 10**6)


@st.composite
def configs(draw, **fixed):
    chosen = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    return TransformerConfig(**(SMALL | chosen | fixed))


def build(config, seed=0, dtype="float64"):
    model, rng = Transformer(config, seed, dtype), np.random.default_rng(seed)
    for p in model.parameters():
        p.data += rng.normal(size=p.shape).astype(dtype) * 0.2
    return model


def sentences(rng, n, longest=6):
    """Token lists of different lengths, as they come from a tokenizer."""
    return [rng.integers(FIRST, V, rng.integers(1, longest + 1)).tolist() for _ in range(n)]


def padded(rows, extra=0):
    out = np.full((len(rows), max(map(len, rows)) + extra), PAD)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def batch(sources, targets, extra=0):
    """Ids (B, S) ending in EOS and (B, T+1) from BOS to EOS."""
    return padded([s + [EOS] for s in sources], extra), padded([[BOS, *t, EOS] for t in targets], extra)


def gradient(model, *parts, **how):
    """The gradient by all parameters, in one array, of the losses of `parts` added up."""
    flat = flatten(model)
    flat.zero_grad()
    for src, tgt in parts:
        model.loss(src, tgt, **how).backward()
    return flat.grad.copy()


# Laws


@given(config=configs(), seed=SEEDS, position=st.integers(0, 5))
def test_a_later_target_token_never_changes_an_earlier_output(config, seed, position):
    model, rng = build(config, seed).eval(), np.random.default_rng(seed)
    src, tgt = rng.integers(FIRST, V, (2, 4)), rng.integers(FIRST, V, (2, 6))
    changed = tgt.copy()
    changed[0, position] = (tgt[0, position] - FIRST + 1) % (V - FIRST) + FIRST
    before, after = model(src, tgt).data, model(src, changed).data
    assert np.allclose(after[0, :position], before[0, :position], rtol=0, atol=1e-12)
    assert np.allclose(after[1], before[1], rtol=0, atol=1e-12)
    assert not np.allclose(after[0, position], before[0, position], rtol=0, atol=1e-9)


@given(config=configs(), seed=SEEDS, n=st.integers(1, 4), extra=st.integers(0, 3))
def test_padding_and_company_change_nothing(config, seed, n, extra):
    model, rng = build(config, seed).eval(), np.random.default_rng(seed)
    sources, targets = sentences(rng, n), sentences(rng, n)
    src, tgt = batch(sources, targets, extra)
    logits = model(src, tgt).data
    loss, total = model.loss(src, tgt, normalizer=1).item(), 0.0
    whole = gradient(model, (src, tgt), normalizer=1)
    alone = np.zeros_like(whole)
    for i in range(n):
        one = batch([sources[i]], [targets[i]])
        assert np.allclose(logits[i, : one[1].shape[1]], model(*one).data[0], rtol=0, atol=1e-11)
        total += model.loss(*one, normalizer=1).item()
        alone += gradient(model, one, normalizer=1)
    assert loss == pytest.approx(total, rel=1e-12)
    assert np.allclose(whole, alone, rtol=0, atol=1e-11 * abs(whole).max())


@given(config=configs(), seed=SEEDS, data=st.data())
def test_cached_decoding_equals_full_decoding(config, seed, data):
    """With rows repeated, reordered and dropped on the way, neighbours of one source in equal numbers or not."""
    model, rng = build(config, seed).eval(), np.random.default_rng(seed)
    src = padded([s + [EOS] for s in sentences(rng, 3)])
    cache = model.start_cache(*model.encode(src))
    origin, prefix = np.arange(3), np.empty((3, 0), int)
    for _ in range(data.draw(st.integers(1, 5))):
        tokens = rng.integers(FIRST, V, len(origin))
        prefix = np.concatenate([prefix, tokens[:, None]], axis=1)
        step = model.decode_step(tokens, cache)
        with no_grad():
            full = model(src[origin], prefix).data[:, -1]
        assert type(step) is np.ndarray and step.shape == (len(origin), V) and cache.length == prefix.shape[1]
        assert np.allclose(step, full, rtol=0, atol=1e-11)
        kind = data.draw(st.sampled_from(["stay", "beam", "drop", "any"]))
        rows = np.arange(len(origin))
        if kind == "beam":  # every source equally many rows, side by side
            rows = np.repeat(np.unique(origin, return_index=True)[1], 2)
        elif kind == "drop":  # sentences that are done
            rows = rows[np.isin(origin, origin[: data.draw(st.integers(0, len(origin)))])]
        elif kind == "any":
            rows = np.array(
                data.draw(st.lists(st.sampled_from(rows.tolist()), max_size=6) if len(rows) else st.just([])), int
            )
        cache.select(rows)
        origin, prefix = origin[rows], prefix[rows]


def test_the_cache_shares_a_source_among_its_hypotheses():
    """A beam of four must not hold the source's keys and values four times."""
    model = build(TransformerConfig(**SMALL)).eval()
    cache = model.start_cache(*model.encode(np.array([[3, 4, EOS], [5, EOS, PAD]])))
    cache.select(np.repeat([0, 1], 4))
    model.decode_step(np.full(8, 3), cache)
    assert all(len(own.keys) == 8 and len(cross.keys) == 2 for own, cross in cache.layers)
    cache.select(np.array([5, 4, 7, 7]))
    assert all(len(own.keys) == 4 and len(cross.keys) == 1 for own, cross in cache.layers)
    assert len(cache.source_mask) == 1


@given(config=configs(), seed=SEEDS, n=st.integers(1, 6), k=st.integers(1, 4))
def test_micro_batches_equal_the_batch_of_their_union(config, seed, n, k):
    model, rng = build(config, seed), np.random.default_rng(seed)
    sources, targets = sentences(rng, n), sentences(rng, n)
    group = rng.integers(0, k, n)
    members = [[i for i in range(n) if group[i] == g] for g in set(group.tolist())]
    parts = [batch([sources[i] for i in m], [targets[i] for i in m]) for m in members]
    tokens = sum(len(t) + 1 for t in targets)
    union = gradient(model, batch(sources, targets))
    micro = gradient(model, *parts, normalizer=tokens)
    assert np.allclose(micro, union, rtol=0, atol=1e-12 * abs(union).max())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@given(config=configs(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3), seed=SEEDS)
def test_fused_equals_composed_for_the_whole_model(config, dtype, seed):
    model, rng = build(config, seed, dtype), np.random.default_rng(seed)
    src, tgt = batch(sentences(rng, 3), sentences(rng, 3))

    def everything():
        with npx.keyed(seed, 1):
            logits = model(src, tgt).data
        with npx.keyed(seed, 1):
            loss = model.loss(src, tgt).data
        with npx.keyed(seed, 1):
            return logits, loss, gradient(model, (src, tgt))

    fused = everything()
    used = set()
    with pytest.MonkeyPatch.context() as patch:
        for name, composition in neural.COMPOSITIONS.items():
            patch.setattr(neural, name, lambda *a, c=composition, n=name, **k: (used.add(n), c(*a, **k))[1])
        composed = everything()
    compare("model", composed, fused)
    assert used >= {"linear", "embedding", "self_attention", "cross_attention", "linear_cross_entropy"}


@settings(max_examples=8)
@given(config=configs(n_layers=1, layer_norm_eps=1e-2), seed=SEEDS, over=st.sampled_from(SMOOTHING_OVER))
def test_gradient_of_the_whole_model(config, seed, over):
    """In random directions through all parameters at once."""
    model, rng = build(config, seed), np.random.default_rng(seed)
    src, tgt = batch(sentences(rng, 3), sentences(rng, 3))
    names = [name for name, _ in model.named_parameters()]

    def loss(*tensors):
        values = dict(zip(names, tensors, strict=True))
        for module, attribute, name in places:
            setattr(module, attribute, values[name])
        return model.loss(src, tgt, smoothing_over=over)

    places = []
    for name in names:
        *path, attribute = name.split(".")
        module = model
        for step in path:
            module = module[int(step)] if step.isdigit() else getattr(module, step)
        assert isinstance(getattr(module, attribute), Parameter)
        places.append((module, attribute, name))
    arrays = list(model.state_dict().values())
    gradcheck(loss, *arrays, directions=3, step=1e-6, rtol=1e-5)


# The loss


TABLE = {  # of 5 classes, 0 being padding, for the target 2 and a smoothing of 0.1
    "all": [0.02, 0.02, 0.92, 0.02, 0.02],
    "others": [0.025, 0.025, 0.9, 0.025, 0.025],
    "others_without_pad": [0.0, 0.1 / 3, 0.9, 0.1 / 3, 0.1 / 3],
}
LOSSES = {
    "cross_entropy": neural.cross_entropy,
    "composed_cross_entropy": neural.composed_cross_entropy,
    "linear_cross_entropy": lambda z, *a: neural.linear_cross_entropy(z, Tensor(np.eye(z.shape[-1])), *a),
    "label_smoothed_loss": lambda z, t, s, over: label_smoothed_loss(z.reshape(1, *z.shape), t[None], s, over, 0, 1),
}


@pytest.mark.parametrize("over", TABLE)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_smoothed_targets_by_hand(loss, over):
    z = np.random.default_rng(0).normal(size=(3, 5))
    logits = Tensor(z, requires_grad=True)
    value = loss(logits, np.array([2, 0, 2]), 0.1, over)
    value.backward()
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    q = np.array([TABLE[over], [0] * 5, TABLE[over]])
    assert value.item() == pytest.approx(-(q * np.log(p)).sum(), rel=1e-12)
    assert np.allclose(p[[0, 2]] - logits.grad[[0, 2]], q[[0, 2]], rtol=0, atol=1e-12) and not logits.grad[1].any()


@pytest.mark.parametrize("over", SMOOTHING_OVER)
@given(config=configs(n_layers=1), seed=SEEDS)
def test_smoothing_zero_is_plain_cross_entropy_per_real_token(config, over, seed):
    model, rng = build(config, seed).eval(), np.random.default_rng(seed)
    sources, targets = sentences(rng, 3), sentences(rng, 3)
    src, tgt = batch(sources, targets)
    logits = model(src, tgt[:, :-1])
    log_p = np.log(neural.softmax(logits).data)
    picked = [log_p[b, t, token] for b, row in enumerate(targets) for t, token in enumerate([*row, EOS])]
    assert model.loss(src, tgt, 0.0, over).item() == pytest.approx(-np.mean(picked), rel=1e-10)
    assert label_smoothed_loss(logits, tgt[:, 1:], 0.0, over).item() == pytest.approx(-np.mean(picked), rel=1e-10)
    for smoothing in (0.1, 0.5):
        expected = label_smoothed_loss(logits, tgt[:, 1:], smoothing, over).item()
        assert model.loss(src, tgt, smoothing, over).item() == pytest.approx(expected, rel=1e-12)


def test_loss_normalizer_and_batches_without_tokens():
    model = build(TransformerConfig(**SMALL)).eval()
    src, tgt = batch([[3, 4], [5]], [[6], [7, 8, 9]])
    assert model.loss(src, tgt).item() == pytest.approx(model.loss(src, tgt, normalizer=3).item() * 3 / 6)
    assert model.loss(src, tgt, normalizer=np.int64(6)).dtype == "float64"
    assert Transformer(TransformerConfig(**SMALL)).eval().loss(src, tgt, normalizer=np.int64(6)).dtype == "float32"
    for empty in (tgt[:, :1], np.full((2, 3), PAD), tgt[:0]):
        loss = model.loss(src[: len(empty)], empty)
        loss.backward()
        assert loss.item() == 0
    assert all(np.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", OPTIONS["positions"])
def test_what_enters_the_layers_is_the_scaled_embedding_and_the_position(kind):
    """table[id] * sqrt(D) + P[pos], pos from 0, on both sides with the same table."""
    model = build(TransformerConfig(**SMALL | {"positions": kind})).eval()
    src, tgt = batch([[3, 4, 5]], [[6, 7]])
    entered = []
    for layer in (model.encoder[0], model.decoder[0]):
        layer.forward = lambda x, *rest, f=layer.forward: (entered.append(x.data), f(x, *rest))[1]
    model(src, tgt)
    for x, ids, positions in zip(entered, (src, tgt), (model.source_positions, model.target_positions), strict=True):
        learned = kind == "learned"
        rows = positions.weight.data if learned else sinusoids(9, 8, kind == "sinusoidal_halves", "float64")
        expected = model.embedding.weight.data[ids] * 8**0.5 + rows[: ids.shape[1]]
        assert np.allclose(x, expected, rtol=0, atol=1e-14)


# Training and evaluation


def test_the_seed_decides_the_weights():
    a, b, c = (Transformer(TransformerConfig(**SMALL), seed).state_dict() for seed in (1, 1, 2))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not any(np.array_equal(a[name], c[name]) for name in a if name.endswith("weight"))


@pytest.mark.parametrize("where", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_follows_the_key_and_is_off_in_evaluation(where, norm):
    model = build(TransformerConfig(**SMALL | {where: 0.3, "norm": norm}))
    src, tgt = batch([[3, 4, 5]], [[6, 7]])

    def loss(seed, step):
        with npx.keyed(seed, step):
            return model.loss(src, tgt).item()

    assert loss(1, 1) == loss(1, 1) and len({loss(1, 1), loss(1, 2), loss(2, 1)}) == 3
    with pytest.raises(RuntimeError, match="with npx.keyed"):
        model.loss(src, tgt)
    model.eval()
    assert model.loss(src, tgt).item() == loss(1, 1) == loss(2, 2)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_where_the_paper_has_it(norm, monkeypatch):
    """On the embeddings of both sides and on each sub-layer's output: 2 + 2 N + 3 N draws, and no other."""
    model = Transformer(TransformerConfig(**SMALL | {"dropout": 0.1, "norm": norm}))
    shapes = []
    keep_mask = npx.kernels.dropout.keep_mask
    for module in (npx.kernels.dropout, npx.kernels.dropout_residual_norm, npx.kernels.attention):
        monkeypatch.setattr(
            module, "keep_mask", lambda key, shape, rate: shapes.append(shape) or keep_mask(key, shape, rate)
        )
    with npx.keyed(1, 1):
        model.loss(*batch([[3, 4, 5]], [[6, 7]]))
    assert shapes == [(1, 4, 8)] * 5 + [(1, 3, 8)] * 7
    shapes.clear()
    model = Transformer(TransformerConfig(**SMALL | {"attention_dropout": 0.1, "activation_dropout": 0.1}))
    with npx.keyed(1, 1):
        model.loss(*batch([[3, 4, 5]], [[6, 7]]))
    encoder, decoder = [(1, 2, 4, 4), (1, 4, 12)], [(1, 2, 3, 3), (1, 2, 3, 4), (1, 3, 12)]
    assert shapes == encoder * 2 + decoder * 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dtype_is_kept_from_the_weights_to_the_gradients(dtype, norm):
    config = TransformerConfig(**SMALL | {"dropout": 0.1, "norm": norm, "attention_bias": True, "positions": "learned"})
    model = Transformer(config, dtype=dtype)
    src, tgt = batch([[3, 4, 5]], [[6, 7]])
    with npx.keyed(1, 1):
        loss = model.loss(src, tgt)
    loss.backward()
    assert loss.dtype == dtype and {p.grad.dtype.name for p in model.parameters()} == {dtype}
    model.eval()
    assert model(src, tgt).dtype == dtype
    assert model.decode_step(tgt[:, 0], model.start_cache(*model.encode(src))).dtype == dtype


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_ten_sentences_are_learned_by_heart(norm):
    rng = np.random.default_rng(1)
    sources, targets = sentences(rng, 10), sentences(rng, 10)
    sources = [[FIRST + i % 8, FIRST + i // 8, *s] for i, s in enumerate(sources)]  # no two alike
    src, tgt = batch(sources, targets)
    config = TransformerConfig(V, d_model=32, d_ff=64, n_heads=4, n_layers=1, dropout=0.0, norm=norm)
    model = Transformer(config, seed=1)
    adam, flat = Adam(model), flatten(model)
    for step in range(1, 151):
        flat.zero_grad()
        loss = model.loss(src, tgt, smoothing=0.0)
        loss.backward()
        adam.step(0.01 * min(1, step / 20))
    assert loss.item() < 0.05
    model.eval()
    assert [h.tokens for h in greedy_search(model, src)] == targets


@given(config=configs(dropout=0.2), seed=SEEDS)
def test_attention_maps_are_distributions_over_the_source(config, seed):
    model, rng = build(config, seed).eval(), np.random.default_rng(seed)
    sources = sentences(rng, 3)
    src, tgt = batch(sources, sentences(rng, 3))
    maps = model.attention_maps(src, tgt[:, :-1])
    assert len(maps) == config.n_layers
    for weights in maps:
        assert weights.shape == (3, config.n_heads, tgt.shape[1] - 1, src.shape[1])
        assert np.allclose(weights.sum(axis=-1), 1) and (weights >= 0).all()
        for i, source in enumerate(sources):
            assert (weights[i, ..., : len(source) + 1] > 0).all() and not weights[i, ..., len(source) + 1 :].any()
    assert all(layer.cross_attention.weights is None for layer in model.decoder)


# Sizes


AT_37000 = {  # V = 37,000; biases in the feed-forward networks only
    "base": 63_045_632,
    "big": 214_171_648,
    "big-enfr": 214_171_648,
    "A-h1": 63_045_632,
    "A-h4": 63_045_632,
    "A-h16": 63_045_632,
    "A-h32": 63_045_632,
    "B-dk16": 55_967_744,
    "B-dk32": 58_327_040,
    "C-N2": 33_644_544,
    "C-N4": 48_345_088,
    "C-N8": 77_746_176,
    "C-d256": 26_816_512,
    "C-d1024": 163_815_424,
    "C-ff1024": 50_450_432,
    "C-ff4096": 88_236_032,
    "D-drop0.0": 63_045_632,
    "D-drop0.2": 63_045_632,
    "D-ls0.0": 63_045_632,
    "D-ls0.2": 63_045_632,
    "E-learned": 64_094_208,
    "tiny": 6_054_912,
}


@pytest.mark.parametrize("name", [*PRESETS, *AT_37000.keys() - PRESETS.keys()])
def test_parameters_of_every_preset(name):
    assert TransformerConfig.preset(name, 37_000).n_parameters() == AT_37000[name]


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_every_preset_as_built(name, monkeypatch):
    """Built with arrays that take no memory, so that even the big model is quick."""
    blank = np.broadcast_to(np.float32(0), (1,))
    monkeypatch.setattr("models.layers.xavier_uniform", lambda i, *o: np.broadcast_to(blank, (i, sum(o))))
    config = TransformerConfig.preset(name, 17)
    assert (
        Transformer(config).n_parameters() == config.n_parameters() == AT_37000[name] - (37_000 - 17) * config.d_model
    )


@given(config=configs())
def test_parameters_as_built(config):
    model = Transformer(config)
    assert model.n_parameters() == config.n_parameters() == flatten(model).data.size
    assert model.embedding.weight is next(model.parameters()) and model.embedding.weight.shape == (V, 8)


def test_base_is_the_papers_44_million_and_512_for_each_word():
    for vocab in (1000, 37_000):
        assert TransformerConfig.base(vocab).n_parameters() == 44_101_632 + 512 * vocab


def test_configurations_go_round_and_presets_take_changes():
    for name in PRESETS:
        config = TransformerConfig.preset(name, 100)
        assert TransformerConfig.from_dict(config.to_dict()) == config
    assert TransformerConfig.base(100) == TransformerConfig(100)
    assert TransformerConfig.big(100, dropout=0.1) == TransformerConfig.preset("big-enfr", 100)
    assert TransformerConfig.base(100, n_layers=2) == TransformerConfig.preset("C-N2", 100)


# What is refused, each in one line


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"d_model": 10, "n_heads": 4},
            "d_model: expected a multiple of n_heads = 4; got 10; try 8, or set d_k and d_v",
        ),
        *(
            ({name: 0}, f"{name}: expected a positive whole number; got 0")
            for name in ("vocab_size", "d_model", "n_layers")
        ),
        *(
            ({name: -1}, f"{name}: expected a positive whole number; got -1")
            for name in ("d_ff", "n_heads", "d_k", "d_v")
        ),
        *(({name: 2.0}, f"{name}: expected a positive whole number; got 2.0") for name in ("d_ff", "n_layers", "d_k")),
        ({"vocab_size": "many"}, "vocab_size: expected a positive whole number; got 'many'"),
        ({"n_heads": True}, "n_heads: expected a positive whole number; got True"),
        ({"dropout": 1.0}, "dropout: expected a share from 0 to below 1; got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout: expected a share"),
        ({"activation_dropout": "0.1"}, "activation_dropout: expected a share"),
        ({"dropout": float("nan")}, "dropout: expected a share"),
        ({"norm": "layer"}, "norm: expected one of post, pre; got 'layer'"),
        ({"positions": None}, "positions: expected one of sinusoidal, sinusoidal_halves, learned; got None"),
        ({"embedding_init": "zeros"}, "embedding_init: expected one of normal, xavier; got 'zeros'"),
        ({"layer_norm_eps": 0}, "layer_norm_eps: expected a positive number; got 0"),
        ({"pad_id": V}, f"pad_id: expected a whole number below vocab_size = {V}; got {V}"),
        ({"eos_id": -1}, "eos_id: expected a whole number"),
    ],
)
def test_impossible_configurations(change, message):
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**(SMALL | change))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_unknown_names():
    with pytest.raises(ValueError, match="preset: expected one of base, big.*; got 'huge'"):
        TransformerConfig.preset("huge", 10)
    with pytest.raises(ValueError, match="expected its field names; got heads"):
        TransformerConfig.from_dict(SMALL | {"heads": 2})


GOOD = np.array([[3, 4, EOS]])


@pytest.mark.parametrize(
    "src, tgt, message",
    [
        (np.array([[3, V]]), GOOD, f"source ids: expected numbers from 0 to {V - 1}; got 3 to {V}; try the tokenizer"),
        (GOOD, np.array([[-1, 3]]), f"target ids: expected numbers from 0 to {V - 1}; got -1 to 3"),
        (GOOD[0], GOOD, "source ids: expected a 2-D integer array; got 1-D int64"),
        (GOOD, GOOD.astype(float), "target ids: expected a 2-D integer array; got 2-D float64"),
        (GOOD, np.repeat(GOOD, 2, axis=0), "target ids: expected 1 rows, one for each source; got 2"),
        (np.repeat(GOOD, 3, axis=0), GOOD, "target ids: expected 3 rows, one for each source; got 1"),
    ],
)
def test_impossible_ids(src, tgt, message):
    model = Transformer(TransformerConfig(**SMALL))
    for call in (model, model.loss, model.attention_maps):
        with pytest.raises(ValueError) as caught:
            call(src, tgt)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert all(layer.cross_attention.weights is None for layer in model.decoder)


def test_more_tokens_than_learned_positions():
    model = Transformer(TransformerConfig(**SMALL | {"positions": "learned", "max_positions": 3})).eval()
    assert model(GOOD, GOOD).shape == (1, 3, V)
    with pytest.raises(ValueError, match="at most max_positions = 3 tokens; got 4; try"):
        model(np.array([[3, 4, 5, EOS]]), GOOD)
    cache = model.start_cache(*model.encode(GOOD))
    for _ in range(3):
        model.decode_step(np.array([3]), cache)
    with pytest.raises(ValueError, match="at most max_positions = 3"):
        model.decode_step(np.array([3]), cache)


def test_unknown_smoothing():
    model = Transformer(TransformerConfig(**SMALL))
    with pytest.raises(ValueError, match="smoothing_over: expected one of"):
        model.loss(GOOD, GOOD, smoothing_over="some")
    with pytest.raises(ValueError, match="smoothing: expected a share from 0 to below 1; got 1"):
        model.loss(GOOD, GOOD, smoothing=1)


def test_lists_and_any_integer_dtype_are_ids():
    model = Transformer(TransformerConfig(**SMALL)).eval()
    expected = model(GOOD, GOOD).data
    for ids in (GOOD.tolist(), GOOD.astype("int32"), GOOD.astype("uint8"), GOOD.astype("uint16")):
        assert np.array_equal(model(ids, ids).data, expected)
        assert model.loss(ids, ids).item() == model.loss(GOOD, GOOD).item()
