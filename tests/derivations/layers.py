"""Derivations 5 to 9: the parts of a layer."""

import numpy as np

import npx
from tests.derivations.basics import softmax
from tests.derivations.lines import drawn, line, slopes

# 5


def normed(x, gamma, beta, eps=1e-6):
    centered = x - x.mean(axis=-1, keepdims=True)
    return gamma * centered / np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + eps) + beta


def statistics(x, eps=1e-6):
    """Return xhat and 1 / sqrt(var + eps)."""
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    return (x - x.mean(axis=-1, keepdims=True)) * rstd, rstd


def mean(x):
    return x.mean(axis=-1, keepdims=True)


@drawn("layer norm")
def _(random):
    return (*random.normal(size=(2, 3, 4)), *random.normal(size=(2, 4)))


@line("layer norm")
def layer_norm_1(g, x, gamma, beta):
    return slopes(normed, g, x, gamma, beta)


@line("layer norm")
def layer_norm_2(g, x, gamma, beta):
    h, n, (_, rstd) = g * gamma, x.shape[-1], statistics(x)
    centered = x - mean(x)
    to_var = (h * centered).sum(axis=-1, keepdims=True) * -0.5 * rstd**3  # through the root
    to_mean = -(h * rstd).sum(axis=-1, keepdims=True)  # the variance does not change with the mean
    return h * rstd + to_var * 2 * centered / n + to_mean / n, (g * centered * rstd).sum(axis=0), g.sum(axis=0)


@line("layer norm")
def layer_norm_3(g, x, gamma, beta):
    h, (xhat, rstd) = g * gamma, statistics(x)
    return rstd * (h - mean(h) - xhat * mean(h * xhat)), (g * xhat).sum(axis=0), g.sum(axis=0)


@line("layer norm")
def layer_norm_4(g, x, gamma, beta):
    h, (xhat, rstd), ones = g * gamma, statistics(x), np.ones(4) / 2  # ones has length 1
    off = np.eye(4) - np.outer(ones, ones) - np.stack([np.outer(row, row) / 4 for row in xhat])
    return rstd * (off @ h[..., None])[..., 0], (g * xhat).sum(axis=0), g.sum(axis=0)


@line("layer norm")
def layer_norm_5(g, x, gamma, beta):
    return npx.layer_norm_grad(g, npx.layer_norm(x, gamma, beta)[1])


# 6


@drawn("attention")
def _(random):
    g, q, k, v = random.normal(size=(4, 3, 2))
    keep = npx.DropoutSpec(0.3, npx.Key(int(random.integers(99)), 0, 0))
    return g, q, k, v, np.tri(3) > 0, keep


def weights(q, k, mask):
    return softmax(np.where(mask, q @ k.T / np.sqrt(2), -1e300))


def kept(drop):
    """Return the factors by which dropout multiplies the weights of one head."""
    return drop.keep_mask((1, 1, 3, 3))[0, 0] * drop.scale


@line("attention")
def attention_1(g, q, k, v, mask, drop):
    return slopes(lambda q, k, v: (kept(drop) * weights(q, k, mask)) @ v, g, q, k, v)


@line("attention")
def attention_2(g, q, k, v, mask, drop):
    a = kept(drop) * weights(q, k, mask)  # V: y = a v is a matmul
    return *slopes(lambda q, k: (kept(drop) * weights(q, k, mask)) @ v, g, q, k), a.T @ g


@line("attention")
def attention_3(g, q, k, v, mask, drop):
    ga = g @ v.T  # P: the other operand of that matmul, then dropout, which multiplies by constants
    a = kept(drop) * weights(q, k, mask)
    return *slopes(lambda q, k: weights(q, k, mask), kept(drop) * ga, q, k), a.T @ g


@line("attention")
def attention_4(g, q, k, v, mask, drop):
    p = weights(q, k, mask)
    gp = kept(drop) * (g @ v.T)
    gs = p * (gp - (gp * p).sum(axis=1, keepdims=True))  # S: softmax; 0 at masked positions, where p is 0
    return *slopes(lambda q, k: q @ k.T / np.sqrt(2), gs, q, k), (kept(drop) * p).T @ g


@line("attention")
def attention_5(g, q, k, v, mask, drop):
    p = weights(q, k, mask)
    gp = kept(drop) * (g @ v.T)
    gs = p * (gp - (gp * p).sum(axis=1, keepdims=True)) / np.sqrt(2)
    return gs @ k, gs.T @ q, (kept(drop) * p).T @ g


@line("attention")
def attention_6(g, q, k, v, mask, drop):
    one_head = [x[None, :, None] for x in (q, k, v)]  # (B, T, H, d)
    _, saved = npx.attention(*one_head, npx.AttentionSpec(causal=True), drop)
    return tuple(x[0, :, 0] for x in npx.attention_grad(g[None, :, None], saved))


# 7


@drawn("dropout, residual and norm")
def _(random):
    drop = npx.DropoutSpec(0.4, npx.Key(int(random.integers(99)), 0, 0))
    return *random.normal(size=(3, 3, 4)), *random.normal(size=(2, 4)), drop


@line("dropout, residual and norm")
def sublayer_1(g, x, residual, gamma, beta, drop):
    m = drop.keep_mask(x.shape) * drop.scale
    return slopes(lambda x, r, gamma, beta: normed(r + m * x, gamma, beta), g, x, residual, gamma, beta)


@line("dropout, residual and norm")
def sublayer_2(g, x, residual, gamma, beta, drop):
    m = drop.keep_mask(x.shape) * drop.scale
    gs, ggamma, gbeta = layer_norm_3(g, residual + m * x, gamma, beta)  # the sum passes gs to both
    return m * gs, gs, ggamma, gbeta


@line("dropout, residual and norm")
def sublayer_3(g, x, residual, gamma, beta, drop):
    return npx.dropout_residual_norm_grad(g, npx.dropout_residual_norm(x, residual, gamma, beta, drop)[1])


# 8


@drawn("linear with bias and ReLU")
def _(random):
    return random.normal(size=(4, 3)), random.normal(size=(4, 2)), random.normal(size=(2, 3)), random.normal(size=3)


@line("linear with bias and ReLU")
def linear_1(g, x, w, b):
    return slopes(lambda x, w, b: np.where((x @ w + b).real > 0, x @ w + b, 0), g, x, w, b)


@line("linear with bias and ReLU")
def linear_2(g, x, w, b):
    h = g * (x @ w + b > 0)  # the ReLU passes g where it passed its input
    return h @ w.T, x.T @ h, h.sum(axis=0)


@line("linear with bias and ReLU")
def linear_3(g, x, w, b):
    y = np.maximum(x @ w + b, 0)
    h = g * (y > 0)  # y is positive exactly where its input was, so saving y suffices
    return h @ w.T, x.T @ h, h.sum(axis=0)


@line("linear with bias and ReLU")
def linear_4(g, x, w, b):
    return npx.linear_grad(g, npx.linear(x, w, b, "relu")[1])


# 9


@drawn("a table used twice")
def _(random):
    ids, table = random.integers(0, 4, size=6), random.normal(size=(4, 3))
    return random.normal(size=(6, 4)), table, ids


@line("a table used twice")
def table_1(g, table, ids):
    return slopes(lambda table: (np.sqrt(3) * table[ids]) @ table.T, g, table)


@line("a table used twice")
def table_2(g, table, ids):
    x = np.sqrt(3) * table[ids]
    first = slopes(lambda t: (np.sqrt(3) * t[ids]) @ table.T, g, table)  # as embeddings
    return first + slopes(lambda t: x @ t.T, g, table)  # as the projection; the two gradients are added


@line("a table used twice")
def table_3(g, table, ids):
    gx, second = g @ table, g.T @ (np.sqrt(3) * table[ids])  # the two operands of the matmul
    first = np.zeros(table.shape)
    for row, i in enumerate(ids):  # an id that occurs twice adds twice
        first[i] += np.sqrt(3) * gx[row]
    return first + second


@line("a table used twice")
def table_4(g, table, ids):
    y, saved = npx.embedding(table, ids, 3**0.5)
    gy, gw, _ = npx.linear_grad(g, npx.linear(y, table.T)[1])
    return npx.embedding_grad(gy, saved) + gw.T
