"""Deliberately wrong gradients, one for each mistake that is easily made, which the kit has to find.

Each `Mutant` is planted in an operation, a kernel or a layer, and looked for with that entry's own case in `cases`,
the one that test_registry_checks.py uses: nothing is made for a mutant. `python -m tests.mutants` prints how many
examples and seconds each took to find, as docs/mutants.md has it.
"""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import models
import npx
from autograd import OPERATIONS, Tensor, differentiable, neural
from autograd.operations import _expand, unbroadcast
from tests import cases

Patch = pytest.MonkeyPatch


@dataclass
class Mutant:
    """A mistake: what is wrong, its family, how to plant it, and the entry of cases.py that it is looked for with."""

    name: str
    family: str
    entry: str
    plant: Callable[[Patch], None]


MUTANTS: list[Mutant] = []
# The right ones, for wrong ones that take their places.
CROSS_ENTROPY, SOFTMAX_GRAD, LAYER_NORM_GRAD = npx.cross_entropy, npx.softmax_grad, npx.layer_norm_grad
LINEAR_GRAD, ATTENTION_GRAD = npx.linear_grad, npx.attention_grad


def operation(name: str, mistake: str, family: str, function: Callable[..., Any]) -> None:
    """A mutant that replaces an operation; `function` takes arrays and returns the output and a vjp."""

    def plant(patch: Patch) -> None:
        function.__name__, function.__module__ = name, OPERATIONS[name].__module__
        patch.setitem(OPERATIONS, name, OPERATIONS[name])  # restored afterwards
        differentiable(function)

    MUTANTS.append(Mutant(f"{name}: {mistake}", family, f"operation {name}", plant))


def vjp(name: str, mistake: str, family: str, change: Callable[..., Any]) -> None:
    """A mutant of an operation's gradient alone; change(right vjp, g, y, *inputs) gives the wrong gradients."""
    raw = OPERATIONS[name].__wrapped__  # type: ignore[attr-defined]

    def function(*args: Any, **kwargs: Any) -> Any:
        y, right = raw(*args, **kwargs)
        return y, lambda g: change(right, g, y, *args, **kwargs)

    operation(name, mistake, family, function)


def kernel(name: str, mistake: str, family: str, function: Callable[..., Any], entry: str) -> None:
    """A mutant that replaces a kernel where the operations call it."""
    MUTANTS.append(Mutant(f"{name}: {mistake}", family, entry, lambda patch: patch.setattr(npx, name, function)))


def fast(name: str, mistake: str, change: Callable[..., Any]) -> None:
    """A mutant of the fast versions of a kernel or a gradient; change(right version, *args) gives the wrong result."""
    versions = getattr(npx, name).versions

    def plant(patch: Patch) -> None:
        for key, right in list(versions.items()):
            patch.setitem(versions, key, lambda *args, right=right, **kw: change(right, *args, **kw))

    MUTANTS.append(Mutant(f"{name}: {mistake}", "fast kernel", f"kernel {name.removesuffix('_grad')}", plant))


def layer(kind: str, mistake: str, forward: Callable[..., Any]) -> None:
    """A mutant that replaces a layer's forward."""
    target = getattr(models, kind)
    MUTANTS.append(
        Mutant(f"{kind}: {mistake}", "layer", f"layer {kind}", lambda patch: patch.setattr(target, "forward", forward))
    )


def corrupting(g, factor):
    """g times factor, written over g."""
    g *= factor
    return g


def overwritten(shape, index, g):
    """g put where `index` says, the last of several values at one place winning."""
    gx = npx.zeros(shape, g.dtype)
    gx[index] = g
    return gx


def keeping(y, kept, grad):
    """Output y with the gradient grad(g, y), whose closure keeps an array more than it has to."""
    return y, lambda g: (grad(g, y) + 0 * kept.sum(),)


def rounded(x):
    """Through float32 and back."""
    return x.astype("float32").astype(x.dtype)


# Arithmetic

operation("add", "broadcast reduction lost", "arithmetic", lambda a, b: (a + b, lambda g: (g, g)))
operation(
    "multiply", "summed over one broadcast axis only", "arithmetic",
    lambda a, b: (a * b, lambda g: (
        unbroadcast(g * b, a) if hasattr(a, "shape") else None,
        g * a if getattr(b, "shape", ()) == g.shape else (g * a).sum(axis=0) if hasattr(b, "shape") else None,
    )),
)  # fmt: skip
vjp("subtract", "sign of the second lost", "arithmetic", lambda r, g, y, a, b: (r(g)[0], unbroadcast(g, b)))
vjp("multiply", "gradients given to the wrong inputs", "arithmetic", lambda r, g, y, a, b: r(g)[::-1])
vjp("tanh", "incoming gradient written over", "functions", lambda r, g, y, x: (corrupting(g, 1 - y * y),))
vjp("divide", "square of the denominator lost", "arithmetic",
    lambda r, g, y, a, b: (r(g)[0], None if isinstance(b, (int, float)) else unbroadcast(-g * a / b, b)))
vjp("divide", "gradient of the denominator missing", "arithmetic", lambda r, g, y, a, b: (r(g)[0], None))
vjp("negative", "sign", "arithmetic", lambda r, g, y, x: (g,))
vjp("power", "exponent not lowered", "arithmetic", lambda r, g, y, x, n: (g * n * x**n,))
operation("negative", "input written over", "arithmetic", lambda x: (npx.multiply(x, -1, out=x), lambda g: (-g,)))
vjp("add", "factor two", "arithmetic",
    lambda r, g, y, a, b: tuple(None if x is None else 2 * x for x in r(g)))

# Functions of each entry

vjp("exp", "derivative of e^x lost", "functions", lambda r, g, y, x: (g,))
vjp("log", "multiplied instead of divided", "functions", lambda r, g, y, x: (g * x,))
vjp("sqrt", "factor 1/2 lost", "functions", lambda r, g, y, x: (g / y,))
vjp("tanh", "1 - y instead of 1 - y^2", "functions", lambda r, g, y, x: (g * (1 - y),))
vjp("sigmoid", "factor y lost", "functions", lambda r, g, y, x: (g * (1 - y),))
vjp("sigmoid", "second order in g", "functions", lambda r, g, y, x: (r(g)[0] * (1 + 1e-7 * g),))
vjp("relu", "mask inverted", "functions", lambda r, g, y, x: (g * (x <= 0),))
vjp("relu", "gradient cast to float32", "functions", lambda r, g, y, x: ((g * (x > 0)).astype("float32"),))
vjp("tanh", "rounded to float32 on the way", "functions", lambda r, g, y, x: (rounded(r(g)[0]),))
operation("exp", "output turned into float32 by default", "functions",
          lambda x: (npx.exp(x).astype("float32"), lambda g: (g.astype(x.dtype) * npx.exp(x),)))
vjp("absolute", "sign lost", "functions", lambda r, g, y, x: (g,))
vjp("maximum", "ties given to both", "functions",
    lambda r, g, y, a, b: (unbroadcast(g * (a >= b), a) if hasattr(a, "shape") else None,
                           unbroadcast(g * (b >= a), b) if hasattr(b, "shape") else None))
vjp("where", "condition swapped", "functions",
    lambda r, g, y, m, a, b: (None, unbroadcast(npx.where(m, 0, g), a), unbroadcast(npx.where(m, g, 0), b)))
vjp("exp", "right only for contiguous input", "functions",
    lambda r, g, y, x: (g * npx.exp(npx.asarray(x).view() if x.flags.c_contiguous else npx.sort(x, axis=-1)),))
operation("tanh", "something large kept", "functions",
          lambda x: keeping(npx.tanh(x), npx.zeros(100), lambda g, y: g * (1 - y * y)))

# Products

vjp("matmul", "factor not transposed", "products",
    lambda r, g, y, a, b: (g @ b, r(g)[1]) if y.shape == a.shape == b.shape and a.ndim == 2 else r(g))
vjp("matmul", "factors exchanged", "products",
    lambda r, g, y, a, b: (r(g)[1].T.reshape(a.shape), r(g)[0].T.reshape(b.shape)) if a.size == b.size else r(g))
vjp("matmul", "gradient of the second transposed", "products",
    lambda r, g, y, a, b: (r(g)[0], r(g)[1].swapaxes(-1, -2) if b.ndim > 1 and b.shape[-1] == b.shape[-2] else r(g)[1]))
vjp("matmul", "gradients of rows lost for vectors", "products",
    lambda r, g, y, a, b: (npx.zeros_like(a) if a.ndim == 1 else r(g)[0], r(g)[1]))

# Reductions

operation("sum", "expanded along the wrong axis", "reductions", lambda x, axis=None, keepdims=False: (
    npx.sum(x, axis=axis, keepdims=keepdims),
    lambda g: (npx.transpose(_expand(g, x, axis, keepdims)) if x.ndim == 2 and x.shape[0] == x.shape[1]
               else _expand(g, x, axis, keepdims),)))
vjp("sum", "only the first of several", "reductions",
    lambda r, g, y, x, **how: (r(g)[0] * (npx.arange(x.size).reshape(x.shape) == 0),))
vjp("mean", "not divided by the count", "reductions",
    lambda r, g, y, x, axis, keepdims: (_expand(g, x, axis, keepdims),))
vjp("max", "ties given twice", "reductions",
    lambda r, g, y, x, axis, keepdims: (
        _expand(g, x, axis, keepdims) * (x == _expand(y, x, axis, keepdims)),))
vjp("min", "gradient of the maximum", "reductions",
    lambda r, g, y, x, axis, keepdims: (
        _expand(g, x, axis, keepdims) * (x == npx.max(x, axis=axis, keepdims=True)),))

# Shapes

vjp("reshape", "order of the entries lost", "shapes", lambda r, g, y, x, shape: (g.reshape(-1)[::-1].reshape(x.shape),))
vjp("transpose", "permutation not inverted", "shapes",
    lambda r, g, y, x, axes: (npx.transpose(g, axes).reshape(x.shape),))
vjp("swapaxes", "not swapped back", "shapes", lambda r, g, y, x, i, j: (g.reshape(x.shape),))
vjp("broadcast_to", "one copy instead of their sum", "shapes",
    lambda r, g, y, x, shape: (r(g)[0] / max(1, g.size // max(1, x.size)),))
operation("getitem", "repeats overwritten instead of summed", "shapes",
          lambda x, index: (x[index], lambda g: (overwritten(x.shape, index, g),)))
vjp("concatenate", "parts swapped", "shapes",
    lambda r, g, y, *a, axis: r(g) if len({x.shape for x in a}) > 1 else r(g)[::-1])
vjp("stack", "every part gets the first", "shapes", lambda r, g, y, *a, axis: (r(g)[0],) * len(a))

# Softmax, layer norm, dropout

kernel("softmax_grad", "without its sum", "softmax", lambda g, saved: saved.values * g, "operation softmax")
kernel("softmax_grad", "sum over the wrong axis", "softmax",
       lambda g, saved: saved.values * (g - npx.sum(g * saved.values, axis=0, keepdims=True)), "operation softmax")
operation("softmax", "mask ignored in the gradient", "softmax",
          lambda x, mask=None: (npx.softmax(x, mask)[0], lambda g: (npx.softmax_grad(g, npx.softmax(x)[1]),)))
kernel("softmax_grad", "incoming gradient written over", "softmax",
       lambda g, saved: corrupting(g, 1.0) * 0 + SOFTMAX_GRAD(g, saved), "operation softmax")
operation("softmax", "input kept without need", "softmax",
          lambda x, mask=None: keeping(npx.softmax(x, mask)[0], x * 1.0, SOFTMAX_GRAD.reference))


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
       "operation embedding")

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
vjp("cross_entropy", "incoming gradient ignored", "loss", lambda r, g, y, *a, **k: r(npx.ones_like(g)))
vjp("linear_cross_entropy", "gradient of the embedding lost", "loss",
    lambda r, g, y, x, w, t, **k: (r(g)[0], npx.zeros_like(w)))

# Fast kernels against their references

fast("softmax", "not normalised when masked", lambda f, x, mask=None: (
    f(x, mask)[0] * (1 if mask is None else 1.001), f(x, mask)[1]))
fast("layer_norm_grad", "last row's share lost", lambda f, g, *saved: (
    f(g, *saved)[0], *(x * 0.99 for x in f(g, *saved)[1:])))
fast("adam", "step size of another step", lambda f, p, g, m, v, numbers, low=None: f(
    p, g, m, v, numbers._replace(step_size=1.01 * numbers.step_size), low))
fast("linear_grad", "incoming gradient written over", lambda f, g, *a: f(corrupting(g, 2.0), *a))

# Layers

layer("Linear", "bias detached from the graph", lambda self, x: OPERATIONS["linear"](
    x, self.weight, None if self.bias is None else self.bias.detach(), self.activation))
layer("LearnedPositions", "input detached from the graph", lambda self, x, start=0: Tensor(x.data) + (
    self.weight[start : start + x.shape[1]]))
layer("FeedForward", "dropout's scale computed from the data", lambda self, x: self.outer(
    self.inner(x) * (1 + float(x.data.sum()))))
layer("Residual", "sum not taken back to x", lambda self, x, f: neural.layer_norm(
    f(x) + x.detach(), self.norm.gamma, self.norm.beta, self.norm.eps))
layer("LayerNorm", "output written in float32", lambda self, x: neural.layer_norm(
    x, self.gamma, self.beta, self.eps).astype("float32").astype("float64"))


def find(mutant: Mutant) -> tuple[int, float, str] | None:
    """(examples until found, seconds, first line of the report), or None if the `ci` profile does not find it."""
    examples = 0

    @settings(cases.thoroughly(settings.get_profile("ci")), phases=[Phase.generate], report_multiple_bugs=False)
    @given(data=st.data())
    def search(data):
        nonlocal examples
        examples += 1
        cases.check(mutant.entry, data)

    start = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        try:
            search()
        except AssertionError as error:
            return examples, time.perf_counter() - start, f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def table() -> str:
    """Every mutant with the examples and seconds that it took to find, as Markdown."""
    rows = ["| Family | Mistake | Examples | Seconds | What the kit says |", "|---|---|---:|---:|---|"]
    for mutant in MUTANTS:
        found = find(mutant)
        said = found and re.sub(r"^\w+: (gradcheck|check_\w+): [\w, ]+: |;? most at .*", "", found[2])
        cells = f"{found[0]} | {found[1]:.2f} | {said}" if found else "not found | | "
        rows.append(f"| {mutant.family} | {mutant.name} | {cells} |")
    return "\n".join(rows)


if __name__ == "__main__":
    from tests import conftest  # noqa: F401  registers the profiles, as pytest does for the tests

    sys.stdout.write(table() + "\n")
