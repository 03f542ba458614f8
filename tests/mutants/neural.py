"""Bugs in the operations of the Transformer (autograd/neural.py) and in the kernels that they call."""

import npx
from tests.mutants.base import (
    kernel,
    operation,
    rounded,
    scale_in_place,
    scatter_overwriting,
    vjp,
    with_extra_array_saved,
)

# The correct kernels, which mutants call while they replace them.
CROSS_ENTROPY, SOFTMAX_GRAD, LAYER_NORM_GRAD = npx.cross_entropy, npx.softmax_grad, npx.layer_norm_grad
LINEAR_GRAD, ATTENTION_GRAD = npx.linear_grad, npx.attention_grad

# Softmax, layer norm, dropout

kernel("softmax_grad", "sum term missing", "softmax", lambda g, saved: saved.values * g, "operation softmax")
kernel(
    "softmax_grad",
    "sum over the wrong axis",
    "softmax",
    lambda g, saved: saved.values * (g - npx.sum(g * saved.values, axis=0, keepdims=True)),
    "operation softmax",
)
operation(
    "softmax",
    "mask ignored in the gradient",
    "softmax",
    lambda x, mask=None: (npx.softmax(x, mask)[0], lambda g: (npx.softmax_grad(g, npx.softmax(x)[1]),)),
)
kernel(
    "softmax_grad",
    "incoming gradient overwritten",
    "softmax",
    lambda g, saved: scale_in_place(g, 1.0) * 0 + SOFTMAX_GRAD(g, saved),
    "operation softmax",
    "state",
)
operation(
    "softmax",
    "input saved unnecessarily",
    "softmax",
    lambda x, mask=None: with_extra_array_saved(npx.softmax(x, mask)[0], x * 1.0, SOFTMAX_GRAD.reference),
    "state",
)


def norm_mutant(change):
    """Return `layer_norm_grad` with gx = change(h, xhat, rstd), where h = g * gamma."""

    def wrong(g, saved, accumulate_into=None):
        gamma, xhat, rstd = saved.values[:3]
        _, ggamma, gbeta = LAYER_NORM_GRAD(g, saved)
        return change(g * gamma, xhat, rstd), ggamma, gbeta

    return wrong


def mean(x):
    return npx.mean(x, axis=-1, keepdims=True)


def variance_unbiased(h, z, r):
    return r * (h - mean(h) - z * npx.sum(h * z, axis=-1, keepdims=True) / max(1, z.shape[-1] - 1))


for bug, change in {
    "variance term missing": lambda h, z, r: r * (h - mean(h)),
    "mean term missing": lambda h, z, r: r * (h - z * mean(h * z)),
    "variance divided by n - 1": variance_unbiased,
    "factor 1/sigma missing": lambda h, z, r: h - mean(h) - z * mean(h * z),
}.items():
    kernel("layer_norm_grad", bug, "layer norm", norm_mutant(change), "operation layer_norm")
vjp(
    "layer_norm",
    "gain missing in gx",
    "layer norm",
    lambda r, g, y, x, gamma, beta, eps: (
        npx.layer_norm_grad(g, npx.layer_norm(x, npx.ones_like(gamma), beta, eps)[1])[0],
        *r(g)[1:],
    ),
)
vjp("layer_norm", "bias gradient missing", "layer norm", lambda r, g, y, *a, **k: (*r(g)[:2], npx.zeros_like(r(g)[2])))
vjp("dropout", "mask not applied in the backward pass", "dropout", lambda r, g, y, x, drop: (g / (1 - drop.rate),))
vjp("dropout", "wrong scale", "dropout", lambda r, g, y, x, drop: (r(g)[0] * (1 - drop.rate),))
vjp("dropout_residual_norm", "dropout mask not applied", "dropout", lambda r, g, y, *a, **k: (r(g)[1], *r(g)[1:]))
vjp(
    "dropout_residual_norm",
    "residual gradient missing",
    "dropout",
    lambda r, g, y, *a, **k: (r(g)[0], npx.zeros_like(r(g)[0]), *r(g)[2:]),
)

# Projections and embeddings


def linear_mutant(g, saved, change):
    """Compute `linear_grad` with change(g, y) instead of the ReLU mask."""
    x, w, y, bias = saved.values
    return LINEAR_GRAD.reference(g if y is None else change(g, y), x, w, None, bias)


vjp(
    "linear",
    "bias gradient missing",
    "linear",
    lambda r, g, y, x, w, b, activation: (*r(g)[:2], None if b is None else npx.zeros_like(b)),
)
kernel(
    "linear_grad",
    "ReLU mask missing",
    "linear",
    lambda g, saved, accumulate_into=None: linear_mutant(g, saved, lambda g, y: g),
    "operation linear",
)
kernel(
    "linear_grad",
    "ReLU mask inverted",
    "linear",
    lambda g, saved, accumulate_into=None: linear_mutant(g, saved, lambda g, y: g * (y <= 0)),
    "operation linear",
)
vjp(
    "linear",
    "weight gradient averaged over rows",
    "linear",
    lambda r, g, y, x, w, b, activation: (r(g)[0], r(g)[1] / max(1, x.size // x.shape[-1]), r(g)[2]),
)
vjp(
    "embedding",
    "scale missing in the gradient",
    "embedding",
    lambda r, g, y, table, ids, scale=1.0, **options: (npx.embedding_grad(g, npx.embedding(table, ids)[1]),),
)
kernel(
    "embedding_grad",
    "repeated ids overwrite each other",
    "embedding",
    lambda g, saved, accumulate_into=None: scatter_overwriting(
        (saved.values[1], g.shape[-1]), saved.values[0], g * saved.values[2]
    ),
    "operation embedding",
    "special value",
)

# Attention


def attention_mutant(change):
    """Return `attention_grad` with the gradients change(correct, g, q, k, v, p, dropped, spec)."""

    def wrong(g, saved, out=None, return_bias_grad=False):
        if return_bias_grad:
            return ATTENTION_GRAD(g, saved, out=out, return_bias_grad=True)
        q, k, v, *_, (drop, _), spec = saved.values  # q and k with rotary positions applied
        p, dropped = npx.attention.reference(q, k, v, spec._replace(rotary_base=None), drop)[1][3:5]
        grads = change(ATTENTION_GRAD.reference, g, q, k, v, p, dropped, spec)
        for target, value in zip(out or (), grads, strict=False):
            npx.copyto(target, value)
        return out or grads

    return wrong


for entry in ("attention", "self_attention", "cross_attention"):
    for bug, change in {
        "factor 1/sqrt(d_k) missing": lambda f, g, q, k, *a: (
            *(x * k.shape[-1] ** 0.5 for x in f(g, q, k, *a)[:2]),
            f(g, q, k, *a)[2],
        ),
        "dropout mask not applied": lambda f, g, q, k, v, p, dropped, spec: f(g, q, k, v, p, (None, None), spec),
        "gradients of queries and keys missing": lambda f, *a: (*(0 * x for x in f(*a)[:2]), f(*a)[2]),
        "rotation not inverted": lambda f, *a: f(*a[:-1], a[-1]._replace(rotary_base=None)),
    }.items():
        wrong = attention_mutant(change)
        kernel("attention_grad", f"{bug} ({entry})", "attention", wrong, f"operation {entry}")
kernel(
    "attention_grad",
    "mask ignored",
    "attention",
    attention_mutant(
        lambda f, g, q, k, v, p, dropped, spec: f(g, q, k, v, npx.attention(q, k, v)[1].values[3], dropped, spec)
    ),
    "operation attention",
)

# Losses


def loss_mutant(change):
    """Return `cross_entropy` with the gradient change(correct, logits, targets, smoothing)."""

    def wrong(logits, targets, smoothing, grad):
        loss, saved = CROSS_ENTROPY(logits, targets, smoothing, True)
        return loss, saved._replace(values=change(saved.values, logits, targets, smoothing))

    return wrong


def loss_gradient(*args):
    return CROSS_ENTROPY(*args, True)[1].values


for bug, change in {
    "padding included": lambda gz, z, t, s: loss_gradient(z, t, s._replace(pad_id=-1)),
    "smoothing ignored in the gradient": lambda gz, z, t, s: loss_gradient(z, t, s._replace(epsilon=0.0)),
    "smoothing over all classes instead of the others": lambda gz, z, t, s: loss_gradient(
        z, t, s._replace(classes="all")
    ),
    "divided by the number of rows": lambda gz, *a: gz / max(1, len(gz)),
    "target term missing": lambda gz, z, t, s: npx.softmax(z)[0] * (t != s.pad_id)[:, None],
}.items():
    kernel("cross_entropy", bug, "loss", loss_mutant(change), "operation cross_entropy")
vjp(
    "cross_entropy",
    "incoming gradient ignored",
    "loss",
    lambda r, g, y, *a, **k: r(npx.ones_like(g)),
    "incoming gradient",
)
vjp(
    "linear_cross_entropy",
    "embedding gradient missing",
    "loss",
    lambda r, g, y, x, w, t, **k: (r(g)[0], npx.zeros_like(w)),
)

# Special values, parts of the domain, non-finite values, dtype

vjp(
    "softmax",
    "NaN for fully masked rows",
    "softmax",
    lambda r, g, y, x, mask=None: (r(g)[0] + 0 / y.sum(axis=-1, keepdims=True),),
    "not finite",
)
vjp(
    "softmax",
    "gradient of a single column passed through",
    "softmax",
    lambda r, g, y, x, mask=None: r(g) if y.shape[-1:] != (1,) else (g,),
    "special value",
)
vjp(
    "softmax",
    "probabilities clamped to 1e-4",
    "softmax",
    lambda r, g, y, x, mask=None: (npx.maximum(y, 1e-4 * (y > 0)) * (g - npx.sum(g * y, axis=-1, keepdims=True)),),
    "domain",
)
vjp(
    "softmax",
    "incoming gradient rounded to float16 for float32",
    "softmax",
    lambda r, g, y, x, mask=None: r(rounded(g, "float16") if g.dtype == npx.float32 else g),
    "dtype",
)


def unsafe_softmax(x, mask=None):
    e = npx.exp(x) if mask is None else npx.where(mask, npx.exp(x), 0)
    total = e.sum(axis=-1, keepdims=True)
    y = e / npx.where(total == 0, 1, total)
    return y, lambda g: (y * (g - npx.sum(g * y, axis=-1, keepdims=True)),)


def norm_of_squares(x, gamma, beta, eps=1e-6):
    """Layer norm with the variance E[x^2] - E[x]^2."""
    m = mean(x)
    rstd = 1 / npx.sqrt(mean(x * x) - m * m + eps)
    z = (x - m) * rstd
    rows = tuple(range(x.ndim - 1))

    def grad(g):
        h = g * gamma
        return rstd * (h - mean(h) - z * mean(h * z)), (g * z).sum(axis=rows), g.sum(axis=rows)

    return z * gamma + beta, grad


operation("softmax", "maximum not subtracted", "softmax", unsafe_softmax, "not finite")
operation("layer_norm", "variance computed as E[x^2] - E[x]^2", "layer norm", norm_of_squares, "domain")
vjp(
    "layer_norm",
    "gradient of a single feature passed through",
    "layer norm",
    lambda r, g, y, x, *a, **k: r(g) if x.shape[-1] > 1 else (g, *r(g)[1:]),
    "special value",
)
vjp(
    "layer_norm",
    "gradient of constant rows passed through",
    "layer norm",
    lambda r, g, y, x, *a, **k: (npx.where(x == x[..., :1], g, r(g)[0]), *r(g)[1:]),
    "special value",
)
vjp(
    "layer_norm",
    "0 / 0 for a constant row",
    "layer norm",
    lambda r, g, y, x, *a, **k: (r(g)[0] * (1 + 0 / npx.sum((x - mean(x)) ** 2, axis=-1, keepdims=True)), *r(g)[1:]),
    "not finite",
)
vjp(
    "layer_norm",
    "gain gradient summed in float16 for float32",
    "layer norm",
    lambda r, g, y, *a, **k: (r(g)[0], rounded(r(g)[1], "float16") if g.dtype == npx.float32 else r(g)[1], r(g)[2]),
    "dtype",
)
vjp(
    "dropout",
    "gradient missing at rate 0",
    "dropout",
    lambda r, g, y, x, drop: (0 * g,) if drop and drop.rate == 0 else r(g),
    "special value",
)
vjp(
    "dropout",
    "scale clamped to 100",
    "dropout",
    lambda r, g, y, x, drop: (r(g)[0] * (min(1, 100 / drop.scale) if drop and drop.scale else 1),),
    "special value",
)
vjp(
    "dropout",
    "0 / 0 at rate 1",
    "dropout",
    lambda r, g, y, x, drop: (r(g)[0] / npx.asarray(1.0 - (drop is not None and drop.rate == 1), g.dtype),),
    "not finite",
)
vjp(
    "dropout_residual_norm",
    "residual masked as well",
    "dropout",
    lambda r, g, y, *a, **k: (r(g)[0], r(g)[0], *r(g)[2:]),
)
vjp(
    "linear",
    "bias gradient of the first row only",
    "linear",
    lambda r, g, y, *inputs, **named: (*r(g)[:2], r(first_rows(g))[2]) if g.ndim > 1 else r(g),
)
vjp(
    "linear",
    "weight gradient missing for a single vector",
    "linear",
    lambda r, g, y, x, w, *args, **options: (r(g)[0], npx.zeros_like(w), r(g)[2]) if x.ndim == 1 else r(g),
    "special value",
)
vjp(
    "linear",
    "weight gradient in float16 for float32",
    "linear",
    lambda r, g, y, x, w, *args, **options: (
        r(g)[0],
        rounded(r(g)[1], "float16") if w.dtype == npx.float32 else r(g)[1],
        r(g)[2],
    ),
    "dtype",
)
vjp(
    "embedding",
    "gradient of the padding row missing",
    "embedding",
    lambda r, g, y, table, ids, *a, **options: (r(g)[0] * (npx.arange(len(table)) > 0)[:, None],),
    "special value",
)
vjp(
    "embedding",
    "gradient of a single id missing",
    "embedding",
    lambda r, g, y, table, ids, *a, **options: (r(g)[0] * (ids.ndim > 0),),
    "special value",
)
vjp("gelu", "derivative 1 beyond 2.5", "functions", lambda r, g, y, x: (npx.where(x > 2.5, g, r(g)[0]),), "domain")
vjp(
    "gelu",
    "derivative of x sigmoid(1.702 x)",
    "functions",
    lambda r, g, y, x: (g * (s := 0.5 + 0.5 * npx.tanh(0.851 * x)) * (1 + 1.702 * x * (1 - s)),),
)
vjp(
    "gated_silu",
    "halves of the gradient swapped",
    "functions",
    lambda r, g, y, x: (npx.concatenate([r(g)[0][..., g.shape[-1] :], r(g)[0][..., : g.shape[-1]]], axis=-1),),
)
vjp(
    "gated_silu",
    "sigmoid computed from e^-x, which overflows",
    "functions",
    lambda r, g, y, x: (r(g)[0] + 0 * (1 / (1 + (e := npx.exp(-x))) ** 2 * e),),
    "not finite",
)
vjp(
    "rms_norm",
    "factor 1/sqrt(eps) missing for zero rows",
    "layer norm",
    lambda r, g, y, x, gain, eps: (npx.where((x == 0).all(axis=-1, keepdims=True), g * gain, r(g)[0]), r(g)[1]),
    "special value",
)
vjp(
    "rms_norm",
    "sum of squares divided by D - 1",
    "layer norm",
    lambda r, g, y, x, gain, eps: (
        (h := g * gain) * (s := 1 / npx.sqrt(mean(x * x) + eps))
        - x * s**3 * (h * x).sum(axis=-1, keepdims=True) / max(1, len(gain) - 1),
        r(g)[1],
    ),
)

# Attention


def first_rows(g):
    """Return g with every row but the first set to 0."""
    rows = g.reshape(-1, g.shape[-1])
    return npx.where(npx.arange(len(rows))[:, None] == 0, rows, 0).reshape(g.shape)


def without_rotation(f, *args):
    return f(*args[:-1], args[-1]._replace(rotary_base=None))


for entry in ("attention", "self_attention", "cross_attention"):
    for bug, kind, change in (
        ("key rotation not inverted", "formula", lambda f, *a: (f(*a)[0], without_rotation(f, *a)[1], f(*a)[2])),
        (
            "only the first pair rotated back",
            "special value",
            lambda f, *a: tuple(
                npx.where(npx.arange(full.shape[-1]) < 2, full, bare)
                for full, bare in zip(f(*a), without_rotation(f, *a), strict=True)
            ),
        ),
        (
            "gradient of the second head missing",
            "formula",
            lambda f, *a: tuple(x * (npx.arange(x.shape[2]) != 1)[:, None] for x in f(*a)),
        ),
        (
            "NaN for fully masked queries",
            "not finite",
            lambda f, g, q, k, v, p, *a: f(g, q, k, v, p / p.sum(axis=-1, keepdims=True), *a),
        ),
        ("weights below 0.01 flushed to 0", "domain", lambda f, g, q, k, v, p, *a: f(g, q, k, v, p * (p > 0.01), *a)),
        (
            "value gradient in float16 for float32",
            "dtype",
            lambda f, g, *a: (
                *f(g, *a)[:2],
                rounded(f(g, *a)[2], "float16") if g.dtype == npx.float32 else f(g, *a)[2],
            ),
        ),
    ):
        kernel("attention_grad", f"{bug} ({entry})", "attention", attention_mutant(change), f"operation {entry}", kind)

# Losses


def without_maximum(logits, targets, smoothing, grad):
    """Cross entropy whose gradient contains softmax computed without subtracting the maximum."""
    loss, saved = CROSS_ENTROPY(logits, targets, smoothing, True)
    return loss, saved._replace(values=saved.values + 0 * npx.exp(logits) / npx.exp(logits).sum(axis=-1, keepdims=True))


for bug, kind, change in (
    (
        "target of the last class off by one",
        "special value",
        lambda gz, z, t, s: loss_gradient(z, npx.where(t != s.pad_id, npx.minimum(t, max(1, z.shape[-1] - 2)), t), s),
    ),
    ("0 / 0 if all tokens are padding", "not finite", lambda gz, z, t, s: gz / (1.0 * (t != s.pad_id).any())),
    (
        "padding smoothed although excluded",
        "formula",
        lambda gz, z, t, s: loss_gradient(
            z, t, s._replace(classes="others" if s.classes == "others_without_pad" else s.classes)
        ),
    ),
    (
        "rows with probability above 0.99 skipped",
        "domain",
        lambda gz, z, t, s: gz * (npx.softmax(z)[0].max(axis=-1, keepdims=True) < 0.99),
    ),
    (
        "gradient in float16 for float32",
        "dtype",
        lambda gz, z, t, s: rounded(gz, "float16") if z.dtype == npx.float32 else gz,
    ),
):
    kernel("cross_entropy", bug, "loss", loss_mutant(change), "operation cross_entropy", kind)
kernel("cross_entropy", "maximum not subtracted", "loss", without_maximum, "operation cross_entropy", "not finite")
vjp(
    "linear_cross_entropy",
    "sign of the incoming gradient missing",
    "loss",
    lambda r, g, y, *a, **k: r(abs(g)),
    "incoming gradient",
)
vjp(
    "linear_cross_entropy",
    "incoming gradient clamped to 1",
    "loss",
    lambda r, g, y, *a, **k: r(npx.clip(g, -1, 1)),
    "incoming gradient",
)
vjp(
    "linear_cross_entropy",
    "gradient of non-target classes missing",
    "loss",
    lambda r, g, y, x, w, t, **k: (
        r(g)[0],
        r(g)[1] * (npx.arange(len(w))[:, None] == t.reshape(-1)).any(axis=1, keepdims=True),
    ),
)
