"""Special values of the arguments of kernels, tried in addition to the combinations of `Edges` (kernels.py).

They reveal bugs that ordinary numbers hide: empty arrays, everything masked or padded, rates of 0 and 1, ties, numbers
whose exponential overflows, offsets that cancel. `SPECIAL[name](d)` yields calls with numbers that the `Draw` d
chooses. Numbers beyond the range of 16-bit floats are not tried with these dtypes.
"""

import numpy as np

import npx
from npx import AttentionSpec, LabelSmoothing
from tests.cases.base import Call

SPECIAL = {}
KEY = npx.Key(5, 2**33 + 1, 9)
RATES = (0.5, 0.0, 1e-6, 0.999, 1.0)  # dropout rates; the third is not a multiple of 1 / 65,536


def special(function):
    """Register the special calls to the kernel of this name."""
    SPECIAL[function.__name__] = function
    return function


def constant(d, value, *shape):
    """Return an array filled with a value."""
    return np.full(shape, value, d.dtype)


def overflow_size(d):
    """Return a number large enough that its exponential overflows, but small enough that sums keep their digits."""
    return 1e4 if d.dtype == "float64" else 120.0


def is_wide(d):
    """Return whether the dtype has more than 16 bits."""
    return d.dtype.itemsize > 2


def is_long(d):
    """Return whether to try axes longer than a usual block: in float64, where sums over them keep their digits."""
    return d.dtype == "float64"


@special
def softmax(d):
    mask = np.arange(20).reshape(4, 5) % 3 > 0
    mask[2] = False
    yield Call((d.values(2, 4, 5), mask))  # a mask of two axes with an empty row
    yield Call((d.values(2, 4, 5), mask & False))
    yield Call((constant(d, 0.5, 3, 5), None))  # ties
    x = d.values(6, 5)
    x[1:3, :2] = x[4] = -np.inf
    yield Call((x, None))
    yield Call((d.values(7), None))  # one row
    if is_wide(d):
        for shift in (overflow_size(d), -overflow_size(d)):
            yield Call((d.values(5, 3, shift=shift), None))
            yield Call((d.values(4, 5, shift=shift), mask))
        yield Call((d.values(5, 3, scale=overflow_size(d)), None))
        yield Call((d.values(5, 3, scale=1e-6), None))
        huge = np.finfo(d.dtype).max / 4
        yield Call((np.array([[huge, -huge, huge, 0]] * 3, d.dtype), None))


def norms(d):
    """Yield x (..., D), gamma and beta (D,), eps: constant rows, a single row, offsets, variances near eps."""
    yield constant(d, 3, 5, 4), d.values(4), d.values(4), 1e-2
    yield d.values(9), d.values(9), d.values(9), 1e-2
    yield d.values(5, 3), constant(d, 0, 3), d.values(3), 1e-2
    if is_long(d):
        yield d.values(2, 1030), d.values(1030), d.values(1030), 1e-2
    if is_wide(d):
        yield d.values(5, 8, shift=1e4 if d.dtype == "float64" else 16.0), d.values(8), d.values(8), 1e-2
        yield d.values(5, 8, scale=1e-3), d.values(8), d.values(8), 1e-6
        yield d.values(5, 8, scale=1e4), d.values(8), d.values(8), 1e-6


@special
def layer_norm(d):
    for x, gamma, beta, eps in norms(d):
        yield Call((x, gamma, beta), {"eps": eps})


@special
def dropout(d):
    for rate in RATES:
        yield Call((d.values(7, 47), npx.DropoutSpec(rate, KEY)))
    yield Call((d.values(3), npx.DropoutSpec(0.3, KEY)))
    yield Call((constant(d, 2), npx.DropoutSpec(0.5, KEY)))
    yield Call((constant(d, 0, 4, 9), npx.DropoutSpec(0.5, KEY)))
    yield Call((d.values(4, 9), None))
    if is_wide(d):
        yield Call((d.values(4, 9, scale=1e4), npx.DropoutSpec(0.5, KEY)))
        yield Call((d.values(4, 9, scale=1e-6), npx.DropoutSpec(0.5, KEY)))


@special
def dropout_residual_norm(d):
    for i, (x, gamma, beta, eps) in enumerate(norms(d)):
        rate = RATES[i % 5]
        yield Call((x, d.values(*x.shape), gamma, beta), {"drop": npx.DropoutSpec(rate, KEY), "eps": eps})
    yield Call(
        (d.values(5, 33), d.values(5, 33), d.values(33), d.values(33), npx.DropoutSpec(0.999, KEY)), {"eps": 1e-2}
    )


@special
def linear(d):
    zeros = constant(d, 0, 7, 3)
    if is_long(d):
        yield Call((d.values(3, 1030), d.values(1030, 2), None, None))
    for activation in ("relu", None):
        yield Call((zeros, d.values(3, 4), constant(d, 0, 4), activation))  # at the ReLU's kink
        yield Call(
            (d.values(1, 3), d.values(3, 4), d.values(4, shift=-9), activation)
        )  # one row, and the ReLU is 0 everywhere
        yield Call((d.values(7, 1), d.values(1, 1), None, activation))
        if is_wide(d):
            yield Call((d.values(7, 3, scale=1e4), d.values(3, 4, scale=1e4), d.values(4), activation))
            yield Call((d.values(7, 3, scale=1e-6), d.values(3, 4), d.values(4, scale=1e-6), activation))


@special
def embedding(d):
    table = d.values(6, 3)
    for ids in ([2] * 7, [5, 5, 5], [5, 4, 3, 2, 1, 0], [0, 5, 0, 5, 0], [[1, 3], [3, 1], [5, 5]], [4]):
        yield Call((table, np.array(ids), 1.0))
    for scale in (0.0, -1.0, 1e-3):
        yield Call((table, np.array([3, 1, 3, 5]), scale))
    if is_long(d):
        yield Call((d.values(3, 1030), np.array([2, 0, 2]), 1.0))
        yield Call((d.values(1030, 2), np.array([1029, 0, 1029]), 1.0))
    yield Call((d.values(1, 3), np.array([0, 0]), 2.5))


@special
def attention(d):
    def qkv(b, t, s, h, d_k, d_v, scale=1.0):
        # Integers, so that large scores are exact.
        q, k = (np.round(x) for x in (d.values(b, t, h, d_k, scale=scale), d.values(b, s, h, d_k, scale=2)))
        if scale > 1:  # two keys with equal scores
            q[..., 0] = 0
            k[:, 1] = k[:, 0]
            k[:, 1, :, 0] += 1
        return (q.astype(d.dtype), k.astype(d.dtype), d.values(b, s, h, d_v))

    rows = np.zeros((5, 4), bool)
    rows[::2, :3] = True
    yield Call(
        (*qkv(3, 5, 4, 2, 4, 3), AttentionSpec(constant_bias=npx.mask_bias(rows)))
    )  # two axes; some queries attend to no key
    yield Call((*qkv(3, 5, 4, 2, 4, 3), AttentionSpec(constant_bias=npx.mask_bias(rows & False))))
    yield Call((*qkv(3, 5, 3, 2, 4, 3), AttentionSpec(causal=True)))  # the first queries precede all keys
    yield Call((*qkv(3, 1, 4, 2, 4, 3), AttentionSpec(causal=True, kv_lengths=np.array([0, 4, 2]))))
    yield Call((*qkv(4, 2, 3, 1, 4, 3), AttentionSpec(kv_lengths=np.array([0, 1, 0, 9]))))
    yield Call((*qkv(3, 2, 1, 2, 4, 1), AttentionSpec()))  # one key
    masks = np.arange(3 * 2 * 2 * 4).reshape(3, 2, 2, 4) % 5 < 3
    yield Call((*qkv(3, 2, 4, 2, 4, 3), AttentionSpec(constant_bias=npx.mask_bias(masks))))  # one per sentence and head
    if is_long(d):
        yield Call((*qkv(1, 2, 1030, 1, 2, 1), AttentionSpec(causal=True)))  # many keys, many queries
        yield Call((*qkv(1, 1030, 2, 1, 2, 1), AttentionSpec()))
    for rate in RATES:
        yield Call(
            (*qkv(3, 4, 5, 2, 4, 3), AttentionSpec()),
            {"drop": npx.DropoutSpec(rate, KEY)},
            gradient_options={"return_bias_grad": True},
        )
    if is_wide(d):
        yield Call((*qkv(3, 4, 5, 2, 4, 3, scale=overflow_size(d) / 4), AttentionSpec()))
        yield Call((*qkv(3, 4, 5, 2, 4, 3), AttentionSpec(constant_bias=np.arange(20).reshape(4, 5) % 3 * -5e3)))
        yield Call((*qkv(3, 4, 5, 2, 4, 3), AttentionSpec(constant_bias=constant(d, overflow_size(d), 2, 4, 5))))


def losses(d, classes):
    """Yield targets and smoothing for 7 rows."""
    pad = classes - 1
    yield np.full(7, pad), LabelSmoothing(0.1, "all", pad)  # only padding
    yield np.arange(7) % pad, LabelSmoothing(0.1, "others_without_pad", pad)  # no padding
    yield np.array([0, 1, 1, 0, 1, 1, 0]), LabelSmoothing(0.0, "all", 0)  # the first and the last row are padding
    yield np.array([1, 1, 1, 1, 1, 1, 2]), LabelSmoothing(0.9, "others", 2)
    yield np.array([2, 2, 2, 2, 2, 2, 1]), LabelSmoothing(0.1, "others", 2)  # all rows but one are padding
    yield np.arange(7) % classes, LabelSmoothing(0.0, "others", -1)  # no class is padding
    for no_class in (-1, classes, -100):
        yield np.arange(7) % classes, LabelSmoothing(0.1, "others_without_pad", no_class)


@special
def cross_entropy(d):
    for targets, smoothing in losses(d, 5):
        yield Call((d.values(7, 5), targets, smoothing))
    targets = np.arange(7) % 5
    yield Call((constant(d, 0.5, 7, 5), targets, LabelSmoothing(0.1, "all", 3)))  # ties
    yield Call((d.values(7, 2), targets % 2, LabelSmoothing(0.1, "others", -1)))
    yield Call((d.values(7, 1), targets * 0, LabelSmoothing(0.0, "all", -1)))  # one class
    yield Call((d.values(7, 2), targets % 2, LabelSmoothing(0.1, "others_without_pad", 0)))  # no class to smooth over
    yield Call((d.values(7, 1), targets * 0, LabelSmoothing(0.1, "others", -1)))
    excluded = d.values(7, 5)
    excluded[:, 3] = -np.inf
    for smoothing in (LabelSmoothing(0.0, "all", -1), LabelSmoothing(0.1, "others_without_pad", 3)):
        yield Call((excluded, targets % 3, smoothing))  # class 3 has probability 0 and is not a target
    if is_wide(d):
        for shift in (overflow_size(d), -overflow_size(d)):
            yield Call((d.values(7, 5, shift=shift), targets, LabelSmoothing(0.0, "all", 3)))
        yield Call((d.values(7, 5, scale=overflow_size(d)), targets, LabelSmoothing(0.1, "all", 3)))
        yield Call((d.values(7, 5, scale=1e-6), targets, LabelSmoothing(0.1, "all", 3)))


@special
def linear_cross_entropy(d):
    for targets, smoothing in losses(d, 5):
        yield Call((d.values(7, 3), d.values(5, 3), targets, smoothing))
    targets = np.arange(7) % 5
    yield Call((constant(d, 0, 7, 3), d.values(5, 3), targets, LabelSmoothing(0.1, "all", 3)))  # ties
    yield Call((d.values(7, 3), d.values(2, 3), targets % 2, LabelSmoothing(0.1, "others", -1)))
    yield Call((d.values(7, 3), d.values(1, 3), targets * 0, LabelSmoothing(0.0, "all", -1)))  # one class
    yield Call((d.values(1, 3), d.values(9, 3), targets[4:5], LabelSmoothing(0.1, "all", 3)))  # one row
    if is_wide(d):
        x, w = (np.round(d.values(n, 3, scale=2)).astype(d.dtype) for n in (7, 5))
        x[:, 0] = 1
        shift = np.array([overflow_size(d), 0, 0], d.dtype)
        yield Call((x, w + shift, targets, LabelSmoothing(0.0, "all", 3)))
        yield Call((x, w - shift, targets, LabelSmoothing(0.0, "all", 3)))
        yield Call((x * 32, w * 2, targets, LabelSmoothing(0.1, "all", 3)))
        yield Call((d.values(7, 3, scale=1e-6), w, targets, LabelSmoothing(0.1, "all", 3)))


@special
def adam(d):
    def state(n=9, scale=1.0):
        return d.values(n), d.values(n, scale=scale), d.values(n), abs(d.values(n))

    zeros = [constant(d, 0, 5) for _ in range(3)]
    if not is_wide(d):
        return
    yield Call((*state(), npx.adam_coefficients(3, 0.5, weight_decay=0.1)))
    yield Call((d.values(5), *zeros, npx.adam_coefficients(1, 0.5)))  # 0 / (0 + eps)
    yield Call((d.values(5), d.values(5), *zeros[1:], npx.adam_coefficients(1, 0.5)))
    for step, lr in ((1, 1e3), (100_000, 1e3), (4, 0.0), (4, 1e-6)):
        yield Call((*state(), npx.adam_coefficients(step, lr, weight_decay=0.1)))
    for scale in (1e4, 1e-6):
        yield Call((*state(scale=1 / scale), npx.adam_coefficients(3, 0.5, grad_scale=scale)))
        yield Call((*state(scale=scale), npx.adam_coefficients(3, 0.5, eps_before_correction=True)))
    if d.dtype == "float64":
        yield Call((*state(17), npx.adam_coefficients(3, 0.5)), {"p_compute": np.zeros(17, "float16")})


@special
def log_softmax_top_k(d):
    ties = np.round(d.values(5, 7)).astype(d.dtype)
    for k in (1, 3, 7):
        yield Call((ties, k, ()))
        yield Call((ties, k, (0, 6)))  # only 5 of 7 columns remain
        yield Call((constant(d, -2, 5, 7), k, (1,)))
        yield Call((ties, k, (3, 3)))  # repeated
    yield Call((np.round(d.values(5, 26)).astype(d.dtype), 3, (4,)))  # ties in several blocks of 2 or 3 columns
    sparse = constant(d, -np.inf, 5, 26)
    sparse[:, ::13] = d.values(5, 2)  # fewer blocks than k
    yield Call((sparse, 3, ()))
    ones = constant(d, 0, 3, 9)
    ones[0, 8] = ones[1, 4:7] = ones[2, ::2] = 1
    yield Call((ones, 2, ()))
    last = d.values(3, 100)  # six groups of 16 columns and four columns that belong to no group
    last[:, 97:] += 5
    yield Call((last, 4, (98,)))
    high = d.values(3, 9)
    high[:, 4] = overflow_size(d)
    yield Call((high, 2, (4,)))
    two_finite = d.values(5, 7)
    two_finite[:, 2:] = -np.inf
    two_finite[3] = 0
    yield Call((two_finite, 4, (0,)))
    yield Call((d.values(5, 1), 1, ()))
    for scale in (overflow_size(d), 1e-6):
        yield Call((d.values(5, 7, scale=scale), 3, (2,)))
    yield Call((d.values(5, 7, shift=overflow_size(d)), 3, (2,)))


def recurrent_calls(d, n_gates, n_states):
    """Yield calls with gates of 0 and 1 in the first sentence, without z or w, and with a large state."""
    b = () if n_gates == 4 else (d.values(2),)
    z, w = d.values(3, 2, n_gates * 2), d.values(2, n_gates * 2)
    saturated = z.copy()
    saturated[:, 0] *= 50
    for inputs in ((saturated, w), (0 * z, w), (z, 0 * w)):
        yield Call((*inputs, *b, d.writable(n_states, 2, 2)))
    largest = 30 if n_gates == 4 else 3  # a GRU multiplies the rounding errors of its gates by its state
    yield Call((z, w, *b, constant(d, largest, n_states, 2, 2)))


@special
def lstm(d):
    return recurrent_calls(d, 4, 2)


@special
def gru(d):
    return recurrent_calls(d, 3, 1)
