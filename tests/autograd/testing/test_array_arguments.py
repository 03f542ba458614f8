"""Arrays by name, in containers and unseen by the checker, and functions that reject derived inputs."""

import warnings

import numpy as np
import pytest

from autograd import Tensor, differentiable
from autograd.testing import CheckError, GradientError, check_layer, check_operation, from_pair, gradcheck
from models import Module, Parameter

X = np.random.default_rng(0).normal(size=(4, 6))
GAIN = X[0] + 3
MASK = X > -0.5
QUICK = {"vary_inputs": False}

pytestmark = pytest.mark.usefixtures("registry")


class Wrapped(Module):
    """Applies a function to a scaled input and any further arguments."""

    def __init__(self, function):
        self.function = function
        self.scale = Parameter(np.ones(6, "float32"))

    def forward(self, x, *arguments, **options):
        return self.function(x * self.scale, *arguments, **options)


# Gradients of the wrong shape or dtype


@differentiable
def unreduced(x, gain):
    return x * gain, lambda g: (g * gain, g * x)


@differentiable
def rounded(x, gain):
    return x * gain, lambda g: (g * gain, (g * x).sum(axis=0).astype("float32"))


@differentiable
def failing(x, gain):
    return x * gain, lambda g: (g * gain, (g @ x).sum(axis=0))


PAIR = from_pair(lambda x, p: (x * p["gain"], (x, p["gain"])), lambda g, cache: (g * cache[1], g * cache[0]))


@pytest.mark.parametrize("function", [unreduced, rounded, failing])
@pytest.mark.parametrize(
    "call",
    [
        lambda f: check_operation(f, X, gain=GAIN),
        lambda f: check_operation(lambda values: f(values["x"], values["gain"]), {"x": X, "gain": GAIN}),
        lambda f: check_operation(lambda x, gains: f(x, gains[0]), X, (GAIN,)),
        lambda f: check_layer(Wrapped(f), X, gain=GAIN),
        lambda f: gradcheck(f, X, gain=GAIN),
    ],
    ids=["by name", "in a dict", "in a tuple", "layer", "gradcheck"],
)
def test_an_invalid_gradient_does_not_make_an_array_a_constant(function, call):
    with pytest.raises(GradientError) as caught:
        call(function)
    assert caught.value.rule == "valid gradient"


def test_an_invalid_gradient_of_an_array_in_a_pair_is_found():
    with pytest.raises(GradientError) as caught:
        check_operation(PAIR, X, {"gain": GAIN})
    assert caught.value.rule == "valid gradient"


# Integers and masks


@differentiable
def masked_softmax(x, mask):
    z = np.where(mask, x, -1e9)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    p = (e / e.sum(axis=-1, keepdims=True)).astype(x.dtype)
    return p, lambda g: (mask * p * (g - (g * p).sum(axis=-1, keepdims=True)),)


@differentiable
def looked_up(table, ids):
    def vjp(g):
        gradient = np.zeros_like(table)
        np.add.at(gradient, ids, g)
        return (gradient,)

    return table[ids], vjp


@differentiable
def looked_up_once(table, ids):
    """The gradient of a row that occurs twice is overwritten."""

    def vjp(g):
        gradient = np.zeros_like(table)
        gradient[ids] += g
        return (gradient,)

    return table[ids], vjp


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_operation(masked_softmax, X, mask=MASK),
        lambda: check_operation(lambda x, masks: masked_softmax(x, masks[0]), X, (MASK,)),
        lambda: check_operation(lambda x: masked_softmax(x, MASK), X),
        lambda: check_layer(Wrapped(masked_softmax), X, mask=MASK),
        lambda: check_layer(Wrapped(lambda x: masked_softmax(x, MASK)), X),
        lambda: check_operation(looked_up, X, ids=np.array([0, 2, 1])),
        lambda: check_operation(
            from_pair(lambda p: (((p - X) ** 2).mean(), p), lambda g, p: 2 * g * (p - X) / p.size), X
        ),
    ],
    ids=["by name", "in a tuple", "closure", "layer by name", "layer closure", "ids", "targets in a closure"],
)
def test_integers_masks_and_unseen_arrays_are_not_false_alarms(check):
    check()


def test_integers_by_name_are_varied():
    for ids in (np.array([0, 2, 1]), [np.array([0, 2, 1])]):
        with pytest.raises(GradientError, match=r"one number everywhere in the integers of option ids"):
            check_operation(lambda x, ids: looked_up_once(x, ids if hasattr(ids, "dtype") else ids[0]), X, ids=ids)


@pytest.mark.parametrize("name", ["idx", "position"])
def test_integers_that_the_function_changes_are_reported_and_restored(name):
    @differentiable
    def shifted(x, idx):
        idx += 1
        return looked_up.__wrapped__(x, idx % len(x))

    idx = np.array([0, 1, 1])
    with pytest.raises(CheckError, match="expected the function not to modify its inputs") as caught:
        check_operation(shifted, X, idx=idx) if name == "idx" else check_operation(shifted, X, idx)
    assert caught.value.rule == "no mutation"
    assert idx.tolist() == [0, 1, 1]


def test_a_vjp_that_writes_to_an_input_is_not_said_to_write_to_the_gradient():
    @differentiable
    def square(x):
        def vjp(g):
            x.__imul__(1.0)
            return (2 * x * g,)

        return x * x, vjp

    with pytest.raises(CheckError, match="expected the vjp not to modify an input or the incoming gradient") as caught:
        check_operation(square, X)
    assert caught.value.rule == "no mutation"


def test_an_array_that_sums_the_gradients_of_all_calls_depends_on_earlier_calls():
    totals = {}

    @differentiable
    def square(x):
        def vjp(g):
            total = totals.setdefault((g.shape, g.dtype), np.zeros_like(g))
            total += 2 * x * g
            return (total.copy(),)

        return x * x, vjp

    with pytest.raises(AssertionError) as caught:
        check_operation(square, X, n_directions=1)
    assert caught.value.rule == "independent calls"


def test_classes_and_other_byte_orders_are_accepted():
    class Dtype:
        def __call__(self, x, dtype):
            return x * 2.0

    assert check_operation(Dtype(), X, dtype=np.float32).compared
    assert check_operation(Dtype(), X, np.float32).compared
    assert check_operation(lambda x: x * x, X.astype(">f8")).compared


class FakeTorchTensor:
    """Stands for a tensor of PyTorch."""

    __module__ = "torch"

    def __init__(self, x):
        self.x = x

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.x


def test_torch_tensors_are_converted():
    assert check_operation(lambda x, gain: x * gain, FakeTorchTensor(X), gain=FakeTorchTensor(GAIN), **QUICK).compared


# Exceptions


class OwnError(Exception):
    pass


class OwnValueError(ValueError):
    pass


def reject(kind):
    if kind is UserWarning:
        warnings.warn("odd", UserWarning, stacklevel=1)
    else:
        raise kind("odd")


KINDS = [AssertionError, RuntimeError, NotImplementedError, AttributeError, OwnError, UserWarning]


@pytest.mark.parametrize("kind", KINDS)
def test_any_exception_rejects_a_derived_input(kind):
    def paired(x):
        if x.shape[-1] % 2:
            reject(kind)
        return x[..., ::2] * x[..., 1::2]

    def backward(g, x):
        gradient = np.empty_like(x)
        gradient[..., ::2], gradient[..., 1::2] = g * x[..., 1::2], g * x[..., ::2]
        return gradient

    check_operation(paired, X)
    check_operation(from_pair(lambda x: (paired(x), x), backward), X)
    check_layer(Wrapped(paired), X)
    if kind is not UserWarning:  # at the given inputs, the exception is the function's own
        for check in (check_operation, gradcheck):
            with pytest.raises(kind, match="odd"):
                check(paired, X[:, :5])


@pytest.mark.parametrize("kind", [AssertionError, NotImplementedError, np.linalg.LinAlgError, OwnError])
def test_a_vjp_may_reject_derived_inputs_but_not_the_given_ones(kind):
    def square(limit):
        @differentiable
        def square(x):
            def vjp(g):
                if len(g) > limit:
                    raise kind("long")
                return (2 * x * g,)

            return x * x, vjp

        return square

    check_operation(square(10), X)
    for check in (check_operation, gradcheck):
        with pytest.raises(GradientError, match=f"backward raised {kind.__name__}: long") as caught:
            check(square(3), X)
        assert caught.value.rule == "valid gradient"


@pytest.mark.parametrize("kind", [NameError, LookupError, OwnValueError])
def test_a_mistake_in_a_vjp_at_a_derived_input_is_reported(kind):
    @differentiable
    def square(x):
        def vjp(g):
            if len(g) == 1:
                raise kind("single")
            return (2 * x * g,)

        return x * x, vjp

    with pytest.raises(GradientError, match=f"derived: 1 row: backward raised {kind.__name__}: single"):
        check_operation(square, X)


def test_a_gradient_of_padded_rows_is_no_broadcast_input():
    """The shapes in the message, (1, 6) and (4, 6), are also those of an input that is broadcast to the given rows."""

    @differentiable
    def square(x):
        return x * x, lambda g: (2 * x * g * np.ones((4 if len(g) < 4 else 1, 1), g.dtype),)

    with pytest.raises(GradientError, match="derived: 1 row: backward raised RuntimeError"):
        check_operation(square, X)


def test_the_reference_may_raise_any_exception_at_derived_inputs():
    def reference(x):
        assert len(x) == 4
        return 2 * x

    assert check_operation(lambda x: Tensor.__mul__(x, 2.0), X, reference=reference).compared
