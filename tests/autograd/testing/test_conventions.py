"""Points at which several gradients are defensible, and errors at the same points."""

import numpy as np
import pytest

from autograd import differentiable
from autograd.testing import GradientError, check_operation, gradcheck
from autograd.testing.numerical import is_on_staircase

X = np.random.default_rng(0).normal(size=(4, 6))
AT_TIES = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 1.0, 2.0], [-1.0, 3.0, 3.0, -1.0]])
SEEDS = range(3)

pytestmark = [pytest.mark.usefixtures("registry"), pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")]


def elementwise(value, derivative):
    """Return an elementwise operation."""

    @differentiable
    def operation(x):
        return value(x), lambda g: (g * derivative(x),)

    return operation


def relu(x):
    return np.maximum(x, 0)


# Errors at a kink

AT_KINKS = {
    "|x|, 3 at 0": (np.abs, lambda x: np.where(x == 0, 3, np.sign(x))),
    "relu, NaN at 0": (relu, lambda x: np.where(x == 0, np.nan, x > 0)),
    "relu, both sides at 0": (relu, lambda x: 1.0 * (x > 0) + 2.0 * (x == 0)),
    "clip, 2 at the bound": (lambda x: np.clip(x, -1, 0.7), lambda x: (x > -1) * (x < 0.7) + 2.0 * (x == 0.7)),
    "leaky relu, 1.3 at 0": (lambda x: np.where(x > 0, x, 0.3 * x), lambda x: 1.0 * (x >= 0) + 0.3 * (x <= 0)),
    "hinge, -2 at 1": (lambda x: relu(1 - x), lambda x: -1.0 * (x < 1) - 2.0 * (x == 1)),
}


@pytest.mark.parametrize("bug", AT_KINKS)
def test_wrong_value_at_a_kink_is_found(bug):
    operation = elementwise(*AT_KINKS[bug])
    missed = []
    for seed in SEEDS:
        try:
            missed.append((seed, gradcheck(operation, np.array([0.0, 1.0, -2.0, 0.7, 1.0, -1.0]), seed=seed)))
        except GradientError as error:
            assert error.level == "wrong"
    assert missed == []


@pytest.mark.parametrize("at_zero", [-1.0, 0.0, 0.4, 1.0])
def test_any_value_between_the_slopes_is_right(at_zero):
    operation = elementwise(np.abs, lambda x: np.where(x == 0, at_zero, np.sign(x)))
    report = gradcheck(operation, np.array([0.0, 2.0, 0.0]))
    assert report.level == "convention" and len(report.kinks) == 2
    assert "kinks: 2, such as input 0 (0,)" in str(report)
    assert gradcheck(operation, np.array([1.0])).level == "right"


# Conventions


@differentiable
def median(x):
    """Median of all entries; equal entries share the gradient."""
    y = np.sort(x, axis=None)[x.size // 2]
    return y, lambda g: (g * (x == y) / float((x == y).sum()),)


@differentiable
def range_middle(x):
    """Minimum plus maximum of each row; equal entries share the gradient of the minimum or maximum."""
    low = x.min(axis=-1, keepdims=True)
    high = x.max(axis=-1, keepdims=True)

    def vjp(g):
        parts = [(x == y) / (x == y).sum(axis=-1, keepdims=True, dtype=x.dtype) for y in (low, high)]
        return (g[..., None] * sum(parts),)

    return (low + high)[..., 0], vjp


@differentiable
def unstable_sort(x):
    """Sorted rows; the order of equal entries is that of their last digits, reversed."""
    order = np.lexsort((-np.arange(x.shape[-1]) % 3 + 0 * x, x), axis=-1)

    def vjp(g):
        gx = np.zeros_like(x)
        np.put_along_axis(gx, order, g, axis=-1)
        return (gx,)

    return np.take_along_axis(x, order, axis=-1), vjp


@differentiable
def most_frequent(x):
    """Most frequent value of each row; its last position gets the gradient."""
    counts = (x[..., :, None] == x[..., None, :]).sum(axis=-1)
    index = x.shape[-1] - 1 - counts[..., ::-1].argmax(axis=-1)[..., None]

    def vjp(g):
        gx = np.zeros_like(x)
        np.put_along_axis(gx, index, g[..., None], axis=-1)
        return (gx,)

    return np.take_along_axis(x, index, axis=-1)[..., 0], vjp


@differentiable
def angle(y, x):
    """Polar angle, which jumps by 2 pi across the negative x-axis."""
    return np.arctan2(y, x), lambda g: (g * x / (x * x + y * y), -g * y / (x * x + y * y))


@differentiable
def with_sign(x, y):
    """The magnitude of x with the sign of y, including that of -0.0."""
    return np.copysign(x, y), lambda g: (g * np.sign(x) * np.copysign(1.0, y), np.zeros_like(y))


@pytest.mark.parametrize("operation", [median, range_middle, unstable_sort, most_frequent])
def test_order_statistics_at_ties_are_conventions(operation):
    for seed in SEEDS:
        gradcheck(operation, AT_TIES, seed=seed)


@pytest.mark.parametrize("operation", [median, pytest.param(range_middle, marks=pytest.mark.slow)])
def test_conventions_at_derived_inputs_are_listed(operation):
    assert check_operation(operation, X, compare_float32=False).conventions


@pytest.mark.parametrize("y", [0.0, -0.0])
def test_signed_zeros_at_a_jump_are_not_errors(y):
    assert gradcheck(angle, np.array([y, 1.0, -1.0, y]), np.array([-1.0, y, -2.0, 3.0]))
    assert gradcheck(with_sign, np.array([y, 1.0, -2.0]), np.array([y, y, -y]))


@differentiable
def jump_and_root(x):
    """sqrt(x) for x >= 0, else -1: infinitely steep on the right of the jump."""
    root = np.sqrt(np.maximum(x, 0))
    return np.where(x >= 0, root, -1), lambda g: (g * np.where(x >= 0, 0.5 / root, 0),)


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_a_gradient_that_is_not_finite_at_a_jump_is_wrong_unless_the_derivative_is_infinite():
    with pytest.raises(GradientError) as caught:
        gradcheck(angle, np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    assert caught.value.rule == "finite gradient"
    assert "analytic   nan\n    numerical  none; the function is discontinuous here" in str(caught.value)
    assert gradcheck(jump_and_root, np.array([0.0, 2.0])).inconclusive


# Errors that look like conventions


@differentiable
def determinant(x):
    """Determinant; the gradient det(x) inv(x).T is 0 where x is singular, instead of the cofactors."""
    y = np.linalg.det(x)
    return y, lambda g: ((g * y)[..., None, None] * np.linalg.pinv(x).swapaxes(-1, -2),)


@differentiable
def length(x):
    """Norm of each row; the gradient x / |x| is NaN at 0."""
    y = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return y[..., 0], lambda g: (g[..., None] * x / y,)


@differentiable
def median_to_all(x):
    """Median of all entries; each of several equal ones gets the complete gradient."""
    y = np.sort(x, axis=None)[x.size // 2]
    return y, lambda g: (g * (x == y),)


@differentiable
def sort_to_first(x):
    """Sorted rows; the gradient of equal entries goes to the first of them."""
    y = np.sort(x, axis=-1)

    def vjp(g):
        gx = np.zeros_like(x)
        first = (x[..., None, :] == y[..., :, None]).argmax(axis=-1)
        np.put_along_axis(gx, first, g, axis=-1)
        return (gx,)

    return y, vjp


@pytest.mark.parametrize("operation, rule", [(length, "finite gradient"), (median_to_all, ""), (sort_to_first, "")])
def test_errors_at_ties_and_singular_points_are_found_with_every_seed(operation, rule):
    for seed in SEEDS:
        with pytest.raises(GradientError) as caught:
            gradcheck(operation, AT_TIES, seed=seed)
        assert caught.value.rule == rule or not rule


def test_determinant_of_a_singular_matrix_is_found():
    x = np.array([[1.0, 0.0, 2.0], [-1.0, 0.0, 3.0], [0.5, 0.0, 1.0]])
    for seed in SEEDS:
        with pytest.raises(GradientError, match="rule: gradient"):
            gradcheck(determinant, x, seed=seed)


# Limits of gradients, and stairs


def eigenvalues(factor_at_zero):
    """Return the eigenvalues of the symmetric part as an operation whose gradient at 0 is multiplied by a factor."""

    @differentiable
    def operation(x):
        values, vectors = np.linalg.eigh((x + x.T) / 2)
        factor = 1.0 if x.any() else factor_at_zero
        return values, lambda g: (factor * (vectors * g) @ vectors.T,)

    return operation


def test_the_limit_of_gradients_in_one_basis_is_a_convention():
    assert gradcheck(eigenvalues(1.0), np.zeros((3, 3))).level == "convention"


@pytest.mark.parametrize("factor", [-2.0, 1.5])
def test_a_multiple_of_the_limit_is_wrong(factor):
    with pytest.raises(GradientError):
        gradcheck(eigenvalues(factor), np.zeros((3, 3)))


@pytest.mark.parametrize("divisor", [1.3e-6, 1e-6, 0.7e-6])
def test_stairs_are_flat_and_quotients_are_not(divisor):
    """The stairs of floor(0.7 / x) near 1e-6 are 1e-12 wide."""
    for rounding, is_flat in ((np.floor, True), (np.positive, False)):

        def quotient(t, rounding=rounding):
            return rounding(np.array([0.7 / (divisor + 3e-14 + t)]))

        assert is_on_staircase(quotient, np.ones(1), 0.0, -0.7 / divisor**2, quotient(0.0)) == is_flat


# Gradients that are not finite


def log(x):
    return np.log(np.where(x > 0, x, 1e-300))


@differentiable
def power(x, y):
    """x ** y, with a gradient of NaN where x is 0."""
    value = np.where((x < 0) & (y != np.round(y)), np.nan, abs(x) ** y)
    return value, lambda g: (np.where(x == 0, np.nan, g * y * value / (x + (x == 0))), g * value * log(abs(x)))


@differentiable
def xlogy(x, y):
    """x log(y), which is 0 where x is 0, with a gradient of NaN at (0, 0)."""
    value = np.where(x == 0, 0.0, x * log(y))
    return value, lambda g: (g * log(y), np.where(y == 0, np.nan, g * x / (y + (y == 0))))


def test_nan_is_wrong_even_where_the_function_jumps_along_another_input():
    zeros = np.zeros(3)  # x ** 0 is constant, but 0 ** y is not
    for exponent in (zeros, zeros + 1):
        with pytest.raises(GradientError, match="rule: finite gradient"):
            gradcheck(power, zeros, exponent)
    with pytest.raises(GradientError, match="rule: finite gradient"):
        gradcheck(xlogy, zeros, zeros)


def test_backward_may_reject_an_output_without_entries():
    @differentiable
    def means_of_pairs(x):
        def vjp(g):
            if not g.size:
                raise ZeroDivisionError("division by zero")
            return (np.repeat(g / 2, 2, axis=-1) if x.shape[-1] % 2 == 0 else np.pad(np.repeat(g / 2, 2, -1), pad),)

        n = x.shape[-1] // 2
        pad = [(0, 0)] * (x.ndim - 1) + [(0, 1)]
        return x[..., : 2 * n].reshape(*x.shape[:-1], n, 2).mean(axis=-1), vjp

    check_operation(means_of_pairs, X)


def test_derived_inputs_have_the_dtype_of_the_given_ones():
    @differentiable
    def identity(x):
        dtypes.add(x.dtype.name)
        return x + 0, lambda g: (g,)

    dtypes = set()
    check_operation(identity, X.astype("float32"), compare_float32=False)
    assert dtypes == {"float32"}


def test_a_small_change_is_not_a_jump():
    operation = elementwise(lambda x: (x - 1) * (x - 1.001), lambda x: 5 + 0 * x)  # 0 at distances of 0 and 0.001
    with pytest.raises(GradientError, match="rule: gradient"):
        gradcheck(operation, np.array([1.0]))
