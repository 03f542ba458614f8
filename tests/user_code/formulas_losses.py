"""Losses, scans, convolutions, pooling and gathers with a right and a wrong gradient; see formula.py."""

from tests.user_code.formula import formula, sigmoid, softmaxed, total

# Losses


@formula((4, 6), 4)
def cross_entropy(xp):
    def forward(x, ids):
        p = softmaxed(xp, x)
        chosen = xp.where(ids[:, None] == xp.arange(x.shape[1])[None, :], 1.0 + 0 * x, 0 * x)
        shifted = x - xp.amax(x, axis=-1, keepdims=True)
        loss = chosen * (xp.log(total(xp.exp(shifted))) - shifted)  # 0 for an id that is not a column
        return loss.sum() / x.shape[0], (p * total(chosen), chosen)

    def right(g, cache):
        p, chosen = cache
        return g * (p - chosen) / p.shape[0], None

    return forward, right, lambda g, cache: (g * (cache[0] - cache[1]), None)


@formula((4, 6), (4, 6))
def squared_error(xp):
    def forward(x, y):
        d = x - y
        return (d * d).sum() / d.shape[0], d

    return forward, lambda g, d: (2 * g * d / d.shape[0], -2 * g * d / d.shape[0]), lambda g, d: (g * d, -g * d)


@formula((4, 6))
def huber(xp):
    def forward(x):
        return xp.where(xp.abs(x) < 1, 0.5 * x * x, xp.abs(x) - 0.5), x

    return (
        forward,
        lambda g, x: g * xp.clip(x, -1, 1),
        lambda g, x: g * xp.where(xp.abs(x) < 1, x, 1 + 0 * x),
    )


@formula((4, 6))
def softplus(xp):
    def forward(x):
        return xp.where(x > 0, x, 0 * x) + xp.log1p(xp.exp(-xp.abs(x))), x

    return forward, lambda g, x: g * sigmoid(xp, x), lambda g, x: g * sigmoid(xp, -x)


@formula((4, 6))
def log_sum_exp(xp):
    def forward(x):
        top = xp.amax(x, axis=-1, keepdims=True)
        return (top + xp.log(total(xp.exp(x - top))))[..., 0], x

    return forward, lambda g, x: g[..., None] * softmaxed(xp, x), lambda g, x: g[..., None] * xp.exp(x) / 10


@formula((4, 6), (4, 6))
def triplet_margin(xp):
    def forward(x, y):
        d = 1 + total((x - y) * (x - y))[..., 0] - total((x + y) * (x + y))[..., 0]
        return xp.where(d > 0, d, 0 * d), (x, y, d)

    def right(g, cache):
        x, y, d = cache
        h = xp.where(d > 0, g, 0 * g)[..., None]
        return -4 * h * y, -4 * h * x

    def wrong(g, cache):
        x, y, d = cache
        return -4 * g[..., None] * y, -4 * g[..., None] * x

    return forward, right, wrong


# Scans, convolutions, pooling, gathers


@formula((4, 6))
def cumulative_sum(xp):
    def forward(x):
        return xp.cumsum(x, 0), x

    def right(g, x):
        return g.sum(axis=0) - xp.cumsum(g, 0) + g

    return forward, right, lambda g, x: xp.cumsum(g, 0)


@formula((4, 6))
def moving_average(xp):
    def forward(x):
        h, rows = 0 * x[:1], []
        for t in range(x.shape[0]):
            h = 0.9 * h + 0.1 * x[t : t + 1]
            rows.append(h)
        return xp.concatenate(rows, axis=0) if rows else x, x

    def scan(g, decay):
        h, rows = 0 * g[:1], []
        for t in reversed(range(g.shape[0])):
            h = decay * h + g[t : t + 1]
            rows.append(0.1 * h)
        return xp.concatenate(rows[::-1], axis=0) if rows else g

    return forward, lambda g, x: scan(g, 0.9), lambda g, x: scan(g, 0.0)


@formula((6, 5))
def convolution(xp):
    def shifted(x, k):
        zeros = 0 * x[:1]
        return xp.concatenate([x[1:], zeros], axis=0) if k > 0 else xp.concatenate([zeros, x[:-1]], axis=0)

    def forward(x):
        return 0.5 * shifted(x, -1) + 0.3 * x + 0.2 * shifted(x, 1), x

    return (
        forward,
        lambda g, x: 0.5 * shifted(g, 1) + 0.3 * g + 0.2 * shifted(g, -1),
        lambda g, x: 0.5 * shifted(g, -1) + 0.3 * g + 0.2 * shifted(g, 1),
    )


@formula((4, 6))
def average_pool(xp):
    def forward(x):
        n = x.shape[-1] // 2
        return (x[..., 0 : 2 * n : 2] + x[..., 1 : 2 * n : 2]) / 2, x

    def spread_out(g, x, factor):
        n = x.shape[-1] // 2
        both = xp.stack([g, g], axis=-1).reshape((*g.shape[:-1], 2 * n))
        return xp.concatenate([both * factor, 0 * x[..., 2 * n :]], axis=-1)

    return forward, lambda g, x: spread_out(g, x, 0.5), lambda g, x: spread_out(g, x, 1.0)


@formula((4, 6))
def max_pool(xp):
    def forward(x):
        n = x.shape[-1] // 2
        a, b = x[..., 0 : 2 * n : 2], x[..., 1 : 2 * n : 2]
        return xp.where(a >= b, a, b), (x, a, b)

    def gradient(g, cache, left):
        x, a, b = cache
        pair = xp.stack([g * left, g * (1 - left)], axis=-1).reshape((*g.shape[:-1], 2 * g.shape[-1]))
        return xp.concatenate([pair, 0 * x[..., 2 * g.shape[-1] :]], axis=-1)

    return (
        forward,
        lambda g, cache: gradient(g, cache, xp.where(cache[1] >= cache[2], 1.0 + 0 * g, 0 * g)),
        lambda g, cache: gradient(g, cache, 0.5 + 0 * g),
    )


@formula((4, 6), 5)
def embedding(xp):
    def forward(table, ids):
        hot = ids[:, None] == xp.arange(table.shape[0])[None, :]
        return xp.where(hot, 1.0 + 0 * table[:1, :1], 0 * table[:1, :1]) @ table, (table, hot)

    def gradient(g, table, hot):
        return xp.where(hot, 1.0 + 0 * table[:1, :1], 0 * table[:1, :1]).T @ g

    def wrong(g, cache):
        table, hot = cache
        later = xp.cumsum(xp.where(hot, 1, 0), 0)
        return gradient(g, table, hot & (later == 1)), None  # the first of several equal ids wins

    return forward, lambda g, cache: (gradient(g, *cache), None), wrong


@formula((4, 6))
def straight_absolute(xp):
    def forward(x):
        return xp.abs(x), x

    return forward, lambda g, x: g * xp.sign(x), lambda g, x: g


@formula((4, 6), (4, 6))
def interpolation(xp):
    def forward(x, y):
        s = sigmoid(xp, x)
        return s * x + (1 - s) * y, (x, y, s)

    def right(g, cache):
        x, y, s = cache
        return g * (s + s * (1 - s) * (x - y)), g * (1 - s)

    return forward, right, lambda g, cache: (g * cache[2], g * (1 - cache[2]))
