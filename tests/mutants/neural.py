"""Mistakes in the operations of the Transformer (autograd/neural.py) and in the kernels that they call."""

import npx
from tests.mutants.base import corrupting, keeping, kernel, operation, overwritten, vjp

# The right ones, for wrong ones that take their places.
CROSS_ENTROPY, SOFTMAX_GRAD, LAYER_NORM_GRAD = npx.cross_entropy, npx.softmax_grad, npx.layer_norm_grad
LINEAR_GRAD, ATTENTION_GRAD = npx.linear_grad, npx.attention_grad

# Softmax, layer norm, dropout

kernel("softmax_grad", "without its sum", "softmax", lambda g, saved: saved.values * g, "operation softmax")
kernel("softmax_grad", "sum over the wrong axis", "softmax",
       lambda g, saved: saved.values * (g - npx.sum(g * saved.values, axis=0, keepdims=True)), "operation softmax")
operation("softmax", "mask ignored in the gradient", "softmax",
          lambda x, mask=None: (npx.softmax(x, mask)[0], lambda g: (npx.softmax_grad(g, npx.softmax(x)[1]),)))
kernel("softmax_grad", "incoming gradient written over", "softmax",
       lambda g, saved: corrupting(g, 1.0) * 0 + SOFTMAX_GRAD(g, saved), "operation softmax", "state")
operation("softmax", "input kept without need", "softmax",
          lambda x, mask=None: keeping(npx.softmax(x, mask)[0], x * 1.0, SOFTMAX_GRAD.reference), "state")


def norm_mutant(change):
    """`layer_norm_grad` with a changed gx; change(h, xhat, rstd)."""

    def wrong(g, saved):
        gamma, xhat, rstd = saved.values[:3]
        _, ggamma, gbeta = LAYER_NORM_GRAD(g, saved)
        return change(g * gamma, xhat, rstd), ggamma, gbeta

    return wrong


def mean(x):
    return npx.mean(x, axis=-1, keepdims=True)


def variance_unbiased(h, z, r):
    return r * (h - mean(h) - z * npx.sum(h * z, axis=-1, keepdims=True) / max(1, z.shape[-1] - 1))


for mistake, change in {
    "term of the variance lost": lambda h, z, r: r * (h - mean(h)),
    "term of the mean lost": lambda h, z, r: r * (h - z * mean(h * z)),
    "variance counted with n - 1": variance_unbiased,
    "scale 1/sigma lost": lambda h, z, r: h - mean(h) - z * mean(h * z),
}.items():
    kernel("layer_norm_grad", mistake, "layer norm", norm_mutant(change), "operation layer_norm")
vjp("layer_norm", "gain left out of gx", "layer norm",
    lambda r, g, y, x, gamma, beta, eps: (npx.layer_norm_grad(
        g, npx.layer_norm(x, npx.ones_like(gamma), beta, eps)[1])[0], *r(g)[1:]))
vjp("layer_norm", "bias gradient lost", "layer norm", lambda r, g, y, *a, **k: (*r(g)[:2], npx.zeros_like(r(g)[2])))
vjp("dropout", "mask not applied on the way back", "dropout", lambda r, g, y, x, drop: (g / (1 - drop.rate),))
vjp("dropout", "scaled wrongly", "dropout", lambda r, g, y, x, drop: (r(g)[0] * (1 - drop.rate),))
vjp("dropout_residual_norm", "dropout's mask not applied", "dropout",
    lambda r, g, y, *a, **k: (r(g)[1], *r(g)[1:]))
vjp("dropout_residual_norm", "residual's gradient lost", "dropout",
    lambda r, g, y, *a, **k: (r(g)[0], npx.zeros_like(r(g)[0]), *r(g)[2:]))

# Projections and embeddings


def linear_mutant(g, saved, change):
    """`linear_grad` with change(g, y) instead of the mask of a ReLU."""
    x, w, y, bias = saved.values
    return LINEAR_GRAD.reference(g if y is None else change(g, y), x, w, None, bias)


vjp("linear", "bias gradient lost", "linear",
    lambda r, g, y, x, w, b, activation: (*r(g)[:2], None if b is None else npx.zeros_like(b)))
kernel("linear_grad", "mask of the ReLU lost", "linear",
       lambda g, saved: linear_mutant(g, saved, lambda g, y: g), "operation linear")
kernel("linear_grad", "mask of the ReLU inverted", "linear",
       lambda g, saved: linear_mutant(g, saved, lambda g, y: g * (y <= 0)), "operation linear")
vjp("linear", "weight gradient averaged over rows", "linear",
    lambda r, g, y, x, w, b, activation: (r(g)[0], r(g)[1] / max(1, x.size // x.shape[-1]), r(g)[2]))
vjp("embedding", "scale lost in the gradient", "embedding",
    lambda r, g, y, table, ids, scale: (npx.embedding_grad(g, npx.embedding(table, ids)[1]),))
kernel("embedding_grad", "repeated ids overwrite", "embedding",
       lambda g, saved: overwritten((saved.values[1], g.shape[-1]), saved.values[0], g * saved.values[2]),
       "operation embedding", "special value")

# Attention


def attention_mutant(change):
    """`attention_grad` with changed gradients; change(right, g, q, k, v, p, dropped, scores)."""

    def wrong(g, saved, out=None):
        grads = change(ATTENTION_GRAD.reference, g, *saved.values)
        for target, value in zip(out or (), grads, strict=False):
            npx.copyto(target, value)
        return out or grads

    return wrong


for entry in ("attention", "self_attention", "cross_attention"):
    for mistake, change in {
        "scale 1/sqrt(d_k) lost": lambda f, g, q, k, *a: (*(x * k.shape[-1] ** 0.5 for x in f(g, q, k, *a)[:2]),
                                                          f(g, q, k, *a)[2]),
        "dropout's mask not applied on the way back": lambda f, g, q, k, v, p, dropped, scores: f(
            g, q, k, v, p, (None, None), scores),
        "gradients of keys and queries lost": lambda f, *a: (*(0 * x for x in f(*a)[:2]), f(*a)[2]),
        "rotation not turned back": lambda f, *a: f(*a[:-1], a[-1]._replace(rotary=None)),
    }.items():
        wrong = attention_mutant(change)
        kernel("attention_grad", f"{mistake} ({entry})", "attention", wrong, f"operation {entry}")
kernel("attention_grad", "mask ignored", "attention", attention_mutant(
    lambda f, g, q, k, v, p, dropped, scores: f(
        g, q, k, v, npx.attention(q, k, v)[1].values[3], dropped, scores)), "operation attention")

# Losses


def loss_mutant(change):
    """`cross_entropy` with a wrong gradient; change(right one, logits, targets, smoothing)."""

    def wrong(logits, targets, smoothing, grad):
        loss, saved = CROSS_ENTROPY(logits, targets, smoothing, True)
        return loss, saved._replace(values=change(saved.values, logits, targets, smoothing))

    return wrong


def loss_gradient(*args):
    return CROSS_ENTROPY(*args, True)[1].values


for mistake, change in {
    "padding counted": lambda gz, z, t, s: loss_gradient(z, t, s._replace(pad_id=-1)),
    "smoothing ignored in the gradient": lambda gz, z, t, s: loss_gradient(z, t, s._replace(share=0.0)),
    "smoothing over the whole vocabulary instead of the others": lambda gz, z, t, s: loss_gradient(
        z, t, s._replace(over="all")),
    "divided by the number of rows": lambda gz, *a: gz / max(1, len(gz)),
    "softmax without the target": lambda gz, z, t, s: npx.softmax(z)[0] * (t != s.pad_id)[:, None],
}.items():
    kernel("cross_entropy", mistake, "loss", loss_mutant(change), "operation cross_entropy")
vjp("cross_entropy", "incoming gradient ignored", "loss",
    lambda r, g, y, *a, **k: r(npx.ones_like(g)), "incoming gradient")
vjp("linear_cross_entropy", "gradient of the embedding lost", "loss",
    lambda r, g, y, x, w, t, **k: (r(g)[0], npx.zeros_like(w)))
