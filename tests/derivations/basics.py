"""Derivations 1 to 4: broadcasting, products, softmax, and the loss."""

import numpy as np

import npx
from autograd import OPERATIONS
from tests.derivations.lines import drawn, line, slopes

# 1


@drawn("broadcasting")
def _(random):
    return random.normal(size=(2, 4, 3)), random.normal(size=(2, 4, 3)), random.normal(size=(4, 1))


@line("broadcasting")
def broadcasting_1(g, a, b):
    return slopes(lambda b: a * b, g, b)


@line("broadcasting")
def broadcasting_2(g, a, b):
    gb = np.zeros(b.shape)
    for i, j, k in np.ndindex(a.shape):  # y_ijk = a_ijk b_j0
        gb[j, 0] += g[i, j, k] * a[i, j, k]
    return gb


@line("broadcasting")
def broadcasting_3(g, a, b):
    return (g * a).sum(axis=0).sum(axis=1, keepdims=True)  # the leading axis, then the stretched one


@line("broadcasting")
def broadcasting_4(g, a, b):
    return OPERATIONS["multiply"].__wrapped__(a, b)[1](g)[1]


# 2


@drawn("a product")
def _(random):
    return random.normal(size=(2, 3, 4)), random.normal(size=(2, 3, 5)), random.normal(size=(5, 4))


@line("a product")
def product_1(g, a, b):
    return slopes(lambda a, b: a @ b, g, a, b)


@line("a product")
def product_2(g, a, b):
    ga, gb = np.zeros(a.shape), np.zeros(b.shape)
    for n, i, k, j in np.ndindex(2, 3, 5, 4):  # y_nij = sum_k a_nik b_kj
        ga[n, i, k] += g[n, i, j] * b[k, j]
        gb[k, j] += a[n, i, k] * g[n, i, j]
    return ga, gb


@line("a product")
def product_3(g, a, b):
    return g @ b.T, (a.swapaxes(1, 2) @ g).sum(axis=0)  # b was broadcast over n, so sum over n


@line("a product")
def product_4(g, a, b):
    return OPERATIONS["matmul"].__wrapped__(a, b)[1](g)


# 3


def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@drawn("softmax")
def _(random):
    return random.normal(size=(3, 5)), 3 * random.normal(size=(3, 5))


@line("softmax")
def softmax_1(g, x):
    return slopes(softmax, g, x)


@line("softmax")
def softmax_2(g, x):
    gx = np.zeros(x.shape)
    for n in range(len(x)):
        e = np.exp(x[n])
        for i, j in np.ndindex(5, 5):  # dy_i / dx_j by the quotient rule
            gx[n, j] += g[n, i] * ((i == j) * e[i] * e.sum() - e[i] * e[j]) / e.sum() ** 2
    return gx


@line("softmax")
def softmax_3(g, x):
    y = softmax(x)
    return np.stack([(np.diag(row) - np.outer(row, row)) @ g[n] for n, row in enumerate(y)])


@line("softmax")
def softmax_4(g, x):
    y = softmax(x)
    return y * g - y * (y * g).sum(axis=-1, keepdims=True)


@line("softmax")
def softmax_5(g, x):
    return npx.softmax_grad(g, npx.softmax(x)[1])


# 4


def smoothed(smoothing, targets, classes):
    """The target q (R, V), written out; rows of padding are 0."""
    q, real = np.zeros((len(targets), classes)), targets != smoothing.pad_id
    for row, target in enumerate(targets):
        left_out = {"all": {}, "others": {target}, "others_without_pad": {target, smoothing.pad_id}}[smoothing.classes]
        others = [k for k in range(classes) if k not in left_out]
        q[row, others] = smoothing.epsilon / len(others)
        q[row, target] += 1 - smoothing.epsilon
    return q * real[:, None]


@drawn("cross entropy")
def _(random):
    over = npx.SMOOTHING_CLASSES[random.integers(3)]
    targets = np.append(random.integers(1, 5, size=3), 0)  # 0: padding
    return random.normal(), 3 * random.normal(size=(4, 5)), targets, npx.LabelSmoothing(0.1, over, 0)


@line("cross entropy")
def cross_entropy_1(g, z, targets, smoothing):
    q = smoothed(smoothing, targets, 5)
    return slopes(lambda z: -(q * np.log(softmax(z))).sum(), g, z)


@line("cross entropy")
def cross_entropy_2(g, z, targets, smoothing):
    q = smoothed(smoothing, targets, 5)  # q sums to 1, so the loss of a row is logsumexp(z) - sum_k q_k z_k
    return slopes(lambda z: (q.sum(axis=1) * np.log(np.exp(z).sum(axis=1)) - (q * z).sum(axis=1)).sum(), g, z)


@line("cross entropy")
def cross_entropy_3(g, z, targets, smoothing):
    q = smoothed(smoothing, targets, 5)
    return g * (q.sum(axis=1, keepdims=True) * np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - q)


@line("cross entropy")
def cross_entropy_4(g, z, targets, smoothing):
    real, (on_value, off_value) = (targets != 0)[:, None], smoothing.target_weights(5)
    target = np.arange(5) == targets[:, None]
    spared = smoothing.excludes_padding(5) & (np.arange(5) == 0)
    return g * real * (softmax(z) - on_value * target - off_value * ~spared)


@line("cross entropy")
def cross_entropy_5(g, z, targets, smoothing):
    return npx.cross_entropy_grad(np.asarray(g), npx.cross_entropy(z, targets, smoothing)[1])
