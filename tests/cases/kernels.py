"""Cases of the kernels (npx/kernels), in float64 and float32. Next: `layers.py`."""

from hypothesis import strategies as st

import npx
from autograd.testing import strategies as s
from tests.cases.base import CASES, Call, case, leading, size
from tests.cases.neural import BOUNDED, attention_sizes, dropped, keys, normed, smoothed


def real(draw, *shape, dtype, styles=BOUNDED):
    return draw(s.arrays(shape, styles, dtype))


def dtypes(draw):
    return draw(st.sampled_from(["float64", "float32"]))


@case
def kernel_softmax(draw):
    call = draw(CASES["operation softmax"])
    return Call((call.inputs[0].astype(dtypes(draw)), call.inputs[1]))


@case
def kernel_softmax_grad(draw):
    shape, dtype = (*leading(draw), draw(size(4))), dtypes(draw)
    y = npx.softmax.reference(real(draw, *shape, dtype=dtype))
    return Call((real(draw, *shape, dtype=dtype, styles=s.STYLES), y))


@case
def kernel_layer_norm(draw):
    return Call((*normed(draw, dtypes(draw)), 1e-2))


@case
def kernel_layer_norm_grad(draw):
    dtype = dtypes(draw)
    x, gamma, beta = normed(draw, dtype)
    _, xhat, rstd = npx.layer_norm.reference(x, gamma, beta, 1e-2)
    return Call((real(draw, *x.shape, dtype=dtype), gamma, xhat, rstd))


@case
def kernel_dropout(draw):
    x = real(draw, *leading(draw), draw(size(40)), dtype=dtypes(draw), styles=s.STYLES)
    return Call((x, draw(st.sampled_from([0.3, 0.9])), draw(keys())))


@case
def kernel_dropout_grad(draw):
    x, rate, key = draw(CASES["kernel dropout"]).inputs
    return Call((x, rate, npx.dropout.reference(x, rate, key)[1]))


@case
def kernel_dropout_residual_norm(draw):
    dtype = dtypes(draw)
    x, gamma, beta = normed(draw, dtype)
    residual = real(draw, *x.shape, dtype=dtype, styles=("plain", "normal"))
    return Call((x, residual, gamma, beta, 0.3, draw(st.none() | keys()), 1e-2))


@case
def kernel_dropout_residual_norm_grad(draw):
    inputs = draw(CASES["kernel dropout_residual_norm"]).inputs
    _, xhat, rstd, keep = npx.dropout_residual_norm.reference(*inputs)
    return Call((real(draw, *xhat.shape, dtype=xhat.dtype.name), inputs[2], xhat, rstd, keep, 0.3))


@case
def kernel_linear(draw):
    n, i, o, dtype = draw(size(5, 0)), draw(size()), draw(size()), dtypes(draw)
    b = draw(st.none() | s.arrays((o,), BOUNDED, dtype))
    return Call((real(draw, n, i, dtype=dtype), real(draw, i, o, dtype=dtype), b, draw(st.booleans())))


@case
def kernel_linear_grad(draw):
    x, w, b, relu = draw(CASES["kernel linear"]).inputs
    y = npx.linear.reference(x, w, b, relu)
    return Call((real(draw, *y.shape, dtype=x.dtype.name), x, w, y if relu else None, b is not None))


@case
def kernel_embedding(draw):
    rows, dtype = draw(size(4)), dtypes(draw)
    return Call((real(draw, rows, draw(size()), dtype=dtype), draw(s.indices(rows))))


@case
def kernel_embedding_grad(draw):
    table, ids = draw(CASES["kernel embedding"]).inputs
    return Call((real(draw, *ids.shape, table.shape[1], dtype=table.dtype.name), ids, len(table)))


@case
def kernel_attention(draw):
    b, t, source, h, d_k, d_v, how = attention_sizes(draw, least=0)
    dtype, shapes = dtypes(draw), ((b, t, h, d_k), (b, source, h, d_k), (b, source, h, d_v))
    return Call((*(real(draw, *z, dtype=dtype) for z in shapes), how), dropped(draw))


@case
def kernel_attention_grad(draw):
    call = draw(CASES["kernel attention"])
    out, p, keep = npx.attention.reference(*call.inputs, **call.options)
    q, k, v, how = call.inputs
    given = tuple(npx.zeros(x.shape, x.dtype) for x in (q, k, v)) if draw(st.booleans()) else None
    g = real(draw, *out.shape, dtype=q.dtype.name)
    return Call((g, q, k, v, p, keep, call.options["rate"]), {"out": given, "scores": how})


@case
def kernel_cross_entropy(draw):
    call, n, classes = draw(st.builds(Call, st.just(()))), draw(size(6, 0)), draw(size(6, least=4))
    logits = real(draw, n, classes, dtype=dtypes(draw), styles=s.STYLES)
    call.inputs, call.options = (logits, draw(s.indices(classes, (n,)))), smoothed(draw) | {"grad": draw(st.booleans())}
    return call


@case
def kernel_linear_cross_entropy(draw):
    call, d = draw(CASES["kernel cross_entropy"]), draw(size())
    logits, targets = call.inputs
    x, w = (real(draw, n, d, dtype=logits.dtype.name) for n in logits.shape)
    return Call((x, w, targets), call.options)


@case
def kernel_adam(draw):
    n, dtype = draw(size(40, 0)), dtypes(draw)
    p, g, m, v = (real(draw, n, dtype=dtype, styles=("plain", "normal", "zeros")) for _ in range(4))
    rest = {"weight_decay": draw(st.sampled_from([0.0, 0.1])), "eps_inside": draw(st.booleans()), "eps": 1e-3}
    rest["scale"] = draw(st.sampled_from([1.0, 0.3]))
    return Call((p, g, m, abs(v), draw(st.integers(1, 9999)), draw(st.sampled_from([0.5, 0.0]))), rest)


@case
def kernel_top_k(draw):
    rows, columns = draw(size()), draw(st.integers(1, 6))
    logits = real(draw, rows, columns, dtype=dtypes(draw))
    never = draw(st.sets(st.integers(0, columns - 1), max_size=2))
    return Call((logits, draw(st.integers(1, columns)), tuple(sorted(never))))
