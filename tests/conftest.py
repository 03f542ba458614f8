"""What every test shares: how hard hypothesis tries, and the compositions that fused operations are held to.

HYPOTHESIS_PROFILE (or pytest's --hypothesis-profile): "ci", the default, always tries the same examples; "dev" tries
new ones at each run; "thorough" tries many. No profile has a deadline: a test never depends on how fast a machine is.

NPX_TEST_ENGINE: "numpy", the default; "cupy": what `make gpu-check` runs computes on a GPU; "strict": the same on the
stand-in of strict_cupy.py; "emulated": there too, its CUDA kernels in the emulator. Try both before a GPU.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

import npx
from autograd import Tensor, neural

ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=20, derandomize=True, database=None, **ALWAYS)
settings.register_profile("dev", max_examples=20, **ALWAYS)
settings.register_profile("thorough", max_examples=500, **ALWAYS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def computing_device():
    """Where the tests of this process compute."""
    engine = os.environ.get("NPX_TEST_ENGINE", "numpy")
    if engine in ("strict", "emulated"):
        from tests.strict_cupy import device

        with device(cuda=engine == "emulated"):
            yield
    else:
        npx.use_device("cuda" if engine == "cupy" else "cpu")
        yield
        npx.use_device("cpu")


def composed_self_attention(qkv, heads, d_k, scores=npx.Scores(), rate=0.0, key=None):
    """`self_attention` from small operations."""
    rows, length, width = qkv.shape
    keys = heads * d_k
    q, k, v = qkv[..., :keys], qkv[..., keys : 2 * keys], qkv[..., 2 * keys :]
    q, k, v = (x.reshape(rows, length, heads, -1) for x in (q, k, v))
    return neural.composed_attention(q, k, v, scores, rate, key).reshape(rows, length, width - 2 * keys)


def composed_cross_attention(queries, keys_values, heads, d_k, scores=npx.Scores(), rate=0.0, key=None):
    """`cross_attention` from small operations."""
    rows, length, keys = queries.shape
    k, v = keys_values[..., :keys], keys_values[..., keys:]
    q, k, v = (x.reshape(rows, x.shape[1], heads, -1) for x in (queries, k, v))
    return neural.composed_attention(q, k, v, scores, rate, key).reshape(rows, length, -1)


def composed_linear_cross_entropy(x, w, targets, smoothing=0.0, over="all", pad_id=0):
    """`linear_cross_entropy` from small operations."""
    return neural.composed_cross_entropy(x @ w.transpose(), targets, smoothing, over, pad_id)


def composed_dropout(x, rate, key):
    """`dropout` as a product with a constant."""
    return x * npx.dropout.reference(npx.ones(x.shape, x.dtype), rate, key)[0]


def composed_embedding(table, ids, scale=1.0):
    """`embedding` as indexing."""
    return table[ids.data if isinstance(ids, Tensor) else ids] * scale


@pytest.fixture(scope="session")
def compositions():
    """Operation of autograd/neural.py -> the same made of small operations."""
    return {
        "softmax": neural.composed_softmax,
        "layer_norm": neural.composed_layer_norm,
        "dropout": composed_dropout,
        "dropout_residual_norm": neural.composed_dropout_residual_norm,
        "linear": neural.composed_linear,
        "embedding": composed_embedding,
        "attention": neural.composed_attention,
        "self_attention": composed_self_attention,
        "cross_attention": composed_cross_attention,
        "cross_entropy": neural.composed_cross_entropy,
        "linear_cross_entropy": composed_linear_cross_entropy,
    }
