"""Bugs in the fast versions of kernels, detected by comparison with the reference."""

from tests.mutants.base import fast, scale_in_place

fast(
    "softmax",
    "not normalized if masked",
    lambda f, x, mask=None: (f(x, mask)[0] * (1 if mask is None else 1.001), f(x, mask)[1]),
)
fast(
    "layer_norm_grad",
    "last row missing from the sums",
    lambda f, g, *saved, **options: (f(g, *saved)[0], *(x * 0.99 for x in f(g, *saved)[1:])),
)
fast(
    "adam",
    "step size of a different step",
    lambda f, p, g, m, v, numbers, copy=None: f(p, g, m, v, numbers._replace(step_size=1.01 * numbers.step_size), copy),
)
fast("linear_grad", "incoming gradient overwritten", lambda f, g, *a, **options: f(scale_in_place(g, 2.0), *a), "state")
