"""Small Transformers and batches for the tests of models/.

Models are float64, so that laws hold up to rounding. Noise is added to every parameter, so that initial zeros and ones
hide no bug.
"""

import numpy as np
from hypothesis import strategies as st

from models import FlatParameters, Transformer, TransformerConfig

PAD, BOS, EOS, FIRST, V = 0, 1, 2, 3, 11
SMALL = {"vocab_size": V, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
OPTIONS = {
    "norm_placement": ["post", "pre", "sandwich", "deepnorm"],
    "positions": ["sinusoidal", "sinusoidal_halves", "learned", "rotary", "alibi", "t5", "shaw"],
    "relative_buckets": [4],
    "max_relative_distance": [3],
    "n_kv_heads": [None, 1],
    "qk_norm": [False, True],
    "position_rates": [None, "paper", "tensor2tensor"],
    "attention_bias": [False, True],
    "d_k": [None, 3],
    "d_v": [None, 5],
    "embedding_init": ["normal", "xavier"],
    "matrix_init": ["xavier", "uniform_unit_scaling"],
    "target_space": [False, True],
    "decoder_start": ["bos", "zeros"],
    "norm_eps": [1e-6, 1e-2],
}
SEEDS = st.integers(0, 10**6)


@st.composite
def configs(draw, **fixed):
    chosen = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    if chosen["positions"] == "rotary" and chosen["d_k"]:
        chosen["d_k"] += 1  # rotary positions need an even d_k
    return TransformerConfig(**(SMALL | chosen | fixed))


def build(config, seed=0, dtype="float64"):
    model, rng = Transformer(config, seed, dtype), np.random.default_rng(seed)
    for p in model.parameters():
        p.data += rng.normal(size=p.shape).astype(dtype) * 0.2
    return model


def sentences(rng, n, longest=6):
    """Return n token lists of random lengths, without BOS and EOS."""
    return [rng.integers(FIRST, V, rng.integers(1, longest + 1)).tolist() for _ in range(n)]


def padded(rows, extra=0):
    out = np.full((len(rows), max(map(len, rows)) + extra), PAD)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def batch(sources, targets, extra=0):
    """Return source ids (B, S), ending in EOS, and target ids (B, T+1), from BOS to EOS."""
    return padded([s + [EOS] for s in sources], extra), padded([[BOS, *t, EOS] for t in targets], extra)


def gradient(model, *parts, **options):
    """Return the gradient of the summed losses of `parts` with respect to all parameters, in one array."""
    flat = FlatParameters(model)
    flat.zero_grad()
    for src, tgt in parts:
        model.loss(src, tgt, **options).backward()
    return flat.flatten_grad().copy()
